"""OPT: pre-norm decoder, usually with ReLU; queries scaled before the product, scores clipped at the smallest number."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.workloads.architectures.base import head_width, size
from tilecast.workloads.tracing.modules.base import ACTIVATIONS, Asked, Body, activation, dropout, fused_attention
from tilecast.workloads.tracing.modules.family import Family
from tilecast.workloads.tracing.modules.heads import DECODER_HEADS, Head, TiedLanguageHead


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any], hidden: int, heads: int, width: int, attention: str) -> None:
        super().__init__()
        self.activation = activation(config, "activation_function", "relu")
        self.heads, self.attention, self.scaling = heads, attention, (hidden // heads) ** -0.5
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, width), nn.Linear(width, hidden)
        self.score_dropout, self.dropout = dropout(config, "attention_dropout", 0.0), dropout(config, "dropout", 0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2).contiguous()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        normed = self.norm_1(x)
        scaled = self.query(normed) * self.scaling
        key, value, query = self.split(self.key(normed)), self.split(self.value(normed)), self.split(scaled)
        if self.attention == "eager":
            query, key, value = (part.view(batch * self.heads, tokens, -1) for part in (query, key, value))
            scores = torch.bmm(query, key.transpose(1, 2)).view(batch, self.heads, tokens, tokens) + mask
            scores = torch.max(scores, torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype))
            weights = F.softmax(scores.view(batch * self.heads, tokens, tokens), dim=-1)
            mixed = torch.bmm(self.score_dropout(weights), value).view(batch, self.heads, tokens, -1)
        else:
            mixed = fused_attention(query, key, value, causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden)))
        rows = x.reshape(-1, hidden)
        rows = rows + self.dropout(self.down(ACTIVATIONS[self.activation](self.up(self.norm_2(rows)))))
        return rows.view(batch, tokens, hidden)


class Opt(Body):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        hidden, vocab = size(config, "hidden_size"), size(config, "vocab_size")
        self.words = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(size(config, "max_position_embeddings", 2048) + 2, hidden)
        heads = size(config, "num_attention_heads")
        head_width(hidden, heads)
        shape = config, hidden, heads, size(config, "ffn_dim", 4 * hidden), asked.attention
        self.layers = nn.ModuleList(Layer(*shape) for _ in range(size(config, "num_hidden_layers")))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        x = self.words(tokens)
        attended = torch.ones(tokens.shape, dtype=torch.bool)
        least = torch.finfo(x.dtype).min
        mask = torch.full((length, length), least, dtype=x.dtype)
        order = torch.arange(length)
        mask = mask.masked_fill(order < (order + 1).view(length, 1), 0)
        padding = 1.0 - attended[:, None, None, :].expand(batch, 1, length, length).to(x.dtype)
        mask = mask[None, None].expand(batch, 1, length, length).masked_fill(padding.to(torch.bool), least)
        places = torch.cumsum(attended.long(), dim=1) * attended - 1
        x = x + self.positions(places + 2)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


FAMILIES = (Family(prefixes=("OPT",), heads={"ForCausalLM": Head(build=TiedLanguageHead), **DECODER_HEADS}, body=Opt),)
