"""Laws of the MoE model: the bound, monotony at a fixed tile and clock, batches, and the order of experts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tilecast import hardware
from tilecast.execution import Protocol, analyse
from tilecast.hardware.spec import with_overrides
from tilecast.kernels.moe import Moe

GPUS = ("a100-sxm-80gb", "h100-sxm", "l40s", "b200-sxm", "rtx-pro-6000-server")
gpus = st.sampled_from(GPUS).map(hardware.gpu)
protocols = st.builds(Protocol, timer=st.sampled_from(["profiler", "graph"]), cache=st.sampled_from(["cold", "warm"]))
TILES = {"block_m": (16, 32, 64, 128), "block_n": (64, 128), "block_k": (32, 64)}
tiles = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in TILES.items()})
identities = st.sampled_from(["triton", "grouped", "cutlass", "deepgemm"])


@st.composite
def problems(draw, distributions=("balanced", "power_law_1.01", "power_law_1.2")):
    ep, on_rank = 2 ** draw(st.integers(0, 3)), draw(st.integers(1, 16))
    tp = 2 ** draw(st.integers(0, 3))
    return {
        "num_tokens": draw(st.integers(1, 4096)),
        "hidden_size": 64 * draw(st.integers(1, 64)),
        "inter_size": tp * 32 * draw(st.integers(1, 32)),
        "num_experts": ep * on_rank,
        "topk": draw(st.integers(1, min(8, ep * on_rank))),
        "tp": tp,
        "ep": ep,
        "distribution": draw(st.sampled_from(distributions)),
        "moe_pass": draw(st.sampled_from(["w13", "w2", "both"])),
    }


def analysis(gpu, protocol, **launch):
    return analyse(Moe(**launch).tasks(gpu, protocol), gpu, protocol)


def time_s(gpu, protocol, **launch):
    return analysis(gpu, protocol, **launch).analytic_s.item()


def fills(gpu, protocol, **launch):
    """Whether every SM has a task: a launch on fewer SMs may gain bandwidth from a task more."""
    return np.all(Moe(**launch).tasks(gpu, protocol).num_tasks >= gpu.num_sms)


def no_less(larger, smaller):
    return larger >= smaller * (1 - 1e-9)


SMALL = {
    "num_tokens": 947,
    "hidden_size": 64,
    "inter_size": 512,
    "num_experts": 11,
    "topk": 2,
    "tp": 1,
    "ep": 1,
}  # an average that rounds down


@given(gpus, protocols, problems(), identities)
@example(hardware.gpu("l40s"), Protocol("profiler", "cold"), {**SMALL, "distribution": "balanced", "moe_pass": "w13"}, "triton")
def test_nothing_is_faster_than_its_bound(gpu, protocol, problem, identity):
    found = analysis(gpu, protocol, identity=identity, **problem)
    assert found.analytic_s.item() >= found.bound_s.item() >= 0


@given(gpus, protocols, problems(("balanced",)), tiles, identities, st.integers(1, 4000))
def test_more_tokens_never_take_less_time(gpu, protocol, problem, tile, identity, more):
    gpu = replace(gpu, tdp_w=None)
    launch = problem | tile | {"identity": identity}
    assume(fills(gpu, protocol, **launch))
    larger = launch | {"num_tokens": problem["num_tokens"] + more}
    assert no_less(time_s(gpu, protocol, **larger), time_s(gpu, protocol, **launch))


@given(gpus, protocols, problems(), tiles, identities, st.sampled_from(["hidden_size", "inter_size"]), st.integers(1, 40))
def test_wider_experts_never_take_less_time(gpu, protocol, problem, tile, identity, side, more):
    gpu = replace(gpu, tdp_w=None)
    launch = problem | tile | {"identity": identity}
    assume(fills(gpu, protocol, **launch))
    larger = launch | {side: problem[side] + more * problem["tp"]}
    assert no_less(time_s(gpu, protocol, **larger), time_s(gpu, protocol, **launch))


@given(gpus, protocols, problems(), tiles, identities, st.floats(1.0, 2.0), st.floats(1.0, 2.0))
def test_more_sms_and_faster_memory_are_never_slower(gpu, protocol, problem, tile, identity, sms, bandwidth):
    gpu = replace(gpu, tdp_w=None, l2_bytes_per_s=None)
    better = with_overrides(gpu, {"num_sms": round(gpu.num_sms * sms), "dram_bytes_per_s": gpu.dram_bytes_per_s * bandwidth})
    launch = problem | tile | {"identity": identity}
    assert no_less(time_s(gpu, protocol, **launch), time_s(better, protocol, **launch))


@given(gpus, protocols, st.lists(problems(), min_size=1, max_size=6), identities)
def test_a_batch_is_its_members(gpu, protocol, members, identity):
    batch = {name: [member[name] for member in members] for name in members[0]}
    found = analysis(gpu, protocol, identity=identity, **batch).analytic_s
    np.testing.assert_allclose(found, [time_s(gpu, protocol, identity=identity, **member) for member in members], rtol=1e-12)


@given(gpus, protocols, problems(("balanced",)), st.lists(tiles, min_size=1, max_size=6))
def test_a_batch_of_tiles_is_its_members(gpu, protocol, problem, several):
    batch = {name: [tile[name] for tile in several] for name in TILES}
    found = analysis(gpu, protocol, identity="triton", **problem, **batch).analytic_s
    np.testing.assert_allclose(found, [time_s(gpu, protocol, identity="triton", **problem, **tile) for tile in several], rtol=1e-12)


@given(gpus, protocols, st.lists(st.integers(0, 200), min_size=1, max_size=32), st.randoms(use_true_random=False))
def test_the_order_of_experts_changes_nothing(gpu, protocol, histogram, random):
    histogram = [*histogram, 1]
    shuffled = random.sample(histogram, len(histogram))
    problem = {"num_tokens": sum(histogram), "hidden_size": 1024, "inter_size": 512, "num_experts": len(histogram), "topk": 1}
    first, second = (time_s(gpu, protocol, **problem, distribution=json.dumps(loads)) for loads in (histogram, shuffled))
    assert first == pytest.approx(second, rel=1e-12)
