"""Prefill and decode on workers of their own: which steps each worker runs, and when a request passes from one to the other.

A request is given room on the decode worker with the fewest requests, or waits for it; then it joins the prefill worker with the fewest
tokens ahead of it. Its cache goes to the decode worker when its prompt is done, one prompt after the other over a prefill worker's link,
while the next step runs; when it is there the request decodes from the next step on, with which its first token is seen, or after it
where the decode worker makes that token. Data-parallel ranks of a worker meet in every layer, so they step together: a rank without work
waits for the others, and the fullest one sets the pace. Workers have clocks of their own, so unlike the steps of one scheduler
(schedule.py) these depend on how long steps take: `run_pools` is given their times.
"""

from bisect import bisect_right
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

# Tokens, how many equal chunks, keys of each, and chunks (each has its logits) of the fullest rank; and the mean tokens of all ranks.
PrefillStep = tuple[int, int, float, int, float]
DecodeRun = tuple[int, int, float]  # steps, requests of the fullest rank, mean keys of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers of one kind, each of so many data-parallel ranks: a rank has a queue and a cache of its own, and all step together."""

    policy: Policy
    workers: int
    ranks: int = 1
    gives_first_token: bool = False  # of decode workers: by a step of their own; else the prefill worker's token is passed on

    @property
    def lanes(self) -> int:
        return self.workers * self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTimes:
    """Seconds (B, C) of a decode step on a grid of its requests (B,) and their mean keys (C,), linear in between."""

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
        place = min(max(bisect_right(knots, keys), 1), len(knots) - 1)
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
    there_s: Floats  # its cache is where it decodes
    first_s: Floats
    last_s: Floats
    prefill_steps: Counter[PrefillStep]
    decode_runs: list[DecodeRun]
    prefill_busy_s: float
    decode_busy_s: float


class PromptSpan(NamedTuple):
    """A step of a prefill worker: tokens and chunks of all its ranks, and whose they are."""

    worker: int
    start_s: float
    end_s: float
    tokens: int
    chunks: int
    requests: tuple[int, ...]


class SendSpan(NamedTuple):
    """A prompt's cache on its way from a rank of a prefill worker to a decode worker."""

    worker: int
    rank: int
    start_s: float
    end_s: float
    request: int
    to_worker: int


class TokenSpan(NamedTuple):
    """A run of a decode worker: steps whose first takes `first_s`, and each further one `more_s` more."""

    worker: int
    start_s: float
    steps: int
    first_s: float
    more_s: float
    requests: int  # of all its ranks
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
class _PrefillRank:
    queue: deque[tuple[int, int]] = field(default_factory=deque)  # (step from which it can be taken, request)
    partial: tuple[int, int] | None = None  # a prompt that was cut, and its tokens so far
    link_free_s: float = 0.0


@dataclass(slots=True)
class _PrefillWorker:
    number: int
    ranks: list[_PrefillRank]
    step: int = 0  # the one that runs, or the next
    busy: bool = False


@dataclass(slots=True)
class _DecodeWorker:
    number: int
    running: list[int]  # requests that decode, by rank
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


def _least(values: list[int], among: slice) -> int:
    """The place of the smallest, the first of equals."""
    few = values[among]
    return int(among.start) + few.index(min(few))


