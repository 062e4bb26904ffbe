"""Activation checkpointing: every layer keeps its input alone, and runs its forward pass again before its backward pass."""

from dataclasses import replace

from tilecast.errors import InvalidInput
from tilecast.workloads.opgraph import Node, Segment, TensorShape


def recomputed(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The folded step with its layers checkpointed: the longest run of equal layers forward, and the one backward."""
    forward, backward = (_layers(segments, phase) for phase in ("forward", "backward"))
    if forward is None or backward is None:
        raise InvalidInput("recompute needs a list of equal layers, and this model has none")
    first, last = segments[forward], segments[backward]
    saved = _saved(first.nodes)
    residual = _largest_common(saved, first.nodes[-1])
    let_go = list(saved)
    let_go.remove(residual)
    lean = (*first.nodes[:-1], replace(first.nodes[-1], frees=(*first.nodes[-1].frees, *let_go)))
    again = tuple(replace(node, phase="backward") for node in first.nodes)
    again = (*again[:-1], replace(again[-1], frees=(*again[-1].frees, residual)))
    missing = first.repeat - last.repeat  # layers at the ends that the folding left outside
    made: list[Segment] = []
    for place, segment in enumerate(segments):
        if place == forward:
            made.append(Segment(first.repeat, lean))
        elif place == backward:
            made += [Segment(missing, again)] if missing > 0 else []
            made.append(Segment(last.repeat, (*again, *last.nodes)))
        else:
            made.append(segment)
    return tuple(made)


def _layers(segments: tuple[Segment, ...], phase: str) -> int | None:
    """The folded run with the most work in it."""
    sizes = {
        place: segment.repeat * len(segment.nodes)
        for place, segment in enumerate(segments)
        if segment.repeat > 1 and all(node.phase == phase for node in segment.nodes)
    }
    return max(sizes, key=lambda place: sizes[place]) if sizes else None


def _saved(nodes: tuple[Node, ...]) -> list[TensorShape]:
    """What a layer allocates and does not free."""
    held: list[TensorShape] = [tensor for node in nodes if not node.is_view for tensor in node.outputs]
    for node in nodes:
        for tensor in node.frees:
            if tensor in held:
                held.remove(tensor)
    return held


def _largest_common(saved: list[TensorShape], end: Node) -> TensorShape:
    """The layer's result, which is the next one's input."""
    if not saved:
        raise InvalidInput("recompute has nothing to save: the layers keep nothing for the backward pass")
    return next(
        (tensor for tensor in saved if tensor in end.outputs), min(saved, key=lambda tensor: abs(tensor.nbytes - end.allocated_bytes))
    )
