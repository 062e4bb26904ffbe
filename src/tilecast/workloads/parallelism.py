"""Tensor parallelism: what one GPU of the group holds and computes, and the box that the group stands in."""

from dataclasses import dataclass

from tilecast import hardware
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import node_of
from tilecast.workloads.model import ModelConfig

MOST_CARDS = 8  # in a box that nobody named
VOCABULARY_STEP = 64  # engines pad the vocabulary to a multiple of it before they share it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One GPU's share of a model under tensor parallelism."""

    tp: int
    num_heads: int
    num_kv_heads: int  # at least one: heads are copied when there are more GPUs than KV heads
    intermediate_size: int
    vocab_size: int
    node: NodeSpec | None = None  # the box the group stands in; None: a single GPU


def sharded(config: ModelConfig, tp: int, node: NodeSpec | None = None) -> Shard:
    """Column-parallel projections split by heads and by the MLP's width, row-parallel ones the same way back."""
    if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
        raise InvalidInput(f"tp = {tp!r} must be a whole number of at least 1")
    for what, size in (("attention heads", config.num_heads), ("MLP width (intermediate_size)", config.intermediate_size)):
        if size % tp:
            raise InvalidInput(f"tp = {tp} does not divide the {what} of {config.name}: {size}; it must be one of {_divisors(config)}")
    if config.num_kv_heads % tp and tp % config.num_kv_heads:
        raise InvalidInput(f"tp = {tp} neither divides nor is a multiple of the {config.num_kv_heads} KV heads of {config.name}")
    padded = -(-config.vocab_size // VOCABULARY_STEP) * VOCABULARY_STEP if tp > 1 else config.vocab_size
    return Shard(
        tp=tp,
        num_heads=config.num_heads // tp,
        num_kv_heads=max(1, config.num_kv_heads // tp),
        intermediate_size=config.intermediate_size // tp,
        vocab_size=-(-padded // tp),
        node=node,
    )


def _divisors(config: ModelConfig) -> str:
    sizes = (config.num_heads, config.intermediate_size)
    return ", ".join(str(tp) for tp in range(1, config.num_heads + 1) if not any(size % tp for size in sizes))


def node_for(gpu: GpuSpec, num_gpus: int, name: str | None = None) -> NodeSpec | None:
    """The box that `num_gpus` of `gpu` stand in: the one named, else the catalogue's, else up to 8 on their own link or PCIe."""
    if name is None and num_gpus == 1:
        return None
    node = node_of(gpu, name)
    if name is None and node.num_gpus < num_gpus <= MOST_CARDS:
        node = hardware.default_node(gpu)
    if num_gpus > node.num_gpus:
        raise InvalidInput(f"tp = {num_gpus} is more GPUs than {node.id} has: {node.num_gpus}")
    return node
