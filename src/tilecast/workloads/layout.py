"""How many GPUs share a training step, and what one of them then does of the graph.

Ranks are counted as Megatron does: tensor-parallel neighbours first, then shards, then replicas, pipeline stages last. Tensor parallelism
is a graph of the same operators with smaller tensors: heads and the widths between the two linear layers of a pair are divided, the rest is
whole, or with sequence parallelism divided by tokens. Expert parallelism leaves each GPU some experts, with the tokens of all.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape, folded, renamed
from tilecast.workloads.recompute import runs_again

SCHEDULES = ("1f1b", "gpipe", "interleaved")
STAGES_OF_ZERO = (0, 1, 2)  # 3 is what fsdp does
MOST_GPUS = 1 << 20
PRODUCTS = ("aten.mm", "aten.addmm")
SMALLEST_WIDTH = 16  # a linear layer narrower than hidden / this, such as a router, is not divided


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is spread: the product of dp, fsdp, tp and pp is the number of GPUs; experts are spread over data-parallel ranks."""

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    micro_batches: int = 1
    zero: int = 0  # what `dp` ranks divide: nothing, optimizer states, gradients too
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1  # groups of layers that one GPU holds, with the schedule `interleaved`

    def __post_init__(self) -> None:
        for name in ("dp", "fsdp", "tp", "pp", "ep", "micro_batches", "virtual_stages"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
                raise InvalidInput(f"{name} = {value!r} must be a whole number from 1 to {MOST_GPUS:,}")
        if self.num_gpus > MOST_GPUS:
            raise InvalidInput(f"dp x fsdp x tp x pp = {self.num_gpus:,} GPUs is more than {MOST_GPUS:,}")
        if self.zero not in STAGES_OF_ZERO or isinstance(self.zero, bool):
            raise InvalidInput(f"zero = {self.zero!r} must be one of 0, 1, 2; stage 3 is fsdp")
        if self.schedule not in SCHEDULES:
            raise InvalidInput(f"schedule = {self.schedule!r} must be one of {', '.join(SCHEDULES)}")
        if self.replicas % self.ep:
            raise InvalidInput(f"ep = {self.ep} must divide the {self.replicas} data-parallel ranks (dp x fsdp)")
        if (self.virtual_stages > 1) != (self.schedule == "interleaved" and self.virtual_stages > 1):
            raise InvalidInput(f"virtual_stages = {self.virtual_stages} needs the schedule interleaved, not {self.schedule}")
        if self.schedule == "interleaved" and self.pp > 1 and self.micro_batches % self.pp:
            raise InvalidInput(f"micro_batches = {self.micro_batches} must be a multiple of pp = {self.pp} with the schedule interleaved")

    @property
    def replicas(self) -> int:
        """Ranks that work on different texts."""
        return self.dp * self.fsdp

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.tp * self.pp

    @property
    def is_alone(self) -> bool:
        return self.num_gpus == 1

    def micro_batch(self, batch: int) -> int:
        """Texts that one GPU handles at once, of `batch` in the step."""
        parts = self.replicas * self.micro_batches
        if batch % parts:
            ways = " x ".join(f"{name} {getattr(self, name)}" for name in ("dp", "fsdp", "micro_batches") if getattr(self, name) > 1)
            raise InvalidInput(f"batch = {batch} must be a multiple of {parts} ({ways})")
        return batch // parts

    def to_dict(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)} | {"num_gpus": self.num_gpus}


@dataclass(frozen=True, slots=True)
class Members:
    """GPUs that talk to one another: how many, and how many of them stand in one node."""

    ranks: int
    per_node: int


