"""Tensor parallelism: a graph of the same operators with smaller tensors.

Heads and the widths between the two linear layers of a pair are divided, the rest is whole, or with sequence parallelism divided by tokens.
Heads of keys and values that several queries share are divided too; where there are fewer of them than GPUs, each GPU has one.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilecast.errors import InvalidInput
from tilecast.workloads.divided import PRODUCTS, Divided, stream_bytes, texts
from tilecast.workloads.expert_parallel import Grouped, grouped
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape, renamed
from tilecast.workloads.recompute import runs_again
from tilecast.workloads.stages import layers, repeats

GATHER = "tilecast.gather"  # of a message that is priced as such: a view
SMALLEST_WIDTH = 16  # a linear layer narrower than hidden / this, such as a router, is not divided


def tensor_parallel(divided: Divided, ways: int, *, sequence_parallel: bool = False) -> Divided:
    """The graph that one of `ways` GPUs runs, and where their partial sums are added."""
    graph = divided.graph
    if ways == 1:
        return divided
    body = anatomy(graph)
    for number in sorted(body.heads):
        if number % ways:
            raise InvalidInput(f"tp = {ways} must divide the {number} attention heads of {graph.name}")
    maps = _Maps(body, ways, sequence_parallel)
    segments, sums_of = [], []
    for segment in graph.segments:
        attended, sums, nodes = False, 0.0, []
        for node in segment.nodes:
            attended = attended or bool(_headed(node)) or "scaled_dot_product" in node.op or "softmax_backward" in node.op
            if node.op in PRODUCTS:
                along = _divided_dimension(node, body, attended)
                wide = node.outputs[0].shape[-1] * SMALLEST_WIDTH >= body.hidden  # a narrow part is added up with what it becomes
                sums += along == "k" and wide and (node.phase == "forward" or runs_again(node))
                product = maps.product(node, along)
                nodes += [*maps.gathered(node, product), product]
            else:
                if node.phase == "forward" or runs_again(node):
                    sums += body.experts.share_out(node)
                nodes.append(maps.other(node))
        segments.append(Segment(segment.repeat, tuple(nodes)))
        sums_of.append(sums)
    parameters, frozen, experts, frozen_experts = (
        tuple((maps.tensor(tensor), times) for tensor, times in held)
        for held in (graph.parameters, graph.frozen, divided.experts, divided.frozen_experts)
    )
    made = renamed(graph, segments=tuple(segments), parameters=parameters, frozen=frozen)
    parts = layers(graph)
    told = [
        sum(sums_of[place] * graph.segments[place].repeat for place in places) / max(1, repeats(graph, places))
        for places in (parts.forward, parts.backward)
    ]
    return replace(
        divided, graph=made, sums=(told[0], told[1]), reduced_bytes=stream_bytes(graph, body.batch * body.tokens * body.hidden),
        exchanged_bytes=divided.exchanged_bytes // ways,  # each GPU of the group passes its part on
        experts=experts, frozen_experts=frozen_experts,
    )  # fmt: skip


# ---- what a model is made of --------------------------------------------------------------------------------------


class SharedKeys(NamedTuple):
    """Heads of keys and values that are fewer than those of queries."""

    number: int
    queries: int
    width: int  # of one

    def widths(self, ways: int) -> dict[int, int]:
        """Of linear layers that make them, alone or with the queries in one: as they are, and one GPU's."""
        own = math.ceil(self.number / ways)
        whole = {self.number * self.width: own * self.width}
        return whole | {(self.queries + 2 * self.number) * self.width: (self.queries // ways + 2 * own) * self.width}


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Sizes that a graph shows: the width of the residual stream, heads, and the widths of what lies between two linear layers."""

    hidden: int
    heads: frozenset[int]  # of queries
    keys: frozenset[SharedKeys]
    widths: frozenset[int]
    weights: frozenset[tuple[int, ...]]
    batch: int
    tokens: int  # of one text
    experts: Grouped


def anatomy(graph: OpGraph) -> Anatomy:
    """Raises InvalidInput where a graph has no attention heads or no embedding: such a model has no known tensor-parallel form."""
    forward = [node for segment in graph.segments for node in segment.nodes if node.phase == "forward"]
    tables = [node.inputs[0].shape for node in forward if node.op == "aten.embedding"]
    batch, tokens = texts(graph)
    heads = {_heads(tensor, batch) for node in forward for tensor in _headed(node)}
    if not tables or not heads:
        raise InvalidInput(f"tp needs a model with an embedding and attention heads, and {graph.name} shows none")
    hidden = max(tables)[-1]
    matrices = {tensor.shape for tensor, _ in graph.weights if len(tensor.shape) == 2}
    multiplied = {node.operands[-1].shape for node in forward if node.op in PRODUCTS}
    multiplied.add(max(tables))  # of words: divided with or without a head that multiplies by it; a table of positions is not
    weights = frozenset(shape for shape in matrices if shape in multiplied or shape[::-1] in multiplied)
    widths = {other for shape in weights for one, other in (shape, shape[::-1]) if one == hidden and other != hidden}
    keys = _shared_keys(forward, heads, batch, tokens)
    few = {each.number * each.width for each in keys if each.number > 1} - {hidden}
    wide = frozenset(width for width in widths if width * SMALLEST_WIDTH >= hidden) | few
    inner = next((shape for shape in sorted(weights) if hidden not in shape and SMALLEST_WIDTH * min(shape) >= hidden), None)
    if inner is not None:
        size = f"{inner[0]} x {inner[1]}"
        raise InvalidInput(
            f"tp is not known for {graph.name}: a layer of {size} neither reads nor writes the {hidden} of its residual stream"
        )
    experts = grouped(graph)
    if hidden in experts.widths:
        raise InvalidInput(f"tp cannot tell the experts of {graph.name} from its residual stream: both are {hidden} wide")
    return Anatomy(
        hidden=hidden, heads=frozenset(heads), keys=keys, widths=wide, weights=weights, batch=batch, tokens=tokens, experts=experts,
    )  # fmt: skip


def _shared_keys(forward: list[Node], heads: set[int], batch: int, tokens: int) -> frozenset[SharedKeys]:
    """Those that fused attention reads as they are, or that are written out for every query.

    These are tensors of (texts, heads, queries of each, tokens, width).
    """
    found = set()
    for node in forward:
        if "scaled_dot_product" in node.op:
            query, key = (tensor.shape for tensor in node.operands[:2])
            if len(query) == len(key) == 4 and key[1] < query[1]:
                found.add(SharedKeys(key[1], query[1], key[3]))
        for shape in (tensor.shape for tensor in node.outputs):
            if len(shape) == 5 and (shape[0], shape[3]) == (batch, tokens) and shape[2] > 1 and shape[1] * shape[2] in heads:
                found.add(SharedKeys(shape[1], shape[1] * shape[2], shape[4]))
    return frozenset(found)


def _headed(node: Node) -> tuple[TensorShape, ...]:
    """Tensors of an operator inside attention whose leading sizes are texts and heads."""
    if "scaled_dot_product" in node.op:
        return tuple(tensor for tensor in node.operands[:1] if len(tensor.shape) == 4)
    if node.op in ("aten._softmax", "aten._safe_softmax"):
        return tuple(tensor for tensor in node.outputs if len(tensor.shape) == 4 or (len(tensor.shape) == 3 and _is_square(tensor)))
    return ()


def _is_square(tensor: TensorShape) -> bool:
    return tensor.shape[-1] == tensor.shape[-2]


def _heads(tensor: TensorShape, batch: int) -> int:
    return tensor.shape[1] if len(tensor.shape) == 4 else max(1, tensor.shape[0] // batch)


# ---- one GPU's share ----------------------------------------------------------------------------------------------


def _divided_dimension(node: Node, body: Anatomy, attended: bool) -> str | None:
    """Which size of the product [m, k] x [k, n] is divided: the one that is a width, and of square layers the output's before attention."""
    (m, k), (_, n) = (tensor.shape for tensor in node.operands[-2:])
    known = {(k, n), (n, k)} & body.weights
    if not known and ((m, n) in body.weights or (n, m) in body.weights):  # gradient of a weight: tokens are summed
        if m in body.widths or n in body.widths:
            return "m" if m in body.widths else "n"
        return "m" if m == n == body.hidden else None
    if not known:
        return None
    if n in body.widths or k in body.widths:
        return "n" if n in body.widths and k not in body.widths else "k"
    if k == n == body.hidden:
        return "k" if attended else "n"
    return None


@dataclass(frozen=True, slots=True)
class _Maps:
    body: Anatomy
    ways: int
    sequence_parallel: bool

    def product(self, node: Node, along: str | None) -> Node:
        left, right = node.operands[-2:]
        (m, k), (_, n) = left.shape, right.shape
        size = {"m": m, "k": k, "n": n}
        if along is not None:
            size[along] = self._width(size[along])
        bias = tuple(self.tensor(tensor) for tensor in node.inputs[:-2])
        inputs = (*bias, TensorShape(left.dtype, (size["m"], size["k"])), TensorShape(right.dtype, (size["k"], size["n"])))
        return replace(node, inputs=inputs, outputs=self._tensors(node.outputs), frees=self._tensors(node.frees))

    def gathered(self, node: Node, made: Node) -> list[Node]:
        """What a product reads of tokens that are divided, seen whole: without it nobody knows which tensor that is."""
        pairs = [(self.tensor(tensor), whole) for tensor, whole in zip(node.operands[-2:], made.operands[-2:], strict=True)]
        return [
            replace(node, op=GATHER, inputs=(part,), outputs=(whole,), frees=(), options=(), is_view=True)
            for part, whole in pairs
            if self.sequence_parallel and part.shape != whole.shape
        ]

    def other(self, node: Node) -> Node:
        return replace(
            node, inputs=self._tensors(node.inputs), outputs=self._tensors(node.outputs), frees=self._tensors(node.frees)
        )  # fmt: skip

    def _tensors(self, tensors: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
        return tuple(self.tensor(tensor) for tensor in tensors)

    def tensor(self, tensor: TensorShape) -> TensorShape:
        parts = self._parts(tensor.shape)
        if not parts:
            return tensor
        return TensorShape(tensor.dtype, _smaller(tensor.shape, parts), tensor.distinct and _smaller(tensor.distinct, parts))

    def _width(self, size: int) -> int:
        """One GPU's of a width that is divided: whole heads, where it is one of heads."""
        known = (keys.widths(self.ways).get(size) for keys in self.body.keys)
        return next((own for own in known if own is not None), math.ceil(size / self.ways))

    def _parts(self, shape: tuple[int, ...]) -> dict[int, int]:
        """Axes that are divided, and one GPU's size of each."""
        for keys in self.body.keys if len(shape) == 5 else ():
            if shape[1] == keys.number and shape[1] * shape[2] in (keys.number, keys.queries):
                own = math.ceil(keys.number / self.ways)
                return {1: own, 2: keys.queries // self.ways // own}
        axis = self._axis(shape)
        if axis is None:
            return {}
        is_width = axis == len(shape) - 1 or shape in self.body.weights or shape[::-1] in self.body.weights
        return {axis: self._width(shape[axis]) if is_width else math.ceil(shape[axis] / self.ways)}

    def _axis(self, shape: tuple[int, ...]) -> int | None:
        body, rank = self.body, len(shape)
        if body.experts.holds(shape):
            return next((axis for axis in (2, 1) if shape[axis] in body.experts.widths), None)
        if rank >= 4:
            counts = body.heads, {keys.number for keys in body.keys}
            return next((axis for known in counts for axis in (1, 2) if shape[axis] in known), None)
        if rank == 3 and shape[0] == body.batch and shape[1] in body.heads and shape[2] == body.tokens:  # sums of softmax
            return 1
        if rank == 3 and any(shape[0] == body.batch * heads for heads in body.heads if heads > 1):
            return 0
        if rank == 2 and (shape in body.weights or shape[::-1] in body.weights):
            wide = [axis for axis in (0, 1) if shape[axis] in body.widths]
            if wide:
                return wide[0]
            return 0 if shape == (body.hidden, body.hidden) else None
        if shape and shape[-1] in body.widths:
            return rank - 1
        if self.sequence_parallel and rank == 3 and shape[:2] == (body.batch, body.tokens) and shape[2] in (body.hidden, 1):
            return 1
        if self.sequence_parallel and shape == (body.batch * body.tokens, body.hidden):
            return 0
        return None


def _smaller(shape: tuple[int, ...], parts: dict[int, int]) -> tuple[int, ...]:
    return tuple(parts.get(axis, size) if size > 1 else size for axis, size in enumerate(shape))
