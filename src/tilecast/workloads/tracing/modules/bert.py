"""BERT: post-norm encoder; sequence classification in inference, both pre-training heads in training."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.workloads.architectures.base import head_width, size
from tilecast.workloads.tracing.modules.base import ACTIVATIONS, Asked, Family, activation, dropout, fused_attention, token_inputs


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any], hidden: int, heads: int, width: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention, self.activation = heads, attention, activation(config, "hidden_act", "gelu")
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.intermediate, self.output = nn.Linear(hidden, width), nn.Linear(width, hidden)
        self.attention_norm, self.output_norm = nn.LayerNorm(hidden, 1e-12), nn.LayerNorm(hidden, 1e-12)
        self.score_dropout = dropout(config, "attention_probs_dropout_prob", 0.1)
        self.dropout = dropout(config, "hidden_dropout_prob", 0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.attention == "eager":
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.size(-1)) + mask
            mixed = torch.matmul(self.score_dropout(F.softmax(scores, -1)), value)
        else:
            mixed = fused_attention(query, key, value, causal=False)
        mixed = mixed.permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.attention_norm(self.dropout(self.out(mixed)) + x)
        return self.output_norm(self.dropout(self.output(ACTIVATIONS[self.activation](self.intermediate(x)))) + x)


class Bert(nn.Module):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        hidden, vocab = size(config, "hidden_size"), size(config, "vocab_size")
        positions = size(config, "max_position_embeddings", 512)
        self.words, self.positions, self.types = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden), nn.Embedding(2, hidden)
        self.norm, self.dropout = nn.LayerNorm(hidden, 1e-12), dropout(config, "hidden_dropout_prob", 0.1)
        self.activation = activation(config, "hidden_act", "gelu")
        heads = size(config, "num_attention_heads")
        head_width(hidden, heads)
        shape = config, hidden, heads, size(config, "intermediate_size"), asked.attention
        self.layers = nn.ModuleList(Layer(*shape) for _ in range(size(config, "num_hidden_layers")))
        self.pooler = nn.Linear(hidden, hidden)
        self.pretraining = asked.mode == "training"
        self.relation = nn.Linear(hidden, 2)
        if self.pretraining:
            self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, 1e-12)
            self.decoder = nn.Linear(hidden, vocab)
            self.decoder.weight = self.words.weight
        self.register_buffer("places", torch.zeros(1, positions, dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Any:
        attended = torch.ones(tokens.shape)
        mask = (1.0 - attended[:, None, None, :]) * torch.finfo(torch.float32).min
        places = self.places[:, : tokens.size(1)]
        types = torch.zeros_like(places).expand(tokens.shape)
        x = self.words(tokens) + self.types(types) + self.positions(places)
        x = self.dropout(self.norm(x))
        mask = mask.to(x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        if not self.pretraining:
            return self.relation(self.dropout(pooled))
        return self.decoder(self.transform_norm(ACTIVATIONS[self.activation](self.transform(x)))), self.relation(pooled)


FAMILY = Family(
    names=("BertLMHeadModel", "BertForPreTraining", "BertForSequenceClassification", "BertModel", "BertForMaskedLM"),
    build=Bert,
    inputs=token_inputs,
)
