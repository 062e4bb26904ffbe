"""`tilecast.trace(module, example_inputs)`: what any nn.Module does, operator by operator, without weights and without a GPU."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilecast.errors import InvalidInput, MissingExtra
from tilecast.workloads.opgraph import OpGraph, renamed
from tilecast.workloads.recompute import RECOMPUTE

if TYPE_CHECKING:
    from torch import Tensor, nn

MODES = ("inference", "training")
UNROLLED = "recurrent layers (LSTM, GRU, RNN) are priced as their cells, one token after the other: cuDNN's fused kernels would be faster"


def require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra.of("torch", "tracing a model") from None


def trace(
    module: "nn.Module",
    example_inputs: "Sequence[Any] | Mapping[str, Any] | Tensor",
    *,
    mode: str = "inference",
    loss: Any = None,
    recompute: bool | str = False,
    autocast: str | None = None,
    name: str | None = None,
) -> OpGraph:
    """The operators of a forward pass, or of forward, loss and backward, as eager PyTorch would launch them.

    `module` may live on the meta device or be built under a FakeTensorMode: no weight is ever allocated. `example_inputs` are the arguments
    of its forward: in order, by name (a mapping, as tokenizers of Hugging Face give), or one tensor. `loss` maps the module's output
    to one number; without it the output itself, or its sum, is differentiated. `recompute` runs every layer of the longest list of
    equal layers again in the backward pass (activation checkpointing); "selective": the inside of attention alone. `autocast` is bf16 or
    fp16.
    """
    require_torch()
    inputs, names = _arguments(module, example_inputs)
    if mode not in MODES:
        raise InvalidInput(f"mode = {mode!r} must be one of {', '.join(MODES)}")
    if recompute and mode == "inference":
        raise InvalidInput("recompute is for training: an inference pass has no backward")
    if recompute not in (False, True, *RECOMPUTE):
        raise InvalidInput(f"recompute = {recompute!r} must be True, False or one of {', '.join(RECOMPUTE)}")
    if loss is not None and not callable(loss):
        raise InvalidInput(f"loss = {loss!r} must be a function of the module's output")
    if loss is not None and mode == "inference":
        raise InvalidInput("loss is for training: an inference pass has none")
    if autocast not in (None, "bf16", "fp16"):
        raise InvalidInput(f"autocast = {autocast!r} must be bf16 or fp16")
    from tilecast.workloads.tracing import capture

    graph = capture.captured(
        module, inputs, names=names, mode=mode, loss=loss, recompute="full" if recompute is True else recompute, autocast=autocast,
        name=name or type(module).__name__,
    )  # fmt: skip
    return renamed(graph, notes=(*graph.notes, UNROLLED)) if _has_recurrent_layers(module) else graph


def _has_recurrent_layers(module: "nn.Module") -> bool:
    from torch import nn

    return any(isinstance(each, nn.RNNBase) for each in module.modules())


def _arguments(module: Any, given: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The values a module is called with, and the names of the last of them."""
    from torch import Tensor, nn

    if not isinstance(module, nn.Module):
        raise InvalidInput(f"module is a {type(module).__name__} and must be a torch.nn.Module; a function can be the forward of one")
    if isinstance(given, Tensor):
        return (given,), ()
    if isinstance(given, Mapping):
        return tuple(given.values()), tuple(given)
    if not isinstance(given, tuple | list):
        raise InvalidInput(f"example_inputs is a {type(given).__name__} and must be a tuple of arguments, a mapping of them, or one tensor")
    return tuple(given), ()
