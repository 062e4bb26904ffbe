"""What is asked of a module, and the parts that several share.

Modules are written for tracing: they run the operators of the usual implementation in its order, and hold no weights worth loading.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.errors import InvalidInput, shown
from tilecast.workloads.architectures.base import number

ATTENTION = ("eager", "sdpa", "flash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a module is to be built, besides its config."""

    mode: str  # inference or training
    attention: str
    batch: int
    seq: int


class Body(nn.Module):
    """A model without its head: what it takes in, hidden states out."""

    words: nn.Embedding

    @property
    def hidden(self) -> int:
        return self.words.embedding_dim


def token_inputs(asked: Asked) -> tuple[Tensor, ...]:
    return (torch.zeros(asked.batch, asked.seq, dtype=torch.int64),)


def gelu_new(x: Tensor) -> Tensor:
    """The tanh form, written out as older Hugging Face code has it: a kernel an operator."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_new": gelu_new, "gelu_fast": gelu_new, "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "relu": F.relu, "silu": F.silu, "swish": F.silu, "tanh": torch.tanh,
}  # fmt: skip


def activation(config: Mapping[str, Any], field: str, default: str) -> str:
    """The name of one of ACTIVATIONS that the config holds."""
    name = config.get(field)
    if name is None:
        return default
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise InvalidInput(f"{field} = {shown(name)} must be one of {', '.join(ACTIVATIONS)}")
    return name


def dropout(config: Mapping[str, Any], field: str, default: float) -> nn.Module:
    """No kernel runs where nothing is dropped."""
    share = number(config, field, default)
    if share >= 1.0:
        raise InvalidInput(f"{field} = {shown(share)} must be a share below 1")
    return nn.Dropout(share) if share else nn.Identity()


def fused_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """[batch, heads, tokens, width]: one kernel; dropout inside it costs next to nothing and is left out."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight lies the other way round."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(*x.shape[:-1], -1)


class RootMeanSquareNorm(nn.Module):
    """T5's and Llama's norm, operator by operator, in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)
