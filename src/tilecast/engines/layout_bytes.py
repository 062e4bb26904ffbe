"""The bytes of a training step on many GPUs: of weights as computed with and as kept, and what the fullest of the GPUs holds."""

import itertools
from dataclasses import dataclass
from functools import partial

from tilecast.engines.step_parts import WIDE_BYTES, Keeps, StepMemory
from tilecast.workloads.divided import Divided
from tilecast.workloads.layout import Layout
from tilecast.workloads.opgraph import ITEM_BYTES, OpGraph, TensorShape
from tilecast.workloads.stages import Layers, layers_of

MOST_ENDS = 2  # tensors of one shape that embeddings and head may have
GATHERS_AHEAD = 2  # unsharded blocks at once: the one that computes and the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Weights of one GPU that the same ranks share, before they are sharded, of a layer and of the rest: as computed with, as kept, and how
    many are trained."""

    layer_bytes: float
    rest_bytes: float
    kept_layer_bytes: float
    kept_rest_bytes: float
    trained_layer: float  # of a layer that the backward pass reaches
    trained_rest: float
    shards: int  # ranks among which weights are divided
    replicas: int  # that hold the same shard
    sharding: str  # names of these groups of ranks
    replication: str

    @property
    def is_gathered(self) -> bool:
        """Whether layers compute with a copy: of several shards put together, or of wide weights made narrow."""
        return self.shards > 1 or self.kept_layer_bytes + self.kept_rest_bytes != self.layer_bytes + self.rest_bytes

    def kept_bytes(self, num_layers: int, is_end: bool) -> float:
        return self.kept_layer_bytes * num_layers + (self.kept_rest_bytes if is_end else 0.0)

    def trained(self, num_reached: int, is_end: bool) -> float:
        return self.trained_layer * num_reached + (self.trained_rest if is_end else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The weights of one GPU: those that all data-parallel ranks share, and experts, which only those share that hold the same ones.

    Of a trained one: bytes as computed with, of its gradient as summed and kept, and of what the optimizer keeps for it.
    """

    shared: Group
    experts: Group  # of one that experts are not divided among, nothing
    item: float
    reduced: int
    state_bytes: float

    @property
    def groups(self) -> tuple[Group, Group]:
        return self.shared, self.experts

    def trained(self, num_reached: int, is_end: bool) -> float:
        return sum(group.trained(num_reached, is_end) for group in self.groups)

    def held(self, num_reached: int, is_end: bool, *, by_replicas: bool) -> float:
        """Trained weights in one GPU's shards; `by_replicas`: these divide them too."""
        return sum(
            group.trained(num_reached, is_end) / (group.shards * (group.replicas if by_replicas else 1)) for group in self.groups
        )  # fmt: skip


Weights = tuple[tuple[TensorShape, int], ...]  # tensors, and how many of each


def sizes_of(divided: Divided, parts: Layers, layout: Layout, *, wide_weights: bool, keeps: Keeps) -> Sizes:
    """`wide_weights`: weights are kept and gradients added in fp32 beside those computed with."""
    graph = divided.graph
    size_of = partial(_group, parts=parts, unequal=bool(graph.frozen), wide_weights=wide_weights)
    trained, frozen = without(graph.parameters, divided.experts), without(graph.frozen, divided.frozen_experts)
    name = max(graph.parameters or graph.weights, key=lambda entry: entry[0].numel)[0].dtype
    item = ITEM_BYTES[name]
    return Sizes(
        shared=size_of(trained, frozen, shards=layout.fsdp, replicas=layout.dp, sharding="fsdp", replication="dp"),
        experts=size_of(
            divided.experts, divided.frozen_experts, shards=layout.expert_fsdp, replicas=layout.expert_dp, sharding="expert_fsdp",
            replication="expert_dp",
        ),
        item=item,
        reduced=max(WIDE_BYTES, item) if wide_weights else keeps.gradient_bytes(name),
        state_bytes=keeps.states * max(WIDE_BYTES, item) if wide_weights else keeps.state_bytes(name),
    )  # fmt: skip


def without(weights: Weights, experts: Weights) -> Weights:
    """Weights that are no experts'; of one shape there may be both."""
    left, found = merged(experts), []
    for tensor, times in weights:
        taken = min(times, left.get(tensor, 0))
        found.append((tensor, times - taken))
        left |= {tensor: left.get(tensor, 0) - taken}
    return tuple(found)


def merged(*weights: Weights) -> dict[TensorShape, int]:
    every: dict[TensorShape, int] = {}
    for tensor, times in itertools.chain(*weights):
        every[tensor] = every.get(tensor, 0) + times
    return every


