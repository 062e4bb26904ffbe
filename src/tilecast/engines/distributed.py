"""A training step on many GPUs: what one of them computes, what they tell one another, and which of that hides behind which.

The time line is made of blocks: what comes before the layers, the layers, what comes after them. Each GPU has a stream for kernels and one
for collectives. Sharded weights (fsdp) are gathered a block ahead and gradients scattered behind the backward pass; replicas (dp) add
gradients in buckets during the last backward pass; tensor-parallel sums wait; pipeline stages follow one another and leave bubbles.
`communication_s` is what the step takes longer than the same time line with messages that cost nothing; each phase contains its part of it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilecast.engines.layout_bytes import GATHERS_AHEAD, Sizes
from tilecast.engines.predict import NOTHING, Interval
from tilecast.engines.schedules import Ran, Turn, gpipe, interleaved, one_forward_one_backward, run_in_order
from tilecast.engines.step_parts import (
    BUBBLE,
    ENGINE,
    Collective,
    Priced,
    Span,
    StepPart,
    breakdown,
    idle,
    in_order,
)
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import AllGather, AllReduce, AllToAll, ReduceScatter, SendRecv
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.workloads.aggregate import Price
from tilecast.workloads.divided import Divided
from tilecast.workloads.layout import Layout, Members, members
from tilecast.workloads.opgraph import Node, OpGraph
from tilecast.workloads.stages import Layers, layers

COLLECTIVES: dict[str, Callable[..., Any]] = {kind.family: kind for kind in (AllReduce, AllGather, ReduceScatter, AllToAll, SendRecv)}
BUCKET_BYTES = 25 * 2**20  # PyTorch's DistributedDataParallel, bucket_cap_mb
NVLINK_CHANNELS, OTHER_CHANNELS = 24, 4  # thread blocks, each on an SM of its own, of NCCL's rings over NVLink and over PCIe
HIDDEN_SUM = 0.15  # of a layer's backward pass: the product for a weight's gradient, beside which Megatron adds the input's
NAMES = {"fsdp": "sharded weights", "dp": "replicas", "tp": "tensor parallel", "pp": "stages", "ep": "experts"}


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

    forward: float
    backward: float


NO_TIME = Pass(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one GPU computes of one micro-batch, block by block."""

    front: Pass
    layer: Pass
    back: Pass
    number: int  # of layers
    trains: bool = True  # a layer's backward pass is that of the layers it reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Seconds of messages. Those of sharded weights and of gradients hide behind kernels where they can; the rest makes them wait."""

    gather: float = 0.0  # a layer's weights
    gather_rest: float = 0.0  # those before and after the layers
    scatter: float = 0.0  # a layer's gradients
    scatter_rest: float = 0.0
    copy: Pass = NO_TIME  # a layer's weights out of, and its gradients into, the buffers of collectives
    reduce: float = 0.0  # a layer's gradients over replicas
    reduce_rest: float = 0.0
    wait: Pass = NO_TIME  # tensor-parallel sums and exchanges between experts of a layer
    wait_front: float = 0.0
    wait_back: float = 0.0
    send: float = 0.0
    taken_fraction: float = 0.0
    after: float = 0.0  # weights gathered behind a sharded optimizer


