"""BERT and its kin: post-norm encoders. RoBERTa counts its positions, DistilBERT has neither token types nor pooler and scales queries."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import count, head_width, size
from tilecast.workloads.tracing.losses import MeanLoss
from tilecast.workloads.tracing.modules.base import ACTIVATIONS, Asked, Body, activation, dropout, fused_attention
from tilecast.workloads.tracing.modules.family import Family
from tilecast.workloads.tracing.modules.heads import NO_HEAD, EveryToken, Head, Span, classifier_dropout, num_labels

EPS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a config calls things, and what its encoder does otherwise than BERT."""

    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    width: str = "intermediate_size"
    activation: str = "hidden_act"
    dropout: str = "hidden_dropout_prob"
    score_dropout: str = "attention_probs_dropout_prob"
    types: int = 2  # of tokens, where the config does not say; 0: there are none
    counts_positions: bool = False  # from the tokens that are no padding, behind its id
    scales_queries: bool = False  # instead of scores


BERT = Names()
ROBERTA = Names(types=1, counts_positions=True)
DISTILBERT = Names(
    hidden="dim", heads="n_heads", layers="n_layers", width="hidden_dim", activation="activation", dropout="dropout",
    score_dropout="attention_dropout", types=0, scales_queries=True,
)  # fmt: skip


