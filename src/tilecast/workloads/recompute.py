"""Activation checkpointing: layers keep little and run a part of their forward pass again before their backward pass.

`full` keeps a layer's result alone; as PyTorch does, the second run stops when everything that the backward pass needs is there again, so
the last product of a layer that nothing reads is left out. `selective` runs the inside of attention again, what lies between its linear
layers: most of the memory of unfused attention for little work.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilecast.errors import InvalidInput
from tilecast.workloads.opgraph import Node, Segment, TensorShape

RECOMPUTE = ("full", "selective")
AGAIN = ("again", True)
LINEAR = ("aten.mm", "aten.addmm")


def runs_again(node: Node) -> bool:
    return AGAIN in node.options


def recomputed(segments: tuple[Segment, ...], what: str = "full", *, stops_early: bool = True) -> tuple[Segment, ...]:
    """The folded step with its layers checkpointed: the longest run of equal layers forward, and the one backward.

    `stops_early`: PyTorch since 2.1; before, a layer ran to its end again.
    """
    forward, backward = (_layers(segments, phase) for phase in ("forward", "backward"))
    # Layers before the first trained weight keep nothing.
    keeping = tuple(segment if _saved(segment.nodes) else replace(segment, repeat=1) for segment in segments)
    forward = forward if (found := _layers(keeping, "forward")) is None else found
    if forward is None or backward is None:
        raise InvalidInput("recompute needs a list of equal layers, and this model has none")
    first, last = segments[forward], segments[backward]
    if not _saved(first.nodes):
        raise InvalidInput("recompute has nothing to save: the layers keep nothing for the backward pass")
    if what == "full":
        held = _saved(first.nodes)
        _, residual = held.pop(_result(held, first.nodes[-1]))
        let_go = [tensor for _, tensor in held]
        lean = (*first.nodes[:-1], replace(first.nodes[-1], frees=(*first.nodes[-1].frees, *let_go)))
        read = max((place for place, _ in held), default=0) + 1
        needed, gone = _needed(first.nodes, read if stops_early else len(first.nodes))
        # A result that is made again takes the place of the one that was kept.
        again = _marked(
            (*needed[:-1], replace(needed[-1], frees=(*needed[-1].frees, *gone, *([residual] if needed == first.nodes else []))))
        )
        run = (*again, *last.nodes)
    else:
        start, end = _attention(first.nodes)
        inside = first.nodes[start:end]
        let_go = [tensor for _, tensor in _saved(inside)]
        lean = (*first.nodes[: end - 1], replace(inside[-1], frees=(*inside[-1].frees, *let_go)), *first.nodes[end:])
        again = _marked(inside)
        at = next(
            (place for place, node in enumerate(last.nodes) if "softmax_backward" in node.op or "attention" in node.op), len(last.nodes) - 1
        )
        run = (*last.nodes[:at], *again, *last.nodes[at:])
    missing = first.repeat - last.repeat  # layers at the ends that the folding left outside
    made: list[Segment] = []
    for place, segment in enumerate(segments):
        if place == forward:
            made.append(Segment(first.repeat, lean))
        elif place == backward:
            made += [Segment(missing, again)] if missing > 0 else []
            made.append(Segment(last.repeat, run))
        else:
            made.append(segment)
    return tuple(made)


def _marked(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(replace(node, phase="backward", options=(*node.options, AGAIN)) for node in nodes)


def _needed(nodes: tuple[Node, ...], end: int) -> tuple[tuple[Node, ...], list[TensorShape]]:
    """The layer up to the last operator whose result the backward pass reads, and what operators behind it would have freed of it."""
    made = [tensor for node in nodes[end:] if not node.is_view for tensor in node.outputs]
    gone = []
    for tensor in (tensor for node in nodes[end:] for tensor in node.frees):
        if tensor in made:
            made.remove(tensor)
        else:
            gone.append(tensor)
    return nodes[:end], gone


def _attention(nodes: tuple[Node, ...]) -> tuple[int, int]:
    """From behind the linear layer before the scores to the linear layer after them."""
    scores = next((place for place, node in enumerate(nodes) if "softmax" in node.op or "attention" in node.op), None)
    if scores is None:
        raise InvalidInput("recompute = 'selective' needs layers with attention, and this model has none")
    start = max((place + 1 for place, node in enumerate(nodes[:scores]) if node.op in LINEAR), default=0)
    end = min((place for place, node in enumerate(nodes) if place > scores and node.op in LINEAR), default=len(nodes))
    return start, end


def _layers(segments: tuple[Segment, ...], phase: str) -> int | None:
    """The folded run with the most work in it."""
    sizes = {
        place: segment.repeat * len(segment.nodes)
        for place, segment in enumerate(segments)
        if segment.repeat > 1 and all(node.phase == phase for node in segment.nodes)
    }
    return max(sizes, key=lambda place: sizes[place]) if sizes else None


def _saved(nodes: tuple[Node, ...]) -> list[tuple[int, TensorShape]]:
    """What a layer allocates and does not free, and which operator made it. Of equal tensors the one made last is freed first."""
    held: list[tuple[int, TensorShape]] = []
    for place, node in enumerate(nodes):
        if not node.is_view:
            held += [(place, tensor) for tensor in node.outputs]
        for tensor in node.frees:
            own = [index for index, (_, kept) in enumerate(held) if kept == tensor]
            if own:
                held.pop(own[-1])
    return held


def _result(held: list[tuple[int, TensorShape]], end: Node) -> int:
    """Which of them is the layer's result, the next one's input."""
    last = [index for index, (_, tensor) in enumerate(held) if tensor in end.outputs]
    return last[-1] if last else min(range(len(held)), key=lambda index: abs(held[index][1].nbytes - end.allocated_bytes))
