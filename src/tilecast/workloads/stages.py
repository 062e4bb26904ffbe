"""Which operators of a graph are its layers, and how pipeline stages share them."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilecast.workloads.divided import PRODUCTS, Divided
from tilecast.workloads.opgraph import OpGraph
from tilecast.workloads.recompute import runs_again

OWN_GRADIENT = ("aten._softmax", "aten._safe_softmax", "aten.gelu", "aten.silu", "aten.native_layer_norm")  # NAME_backward is one operator
SHARED_GRADIENT = {"aten._safe_softmax": "aten._softmax_backward"}
LEAST_SHARE = 0.2  # of the operators of a pass: a shorter repetition is no layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Which segments of a graph are its layers, and how many there are; the rest comes before (`front`) or after (`back`) them.

    A backward pass ends at the first weight that is trained: it runs through the last `reached` layers.
    """

    number: int
    forward: frozenset[int]
    backward: frozenset[int]
    places: Mapping[int, str]  # segment -> front, layers or back
    held: Mapping[str, int] = field(default_factory=dict)  # layers in those segments, by pass; the others stand before or after them
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


def layers_of(divided: Divided) -> Layers:
    """Of one GPU's graph, compiled or not: as many as before, whatever a compiler's kernels repeat with."""
    return layers(divided.graph, layers(divided.whole).number)


def layers(graph: OpGraph, number: int | None = None) -> Layers:
    """The runs of equal layers, forward and backward. A model without any is one layer; `number`: how many there are, where it is known."""
    found: dict[str, list[int]] = {}
    for phase in ("forward", "backward"):
        inside = [place for place, segment in enumerate(graph.segments) if segment.nodes[0].phase == phase]
        total = sum(graph.segments[place].repeat * len(graph.segments[place].nodes) for place in inside)
        found[phase] = [
            place for place in inside
            if graph.segments[place].repeat > 1 and graph.segments[place].repeat * len(graph.segments[place].nodes) >= LEAST_SHARE * total
        ]  # fmt: skip
    held = {phase: repeats(graph, frozenset(places)) for phase, places in found.items()}
    if number is None:
        number = max([1, *held.values()])
        # Folding may leave a layer at an end apart; weights that every layer has one of say how many there are.
        number = min((times for tensor, times in graph.weights if len(tensor.shape) == 2 and number <= times <= number + 2), default=number)
    else:
        held = {phase: _inside(graph, phase, places, number) for phase, places in found.items()}
    named: dict[int, str] = {}
    for phase, before, after in (("forward", "front", "back"), ("backward", "back", "front")):
        chosen = found[phase]
        for place, segment in enumerate(graph.segments):
            if segment.nodes[0].phase == phase or (phase == "forward" and segment.nodes[0].phase == "loss"):
                named[place] = "layers" if place in chosen else before if chosen and place < chosen[0] else after
    unreached = number - _reached(graph, found, held, number) if graph.frozen and graph.mode == "training" else 0
    return Layers(
        number=number, forward=frozenset(found["forward"]), backward=frozenset(found["backward"]), places=named, held=held,
        unreached=unreached,
    )  # fmt: skip


def repeats(graph: OpGraph, places: frozenset[int]) -> int:
    """How often all of some segments run."""
    return sum(graph.segments[place].repeat for place in places)


def _inside(graph: OpGraph, phase: str, places: list[int], number: int) -> int:
    """Layers in some segments: compiled kernels may repeat with every second layer only, so their share of the products tells."""
    total, inside = (
        sum(
            graph.segments[place].repeat * sum(node.op in PRODUCTS and node.phase == phase and not runs_again(node) for node in nodes)
            for place in chosen
            for nodes in [graph.segments[place].nodes]
        )
        for chosen in (range(len(graph.segments)), places)
    )
    return min(number, round(number * inside / total)) if total else repeats(graph, frozenset(places))


def _reached(graph: OpGraph, runs: Mapping[str, list[int]], held: Mapping[str, int], number: int) -> int:
    """Layers that a backward pass runs through: gradients of an operator that every layer runs forward, such as softmax, tell how many.

    Where a layer has none of these, its repeated layers do, with those that folding left apart.
    """
    every = _operators(graph, "backward", range(len(graph.segments)))
    in_layers, times_run = _operators(graph, "forward", runs["forward"]), held["forward"]
    told = [
        math.ceil(sum(number for name, number in every.items() if name.startswith(_gradient(op))) * times_run / times)
        for op, times in in_layers.items()
        if op in OWN_GRADIENT or "scaled_dot_product" in op
    ]
    if told:
        return min(number, *told)
    if not runs["backward"]:
        return 0
    inside, times_run = _operators(graph, "backward", runs["backward"]), held["backward"]
    return min(number, round(statistics.median(every[op] * times_run / times for op, times in inside.items())))


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