def _group(
    trained: Weights, frozen: Weights, *, parts: Layers, unequal: bool, wide_weights: bool, shards: int, replicas: int, sharding: str,
    replication: str,
) -> Group:  # fmt: skip
    def kept(tensor: TensorShape) -> int:
        return tensor.numel * WIDE_BYTES if wide_weights and ITEM_BYTES[tensor.dtype] < WIDE_BYTES else tensor.nbytes

    every = tuple(merged(trained, frozen).items()) if frozen else trained
    layer_bytes = sum(tensor.nbytes * (times // parts.number) for tensor, times in every)
    kept_layer = sum(kept(tensor) * (times // parts.number) for tensor, times in every)
    reached = parts.reached
    trained_layer = sum(tensor.numel * _in_each(times, reached, unequal) for tensor, times in trained) if reached else 0.0
    return Group(
        layer_bytes=layer_bytes,
        rest_bytes=sum(tensor.nbytes * times for tensor, times in every) - layer_bytes * parts.number,
        kept_layer_bytes=kept_layer,
        kept_rest_bytes=sum(kept(tensor) * times for tensor, times in every) - kept_layer * parts.number,
        trained_layer=trained_layer,
        trained_rest=sum(tensor.numel * times for tensor, times in trained) - trained_layer * reached,
        shards=shards,
        replicas=replicas,
        sharding=sharding,
        replication=replication,
    )


def _in_each(times: int, number: int, unequal: bool) -> float:
    """Of `times` equal tensors, how many one of `number` layers has; where only some layers are trained, on average."""
    return times / number if unequal and MOST_ENDS < times < number else times // number


def memory_of(divided: Divided, layout: Layout, size: Sizes, passing_state: float, reserved_bytes: int, capacity_bytes: int) -> StepMemory:
    """The fullest stage. Micro-batches that a stage has begun and not finished keep what their backward pass needs."""
    graph = divided.graph
    parts, live = layers_of(divided), graph.live_bytes()
    runs = [graph.segments[place] for place in parts.forward]
    gained = sum(segment.repeat * sum(node.allocated_bytes - node.freed_bytes for node in segment.nodes) for segment in runs)
    kept_by_layers = gained / max(1, min(parts.reached, parts.held["forward"]))
    kept_by_layers = max(0.0, min(kept_by_layers, live["kept"] / max(1, parts.reached)))
    rest = live["kept"] - kept_by_layers * parts.reached
    passing = max(0, max(live["forward"], live["loss"], live["backward"]) - live["kept"])
    inside = min(passing, _passing_in_layers(graph, parts)) if parts.forward else passing  # logits are the last stage's
    best: StepMemory | None = None
    training = graph.mode == "training"
    for stage, (num_layers, reached) in enumerate(zip(parts.per_stage(layout.pp), parts.reached_per_stage(layout.pp), strict=True)):
        first, last = stage == 0, stage == layout.pp - 1
        ends = last or (first and reached == num_layers)
        flying = _in_flight(layout, stage)
        gathered = [group for group in size.groups if group.is_gathered]
        ahead = min(GATHERS_AHEAD, num_layers)
        unsharded = sum(group.layer_bytes * ahead + group.rest_bytes * (first or last) for group in gathered)
        whole_gradients = sum(group.trained_layer * size.item for group in gathered) if training and reached else 0.0
        kept = sum(group.kept_bytes(num_layers, first or last) / group.shards for group in size.groups)
        saved = kept_by_layers * reached * flying + (rest if last else 0.0)
        summed, updated = (size.held(reached, ends, by_replicas=layout.zero >= least) if training else 0.0 for least in (2, 1))
        held = StepMemory(
            weights_bytes=round(kept + unsharded),
            gradients_bytes=round(summed * size.reduced + whole_gradients),
            optimizer_bytes=round(updated * size.state_bytes),
            activations_bytes=round(max(saved + (passing if last else inside), updated * passing_state)),
            saved_bytes=round(saved),
            buffers_bytes=graph.buffers_bytes + graph.inputs_bytes,
            reserved_bytes=reserved_bytes,
            capacity_bytes=capacity_bytes,
        )
        if best is None or held.total_bytes > best.total_bytes:
            best = held
    assert best is not None
    return best


def _passing_in_layers(graph: OpGraph, parts: Layers) -> int:
    """What one layer holds at most beside what it keeps, on its way forward or back."""
    most = 0
    for place in parts.forward | parts.backward:
        held = peak = 0
        for node in graph.segments[place].nodes:
            held += node.allocated_bytes
            peak = max(peak, held)
            held -= node.freed_bytes
        most = max(most, peak - max(0, held))
    return most


def _in_flight(layout: Layout, stage: int) -> float:
    """Micro-batches whose forward pass a stage has run and whose backward pass it has not."""
    micro, stages, chunks = layout.micro_batches, layout.pp, layout.virtual_stages
    if stages == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(micro)
    if chunks > 1:
        return min(float(micro), ((chunks - 1) * stages + 2 * (stages - stage - 1) + 1) / chunks)
    return float(min(micro, stages - stage))
