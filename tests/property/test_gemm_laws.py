"""Laws of the analytic GEMM, over random shapes and every GPU: exact at a fixed tile and clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast import hardware
from tilecast.dtypes import quantisation
from tilecast.execution import Protocol, analyse
from tilecast.kernels.gemm import Gemm

dims = st.integers(1, 40_000)
dtypes = st.sampled_from(["fp32", "bf16", "fp16", "fp8", "fp8_block", "int8_wo"])
protocols = st.builds(Protocol, st.sampled_from(["profiler", "graph", "event"]), st.sampled_from(["cold", "warm", "rotated"]))
UNLIMITED = {"tdp_w": 9000.0}  # no power limit: the clock is fixed
gpus = st.sampled_from(hardware.gpu_ids()).map(hardware.gpu)


def takes(gpu, dtype):
    name = quantisation(dtype).compute.name
    return name in gpu.tensor_flop_per_clock_per_sm or name in gpu.vector_flop_per_clock_per_sm


def time_s(gpu, protocol, **launch):
    return analyse(Gemm(**launch).tasks(gpu, protocol), gpu, protocol).analytic_s


@st.composite
def launches(draw):
    gpu = draw(gpus)
    dtype = draw(dtypes.filter(lambda dtype: takes(gpu, dtype)))
    return gpu, draw(protocols), {"m": draw(dims), "n": draw(dims), "k": draw(dims), "batch": draw(st.integers(1, 64)), "dtype": dtype}


@given(launches())
def test_nothing_beats_its_bound(case):
    gpu, protocol, launch = case
    analysis = analyse(Gemm(**launch).tasks(gpu, protocol), gpu, protocol)
    assert (analysis.analytic_s >= analysis.bound_s).all()
    assert np.isfinite(analysis.analytic_s).all()


@given(launches())
def test_no_pipeline_is_busy_for_less_than_its_demand_at_peak(case):
    """What is asked of L2 too: at the peak of what SMs can take in, shared fetches included, no launch needs longer than it takes."""
    gpu, protocol, launch = case
    analysis = analyse(Gemm(**launch).tasks(gpu, protocol), gpu, protocol)
    for name, demand_s in analysis.demand_s.items():
        assert (demand_s <= analysis.busy_s[name] * (1 + 1e-9)).all(), name


@given(launches(), st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 500))
def test_more_work_never_takes_less_time_at_a_fixed_tile(case, name, more):
    gpu, protocol, launch = case
    gpu = hardware.with_overrides(gpu, UNLIMITED)
    fixed = launch | {"tile": (64, 64), "split": 1}
    assert time_s(gpu, protocol, **(fixed | {name: launch[name] + more})) >= time_s(gpu, protocol, **fixed) * (1 - 1e-12)


@given(st.lists(st.tuples(dims, dims, dims), min_size=1, max_size=20), protocols)
def test_a_batch_of_launches_is_its_members(shapes, protocol):
    gpu = hardware.gpu("h100-sxm")
    m, n, k = np.array(shapes).T
    together = time_s(gpu, protocol, m=m, n=n, k=k)
    alone = [time_s(gpu, protocol, m=a, n=b, k=c)[0] for a, b, c in shapes]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@given(launches(), st.floats(1.0, 3.0))
def test_faster_memory_never_makes_it_slower(case, factor):
    gpu, protocol, launch = case
    fixed = launch | {"tile": (64, 64), "split": 1}
    slow = hardware.with_overrides(gpu, UNLIMITED | ({"l2_bytes_per_s": 9e13} if gpu.l2_bytes_per_s else {}))
    fast = hardware.with_overrides(slow, {"dram_bytes_per_s": slow.dram_bytes_per_s * factor})
    assert time_s(fast, protocol, **fixed) <= time_s(slow, protocol, **fixed) * (1 + 1e-12)


@given(launches(), st.integers(1, 200))
def test_more_sms_never_make_it_slower(case, more):
    gpu, protocol, launch = case
    fixed = launch | {"tile": (64, 64), "split": 1}
    few = hardware.with_overrides(gpu, UNLIMITED)
    many = hardware.with_overrides(few, {"num_sms": few.num_sms + more})
    assert time_s(many, protocol, **fixed) <= time_s(few, protocol, **fixed) * (1 + 1e-12)


@pytest.mark.parametrize("cache", ["warm", "rotated"])
@given(m=dims, n=dims, k=dims)
def test_a_cold_cache_is_never_faster_at_a_fixed_tile(cache, m, n, k):
    gpu = hardware.gpu("l40s", UNLIMITED)
    launch = {"m": m, "n": n, "k": k, "tile": (128, 128), "split": 1}
    assert time_s(gpu, Protocol(cache="cold"), **launch) >= time_s(gpu, Protocol(cache=cache), **launch) * (1 - 1e-12)