def members(layout: Layout, group: str, gpus_per_node: int) -> Members:
    """The group of one rank: tp, fsdp, dp, pp, or `replicas` (fsdp and dp together); ep ranks lie next to one another in it."""
    sizes = {"tp": layout.tp, "fsdp": layout.fsdp, "dp": layout.dp, "pp": layout.pp, "replicas": layout.replicas, "ep": layout.ep}
    strides = {"tp": 1, "fsdp": layout.tp, "replicas": layout.tp, "ep": layout.tp, "dp": layout.tp * layout.fsdp}
    strides["pp"] = layout.tp * layout.replicas
    room = max(1, gpus_per_node // strides[group])
    return Members(sizes[group], max(ways for ways in range(1, min(room, sizes[group]) + 1) if sizes[group] % ways == 0))


# ---- what a model is made of --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Sizes that a graph shows: the width of the residual stream, heads, and the widths of what lies between two linear layers."""

    hidden: int
    heads: frozenset[int]
    widths: frozenset[int]
    weights: frozenset[tuple[int, ...]]
    batch: int
    tokens: int  # of one text
    experts: "Grouped"


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
    multiplied = {(node.inputs * 2)[-1].shape for node in forward if node.op in PRODUCTS}  # a table of positions is none
    weights = frozenset(shape for shape in matrices if shape in multiplied or shape[::-1] in multiplied)
    widths = {other for shape in weights for one, other in (shape, shape[::-1]) if one == hidden and other != hidden}
    wide = frozenset(width for width in widths if width * SMALLEST_WIDTH >= hidden)
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
        hidden=hidden, heads=frozenset(heads), widths=wide, weights=weights, batch=batch, tokens=tokens, experts=experts,
    )  # fmt: skip


def texts(graph: OpGraph) -> tuple[int, int]:
    """Texts of a graph and tokens of each; where it was traced from a module, those of the largest lookup of words."""
    looked_up = (
        node.inputs[1].shape for segment in graph.segments for node in segment.nodes
        if node.op == "aten.embedding" and node.phase == "forward" and len(node.inputs) > 1 and len(node.inputs[1].shape) == 2
    )  # fmt: skip
    batch, tokens = max(looked_up, key=math.prod, default=(1, 1))
    return graph.batch or batch, graph.seq or tokens


def _headed(node: Node) -> tuple[TensorShape, ...]:
    """Tensors of an operator inside attention whose leading sizes are texts and heads."""
    if "scaled_dot_product" in node.op:
        return tuple(tensor for tensor in (node.inputs * 2)[:2] if len(tensor.shape) == 4)
    if node.op in ("aten._softmax", "aten._safe_softmax"):
        return tuple(tensor for tensor in node.outputs if len(tensor.shape) == 4 or (len(tensor.shape) == 3 and _is_square(tensor)))
    return ()


def _is_square(tensor: TensorShape) -> bool:
    return tensor.shape[-1] == tensor.shape[-2]


