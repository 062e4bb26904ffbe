"""Kernels that stream rows: bytes counted by hand, and one sentence for every mistake."""

import numpy as np
import pytest

from tilecast import hardware
from tilecast.errors import InvalidInput, UnknownName
from tilecast.execution import Protocol
from tilecast.kernels.base import execution_of
from tilecast.kernels.conv2d import Conv2d
from tilecast.kernels.elementwise import OPS, Elementwise
from tilecast.kernels.embedding import Embedding
from tilecast.kernels.kv_cache_write import KvCacheWrite
from tilecast.kernels.layer_norm import LayerNorm
from tilecast.kernels.layer_norm_backward import LayerNormBackward
from tilecast.kernels.optimizer_update import OptimizerUpdate
from tilecast.kernels.quantize import Quantize
from tilecast.kernels.rms_norm import RmsNorm
from tilecast.kernels.rope import Rope
from tilecast.kernels.sampling import Sampling
from tilecast.kernels.silu_mul import SiluMul
from tilecast.kernels.softmax import Softmax
from tilecast.kernels.streaming import streaming_constants

H100, T4 = hardware.gpu("h100-sxm"), hardware.gpu("t4")
COLD, WARM = Protocol(), Protocol(cache="warm")


def least_bytes(kernel, gpu=H100, protocol=COLD):
    return float(np.ravel(kernel.tasks(gpu, protocol).least_bytes)[0])


def analytic_s(kernel, gpu=H100, protocol=COLD):
    return float(execution_of(kernel, gpu, protocol).analytic_s[0])


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        # x and the residual in, their sum and its norm out: 4 x 100 x 4096 x 2 bytes, and the weight once
        (RmsNorm(rows=100, cols=4096, residual=True), 4 * 100 * 4096 * 2 + 4096 * 2),
        (RmsNorm(rows=100, cols=4096), 2 * 100 * 4096 * 2 + 4096 * 2),
        (LayerNorm(rows=100, cols=1024, dtype="fp32"), 2 * 100 * 1024 * 4 + 2 * 1024 * 4),
        (Softmax(rows=100, cols=1024, dtype="fp32"), 2 * 100 * 1024 * 4),
        (SiluMul(rows=100, cols=8192), 3 * 100 * 8192 * 2),  # gate and up in, one out
        (Elementwise(op="add", numel=1 << 20), 3 * 2 * (1 << 20)),
        (Elementwise(op="addu", numel=1 << 20), 2 * 2 * (1 << 20)),
        (Elementwise(op="add3", numel=1 << 20), 4 * 2 * (1 << 20)),
        # 40 heads of 128 in and out, a row of the table (128 x 2 bytes) and a position
        (Rope(rows=10, num_heads=32, num_kv_heads=8, head_dim=128), 10 * (2 * 40 * 128 * 2 + 128 * 2 + 8)),
        (Embedding(rows=10, cols=4096, vocab_size=32000), 10 * (2 * 4096 * 2 + 8)),
        (Embedding(rows=100, cols=4096, vocab_size=10), 100 * (4096 * 2 + 8) + 10 * 4096 * 2),
        (KvCacheWrite(rows=10, num_kv_heads=8, head_dim=128), 10 * (2 * 2 * 1024 * 2 + 8)),
        (Quantize(rows=16, cols=4096), 3 * 16 * 4096),  # two bytes in, one out
        (OptimizerUpdate(numel=1 << 20, kind="adamw", implementation="fused", dtype="fp32"), 7 * 4 * (1 << 20)),
        (OptimizerUpdate(numel=1 << 20, kind="sgd", dtype="fp32"), 3 * 4 * (1 << 20)),
        # image 8 x 3 x 32 x 32, weights 16 x 3 x 3 x 3, result 8 x 16 x 32 x 32
        (Conv2d(batch=8, in_channels=3, out_channels=16, height=32, width=32, kernel=3, padding=1), 2 * (24576 + 432 + 131072)),
    ],
)
def test_bytes_by_hand(kernel, expected):
    assert least_bytes(kernel) == expected


def test_a_long_stream_runs_at_dram_speed():
    # 3 x 2^30 x 2 bytes at 3352 GB/s are 1.92 ms at the very least
    analysis = execution_of(Elementwise(op="add", numel=1 << 30), H100, COLD)
    assert analysis.bound_s[0] == pytest.approx(6 * 2**30 / 3.352e12, rel=1e-6)
    assert 1.0 < analysis.analytic_s[0] / analysis.bound_s[0] < 1.4
    assert analysis.bound_by[0] == "dram"


def test_what_fits_the_cache_is_faster_warm():
    kernel = Elementwise(op="add", numel=4 << 20)  # 24 MiB of a 50 MiB L2
    assert analytic_s(kernel, protocol=WARM) < analytic_s(kernel)
    assert least_bytes(kernel, protocol=WARM) == 0


