"""Whether layers that look alike act alike: a trace of a few of them, lengthened, against a run of all."""

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tilecast.workloads.opgraph import Segment
from tilecast.workloads.tracing.fx_graph import gives_views, tensors_in
from tilecast.workloads.tracing.layers import shortened
from tilecast.workloads.tracing.wrapped import autocast_to, faked, wrapped

Ran = Counter[tuple[str, tuple[tuple[int, ...], ...]]]  # operators, by name and the shapes of their results


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ran: Ran = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = tuple(tuple(each.shape) for each in tensors_in(result))
        if made and not gives_views(function):
            self.ran[str(function.overloadpacket).rstrip("_"), made] += 1
        return result


def what_runs(
    model: nn.Module, inputs: tuple[Any, ...], names: tuple[str, ...], training: bool, loss: Any, autocast: str | None, *, cut: bool
) -> Ran | None:
    """What a forward pass runs, its layers `cut` or all of them; None where it does not run with tensors that hold nothing."""
    model.train(training)
    if cut:
        shortened(model)
    whole = wrapped(model, names, training, loss)
    recorder = _Recorder()
    try:
        with autocast_to(autocast), torch.set_grad_enabled(training), recorder:
            whole(*(faked(each) for each in inputs))
    except Exception:
        return None
    return recorder.ran


def counts_of(segments: tuple[Segment, ...]) -> Ran:
    made: Ran = Counter()
    for segment in segments:
        for node in segment.nodes:
            if node.phase != "backward" and not node.is_view:
                made[node.op, tuple(tensor.shape for tensor in node.outputs)] += segment.repeat
    return made


def acts_alike(cut: Ran | None, whole: Ran | None, short: Ran, long: Ran) -> bool:
    """Whether the lengthened graph has what all layers run: they may be used twice, or be told apart by their number.

    Operators are compared that a trace and a run of the shortened model have equally many of, which must be most.
    """
    if cut is None or whole is None:
        return False
    known = [key for key, number in cut.items() if short[key] == number]
    return 2 * sum(cut[key] for key in known) >= cut.total() and set(whole) <= set(cut) and all(whole[key] == long[key] for key in known)
