"""Laws of the attention models: no time beats its bound, more work never takes less, a batch equals its members."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilecast import hardware
from tilecast.execution import Protocol, analyse
from tilecast.hardware.spec import with_overrides
from tilecast.kernels.attention import AttentionDecode, AttentionPrefill
from tilecast.kernels.attention_loops import IDENTITIES
from tilecast.kernels.mla import MlaDecode, MlaPrefill

GPUS = [spec for spec in hardware.gpus() if "bf16" in spec.tensor_flop_per_clock_per_sm]
PROTOCOLS = [Protocol(timer, cache) for timer in ("profiler", "graph") for cache in ("cold", "warm")]
CLOSE = 1 + 1e-9

gpus, protocols, identities = st.sampled_from(GPUS), st.sampled_from(PROTOCOLS), st.sampled_from(IDENTITIES)
lengths = st.one_of(st.integers(1, 300), st.integers(1, 40_000))
heads = st.tuples(st.integers(1, 8), st.sampled_from([1, 2, 4, 7, 8, 16])).map(
    lambda pair: {"num_kv_heads": pair[0], "num_heads": pair[0] * pair[1]}
)
dims = st.sampled_from([64, 80, 128, 192, 256])
windows = st.sampled_from([None, None, 1, 128, 1000])


def times(kernel, gpu, protocol):
    return analyse(kernel.tasks(gpu, protocol), gpu, protocol)


@st.composite
def launches(draw):
    """A kernel's arguments, its class, a GPU and a protocol."""
    kv = draw(lengths)
    decode = draw(st.booleans())
    causal = draw(st.booleans())
    q = 1 if decode else draw(st.integers(1, kv) if causal else lengths)  # keys of another text may be fewer than its queries
    shape = {"batch": draw(st.integers(1, 64)), "q_len": q, "kv_len": kv, **draw(heads), "head_dim": draw(dims)}
    shape |= {"window": draw(windows), "identity": draw(identities), "causal": causal, "split": draw(st.integers(1, 4))}
    shape |= {"engine": draw(st.sampled_from([None, "sglang", "vllm", "trtllm"]))}
    return (AttentionDecode if decode else AttentionPrefill), shape, draw(gpus), draw(protocols)


@settings(deadline=None, max_examples=150)
@given(launches())
def test_no_time_beats_its_bound(launch):
    kind, shape, gpu, protocol = launch
    for fixed in (shape, shape | {"split": None}):
        analysis = times(kind(**fixed), gpu, protocol)
        assert 0 <= analysis.bound_s[0] <= analysis.analytic_s[0] < math.inf


@settings(deadline=None, max_examples=150)
@given(launches(), st.integers(1, 40), st.integers(1, 5000), st.integers(2, 3))
def test_more_work_never_takes_less_time(launch, more_requests, more_keys, more_heads):
    kind, shape, gpu, protocol = launch
    base = times(kind(**shape), gpu, protocol).analytic_s[0]
    for grown in (
        {"batch": shape["batch"] + more_requests},
        {"kv_len": shape["kv_len"] + (more_keys if shape["window"] is None else 0)},  # a window may move into fewer tiles
        {"num_heads": shape["num_heads"] * more_heads, "num_kv_heads": shape["num_kv_heads"] * more_heads},
    ):
        assert times(kind(**shape | grown), gpu, protocol).analytic_s[0] * CLOSE >= base


@settings(deadline=None, max_examples=100)
@given(launches(), st.floats(1.05, 3.0), st.integers(1, 100))
def test_better_hardware_is_never_slower(launch, faster, more_sms):
    kind, shape, gpu, protocol = launch
    base = times(kind(**shape), gpu, protocol).analytic_s[0]
    quick = with_overrides(gpu, {"dram_bytes_per_s": min(gpu.dram_bytes_per_s * faster, gpu.l2_bytes_per_s or 9e13)})
    assert times(kind(**shape), quick, protocol).analytic_s[0] <= base * CLOSE
    unlimited = with_overrides(gpu, {"tdp_w": 10_000.0})  # so that more SMs do not share less power each
    large = with_overrides(unlimited, {"num_sms": gpu.num_sms + more_sms})
    assert times(kind(**shape), large, protocol).analytic_s[0] <= times(kind(**shape), unlimited, protocol).analytic_s[0] * CLOSE


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 64), lengths, heads, dims, windows, st.sampled_from(["bf16", "fp8"])), min_size=1, max_size=6),
    gpus,
    identities,
)
def test_a_batch_of_launches_is_its_members(members, gpu, identity):
    rows = [
        {"batch": b, "q_len": min(kv, 64), "kv_len": kv, **h, "head_dim": d, "window": w, "kv_dtype": t} for b, kv, h, d, w, t in members
    ]
    together = {name: [row[name] for row in rows] for name in rows[0]}
    for kind, protocol in ((AttentionPrefill, PROTOCOLS[1]), (AttentionDecode, PROTOCOLS[3])):
        joined = times(kind(**together, identity=identity), gpu, protocol).analytic_s
        single = [times(kind(**row, identity=identity), gpu, protocol).analytic_s[0] for row in rows]
        np.testing.assert_allclose(joined, single, rtol=1e-12)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 9000)), min_size=1, max_size=12),
    st.randoms(),
    heads,
    gpus,
    protocols,
    identities,
)
def test_order_of_requests_does_not_matter(requests, random, sizes, gpu, protocol, identity):
    shuffled = random.sample(requests, len(requests))
    kernels = [
        AttentionPrefill(q_lens=[q for q, _ in order], kv_lens=[q + before for q, before in order], **sizes, identity=identity)
        for order in (requests, shuffled)
    ]
    one, other = (times(kernel, gpu, protocol).analytic_s[0] for kernel in kernels)
    assert one == pytest.approx(other, rel=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 20), lengths, heads, dims, gpus, protocols, identities, st.booleans())
def test_equal_lengths_are_the_uniform_batch(batch, kv, sizes, dim, gpu, protocol, identity, decode):
    kind, q = (AttentionDecode, 1) if decode else (AttentionPrefill, (kv + 1) // 2)
    given_as_lists = kind(q_lens=[q] * batch, kv_lens=[kv] * batch, **sizes, head_dim=dim, identity=identity)
    given_as_batch = kind(batch=batch, q_len=q, kv_len=kv, **sizes, head_dim=dim, identity=identity)
    assert times(given_as_lists, gpu, protocol).analytic_s[0] == pytest.approx(
        times(given_as_batch, gpu, protocol).analytic_s[0], rel=1e-12
    )


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 64), lengths, st.sampled_from([1, 8, 16, 128]), gpus, protocols, st.integers(1, 5000))
def test_latent_attention_obeys_the_same_laws(batch, kv, num_heads, gpu, protocol, more_keys):
    for kernel in (MlaDecode, MlaPrefill):
        q = 1 if kernel is MlaDecode else kv
        shape = {"batch": batch, "num_heads": num_heads, "split": 2}
        analysis = times(kernel(q_len=q, kv_len=kv, **shape), gpu, protocol)
        assert analysis.bound_s[0] <= analysis.analytic_s[0] < math.inf
        assert times(kernel(q_len=q, kv_len=kv + more_keys, **shape), gpu, protocol).analytic_s[0] * CLOSE >= analysis.analytic_s[0]
        assert (
            times(kernel(q_len=q, kv_len=kv, **shape | {"batch": batch + 1}), gpu, protocol).analytic_s[0] * CLOSE >= analysis.analytic_s[0]
        )
