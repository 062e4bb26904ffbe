"""Sums of kernels: what of their errors adds up and what averages out, and what runs beside something else."""

from types import SimpleNamespace

import numpy as np
import pytest

from tilecast import hardware
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.rms_norm import RmsNorm
from tilecast.workloads.aggregate import SEEN_LEVEL, UNSEEN_LEVEL, price_step
from tilecast.workloads.graph import KernelCall, Step

GPU = hardware.gpu("h100-sxm")


def priced(calls, basis, spread=0.5, seconds=1.0):
    """Every launch takes `seconds` x (1 +- spread)."""

    def price(kernel, gpu, **_):
        rows = np.size(kernel.m if isinstance(kernel, Gemm) else kernel.rows)
        times = np.full(rows, seconds)
        return SimpleNamespace(
            median_s=times, low_s=times * (1 - spread), high_s=times * (1 + spread), bound_s=times / 2, basis=np.full(rows, basis),
            analysis=SimpleNamespace(bound_by=np.full(rows, "dram")),
        )  # fmt: skip

    return price_step(Step("decode", tuple(calls)), GPU, price)


def gemms(number):
    return [KernelCall(f"gemm{index}", "decode", Gemm(m=8, n=8 * (index + 1), k=8), 1) for index in range(number)]


def test_the_level_adds_up_and_the_rest_averages_out():
    # Four kernels of 1 s, each off by up to 0.5 s, of which SEEN_LEVEL x 1 s is common: 4 x level together, sqrt(4) x the rest.
    own = np.sqrt(0.5**2 - SEEN_LEVEL**2)
    found = priced(gemms(4), "interpolated")
    assert found.high_s[0] - 4.0 == pytest.approx(np.hypot(4 * SEEN_LEVEL, 2 * own))
    assert 4.0 - found.low_s[0] == pytest.approx(np.hypot(4 * SEEN_LEVEL, 2 * own))


def test_less_is_known_of_the_level_of_an_unmeasured_gpu():
    assert priced(gemms(4), "unseen-gpu").high_s[0] > priced(gemms(4), "interpolated").high_s[0]


def test_a_bare_formula_errs_alike_on_all_its_shapes():
    own = np.sqrt(0.5**2 - UNSEEN_LEVEL**2)
    assert priced(gemms(4), "analytic").high_s[0] - 4.0 == pytest.approx(np.hypot(4 * UNSEEN_LEVEL, 4 * own))


def test_one_kernel_is_as_uncertain_as_it_was():
    assert priced(gemms(1), "interpolated").high_s[0] == pytest.approx(1.5)


def test_what_runs_beside_something_longer_costs_nothing():
    q, k = (RmsNorm(rows=rows, cols=128) for rows in (64, 8))
    found = priced([KernelCall("q_norm", "decode", q, 3), KernelCall("k_norm", "decode", k, 3, beside="q_norm")], "analytic")
    assert found.median_s[0] == pytest.approx(3.0)
    assert found.calls[1].median_s[0] == 0.0
