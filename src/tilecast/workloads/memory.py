"""What one GPU must hold: its share of the weights, the KV cache of the batch, activations, and what the engine keeps for itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilecast.dtypes import dtype, quantisation
from tilecast.workloads.graph import Batch
from tilecast.workloads.model import Experts, GroupedAttention, Layer, ModelConfig, counted
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard

LOGIT_BYTES = 2.0 + 4.0  # of one logit: as computed, and the fp32 copy that sampling works on
MOE_CHUNK = 65_536  # tokens that fused expert kernels take at once; their intermediates are no longer than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU at the fullest moment: the whole batch at its full length."""

    weights_bytes: int
    kv_cache_bytes: int
    activations_bytes: int
    reserved_bytes: int  # context, communication buffers, captured graphs
    capacity_bytes: int
    largest_batch: int | None = None  # requests of the asked lengths; None: they differ
    largest_context: int | None = None  # tokens of each of the asked number of requests
    would_fit: tuple[Mapping[str, Any], ...] = ()  # other choices that would, where this one does not

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.activations_bytes + self.reserved_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    @property
    def missing_bytes(self) -> int:
        return max(0, self.total_bytes - self.capacity_bytes)

    def to_dict(self) -> dict[str, Any]:
        parts = (
            "weights_bytes", "kv_cache_bytes", "activations_bytes", "reserved_bytes", "total_bytes", "capacity_bytes", "missing_bytes",
            "largest_batch", "largest_context",
        )  # fmt: skip
        return {name: getattr(self, name) for name in parts} | {"would_fit": [dict(choice) for choice in self.would_fit]}


def weights_bytes(config: ModelConfig, operations: Iterable[Operation]) -> int:
    """Sums over what a step's operations hold, each in its own format."""
    held = (op.num_weights * op.count * quantisation(op.held or config.dtype).weight.bytes for op in operations if op.num_weights)
    return round(sum(held))


def kv_cache_bytes(kinds: Iterable[tuple[Layer, int]], shard: Shard, batch: Batch, kv_dtype: str, *, drops_outside_window: bool) -> int:
    """A KV head that is copied counts on every GPU that has it; so does a latent, which all heads share."""
    lengths = [asked + given for asked, given in zip(batch.input_tokens, batch.output_tokens, strict=True)]
    whole = sum(lengths)
    elements = 0
    for layer, times in kinds:
        attention, tokens = layer.attention, whole * times
        if attention.window and drops_outside_window:
            tokens = sum(min(length, attention.window) for length in lengths) * times
        if isinstance(attention, GroupedAttention):
            elements += tokens * 2 * shard.kv_heads(attention.num_kv_heads) * attention.head_dim
        else:
            elements += tokens * attention.cached_elements
    return round(elements * dtype(kv_dtype).bytes)


def activations_bytes(config: ModelConfig, shard: Shard, own: int, every: int, num_requests: int) -> int:
    """The widest moment of the prefill: hidden state and residual beside what the widest block holds, or the logits.

    `own` are the prompt tokens of this GPU's requests, `every` those of all data-parallel ranks.
    """
    element = dtype(config.dtype).bytes
    widest = max(
        max(_attention_width(layer, shard) * own, _mlp_elements(config, layer, shard, every)) for layer, _ in counted(config.layers)
    )
    hidden = 2 * config.hidden_size * (every if shard.dp > 1 else own)
    rows = own if config.is_encoder else num_requests
    return round(max((hidden + widest) * element, rows * config.vocab_size * LOGIT_BYTES))


def _attention_width(layer: Layer, shard: Shard) -> int:
    """Elements a token: queries, keys, values and the result; latents are expanded to full heads first."""
    attention = layer.attention
    heads = shard.heads(attention.num_heads)
    if isinstance(attention, GroupedAttention):
        return (2 * heads + 2 * shard.kv_heads(attention.num_kv_heads)) * attention.head_dim
    wide = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    return heads * (2 * wide + 2 * attention.v_head_dim) + attention.cached_elements


def _mlp_elements(config: ModelConfig, layer: Layer, shard: Shard, tokens: int) -> int:
    mlp = layer.mlp
    if isinstance(mlp, Experts):
        shared = 3 * -(-mlp.shared_width // shard.tp) * tokens
        routed = min(tokens, MOE_CHUNK) * mlp.topk * (3 * mlp.width // shard.expert_tp + config.hidden_size)
        return max(shared, routed)
    return (3 if mlp.gated else 2) * -(-mlp.width // shard.tp) * tokens
