"""One GEMM from shape to analytic time, redone with a pocket calculator."""

import pytest

from tilecast import hardware
from tilecast.execution import Protocol, analyse, constants
from tilecast.kernels.gemm import Gemm


def test_a_gemm_redone_by_hand():
    # C[1536, 1408] = A[1536, 4096] B[4096, 1408] in bf16 on H100 SXM, tile 128 x 128, no split, cold caches, profiler.
    # tasks: 1536/128 x 1408/128 = 12 x 11 = 132, one for each of 132 SMs: one wave, no tail
    # FLOP per task: 2 x 128 x 128 x 4096 = 134,217,728; at 4096 FLOP per clock that is 32,768 clocks
    # compulsory bytes: 2 x (1536 x 4096 + 4096 x 1408 + 1536 x 1408) = 28,442,624
    # operands through L2 per task: (128 + 128) x 4096 x 2 = 2,097,152 bytes
    gpu = hardware.gpu("h100-sxm", {"tdp_w": 9000})  # no power limit, so that the clock is the boost clock
    using = constants()
    protocol = Protocol()
    analysis = analyse(Gemm(m=1536, n=1408, k=4096, tile=(128, 128), split=1).tasks(gpu, protocol), gpu, protocol)
    assert analysis.placement.num_tasks[0] == 132
    assert analysis.placement.busiest_tasks[0] == 1
    assert analysis.placement.tail_fraction[0] == 0

    tensor_us = 32_768 / (1980 * using.tensor_fraction)  # clocks / (MHz x share issued)
    l2_us = 2_097_152 / (using.multicast_bytes_per_clock_per_sm * 1980)
    dram_us = 28_442_624 / (3.352e6 * using.dram_fraction)  # bytes / (bytes per microsecond x share reached)
    launch_us = using.launch_cycles / 1980 + using.launch_s * 1e6
    on_sm_us = (tensor_us**4 + l2_us**4) ** 0.25 + using.fill_s * 1e6 + using.drain_s * 1e6
    total_us = (on_sm_us**4 + dram_us**4) ** 0.25 + launch_us
    assert analysis.busy_s["tensor"][0] * 1e6 == pytest.approx(tensor_us)
    assert analysis.busy_s["dram"][0] * 1e6 == pytest.approx(dram_us)
    assert analysis.analytic_s[0] * 1e6 == pytest.approx(total_us)

    # bound: 17,716,740,096 FLOP / (132 x 4096 x 1.98 GHz = 1.0705e15) = 16.55 us; DRAM would need 28,442,624 / 3.352e12 = 8.49 us
    assert analysis.bound_s[0] * 1e6 == pytest.approx(16.55, abs=0.01)


def test_one_tile_too_many_costs_a_second_wave():
    # 7 x 19 = 133 tiles of 128 x 128 on 132 SMs: the busiest SM runs two, and half of the SM time is tail
    gpu, protocol = hardware.gpu("h100-sxm"), Protocol()
    analysis = analyse(Gemm(m=7 * 128, n=19 * 128, k=4096, tile=(128, 128), split=1).tasks(gpu, protocol), gpu, protocol)
    assert analysis.placement.busiest_tasks[0] == 2
    assert analysis.placement.tail_fraction[0] == pytest.approx(1 - 133 / 264)


def test_split_k_fills_an_empty_machine():
    # one 16 x 64 tile cannot use 132 SMs; k = 65,536 can be cut into 132 parts of at least 256
    gpu, protocol = hardware.gpu("h100-sxm"), Protocol()
    analysis = analyse(Gemm(m=16, n=64, k=65_536).tasks(gpu, protocol), gpu, protocol)
    assert "split-K" in str(analysis.variant[0])
    assert analysis.placement.num_tasks[0] == 132


def test_a_batch_in_fp32_runs_in_amperes_one_tile():
    # 216 products of 128 x 64 on A100: cuBLAS takes 128 x 128, half of it padding, so two tiles for each of 108 SMs.
    # FLOP per task, padding counted: 2 x 128 x 128 x 1024 = 33,554,432; at 128 per clock 262,144 clocks at best
    # The constant is the share of a 32 x 128 tile, with 160 / 4096 loads per product; 128 x 128 has 256 / 16,384, which is 0.4 of that.
    gpu, protocol, using = hardware.gpu("a100-pcie-80gb", {"tdp_w": 9000}), Protocol(), constants()
    analysis = analyse(Gemm(m=128, n=64, k=1024, batch=216, dtype="fp32").tasks(gpu, protocol), gpu, protocol)
    assert str(analysis.variant[0]) == "128x128 batched"
    assert analysis.placement.busiest_tasks[0] == 2
    assert analysis.busy_s["vector"][0] * 1e6 == pytest.approx(2 * 262_144 / (1410 * using.tensor_fraction**0.4))


def test_only_batches_run_in_the_batched_kernels():
    gpu, protocol = hardware.gpu("p100-pcie-16gb"), Protocol()
    mixed = analyse(Gemm(m=[512, 512], n=[64, 64], k=[512, 512], batch=[1, 96], dtype="fp32").tasks(gpu, protocol), gpu, protocol)
    assert "batched" not in str(mixed.variant[0])
    assert str(mixed.variant[1]) == "64x128 batched"
    for place, batch in enumerate((1, 96)):
        alone = analyse(Gemm(m=512, n=64, k=512, batch=batch, dtype="fp32").tasks(gpu, protocol), gpu, protocol)
        assert alone.analytic_s[0] == pytest.approx(mixed.analytic_s[place])
