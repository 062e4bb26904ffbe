"""A part with some facts changed: physics moves the time, what was learned of the part it came from stays."""

import numpy as np
import pytest

from tilecast import hardware, predict_kernel
from tilecast.kernels.attention import AttentionDecode
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.silu_mul import SiluMul

KERNELS = (Gemm(m=4096, n=4096, k=4096), Gemm(m=16, n=5120, k=5120), AttentionDecode(batch=32, kv_len=4096, num_heads=32, num_kv_heads=8))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.family)
@pytest.mark.parametrize("fact", ["tdp_w", "dram_bytes_per_s"])
def test_more_power_or_bandwidth_never_makes_a_prediction_slower(kernel, fact: str) -> None:
    now = hardware.gpu("h100-sxm").facts()[fact]
    times = [predict_kernel(kernel, "h100-sxm", overrides={fact: now * more}).median_s[0] for more in (1.0, 1.05, 1.1, 2.0)]
    assert np.all(np.diff(times) <= 1e-4 * times[0])  # a soft minimum over tiles leans a little as one of them gets better


def test_a_lever_moves_the_median_as_it_moves_the_analytic_time() -> None:
    kernel = KERNELS[1]
    now, then = (predict_kernel(kernel, "l40s", overrides=change) for change in ({}, {"dram_bytes_per_s": 1.2e12}))
    assert then.median_s / now.median_s == pytest.approx(then.analytic_s / now.analytic_s)
    assert then.basis[0] == "unseen-gpu"


def test_restating_a_fact_changes_nothing() -> None:
    same = predict_kernel(KERNELS[0], "h100-sxm", overrides={"tdp_w": "700 W"})
    assert not same.gpu.overrides and same.basis[0] == predict_kernel(KERNELS[0], "h100-sxm").basis[0]


@pytest.mark.parametrize("gpu", ["rtx-4090", "l4", "h100-sxm"])
def test_a_little_less_of_a_rate_is_the_same_die(gpu: str) -> None:
    peak, product = hardware.gpu(gpu).vector_flop_per_s["fp32"], Gemm(m=8192, n=8192, k=8192, dtype="fp32")
    times = [predict_kernel(product, gpu, overrides={"vector_flop_per_s.fp32": peak * share}).median_s[0] for share in (1.0, 0.999, 0.85)]
    assert times[0] * (1 - 1e-9) <= times[1] <= times[2] and times[1] == pytest.approx(times[0], rel=0.005)


def test_a_few_busy_sms_take_the_same_time_whatever_stands_idle() -> None:
    stream = SiluMul(rows=6, cols=22236)
    few, many = (predict_kernel(stream, "h100-sxm", overrides={"num_sms": number}).median_s[0] for number in (80, 132))
    assert few == pytest.approx(many)
