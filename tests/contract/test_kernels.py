"""What every kernel family must do, whatever file it stands in; and how many numbers the analytic model may hold."""

import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

import numpy as np
import pytest

from tilecast.datasets.schema import FAMILIES
from tilecast.errors import UnknownName
from tilecast.execution import TaskSet
from tilecast.kernels.contract import check_kernel
from tilecast.kernels.registry import kernel, kernels
from tilecast.predictors import predict_kernel

CONTRACT = (
    "gemm attention_prefill attention_decode mla_prefill mla_decode moe rms_norm layer_norm softmax silu_mul elementwise conv2d "
    "all_reduce all_gather reduce_scatter all_to_all broadcast send_recv"
).split()
UNMEASURED = (
    "optimizer_update memory_pass attention_forward attention_backward flash_attention_1 layer_norm_backward softmax_backward"
).split()
# One ordinary launch of each family, in the contract's own parameter names.
EXAMPLES = {
    "gemm": {"m": 512, "n": 4096, "k": 4096},
    "attention_prefill": {"batch": 2, "q_len": 1024, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "attention_decode": {"batch": 16, "q_len": 1, "kv_len": 2048, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "mla_prefill": {"batch": 1, "q_len": 1024, "kv_len": 1024, "num_heads": 128},
    "mla_decode": {"batch": 16, "q_len": 1, "kv_len": 2048, "num_heads": 128},
    "moe": {"num_tokens": 256, "hidden_size": 2048, "inter_size": 768, "num_experts": 128, "topk": 8},
    "elementwise": {"op": "add", "numel": 1 << 20},
    "rope": {"rows": 512, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "embedding": {"rows": 512, "cols": 4096, "vocab_size": 128_256},
    "kv_cache_write": {"rows": 512, "num_kv_heads": 8, "head_dim": 128},
    "conv2d": {"batch": 8, "in_channels": 64, "out_channels": 64, "height": 56, "width": 56, "kernel": 3, "stride": 1, "padding": 1},
    "optimizer_update": {"numel": 1 << 20},
    "memory_pass": {"written_bytes": 1 << 22, "read_bytes": 1 << 23},
    "flash_attention_1": {"batch": 2, "q_len": 1024, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "attention_forward": {"batch": 2, "q_len": 1024, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "attention_backward": {"batch": 2, "q_len": 1024, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "quantize": {"rows": 512, "cols": 4096},
    **{
        family: {"rows": 512, "cols": 4096}
        for family in ("rms_norm", "layer_norm", "softmax", "silu_mul", "sampling", "layer_norm_backward", "softmax_backward")
    },
    **{
        family: {"bytes": 1 << 24, "num_gpus": 2 if family == "send_recv" else 8}
        for family in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    },
}


@pytest.mark.parametrize("family", CONTRACT)
def test_every_family_of_the_contract_has_a_model(family):
    assert family in kernels()


@pytest.mark.parametrize("family", sorted(kernels()))
def test_a_family_is_a_frozen_record_with_an_example(family):
    record = kernels()[family]
    assert is_dataclass(record)
    assert family in EXAMPLES, "add an ordinary launch of the new family to EXAMPLES"
    assert family in FAMILIES or family in UNMEASURED
    built = record(**EXAMPLES[family])
    with pytest.raises(AttributeError):
        setattr(built, fields(record)[0].name, 1)


@pytest.mark.parametrize("family", sorted(kernels()))
@pytest.mark.parametrize("id", ["h100-sxm", "a100-sxm-80gb", "l40s", "b200-sxm", "rtx-4090", "mi300x"])
def test_an_ordinary_launch_has_a_time_above_its_bound_and_inside_its_interval(family, id):
    prediction = predict_kernel(kernels()[family](**EXAMPLES[family]), id)
    assert len(prediction.median_s) == 1
    assert 1e-7 < prediction.median_s[0] < 1.0
    assert prediction.bound_s[0] <= prediction.analytic_s[0]
    assert prediction.low_s[0] <= prediction.median_s[0] <= prediction.high_s[0]
    assert prediction.bound_s[0] <= prediction.low_s[0]


@pytest.mark.parametrize("family", sorted(kernels()))
def test_a_family_passes_the_check_that_any_new_one_must(family):
    check_kernel(kernels()[family], EXAMPLES[family])


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A family whose time does not depend on its size and beats its bound."""

    family: ClassVar[str] = "broken"

    rows: int

    def tasks(self, gpu, protocol):
        ones = np.ones((1, 1))
        return TaskSet(matrix_dtype="fp32", num_tasks=ones, least_flop=ones, least_bytes=ones)


def test_the_check_refuses_a_family_that_takes_any_size():
    with pytest.raises(AssertionError, match=r"broken"):
        check_kernel(Broken, {"rows": 4})


def test_a_family_alone_is_the_one_among_all() -> None:
    assert {family: kernel(family) for family in kernels()} == kernels()
    for file in ("base", "streaming", "attention", "../gemm", ""):  # files that are no family
        with pytest.raises(UnknownName):
            kernel(file)


def test_a_family_with_a_file_of_its_name_reads_no_other() -> None:
    read = "import sys; from tilecast.kernels.registry import kernel; kernel('gemm'); print('tilecast.kernels.moe' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout == "False\n"
