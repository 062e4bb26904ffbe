"""What one GPU does of a graph that several share, and what it exchanges with the others meanwhile."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilecast.workloads.opgraph import Node, OpGraph, TensorShape, renamed

PRODUCTS = ("aten.mm", "aten.addmm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """One GPU's graph, and what it exchanges with its neighbours for every segment of it."""

    graph: OpGraph
    whole: OpGraph  # what all of them run together
    sums: tuple[float, float] = (0.0, 0.0)  # of `reduced_bytes` over tensor-parallel ranks in a layer: forward, and when it runs again
    reduced_bytes: int = 0
    exchanges: int = 0  # layers of experts
    exchanged_bytes: int = 0  # that one GPU sends to or takes back from the experts of such a layer
    experts: tuple[tuple[TensorShape, int], ...] = ()  # trained weights of those that one GPU holds: tensors, and how many of each
    frozen_experts: tuple[tuple[TensorShape, int], ...] = ()

    @property
    def expert_numel(self) -> int:
        return sum(tensor.numel * times for tensor, times in self.experts)


def undivided(graph: OpGraph) -> Divided:
    return Divided(graph=graph, whole=graph)


def texts(graph: OpGraph) -> tuple[int, int]:
    """Texts of a graph and tokens of each; where it was traced from a module, those that are looked up."""
    batch, tokens = _looked_up(graph) or (1, 1)
    return graph.batch or batch, graph.seq or tokens


def sized(graph: OpGraph) -> OpGraph:
    """With the sizes that it shows where it names none: of the texts that are looked up, or the number of images of a convolution."""
    batch, tokens = _looked_up(graph) or (_num_images(graph), None)
    return renamed(graph, batch=graph.batch or batch, seq=graph.seq or tokens)


def _looked_up(graph: OpGraph) -> tuple[int, int] | None:
    """The largest lookup in the widest tables: words, not positions, nor distances of tokens (a number for every head)."""
    found = [
        (node.inputs[0].shape[-1], math.prod(node.inputs[1].shape), node.inputs[1].shape) for node in _forward(graph, "aten.embedding")
        if len(node.inputs) > 1 and len(node.inputs[1].shape) == 2
    ]  # fmt: skip
    if not found:
        return None
    batch, tokens = max(found)[2]
    return batch, tokens


def _num_images(graph: OpGraph) -> int | None:
    return next((node.inputs[0].shape[0] for node in _forward(graph, "aten.convolution")), None)


def _forward(graph: OpGraph, op: str) -> Iterator[Node]:
    return (node for segment in graph.segments for node in segment.nodes if node.op == op and node.phase == "forward")


def stream_bytes(graph: OpGraph, numel: int) -> int:
    """Of so many numbers of the residual stream, in the format that embeddings come in."""
    item = next(tensor for node in graph.segments[0].nodes if node.op == "aten.embedding" for tensor in node.outputs)
    return numel * item.nbytes // max(1, item.numel)