class Exposed(NamedTuple):
    """Seconds of messages that nothing hides, by the phase that waits for them; `after` is behind the optimizer."""

    forward: float
    backward: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A step on many GPUs, without its optimizer."""

    compute_s: float  # forward and backward of all micro-batches, with bubbles, messages free
    exposed_s: Exposed
    busy_s: float  # kernels of one GPU, on average
    collectives: tuple[Collective, ...]
    message_s: Interval  # all messages, hidden or not
    spans: tuple[Span, ...]


# ---- what there is to do ------------------------------------------------------------------------------------------


def work_of(found: Priced, parts: Layers) -> Work:
    """Blocks of a priced graph. A layer that folding left at an end counts as one of the layers."""
    spent = {(place, phase): 0.0 for place in ("front", "layers", "back") for phase in ("forward", "backward")}
    repeats = {"forward": 0, "backward": 0}
    for index, segment in enumerate(found.graph.segments):
        for node in segment.nodes:
            phase = "backward" if node.phase == "backward" else "forward"
            spent[parts.places[index], phase] += segment.repeat * found.node_s(node)
        if parts.places[index] == "layers":
            repeats["backward" if segment.nodes[0].phase == "backward" else "forward"] += segment.repeat
    counted = sum(len(found.places[node]) for node in found.places)
    extra_s = sum(float(time.median_s[0]) for time in found.times[counted:] if time.call.phase == "backward")
    waits = {"forward": found.waits["forward"] + found.waits["loss"], "backward": found.waits["backward"] + extra_s}
    made: dict[str, tuple[float, float, float]] = {}
    for phase, (end, start) in {"forward": ("back", "front"), "backward": ("front", "back")}.items():
        layer = spent["layers", phase] / repeats[phase] if repeats[phase] else 0.0
        number = parts.reached if phase == "backward" else parts.number
        apart = (number - repeats[phase]) * layer
        left = {name: spent[name, phase] for name in (start, end)}
        if not number:  # the backward pass ends before the layers
            left = {start: sum(left.values()) + waits[phase], end: 0.0}
        elif not repeats[phase] or apart > sum(left.values()):  # those left apart do less than the others
            layer, left = (spent["layers", phase] + sum(left.values())) / number, dict.fromkeys(left, 0.0)
        else:
            taken = min(apart, left[end])
            left[end] -= taken
            left[start] = max(0.0, left[start] - (apart - taken))
        made[phase] = left["front"], layer + waits[phase] / number if number else 0.0, left["back"]
    blocks = [Pass(made["forward"][place], made["backward"][place]) for place in range(3)]
    return Work(front=blocks[0], layer=blocks[1], back=blocks[2], number=parts.number, trains=found.graph.mode == "training")


def talk_of(divided: Divided, parts: Layers, size: Sizes, layout: Layout, box: Box, work: Work) -> tuple[Talk, list[Collective], Interval]:
    """What is said in one micro-batch and at the end, with the list of messages of the whole step."""
    said: list[Collective] = []
    total = NOTHING
    micro = layout.micro_batches
    stage_layers = math.ceil(parts.number / layout.pp)
    stage_reached = min(stage_layers, parts.reached) if work.trains else 0

    def tell(group: str, family: str, size_bytes: float, number: float, label: str = "", whole: bool = False) -> float:
        """`whole`: parts of buckets are listed as whole ones, smaller by as much."""
        nonlocal total
        who = members(layout, group, box.node.num_gpus)
        each = box.message(family, size_bytes, who)
        if each.median and number:
            who_named = NAMES["dp" if group == "replicas" else group]
            said.append(
                Collective(
                    name=f"{family} ({label or who_named})", family=family, ranks=who.ranks, per_node=who.per_node,
                    bytes=round(size_bytes * number / math.ceil(number) if whole else size_bytes),
                    number=math.ceil(number) if whole else round(number), total_s=each.median * number,
                )
            )  # fmt: skip
            total = total + each.per(1.0 / number)
        return each.median

    more: dict[str, Any] = {}
    ends = 1 if layout.pp == 1 else 0.5  # on average over stages
    if layout.fsdp > 1:
        more["gather"] = tell("fsdp", "all_gather", size.layer_bytes, (stage_layers + stage_reached) * micro)
        more["gather_rest"] = tell("fsdp", "all_gather", size.rest_bytes, ends * micro)  # the root keeps its weights for backward
        if work.trains:
            for name, elements, number in (("", size.trained_layer, stage_reached), ("_rest", size.trained_rest, ends)):
                more["scatter" + name] = tell("fsdp", "reduce_scatter", elements * size.reduced, number * micro)
                if layout.dp > 1:
                    more["scatter" + name] += tell("dp", "all_reduce", elements * size.reduced / layout.fsdp, number * micro)
        out = box.passed(size.layer_bytes, size.layer_bytes).median
        into = box.passed(size.trained_layer * size.item, size.trained_layer * size.reduced).median if size.trained_layer else 0.0
        more["copy"] = Pass(out, out + into)
    elif layout.dp > 1 and work.trains and size.trained(stage_reached, True) > 0:
        family = "reduce_scatter" if layout.zero else "all_reduce"
        every = size.trained(stage_reached, True) * size.reduced
        bucket = min(BUCKET_BYTES, every)
        # Experts that no other GPU holds have all their tokens' gradients already.
        unique = divided.expert_numel / size.number if layout.ep == layout.replicas else 0.0
        for name, elements, number in (("", max(0.0, size.trained_layer - unique), stage_reached), ("_rest", size.trained_rest, ends)):
            if not elements:
                continue
            buckets = elements * size.reduced / bucket
            copies = 2.0 * box.passed(elements * size.reduced, elements * size.reduced).median  # into the bucket, and back
            more["reduce" + name] = buckets * tell("dp", family, bucket, buckets * number, whole=True) + copies
        if layout.zero:
            more["after"] = tell("dp", "all_gather", every / size.reduced * size.item, 1, "weights of sharded optimizer")
    sums = Pass(divided.sums[0], sum(divided.sums))
    if layout.tp > 1:
        kinds = ("reduce_scatter", "all_gather") if layout.sequence_parallel else ("all_reduce",)
        number = (sums.forward * stage_layers + sums.backward * stage_reached) * micro
        times = [tell("tp", kind, divided.reduced_bytes, number) for kind in kinds]
        one = sum(times)
        hidden = min(one, HIDDEN_SUM * work.layer.backward)
        backward = sums.forward * (one - hidden) + (sums.backward - sums.forward) * one
        more |= {"wait": Pass(sums.forward * one, backward), "wait_front": one, "wait_back": one}
    if divided.exchanges:
        ways = 1.0 + parts.reached / parts.number * work.trains
        each = tell("ep", "all_to_all", divided.exchanged_bytes, 2.0 * ways * divided.exchanges / layout.pp * micro)
        per_layer = 2.0 * each * divided.exchanges / parts.number
        before = more.get("wait", NO_TIME)
        more["wait"] = Pass(before.forward + per_layer, before.backward + per_layer)
    if layout.pp > 1:
        # Interleaved, the last GPU hands a group's result to the first one's next group.
        sent = _ways(parts, layout.pp, work.trains) * (layout.virtual_stages * layout.pp - 1) / layout.pp * micro
        more["send"] = tell("pp", "send_recv", _sent_bytes(divided.graph, parts), sent)
    return Talk(**more, taken_fraction=box.taken_fraction), said, total


def _ways(parts: Layers, stages: int, trains: bool) -> float:
    """Messages over each boundary between stages for a micro-batch: forward, and back where the backward pass reaches the stage before."""
    if stages == 1 or not trains:
        return 1.0
    return 1.0 + sum(reached > 0 for reached in parts.reached_per_stage(stages)[:-1]) / (stages - 1)


def _sent_bytes(graph: OpGraph, parts: Layers) -> int:
    """What a layer hands on."""
    places = parts.forward or {place for place, segment in enumerate(graph.segments) if segment.nodes[0].phase == "forward"}
    last: Node | None = None
    for place in places:
        last = next((node for node in reversed(graph.segments[place].nodes) if not node.is_view and node.phase == "forward"), last)
    return last.outputs[0].nbytes if last is not None and last.outputs else 0


# ---- the time line ------------------------------------------------------------------------------------------------

Record = Callable[[str, str, float, float], None]


def _ignore(track: str, name: str, start_s: float, end_s: float) -> None:
    """Nobody draws it."""


def forward_pass(
    work: Work, talk: Talk, num_layers: int, *, first: bool, last: bool, record: Record = _ignore, start: float = 0.0
) -> float:
    """When the forward pass of one micro-batch ends. At most two layers are gathered at once."""
    shared = talk.gather > 0 or talk.gather_rest > 0
    link = now = start
    if shared and (first or last):
        link += talk.gather_rest
        record("collectives", "gather embeddings and head", start, link)
        now = link
    if first:
        begun, now = now, now + work.front.forward + talk.wait_front
        record("stream", "before the layers", begun, now)
    each = work.layer.forward + talk.wait.forward + talk.copy.forward
    each += talk.taken_fraction * min(talk.gather, work.layer.forward)
    ends = [start, now]
    for layer in range(num_layers):
        if shared:
            begun = max(link, ends[-GATHERS_AHEAD])
            link = begun + talk.gather
            record("collectives", f"gather layer {layer}", begun, link)
        begun = max(now, link) if shared else now
        now = begun + each
        record("stream", f"layer {layer} forward", begun, now)
        ends.append(now)
    if last:
        record("stream", "head and loss", now, now + work.back.forward)
        now += work.back.forward
    return now - start


def backward_pass(
    work: Work, talk: Talk, num_layers: int, *, first: bool, last: bool, reduces: bool, reached: int | None = None,
    record: Record = _ignore, start: float = 0.0,
) -> float:  # fmt: skip
    """When the backward pass ends, with what its last collective takes longer; `reduces`: replicas add their gradients.

    It runs through the last `reached` of the layers [default: all], those before have nothing to train.
    """
    shared = talk.gather > 0 or talk.gather_rest > 0
    stop = 0 if reached is None else num_layers - reached
    link = now = start
    if last:
        now += work.back.backward + talk.wait_back
        record("stream", "head and loss backward", start, now)
    ready = start
    if shared and num_layers > stop:
        link += talk.gather
        ready = link
        record("collectives", f"gather layer {num_layers - 1}", start, link)
    reduce, rest = (talk.reduce, talk.reduce_rest) if reduces else (0.0, 0.0)
    each = work.layer.backward + talk.wait.backward + talk.copy.backward
    beside = talk.gather + talk.scatter + reduce
    each += talk.taken_fraction * min(beside, work.layer.backward)
    for layer in range(num_layers - 1, stop - 1, -1):
        begun = max(now, ready)
        if shared and layer > stop:
            opened = max(link, begun)
            link = ready = opened + talk.gather
            record("collectives", f"gather layer {layer - 1}", opened, link)
        now = begun + each
        record("stream", f"layer {layer} backward", begun, now)
        told = talk.scatter + reduce
        if told:
            opened = max(link, now)
            link = opened + told
            record("collectives", f"gradients of layer {layer}", opened, link)
    if first:
        record("stream", "before the layers, backward", now, now + work.front.backward)
        now += work.front.backward
    told = (talk.scatter_rest + rest) if last or (first and not stop) else 0.0
    if told:
        opened = max(link, now)
        link = opened + told
        record("collectives", "gradients of embeddings and head", opened, link)
    return max(now, link) - start


def whole_step(work: Work, talk: Talk, layout: Layout, parts: Layers) -> float:
    """Forward and backward of all micro-batches over all stages."""
    return sum(both_passes(work, talk, layout, parts))


def both_passes(work: Work, talk: Talk, layout: Layout, parts: Layers) -> Pass:
    """Forward and backward of all micro-batches, along the stage that is done last.

    A stage is done when the first micro-batch has reached it, it has run all of them, and the last gradient has gone back to the first
    stage; interleaved, the way there and back is as many times shorter as a GPU has groups of layers, and there are as many more sends.
    """
    micro, stages, chunks, ways = layout.micro_batches, layout.pp, layout.virtual_stages, _ways(parts, layout.pp, work.trains)
    ahead, ahead_forward, total, total_forward, way_back, ends = 0.0, 0.0, 0.0, 0.0, 0.0, []
    for stage, (num_layers, reached) in enumerate(zip(parts.per_stage(stages), parts.reached_per_stage(stages), strict=True)):
        first, last = stage == 0, stage == stages - 1
        forward = forward_pass(work, talk, num_layers, first=first, last=last)
        backward, summed = (
            backward_pass(work, talk, num_layers, first=first, last=last, reduces=reduces, reached=reached) if work.trains else 0.0
            for reduces in (False, True)
        )
        longer = summed - backward
        sends = talk.send * ((micro - 1) * chunks + chunks - 1) if stages > 1 else 0.0
        done = ahead / chunks + ways * stage * talk.send + micro * (forward + backward) + ways * sends
        if done > total:
            total, total_forward = done, ahead_forward / chunks + stage * talk.send + micro * forward + sends
        ends.append((way_back + stage * talk.send, longer))
        ahead, ahead_forward = ahead + forward + backward, ahead_forward + forward
        way_back += backward / chunks
    whole = max(total, *(total - before + longer for before, longer in ends))
    return Pass(total_forward, whole - total_forward) if work.trains else Pass(whole, 0.0)


def exposed(silent: Pass, spoken: Pass, after: float) -> Exposed:
    """What messages add to each phase. The last stage to be done may be another one with messages than without: no phase gets less."""
    every = max(0.0, sum(spoken) - sum(silent))
    forward = min(every, max(0.0, spoken.forward - silent.forward)) if spoken.backward else every
    return Exposed(forward, every - forward, after)


def spread(found: Priced, divided: Divided, layout: Layout, box: Box, size: Sizes, *, draw: bool = False) -> Spread:
    parts = layers(divided.graph)
    work = work_of(found, parts)
    talk, said, message_s = talk_of(divided, parts, size, layout, box, work)
    silent, spoken = both_passes(work, Talk(), layout, parts), both_passes(work, talk, layout, parts)
    every = sum(work.front) + sum(work.back) + work.number * work.layer.forward + parts.reached * work.layer.backward
    return Spread(
        compute_s=sum(silent),
        exposed_s=exposed(silent, spoken, talk.after),
        busy_s=layout.micro_batches * every / layout.pp,
        collectives=tuple(said),
        message_s=message_s,
        spans=drawn(work, talk, layout, parts) if draw else (),
    )


# ---- how it is shown ----------------------------------------------------------------------------------------------


def parts_of(found: Priced, done: Spread, optimizer: tuple[StepPart, ...], layout: Layout, total_s: float) -> tuple[StepPart, ...]:
    """The breakdown of one GPU, on average over stages: operators, bubbles, and messages by what of them is not hidden."""
    number = layout.micro_batches / layout.pp
    kernels = [part for part in breakdown(found, total_s, dict.fromkeys(found.waits, number)) if part.phase != "optimizer"]
    lines = [*kernels, *optimizer]
    if (bubble := done.compute_s - done.busy_s) > 1e-9 * done.compute_s:
        lines.append(idle("backward", BUBBLE, bubble, total_s))
    all_s = sum(each.total_s for each in done.collectives)
    for each in done.collectives:
        open_s = sum(done.exposed_s) * each.total_s / all_s if all_s else 0.0
        line = replace(idle("communication", each.name, open_s, total_s), family=each.family, launches=each.number, bound_by="link")
        lines.append(line)
    return in_order(lines)


MOST_SPANS = 20_000  # of a trace


def drawn(work: Work, talk: Talk, layout: Layout, parts: Layers) -> tuple[Span, ...]:
    """Spans of one GPU per stage: block by block without stages, else a span for every micro-batch in the order the schedule runs them.

    Of a very long step the first micro-batches.
    """
    spans: list[Span] = []
    chunks = layout.virtual_stages
    shown = min(layout.micro_batches, max(1, MOST_SPANS // (4 * parts.number if layout.pp == 1 else 4 * layout.pp * chunks)))
    if layout.pp == 1:
        now = 0.0
        for micro in range(shown):
            final = micro == layout.micro_batches - 1
            whose = f" of micro-batch {micro}" if layout.micro_batches > 1 else ""

            def record(track: str, name: str, start_s: float, end_s: float, whose: str = whose) -> None:
                spans.append(Span(0, track, name + whose, start_s, end_s))

            now += forward_pass(work, talk, parts.number, first=True, last=True, record=record, start=now)
            if work.trains:
                now += backward_pass(
                    work, talk, parts.number, first=True, last=True, reduces=final, reached=parts.reached, record=record, start=now
                )
        return tuple(spans)
    per_stage = list(zip(parts.per_stage(layout.pp), parts.reached_per_stage(layout.pp), strict=True))
    times = [
        (
            forward_pass(work, talk, num_layers, first=stage == 0, last=stage == layout.pp - 1),
            backward_pass(work, talk, num_layers, first=stage == 0, last=stage == layout.pp - 1, reduces=False, reached=reached),
        )
        for stage, (num_layers, reached) in enumerate(per_stage)
    ]
    ran = [each for each in _in_schedule(layout, times, shown, talk.send) if each.end_s > each.start_s]
    spans = [Span(each.stage, "stream", _name_of(each.turn, chunks), each.start_s, each.end_s) for each in ran]
    sent = [
        Span(each.stage, "collectives", f"send {_name_of(each.turn, chunks)}", each.end_s, each.end_s + talk.send)
        for each in ran
        if talk.send and _is_sent(each, per_stage, chunks)
    ]
    told: list[Span] = []
    for stage, (num_layers, reached) in enumerate(per_stage):
        whole = backward_pass(work, talk, num_layers, first=stage == 0, last=stage == layout.pp - 1, reduces=True, reached=reached)
        open_s = whole - times[stage][1] if work.trains else 0.0
        end_s = max(span.end_s for span in spans if span.stage == stage)
        told += [Span(stage, "collectives", "gradients that nothing hides", end_s, end_s + open_s)] if open_s > 0 else []
    return (*spans, *sent, *told)


def _in_schedule(layout: Layout, times_s: list[tuple[float, float]], micro: int, send_s: float) -> tuple[Ran, ...]:
    """The first `micro` micro-batches; interleaved, whole rounds of them."""
    stages, chunks = layout.pp, layout.virtual_stages
    if chunks > 1:
        return run_in_order(interleaved(stages, max(1, micro // stages) * stages, chunks), times_s, send_s, chunks)
    order = gpipe if layout.schedule == "gpipe" else one_forward_one_backward
    return run_in_order(order(stages, micro), times_s, send_s)


def _name_of(turn: Turn, chunks: int) -> str:
    which = f", group {turn.chunk}" if chunks > 1 else ""
    return f"micro-batch {turn.micro_batch} {'backward' if turn.backward else 'forward'}{which}"


def _is_sent(ran: Ran, per_stage: list[tuple[int, int]], chunks: int) -> bool:
    """Whether another stage waits for it: gradients go back only to stages that train."""
    if not ran.turn.backward:
        return ran.stage + 1 < len(per_stage) or ran.turn.chunk < chunks - 1
    if ran.stage == 0:
        return ran.turn.chunk > 0 and per_stage[-1][1] > 0
    return per_stage[ran.stage - 1][1] > 0


def scaled(base: Interval, seconds: float) -> Interval:
    """`seconds`, as uncertain as `base`."""
    if not base.median:
        return Interval(seconds, seconds, seconds)
    return Interval(seconds, seconds * base.low / base.median, seconds * base.high / base.median)


def split(total_s: float, shares: Mapping[str, Interval]) -> dict[str, Interval]:
    """A time dealt out in proportion to others."""
    whole = sum(each.median for each in shares.values())
    return {name: scaled(each, total_s * each.median / whole if whole else 0.0) for name, each in shares.items()}
