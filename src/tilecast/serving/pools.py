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
from tilecast.serving.schedule import Lengths, Partial, StepPrompts, equal_chunks, prompts_of_step


class PrefillStep(NamedTuple):
    """A step of a prefill worker, whose fullest rank sets the pace."""

    tokens: int  # of the fullest rank
    alike: int  # its chunks as so many equal ones
    keys: float  # of each of these
    chunks: int  # as they are: each has its logits
    mean_tokens: float  # of all ranks


class DecodeRun(NamedTuple):
    """Equal steps in a row of a decode worker."""

    steps: int
    requests: int  # of the fullest rank
    keys: float  # mean, of one request


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
    partial: Partial | None = None
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
    run = _Run(
        prefill=prefill, decode=decode, request=request, num_requests=num_requests, prefill_s=prefill_s, decode_times=decode_times,
        transfer_s=transfer_s, spans=spans, in_turns=in_turns,
    )  # fmt: skip
    for _ in range(min(users, num_requests)):
        run.arrives()
    while run.done < num_requests:
        run.starts_work()
        run.next_events()
    return run.passage()


class _Run:
    """Workers, requests and the clock. Lists go by the number of a request, or by rank of all workers of a kind (a lane)."""

    __slots__ = (
        "ahead", "arrival", "cache", "decode", "decode_busy_s", "decode_times", "decodes", "done", "events", "first", "held", "in_turns",
        "inputs", "last", "late", "now", "num_requests", "order", "outputs", "placed", "prefill", "prefill_busy_s", "prefill_s",
        "prefilled", "prefills", "request", "roomed", "runs", "spans", "steps", "taken", "there", "transfer_s", "waiting",
    )  # fmt: skip

    def __init__(
        self, *, prefill: Pool, decode: Pool, request: Callable[[int], Lengths], num_requests: int,
        prefill_s: Callable[[PrefillStep], float], decode_times: DecodeTimes, transfer_s: Callable[[int], float], spans: Spans | None,
        in_turns: bool,
    ) -> None:  # fmt: skip
        self.prefill, self.decode, self.request, self.num_requests = prefill, decode, request, num_requests
        self.prefill_s, self.decode_times, self.transfer_s, self.spans, self.in_turns = prefill_s, decode_times, transfer_s, spans, in_turns
        self.prefills = [_PrefillWorker(at, [_PrefillRank() for _ in range(prefill.ranks)]) for at in range(prefill.workers)]
        self.decodes = [_DecodeWorker(at, [0] * decode.ranks) for at in range(decode.workers)]
        self.ahead = [0] * prefill.lanes  # tokens of prompts that are not done
        self.held, self.cache = [0] * decode.lanes, [0] * decode.lanes  # requests that have room, and the tokens they are counted with
        self.inputs, self.outputs, self.placed = list[int](), list[int](), list[int]()
        self.arrival, self.roomed, self.taken, self.prefilled = (list[float]() for _ in range(4))
        self.there, self.first, self.last = (list[float]() for _ in range(3))
        num_queues = decode.workers if in_turns else 1
        each = decode.lanes // num_queues
        self.waiting = [(deque[int](), slice(at * each, (at + 1) * each)) for at in range(num_queues)]  # for room on these lanes
        self.late = 0 if decode.gives_first_token else 1  # tokens of a request that decode workers do not make
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = count()
        self.steps, self.runs = Counter[PrefillStep](), list[DecodeRun]()
        self.now, self.done, self.prefill_busy_s, self.decode_busy_s = 0.0, 0, 0.0, 0.0

    def passage(self) -> Passage:
        times = {"arrival_s": self.arrival, "placed_s": self.roomed, "taken_s": self.taken, "prefilled_s": self.prefilled}
        times |= {"there_s": self.there, "first_s": self.first, "last_s": self.last}
        return Passage(
            input_tokens=np.array(self.inputs), output_tokens=np.array(self.outputs), prefill_steps=self.steps, decode_runs=self.runs,
            prefill_busy_s=self.prefill_busy_s, decode_busy_s=self.decode_busy_s,
            **{name: np.array(values) for name, values in times.items()},
        )  # fmt: skip

    # ---- the clock ---------------------------------------------------------------------------------------------------

    def later(self, at: float, what: Callable[..., None], *arguments: Any) -> None:
        heappush(self.events, (at, next(self.order), what, arguments))

    def next_events(self) -> None:
        """All that happen at the next moment at which one does."""
        events = self.events
        self.now = now = events[0][0]
        while events and events[0][0] <= now:
            _, _, what, arguments = heappop(events)
            what(*arguments)

    def starts_work(self) -> None:
        """Who waits gets room where there is some, and every idle worker that has something to do starts."""
        for queue, lanes in self.waiting:
            if queue:
                self.gives_room(queue, lanes)
        for taking in self.prefills:
            if not taking.busy and any(rank.queue or rank.partial for rank in taking.ranks):
                self.prompts(taking)
        for giving in self.decodes:
            if giving.run is None and (giving.ends or giving.pending):
                self.tokens(giving)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def arrives(self) -> None:
        number = len(self.inputs)
        if number < self.num_requests:
            asked, given = self.request(number)
            self.inputs.append(asked)
            self.outputs.append(given)
            self.placed.append(-1)
            self.arrival.append(self.now)
            for times in (self.roomed, self.taken, self.prefilled, self.there, self.first, self.last):
                times.append(0.0)
            self.waiting[number % len(self.waiting)][0].append(number)

    def gives_room(self, queue: deque[int], lanes: slice) -> None:
        """Requests of a queue get room on the emptiest of its ranks, and a place before a prefill worker."""
        policy, held, cache, prefill = self.decode.policy, self.held, self.cache, self.prefill
        while queue:
            number = queue[0]
            needs = policy.reserves(self.inputs[number], self.outputs[number])
            if self.outputs[number] > 1:  # else nothing is left to decode
                lane = _least(held, lanes)
                if held[lane] >= policy.most_running or (held[lane] and cache[lane] + needs > policy.cache_tokens):
                    return
                held[lane] += 1
                cache[lane] += needs
                self.placed[number] = lane
            queue.popleft()
            self.roomed[number] = self.now
            turn = number % prefill.workers
            among = slice(turn * prefill.ranks, (turn + 1) * prefill.ranks) if self.in_turns else slice(0, prefill.lanes)
            lane = _least(self.ahead, among)
            self.ahead[lane] += self.inputs[number]
            worker = self.prefills[lane // prefill.ranks]
            can_be_taken = worker.step + 1 + prefill.policy.steps_missed if worker.busy else worker.step
            worker.ranks[lane % prefill.ranks].queue.append((can_be_taken, number))

    def ends(self, number: int) -> None:
        self.last[number] = self.now
        self.done += 1
        self.arrives()

    # ---- prefill workers ---------------------------------------------------------------------------------------------

    def prompts_of_rank(self, rank: _PrefillRank, step: int) -> StepPrompts:
        """What a rank has for a step."""

        def next_one(_: int) -> int | None:
            return rank.queue[0][1] if rank.queue and rank.queue[0][0] <= step else None

        def starts(number: int) -> None:
            rank.queue.popleft()
            self.taken[number] = self.now

        policy = self.prefill.policy
        found = prompts_of_step(policy.chunks, policy.token_budget, self.inputs, rank.partial, next_one, starts)
        rank.partial = found.partial
        return found

    def prompts(self, worker: _PrefillWorker) -> None:
        """The next step of an idle prefill worker that has something to do."""
        if all(rank.partial is None for rank in worker.ranks):  # steps without work take no time
            worker.step = max(worker.step, min(rank.queue[0][0] for rank in worker.ranks if rank.queue))
        found = [self.prompts_of_rank(rank, worker.step) for rank in worker.ranks]
        tokens = [sum(part for part, _ in each.chunks) for each in found]
        fullest = found[tokens.index(max(tokens))].chunks
        step = PrefillStep(*equal_chunks(fullest), len(fullest), sum(tokens) / self.prefill.ranks)
        self.steps[step] += 1
        seconds = self.prefill_s(step)
        self.prefill_busy_s += seconds
        worker.busy = True
        end_s = self.now + seconds
        if self.spans is not None:
            whose = tuple(number for each in found for number in each.whose)
            self.spans.prompts.append(PromptSpan(worker.number, self.now, end_s, sum(tokens), len(whose), whose))
        self.later(end_s, self.prompts_end, worker, [each.finished for each in found])

    def prompts_end(self, worker: _PrefillWorker, finished: list[list[int]]) -> None:
        worker.busy = False
        worker.step += 1
        for place, numbers in enumerate(finished):
            rank = worker.ranks[place]
            for number in numbers:
                self.ahead[worker.number * self.prefill.ranks + place] -= self.inputs[number]
                self.prefilled[number] = self.now
                if self.outputs[number] == 1:
                    self.there[number] = self.first[number] = self.now
                    self.ends(number)
                else:
                    starts = max(self.now, rank.link_free_s)
                    rank.link_free_s = starts + self.transfer_s(self.inputs[number])
                    if self.spans is not None:
                        to = self.placed[number] // self.decode.ranks
                        self.spans.sent.append(SendSpan(worker.number, place, starts, rank.link_free_s, number, to))
                    self.later(rank.link_free_s, self.is_there, number)

    # ---- decode workers ----------------------------------------------------------------------------------------------

    def is_there(self, number: int) -> None:
        """A prompt's cache: its request joins the worker after the step that runs."""
        self.there[number] = self.now
        worker = self.decodes[self.placed[number] // self.decode.ranks]
        if worker.run is None:
            worker.pending.append((worker.step, number))
            return
        start, most, seconds, more = worker.run
        join = worker.steps_until(self.now) + self.decode.policy.steps_missed
        worker.pending.append((worker.step + join, number))
        if join < most:  # the run ends there
            worker.run = (start, join, seconds, more)
            worker.version += 1
            self.later(start + _run_s(join, seconds, more), self.run_ends, worker, worker.version)

    def tokens(self, worker: _DecodeWorker) -> None:
        """The next run of equal steps of an idle decode worker: until somebody ends or joins."""
        now, late = self.now, self.late
        if not worker.ends and worker.pending:
            worker.step = max(worker.step, min(worker.pending)[0])
        joined = [entry for entry in worker.pending if entry[0] <= worker.step]
        for entry in joined:
            worker.pending.remove(entry)
            heappush(worker.ends, (worker.step + self.outputs[entry[1]] - late, entry[1]))
            worker.keys += self.inputs[entry[1]] + late
            worker.running[self.placed[entry[1]] % self.decode.ranks] += 1
        most = worker.ends[0][0] - worker.step
        if worker.pending:
            most = min(most, min(worker.pending)[0] - worker.step)
        keys = worker.keys / len(worker.ends)
        seconds, more, limit = self.decode_times.piece(max(worker.running), keys)
        for _, number in joined:
            self.first[number] = now if late else now + seconds
        most = min(most, max(1, int(limit - keys) + 1)) if limit < float("inf") else most
        worker.run = (now, most, seconds, more)
        worker.version += 1
        self.later(now + _run_s(most, seconds, more), self.run_ends, worker, worker.version)

    def run_ends(self, worker: _DecodeWorker, version: int) -> None:
        if version != worker.version or worker.run is None:
            return  # it was cut
        start, number_of, seconds, more = worker.run
        together = len(worker.ends)
        if self.spans is not None:
            self.spans.tokens.append(TokenSpan(worker.number, start, number_of, seconds, more, together, worker.keys / together))
        self.runs.append(DecodeRun(number_of, max(worker.running), worker.keys / together + (number_of - 1) / 2))
        self.decode_busy_s += self.now - start
        worker.run = None
        worker.step += number_of
        worker.keys += number_of * together
        while worker.ends and worker.ends[0][0] == worker.step:
            number = heappop(worker.ends)[1]
            lane, asked, given = self.placed[number], self.inputs[number], self.outputs[number]
            worker.keys -= asked + given
            worker.running[lane % self.decode.ranks] -= 1
            self.held[lane] -= 1
            self.cache[lane] -= self.decode.policy.reserves(asked, given)
            self.ends(number)
