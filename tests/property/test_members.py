"""A batch equals its members: a lone launch is priced with plain numbers, many with arrays, by the same formulas."""

import numpy as np
import pytest

from tilecast.kernels.registry import kernel
from tilecast.predictors import predict_kernel

HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
EXPERTS = {"hidden_size": 4096, "inter_size": 1536, "num_experts": 128, "topk": 8}
# Family, what all launches share, and the sizes that differ with their ranges.
CASES = [
    ("gemm", {}, {"m": 8192, "n": 16384, "k": 16384}),
    ("gemm", {"identity": "deepgemm", "dtype": "fp8_block", "bias": True}, {"m": 8192, "n": 16384, "k": 16384, "batch": 3}),
    ("gemm", {"dtype": "fp32", "split": 2, "tile": (64, 64)}, {"m": 512, "n": 2048, "k": 2048}),
    ("attention_prefill", HEADS, {"batch": 16, "q_len": 4096}),
    ("attention_decode", HEADS, {"batch": 256, "kv_len": 16384}),
    ("mla_decode", {"num_heads": 16}, {"batch": 64, "kv_len": 16384}),
    ("moe", EXPERTS, {"num_tokens": 8192}),
    ("moe", EXPERTS | {"ep": 4, "distribution": "power_law_1.2", "identity": "cutlass"}, {"num_tokens": 8192}),
    ("rms_norm", {"residual": True}, {"rows": 65536, "cols": 16384}),
    ("rms_norm", {"identity": "scalar"}, {"rows": 65536, "cols": 16384}),
    ("layer_norm", {}, {"rows": 65536, "cols": 16384}),
    ("softmax", {"dtype": "fp32"}, {"rows": 65536, "cols": 16384}),
    ("silu_mul", {}, {"rows": 65536, "cols": 16384}),
    ("elementwise", {"op": "add"}, {"numel": 10**9}),
    ("rope", HEADS, {"rows": 65536}),
    ("kv_cache_write", {"num_kv_heads": 8, "head_dim": 128}, {"rows": 65536}),
    ("embedding", {"vocab_size": 128_000}, {"rows": 65536, "cols": 16384}),
    ("sampling", {}, {"rows": 256, "cols": 200_000}),
    ("conv2d", {"height": 56, "width": 56, "kernel": 3}, {"batch": 32, "in_channels": 512, "out_channels": 512}),
    ("all_reduce", {"num_gpus": 8}, {"bytes": 10**9}),
    ("all_reduce", {"num_gpus": 4, "identity": "custom"}, {"bytes": 10**7}),
]
PROTOCOLS = (("profiler", "cold"), ("graph", "warm"), ("event", "rotated"))


@pytest.mark.parametrize(("timer", "cache"), PROTOCOLS)
@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "mi300x"])
@pytest.mark.parametrize(("family", "shared", "ranges"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_batch_equals_its_members(family: str, shared: dict, ranges: dict, gpu: str, timer: str, cache: str) -> None:
    if gpu == "mi300x" and shared.get("dtype") == "fp8_block":
        shared = {**shared, "dtype": "bf16", "identity": None}
    draw = np.random.default_rng(len(family) + len(gpu) + len(timer))
    sizes = {name: np.exp(draw.uniform(0.0, np.log(highest), 12)).astype(np.int64) for name, highest in ranges.items()}
    together = predict_kernel(kernel(family)(**shared, **sizes), gpu, timer=timer, cache=cache)
    for row in range(12):
        alone = predict_kernel(
            kernel(family)(**shared, **{name: int(values[row]) for name, values in sizes.items()}), gpu, timer=timer, cache=cache
        )
        for name in ("median_s", "low_s", "high_s", "bound_s", "analytic_s"):
            np.testing.assert_allclose(getattr(alone, name), getattr(together, name)[row : row + 1], rtol=1e-12, err_msg=name)
        assert alone.basis[0] == together.basis[row]
        if not family.startswith(("attention", "mla")):  # which name one variant for the whole batch
            assert alone.analysis.variant[0] == together.analysis.variant[row]
        assert alone.analysis.bound_by[0] == together.analysis.bound_by[row]
        for name, part_s in together.analysis.stages_s.items():
            np.testing.assert_allclose(alone.analysis.stages_s[name], part_s[row : row + 1], rtol=1e-12, err_msg=name)
