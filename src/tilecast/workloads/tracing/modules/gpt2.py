"""GPT-2, and GPT-3 in its shape: pre-norm decoder, fused projections as Conv1D, GELU in its tanh form, written out, by default."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.workloads.architectures.base import head_width, size
from tilecast.workloads.tracing.modules.base import ACTIVATIONS, Asked, Body, Conv1D, activation, dropout, fused_attention
from tilecast.workloads.tracing.modules.family import Family
from tilecast.workloads.tracing.modules.heads import DECODER_HEADS, Head, TiedLanguageHead


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any], hidden: int, heads: int, width: int, positions: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention, self.activation = heads, attention, activation(config, "activation_function", "gelu_new")
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = Conv1D(hidden, 3 * hidden), Conv1D(hidden, hidden)
        self.up, self.down = Conv1D(hidden, width), Conv1D(width, hidden)
        self.score_dropout, self.dropout = dropout(config, "attn_pdrop", 0.1), dropout(config, "resid_pdrop", 0.1)
        self.register_buffer("visible", torch.ones(1, 1, positions, positions, dtype=torch.bool))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.split(part) for part in self.qkv(self.norm_1(x)).split(x.size(-1), dim=2))
        if self.attention == "eager":
            scores = torch.matmul(query, key.transpose(-1, -2))
            scores = scores / torch.full([], value.size(-1) ** 0.5, dtype=scores.dtype)
            tokens = query.size(-2)
            least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
            scores = torch.where(self.visible[:, :, :tokens, :tokens], scores, least)
            mixed = torch.matmul(self.score_dropout(F.softmax(scores, dim=-1)), value)
        else:
            mixed = fused_attention(query, key, value, causal=True)
        mixed = mixed.permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.dropout(self.out(mixed)) + x
        return x + self.dropout(self.down(ACTIVATIONS[self.activation](self.up(self.norm_2(x)))))


class Gpt2(Body):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        hidden, vocab = size(config, "n_embd", None, "hidden_size"), size(config, "vocab_size")
        positions = size(config, "n_positions", None, "max_position_embeddings")
        self.words, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        heads = size(config, "n_head", None, "num_attention_heads")
        head_width(hidden, heads, called=("n_embd", "n_head"))
        shape = config, hidden, heads, size(config, "n_inner", 4 * hidden), positions, asked.attention
        self.layers = nn.ModuleList(Layer(*shape) for _ in range(size(config, "n_layer", None, "num_hidden_layers")))
        self.norm, self.dropout = nn.LayerNorm(hidden), dropout(config, "embd_pdrop", 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1)).unsqueeze(0)
        x: Tensor = self.dropout(self.words(tokens) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


FAMILIES = (Family(prefixes=("GPT2",), heads={"LMHeadModel": Head(build=TiedLanguageHead), **DECODER_HEADS}, body=Gpt2),)
