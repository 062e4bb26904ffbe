"""`tilecast.trace(module, example_inputs)`: what any nn.Module does, operator by operator, without weights and without a GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilecast.errors import InvalidInput, MissingExtra
from tilecast.workloads.opgraph import OpGraph

if TYPE_CHECKING:
    from torch import nn

MODES = ("inference", "training")


def require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra.of("torch", "tracing a model") from None


def trace(
    module: "nn.Module",
    example_inputs: Sequence[Any],
    *,
    mode: str = "inference",
    loss: Any = None,
    recompute: bool = False,
    autocast: str | None = None,
    name: str | None = None,
) -> OpGraph:
    """The operators of a forward pass, or of forward, loss and backward, as eager PyTorch would launch them.

    `module` may live on the meta device or be built under a FakeTensorMode: no weight is ever allocated. `loss` maps the module's output
    to one number; without it the output itself, or its sum, is differentiated. `recompute` runs every layer of the longest list of
    equal layers again in the backward pass (activation checkpointing). `autocast` is bf16 or fp16.
    """
    require_torch()
    if mode not in MODES:
        raise InvalidInput(f"mode = {mode!r} must be one of {', '.join(MODES)}")
    if recompute and mode == "inference":
        raise InvalidInput("recompute is for training: an inference pass has no backward")
    if autocast not in (None, "bf16", "fp16"):
        raise InvalidInput(f"autocast = {autocast!r} must be bf16 or fp16")
    from tilecast.workloads.tracing import capture

    return capture.captured(
        module, tuple(example_inputs), mode=mode, loss=loss, recompute=recompute, autocast=autocast, name=name or type(module).__name__
    )
