# mypy: allow-untyped-decorators
"""The loss behind a head: PyTorch's own, or one kernel as fast trainers have it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TokenLoss(nn.Module):
    """Cross-entropy of every row of logits against its label; a second output, such as BERT's next-sentence logits, has its own.

    Logits are widened to fp32 first, as transformers, Megatron and autocast do.
    """

    def forward(self, outputs: Any) -> Tensor:
        every = outputs if isinstance(outputs, tuple) else (outputs,)
        losses = []
        for logits in every:
            rows = logits.reshape(-1, logits.size(-1))
            rows = rows if rows.dtype == torch.float32 else rows.float()
            losses.append(F.cross_entropy(rows, torch.zeros(rows.size(0), dtype=torch.int64)))
        return losses[0] if len(losses) == 1 else losses[0] + losses[1]


class MeanLoss(nn.Module):
    """Of a model without a head: the mean of what it returns, so that every weight has a gradient."""

    def forward(self, outputs: Any) -> Tensor:
        every = outputs if isinstance(outputs, tuple) else (outputs,)
        means = [output.mean() for output in every]
        return means[0] if len(means) == 1 else means[0] + means[1]


@torch.library.custom_op("tilecast::fused_cross_entropy", mutates_args=())
def fused_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """One loss per row, and what its gradient needs: the kernel of flash-attn, which reads narrow logits and keeps no wide ones."""
    scale = torch.logsumexp(logits.float(), -1)
    return scale - logits.float().gather(-1, labels[:, None])[:, 0], scale


@fused_cross_entropy.register_fake
def _(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.size(0), dtype=torch.float32), logits.new_empty(logits.size(0), dtype=torch.float32)


@torch.library.custom_op("tilecast::fused_cross_entropy_backward", mutates_args=())
def fused_cross_entropy_backward(gradient: Tensor, logits: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    wide = torch.exp(logits.float() - scale[:, None])
    wide[torch.arange(labels.size(0)), labels] -= 1.0
    return (wide * gradient[:, None]).to(logits.dtype)


@fused_cross_entropy_backward.register_fake
def _(gradient: Tensor, logits: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _differentiated(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
    logits, scale, labels = ctx.saved_tensors
    return fused_cross_entropy_backward(gradient, logits, scale, labels), None


def _kept(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1], inputs[1])


fused_cross_entropy.register_autograd(_differentiated, setup_context=_kept)


@torch.library.custom_op("tilecast::logged_cross_entropy", mutates_args=())
def logged_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """A metric: PyTorch's own cross-entropy in fp32, without a gradient, when the backward pass has let go of its memory."""
    return F.cross_entropy(logits.float(), labels, reduction="sum")


@logged_cross_entropy.register_fake
def _(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.new_empty((), dtype=torch.float32)


class FusedTokenLoss(nn.Module):
    """MPT's trainer: one kernel each way for the loss, and every micro-batch two metrics, cross-entropy and perplexity."""

    def forward(self, logits: Tensor) -> Tensor:
        rows = logits.reshape(-1, logits.size(-1))
        labels = torch.zeros(rows.size(0), dtype=torch.int64)
        loss = fused_cross_entropy(rows, labels)[0].mean()
        for _ in range(2):
            loss = loss + logged_cross_entropy(rows.detach(), labels)  # has no gradient, and stays in the graph because it is added
        return loss
