"""A module as it is traced: without weights, and called so that it gives tensors and, in training, a loss."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tilecast.errors import InvalidInput
from tilecast.workloads.tracing.fx_graph import tensors_in

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Called(nn.Module):
    """A module called with some of its arguments by name; of what it returns, such as a cache, the tensors."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def called(self, inputs: tuple[Any, ...]) -> Any:
        first = len(inputs) - len(self.names)
        return self.model(*inputs[:first], **dict(zip(self.names, inputs[first:], strict=True)))

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        return tuple(tensors_in(self.called(inputs)))


class CalledWithLoss(Called):
    """A module with its loss; the detached outputs mark where the loss begins."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], loss: Any) -> None:
        super().__init__(model, names)
        self.loss = loss

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        outputs = self.called(inputs)
        tensors = tensors_in(outputs)
        if self.loss is None:
            floats = [tensor for tensor in tensors if tensor.is_floating_point()]
            if not floats:
                raise InvalidInput("the module returns no floating-point tensor, so there is nothing to differentiate; give a loss")
            value = floats[0] if floats[0].ndim == 0 else sum(tensor.sum() for tensor in floats)
        else:
            value = self.loss(outputs)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            got = f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise InvalidInput(f"loss must give one floating-point number and gives {got}")
        return (value, *(tensor.detach() for tensor in tensors if tensor is not value))


def wrapped(model: nn.Module, names: tuple[str, ...], training: bool, loss: Any) -> Called:
    return CalledWithLoss(model, names, loss) if training else Called(model, names)


def autocast_to(name: str | None) -> torch.autocast:
    """To that format, or to none."""
    return torch.autocast("cpu", dtype=FORMATS.get(name or ""), enabled=name is not None)


def weightless(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are fake, on the CPU; tensors that were shared stay shared."""
    made: nn.Module = copy.deepcopy(module, _fakes(module))
    return made


def uncopied(module: nn.Module) -> str | None:
    """What keeps a module from being copied: a tensor or another attribute of one of its parts."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        try:
            faked(tensor.detach())
        except Exception:
            return f"its tensor {name} cannot be copied"
    memo = _fakes(module)
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            try:
                if name not in ("_parameters", "_buffers", "_modules"):
                    copy.deepcopy(value, memo)
            except Exception:
                return f"its attribute {path}{'.' if path else ''}{name}, a {type(value).__name__}, cannot be copied"
    return None


def _fakes(module: nn.Module) -> dict[int, Any]:
    """What a copy has in place of each parameter and buffer."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        fake = faked(tensor.detach())
        memo[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
    return memo


def faked(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
