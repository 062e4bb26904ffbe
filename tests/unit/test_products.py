"""What products rest on beside tiles: copies of weights in turn, L2's own rate, the kind of memory, starts that are hidden."""

from dataclasses import replace

import numpy as np
import pytest

from tilecast import hardware
from tilecast.execution import Protocol, analyse, constants
from tilecast.execution.cache import ROTATED_COPIES, from_dram, hit_fraction, in_turn_fraction
from tilecast.kernels.gemm import Gemm
from tilecast.predictors.kernel import predict_kernel

MIB = 2.0**20


def seconds(gpu_id: str, cache: str = "cold", timer: str = "graph", **sizes: object) -> float:
    gpu, protocol = hardware.gpu(gpu_id), Protocol(timer, cache)
    return float(analyse(Gemm(**sizes).tasks(gpu, protocol), gpu, protocol).analytic_s[0])  # type: ignore[arg-type]


def test_buffers_in_turn_are_all_found_or_all_gone_sooner_than_a_mixed_working_set() -> None:
    l40s = hardware.gpu("l40s")
    assert in_turn_fraction(0.9 * l40s.l2_bytes, l40s) == 1.0 == hit_fraction(0.9 * l40s.l2_bytes, l40s)
    assert in_turn_fraction(1.15 * l40s.l2_bytes, l40s) == 0.0 < hit_fraction(1.15 * l40s.l2_bytes, l40s)


@pytest.mark.parametrize(("weight_mib", "found"), [(14, True), (20, False)])
def test_rotated_weights_are_found_where_all_copies_fit(weight_mib: int, found: bool) -> None:
    l40s = hardware.gpu("l40s")
    assert found == (ROTATED_COPIES * weight_mib * MIB < l40s.l2_bytes)
    assert (from_dram(weight_mib * MIB, 0.0, l40s, "rotated") == 0.0) == found
    assert from_dram(weight_mib * MIB, 0.0, l40s, "warm") == 0.0


def test_what_lies_in_l2_still_takes_its_time() -> None:
    """A weight of 64 MiB that fits L40S's L2: faster than from DRAM, by less than L2 is faster."""
    sizes = {"m": 8, "n": 8192, "k": 4096}
    warm, cold = seconds("l40s", "warm", **sizes), seconds("l40s", "cold", **sizes)
    least = 64 * MIB / (constants().l2_over_dram * hardware.gpu("l40s").dram_data_bytes_per_s)
    assert least < warm < 0.5 * cold


def test_graphics_memory_without_check_bits_in_it_is_read_at_the_share_of_a_stream() -> None:
    sizes = {"m": 8, "n": 32768, "k": 16384}
    used = {
        gpu: 2.0 * 32768 * 16384 / seconds(gpu, **sizes) / hardware.gpu(gpu).dram_bytes_per_s for gpu in ("rtx-4090", "l40s", "h100-sxm")
    }
    assert used["rtx-4090"] > 0.88 > used["l40s"] and used["rtx-4090"] > 0.88 > used["h100-sxm"]


def test_a_start_is_hidden_on_data_centre_blackwell_alone_and_for_single_cublas_products() -> None:
    def launch(gpu_id: str, **more: object) -> float:
        gpu, protocol = hardware.gpu(gpu_id), Protocol("graph", "rotated")
        return float(analyse(Gemm(m=1, n=512, k=512, **more).tasks(gpu, protocol), gpu, protocol).launch_s[0])  # type: ignore[arg-type]

    hidden = constants().launch_s
    assert launch("b200-sxm") == pytest.approx(launch("b200-sxm", batch=2) - hidden)
    assert launch("b200-sxm", identity="deepgemm") == launch("b200-sxm", batch=2)
    assert launch("h100-sxm") == launch("h100-sxm", batch=2)
    assert launch("rtx-pro-6000-server") == launch("rtx-pro-6000-server", batch=2)


def test_launches_of_which_some_are_batched_are_their_members() -> None:
    gpu, protocol = hardware.gpu("b200-sxm"), Protocol("graph", "rotated")
    m, batch = np.array([1, 64, 512]), np.array([1, 2, 1])
    together = analyse(Gemm(m=m, n=4096, k=4096, batch=batch).tasks(gpu, protocol), gpu, protocol)
    for place in range(3):
        alone = analyse(Gemm(m=int(m[place]), n=4096, k=4096, batch=int(batch[place])).tasks(gpu, protocol), gpu, protocol)
        assert together.analytic_s[place] == pytest.approx(alone.analytic_s[0], rel=1e-12)
        assert together.bound_by[place] == alone.bound_by[0] and together.launch_s[place] == pytest.approx(alone.launch_s[0])