def run_pools(
    prefill: Pool, decode: Pool, users: int, request: Callable[[int], Lengths], num_requests: int, *,
    prefill_s: Callable[[PrefillStep], float], decode_times: DecodeTimes, transfer_s: Callable[[int], float], spans: Spans | None = None,
    in_turns: bool = False,
) -> Passage:  # fmt: skip
    """The first `num_requests` requests of `users`, all of whom send one at the start and the next when the last is answered.

    `spans` takes down what every worker did when. `in_turns`: requests are dealt to workers in turn when they arrive, however busy these
    are, as routers do that know nothing of them; ranks of a worker still share theirs.
    """
    prefills = [_PrefillWorker(at, [_PrefillRank() for _ in range(prefill.ranks)]) for at in range(prefill.workers)]
    decodes = [_DecodeWorker(at, [0] * decode.ranks) for at in range(decode.workers)]
    ahead = [0] * prefill.lanes  # tokens of prompts that are not done, by rank of all workers
    held, cache = [0] * decode.lanes, [0] * decode.lanes  # requests that have room, and the tokens they are counted with
    inputs, outputs, placed = list[int](), list[int](), list[int]()
    arrival, roomed, taken, prefilled, there, first, last = (list[float]() for _ in range(7))
    waiting = [deque[int]() for _ in range(decode.workers if in_turns else 1)]
    late = 0 if decode.gives_first_token else 1  # tokens of a request that decode workers do not make
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
            for times in (roomed, taken, prefilled, there, first, last):
                times.append(0.0)
            waiting[number % len(waiting)].append(number)

    def given_room(queue: deque[int], lanes: slice) -> None:
        """Requests of a queue get room on the emptiest of its ranks, and a place before a prefill worker."""
        while queue:
            number = queue[0]
            needs = decode.policy.reserves(inputs[number], outputs[number])
            if outputs[number] > 1:  # else nothing is left to decode
                lane = _least(held, lanes)
                if held[lane] >= decode.policy.most_running or (held[lane] and cache[lane] + needs > decode.policy.cache_tokens):
                    return
                held[lane] += 1
                cache[lane] += needs
                placed[number] = lane
            queue.popleft()
            roomed[number] = now
            turn = number % prefill.workers
            lane = _least(ahead, slice(turn * prefill.ranks, (turn + 1) * prefill.ranks) if in_turns else slice(0, prefill.lanes))
            ahead[lane] += inputs[number]
            worker = prefills[lane // prefill.ranks]
            can_be_taken = worker.step + 1 + prefill.policy.steps_missed if worker.busy else worker.step
            worker.ranks[lane % prefill.ranks].queue.append((can_be_taken, number))

    def chunks_of(rank: _PrefillRank, step: int) -> tuple[list[tuple[int, int]], list[int], list[int]]:
        """What a rank has for a step: chunks as (tokens, keys of the last one), whose they are, and whose prompts end with it."""
        left, chunks, whose, finished = prefill.policy.token_budget, list[tuple[int, int]](), list[int](), list[int]()
        if rank.partial is not None:
            number, begun = rank.partial
            part = min(left, inputs[number] - begun)
            chunks.append((part, begun + part))
            whose.append(number)
            left -= part
            rank.partial = (number, begun + part) if begun + part < inputs[number] else None
            if rank.partial is None:
                finished.append(number)
        while rank.queue and rank.partial is None and left > 0 and rank.queue[0][0] <= step:
            number = rank.queue[0][1]
            if inputs[number] > left and not prefill.policy.chunks and chunks:
                break
            part = min(inputs[number], left) if prefill.policy.chunks else inputs[number]
            rank.queue.popleft()
            taken[number] = now
            chunks.append((part, part))
            whose.append(number)
            left -= part
            if part < inputs[number]:
                rank.partial = (number, part)
            else:
                finished.append(number)
        return chunks, whose, finished

    def prompts(worker: _PrefillWorker) -> None:
        """The next step of an idle prefill worker that has something to do."""
        if all(rank.partial is None for rank in worker.ranks):  # steps without work take no time
            worker.step = max(worker.step, min(rank.queue[0][0] for rank in worker.ranks if rank.queue))
        found = [chunks_of(rank, worker.step) for rank in worker.ranks]
        tokens = [sum(part for part, _ in chunks) for chunks, _, _ in found]
        fullest = found[tokens.index(max(tokens))][0]
        step = (*equal_chunks(fullest), len(fullest), sum(tokens) / prefill.ranks)
        steps[step] += 1
        seconds = prefill_s(step)
        busy["prefill"] += seconds
        worker.busy = True
        if spans is not None:
            whose = tuple(number for _, numbers, _ in found for number in numbers)
            spans.prompts.append(PromptSpan(worker.number, now, now + seconds, sum(tokens), len(whose), whose))
        later(now + seconds, prompts_end, worker, [finished for _, _, finished in found])

    def prompts_end(worker: _PrefillWorker, finished: list[list[int]]) -> None:
        worker.busy = False
        worker.step += 1
        for place, numbers in enumerate(finished):
            rank = worker.ranks[place]
            for number in numbers:
                ahead[worker.number * prefill.ranks + place] -= inputs[number]
                prefilled[number] = now
                if outputs[number] == 1:
                    there[number] = first[number] = now
                    ends(number)
                else:
                    starts = max(now, rank.link_free_s)
                    rank.link_free_s = starts + transfer_s(inputs[number])
                    if spans is not None:
                        to = placed[number] // decode.ranks
                        spans.sent.append(SendSpan(worker.number, place, starts, rank.link_free_s, number, to))
                    later(rank.link_free_s, is_there, number)

    def is_there(number: int) -> None:
        there[number] = now
        worker = decodes[placed[number] // decode.ranks]
        if worker.run is None:
            worker.pending.append((worker.step, number))
            return
        start, most, seconds, more = worker.run
        join = worker.steps_until(now) + decode.policy.steps_missed
        worker.pending.append((worker.step + join, number))
        if join < most:  # the run ends there
            worker.run = (start, join, seconds, more)
            worker.version += 1
            later(start + _run_s(join, seconds, more), run_ends, worker, worker.version)

    def tokens(worker: _DecodeWorker) -> None:
        """The next run of equal steps of an idle decode worker: until somebody ends or joins."""
        if not worker.ends and worker.pending:
            worker.step = max(worker.step, min(worker.pending)[0])
        joined = [entry for entry in worker.pending if entry[0] <= worker.step]
        for entry in joined:
            worker.pending.remove(entry)
            heappush(worker.ends, (worker.step + outputs[entry[1]] - late, entry[1]))
            worker.keys += inputs[entry[1]] + late
            worker.running[placed[entry[1]] % decode.ranks] += 1
        most = worker.ends[0][0] - worker.step
        if worker.pending:
            most = min(most, min(worker.pending)[0] - worker.step)
        keys = worker.keys / len(worker.ends)
        seconds, more, limit = decode_times.piece(max(worker.running), keys)
        for _, number in joined:
            first[number] = now if late else now + seconds
        most = min(most, max(1, int(limit - keys) + 1)) if limit < float("inf") else most
        worker.run = (now, most, seconds, more)
        worker.version += 1
        later(now + _run_s(most, seconds, more), run_ends, worker, worker.version)

    def run_ends(worker: _DecodeWorker, version: int) -> None:
        if version != worker.version or worker.run is None:
            return  # it was cut
        start, number_of, seconds, more = worker.run
        together = len(worker.ends)
        if spans is not None:
            spans.tokens.append(TokenSpan(worker.number, start, number_of, seconds, more, together, worker.keys / together))
        runs.append((number_of, max(worker.running), worker.keys / together + (number_of - 1) / 2))
        busy["decode"] += now - start
        worker.run = None
        worker.step += number_of
        worker.keys += number_of * together
        while worker.ends and worker.ends[0][0] == worker.step:
            number = heappop(worker.ends)[1]
            worker.keys -= inputs[number] + outputs[number]
            worker.running[placed[number] % decode.ranks] -= 1
            held[placed[number]] -= 1
            cache[placed[number]] -= decode.policy.reserves(inputs[number], outputs[number])
            ends(number)

    def ends(number: int) -> None:
        nonlocal done
        last[number] = now
        done += 1
        arrives()

    for _ in range(min(users, num_requests)):
        arrives()
    every = [slice(at * decode.ranks, (at + 1) * decode.ranks) for at in range(decode.workers)] if in_turns else [slice(0, decode.lanes)]
    while done < num_requests:
        for queue, lanes in zip(waiting, every, strict=True):
            if queue:
                given_room(queue, lanes)
        for taking in prefills:
            if not taking.busy and any(rank.queue or rank.partial for rank in taking.ranks):
                prompts(taking)
        for giving in decodes:
            if giving.run is None and (giving.ends or giving.pending):
                tokens(giving)
        now = events[0][0]
        while events and events[0][0] <= now:
            _, _, what, arguments = heappop(events)
            what(*arguments)
    times = {"arrival_s": arrival, "placed_s": roomed, "taken_s": taken, "prefilled_s": prefilled}
    times |= {"there_s": there, "first_s": first, "last_s": last}
    return Passage(
        input_tokens=np.array(inputs), output_tokens=np.array(outputs), prefill_steps=steps, decode_runs=runs,
        prefill_busy_s=busy["prefill"], decode_busy_s=busy["decode"], **{name: np.array(values) for name, values in times.items()},
    )  # fmt: skip
