# mypy: allow-untyped-decorators
"""Fused attention whose values are narrower than its keys, as GPUs have it: a trace meets the CPU's kernel, which takes one width alone."""

from typing import Any

import torch
from torch import Tensor


def latent_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[batch, heads, tokens, width]: one causal kernel."""
    mixed: Tensor = scaled_dot_product(query, key, value)[0]
    return mixed


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """Causal, in fp32."""
    scores = (query.float() @ key.float().transpose(-1, -2)) * query.size(-1) ** -0.5
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))


@torch.library.custom_op("tilecast::scaled_dot_product_latent", mutates_args=())
def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The mix, and the logarithm of every row's sum, which the gradient needs."""
    scores = _scores(query, key)
    return (torch.softmax(scores, -1).to(value.dtype) @ value), torch.logsumexp(scores, -1)


@scaled_dot_product.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    mixed = query.new_empty(query.size(0), query.size(2), query.size(1), value.size(3)).transpose(1, 2)
    return mixed, query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op("tilecast::scaled_dot_product_latent_backward", mutates_args=())
def scaled_dot_product_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    weights = torch.exp(_scores(query, key) - sums[..., None])
    wide = gradient.float()
    of_weights = wide @ value.float().transpose(-1, -2) - (wide * mixed.float()).sum(-1, keepdim=True)
    of_scores = weights * of_weights * query.size(-1) ** -0.5
    of_query, of_key = of_scores @ key.float(), of_scores.transpose(-1, -2) @ query.float()
    return of_query.type_as(query), of_key.type_as(key), (weights.transpose(-1, -2) @ wide).type_as(value)


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
