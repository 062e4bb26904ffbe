"""The operations of a transformer's step on one GPU, block by block: what every architecture here is put together from."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tilecast.workloads.model import Experts, GroupedAttention, LatentAttention, Layer, Mlp, ModelConfig, counted
from tilecast.workloads.operations import Operation, merged
from tilecast.workloads.parallelism import Shard

# Tokens fall on experts by a power law. 1.2 is the exponent with which measured MoE layers of Qwen3-235B were reproduced; perfectly even
# loads would read every expert's weights at small batches and pad least at large ones.
ROUTING = "power_law_1.2"
HIDDEN_AND_RESIDUAL = 2  # tensors that a stage hands on


@lru_cache(maxsize=256)
def decoder_step(config: ModelConfig, shard: Shard, stage: int | None = None) -> tuple[Operation, ...]:
    """One forward pass: of the whole model, stage after stage, or only of one pipeline stage (to see what its GPUs hold)."""
    layers = config.layers if stage is None else shard.stage(config.layers, stage)
    is_first, is_last = stage in (None, 0), stage in (None, shard.pp - 1)
    operations = [
        *(embedding(config, shard) if is_first else ()),
        *(replace(op, count=op.count * times) for layer, times in counted(layers) for op in layer_step(config, layer, shard)),
        *(stage_ends(config, shard) if stage is None else ()),
        *((*norm(config, "final_norm"), *head(config, shard)) if is_last else ()),
    ]  # fmt: skip
    return merged(operations)


def layer_step(config: ModelConfig, layer: Layer, shard: Shard) -> Iterator[Operation]:
    yield from norm(config, "input_norm", follows_reduce=not layer.sandwich)
    if isinstance(layer.attention, LatentAttention):
        yield from latent_attention(config, layer.attention, shard)
    else:
        yield from grouped_attention(config, layer.attention, shard)
    if layer.sandwich:
        yield from norm(config, "post_attention_norm", residual=False)
        yield from norm(config, "pre_feedforward_norm")
    else:
        yield from norm(config, "post_attention_norm", follows_reduce=True)
    if isinstance(layer.mlp, Experts) or _is_cut(config, layer.mlp, shard):
        yield from gathered(config, shard, "hidden_gather")
    yield from experts(config, layer.mlp, shard) if isinstance(layer.mlp, Experts) else mlp(config, layer.mlp, shard)
    if layer.sandwich:
        yield from norm(config, "post_feedforward_norm", residual=False)


def stage_ends(config: ModelConfig, shard: Shard) -> Iterator[Operation]:
    """Every rank of a stage sends its part of the hidden state to the next one, which puts the parts together again."""
    cols = HIDDEN_AND_RESIDUAL * config.hidden_size
    outside = shard.hops_between_nodes
    for name, hops in (("stage_send", shard.pp - 1 - outside), ("stage_send_network", outside)):
        if hops:
            sizes = {"cols": -(-cols // shard.tp), "gpus_per_node": 1 if name.endswith("network") else 2}
            yield Operation(name=name, family="send_recv", sizes=sizes, count=hops)
    if shard.pp > 1 and shard.tp > 1:
        yield Operation(name="stage_all_gather", family="all_gather", sizes={"cols": cols}, count=shard.pp - 1)


# ---- ends of the model -------------------------------------------------------------------------------------------


def embedding(config: ModelConfig, shard: Shard) -> Iterator[Operation]:
    hidden, width = config.hidden_size, config.embedding_width or config.hidden_size
    rows = shard.vocabulary(config.vocab_size, shard.attention_tp)
    yield Operation(name="embedding", family="embedding", sizes={"cols": width, "vocab_size": rows}, num_weights=rows * width)
    yield from reduced(shard, width, "embedding_all_reduce", shard.attention_tp)
    for name, table in (("position_embedding", config.num_positions), ("type_embedding", config.num_types)):
        if table:
            yield Operation(name=name, family="embedding", sizes={"cols": hidden, "vocab_size": table}, num_weights=table * hidden)
            yield elementwise(f"{name}_add", "add", hidden)
    if width != hidden:
        yield linear("embedding_proj_in", hidden, width)
    if config.scales_embedding:
        yield elementwise("embedding_scale", "mulu", hidden)


def head(config: ModelConfig, shard: Shard) -> Iterator[Operation]:
    """The head over this GPU's part of the vocabulary, the whole rows of logits gathered, and one token drawn from each."""
    hidden, width = config.hidden_size, config.embedding_width or config.hidden_size
    rows = shard.vocabulary(config.vocab_size, shard.tp)
    each = "token" if config.is_encoder else "request"
    per = f"every_{each}" if shard.dp > 1 else each
    if shard.dp > 1:
        yield Operation(name="head_gather", family="all_gather", sizes={"cols": hidden}, per=per)
    if config.is_encoder:
        yield linear("head_transform", hidden, hidden, bias=True)
        yield elementwise("head_gelu", "gelu", hidden)
        yield Operation(name="head_norm", family="layer_norm", sizes={"cols": hidden}, num_weights=2 * hidden)
    if width != hidden:
        yield linear("embedding_proj_out", width, hidden, per=each)
    weights = (0 if config.tied_embeddings else rows * width) + (rows if config.is_encoder else 0)
    yield linear("lm_head", rows, width, per=per, bias=config.is_encoder, num_weights=weights)
    if shard.tp > 1:
        yield Operation(name="logits_all_gather", family="all_gather", sizes={"cols": rows * shard.tp}, per=per)
    if config.soft_cap:
        yield elementwise("logits_soft_cap", "tanh", config.vocab_size, per=each)
    if not config.is_encoder:
        yield Operation(name="sampling", family="sampling", sizes={"cols": config.vocab_size}, per="request")


