# mypy: allow-untyped-decorators
"""Fused attention whose values are narrower than its keys, as GPUs have it: a trace meets the CPU's kernel, which takes one width alone."""

from typing import Any

import torch
from torch import Tensor


def latent_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[batch, heads, tokens, width]: one causal kernel."""
    mixed: Tensor = scaled_dot_product(query, key, value)[0]
    return mixed


@torch.library.custom_op("tilecast::scaled_dot_product_latent", mutates_args=())
def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The mix, and the logarithm of every row's sum, which the gradient needs."""
    scores = (query.float() @ key.float().transpose(-1, -2)) * query.size(-1) ** -0.5
    scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return (torch.softmax(scores, -1).to(value.dtype) @ value), torch.logsumexp(scores, -1)


@scaled_dot_product.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    mixed = query.new_empty(query.size(0), query.size(2), query.size(1), value.size(3)).transpose(1, 2)
    return mixed, query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op("tilecast::scaled_dot_product_latent_backward", mutates_args=())
def scaled_dot_product_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError("traced, never run")


@scaled_dot_product_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _differentiated(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    made: tuple[Tensor, Tensor, Tensor] = scaled_dot_product_backward(gradient, *ctx.saved_tensors)
    return made


def _kept(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


scaled_dot_product.register_autograd(_differentiated, setup_context=_kept)
