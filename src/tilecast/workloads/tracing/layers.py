"""Equal layers are traced three times, not eighty: a list of them is shortened before the trace, and its run lengthened after it."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from tilecast.workloads.opgraph import Segment

TRACED = 3  # the first may differ from the second in what it is given, the last in what it hands on
LEAST_GRADIENT = 0.4  # operators of a layer's backward run for each of its forward run
FEWEST_NODES = 8  # of a run that can be a layer
NUMBERS = ("layer_idx", "layer_id", "layer_number", "idx", "index")  # attributes that only say which one it is


def shortened(model: nn.Module) -> tuple[int, int]:
    """Cut every list of equal layers to TRACED in place; the length they had and how many lists there are, (0, 0) where none was cut."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) > TRACED + 1
    ]
    lists = [entry for entry in found if len({_likeness(layer) for layer in entry[2]}) == 1 and not _share(entry[2])]
    inside = {id(inner) for _, _, child in lists for layer in child for inner in layer.modules()}
    lists = [entry for entry in lists if id(entry[2]) not in inside]
    if not lists or len({len(child) for _, _, child in lists}) != 1:
        return 0, 0
    for parent, name, child in lists:
        setattr(parent, name, nn.ModuleList(list(child)[:TRACED]))
    return len(lists[0][2]), len(lists)


def lengthened(segments: tuple[Segment, ...], layers: int, num_lists: int) -> tuple[Segment, ...] | None:
    """The step of the whole model; None where the trace does not show one run of equal layers in each phase for every list."""
    runs: set[int] = set()
    lengths: list[list[int]] = []
    for phase in ("forward", "backward"):
        inside = [place for place, segment in enumerate(segments) if segment.nodes[0].phase == segment.nodes[-1].phase == phase]
        repeated = [
            place for place in inside if segments[place].repeat in (TRACED - 1, TRACED) and len(segments[place].nodes) >= FEWEST_NODES
        ]
        largest = sorted(repeated, key=lambda place: -len(segments[place].nodes))[:num_lists]
        if inside and len(largest) < num_lists:
            return None
        lengths.append(sorted(len(segments[place].nodes) for place in largest))
        runs |= set(largest)
    # Gradients take about as many operators as what they are of: a much shorter run is a part of a layer that the trace shows no run of.
    if any(LEAST_GRADIENT * forward > backward for forward, backward in zip(*lengths, strict=False)):
        return None
    return tuple(
        replace(segment, repeat=segment.repeat + layers - TRACED) if place in runs else segment for place, segment in enumerate(segments)
    )


def _likeness(layer: nn.Module) -> tuple[Any, ...]:
    """What decides a layer's graph: classes, tensors' shapes, which of them are trained, and plain attributes of every part."""
    return tuple(
        (
            path,
            type(part),
            part.training,
            tuple((name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in _held(part)),
            repr(sorted((name, repr(value)) for name, value in vars(part).items() if _is_plain(name, value))),
        )
        for path, part in layer.named_modules()
    )  # fmt: skip


def _held(part: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in (*part._parameters.items(), *part._buffers.items()) if tensor is not None]


def _is_plain(name: str, value: Any) -> bool:
    return not name.startswith("_") and name not in NUMBERS and isinstance(value, bool | int | float | str | tuple | type(None))


def _share(layers: nn.ModuleList) -> bool:
    """Whether layers have a weight in common: then all of them must stay in the trace."""
    own = [id(tensor) for layer in layers for tensor in layer.parameters() if isinstance(tensor, Tensor)]
    return len(set(own)) != len(own)
