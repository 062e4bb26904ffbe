"""A training step on many GPUs: what one of them computes, what they tell one another, and which of that hides behind which.

The time line is made of blocks: what comes before the layers, the layers, what comes after them. Each GPU has a stream for kernels and one
for collectives. Sharded weights (fsdp) are gathered a block ahead and gradients scattered behind the backward pass; replicas (dp) add
gradients in buckets as soon as these are whole: during the last backward pass of a group of layers and, where groups are interleaved,
during the passes of the groups behind it. Weights that a sharded optimizer updated are gathered while the next step's first pass runs.
Tensor-parallel sums wait; pipeline stages follow one another and leave bubbles.
`communication_s` is what the step takes longer than the same time line with messages that cost nothing; each phase contains its part of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from tilecast.engines.interval import Interval
from tilecast.engines.layout_bytes import GATHERS_AHEAD, Sizes
from tilecast.engines.messages import Box, Messages, Pass, crossings, messages_of
from tilecast.engines.schedules import Ran, Turn, gpipe, interleaved, one_forward_one_backward, run_in_order
from tilecast.engines.step_parts import (
    BUBBLE,
    Collective,
    Priced,
    Span,
    StepPart,
    breakdown,
    idle,
    in_order,
)
from tilecast.workloads.divided import Divided
from tilecast.workloads.layout import Layout
from tilecast.workloads.stages import Layers, layers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one GPU computes of one micro-batch, block by block."""

    front: Pass
    layer: Pass
    back: Pass
    number: int  # of layers
    trains: bool = True  # a layer's backward pass is that of the layers it reaches


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
    for index, segment in enumerate(found.graph.segments):
        for node in segment.nodes:
            phase = "backward" if node.phase == "backward" else "forward"
            spent[parts.places[index], phase] += segment.repeat * found.node_s(node)
    counted = sum(len(found.places[node]) for node in found.places)
    extra_s = sum(float(time.median_s[0]) for time in found.times[counted:] if time.call.phase == "backward")
    waits = {"forward": found.waits["forward"] + found.waits["loss"], "backward": found.waits["backward"] + extra_s}
    made: dict[str, tuple[float, float, float]] = {}
    for phase, (end, start) in {"forward": ("back", "front"), "backward": ("front", "back")}.items():
        held = parts.held[phase]
        layer = spent["layers", phase] / held if held else 0.0
        number = parts.reached if phase == "backward" else parts.number
        apart = (number - held) * layer
        left = {name: spent[name, phase] for name in (start, end)}
        if not number:  # the backward pass ends before the layers
            left = {start: sum(left.values()) + waits[phase], end: 0.0}
        elif not held or apart > sum(left.values()):  # those left apart do less than the others
            layer, left = (spent["layers", phase] + sum(left.values())) / number, dict.fromkeys(left, 0.0)
        else:
            taken = min(apart, left[end])
            left[end] -= taken
            left[start] = max(0.0, left[start] - (apart - taken))
        made[phase] = left["front"], layer + waits[phase] / number if number else 0.0, left["back"]
    blocks = [Pass(made["forward"][place], made["backward"][place]) for place in range(3)]
    return Work(front=blocks[0], layer=blocks[1], back=blocks[2], number=parts.number, trains=found.graph.mode == "training")


# ---- the time line ------------------------------------------------------------------------------------------------

Record = Callable[[str, str, float, float], None]


def _ignore(track: str, name: str, start_s: float, end_s: float) -> None:
    """Nobody draws it."""


class Ends(NamedTuple):
    """When the kernels of a GPU are done, and when its collectives are."""

    stream_s: float
    link_s: float