class Layer(nn.Module):
    def __init__(self, names: Names, config: Mapping[str, Any], attention: str) -> None:
        super().__init__()
        hidden, width = size(config, names.hidden), size(config, names.width)
        self.heads, self.attention, self.scales_queries = size(config, names.heads), attention, names.scales_queries
        self.activation = activation(config, names.activation, "gelu")
        head_width(hidden, self.heads, called=(names.hidden, names.heads))
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.intermediate, self.output = nn.Linear(hidden, width), nn.Linear(width, hidden)
        self.attention_norm, self.output_norm = nn.LayerNorm(hidden, EPS), nn.LayerNorm(hidden, EPS)
        self.score_dropout = dropout(config, names.score_dropout, 0.1)
        self.dropout = dropout(config, names.dropout, 0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).permute(0, 2, 1, 3)

    def scores(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        root = math.sqrt(query.size(-1))
        if not self.scales_queries:
            return torch.matmul(query, key.transpose(-1, -2)) / root + mask
        scores = torch.matmul(query / root, key.transpose(-1, -2))
        return scores.masked_fill((mask != 0).expand_as(scores), torch.finfo(scores.dtype).min)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.attention == "eager":
            mixed = torch.matmul(self.score_dropout(F.softmax(self.scores(query, key, mask), -1)), value)
        else:
            mixed = fused_attention(query, key, value, causal=False)
        mixed = mixed.permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.attention_norm(self.dropout(self.out(mixed)) + x)
        return self.output_norm(self.dropout(self.output(ACTIVATIONS[self.activation](self.intermediate(x)))) + x)


class Encoder(Body):
    def __init__(self, names: Names, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        hidden, vocab = size(config, names.hidden), size(config, "vocab_size")
        positions = size(config, "max_position_embeddings", 512)
        types = size(config, "type_vocab_size", names.types) if names.types else 0
        self.padding = count(config, "pad_token_id") if config.get("pad_token_id") is not None else 1
        self.counts_positions = names.counts_positions
        if self.counts_positions and asked.seq > positions - self.padding - 1:
            room = f"max_position_embeddings = {positions:,} less {self.padding + 1:,} up to the id of padding"
            raise InvalidInput(f"seq = {asked.seq:,} is beyond its positions: {room}")
        self.words, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.types = nn.Embedding(types, hidden) if types else None
        self.norm, self.dropout = nn.LayerNorm(hidden, EPS), dropout(config, names.dropout, 0.1)
        self.layers = nn.ModuleList(Layer(names, config, asked.attention) for _ in range(size(config, names.layers)))
        self.register_buffer("places", torch.zeros(1, positions, dtype=torch.int64))

    def counted(self, tokens: Tensor) -> Tensor:
        is_text = tokens.ne(self.padding).int()
        return (torch.cumsum(is_text, dim=1).type_as(is_text) * is_text).long() + self.padding

    def forward(self, tokens: Tensor) -> Tensor:
        attended = torch.ones(tokens.shape)
        mask = (1.0 - attended[:, None, None, :]) * torch.finfo(torch.float32).min
        first = self.places[:, : tokens.size(1)]
        places = self.counted(tokens) if self.counts_positions else first
        types = None if self.types is None else torch.zeros_like(first).expand(tokens.shape)
        x = self.words(tokens)
        if self.types is not None:
            x = x + self.types(types)
        x = self.dropout(self.norm(x + self.positions(places)))
        mask = mask.to(x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return x


# ---- heads -------------------------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """BERT's first token, through a layer of its own: alone, or with a classifier of texts or of what follows a sentence."""

    def __init__(self, config: Mapping[str, Any], body: Body, outputs: int, dropped: nn.Module | None = None) -> None:
        super().__init__()
        self.pooler, self.dropout = nn.Linear(body.hidden, body.hidden), nn.Identity() if dropped is None else dropped
        self.score = nn.Linear(body.hidden, outputs)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        scores: Tensor = self.score(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
        return scores


class PooledBeside(nn.Module):
    """No head: hidden states, and the pooled one."""

    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        self.pooler = nn.Linear(body.hidden, body.hidden)

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.tanh(self.pooler(x[:, 0]))


class MaskedLanguage(nn.Module):
    """Every token through a layer, an activation and a norm, then the table of words with a bias."""

    def __init__(self, names: Names, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        self.activation = "gelu" if names.counts_positions else activation(config, names.activation, "gelu")
        self.transform, self.norm = nn.Linear(body.hidden, body.hidden), nn.LayerNorm(body.hidden, EPS)
        self.out = nn.Linear(body.hidden, body.words.num_embeddings)
        self.out.weight = body.words.weight

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.norm(ACTIVATIONS[self.activation](self.transform(x))))
        return logits


class Pretraining(nn.Module):
    """Masked words, and whether the second sentence follows the first."""

    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        self.pooler, self.relation = nn.Linear(body.hidden, body.hidden), nn.Linear(body.hidden, 2)
        self.language = MaskedLanguage(BERT, config, body)

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.language(x, tokens), self.relation(pooled)


class FirstToken(nn.Module):
    """The classifier of texts of encoders without a pooler: dropout, a layer, dropout, the classifier."""

    def __init__(self, config: Mapping[str, Any], body: Body, name: str, before: nn.Module, behind: nn.Module) -> None:
        super().__init__()
        self.before, self.behind, self.activation = before, behind, name
        self.dense, self.score = nn.Linear(body.hidden, body.hidden), nn.Linear(body.hidden, num_labels(config))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        scores: Tensor = self.score(self.behind(ACTIVATIONS[self.activation](self.dense(self.before(x[:, 0])))))
        return scores


def _bert_texts(config: Mapping[str, Any], body: Body) -> nn.Module:
    return Pooled(config, body, num_labels(config), classifier_dropout(config, BERT.dropout))


def _roberta_texts(config: Mapping[str, Any], body: Body) -> nn.Module:
    before, behind = (classifier_dropout(config, ROBERTA.dropout) for _ in range(2))
    return FirstToken(config, body, "tanh", before, behind)


def _distilbert_texts(config: Mapping[str, Any], body: Body) -> nn.Module:
    return FirstToken(config, body, "relu", nn.Identity(), dropout(config, "seq_classif_dropout", 0.2))


def _tokens(names: Names, config: Mapping[str, Any], body: Body) -> nn.Module:
    return EveryToken(config, body, classifier_dropout(config, names.dropout))


def _answers_of_distilbert(config: Mapping[str, Any], body: Body) -> nn.Module:
    return Span(config, body, dropout(config, "qa_dropout", 0.1))


def _heads(names: Names) -> dict[str, Head]:
    """That all have."""
    return {
        "ForMaskedLM": Head(build=partial(MaskedLanguage, names)), "ForTokenClassification": Head(build=partial(_tokens, names)),
        "ForQuestionAnswering": Head(build=Span), "Model": Head(build=PooledBeside, loss=MeanLoss),
    }  # fmt: skip


BERT_HEADS = _heads(BERT) | {
    "LMHeadModel": Head(build=partial(MaskedLanguage, BERT)), "ForPreTraining": Head(build=Pretraining),
    "ForSequenceClassification": Head(build=_bert_texts), "ForNextSentencePrediction": Head(build=partial(Pooled, outputs=2)),
}  # fmt: skip
ROBERTA_HEADS = _heads(ROBERTA) | {
    "ForCausalLM": Head(build=partial(MaskedLanguage, ROBERTA)), "ForSequenceClassification": Head(build=_roberta_texts),
}  # fmt: skip
DISTILBERT_HEADS = _heads(DISTILBERT) | {
    "ForSequenceClassification": Head(build=_distilbert_texts), "ForQuestionAnswering": Head(build=_answers_of_distilbert),
    "Model": NO_HEAD,
}  # fmt: skip
FAMILIES = (
    Family(prefixes=("Bert",), heads=BERT_HEADS, body=partial(Encoder, BERT)),
    Family(prefixes=("Roberta", "XLMRoberta", "Camembert"), heads=ROBERTA_HEADS, body=partial(Encoder, ROBERTA)),
    Family(prefixes=("DistilBert",), heads=DISTILBERT_HEADS, body=partial(Encoder, DISTILBERT)),
)