def _heads(tensor: TensorShape, batch: int) -> int:
    return tensor.shape[1] if len(tensor.shape) == 4 else max(1, tensor.shape[0] // batch)


# ---- tensor parallel ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """One GPU's graph, and what it exchanges with its neighbours for every segment of it."""

    graph: OpGraph
    whole: OpGraph  # what all of them run together
    sums: tuple[float, float] = (0.0, 0.0)  # of `reduced_bytes` over tensor-parallel ranks in a layer: forward, and when it runs again
    reduced_bytes: int = 0
    exchanges: int = 0  # layers of experts
    exchanged_bytes: int = 0  # that one GPU sends to or takes back from the experts of such a layer
    expert_numel: int = 0  # trained weights of the experts that one GPU holds


def undivided(graph: OpGraph) -> Divided:
    return Divided(graph=graph, whole=graph)


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
                nodes.append(maps.product(node, along))
            else:
                if node.phase == "forward" or runs_again(node):
                    sums += body.experts.share_out(node)
                nodes.append(maps.other(node))
        segments.append(Segment(segment.repeat, tuple(nodes)))
        sums_of.append(sums)
    parameters, frozen = (tuple((maps.tensor(tensor), times) for tensor, times in held) for held in (graph.parameters, graph.frozen))
    made = renamed(graph, segments=tuple(segments), parameters=parameters, frozen=frozen)
    item = next(tensor for node in graph.segments[0].nodes if node.op == "aten.embedding" for tensor in node.outputs)
    size = body.batch * body.tokens * body.hidden * item.nbytes // max(1, item.numel)
    parts = layers(graph)
    told = [
        sum(sums_of[place] * graph.segments[place].repeat for place in places) / max(1, _repeats(graph, places))
        for places in (parts.forward, parts.backward)
    ]
    exchanged = divided.exchanged_bytes // ways  # each GPU of the group passes its part on
    return replace(
        divided, graph=made, sums=(told[0], told[1]), reduced_bytes=size, exchanged_bytes=exchanged,
        expert_numel=divided.expert_numel // ways,
    )  # fmt: skip


def _repeats(graph: OpGraph, places: frozenset[int]) -> int:
    return sum(graph.segments[place].repeat for place in places)


def _divided_dimension(node: Node, body: Anatomy, attended: bool) -> str | None:
    """Which size of the product [m, k] x [k, n] is divided: the one that is a width, and of square layers the output's before attention."""
    (m, k), (_, n) = (tensor.shape for tensor in (node.inputs * 2)[-2:])
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
        left, right = (node.inputs * 2)[-2:]
        (m, k), (_, n) = left.shape, right.shape
        size = {"m": m, "k": k, "n": n}
        if along is not None:
            size[along] = math.ceil(size[along] / self.ways)
        bias = tuple(self.tensor(tensor) for tensor in node.inputs[:-2])
        inputs = (*bias, TensorShape(left.dtype, (size["m"], size["k"])), TensorShape(right.dtype, (size["k"], size["n"])))
        return replace(node, inputs=inputs, outputs=self._tensors(node.outputs), frees=self._tensors(node.frees))

    def other(self, node: Node) -> Node:
        return replace(
            node, inputs=self._tensors(node.inputs), outputs=self._tensors(node.outputs), frees=self._tensors(node.frees)
        )  # fmt: skip

    def _tensors(self, tensors: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
        return tuple(self.tensor(tensor) for tensor in tensors)

    def tensor(self, tensor: TensorShape) -> TensorShape:
        axis = self._axis(tensor.shape)
        if axis is None:
            return tensor
        return TensorShape(tensor.dtype, self._smaller(tensor.shape, axis), tensor.distinct and self._smaller(tensor.distinct, axis))

    def _smaller(self, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
        return tuple(math.ceil(size / self.ways) if place == axis and size > 1 else size for place, size in enumerate(shape))

    def _axis(self, shape: tuple[int, ...]) -> int | None:
        body, rank = self.body, len(shape)
        if body.experts.holds(shape):
            return next((axis for axis in (2, 1) if shape[axis] in body.experts.widths), None)
        if rank >= 4:
            return next((axis for axis in (1, 2) if shape[axis] in body.heads), None)
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


# ---- expert parallel ----------------------------------------------------------------------------------------------


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
        if node.op != "aten.bmm" or (node.inputs * 2)[-1].shape not in self.weights or node.outputs[0].shape[-1] != self.hidden:
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
    products = [node for node in nodes if node.op == "aten.bmm" and (node.inputs * 2)[-1].shape in held]
    if not products:
        return Grouped()
    hidden = max(node.inputs[0].shape for node in nodes if node.op == "aten.embedding")[-1]
    matrices = {(node.inputs * 2)[-1].shape[1:] for node in products}
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


def _spread_experts(divided: Divided, experts: Grouped, ways: int) -> Divided:
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
    item = next(tensor for node in graph.segments[0].nodes if node.op == "aten.embedding" for tensor in node.outputs)
    return replace(
        divided,
        graph=renamed(
            graph, parameters=held, frozen=frozen,
            segments=tuple(Segment(segment.repeat, tuple(map(on_one, segment.nodes))) for segment in graph.segments),
        ),
        exchanges=experts.layers,
        expert_numel=sum(tensor.numel * times for tensor, times in held if len(tensor.shape) == 3),
        exchanged_bytes=experts.visits * experts.hidden * item.nbytes // max(1, item.numel),
    )  # fmt: skip


def expert_parallel(divided: Divided, ways: int) -> Divided:
    """Each of `ways` GPUs runs its share of the experts, every one of them on the tokens that all GPUs send it."""
    graph = divided.graph
    if ways == 1:
        return divided
    if (experts := grouped(graph)).weights:
        return _spread_experts(divided, experts, ways)
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

    trained = sum(tensor.numel * times / every[tensor] for tensor, times in graph.parameters if tensor in every)
    return replace(
        divided,
        graph=renamed(graph, segments=folded(nodes), parameters=left(graph.parameters), frozen=left(graph.frozen)),
        exchanges=layers_of_experts,
        expert_numel=round(trained * layers_of_experts * number / ways),
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
        rows, wide = (node.inputs * 2)[-2].shape[0], node.outputs[0].shape[-1]
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
        if node.op in PRODUCTS and node.phase == "forward" and (node.inputs * 2)[-2].shape[0] == room:
            shape = (node.inputs * 2)[-1].shape
            found |= {shape, shape[::-1]}
    return found


def _with_room(node: Node, room: int, wider: int) -> Node:
    def grown(tensors: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
        return tuple(replace(each, shape=tuple(wider if size == room else size for size in each.shape), distinct=None) for each in tensors)

    return replace(node, inputs=grown(node.inputs), outputs=grown(node.outputs), frees=grown(node.frees))


# ---- layers and stages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Which segments of a graph are its layers, and how many there are; the rest comes before (`front`) or after (`back`) them.

    A backward pass ends at the first weight that is trained: it runs through the last `reached` layers.
    """

    number: int
    forward: frozenset[int]
    backward: frozenset[int]
    places: Mapping[int, str]  # segment -> front, layers or back
    unreached: int = 0  # layers before the first trained weight

    @property
    def reached(self) -> int:
        return self.number - self.unreached

    def per_stage(self, stages: int) -> tuple[int, ...]:
        return tuple(self.number // stages + (stage < self.number % stages) for stage in range(stages))

    def reached_per_stage(self, stages: int) -> tuple[int, ...]:
        """Layers of each stage that the backward pass runs through."""
        found, before = [], 0
        for number in self.per_stage(stages):
            before += number
            found.append(max(0, min(number, before - self.unreached)))
        return tuple(found)


OWN_GRADIENT = ("aten._softmax", "aten._safe_softmax", "aten.gelu", "aten.silu", "aten.native_layer_norm")  # NAME_backward is one operator
SHARED_GRADIENT = {"aten._safe_softmax": "aten._softmax_backward"}
LEAST_SHARE = 0.2  # of the operators of a pass: a shorter repetition is no layer


def layers(graph: OpGraph) -> Layers:
    """The runs of equal layers, forward and backward. A model without any is one layer."""
    found: dict[str, list[int]] = {}
    for phase in ("forward", "backward"):
        inside = [place for place, segment in enumerate(graph.segments) if segment.nodes[0].phase == phase]
        total = sum(graph.segments[place].repeat * len(graph.segments[place].nodes) for place in inside)
        found[phase] = [
            place for place in inside
            if graph.segments[place].repeat > 1 and graph.segments[place].repeat * len(graph.segments[place].nodes) >= LEAST_SHARE * total
        ]  # fmt: skip
    number = max([1, *(sum(graph.segments[place].repeat for place in places) for places in found.values())])
    # Folding may leave a layer at an end apart; weights that every layer has one of say how many there are.
    number = min((times for tensor, times in graph.weights if len(tensor.shape) == 2 and number <= times <= number + 2), default=number)
    named: dict[int, str] = {}
    for phase, before, after in (("forward", "front", "back"), ("backward", "back", "front")):
        chosen = found[phase]
        for place, segment in enumerate(graph.segments):
            if segment.nodes[0].phase == phase or (phase == "forward" and segment.nodes[0].phase == "loss"):
                named[place] = "layers" if place in chosen else before if chosen and place < chosen[0] else after
    unreached = number - _reached(graph, found, number) if graph.frozen and graph.mode == "training" else 0
    return Layers(
        number=number, forward=frozenset(found["forward"]), backward=frozenset(found["backward"]), places=named, unreached=unreached
    )  # fmt: skip


def _reached(graph: OpGraph, runs: Mapping[str, list[int]], number: int) -> int:
    """Layers that a backward pass runs through: gradients of an operator that every layer runs forward, such as softmax, tell how many.

    Where a layer has none of these, its repeated layers do, with those that folding left apart.
    """
    every = _operators(graph, "backward", range(len(graph.segments)))
    in_layers, repeats = _operators(graph, "forward", runs["forward"]), _repeats(graph, frozenset(runs["forward"]))
    told = [
        math.ceil(sum(number for name, number in every.items() if name.startswith(_gradient(op))) * repeats / times)
        for op, times in in_layers.items()
        if op in OWN_GRADIENT or "scaled_dot_product" in op
    ]
    if told:
        return min(number, *told)
    if not runs["backward"]:
        return 0
    inside, repeats = _operators(graph, "backward", runs["backward"]), _repeats(graph, frozenset(runs["backward"]))
    return min(number, round(statistics.median(every[op] * repeats / times for op, times in inside.items())))


def _gradient(op: str) -> str:
    return SHARED_GRADIENT.get(op, f"{op}_backward")


def _operators(graph: OpGraph, phase: str, places: Iterable[int]) -> dict[str, int]:
    """How often each operator runs in some segments; views left out."""
    found: dict[str, int] = {}
    for segment in (graph.segments[place] for place in places):
        for node in segment.nodes:
            if node.phase == phase and not node.is_view:
                found[node.op] = found.get(node.op, 0) + segment.repeat
    return found