# ---- attention ---------------------------------------------------------------------------------------------------


def grouped_attention(config: ModelConfig, attention: GroupedAttention, shard: Shard) -> Iterator[Operation]:
    hidden, dim, precision = config.hidden_size, attention.head_dim, config.precision
    heads, kv_heads = shard.heads(attention.num_heads), shard.kv_heads(attention.num_kv_heads)
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim}
    yield linear("qkv_proj", (heads + 2 * kv_heads) * dim, hidden, held=precision.qkv, bias=attention.qkv_bias)
    yield from _qk_norms(attention, shard)
    if attention.rope:
        yield Operation(name="rope", family="rope", sizes=sizes)
    if attention.scales_queries:
        yield elementwise("query_scale", "mulu", heads * dim)
    if not config.is_encoder:
        yield Operation(name="kv_cache_write", family="kv_cache_write", sizes={"num_kv_heads": kv_heads, "head_dim": dim})
    shape = {**sizes, "window": attention.window, "sinks": attention.sinks} if attention.window or attention.sinks else sizes
    yield Operation(
        name="sliding_attention" if attention.window else "attention", family="attention",
        sizes=shape if attention.causal else {**shape, "causal": False}, num_weights=heads if attention.sinks else 0,
    )  # fmt: skip
    yield linear("o_proj", hidden, heads * dim, held=precision.o, bias=attention.o_bias)
    yield from attention_reduced(config, shard)


def _qk_norms(attention: GroupedAttention, shard: Shard) -> Iterator[Operation]:
    heads = {"q_norm": shard.heads(attention.num_heads), "k_norm": shard.kv_heads(attention.num_kv_heads)}
    if attention.qk_norm == "head":
        dim = attention.head_dim
        for name, rows in heads.items():
            weights = dim if attention.qk_norm_weights else 0
            yield Operation(name=name, family="rms_norm", sizes={"cols": dim, "residual": False}, rows_each=rows, num_weights=weights)
    elif attention.qk_norm == "layer":
        for name, rows in heads.items():
            cols = rows * attention.head_dim
            yield Operation(name=name, family="rms_norm", sizes={"cols": cols, "residual": False}, num_weights=cols)
        yield from reduced(shard, 4, "qk_norm_all_reduce", shard.attention_tp)  # two fp32 sums a token