@pytest.mark.parametrize(("gpu", "dtype", "identity"), [("h100-sxm", "fp8", "cutlass"), ("b200-sxm", "nvfp4", "cutlass"),
                                                        ("h100-sxm", "fp8_block", "deepgemm"), ("h100-sxm", "bf16", "cublas")])  # fmt: skip
def test_a_product_left_open_is_the_kernel_whose_rows_correct_it(gpu: str, dtype: str, identity: str) -> None:
    sizes = {"m": np.array([16, 256, 4096]), "n": 8192, "k": 8192, "dtype": dtype}
    left_open, named = (predict_kernel(Gemm(**sizes, **more), gpu) for more in ({}, {"identity": identity}))  # type: ignore[arg-type]
    np.testing.assert_array_equal(left_open.median_s, named.median_s)
    np.testing.assert_array_equal(left_open.analysis.analytic_s, named.analysis.analytic_s)


def test_a_product_whose_rows_do_not_tell_their_kernel_is_priced_in_every_tile() -> None:
    sizes = {"m": np.array([16, 256, 4096]), "n": 8192, "k": 8192, "dtype": "fp8"}
    found = predict_kernel(Gemm(**sizes), "h100-sxm", engine="trtllm")  # type: ignore[arg-type]
    protocol = Protocol("profiler", "cold")
    gpu = hardware.gpu("h100-sxm")
    np.testing.assert_array_equal(found.analysis.analytic_s, analyse(Gemm(**sizes).tasks(gpu, protocol), gpu, protocol).analytic_s)  # type: ignore[arg-type]


def test_deepgemm_is_named_only_where_it_is_written_for() -> None:
    assert [Gemm(m=1, n=1, k=1, dtype="fp8_block").newest_identity(hardware.gpu(gpu)) for gpu in ("h20", "b300-sxm", "l40s", "a40")] == [
        "deepgemm", "deepgemm", "triton", "triton"]  # fmt: skip


@pytest.mark.parametrize("gpu", ["a100-pcie-40gb", "v100-pcie-32gb", "mi210"])
def test_batched_products_in_fp32_are_told_by_their_own_rows(gpu: str) -> None:
    """Frameworks' rows name the kernel of a batched product, unlike the engines' in 16 bits."""
    found = predict_kernel(
        Gemm(m=512, n=64, k=512, batch=np.array([1, 96]), dtype="fp32"), gpu, timer="event", cache="warm", engine="pytorch"
    )
    assert found.basis.tolist() == ["interpolated", "interpolated"]


@pytest.mark.parametrize(("gpu", "sglang_us", "trtllm_us"), [("h100-sxm", 12.0, 19.2), ("b200-sxm", 9.4, 16.6)])
def test_tensorrt_llm_looks_for_the_scale_of_its_fp8_activations_first(gpu: str, sglang_us: float, trtllm_us: float) -> None:
    """Rows of 16 x 4096 x 4096 in graphs: 7.2 us apart on both, two kernels. A profiler sees the product alone, which is the same."""
    sizes = {"m": 16, "n": 4096, "k": 4096, "dtype": "fp8", "cache": "rotated"}
    apart_s = seconds(gpu, engine="trtllm", **sizes) - seconds(gpu, engine="sglang", **sizes)
    assert apart_s == pytest.approx((trtllm_us - sglang_us) * 1e-6, rel=0.15)
    alone = [seconds(gpu, timer="profiler", engine=engine, **sizes) for engine in ("trtllm", "sglang")]
    assert alone[0] == alone[1]
    batched = [seconds(gpu, engine=engine, batch=8, **sizes) for engine in ("trtllm", "sglang")]
    assert batched[0] == batched[1]


@pytest.mark.parametrize(
    ("gpu", "size", "tflop_per_s"),
    [("rtx-4090", 8192, 54.7), ("rtx-4090", 16384, 54.5), ("rtx-3090", 8192, 24.0), ("h100-sxm", 4096, 54.0), ("h100-sxm", 8192, 48.3)],
)
def test_boards_at_their_power_limit_multiply_in_fp32_as_others_published(gpu: str, size: int, tflop_per_s: float) -> None:
    """torch.matmul and cublasSgemm without TF32; docs/training.md names who published them."""
    found_s = seconds(gpu, "warm", "profiler", m=size, n=size, k=size, dtype="fp32")
    assert 2 * size**3 / found_s / 1e12 == pytest.approx(tflop_per_s, rel=0.08)


def test_a_board_of_a_few_watts_is_slow_and_not_stuck() -> None:
    protocol, product = Protocol("profiler", "warm"), Gemm(m=4096, n=4096, k=4096, dtype="fp32")
    boards = [replace(hardware.gpu("l4"), tdp_w=watts) for watts in (10.0, 30.0, 72.0)]
    slow, slower_than_l4, l4 = (float(analyse(product.tasks(board, protocol), board, protocol).analytic_s[0]) for board in boards)
    assert 1.0 > slow > slower_than_l4 > l4
