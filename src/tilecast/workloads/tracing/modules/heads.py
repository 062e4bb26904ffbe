"""Heads: what stands on a model's hidden states, named by the end of its class name in `architectures`, and the loss it is trained with.

They run the operators of Hugging Face's classes. A language model's own head is its family's; the others are the same for all decoders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tilecast.errors import InvalidInput, shown
from tilecast.workloads.architectures.base import size
from tilecast.workloads.tracing.losses import MeanLoss, TokenLoss
from tilecast.workloads.tracing.modules.base import Body, dropout

LABELS = 2  # where a config does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`build(config, body)` makes a module that takes hidden states and tokens."""

    build: Callable[[Mapping[str, Any], Body], nn.Module]
    loss: Callable[[], nn.Module] = TokenLoss


def num_labels(config: Mapping[str, Any]) -> int:
    """Labels of a classifier: `num_labels`, else those that `id2label` names."""
    if config.get("num_labels") is not None:
        return size(config, "num_labels")
    names = config.get("id2label")
    if names is None:
        return LABELS
    if not isinstance(names, Mapping) or not names:
        raise InvalidInput(f"id2label = {shown(names)} must name at least one label, e.g. {{'0': 'no', '1': 'yes'}}")
    return len(names)


def classifier_dropout(config: Mapping[str, Any], otherwise: str = "hidden_dropout") -> nn.Module:
    """Before the classifier: its own, else the share of hidden states that is dropped."""
    return dropout(config, "classifier_dropout" if config.get("classifier_dropout") is not None else otherwise, 0.1)


class Nothing(nn.Module):
    """Hidden states are the result."""

    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return x


class TiedLanguageHead(nn.Module):
    """Logits by the table of words."""

    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        self.out = nn.Linear(body.hidden, body.words.num_embeddings, bias=False)
        self.out.weight = body.words.weight

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(x)
        return logits


class LastToken(nn.Module):
    """A decoder's classifier of texts: every token has its scores, and those of a text's last one count."""

    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        self.score = nn.Linear(body.hidden, num_labels(config), bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        scores: Tensor = self.score(x)
        is_text = (tokens != 0).to(torch.int32)
        last = (torch.arange(tokens.size(1), dtype=torch.int32) * is_text).argmax(-1)
        return scores[torch.arange(tokens.size(0)), last]


class EveryToken(nn.Module):
    """A classifier of tokens."""

    def __init__(self, config: Mapping[str, Any], body: Body, dropped: nn.Module | None = None) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config) if dropped is None else dropped
        self.score = nn.Linear(body.hidden, num_labels(config))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        scores: Tensor = self.score(self.dropout(x))
        return scores


class Span(nn.Module):
    """Where an answer begins and ends: two scores a token; the loss chooses among the tokens of a text."""

    def __init__(self, config: Mapping[str, Any], body: Body, dropped: nn.Module | None = None) -> None:
        super().__init__()
        self.dropout = nn.Identity() if dropped is None else dropped
        self.score = nn.Linear(body.hidden, 2)

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        begin, end = self.score(self.dropout(x)).split(1, dim=-1)
        return begin.squeeze(-1).contiguous(), end.squeeze(-1).contiguous()


NO_HEAD = Head(build=Nothing, loss=MeanLoss)
DECODER_HEADS = {
    "Model": NO_HEAD, "ForSequenceClassification": Head(build=LastToken), "ForTokenClassification": Head(build=EveryToken),
    "ForQuestionAnswering": Head(build=Span),
}  # fmt: skip
