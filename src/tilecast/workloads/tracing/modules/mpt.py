"""MPT as its trainer runs it: pre-norm, a table of positions as long as the text, biases, GELU; one kernel for the loss."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.workloads.architectures.base import head_width, size
from tilecast.workloads.tracing.losses import FusedTokenLoss
from tilecast.workloads.tracing.modules.base import Asked, Body, fused_attention
from tilecast.workloads.tracing.modules.family import Family
from tilecast.workloads.tracing.modules.heads import DECODER_HEADS, Head, TiedLanguageHead


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, hidden = x.shape
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=2))
        if mask is not None:
            scores = torch.matmul(query, key.transpose(-1, -2)) * (1.0 / math.sqrt(query.size(-1))) + mask
            mixed = torch.matmul(F.softmax(scores, dim=-1), value)
        else:
            mixed = fused_attention(query, key, value, causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Mpt(Body):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        hidden, vocab = size(config, "d_model", None, "hidden_size"), size(config, "vocab_size")
        heads = size(config, "n_heads", None, "num_attention_heads")
        head_width(hidden, heads, called=("d_model", "n_heads"))
        shape = hidden, heads, asked.attention
        self.eager = asked.attention == "eager"
        self.words, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(asked.seq, hidden)
        self.layers = nn.ModuleList(Layer(*shape) for _ in range(size(config, "n_layers", None, "num_hidden_layers")))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.size(1)
        x = self.words(tokens) + self.positions(torch.arange(length).unsqueeze(0))
        mask = torch.triu(torch.full((length, length), torch.finfo(x.dtype).min, dtype=x.dtype), 1)[None, None] if self.eager else None
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


LANGUAGE = Head(build=TiedLanguageHead, loss=FusedTokenLoss)
FAMILIES = (Family(prefixes=("MPT", "Mpt"), heads={"ForCausalLM": LANGUAGE, **DECODER_HEADS}, body=Mpt),)
