"""T5, and Switch Transformer: a T5 in which every second layer has experts, each with room for a fixed number of tokens."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import flag, size
from tilecast.workloads.tracing.modules.base import ACTIVATIONS, Asked, Body, RootMeanSquareNorm, activation, dropout, fused_attention
from tilecast.workloads.tracing.modules.family import Family
from tilecast.workloads.tracing.modules.heads import NO_HEAD, Head, TiedLanguageHead

EPS = 1e-6
GATED = "gated-"


def dropped(config: Mapping[str, Any]) -> nn.Module:
    return dropout(config, "dropout_rate", 0.1)


class Attention(nn.Module):
    def __init__(self, config: Mapping[str, Any], hidden: int, heads: int, head: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm = RootMeanSquareNorm(hidden, EPS)
        self.query, self.key, self.value = (nn.Linear(hidden, heads * head, bias=False) for _ in range(3))
        self.out, self.dropout = nn.Linear(heads * head, hidden, bias=False), dropped(config)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor | None, memory: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        seen = normed if memory is None else memory
        query, key, value = self.split(self.query(normed)), self.split(self.key(seen)), self.split(self.value(seen))
        if self.attention == "eager":
            scores = torch.matmul(query, key.transpose(3, 2))
            if bias is not None:
                scores = scores + bias
            mixed = torch.matmul(self.dropout(F.softmax(scores.float(), dim=-1).type_as(scores)), value)
        else:
            mixed = fused_attention(query, key, value, causal=False)
        mixed = mixed.transpose(1, 2).contiguous().view(x.size(0), x.size(1), -1)
        return x + self.dropout(self.out(mixed))


class Mlp(nn.Module):
    def __init__(self, config: Mapping[str, Any], hidden: int, width: int) -> None:
        super().__init__()
        # `relu`, or `gated-gelu` of a product of two, which no Switch has
        self.activation = activation(config, "dense_act_fn" if config.get("dense_act_fn") is not None else "feed_forward_proj", "relu")
        self.up, self.down = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)
        self.dropout = dropped(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(ACTIVATIONS[self.activation](self.up(x))))


class GatedMlp(nn.Module):
    """T5 1.1's: a product of two, of which one goes through the activation."""

    def __init__(self, config: Mapping[str, Any], hidden: int, width: int) -> None:
        super().__init__()
        kind = str(config["feed_forward_proj"]).removeprefix(GATED)
        named = {**config, "feed_forward_proj": "gelu_new" if kind == "gelu" else kind}
        self.activation = activation(named, "dense_act_fn" if config.get("dense_act_fn") is not None else "feed_forward_proj", "gelu_new")
        self.gate, self.up, self.down = *(nn.Linear(hidden, width, bias=False) for _ in range(2)), nn.Linear(width, hidden, bias=False)
        self.dropout = dropped(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(ACTIVATIONS[self.activation](self.gate(x)) * self.up(x)))


def dense(config: Mapping[str, Any], hidden: int, width: int, has_experts: bool) -> nn.Module:
    is_gated = not has_experts and str(config.get("feed_forward_proj")).startswith(GATED)
    return (GatedMlp if is_gated else Mlp)(config, hidden, width)


class Experts(nn.Module):
    """Every expert takes `capacity` tokens of each text, padded: which ones, no trace can know, but how many it does."""

    def __init__(self, config: Mapping[str, Any], hidden: int, width: int, num_experts: int, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.router = nn.Linear(hidden, num_experts, bias=False)
        self.experts = nn.ModuleList(Mlp(config, hidden, width) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        # The router works in fp32, whatever the rest does.
        probabilities = F.softmax(F.linear(x.to(torch.float32), self.router.weight.to(torch.float32)), dim=-1, dtype=torch.float32)
        # one_hot, as it is on a GPU
        chosen = torch.argmax(probabilities, dim=-1)
        one_hot = torch.zeros(probabilities.shape, dtype=torch.int64).scatter(-1, chosen.unsqueeze(-1), 1)
        kept = one_hot * (torch.cumsum(one_hot, dim=-2) <= self.capacity)
        best = torch.max(probabilities, dim=-1).values.unsqueeze(-1)
        rows = x.reshape(-1, x.size(-1))
        room = min(self.capacity, x.size(1)) * x.size(0)
        result = rows.clone()
        for number, expert in enumerate(self.experts):
            places = torch.topk(kept[:, :, number].reshape(-1), room).indices
            result = result.index_put((places,), expert(rows[places]).to(x.dtype))
        return best.to(x.dtype) * result.view(x.shape)


class FeedForward(nn.Module):
    def __init__(self, config: Mapping[str, Any], hidden: int, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner, self.dropout = RootMeanSquareNorm(hidden, EPS), inner, dropped(config)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.inner(self.norm(x)))


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any], asked: Asked, step: int, sparse: bool, decoder: bool) -> None:
        super().__init__()
        hidden, width = size(config, "d_model"), size(config, "d_ff")
        shape = config, hidden, size(config, "num_heads"), size(config, "d_kv"), asked.attention
        self.self_attention = Attention(*shape)
        self.cross_attention = Attention(*shape) if decoder else None
        inner = dense(config, hidden, width, step > 0) if not sparse else Experts(
            config, hidden, width, size(config, "num_experts"), size(config, "expert_capacity", 64)
        )  # fmt: skip
        self.feed_forward = FeedForward(config, hidden, inner)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        x = self.self_attention(x, bias)
        if self.cross_attention is not None:
            x = self.cross_attention(x, None, memory)
        return self.feed_forward(x)


