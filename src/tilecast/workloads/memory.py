"""What one GPU must hold: its share of the weights, the KV cache of the batch, activations, and what the engine keeps for itself."""

from collections.abc import Iterable
from dataclasses import dataclass

from tilecast.dtypes import dtype
from tilecast.workloads.graph import Batch
from tilecast.workloads.model import ModelConfig
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard

LOGIT_BYTES = 2.0 + 4.0  # of one logit: as computed, and the fp32 copy that sampling works on


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on each GPU at the fullest moment: the whole batch at its full length."""

    weights_bytes: int
    kv_cache_bytes: int
    activations_bytes: int
    reserved_bytes: int  # context, communication buffers, captured graphs
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.activations_bytes + self.reserved_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    def to_dict(self) -> dict[str, int]:
        parts = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "reserved_bytes", "total_bytes", "capacity_bytes")
        return {name: getattr(self, name) for name in parts}


def memory(
    config: ModelConfig,
    shard: Shard,
    operations: Iterable[Operation],
    batch: Batch,
    *,
    kv_dtype: str,
    reserved_bytes: float,
    capacity_bytes: int,
) -> Memory:
    """Sums over what the step's operations hold; a KV head that is copied counts on every GPU that has it."""
    element = dtype(config.dtype).bytes
    tokens = sum(asked + given for asked, given in zip(batch.input_tokens, batch.output_tokens, strict=True))
    kv_per_token = 2 * config.num_layers * shard.num_kv_heads * config.head_dim * dtype(kv_dtype).bytes
    return Memory(
        weights_bytes=round(sum(operation.num_weights * operation.count for operation in operations) * element),
        kv_cache_bytes=round(tokens * kv_per_token),
        activations_bytes=round(_activations_bytes(config, shard, batch, element)),
        reserved_bytes=round(reserved_bytes),
        capacity_bytes=capacity_bytes,
    )


def _activations_bytes(config: ModelConfig, shard: Shard, batch: Batch, element_bytes: float) -> float:
    """The widest moment of the prefill: hidden state and residual beside the MLP's gate, up and product, or the logits."""
    qkv = (2 * shard.num_heads + 2 * shard.num_kv_heads) * config.head_dim
    widest = max(3 * shard.intermediate_size, qkv)
    layer = sum(batch.input_tokens) * (2 * config.hidden_size + widest) * element_bytes
    return max(layer, batch.num_requests * config.vocab_size * LOGIT_BYTES)