def forward_pass(
    work: Work, messages: Messages, num_layers: int, *, first: bool, last: bool, updates: bool = False, reached: int | None = None,
    record: Record = _ignore, start: float = 0.0,
) -> float:  # fmt: skip
    """When the forward pass of one micro-batch ends. At most two layers are gathered at once.

    `updates`: it is the step's first, and weights that a sharded optimizer updated, of the last `reached` layers, are gathered meanwhile.
    """
    ends = _forward(
        work, messages, num_layers, first=first, last=last, updates=updates, reached=reached, record=record, start=Ends(start, start)
    )
    return ends.stream_s - start


def _forward(
    work: Work, messages: Messages, num_layers: int, *, first: bool, last: bool, updates: bool, reached: int | None, record: Record,
    start: Ends,
) -> Ends:  # fmt: skip
    shared = messages.gather_s > 0 or messages.gather_rest_s > 0
    stop = 0 if reached is None else num_layers - reached
    updated, updated_rest = (messages.updated_s, messages.updated_rest_s) if updates else (0.0, 0.0)
    now, link = start
    if shared and (first or last):
        opened, link = link, link + messages.gather_rest_s
        record("collectives", "gather embeddings and head", opened, link)
        now = link
    if first:
        if updated_rest:
            opened, link = link, link + updated_rest
            record("collectives", "gather updated embeddings and head", opened, link)
            now = max(now, link)
        begun, now = now, now + work.front.forward_s + messages.wait_front_s
        record("stream", "before the layers", begun, now)
    each = work.layer.forward_s + messages.wait.forward_s + messages.copy.forward_s
    each += messages.taken_fraction * min(messages.gather_s + updated, work.layer.forward_s)
    ends = [start.stream_s, now]
    for layer in range(num_layers):
        if shared:
            opened = max(link, ends[-GATHERS_AHEAD])
            link = opened + messages.gather_s
            record("collectives", f"gather layer {layer}", opened, link)
        if updated and layer >= stop:
            opened, link = link, link + updated
            record("collectives", f"gather updated layer {layer}", opened, link)
        begun = max(now, link) if shared or updated else now
        now = begun + each
        record("stream", f"layer {layer} forward", begun, now)
        ends.append(now)
    if last:
        if updated_rest and not first:
            opened, link = link, link + updated_rest
            record("collectives", "gather updated embeddings and head", opened, link)
            now = max(now, link)
        record("stream", "head and loss", now, now + work.back.forward_s)
        now += work.back.forward_s
    return Ends(now, link)


def backward_pass(
    work: Work, messages: Messages, num_layers: int, *, first: bool, last: bool, reduces: bool, reached: int | None = None,
    record: Record = _ignore, start: float = 0.0,
) -> float:  # fmt: skip
    """When the backward pass ends, with what its last collective takes longer; `reduces`: replicas add their gradients.

    It runs through the last `reached` of the layers [default: all], those before have nothing to train.
    """
    ends = _backward(
        work, messages, num_layers, first=first, last=last, reduces=reduces, reached=reached, record=record, start=Ends(start, start)
    )
    return max(ends) - start


