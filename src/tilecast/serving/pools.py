"""Prefill and decode on workers of their own: which steps each worker runs, and when a request passes from one to the other.

A request is given room on the decode worker with the fewest requests, or waits for it; then it joins the prefill worker with the fewest
tokens ahead of it. Its cache goes to the decode worker when its prompt is done, one prompt after the other over a prefill worker's link,
while the next step runs; when it is there the first token is seen, and the request decodes from the next step on. Workers have clocks of
their own, so unlike the steps of one scheduler (schedule.py) these depend on how long steps take: `run_pools` is given their times.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.serving.policy import Policy
from tilecast.serving.schedule import Lengths, equal_chunks

PrefillStep = tuple[int, int, float, int]  # tokens, how many equal chunks, keys of each, and chunks: each has its logits
DecodeRun = tuple[int, int, float]  # steps, requests, mean keys of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Schedulers of one kind of worker: data-parallel ranks and pipeline groups count each."""

    policy: Policy
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTimes:
    """Seconds of a decode step by its requests (B,) and their mean keys (C,), straight between: (B, C)."""

    requests: np.ndarray
    keys: Floats
    seconds: Floats
    rows: dict[int, list[float]] = field(default_factory=dict)

    def piece(self, requests: int, keys: float) -> tuple[float, float, float]:
        """A step's seconds there, how many more it takes for each further key, and up to how many keys that holds."""
        row = self.rows.get(requests)
        if row is None:
            row = [float(np.interp(requests, self.requests, column)) for column in self.seconds.T]
            self.rows[requests] = row
        knots = self.keys
        if len(knots) == 1:
            return row[0], 0.0, float("inf")
        place = min(max(int(np.searchsorted(knots, keys, side="right")), 1), len(knots) - 1)
        slope = (row[place] - row[place - 1]) / float(knots[place] - knots[place - 1])
        limit = float(knots[place]) if place < len(knots) - 1 else float("inf")
        return row[place - 1] + slope * (keys - float(knots[place - 1])), slope, limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """When every request (Q,) was where, in seconds, and which steps were run."""

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    arrival_s: Floats
    placed_s: Floats  # it has room on a decode worker
    taken_s: Floats  # its first prefill step starts
    prefilled_s: Floats
    first_s: Floats  # its cache is where it decodes, and its first token is seen
    last_s: Floats
    prefill_steps: Counter[PrefillStep]
    decode_runs: list[DecodeRun]
    prefill_busy_s: float
    decode_busy_s: float


class PromptSpan(NamedTuple):
    """A step of a prefill worker, and whose chunks it holds."""

    lane: int
    start_s: float
    end_s: float
    step: PrefillStep
    requests: tuple[int, ...]


class SendSpan(NamedTuple):
    """A prompt's cache on its way."""

    lane: int
    start_s: float
    end_s: float
    request: int
    to_lane: int


class TokenSpan(NamedTuple):
    """A run of a decode worker: steps whose first takes `first_s`, and each further one `more_s` more."""

    lane: int
    start_s: float
    steps: int
    first_s: float
    more_s: float
    requests: int
    keys: float  # mean, of the first step

    def at_s(self, step: int) -> float:
        """When its step `step` starts, counted from 0."""
        return self.start_s + _run_s(step, self.first_s, self.more_s)


@dataclass(frozen=True, slots=True)
class Spans:
    """What every worker did when, for a timeline."""

    prompts: list[PromptSpan] = field(default_factory=list)
    sent: list[SendSpan] = field(default_factory=list)
    tokens: list[TokenSpan] = field(default_factory=list)


@dataclass(slots=True)
class _PrefillLane:
    number: int = 0
    queue: deque[tuple[int, int]] = field(default_factory=deque)  # (step from which it can be taken, request)
    tokens: int = 0  # of prompts that are not done
    partial: tuple[int, int] | None = None  # a prompt that was cut, and its tokens so far
    step: int = 0  # the one that runs, or the next
    busy: bool = False
    link_free_s: float = 0.0


