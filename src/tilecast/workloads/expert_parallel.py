"""Expert parallelism: each GPU holds some experts, with the tokens of all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilecast.errors import InvalidInput
from tilecast.workloads.divided import PRODUCTS, Divided, stream_bytes, texts
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape, folded, renamed


def expert_parallel(divided: Divided, ways: int) -> Divided:
    """Each of `ways` GPUs runs its share of the experts, every one of them on the tokens that all GPUs send it."""
    graph = divided.graph
    if ways == 1:
        return divided
    if (experts := grouped(graph)).weights:
        return _spread_grouped(divided, experts, ways)
    return _spread_looped(divided, ways)


# ---- experts side by side -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Experts side by side: batched products of [experts, tokens, hidden] with weights [experts, hidden, width] and back."""

    weights: frozenset[tuple[int, ...]] = frozenset()
    rooms: Mapping[int, frozenset[int]] = field(default_factory=dict)  # experts of a product -> tokens that each may have
    widths: frozenset[int] = frozenset()
    hidden: int = 0
    visits: int = 0  # of all tokens to experts, in a layer
    layers: int = 0

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor is weights of experts, or tokens at them."""
        if len(shape) != 3 or shape[0] not in self.rooms:
            return False
        return set(shape[1:]) <= {1, *self.rooms[shape[0]], self.hidden, *self.widths} and shape[1:] != (1, 1)

    def share_out(self, node: Node) -> float:
        """What part of the tokens a product brings back to the residual stream."""
        if node.op != "aten.bmm" or node.operands[-1].shape not in self.weights or node.outputs[0].shape[-1] != self.hidden:
            return 0.0
        return math.prod(node.outputs[0].shape[:2]) / self.visits

    def passed_on(self, tensor: TensorShape, ways: int) -> TensorShape:
        """The same on one of `ways` GPUs: fewer experts, with the tokens of all."""
        if not self.holds(tensor.shape):
            return tensor
        number, *rest = tensor.shape
        held = math.ceil(number / ways)
        is_weight = {tuple(rest), tuple(rest[::-1])} & {shape[1:] for shape in self.weights}
        sizes = rest if is_weight else [round(size * number / held) if size in self.rooms[number] else size for size in rest]
        return TensorShape(tensor.dtype, (held, *sizes))


def grouped(graph: OpGraph) -> Grouped:
    """The experts of a graph, if it multiplies with weights of three dimensions."""
    held = {tensor.shape for tensor, _ in graph.weights if len(tensor.shape) == 3}
    nodes = [node for segment in graph.segments for node in segment.nodes if node.phase == "forward"]
    products = [node for node in nodes if node.op == "aten.bmm" and node.operands[-1].shape in held]
    if not products:
        return Grouped()
    hidden = max(node.inputs[0].shape for node in nodes if node.op == "aten.embedding")[-1]
    matrices = {node.operands[-1].shape[1:] for node in products}
    weights = frozenset(shape for shape in held if shape[1:] in matrices)  # those of idle experts too
    rooms: dict[int, frozenset[int]] = {shape[0]: frozenset() for shape in weights}
    for node in products:
        number, room, _ = node.inputs[0].shape
        rooms[number] |= {room}
    times = {node: number for node, number in graph.counted().items() if node.phase == "forward"}
    num_layers = max(1, sum(number for node, number in times.items() if node.op == "aten.topk"))
    into = [node for node in dict.fromkeys(products) if node.inputs[0].shape[-1] == hidden]
    visits = sum(math.prod(node.inputs[0].shape[:2]) * times[node] for node in into) // num_layers
    widths = frozenset(size for one, other in matrices for size in (one, other) if size != hidden or one == other)
    return Grouped(weights=weights, rooms=rooms, widths=widths, hidden=hidden, visits=max(1, visits), layers=num_layers)


def _spread_grouped(divided: Divided, experts: Grouped, ways: int) -> Divided:
    graph = divided.graph

    def passed(tensors: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
        return tuple(experts.passed_on(each, ways) for each in tensors)

    def on_one(node: Node) -> Node:
        return replace(node, inputs=passed(node.inputs), outputs=passed(node.outputs), frees=passed(node.frees))

    back = [
        (tensor.shape[0], times) for tensor, times in graph.weights if tensor.shape in experts.weights and tensor.shape[2] == experts.hidden
    ]
    number = sum(held * times for held, times in back) // experts.layers
    if number % ways:
        raise InvalidInput(f"ep = {ways} must divide the {number} experts of a layer of {graph.name}")
    held, frozen = (
        tuple((experts.passed_on(tensor, ways), times) for tensor, times in every) for every in (graph.parameters, graph.frozen)
    )
    trained, still = (
        tuple((experts.passed_on(tensor, ways), times) for tensor, times in every if experts.holds(tensor.shape))
        for every in (graph.parameters, graph.frozen)
    )
    return replace(
        divided,
        graph=renamed(
            graph, parameters=held, frozen=frozen,
            segments=tuple(Segment(segment.repeat, tuple(map(on_one, segment.nodes))) for segment in graph.segments),
        ),
        exchanges=experts.layers,
        experts=trained,
        frozen_experts=still,
        exchanged_bytes=stream_bytes(graph, experts.visits * experts.hidden),
    )  # fmt: skip


# ---- experts one after the other ----------------------------------------------------------------------------------


def _spread_looped(divided: Divided, ways: int) -> Divided:
    """Experts that run one after the other, as equal products in a row: each GPU runs every `ways`-th, with the tokens of all."""
    graph = divided.graph
    room, number = _experts(graph)
    if number % ways:
        raise InvalidInput(f"ep = {ways} must divide the {number} experts of a layer of {graph.name}")
    seen: dict[Node, int] = {}
    nodes, products = [], 0
    token_bytes = 0
    for node in graph.nodes():
        if not any(room in tensor.shape[:1] for tensor in (*node.inputs, *node.outputs)):
            nodes.append(node)
            continue
        place = seen[node] = seen.get(node, -1) + 1
        if node.phase == "forward" and node.op in PRODUCTS:
            products += 1
            result = node.outputs[0]
            token_bytes = min(token_bytes or result.nbytes, result.nbytes // max(1, result.shape[0]))
        if place % ways == 0:
            nodes.append(_with_room(node, room, room * ways))
    owned = _expert_weights(graph, room)
    layers_of_experts = max(1, products // (2 * number))  # two products, in and out, are one expert
    moved = layers_of_experts * (number - number // ways)  # matrices of each kind that other GPUs hold
    every = {tensor: times for tensor, times in graph.weights if tensor.shape in owned}

    def left(held: tuple[tuple[TensorShape, int], ...]) -> tuple[tuple[TensorShape, int], ...]:
        """Those that stay here; of experts some of which are frozen, as many of either kind."""
        return tuple(
            (tensor, max(1, times - moved * times // every[tensor]) if tensor in every else times) for tensor, times in held
        )  # fmt: skip

    def own(held: tuple[tuple[TensorShape, int], ...]) -> tuple[tuple[TensorShape, int], ...]:
        """Those of them that are experts: other layers may have weights of the same shape."""
        here = layers_of_experts * number // ways
        return tuple((tensor, round(here * times / every[tensor])) for tensor, times in held if tensor in every)

    return replace(
        divided,
        graph=renamed(graph, segments=folded(nodes), parameters=left(graph.parameters), frozen=left(graph.frozen)),
        exchanges=layers_of_experts,
        experts=own(graph.parameters),
        frozen_experts=own(graph.frozen),
        exchanged_bytes=room * number * token_bytes,
    )


def _experts(graph: OpGraph) -> tuple[int, int]:
    """Tokens that one expert has room for, and how many experts a layer has: equal products of fewer tokens than the batch has."""
    tokens = math.prod(texts(graph))
    run, last = 0, None
    best: tuple[int, int] | None = None
    for node in graph.nodes():
        if node.op not in PRODUCTS or node.phase != "forward":
            continue
        rows, wide = node.operands[-2].shape[0], node.outputs[0].shape[-1]
        if rows >= tokens:
            run, last = 0, None
        elif (rows, wide) == last or last is None:
            run, last = run + 1, (rows, wide)
            best = (rows, run) if best is None or run > best[1] else best
    if best is None or best[1] < 2:
        raise InvalidInput(f"ep needs a model with experts, and {graph.name} shows none")
    return best


def _expert_weights(graph: OpGraph, room: int) -> set[tuple[int, ...]]:
    """Shapes of weights that experts alone, or experts first, multiply with."""
    found: set[tuple[int, ...]] = set()
    for node in (node for segment in graph.segments for node in segment.nodes):
        if node.op in PRODUCTS and node.phase == "forward" and node.operands[-2].shape[0] == room:
            shape = node.operands[-1].shape
            found |= {shape, shape[::-1]}
    return found


def _with_room(node: Node, room: int, wider: int) -> Node:
    def grown(tensors: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
        return tuple(replace(each, shape=tuple(wider if size == room else size for size in each.shape), distinct=None) for each in tensors)

    return replace(node, inputs=grown(node.inputs), outputs=grown(node.outputs), frees=grown(node.frees))
