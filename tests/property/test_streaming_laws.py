"""Laws of streaming kernels and collectives: never below the bound, never faster with more work, a batch is its members."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast import hardware
from tilecast.execution import Protocol
from tilecast.kernels.base import execution_of
from tilecast.kernels.collectives import KERNELS as COLLECTIVES
from tilecast.kernels.collectives import AllReduce
from tilecast.kernels.elementwise import OPS, Elementwise
from tilecast.kernels.layer_norm import LayerNorm
from tilecast.kernels.rms_norm import RmsNorm
from tilecast.kernels.silu_mul import SiluMul
from tilecast.kernels.softmax import Softmax

ROW_KERNELS = (RmsNorm, LayerNorm, Softmax, SiluMul)
GPUS = tuple(hardware.gpu(name) for name in ("t4", "a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "mi300x"))
gpus = st.sampled_from(GPUS)
protocols = st.builds(Protocol, timer=st.sampled_from(("profiler", "graph", "event")), cache=st.sampled_from(("cold", "warm", "rotated")))
sizes = st.integers(1, 1 << 15)
messages = st.integers(1, 1 << 31)
SLACK = 1 + 1e-9


@given(st.sampled_from(ROW_KERNELS), sizes, sizes, st.integers(1, 4), gpus, protocols)
def test_more_rows_or_wider_ones_never_take_less_time(family, rows, cols, factor, gpu, protocol):
    base, taller, wider = (
        execution_of(family(rows=r, cols=c), gpu, protocol) for r, c in ((rows, cols), (rows * factor, cols), (rows, cols * factor))
    )
    assert base.analytic_s[0] >= base.bound_s[0]
    assert taller.analytic_s[0] * SLACK >= base.analytic_s[0]
    assert wider.analytic_s[0] * SLACK >= base.analytic_s[0]


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5), st.sampled_from(ROW_KERNELS), gpus, protocols)
def test_a_batch_of_rows_is_its_members(shapes, family, gpu, protocol):
    rows, cols = np.array(shapes).T
    alone = [float(execution_of(family(rows=r, cols=c), gpu, protocol).analytic_s[0]) for r, c in shapes]
    np.testing.assert_allclose(execution_of(family(rows=rows, cols=cols), gpu, protocol).analytic_s, alone, rtol=1e-9)


@given(st.sampled_from(sorted(OPS)), messages, st.floats(1.0, 4.0), protocols)
def test_faster_memory_never_slows_a_stream(op, numel, factor, protocol):
    gpu = hardware.gpu("a100-sxm-80gb")
    faster = hardware.gpu("a100-sxm-80gb", {"dram_bytes_per_s": min(gpu.dram_bytes_per_s * factor, gpu.l2_bytes_per_s or np.inf)})
    kernel = Elementwise(op=op, numel=numel)
    assert execution_of(kernel, faster, protocol).analytic_s[0] <= execution_of(kernel, gpu, protocol).analytic_s[0] * SLACK


@pytest.mark.parametrize("family", COLLECTIVES, ids=lambda family: family.family)
@given(
    size=messages,
    more=messages,
    ranks=st.sampled_from((2, 4, 8)),
    gpu=gpus,
    protocol=protocols,
    identity=st.sampled_from(("nccl", "custom")),
)
def test_longer_messages_never_take_less_time(family, size, more, ranks, gpu, protocol, identity):
    both = execution_of(family(bytes=np.array([size, size + more]), num_gpus=ranks, identity=identity), gpu, protocol)
    assert (both.analytic_s >= both.bound_s).all()
    assert both.analytic_s[1] * SLACK >= both.analytic_s[0]


@pytest.mark.parametrize("family", COLLECTIVES, ids=lambda family: family.family)
@given(shapes=st.lists(st.tuples(messages, st.sampled_from((2, 4, 8))), min_size=1, max_size=5), gpu=gpus)
def test_a_batch_of_messages_is_its_members(family, shapes, gpu):
    size, ranks = np.array(shapes).T
    alone = [float(execution_of(family(bytes=s, num_gpus=n), gpu, Protocol()).analytic_s[0]) for s, n in shapes]
    np.testing.assert_allclose(execution_of(family(bytes=size, num_gpus=ranks), gpu, Protocol()).analytic_s, alone, rtol=1e-9)


@given(messages, st.floats(1e9, 1e12), st.floats(1.0, 10.0), st.sampled_from((2, 4, 8)))
def test_a_faster_link_is_never_slower(size, rate, factor, ranks):
    slow, fast = (AllReduce(bytes=size, num_gpus=ranks, link_bytes_per_s=each) for each in (rate, rate * factor))
    gpu = hardware.gpu("h100-sxm")
    assert execution_of(fast, gpu, Protocol()).analytic_s[0] <= execution_of(slow, gpu, Protocol()).analytic_s[0] * SLACK