@dataclass(slots=True)
class _DecodeLane:
    number: int = 0
    held: int = 0  # requests that have room here
    cache: int = 0  # tokens they are counted with
    ends: list[tuple[int, int]] = field(default_factory=list)  # (steps done when it ends, request): those that decode
    pending: list[tuple[int, int]] = field(default_factory=list)  # (step from which it can be taken, request)
    step: int = 0  # done when the run began
    keys: int = 0  # that the next step sees
    run: tuple[float, int, float, float] | None = None  # start, steps, seconds of the first, more for each further
    version: int = 0

    def steps_until(self, now: float) -> int:
        """Steps of the run that have ended at `now`, and the one that is on its way."""
        assert self.run is not None
        start, most, first, more = self.run
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if start + _run_s(middle, first, more) >= now else (middle + 1, high)
        return low


def _run_s(steps: int, first: float, more: float) -> float:
    return steps * first + more * steps * (steps - 1) / 2


def run_pools(
    prefill: Pool, decode: Pool, users: int, request: Callable[[int], Lengths], num_requests: int, *,
    prefill_s: Callable[[PrefillStep], float], decode_times: DecodeTimes, transfer_s: Callable[[int], float], spans: Spans | None = None,
) -> Passage:  # fmt: skip
    """The first `num_requests` requests of `users`, all of whom send one at the start and the next when the last is answered.

    `spans` takes down what every worker did when.
    """
    prefills, decodes = [_PrefillLane(at) for at in range(prefill.lanes)], [_DecodeLane(at) for at in range(decode.lanes)]
    inputs, outputs, placed = list[int](), list[int](), list[int]()
    arrival, roomed, taken, prefilled, first, last = (list[float]() for _ in range(6))
    waiting: deque[int] = deque()
    events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
    order = count()
    steps, runs = Counter[PrefillStep](), list[DecodeRun]()
    now, done, busy = 0.0, 0, {"prefill": 0.0, "decode": 0.0}

    def later(at: float, what: Callable[..., None], *arguments: Any) -> None:
        heappush(events, (at, next(order), what, arguments))

    def arrives() -> None:
        number = len(inputs)
        if number < num_requests:
            asked, given = request(number)
            inputs.append(asked)
            outputs.append(given)
            placed.append(-1)
            arrival.append(now)
            for times in (roomed, taken, prefilled, first, last):
                times.append(0.0)
            waiting.append(number)

    def given_room() -> None:
        while waiting:
            number = waiting[0]
            needs = decode.policy.reserves(inputs[number], outputs[number])
            if outputs[number] > 1:  # else nothing is left to decode
                place = min(range(decode.lanes), key=lambda lane: decodes[lane].held)
                there = decodes[place]
                if there.held >= decode.policy.most_running or (there.held and there.cache + needs > decode.policy.cache_tokens):
                    return
                there.held += 1
                there.cache += needs
                placed[number] = place
            waiting.popleft()
            roomed[number] = now
            lane = min(prefills, key=lambda lane: lane.tokens)
            lane.tokens += inputs[number]
            lane.queue.append((lane.step + 1 + prefill.policy.steps_missed if lane.busy else lane.step, number))

    def prompts(lane: _PrefillLane) -> None:
        """The next step of an idle prefill worker that has something to do."""
        left, chunks, finished = prefill.policy.token_budget, list[tuple[int, int]](), list[int]()
        held = [] if lane.partial is None else [lane.partial[0]]
        if lane.partial is not None:
            number, begun = lane.partial
            part = min(left, inputs[number] - begun)
            chunks.append((part, begun + part))
            left -= part
            lane.partial = (number, begun + part) if begun + part < inputs[number] else None
            if lane.partial is None:
                finished.append(number)
        elif lane.queue:
            lane.step = max(lane.step, lane.queue[0][0])  # steps without work take no time
        while lane.queue and lane.partial is None and left > 0 and lane.queue[0][0] <= lane.step:
            number = lane.queue[0][1]
            if inputs[number] > left and not prefill.policy.chunks and chunks:
                break
            part = min(inputs[number], left) if prefill.policy.chunks else inputs[number]
            lane.queue.popleft()
            taken[number] = now
            held.append(number)
            chunks.append((part, part))
            left -= part
            if part < inputs[number]:
                lane.partial = (number, part)
            else:
                finished.append(number)
        step = (*equal_chunks(chunks), len(chunks))
        steps[step] += 1
        seconds = prefill_s(step)
        busy["prefill"] += seconds
        lane.busy = True
        if spans is not None:
            spans.prompts.append(PromptSpan(lane.number, now, now + seconds, step, tuple(held)))
        later(now + seconds, prompts_end, lane, finished)

    def prompts_end(lane: _PrefillLane, finished: list[int]) -> None:
        lane.busy = False
        lane.step += 1
        for number in finished:
            lane.tokens -= inputs[number]
            prefilled[number] = now
            if outputs[number] == 1:
                first[number] = now
                ends(number)
            else:
                starts = max(now, lane.link_free_s)
                lane.link_free_s = starts + transfer_s(inputs[number])
                if spans is not None:
                    spans.sent.append(SendSpan(lane.number, starts, lane.link_free_s, number, placed[number]))
                later(lane.link_free_s, is_there, number)

    def is_there(number: int) -> None:
        first[number] = now
        lane = decodes[placed[number]]
        if lane.run is None:
            lane.pending.append((lane.step, number))
            return
        start, most, seconds, more = lane.run
        join = lane.steps_until(now) + decode.policy.steps_missed
        lane.pending.append((lane.step + join, number))
        if join < most:  # the run ends there
            lane.run = (start, join, seconds, more)
            lane.version += 1
            later(start + _run_s(join, seconds, more), run_ends, lane, lane.version)

    def tokens(lane: _DecodeLane) -> None:
        """The next run of equal steps of an idle decode worker: until somebody ends or joins."""
        if not lane.ends and lane.pending:
            lane.step = max(lane.step, min(lane.pending)[0])
        for entry in [entry for entry in lane.pending if entry[0] <= lane.step]:
            lane.pending.remove(entry)
            heappush(lane.ends, (lane.step + outputs[entry[1]] - 1, entry[1]))
            lane.keys += inputs[entry[1]] + 1
        most = lane.ends[0][0] - lane.step
        if lane.pending:
            most = min(most, min(lane.pending)[0] - lane.step)
        keys = lane.keys / len(lane.ends)
        seconds, more, limit = decode_times.piece(len(lane.ends), keys)
        most = min(most, max(1, int(limit - keys) + 1)) if limit < float("inf") else most
        lane.run = (now, most, seconds, more)
        lane.version += 1
        later(now + _run_s(most, seconds, more), run_ends, lane, lane.version)

    def run_ends(lane: _DecodeLane, version: int) -> None:
        if version != lane.version or lane.run is None:
            return  # it was cut
        start, number_of, seconds, more = lane.run
        together = len(lane.ends)
        if spans is not None:
            spans.tokens.append(TokenSpan(lane.number, start, number_of, seconds, more, together, lane.keys / together))
        runs.append((number_of, together, lane.keys / together + (number_of - 1) / 2))
        busy["decode"] += now - start
        lane.run = None
        lane.step += number_of
        lane.keys += number_of * together
        while lane.ends and lane.ends[0][0] == lane.step:
            number = heappop(lane.ends)[1]
            lane.keys -= inputs[number] + outputs[number]
            lane.held -= 1
            lane.cache -= decode.policy.reserves(inputs[number], outputs[number])
            ends(number)

    def ends(number: int) -> None:
        nonlocal done
        last[number] = now
        done += 1
        arrives()

    for _ in range(min(users, num_requests)):
        arrives()
    while done < num_requests:
        given_room()
        for taking in prefills:
            if not taking.busy and (taking.queue or taking.partial):
                prompts(taking)
        for giving in decodes:
            if giving.run is None and (giving.ends or giving.pending):
                tokens(giving)
        now = events[0][0]
        while events and events[0][0] <= now:
            _, _, what, arguments = heappop(events)
            what(*arguments)
    times = {"arrival_s": arrival, "placed_s": roomed, "taken_s": taken, "prefilled_s": prefilled, "first_s": first, "last_s": last}
    return Passage(
        input_tokens=np.array(inputs), output_tokens=np.array(outputs), prefill_steps=steps, decode_runs=runs,
        prefill_busy_s=busy["prefill"], decode_busy_s=busy["decode"], **{name: np.array(values) for name, values in times.items()},
    )  # fmt: skip
