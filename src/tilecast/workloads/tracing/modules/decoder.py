"""Decoders as `workloads/architectures` read them: Llama's shape and what others add to it.

Norms of queries and keys, biases, windows, sinks, soft caps, norms behind the blocks, latent attention, and experts, which are grouped and
equally busy: tokens are sorted by expert and every expert multiplies its share in one batched product, so that no size depends on values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilecast.errors import InvalidInput
from tilecast.workloads import model as parts
from tilecast.workloads.architectures import architectures, read_config
from tilecast.workloads.architectures.base import number
from tilecast.workloads.tracing.modules.base import Asked, Body, RootMeanSquareNorm, fused_attention
from tilecast.workloads.tracing.modules.family import Family
from tilecast.workloads.tracing.modules.heads import DECODER_HEADS, Head
from tilecast.workloads.tracing.modules.latent import latent_attention

LONGEST_PATTERN = 12  # layers, after which their kinds repeat
MOST_APART = 8  # layers before the pattern begins
EPS = 1e-5
SCORE_CAP, LOGIT_CAP = 50.0, 30.0  # Gemma 2's
GATE_SLOPE, GATE_LIMIT = 1.702, 7.0  # of GPT-OSS


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What a decoder does besides its config, layer by layer alike."""

    attention: str
    tokens: int  # of all texts
    hidden: int
    eps: float
    wide_norm: bool = False  # Gemma: norms multiply by 1 + weight, in fp32
    fused: bool = False  # Phi: one product for queries, keys and values, one for gate and up
    score_cap: float | None = None
    clipped_gate: bool = False  # GPT-OSS
    sigmoid_router: bool = False

    def norm(self, width: int) -> nn.Module:
        return WideNorm(width, self.eps) if self.wide_norm else RootMeanSquareNorm(width, self.eps)


class WideNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class PlainNorm(nn.Module):
    """A norm without weights."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x[..., : x.size(-1) // 2], x[..., x.size(-1) // 2 :]
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


@dataclass(frozen=True, slots=True)
class Places:
    """What all layers are told about positions: rotations, and who sees whom."""

    cosine: Tensor
    sine: Tensor
    mask: Tensor
    local: Tensor | None  # the mask of layers with a window shorter than the text


# ---- attention ---------------------------------------------------------------------------------------------------


class Mixing(nn.Module):
    """Scores, softmax and the mix of values, operator by operator or as one kernel."""

    def __init__(self, style: Style, width: int, window: bool, sinks: int = 0) -> None:
        super().__init__()
        self.attention, self.scale, self.cap = style.attention, 1.0 / math.sqrt(width), style.score_cap
        self.masked = window and style.attention == "sdpa"  # PyTorch's kernels know no window: they are given a mask
        self.sinks = nn.Parameter(torch.empty(sinks)) if sinks else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if self.attention != "eager":
            if query.size(-1) != value.size(-1):
                return latent_attention(query, key, value)
            if self.masked:
                return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            return fused_attention(query, key, value, causal=True)
        scores = torch.matmul(query, key.transpose(2, 3)) * self.scale
        if self.cap is not None:
            scores = torch.tanh(scores / self.cap) * self.cap
        scores = scores + mask
        if self.sinks is not None:
            sinks = self.sinks.view(1, -1, 1, 1).expand(scores.size(0), -1, scores.size(2), 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
        return torch.matmul(weights[..., :-1] if self.sinks is not None else weights, value)


class GroupedAttention(nn.Module):
    def __init__(self, style: Style, part: parts.GroupedAttention, window: bool) -> None:
        super().__init__()
        self.head, self.groups, self.rope = part.head_dim, part.num_heads // part.num_kv_heads, part.rope
        self.widths = part.num_heads * self.head, part.num_kv_heads * self.head, part.num_kv_heads * self.head
        self.fused, self.whole_norm, self.scales_queries = style.fused, part.qk_norm == "layer", part.scales_queries
        if style.fused:
            self.qkv = nn.Linear(style.hidden, sum(self.widths), bias=part.qkv_bias)
        else:
            self.query, self.key, self.value = (nn.Linear(style.hidden, width, bias=part.qkv_bias) for width in self.widths)
        self.query_norm, self.key_norm = (self.norm_of(style, part, width) for width in self.widths[:2])
        self.out = nn.Linear(self.widths[0], style.hidden, bias=part.o_bias)
        self.mixing = Mixing(style, self.head, window, part.num_heads if part.sinks else 0)

    def norm_of(self, style: Style, part: parts.GroupedAttention, width: int) -> nn.Module | None:
        if part.qk_norm is None:
            return None
        if not part.qk_norm_weights:
            return PlainNorm(style.eps)
        return style.norm(width if part.qk_norm == "layer" else self.head)

    def split(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        if norm is not None and self.whole_norm:
            x = norm(x)
        heads = x.view(x.size(0), x.size(1), -1, self.head)
        return (norm(heads) if norm is not None and not self.whole_norm else heads).transpose(1, 2)

    def shared(self, x: Tensor) -> Tensor:
        """Keys and values, once for every query head of their group."""
        if self.groups == 1:
            return x
        batch, heads, tokens, width = x.shape
        return x[:, :, None].expand(batch, heads, self.groups, tokens, width).reshape(batch, heads * self.groups, tokens, width)

    def forward(self, x: Tensor, places: Places, mask: Tensor) -> Tensor:
        norms = self.query_norm, self.key_norm, None
        if self.fused:
            query, key, value = (self.split(part, norm) for part, norm in zip(self.qkv(x).split(self.widths, dim=-1), norms, strict=True))
        else:
            linear = self.query, self.key, self.value
            query, key, value = (self.split(each(x), norm) for each, norm in zip(linear, norms, strict=True))
        if self.rope:
            query, key = rotated(query, places.cosine, places.sine), rotated(key, places.cosine, places.sine)
        if self.scales_queries:
            query = query * torch.ones(1, 1, x.size(1), 1, dtype=x.dtype)
        key, value = self.shared(key), self.shared(value)
        mixed = self.mixing(query, key, value, mask)
        return self.out(mixed.transpose(1, 2).reshape(x.size(0), x.size(1), -1))


class LatentAttention(nn.Module):
    def __init__(self, style: Style, part: parts.LatentAttention, window: bool) -> None:
        super().__init__()
        self.heads, self.latent, self.value_width = part.num_heads, part.kv_lora_rank, part.v_head_dim
        self.plain, self.turned = part.qk_nope_head_dim, part.qk_rope_head_dim
        width = part.num_heads * (self.plain + self.turned)
        self.has_query_latent = part.q_lora_rank is not None
        if part.q_lora_rank is not None:
            self.query_down, self.query_norm = nn.Linear(style.hidden, part.q_lora_rank, bias=False), style.norm(part.q_lora_rank)
        self.query_up = nn.Linear(part.q_lora_rank or style.hidden, width, bias=False)
        self.down, self.norm = nn.Linear(style.hidden, self.latent + self.turned, bias=False), style.norm(self.latent)
        self.up = nn.Linear(self.latent, part.num_heads * (self.plain + self.value_width), bias=False)
        self.out = nn.Linear(part.num_heads * self.value_width, style.hidden, bias=False)
        self.mixing = Mixing(style, self.plain + self.turned, window)

    def forward(self, x: Tensor, places: Places, mask: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query = self.query_up(self.query_norm(self.query_down(x)) if self.has_query_latent else x)
        query, query_turned = query.view(batch, tokens, self.heads, -1).transpose(1, 2).split((self.plain, self.turned), dim=-1)
        latent, key_turned = self.down(x).split((self.latent, self.turned), dim=-1)
        expanded = self.up(self.norm(latent)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        key, value = expanded.split((self.plain, self.value_width), dim=-1)
        query_turned = rotated(query_turned, places.cosine, places.sine)
        key_turned = rotated(key_turned.view(batch, 1, tokens, self.turned), places.cosine, places.sine)
        query = torch.cat((query, query_turned), dim=-1)
        key = torch.cat((key, key_turned.expand(-1, self.heads, -1, -1)), dim=-1)
        mixed = self.mixing(query, key, value, mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))


# ---- MLP and experts ---------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self, style: Style, part: parts.Mlp) -> None:
        super().__init__()
        self.gelu, self.fused = part.activation != "silu", style.fused
        if style.fused:
            self.gate_up = nn.Linear(style.hidden, 2 * part.width, bias=part.bias)
        else:
            self.gate, self.up = (nn.Linear(style.hidden, part.width, bias=part.bias) for _ in range(2))
        self.down = nn.Linear(part.width, style.hidden, bias=part.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.down(up * F.silu(gate))
        gate = self.gate(x)
        return self.down((F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)) * self.up(x))


class Expert(nn.Module):
    """Experts that take equally many tokens, in one product each."""

    def __init__(self, style: Style, part: parts.Experts, number: int, room: int) -> None:
        super().__init__()
        self.room, self.clipped = room, style.clipped_gate
        self.gate_up = nn.Parameter(torch.empty(number, style.hidden, 2 * part.width))
        self.down = nn.Parameter(torch.empty(number, part.width, style.hidden))
        self.gate_up_bias = nn.Parameter(torch.empty(number, 1, 2 * part.width)) if part.bias else None
        self.down_bias = nn.Parameter(torch.empty(number, 1, style.hidden)) if part.bias else None

    def forward(self, rows: Tensor) -> Tensor:
        made = torch.bmm(rows.view(-1, self.room, rows.size(-1)), self.gate_up)
        if self.gate_up_bias is not None:
            made = made + self.gate_up_bias
        gate, up = made.chunk(2, dim=-1)
        if self.clipped:
            gate, up = gate.clamp(max=GATE_LIMIT), up.clamp(min=-GATE_LIMIT, max=GATE_LIMIT)
            inner = (up + 1) * (gate * torch.sigmoid(gate * GATE_SLOPE))
        else:
            inner = F.silu(gate) * up
        result = torch.bmm(inner, self.down)
        if self.down_bias is not None:
            result = result + self.down_bias
        return result.view(rows.shape)


class Experts(nn.Module):
    """Each token visits `topk` experts, and every expert gets as many tokens as any other, or one more: topk x tokens in all."""

    def __init__(self, style: Style, part: parts.Experts) -> None:
        super().__init__()
        self.topk, self.sigmoid = part.topk, style.sigmoid_router
        self.router = nn.Linear(style.hidden, part.num_experts, bias=part.bias)
        if part.correction_bias:
            self.register_buffer("correction", torch.zeros(part.num_experts))
        else:
            self.correction = None
        room, more = divmod(part.topk * style.tokens, part.num_experts)
        groups = [(number, rows) for number, rows in ((more, room + 1), (part.num_experts - more, room)) if number]
        self.sizes = tuple(number * rows for number, rows in groups)
        self.experts = nn.ModuleList(Expert(style, part, number, rows) for number, rows in groups)
        self.shared = Mlp(style, parts.Mlp(width=part.shared_width)) if part.shared_width else None
        self.shared_gate = nn.Linear(style.hidden, 1, bias=False) if part.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(-1, x.size(-1))
        logits = self.router(rows)
        scores = torch.sigmoid(logits.float()) if self.sigmoid else F.softmax(logits, dim=-1, dtype=torch.float32)
        choice = scores if self.correction is None else scores + self.correction
        best, chosen = torch.topk(choice, self.topk, dim=-1)
        if self.correction is not None:
            best = scores.gather(-1, chosen)
        best = (best / best.sum(dim=-1, keepdim=True)).to(x.dtype)
        order = torch.argsort(chosen.view(-1))
        sent = rows[torch.div(order, self.topk, rounding_mode="floor")]
        # An expert without a token multiplies nothing.
        done = [
            expert(share) for expert, share in zip(self.experts, sent.split(self.sizes) if len(self.sizes) > 1 else (sent,), strict=True)
            if share.size(0)
        ]  # fmt: skip
        back = (torch.cat(done) if len(done) > 1 else done[0])[torch.argsort(order)]
        result = (back.view(rows.size(0), self.topk, -1) * best.unsqueeze(-1)).sum(dim=1)
        if self.shared is not None:
            beside = self.shared(rows)
            result = result + (beside * torch.sigmoid(self.shared_gate(rows)) if self.shared_gate is not None else beside)
        return result.view(x.shape)


# ---- the whole ---------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, style: Style, part: parts.Layer, window: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = style.norm(style.hidden), style.norm(style.hidden)
        self.norm_3, self.norm_4 = (style.norm(style.hidden) if part.sandwich else None for _ in range(2))
        self.attention: nn.Module
        if isinstance(part.attention, parts.LatentAttention):
            self.attention = LatentAttention(style, part.attention, window)
        else:
            self.attention = GroupedAttention(style, part.attention, window)
        self.mlp = Experts(style, part.mlp) if isinstance(part.mlp, parts.Experts) else Mlp(style, part.mlp)

    def forward(self, x: Tensor, places: Places, mask: Tensor) -> Tensor:
        mixed = self.attention(self.norm_1(x), places, mask)
        x = x + (mixed if self.norm_3 is None else self.norm_3(mixed))
        inner = self.mlp(self.norm_2(x))
        return x + (inner if self.norm_4 is None else self.norm_4(inner))


class Group(nn.Module):
    """Layers of different kinds up to where the pattern begins again: all groups are alike."""

    def __init__(self, members: Sequence[Layer]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)


def pattern(kinds: Sequence[Any]) -> tuple[int, int]:
    """How many layers stand apart at the start, and after how many the kinds of the others repeat."""
    for period in range(1, LONGEST_PATTERN + 1):
        for apart in range(min(MOST_APART, len(kinds))):
            rest = kinds[apart:]
            if len(rest) >= 2 * period and all(one == other for one, other in zip(rest, rest[period:], strict=False)):
                return apart, period
    return 0, 1


class Decoder(Body):
    def __init__(self, config: Mapping[str, Any], asked: Asked) -> None:
        super().__init__()
        described = read_config(config, str(config.get("_name_or_path") or "config"))
        name = described.architecture
        is_gemma = name.startswith("Gemma")
        style = Style(
            attention=asked.attention, tokens=asked.batch * asked.seq, hidden=described.hidden_size,
            eps=number(config, "rms_norm_eps", EPS), wide_norm=is_gemma, fused=name.startswith("Phi3"),
            score_cap=number(config, "attn_logit_softcapping", SCORE_CAP) or None if name == "Gemma2ForCausalLM" else None,
            clipped_gate=name.startswith("GptOss"),
            sigmoid_router=any(isinstance(layer.mlp, parts.Experts) and layer.mlp.correction_bias for layer in described.layers),
        )  # fmt: skip
        windows = [layer.attention.window for layer in described.layers]
        self.local = tuple(window is not None and window < asked.seq for window in windows)  # a longer one hides nothing
        self.window = min((window for window in windows if window is not None), default=0)
        self.masked = asked.attention == "sdpa"
        seen = [is_local and self.masked for is_local in self.local]
        kinds = [
            (replace(layer, attention=replace(layer.attention, window=None)), masked)
            for layer, masked in zip(described.layers, seen, strict=True)
        ]
        made = [Layer(style, *kind) for kind in kinds]
        apart, period = pattern(kinds)
        end = apart + (len(made) - apart) // period * period
        self.words = nn.Embedding(described.vocab_size, described.hidden_size)
        self.first = nn.ModuleList(made[:apart])
        inside = made[apart:end]
        self.layers = nn.ModuleList(
            inside if period == 1 else [Group(inside[place : place + period]) for place in range(0, len(inside), period)]
        )
        self.last = nn.ModuleList(made[end:])
        self.num_layers, self.period = len(made), period
        self.norm = style.norm(described.hidden_size)
        self.is_tied, self.is_capped = described.tied_embeddings, described.soft_cap
        first = described.layers[0].attention
        self.width = first.qk_rope_head_dim if isinstance(first, parts.LatentAttention) else first.head_dim
        if self.width % 2:
            raise InvalidInput(f"head_dim = {self.width} must be even: rotary positions turn one half against the other")
        self.embedding_scale = described.hidden_size**0.5 if described.scales_embedding else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        if self.embedding_scale is not None:
            x = x * torch.full([], self.embedding_scale, dtype=x.dtype)
        length = tokens.size(1)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * torch.ones(self.width // 2)
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos().to(x.dtype)[None, None], angles.sin().to(x.dtype)[None, None]
        mask = torch.triu(torch.full((length, length), torch.finfo(x.dtype).min, dtype=x.dtype), 1)[None, None]
        local = None
        if any(self.local) and self.masked:  # operator by operator one mask stands for both: they have one shape
            far = torch.tril(torch.full((length, length), torch.finfo(x.dtype).min, dtype=x.dtype), -self.window)
            local = torch.minimum(mask, far[None, None])
        places = Places(cosine, sine, mask, local)
        apart = len(self.first)
        for place, layer in enumerate(self.first):
            x = self.one(layer, x, places, place)
        for group, layer in enumerate(self.layers):
            members = layer.members if isinstance(layer, Group) else (layer,)
            for place, member in enumerate(members):
                x = self.one(member, x, places, apart + group * self.period + place)
        for place, layer in enumerate(self.last):
            x = self.one(layer, x, places, self.num_layers - len(self.last) + place)
        normed: Tensor = self.norm(x)
        return normed

    def one(self, layer: nn.Module, x: Tensor, places: Places, number: int) -> Tensor:
        local = places.local if self.local[number] else None
        result: Tensor = layer(x, places, places.mask if local is None else local)
        return result


class LanguageHead(nn.Module):
    def __init__(self, config: Mapping[str, Any], body: Body) -> None:
        super().__init__()
        assert isinstance(body, Decoder)
        self.out = nn.Linear(body.hidden, body.words.num_embeddings, bias=False)
        if body.is_tied:
            self.out.weight = body.words.weight
        self.cap = number(config, "final_logit_softcapping", LOGIT_CAP) if body.is_capped else None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(x)
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def family(ending: str) -> Family:
    """Architectures that are decoders of this kind and whose language models are called so: all but those with a module of their own."""
    others = "bert", "gpt2", "opt"
    own = [name for name, entry in architectures().items() if entry.read.__module__.rpartition(".")[2] not in others]
    read_as = {name.removesuffix(ending): name for name in own if name.endswith(ending)}
    heads = {ending: Head(build=LanguageHead), **DECODER_HEADS}
    return Family(prefixes=tuple(read_as), heads=heads, body=Decoder, read_as=read_as)


FAMILIES = tuple(family(ending) for ending in ("ForConditionalGeneration", "ForCausalLM"))
