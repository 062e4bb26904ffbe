"""What the GPUs of a training step tell one another: every message of the step, with its size, number and time."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilecast.engines.interval import NOTHING, Interval
from tilecast.engines.layout_bytes import Group, Sizes
from tilecast.engines.step_parts import ENGINE, Collective
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import AllGather, AllReduce, AllToAll, ReduceScatter, SendRecv
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.workloads.aggregate import Price
from tilecast.workloads.divided import Divided, stream_bytes, texts
from tilecast.workloads.layout import Layout, Members, members
from tilecast.workloads.opgraph import OpGraph
from tilecast.workloads.stages import Layers, layers

COLLECTIVES: dict[str, Callable[..., Any]] = {kind.family: kind for kind in (AllReduce, AllGather, ReduceScatter, AllToAll, SendRecv)}
BUCKET_BYTES = 25 * 2**20  # PyTorch's DistributedDataParallel, bucket_cap_mb
# Megatron's, gradients of its own buffers: megatron/core/distributed/distributed_data_parallel.py, weights at least and for every replica.
BUCKET_WEIGHTS, BUCKET_WEIGHTS_PER_REPLICA = 40_000_000, 1_000_000
NVLINK_CHANNELS, OTHER_CHANNELS = 24, 4  # thread blocks, each on an SM of its own, of NCCL's rings over NVLink and over PCIe
HIDDEN_SUM = 0.15  # of a layer's backward pass: a product for a weight's or an input's gradient, beside which Megatron sends and takes
NAMES = {
    "fsdp": "sharded weights", "dp": "replicas", "tp": "tensor parallel", "pp": "stages", "ep": "experts",
    "expert_fsdp": "sharded experts", "expert_dp": "replicas of experts",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Where the GPUs stand, and what a message between them takes."""

    gpu: GpuSpec
    node: NodeSpec
    price: Price
    network_bytes_per_s: float | None = None
    _known: dict[object, Interval] = field(default_factory=dict, repr=False, compare=False)

    def message(self, family: str, size: float, group: Members) -> Interval:
        key = family, round(size), group
        if group.ranks == 1 or size < 1:
            return NOTHING
        if key not in self._known:
            who = Members(2, min(2, group.per_node)) if family == "send_recv" else group
            kernel = COLLECTIVES[family](
                bytes=round(size), num_gpus=who.ranks, gpus_per_node=who.per_node, node=self.node,
                network_bytes_per_s=self.network_bytes_per_s,
            )  # fmt: skip
            self._known[key] = self._interval(kernel)
        return self._known[key]

    def passed(self, read_bytes: float, written_bytes: float) -> Interval:
        """A pass over memory."""
        key = "pass", round(read_bytes), round(written_bytes)
        if key not in self._known:
            self._known[key] = self._interval(MemoryPass(read_bytes=round(read_bytes), written_bytes=max(1, round(written_bytes))))
        return self._known[key]

    def _interval(self, kernel: Any) -> Interval:
        found = self.price(kernel, self.gpu, cache="cold", engine=ENGINE)
        return Interval(float(found.median_s[0]), float(found.low_s[0]), float(found.high_s[0]))

    @property
    def taken_fraction(self) -> float:
        """SMs that a collective takes from the kernels it runs beside."""
        channels = NVLINK_CHANNELS if "nvlink" in self.node.link_kind else OTHER_CHANNELS
        return min(0.5, channels / self.gpu.num_sms)


class Pass(NamedTuple):
    """Seconds of a block, forward and backward."""

    forward_s: float
    backward_s: float


