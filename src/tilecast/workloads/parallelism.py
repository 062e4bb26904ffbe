"""Parallelism: what one GPU of a group holds and computes, and the box that the group stands in.

`tp` GPUs share every layer. `dp` of them may split attention by requests instead of by heads (data-parallel attention); experts go whole to
`ep` ranks, and are cut across the tp / ep GPUs of each. `pp` stages hold runs of layers.
"""

from dataclasses import dataclass

from tilecast import hardware, units
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import node_of
from tilecast.workloads.model import Experts, Layer, ModelConfig, counted

MOST_CARDS = 8  # in a box that nobody named
VOCABULARY_STEP = 64  # engines pad the vocabulary to a multiple of it before they share it out
BLOCK = 128  # a side of a block with one scale, which no cut may run through


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """How a model is shared out; sizes of the whole model go in, those of one GPU come out."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    node: NodeSpec | None = None  # the box the group stands in; None: a single GPU

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp

    @property
    def attention_tp(self) -> int:
        return self.tp // self.dp

    @property
    def expert_tp(self) -> int:
        return self.tp // self.ep

    @property
    def hops_between_nodes(self) -> int:
        """Of the pp - 1 hops from stage to stage."""
        if self.node is None or self.num_gpus <= self.node.num_gpus:
            return 0
        return -(-self.pp // (self.node.num_gpus // self.tp)) - 1

    def heads(self, num_heads: int) -> int:
        return num_heads // self.attention_tp

    def kv_heads(self, num_kv_heads: int) -> int:
        """At least one: heads are copied when there are more GPUs than KV heads."""
        return max(1, num_kv_heads // self.attention_tp)

    def mlp_ranks(self, size: int, held: str | None) -> int:
        """That share a dense MLP or a shared expert: all of them, but none where each has requests of its own and the width cannot be cut
        (SGLang's moe-dense-tp-size 1; vLLM's data-parallel ranks)."""
        return 1 if self.dp == self.tp and not _can_cut(size, self.tp, held) else self.tp

    def vocabulary(self, size: int, ranks: int) -> int:
        padded = -(-size // VOCABULARY_STEP) * VOCABULARY_STEP if ranks > 1 else size
        return -(-padded // ranks)

    def stage(self, layers: tuple[Layer, ...], number: int) -> tuple[Layer, ...]:
        """As SGLang deals them out: what does not divide goes, a layer each, to the last stages."""
        each, extra = divmod(len(layers), self.pp)
        sizes = [each + (rank >= self.pp - extra) for rank in range(self.pp)]
        start = sum(sizes[:number])
        return layers[start : start + sizes[number]]


def sharded(config: ModelConfig, tp: int, node: NodeSpec | None = None, *, pp: int = 1, ep: int = 1, dp: int = 1) -> Shard:
    """Column-parallel projections split by heads and by the MLP's width, row-parallel ones the same way back."""
    tp, pp, ep, dp = (units.whole(name, value) for name, value in (("tp", tp), ("pp", pp), ("ep", ep), ("dp_attention", dp)))
    for name, value in (("ep", ep), ("dp_attention", dp)):
        if tp % value:
            raise InvalidInput(f"{name} = {value} must divide tp = {tp}: its groups are made of the same GPUs")
    if pp > config.num_layers:
        raise InvalidInput(f"pp = {pp} is more stages than {config.name} has layers: {config.num_layers}")
    shard = Shard(tp=tp, pp=pp, ep=ep, dp=dp, node=node)
    for layer, _ in counted(config.layers):
        _check(config, layer, shard)
    return shard


def _check(config: ModelConfig, layer: Layer, shard: Shard) -> None:
    heads = layer.attention.num_heads
    ranks, mlp = shard.attention_tp, layer.mlp
    said = f"tp = {shard.tp}" + (f" over dp_attention = {shard.dp}" if shard.dp > 1 else "")
    if heads % ranks:
        raise InvalidInput(f"{said} does not divide the attention heads of {config.name}: {heads}; it must be one of {_divisors(heads)}")
    kv_heads = getattr(layer.attention, "num_kv_heads", ranks)
    if kv_heads % ranks and ranks % kv_heads:
        raise InvalidInput(f"{said} neither divides nor is a multiple of the {kv_heads} KV heads of {config.name}")
    if isinstance(mlp, Experts):
        if mlp.num_experts % shard.ep:
            raise InvalidInput(f"ep = {shard.ep} does not divide the experts of {config.name}: {mlp.num_experts}")
        parts = [
            ("width of an expert", mlp.width, shard.expert_tp, config.precision.experts),
            (
                "width of the shared experts",
                mlp.shared_width,
                shard.mlp_ranks(mlp.shared_width, config.precision.shared),
                config.precision.shared,
            ),
        ]
    else:
        if shard.ep > 1 and not any(isinstance(other.mlp, Experts) for other in config.layers):
            raise InvalidInput(f"ep = {shard.ep}: {config.name} has no experts")
        parts = [("MLP width (intermediate_size)", mlp.width, shard.mlp_ranks(mlp.width, config.precision.mlp), config.precision.mlp)]
    for what, size, ways, held in parts:
        if size % ways:
            raise InvalidInput(f"tp = {ways} does not divide the {what} of {config.name}: {size}; it must be one of {_divisors(size)}")
        if held == "fp8_block" and size % (ways * BLOCK) and size:
            raise InvalidInput(
                f"tp = {ways} cuts the {what} of {config.name}, {size}, through a {BLOCK}-wide fp8 block; "
                f"it must be one of {_divisors(size // BLOCK)}" + (", or more experts to a rank with ep" if "expert" in what else "")
            )


def _can_cut(size: int, ways: int, held: str | None) -> bool:
    return size % (ways * (BLOCK if held == "fp8_block" else 1)) == 0


def _divisors(size: int) -> str:
    return ", ".join(str(tp) for tp in range(1, min(size, 64) + 1) if not size % tp)


def node_for(gpu: GpuSpec, num_gpus: int, name: str | None = None, *, pp: int = 1) -> NodeSpec | None:
    """The box that a group of `num_gpus` of `gpu` stands in: the one named, else the catalogue's, else up to 8 on their own link or PCIe.

    Stages may stand in boxes of their own, where those are joined by a network.
    """
    if name is None and num_gpus * pp == 1:
        return None
    node = node_of(gpu, name)
    if name is None and node.num_gpus < num_gpus <= MOST_CARDS:
        node = hardware.default_node(gpu)
    if num_gpus > node.num_gpus:
        more = "; pp puts stages into boxes of their own" if node.network_bytes_per_s is not None else ""
        raise InvalidInput(f"tp = {num_gpus} is more GPUs than {node.id} has: {node.num_gpus}{more}")
    if num_gpus * pp > node.num_gpus and node.network_bytes_per_s is None:
        asked = f"tp = {num_gpus} x pp = {pp}"
        raise InvalidInput(f"{asked} is more GPUs than {node.id} has, {node.num_gpus}, and no network between such boxes is known")
    return node
