"""The bytes of a training step on many GPUs: of weights as computed with and as kept, and what the fullest of the GPUs holds."""

from dataclasses import dataclass

from tilecast.engines.step_parts import WIDE_BYTES, Keeps, StepMemory
from tilecast.workloads.divided import Divided
from tilecast.workloads.layout import Layout
from tilecast.workloads.opgraph import ITEM_BYTES, OpGraph, TensorShape
from tilecast.workloads.stages import Layers, layers

MOST_ENDS = 2  # tensors of one shape that embeddings and head may have
GATHERS_AHEAD = 2  # unsharded blocks at once: the one that computes and the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Weights of one GPU before they are sharded, of a layer and of the rest: as computed with, as kept, and how many are trained.

    Of a trained one: bytes as computed with, of its gradient as summed and kept, and of what the optimizer keeps for it.
    """

    layer_bytes: float
    rest_bytes: float
    kept_layer_bytes: float
    kept_rest_bytes: float
    trained_layer: float  # of a layer that the backward pass reaches
    trained_rest: float
    number: int
    item: float
    reduced: int
    state_bytes: float

    def kept_bytes(self, num_layers: int, is_end: bool) -> float:
        return self.kept_layer_bytes * num_layers + (self.kept_rest_bytes if is_end else 0.0)

    def trained(self, num_reached: int, is_end: bool) -> float:
        return self.trained_layer * num_reached + (self.trained_rest if is_end else 0.0)


def sizes_of(graph: OpGraph, parts: Layers, *, wide_weights: bool, keeps: Keeps) -> Sizes:
    """`wide_weights`: weights are kept and gradients added in fp32 beside those computed with."""

    def kept(tensor: TensorShape) -> int:
        return tensor.numel * WIDE_BYTES if wide_weights and ITEM_BYTES[tensor.dtype] < WIDE_BYTES else tensor.nbytes

    every = graph.weights
    layer_bytes = sum(tensor.nbytes * (times // parts.number) for tensor, times in every)
    kept_layer = sum(kept(tensor) * (times // parts.number) for tensor, times in every)
    reached = parts.reached
    trained = sum(tensor.numel * _in_each(times, reached, bool(graph.frozen)) for tensor, times in graph.parameters) if reached else 0.0
    name = max(graph.parameters or every, key=lambda entry: entry[0].numel)[0].dtype
    item = ITEM_BYTES[name]
    return Sizes(
        layer_bytes=layer_bytes,
        rest_bytes=graph.weights_bytes - layer_bytes * parts.number,
        kept_layer_bytes=kept_layer,
        kept_rest_bytes=sum(kept(tensor) * times for tensor, times in every) - kept_layer * parts.number,
        trained_layer=trained,
        trained_rest=graph.num_trained - trained * reached,
        number=parts.number,
        item=item,
        reduced=max(WIDE_BYTES, item) if wide_weights else keeps.gradient_bytes(name),
        state_bytes=keeps.states * max(WIDE_BYTES, item) if wide_weights else keeps.state_bytes(name),
    )


def _in_each(times: int, number: int, unequal: bool) -> float:
    """Of `times` equal tensors, how many one of `number` layers has; where only some layers are trained, on average."""
    return times / number if unequal and MOST_ENDS < times < number else times // number


def memory_of(divided: Divided, layout: Layout, size: Sizes, passing_state: float, reserved_bytes: int, capacity_bytes: int) -> StepMemory:
    """The fullest stage. Micro-batches that a stage has begun and not finished keep what their backward pass needs."""
    graph = divided.graph
    parts, live = layers(graph), graph.live_bytes()
    runs = [graph.segments[place] for place in parts.forward]
    gained = sum(segment.repeat * sum(node.allocated_bytes - node.freed_bytes for node in segment.nodes) for segment in runs)
    kept_by_layers = gained / max(1, min(parts.reached, sum(segment.repeat for segment in runs)))
    kept_by_layers = max(0.0, min(kept_by_layers, live["kept"] / max(1, parts.reached)))
    rest = live["kept"] - kept_by_layers * parts.reached
    passing = max(live["forward"], live["loss"], live["backward"]) - live["kept"]
    best: StepMemory | None = None
    training = graph.mode == "training"
    for stage, (num_layers, reached) in enumerate(zip(parts.per_stage(layout.pp), parts.reached_per_stage(layout.pp), strict=True)):
        first, last = stage == 0, stage == layout.pp - 1
        trained = size.trained(reached, last or (first and reached == num_layers)) if training else 0.0
        flying = _in_flight(layout, stage)
        shards = layout.fsdp
        unsharded = (size.layer_bytes * min(GATHERS_AHEAD, num_layers) + size.rest_bytes * (first or last)) if shards > 1 else 0.0
        saved = kept_by_layers * reached * flying + (rest if last else 0.0)
        gradients = trained * size.reduced / (shards * (layout.dp if layout.zero == 2 else 1))
        updated = trained / (shards * (layout.dp if layout.zero else 1))
        held = StepMemory(
            weights_bytes=round(size.kept_bytes(num_layers, first or last) / shards + unsharded),
            gradients_bytes=round(gradients + (size.trained_layer * size.item if shards > 1 and training and reached else 0.0)),
            optimizer_bytes=round(updated * size.state_bytes),
            activations_bytes=round(max(saved + max(0, passing), updated * passing_state)),
            saved_bytes=round(saved),
            buffers_bytes=graph.buffers_bytes + graph.inputs_bytes,
            reserved_bytes=reserved_bytes,
            capacity_bytes=capacity_bytes,
        )
        if best is None or held.total_bytes > best.total_bytes:
            best = held
    assert best is not None
    return best


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
