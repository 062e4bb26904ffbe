"""What engines run without a tuned file: the configuration a speed-up is counted from."""

from collections.abc import Mapping

from tilecast.errors import UnknownName
from tilecast.tuning.space import PARAMETERS

ENGINES = ("sglang", "vllm")
# Triton launches 4 warps with 3 stages where a configuration does not say.
WARPS, STAGES = 4, 3
LITTLE_SHARED_BYTES = 128 << 10  # of a block: with less, SGLang's FP8 default is another


def named(*values: int) -> dict[str, int]:
    return dict(zip(PARAMETERS.values(), values, strict=True))


def default_config(
    engine: str, num_tokens: int, num_experts: int, dtype: str, shared_bytes_per_block: int | None = None
) -> Mapping[str, int]:
    """The engine's own choice for a fused MoE kernel. `num_experts` are those on the rank; SGLang looks at shared memory too."""
    if engine not in ENGINES:
        raise UnknownName.among("engine", engine, ENGINES)
    few = num_tokens <= num_experts
    if dtype == "fp8_block":  # a tile is as wide and as deep as a block with one scale
        if engine == "vllm":
            return named(16 if num_tokens <= 64 else 64, 128, 128, 1 if num_tokens <= 16 else 32, WARPS, STAGES)
        return named(64, 128, 128, 32, WARPS, STAGES)
    if engine == "vllm":
        return _vllm(num_tokens, num_experts, dtype)
    if dtype in ("fp8", "fp8_static"):
        if shared_bytes_per_block is not None and shared_bytes_per_block < LITTLE_SHARED_BYTES:
            return named(32, 64, 256, 1, 4, 4) if few else named(64, 128, 256, 64, 4, 2)
        return named(64, 128, 128, 1, 4, 4) if few else named(128, 256, 128, 32, 8, 4)
    return named(16, 32, 64, 1, WARPS, STAGES) if few else named(64, 64, 32, 8, WARPS, STAGES)


def _vllm(num_tokens: int, num_experts: int, dtype: str) -> Mapping[str, int]:
    rows = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if num_tokens <= most), 128)
    columns = 64 if num_tokens <= 64 else 128
    depth = 128 if dtype in ("fp8", "fp8_static") or num_tokens <= 64 else 64
    group = 16 if num_tokens // max(num_experts, 1) > 128 else 1
    return named(rows, columns, depth, group, 4 if num_tokens <= 128 else 8, 4 if num_tokens <= 32 else 3)


def gemm_default(engine: str) -> Mapping[str, int]:
    """A block-scaled FP8 GEMM without a tuned file, whatever its number of rows."""
    if engine not in ENGINES:
        raise UnknownName.among("engine", engine, ENGINES)
    return named(64, 128, 128, 32, 4, 3 if engine == "sglang" else 2)


def searched_default(num_tokens: int, num_experts: int) -> Mapping[str, int]:
    """What the published searches call SGLang's default: above, but in the space they searched."""
    return named(16, 32, 64, 1, 4, 3) if num_tokens <= num_experts else named(64, 64, 64, 16, 4, 3)