class Group(nn.Module):
    """Layers up to and with the next one that has experts, or one where none has: all groups are alike."""

    def __init__(self, config: Mapping[str, Any], asked: Asked, step: int, decoder: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(Layer(config, asked, step, index == step - 1, decoder) for index in range(max(1, step)))

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        for member in self.members:
            x = member(x, bias, memory)
        return x


class Stack(nn.Module):
    """The encoder, or the decoder with its view of the encoder's result."""

    def __init__(self, config: Mapping[str, Any], asked: Asked, layers: int, step: int, decoder: bool) -> None:
        super().__init__()
        if layers % max(1, step):
            raise InvalidInput(f"num_layers = {layers} must be a multiple of the sparse step {step}")
        self.groups = nn.ModuleList(Group(config, asked, step, decoder) for _ in range(layers // max(1, step)))
        self.distances = nn.Embedding(size(config, "relative_attention_num_buckets", 32), size(config, "num_heads"))
        self.norm, self.dropout = RootMeanSquareNorm(size(config, "d_model"), EPS), dropped(config)

    def bias(self, batch: int, length: int) -> Tensor:
        order = torch.arange(length)
        distance = torch.abs(order[None, :] - order[:, None])
        far = (torch.log(distance.float() / 8) / 2.77 * 8).to(torch.int64) + 8
        bucket = torch.where(distance < 8, distance, torch.min(far, torch.full_like(far, 15)))
        learned = self.distances(bucket).permute(2, 0, 1).unsqueeze(0)
        return learned + (1.0 - torch.ones(batch, 1, 1, length)) * torch.finfo(torch.float32).min

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        bias = self.bias(x.size(0), x.size(1)).to(x.dtype)
        x = self.dropout(x)
        for group in self.groups:
            x = group(x, bias, memory)
        return self.dropout(self.norm(x))


class EncoderDecoder(Body):
    def __init__(self, config: Mapping[str, Any], asked: Asked, steps: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        layers = size(config, "num_layers")
        self.words = nn.Embedding(size(config, "vocab_size"), size(config, "d_model"))
        self.encoder = Stack(config, asked, layers, steps[0], False)
        self.decoder = Stack(config, asked, size(config, "num_decoder_layers", layers), steps[1], True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.words(source))
        made: Tensor = self.decoder(self.words(target), memory)
        return made


class EncoderAlone(Body):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        self.words = nn.Embedding(size(config, "vocab_size"), size(config, "d_model"))
        self.encoder = Stack(config, asked, size(config, "num_layers"), 0, False)

    def forward(self, source: Tensor) -> Tensor:
        made: Tensor = self.encoder(self.words(source))
        return made


def switch(config: Mapping[str, Any], asked: Asked) -> Body:
    return EncoderDecoder(config, asked, (size(config, "encoder_sparse_step", 2), size(config, "decoder_sparse_step", 2)))


class ScaledLanguageHead(TiedLanguageHead):
    """Of a tied table: hidden states are made smaller first."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return super().forward(x * self.out.in_features**-0.5, tokens)


class OwnLanguageHead(nn.Module):
    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        self.out = nn.Linear(body.hidden, body.words.num_embeddings, bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(x)
        return logits


def language_head(config: Mapping[str, Any], body: Body) -> nn.Module:
    return (ScaledLanguageHead if flag(config, "tie_word_embeddings", True) else OwnLanguageHead)(config, body)


def both_texts(asked: Asked) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(asked.batch, asked.seq, dtype=torch.int64) for _ in range(2))


HEADS = {"ForConditionalGeneration": Head(build=language_head), "Model": NO_HEAD}
FAMILIES = (
    Family(
        prefixes=("SwitchTransformers",), body=switch, inputs=both_texts,
        heads={**HEADS, "ForConditionalGeneration": Head(build=ScaledLanguageHead)},
    ),
    Family(prefixes=("T5", "MT5"), heads=HEADS, body=EncoderDecoder, inputs=both_texts),
    Family(prefixes=("T5", "MT5"), heads={"EncoderModel": NO_HEAD}, body=EncoderAlone),
)  # fmt: skip
