"""Complex numbers in traced modules: rotary positions as Meta writes them, spectral layers, and what an optimizer makes of them."""

import pytest

import tilecast
from tilecast.engines.step_parts import Keeps
from tilecast.engines.updates import updates_of
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.workloads.aten import launches
from tilecast.workloads.fusion import is_fusible
from tilecast.workloads.opgraph import ITEM_BYTES, Node, TensorShape

torch = pytest.importorskip("torch", reason="needs the extra torch: pip install 'tilecast[torch]'")


class Rotary(torch.nn.Module):
    """Queries of 4 heads of 16, turned as 8 complex numbers."""

    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(64, 64)
        self.register_buffer("turns", torch.polar(torch.ones(16, 8), torch.ones(16, 8)))

    def forward(self, x):
        pairs = torch.view_as_complex(self.query(x).view(2, 16, 4, 8, 2))
        return torch.view_as_real(pairs * self.turns[None, :, None]).flatten(3)


class Spectral(torch.nn.Module):
    """Channels mixed frequency by frequency."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Parameter(torch.zeros(64, 64, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) @ self.mix, n=16, dim=1)


def traced(module, mode="inference"):
    return tilecast.trace(module, (torch.zeros(2, 16, 64),), mode=mode)


def test_complex_numbers_take_the_bytes_of_two_real_ones():
    assert [ITEM_BYTES[f"complex{bits}"] for bits in (32, 64, 128)] == [4, 8, 16]


def test_rotary_positions_are_one_pass_over_complex_numbers_between_views():
    nodes = [node for node in traced(Rotary()).nodes() if any("complex" in tensor.dtype for tensor in (*node.inputs, *node.outputs))]
    assert {node.op for node in nodes if node.is_view} >= {"aten.view_as_complex", "aten.view_as_real"}
    (turned,) = (node for node in nodes if not node.is_view)
    (launch,) = launches(turned)
    # 2 x 16 x 4 x 8 numbers of 8 bytes in and out, and 16 x 8 turns.
    assert turned.op == "aten.mul" and launch.is_known and isinstance(launch.kernel, MemoryPass)
    assert (launch.kernel.read_bytes, launch.kernel.written_bytes) == (8192 + 1024, 8192)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("runtime", ["eager", "compiled"])
def test_ffts_are_priced_by_their_bytes_and_listed(mode, runtime):
    found = tilecast.step(traced(Spectral(), mode), "h100-sxm", mode=mode, runtime=runtime)
    assert {"_fft_r2c", "_fft_c2r"} <= set(found.unmodelled) and found.basis == "analytic"
    rotary = tilecast.step(traced(Rotary(), mode), "h100-sxm", mode=mode, runtime=runtime)
    assert not rotary.unmodelled and rotary.step_s.median > 0


def test_a_product_of_complex_numbers_is_four_real_ones():
    # 2 x 9 frequencies by 64 x 64: 8 x 18 x 64 x 64 FLOP, in fp32.
    (product,) = (node for node in traced(Spectral()).nodes() if node.op in ("aten.mm", "aten.bmm"))
    kernel = launches(product)[0].kernel
    assert isinstance(kernel, Gemm) and kernel.dtype == "fp32"
    assert 2 * kernel.batch * kernel.m * kernel.n * kernel.k == 8 * 18 * 64 * 64


def test_an_optimizer_updates_both_halves_of_a_complex_weight():
    # 64 x 64 numbers of 8 bytes: AdamW keeps two more of each.
    graph = traced(Spectral(), "training")
    (update,) = updates_of(graph, "adamw", Keeps(states=2), accumulates=False)
    assert (update.kernel.numel, update.kernel.num_tensors, update.kernel.dtype) == (2 * 64 * 64, 1, "fp32")
    memory = tilecast.step(graph, "h100-sxm", mode="training").memory
    assert (memory.weights_bytes, memory.optimizer_bytes) == (8 * 64 * 64, 2 * 8 * 64 * 64)


def test_inductor_fuses_no_complex_operators():
    real, turned = (TensorShape(dtype, (8, 8)) for dtype in ("fp32", "complex64"))
    assert is_fusible(Node("aten.mul", "forward", (real,), (real,)))
    assert not is_fusible(Node("aten.mul", "forward", (turned,), (turned,)))


def test_a_saved_graph_of_complex_numbers_is_read_again(tmp_path):
    graph = traced(Rotary(), "training")
    graph.save(tmp_path / "it.graph.json")
    assert tilecast.step(str(tmp_path / "it.graph.json"), "l4").step_s == tilecast.step(graph, "l4").step_s