def test_a_layer_norm_whose_rows_leave_the_cache_pays_a_third_pass():
    # 40 SMs x 8 blocks x 2 x 64 KiB are ten times T4's 4 MiB of L2: three passes instead of two
    wide, narrow = (LayerNorm(rows=(1 << 28) // cols, cols=cols, dtype="fp32") for cols in (16384, 512))
    assert analytic_s(wide, T4) / analytic_s(narrow, T4) == pytest.approx(1.5, rel=0.05)


def test_an_unfused_optimizer_moves_more_and_launches_more():
    fused, foreach, single = (
        OptimizerUpdate(numel=1 << 26, num_tensors=300, implementation=how) for how in ("fused", "foreach", "per_tensor")
    )
    assert analytic_s(fused) < analytic_s(foreach) < analytic_s(single)


def test_the_event_timer_adds_the_hosts_time():
    kernel = LayerNorm(rows=8, cols=256)
    assert analytic_s(kernel, protocol=Protocol("event")) > analytic_s(kernel) + 20e-6


def test_a_calls_second_kernel_waits_for_its_launch_alone():
    # 4220 clocks at 1.98 GHz and 0.758 us, where the profiler sees start_s between the two; not another 20 us of the host
    one, two = (Quantize(rows=16, cols=4096, op=op) for op in ("per_token", "per_tensor"))
    beside = analytic_s(two) - analytic_s(one) - streaming_constants().start_s  # what the second kernel moves
    longer = analytic_s(two, protocol=Protocol("event")) - analytic_s(one, protocol=Protocol("event"))
    assert longer - beside == pytest.approx(4220 / 1.98e9 + 0.758e-6, rel=1e-6)


def test_a_layer_norms_second_backward_kernel_finds_its_inputs_in_cache():
    # Input, gradient and result of 1024 x 1024 are 12 MiB of L4's 48 MiB; 8192 rows are 96 MiB and come from DRAM again.
    gpu, rate = hardware.gpu("l4"), 58 * streaming_constants().vector_bytes_per_clock_per_sm
    small, large = (LayerNormBackward(rows=rows, cols=1024, dtype="fp32").tasks(gpu, COLD).fixed_s for rows in (1024, 8192))
    assert large > 8 * small
    # 32 blocks of 32 columns read 8 MiB: 8,388,608 / (32 x 15.72 x 2.04 GHz) = 8.2 us
    assert small == pytest.approx(8_388_608 / (32 / 58 * rate * 2.04e9), abs=3e-6)


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operation_has_a_time(op):
    assert analytic_s(Elementwise(op=op, numel=1000)) > 0


def test_operations_may_differ_within_a_batch():
    batch = execution_of(Elementwise(op=np.array(["add", "relu"]), numel=np.array([1 << 24, 1 << 24])), H100, COLD).analytic_s
    np.testing.assert_allclose(batch, [analytic_s(Elementwise(op=op, numel=1 << 24)) for op in ("add", "relu")])


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (Elementwise(op="cosh", numel=4), "op = 'cosh' must be one of add, sub"),
        (Elementwise(op="add", numel=-1), "numel = -1 must be a whole number of at least 1"),
        (RmsNorm(rows=0, cols=4), "rows = 0 must be a whole number of at least 1"),
        (SiluMul(rows=[1, 2], cols=[1, 2, 3]), "different numbers of launches"),
        (Quantize(rows=1, cols=1, op="guess"), "op = 'guess' must be one of static_scaled_fp8"),
        (OptimizerUpdate(numel=1, kind="lion"), "kind = 'lion' must be one of sgd, adam, adamw"),
        (OptimizerUpdate(numel=1, implementation="jit"), "implementation = 'jit' must be one of fused"),
        (Conv2d(batch=1, in_channels=1, out_channels=1, height=2, width=2, kernel=5), "kernel = 5 is larger than the padded image"),
        (Elementwise(op=["add", "mul"], numel=[1, 2, 3]), "op 2, numel 3"),
    ],
)
def test_mistakes_are_one_sentence(kernel, told):
    with pytest.raises(InvalidInput, match=told) as raised:
        kernel.tasks(H100, COLD)
    assert "\n" not in str(raised.value)


def test_an_unknown_dtype_names_the_known_ones():
    with pytest.raises(UnknownName, match="unknown dtype 'fp17'"):
        Sampling(rows=1, cols=8, dtype="fp17").tasks(H100, COLD)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "h20", "b200-sxm", "mi300x"])
def test_a_long_stream_is_bound_by_dram_however_much_of_it_an_sm_has(name):
    gpu = hardware.gpu(name)
    found = execution_of(Elementwise(op="add", numel=2**31, dtype="bf16"), gpu, COLD)
    assert found.bound_by.tolist() == ["dram"]
    assert 0.8 < 3 * 2 * 2**31 / gpu.dram_bytes_per_s / found.analytic_s[0] < 0.95