NO_TIME = Pass(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """How long they take. Those of sharded weights and of gradients hide behind kernels where they can; the rest makes them wait."""

    gather_s: float = 0.0  # a layer's weights
    gather_rest_s: float = 0.0  # those before and after the layers
    scatter_s: float = 0.0  # a layer's gradients
    scatter_rest_s: float = 0.0
    copy: Pass = NO_TIME  # a layer's weights out of, and its gradients into, the buffers of collectives
    reduce_s: float = 0.0  # a layer's gradients over replicas
    reduce_rest_s: float = 0.0
    wait: Pass = NO_TIME  # tensor-parallel sums and exchanges between experts of a layer
    wait_front_s: float = 0.0
    wait_back_s: float = 0.0
    send_s: float = 0.0
    taken_fraction: float = 0.0
    updated_s: float = 0.0  # a layer's weights, gathered while the first micro-batch runs: a sharded optimizer updated them
    updated_rest_s: float = 0.0
    after_s: float = 0.0  # the same of all weights at once, behind the optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What decides the messages of one GPU: its layers, of which the backward pass reaches some, and how often it runs them."""

    num_layers: int
    num_reached: int  # none where nothing is trained
    micro_batches: int
    ends: float  # whether embeddings and head are its own; on average over stages
    trains: bool
    layer_backward_s: float


@dataclass(slots=True)
class Listed:
    """The messages of the whole step, as they are found."""

    layout: Layout
    box: Box
    collectives: list[Collective] = field(default_factory=list)
    total_s: Interval = NOTHING

    def each_s(self, group: str, family: str, size_bytes: float, number: float, label: str = "", in_buckets: bool = False) -> float:
        """Seconds of one message; `number` of them join the list. Parts of buckets are listed as whole ones, smaller by as much."""
        who = members(self.layout, group, self.box.node.num_gpus)
        each = self.box.message(family, size_bytes, who)
        if each.median and number:
            self.collectives.append(
                Collective(
                    name=f"{family} ({label or NAMES[group]})", family=family, ranks=who.ranks, per_node=who.per_node,
                    bytes=round(size_bytes * number / math.ceil(number) if in_buckets else size_bytes),
                    number=math.ceil(number) if in_buckets else round(number), total_s=each.median * number,
                )
            )  # fmt: skip
            self.total_s = self.total_s + each.per(1.0 / number)
        return each.median


def messages_of(
    divided: Divided, parts: Layers, size: Sizes, layout: Layout, box: Box, *, trains: bool, layer_backward_s: float
) -> tuple[Messages, Listed]:
    """What is said in one micro-batch and at the end, and the list of messages of the whole step."""
    listed = Listed(layout, box)
    num_layers = math.ceil(parts.number / layout.pp)
    stage = Stage(
        num_layers=num_layers, num_reached=min(num_layers, parts.reached) if trains else 0, micro_batches=layout.micro_batches,
        ends=1 if layout.pp == 1 else 0.5, trains=trains, layer_backward_s=layer_backward_s,
    )  # fmt: skip
    found = Messages(taken_fraction=box.taken_fraction)
    if layout.fsdp > 1:
        found = _of_sharded_weights(found, listed, size, stage)
    elif layout.dp > 1 and trains and size.trained(stage.num_reached, True) > 0:
        found = _of_replicas(found, listed, size, stage)
    if layout.tp > 1:
        found = _of_tensor_sums(found, listed, divided, stage)
    if divided.exchanges:
        found = _of_experts(found, listed, divided, parts, stage)
    if layout.pp > 1:
        found = _of_stages(found, listed, divided, parts, stage)
    return found, listed


def _of_sharded_weights(found: Messages, listed: Listed, size: Sizes, stage: Stage) -> Messages:
    """Weights are gathered for each pass, and gradients scattered, then added over replicas of the shards."""
    micro = stage.micro_batches

    def gathered_s(group: Group, size_bytes: float, number: float) -> float:
        return listed.each_s(group.sharding, "all_gather", size_bytes, number * micro)

    def scattered_s(group: Group, elements: float, number: float) -> float:
        if not stage.trains:
            return 0.0
        each_s = listed.each_s(group.sharding, "reduce_scatter", elements * size.reduced, number * micro)
        return each_s + listed.each_s(group.replication, "all_reduce", elements * size.reduced / group.shards, number * micro)

    gather_s = sum(gathered_s(group, group.layer_bytes, stage.num_layers + stage.num_reached) for group in size.groups)
    gather_rest_s = sum(gathered_s(group, group.rest_bytes, stage.ends) for group in size.groups)  # the root keeps its weights for backward
    copied = [group for group in size.groups if group.is_gathered]
    layer_bytes, trained = sum(group.layer_bytes for group in copied), sum(group.trained_layer for group in copied)
    out_s = listed.box.passed(layer_bytes, layer_bytes).median
    into_s = listed.box.passed(trained * size.item, trained * size.reduced).median if trained else 0.0
    return replace(
        found, gather_s=gather_s, gather_rest_s=gather_rest_s,
        scatter_s=sum(scattered_s(group, group.trained_layer, stage.num_reached) for group in size.groups),
        scatter_rest_s=sum(scattered_s(group, group.trained_rest, stage.ends) for group in size.groups), copy=Pass(out_s, out_s + into_s),
    )  # fmt: skip


def _of_replicas(found: Messages, listed: Listed, size: Sizes, stage: Stage) -> Messages:
    """Gradients are added in buckets; with a sharded optimizer each GPU keeps its part of the sum, and hands its new weights on.

    Of a sharded optimizer, and wide ones of narrow weights, they lie in Megatron's buffers, which are added up as they are.
    Experts that no other GPU holds have all their tokens' gradients already.
    """
    layout = listed.layout
    family = "reduce_scatter" if layout.zero else "all_reduce"
    in_buffers = layout.fsdp == 1 and (layout.zero > 0 or size.reduced > size.item)
    held_by_several = [group for group in size.groups if group.replicas > 1 and group.trained(stage.num_reached, True) > 0]

    def reduced_s(group: Group, elements: float, number: float) -> float:
        if not elements:
            return 0.0
        largest = max(BUCKET_WEIGHTS, BUCKET_WEIGHTS_PER_REPLICA * group.replicas) * size.reduced if in_buffers else BUCKET_BYTES
        bucket_bytes = min(largest, group.trained(stage.num_reached, True) * size.reduced)
        buckets = elements * size.reduced / bucket_bytes
        # Into the bucket, and back, unless products write there.
        copies_s = 0.0 if in_buffers else 2.0 * listed.box.passed(elements * size.reduced, elements * size.reduced).median
        return buckets * listed.each_s(group.replication, family, bucket_bytes, buckets * number, in_buckets=True) + copies_s

    found = replace(
        found, reduce_s=sum(reduced_s(group, group.trained_layer, stage.num_reached) for group in held_by_several),
        reduce_rest_s=sum(reduced_s(group, group.trained_rest, stage.ends) for group in held_by_several),
    )  # fmt: skip
    for group in held_by_several if layout.zero else ():
        every = group.trained(stage.num_reached, True)
        what = f"{'experts' if group is size.experts else 'weights'} of sharded optimizer"
        weights_s = listed.each_s(group.replication, "all_gather", every * size.item, 1, what)
        if not layout.overlap_gather:
            found = replace(found, after_s=found.after_s + weights_s)
            continue
        updated_s, updated_rest_s = (weights_s / every * part for part in (group.trained_layer, group.trained_rest))
        found = replace(found, updated_s=found.updated_s + updated_s, updated_rest_s=found.updated_rest_s + updated_rest_s)
    return found


def _of_tensor_sums(found: Messages, listed: Listed, divided: Divided, stage: Stage) -> Messages:
    """Partial sums are added where a pair of linear layers ends, forward and backward and when a layer runs again.

    With sequence parallelism a sum is a scatter, and tokens are gathered before the next pair (megatron/core/tensor_parallel/layers.py).
    Backwards the gradient is gathered before any product can run; what the first layer of the pair read is gathered once more beside the
    product for its input's gradient, and that gradient scattered beside the one for its weight's.
    """
    forward, again = divided.sums
    backward = forward + again
    number = (forward * stage.num_layers + backward * stage.num_reached) * stage.micro_batches
    beside_s = HIDDEN_SUM * stage.layer_backward_s
    if listed.layout.sequence_parallel:
        once_more = forward * stage.num_reached * stage.micro_batches
        sum_s = listed.each_s("tp", "reduce_scatter", divided.reduced_bytes, number)
        gather_s = listed.each_s("tp", "all_gather", divided.reduced_bytes, number + once_more)
    else:
        sum_s, gather_s = listed.each_s("tp", "all_reduce", divided.reduced_bytes, number), 0.0
    one_s = sum_s + gather_s
    hidden_s = min(sum_s, beside_s) + min(gather_s, beside_s)
    exposed_s = one_s + gather_s - hidden_s + found.taken_fraction * hidden_s
    wait = Pass(forward * one_s, forward * exposed_s + (backward - forward) * one_s)
    return replace(found, wait=wait, wait_front_s=one_s, wait_back_s=one_s)


def _of_experts(found: Messages, listed: Listed, divided: Divided, parts: Layers, stage: Stage) -> Messages:
    """Tokens go to their experts and back, in each pass."""
    passes = 1.0 + parts.reached / parts.number * stage.trains
    number = 2.0 * passes * divided.exchanges / listed.layout.pp * stage.micro_batches
    each_s = listed.each_s("ep", "all_to_all", divided.exchanged_bytes, number)
    per_layer_s = 2.0 * each_s * divided.exchanges / parts.number
    return replace(found, wait=Pass(found.wait.forward_s + per_layer_s, found.wait.backward_s + per_layer_s))


def _of_stages(found: Messages, listed: Listed, divided: Divided, parts: Layers, stage: Stage) -> Messages:
    """What a layer hands on goes to the next stage. Interleaved, the last GPU hands a group's result to the first one's next group.

    Each of the GPUs that share a layer sends its part. With sequence parallelism it has no more; without, all have the same, and those that
    take the parts put them together (Megatron's scatter and gather).
    """
    layout = listed.layout
    boundaries = (layout.virtual_stages * layout.pp - 1) / layout.pp
    number = crossings(parts, layout.pp, stage.trains) * boundaries * stage.micro_batches
    whole_bytes = _sent_bytes(divided.whole, layers(divided.whole))
    send_s = listed.each_s("pp", "send_recv", whole_bytes / layout.tp, number)
    if layout.tp > 1 and not layout.sequence_parallel:
        send_s += listed.each_s("tp", "all_gather", whole_bytes, number, "what stages sent")
    return replace(found, send_s=send_s)


def crossings(parts: Layers, stages: int, trains: bool) -> float:
    """Messages over each boundary between stages for a micro-batch: forward, and back where the backward pass reaches the stage before."""
    if stages == 1 or not trains:
        return 1.0
    return 1.0 + sum(reached > 0 for reached in parts.reached_per_stage(stages)[:-1]) / (stages - 1)


def _sent_bytes(graph: OpGraph, parts: Layers) -> int:
    """What a layer hands on, whole: the residual stream, as wide as the embedding; without one, what its last operator makes."""
    batch, tokens = texts(graph)
    tables = [node.inputs[0].shape for node in graph.segments[0].nodes if node.op == "aten.embedding"]
    places = parts.forward or {place for place, segment in enumerate(graph.segments) if segment.nodes[0].phase == "forward"}
    made = [node for place in sorted(places) for node in graph.segments[place].nodes if node.phase == "forward" and node.outputs]
    if tables:
        numel = batch * tokens * max(tables)[-1]
        if any(tensor.numel == numel for node in made for tensor in node.outputs):
            return stream_bytes(graph, numel)
    last = next((node for node in reversed(made) if not node.is_view), None)
    return last.outputs[0].nbytes if last is not None else 0
