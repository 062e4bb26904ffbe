"""Llama and what is built like it: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import attention_heads, family_names, flag, number, size
from tilecast.workloads.tracing.modules.base import Asked, Family, RootMeanSquareNorm, fused_attention, token_inputs

EPS = 1e-5


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x[..., : x.size(-1) // 2], x[..., x.size(-1) // 2 :]
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any], attention: str) -> None:
        super().__init__()
        hidden, shape = size(config, "hidden_size"), attention_heads(config)
        heads, kv_heads, head = shape.num_heads, shape.num_kv_heads, shape.head_dim
        if head % 2:
            raise InvalidInput(f"head_dim = {head} must be even: rotary positions turn one half against the other")
        width, eps = size(config, "intermediate_size"), number(config, "rms_norm_eps", EPS)
        bias = "Qwen2ForCausalLM" in family_names(config)
        self.head, self.groups, self.attention = head, heads // kv_heads, attention
        self.norm_1, self.norm_2 = RootMeanSquareNorm(hidden, eps), RootMeanSquareNorm(hidden, eps)
        self.query = nn.Linear(hidden, heads * head, bias=bias)
        self.key, self.value = (nn.Linear(hidden, kv_heads * head, bias=bias) for _ in range(2))
        self.out = nn.Linear(heads * head, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.down = nn.Linear(width, hidden, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), -1, self.head).transpose(1, 2)

    def shared(self, x: Tensor) -> Tensor:
        """Keys and values, once for every query head of their group."""
        if self.groups == 1:
            return x
        batch, heads, tokens, width = x.shape
        return x[:, :, None].expand(batch, heads, self.groups, tokens, width).reshape(batch, heads * self.groups, tokens, width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm_1(x)
        query, key, value = self.split(self.query(normed)), self.split(self.key(normed)), self.split(self.value(normed))
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        key, value = self.shared(key), self.shared(value)
        if self.attention == "eager":
            scores = torch.matmul(query, key.transpose(2, 3)) * (1.0 / math.sqrt(self.head)) + mask
            mixed = torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype), value)
        else:
            mixed = fused_attention(query, key, value, causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.size(0), x.size(1), -1))
        normed = self.norm_2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        hidden, vocab = size(config, "hidden_size"), size(config, "vocab_size")
        self.words = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(config, asked.attention) for _ in range(size(config, "num_hidden_layers")))
        self.norm = RootMeanSquareNorm(hidden, number(config, "rms_norm_eps", EPS))
        self.head = nn.Linear(hidden, vocab, bias=False)
        if flag(config, "tie_word_embeddings"):
            self.head.weight = self.words.weight
        self.width = attention_heads(config).head_dim

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        length = tokens.size(1)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * torch.ones(self.width // 2)
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos().to(x.dtype)[None, None], angles.sin().to(x.dtype)[None, None]
        mask = torch.triu(torch.full((length, length), torch.finfo(x.dtype).min, dtype=x.dtype), 1)[None, None]
        for layer in self.layers:
            x = layer(x, cosine, sine, mask)
        return self.head(self.norm(x))


FAMILY = Family(names=("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"), build=Llama, inputs=token_inputs)