def _backward(
    work: Work, messages: Messages, num_layers: int, *, first: bool, last: bool, reduces: bool, reached: int | None, record: Record,
    start: Ends,
) -> Ends:  # fmt: skip
    shared = messages.gather_s > 0 or messages.gather_rest_s > 0
    stop = 0 if reached is None else num_layers - reached
    now, link = start
    if last:
        now += work.back.backward_s + messages.wait_back_s
        record("stream", "head and loss backward", start.stream_s, now)
    ready = start.stream_s
    if shared and num_layers > stop:
        opened, link = link, link + messages.gather_s
        ready = link
        record("collectives", f"gather layer {num_layers - 1}", opened, link)
    reduce, rest = (messages.reduce_s, messages.reduce_rest_s) if reduces else (0.0, 0.0)
    each = work.layer.backward_s + messages.wait.backward_s + messages.copy.backward_s
    beside = messages.gather_s + messages.scatter_s + reduce
    each += messages.taken_fraction * min(beside, work.layer.backward_s)
    for layer in range(num_layers - 1, stop - 1, -1):
        begun = max(now, ready)
        if shared and layer > stop:
            opened = max(link, begun)
            link = ready = opened + messages.gather_s
            record("collectives", f"gather layer {layer - 1}", opened, link)
        now = begun + each
        record("stream", f"layer {layer} backward", begun, now)
        told = messages.scatter_s + reduce
        if told:
            opened = max(link, now)
            link = opened + told
            record("collectives", f"gradients of layer {layer}", opened, link)
    if first:
        record("stream", "before the layers, backward", now, now + work.front.backward_s)
        now += work.front.backward_s
    told = (messages.scatter_rest_s + rest) if last or (first and not stop) else 0.0
    if told:
        opened = max(link, now)
        link = opened + told
        record("collectives", "gradients of embeddings and head", opened, link)
    return Ends(now, link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The layers of one GPU of a stage, and what is known of its turns."""

    num_layers: int
    reached: int
    first: bool
    last: bool
    groups: int = 1
    in_turn: int = 1  # micro-batches that go through a group before the next one's turn

    def of_groups(self) -> list[tuple[int, int]]:
        """Layers of each group, and how many of them the backward pass reaches: the last."""
        found, before = [], 0
        for group in range(self.groups):
            number = self.num_layers // self.groups + (group < self.num_layers % self.groups)
            before += number
            found.append((number, max(0, min(number, before - (self.num_layers - self.reached)))))
        return found


def held_by_stages(layout: Layout, parts: Layers) -> list[Held]:
    stages = layout.pp
    return [
        Held(
            num_layers=num_layers, reached=reached, first=stage == 0, last=stage == stages - 1, groups=layout.virtual_stages,
            in_turn=min(layout.micro_batches, stages),
        )
        for stage, (num_layers, reached) in enumerate(zip(parts.per_stage(stages), parts.reached_per_stage(stages), strict=True))
    ]  # fmt: skip


def beside(seconds: float, busy_s: float, taken_fraction: float) -> float:
    """How long kernels of `seconds` take while a collective runs for `busy_s`, which takes a part of the SMs."""
    return seconds + taken_fraction * min(seconds, max(0.0, busy_s))


def gradients_left_s(work: Work, messages: Messages, held: Held) -> float:
    """What adding up gradients over replicas makes the end of a stage's backward passes later.

    A group's gradients are whole when its last micro-batch is through. While they are added up, micro-batches run through the group before
    it, whose gradients follow: one after the other on one link.
    """
    if not messages.reduce_s and not messages.reduce_rest_s:
        return 0.0
    without_s, with_s = (_backward_of_groups(work, messages, held, reduces=reduces) for reduces in (False, True))
    return max(0.0, with_s - without_s)


def _backward_of_groups(work: Work, messages: Messages, held: Held, *, reduces: bool) -> float:
    """From the last micro-batch of the last group to the end of that of the first."""
    now = link = 0.0
    for group, (num_layers, reached) in reversed(list(enumerate(held.of_groups()))):
        first, last = held.first and group == 0, held.last and group == held.groups - 1
        passed = partial(_backward, work, messages, num_layers, first=first, last=last, reached=reached, record=_ignore)
        if group < held.groups - 1:
            others_s = (held.in_turn - 1) * max(passed(reduces=False, start=Ends(0.0, 0.0)))
            now += beside(others_s, link - now, messages.taken_fraction)
        now, link = passed(reduces=reduces, start=Ends(now, max(now, link)))
    return max(now, link)


def weights_left_s(work: Work, messages: Messages, stages: list[Held]) -> float:
    """What gathering updated weights makes the step later: the stage that waits longest says so."""
    if not messages.updated_s and not messages.updated_rest_s:
        return 0.0
    arrives_s, late_s = 0.0, 0.0
    for held in stages:
        late_s = max(late_s, _late_s(work, messages, held, arrives_s))
        forward_s = forward_pass(work, messages, held.num_layers, first=held.first, last=held.last)
        arrives_s += forward_s / held.groups + messages.send_s
    return late_s


def _late_s(work: Work, messages: Messages, held: Held, arrives_s: float) -> float:
    """Of one stage, whose first micro-batch comes at `arrives_s`. Weights are gathered layer by layer from the step's start on."""
    now, plain, link = arrives_s, arrives_s, 0.0
    for group, (num_layers, reached) in enumerate(held.of_groups()):
        first, last = held.first and group == 0, held.last and group == held.groups - 1
        passed = partial(_forward, work, messages, num_layers, first=first, last=last, reached=reached, record=_ignore)
        ran_s = passed(updates=False, start=Ends(0.0, 0.0)).stream_s
        now, link = passed(updates=True, start=Ends(now, link))
        others_s = (held.in_turn - 1) * ran_s
        now, plain = now + beside(others_s, link - now, messages.taken_fraction), plain + ran_s + others_s
    return max(0.0, now - plain)


def whole_step(work: Work, messages: Messages, layout: Layout, parts: Layers) -> float:
    """Forward and backward of all micro-batches over all stages."""
    return sum(both_passes(work, messages, layout, parts))


def both_passes(work: Work, messages: Messages, layout: Layout, parts: Layers) -> Pass:
    """Forward and backward of all micro-batches, along the stage that is done last.

    A stage is done when the first micro-batch has reached it, it has run all of them, and the last gradient has gone back to the first
    stage; interleaved, the way there and back is as many times shorter as a GPU has groups of layers, and there are as many more sends.
    """
    micro, stages, chunks, ways = layout.micro_batches, layout.pp, layout.virtual_stages, crossings(parts, layout.pp, work.trains)
    held = held_by_stages(layout, parts)
    ahead, ahead_forward, total, total_forward, way_back, ends = 0.0, 0.0, 0.0, 0.0, 0.0, []
    for stage, each in enumerate(held):
        forward = forward_pass(work, messages, each.num_layers, first=each.first, last=each.last)
        backward, longer = 0.0, 0.0
        if work.trains:
            backward = _plain_backward_s(work, messages, each)
            longer = gradients_left_s(work, messages, each)
        sends = messages.send_s * ((micro - 1) * chunks + chunks - 1) if stages > 1 else 0.0
        done = ahead / chunks + ways * stage * messages.send_s + micro * (forward + backward) + ways * sends
        if done > total:
            total, total_forward = done, ahead_forward / chunks + stage * messages.send_s + micro * forward + sends
        ends.append((way_back + stage * messages.send_s, longer))
        ahead, ahead_forward = ahead + forward + backward, ahead_forward + forward
        way_back += backward / chunks
    late = weights_left_s(work, messages, held)
    whole = max(total, *(total - before + longer for before, longer in ends)) + late
    total_forward += late
    return Pass(total_forward, whole - total_forward) if work.trains else Pass(whole, 0.0)


def _plain_backward_s(work: Work, messages: Messages, held: Held) -> float:
    """Of one micro-batch of a stage, while replicas add nothing up."""
    return backward_pass(work, messages, held.num_layers, first=held.first, last=held.last, reduces=False, reached=held.reached)


def exposed(silent: Pass, spoken: Pass, after: float) -> Exposed:
    """What messages add to each phase. The last stage to be done may be another one with messages than without: no phase gets less."""
    every = max(0.0, sum(spoken) - sum(silent))
    forward = min(every, max(0.0, spoken.forward_s - silent.forward_s)) if spoken.backward_s else every
    return Exposed(forward, every - forward, after)


def spread(found: Priced, divided: Divided, layout: Layout, box: Box, size: Sizes, *, draw: bool = False) -> Spread:
    parts = layers_of(divided)
    work = work_of(found, parts)
    messages, listed = messages_of(divided, parts, size, layout, box, trains=work.trains, layer_backward_s=work.layer.backward_s)
    silent, spoken = both_passes(work, Messages(), layout, parts), both_passes(work, messages, layout, parts)
    every = sum(work.front) + sum(work.back) + work.number * work.layer.forward_s + parts.reached * work.layer.backward_s
    return Spread(
        compute_s=sum(silent),
        exposed_s=exposed(silent, spoken, messages.after_s),
        busy_s=layout.micro_batches * every / layout.pp,
        collectives=tuple(listed.collectives),
        message_s=listed.total_s,
        spans=drawn(work, messages, layout, parts) if draw else (),
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


def drawn(work: Work, messages: Messages, layout: Layout, parts: Layers) -> tuple[Span, ...]:
    """Spans of one GPU per stage: block by block without stages, else a span for every micro-batch in the order the schedule runs them.

    Stages are priced by a formula, from which a schedule's own end differs by a few thousandths where they are unequal: it is stretched
    by as much. Of a very long step the first micro-batches, as long as they are.
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

            now += forward_pass(
                work, messages, parts.number, first=True, last=True, updates=micro == 0, reached=parts.reached, record=record, start=now
            )
            if work.trains:
                now += backward_pass(
                    work, messages, parts.number, first=True, last=True, reduces=final, reached=parts.reached, record=record, start=now
                )
        return tuple(spans)
    stages = held_by_stages(layout, parts)
    times = [
        (
            forward_pass(work, messages, held.num_layers, first=held.first, last=held.last),
            _plain_backward_s(work, messages, held) if work.trains else 0.0,
        )
        for held in stages
    ]
    ran = [each for each in _in_schedule(layout, times, shown, messages.send_s) if each.end_s > each.start_s]
    spans = [Span(each.stage, "stream", _name_of(each.turn, chunks), each.start_s, each.end_s) for each in ran]
    sent = [
        Span(each.stage, "collectives", f"send {_name_of(each.turn, chunks)}", each.end_s, each.end_s + messages.send_s)
        for each in ran
        if messages.send_s and _is_sent(each, stages)
    ]
    told: list[Span] = []
    for stage, held in enumerate(stages):
        open_s = gradients_left_s(work, messages, held) if work.trains else 0.0
        end_s = max(span.end_s for span in spans if span.stage == stage)
        told += [Span(stage, "collectives", "gradients that nothing hides", end_s, end_s + open_s)] if open_s > 0 else []
    late_s = weights_left_s(work, messages, stages)
    waits = [Span(stage, "collectives", "updated weights that nothing hides", 0.0, late_s) for stage in range(layout.pp) if late_s]
    every = [*spans, *sent, *told]
    ends_s = max(span.end_s for span in every)
    stretch = (whole_step(work, messages, layout, parts) - late_s) / ends_s if shown == layout.micro_batches else 1.0
    return (*waits, *(replace(span, start_s=late_s + stretch * span.start_s, end_s=late_s + stretch * span.end_s) for span in every))


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


def _is_sent(ran: Ran, stages: list[Held]) -> bool:
    """Whether another stage waits for it: gradients go back only to stages that train."""
    if not ran.turn.backward:
        return ran.stage + 1 < len(stages) or ran.turn.chunk < stages[0].groups - 1
    if ran.stage == 0:
        return ran.turn.chunk > 0 and stages[-1].reached > 0
    return stages[ran.stage - 1].reached > 0


def scaled(base: Interval, seconds: float) -> Interval:
    """`seconds`, as uncertain as `base`."""
    if not base.median:
        return Interval(seconds, seconds, seconds)
    return Interval(seconds, seconds * base.low / base.median, seconds * base.high / base.median)


def split(total_s: float, shares: Mapping[str, Interval]) -> dict[str, Interval]:
    """A time dealt out in proportion to others."""
    whole = sum(each.median for each in shares.values())
    return {name: scaled(each, total_s * each.median / whole if whole else 0.0) for name, each in shares.items()}
