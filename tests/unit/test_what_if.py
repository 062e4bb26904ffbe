"""A part with some facts changed: physics moves the time, what was learned of the part it came from stays."""

import numpy as np
import pytest

from tilecast import hardware, predict_kernel
from tilecast.kernels.attention import AttentionDecode
from tilecast.kernels.gemm import Gemm

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