def latent_attention(config: ModelConfig, attention: LatentAttention, shard: Shard) -> Iterator[Operation]:
    """Prefill expands keys and values; decode works on the latents, with the expansion absorbed into queries and results."""
    hidden, latent, rotated = config.hidden_size, attention.kv_lora_rank, attention.qk_rope_head_dim
    heads, held = shard.heads(attention.num_heads), config.precision.qkv
    nope, value, q_rank = attention.qk_nope_head_dim, attention.v_head_dim, attention.q_lora_rank
    if q_rank is None:
        yield linear("q_proj", heads * (nope + rotated), hidden, held=held)
        yield linear("kv_a_proj", latent + rotated, hidden, held=held)
    else:
        yield linear("qkv_a_proj", q_rank + latent + rotated, hidden, held=held)
        yield Operation(name="q_a_norm", family="rms_norm", sizes={"cols": q_rank, "residual": False}, num_weights=q_rank)
    yield Operation(name="kv_a_norm", family="rms_norm", sizes={"cols": latent, "residual": False}, num_weights=latent)
    if q_rank is not None:
        yield linear("q_b_proj", heads * (nope + rotated), q_rank, held=held)
    yield Operation(name="rope", family="rope", sizes={"num_heads": heads, "num_kv_heads": 1, "head_dim": rotated})
    # The cache takes one latent a token; the kernel counts keys and values, half of it each.
    yield Operation(name="kv_cache_write", family="kv_cache_write", sizes={"num_kv_heads": 1, "head_dim": (latent + rotated) // 2})
    sizes = {
        "num_heads": heads, "kv_lora_rank": latent, "qk_nope_head_dim": nope, "qk_rope_head_dim": rotated, "v_head_dim": value,
    }  # fmt: skip
    yield linear("kv_b_proj", heads * (nope + value), latent, held=held, phase="prefill")
    yield elementwise("key_concat", "copy", heads * (nope + rotated), phase="prefill")
    yield Operation(name="q_absorb", family="gemm", sizes={"n": latent, "k": nope, "batch": heads}, phase="decode")
    yield Operation(name="attention", family="mla", sizes=sizes)
    yield Operation(name="v_absorb", family="gemm", sizes={"n": value, "k": latent, "batch": heads}, phase="decode")
    yield linear("o_proj", hidden, heads * value, held=config.precision.o)
    yield from attention_reduced(config, shard)


def attention_reduced(config: ModelConfig, shard: Shard) -> Iterator[Operation]:
    yield from reduced(shard, config.hidden_size, "attention_all_reduce", shard.attention_tp)


def gathered(config: ModelConfig, shard: Shard, name: str) -> Iterator[Operation]:
    """Tokens of all data-parallel ranks on every GPU: zero-padded and summed while prefilling, gathered while decoding."""
    if shard.dp > 1:
        for phase, family in (("prefill", "all_reduce"), ("decode", "all_gather")):
            yield Operation(name=name, family=family, sizes={"cols": config.hidden_size}, per="every_token", phase=phase)


# ---- MLP and experts ---------------------------------------------------------------------------------------------


def mlp(config: ModelConfig, part: Mlp, shard: Shard) -> Iterator[Operation]:
    yield from _mlp(config, part, shard, "", config.precision.mlp)
    if _is_cut(config, part, shard):
        yield from mlp_reduced(config, shard, "mlp_all_reduce")


def _is_cut(config: ModelConfig, part: Mlp, shard: Shard) -> bool:
    return shard.mlp_ranks(part.width, config.precision.mlp) == shard.tp


def _mlp(config: ModelConfig, part: Mlp, shard: Shard, prefix: str, held: str | None, role: str | None = None) -> Iterator[Operation]:
    ranks = shard.mlp_ranks(part.width, held)
    hidden, width = config.hidden_size, part.width // ranks
    per = "every_token" if shard.dp > 1 and ranks > 1 else "token"
    up = ("gate_up_proj", 2 * width) if part.gated else ("up_proj", width)
    yield linear(f"{prefix}{up[0]}", up[1], hidden, held=held, bias=part.bias, per=per, role=role)
    if part.gated:
        yield Operation(name=f"{prefix}{part.activation}_mul", family="silu_mul", sizes={"cols": width}, per=per, role=role)
    else:
        yield elementwise(f"{prefix}{part.activation}", part.activation, width, per=per, role=role)
    yield linear(f"{prefix}down_proj", hidden, width, held=held, bias=part.bias, per=per, role=role)


def experts(config: ModelConfig, part: Experts, shard: Shard) -> Iterator[Operation]:
    """Router, choice, two grouped products over the experts of this rank, and the shared expert beside them."""
    hidden, per = config.hidden_size, "every_token" if shard.dp > 1 else "token"
    extra = part.num_experts * (part.bias + part.correction_bias)
    yield linear("router", part.num_experts, hidden, per=per, num_weights=part.num_experts * hidden + extra)
    yield Operation(name="expert_topk", family="softmax", sizes={"cols": part.num_experts}, per=per)
    if part.shared_width:
        shared = Mlp(width=part.shared_width)
        yield from _mlp(config, shared, shard, "shared_", config.precision.shared, role="shared_expert")
        beside = per if shard.mlp_ranks(part.shared_width, config.precision.shared) > 1 else "token"
        if part.shared_gate:
            yield linear("shared_gate", 1, hidden, per=beside, role="shared_expert")
            yield elementwise("shared_gate_mul", "mulu", hidden, per=beside, role="shared_expert")
    on_rank, width = part.num_experts // shard.ep, part.width // shard.expert_tp
    sizes = {
        "hidden_size": hidden, "inter_size": part.width, "num_experts": part.num_experts, "topk": part.topk, "tp": shard.expert_tp,
        "ep": shard.ep, "distribution": ROUTING,
    }  # fmt: skip
    weights = on_rank * (3 * width * hidden + (2 * width + hidden if part.bias else 0))
    yield Operation(name="experts", family="moe", sizes=sizes, per=per, num_weights=weights, held=config.precision.experts)
    if part.shared_width:
        yield elementwise("shared_add", "add", hidden, per=beside, role="shared_expert")
    yield from mlp_reduced(config, shard, "experts_all_reduce")


def mlp_reduced(config: ModelConfig, shard: Shard, name: str) -> Iterator[Operation]:
    if shard.dp == 1:
        yield from reduced(shard, config.hidden_size, name, shard.tp)
        return
    for phase, family in (("prefill", "all_reduce"), ("decode", "reduce_scatter")):
        yield Operation(name=name, family=family, sizes={"cols": config.hidden_size}, per="every_token", phase=phase)


# ---- pieces ------------------------------------------------------------------------------------------------------


def norm(config: ModelConfig, name: str, *, residual: bool = True, follows_reduce: bool = False) -> Iterator[Operation]:
    """RMSNorm takes the residual's sum with it; LayerNorm leaves it to a kernel of its own."""
    hidden = config.hidden_size
    role = "norm_after_reduce" if follows_reduce else None
    if config.norm == "rms_norm":
        yield Operation(name=name, family="rms_norm", sizes={"cols": hidden, "residual": residual}, num_weights=hidden, role=role)
        return
    if residual:
        yield elementwise(f"{name}_residual", "residual_add", hidden)
    yield Operation(name=name, family="layer_norm", sizes={"cols": hidden}, num_weights=2 * hidden)


def linear(
    name: str, n: int, k: int, *, held: str | None = None, bias: bool = False, per: str = "token", num_weights: int | None = None,
    phase: str | None = None, role: str | None = None,
) -> Operation:  # fmt: skip
    weights = n * k + (n if bias else 0) if num_weights is None else num_weights
    sizes = {"n": n, "k": k, "bias": bias}
    return Operation(name=name, family="gemm", sizes=sizes, per=per, num_weights=weights, held=held, phase=phase, role=role)


def elementwise(name: str, op: str, cols: int, *, per: str = "token", phase: str | None = None, role: str | None = None) -> Operation:
    return Operation(name=name, family="elementwise", sizes={"op": op, "cols": cols}, per=per, phase=phase, role=role)


def reduced(shard: Shard, cols: int, name: str, ranks: int) -> Iterator[Operation]:
    """The sum over a group after a row-parallel product; nothing on a single GPU."""
    if ranks > 1:
        yield Operation(name=name, family="all_reduce", sizes={"cols": cols} if ranks == shard.tp else {"cols": cols, "num_gpus": ranks})
