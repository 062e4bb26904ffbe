"""Which steps an engine runs for N users who each send their next request when the last one is answered.

What a step holds depends on the order of arrivals and endings alone, not on how long steps take: both happen at the end of a step. So the
schedule is made first, in steps, and priced afterwards. Steps of decodes alone repeat until a request ends or arrives: such a run is one
entry, which is why a schedule costs little more than its requests.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.serving.policy import Policy

Lengths = tuple[int, int]  # prompt and output tokens


class Run(NamedTuple):
    """Equal steps in a row, told as `Schedule` does."""

    steps: int
    prefill_tokens: int = 0
    chunks: int = 0
    chunk_context: float = 0.0
    prompts_done: int = 0
    decodes: int = 0
    context: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Runs of equal steps, arrays (R,), and requests, arrays (Q,) in the order of their arrival.

    Prompt chunks of a step are told as `chunks` equal ones of the same tokens and the same query-key pairs.
    """

    steps: np.ndarray  # of a run
    prefill_tokens: np.ndarray  # of each of its steps
    chunks: np.ndarray
    chunk_context: Floats  # keys that the last query of a chunk sees
    prompts_done: np.ndarray  # prompts that end in the step
    decodes: np.ndarray  # requests that decode in each of its steps
    context: Floats  # mean keys of a decode, over the run
    arrival: np.ndarray  # steps done when a request arrived
    taken: np.ndarray  # steps done when the first of its chunks started
    first: np.ndarray  # steps done when its first token was there
    last: np.ndarray
    output_tokens: np.ndarray
    input_tokens: np.ndarray
    mean_tokens: Floats | None = None  # of a step's prompts over data-parallel ranks, where they differ: `prefill_tokens` is the fullest's

    @property
    def num_requests(self) -> int:
        return len(self.arrival)


def schedule(policy: Policy, users: int, request: Callable[[int], Lengths], num_requests: int) -> Schedule:
    """The first `num_requests` requests of `users`, all of whom send one at the start; `request` gives the lengths of each."""
    one = _Scheduler(policy, request, num_requests)
    for _ in range(min(users, num_requests)):
        one.arrives(missed=0)
    while one.done < num_requests:
        one.runs_next()
    return replace(
        steps_alone(one.runs), arrival=np.array(one.arrived), taken=np.array(one.started), first=np.array(one.first),
        last=np.array(one.last), output_tokens=np.array(one.outputs), input_tokens=np.array(one.inputs),
    )  # fmt: skip


class _Scheduler:
    """One scheduler, its requests and its steps so far. Lists from `inputs` to `last` go by the number of a request."""

    __slots__ = (
        "arrived", "coming", "context", "decoded", "done", "ends", "first", "held", "inputs", "last", "needs", "num_requests", "outputs",
        "partial", "policy", "request", "runs", "started", "step", "waiting",
    )  # fmt: skip

    def __init__(self, policy: Policy, request: Callable[[int], Lengths], num_requests: int) -> None:
        self.policy, self.request, self.num_requests = policy, request, num_requests
        self.inputs, self.outputs, self.needs = list[int](), list[int](), list[int]()  # tokens; needs: of cache
        self.arrived, self.started, self.first, self.last = (list[int]() for _ in range(4))  # steps done then
        self.runs: list[Run] = []
        self.coming: deque[tuple[int, int]] = deque()  # (step from which it can be taken, request)
        self.waiting: deque[int] = deque()
        self.partial: Partial | None = None
        self.ends: list[tuple[int, int]] = []  # (decode steps done when it ends, request): those that decode
        self.step = self.decoded = self.done = 0  # steps, decode steps and requests so far
        self.held = 0  # tokens of cache that requests which run are counted with
        self.context = 0  # keys that the next decode step sees

    def arrives(self, missed: int) -> None:
        """The next request, which the scheduler sees when that many steps have passed."""
        number = len(self.arrived)
        if number < self.num_requests:
            asked, given = self.request(number)
            self.inputs.append(asked)
            self.outputs.append(given)
            self.needs.append(self.policy.reserves(asked, given))
            self.arrived.append(self.step)
            for times in (self.started, self.first, self.last):
                times.append(0)
            self.coming.append((self.step + missed, number))

    def runs_next(self) -> None:
        """A step with prompts, or steps of decodes alone until somebody ends or arrives, or none until somebody does."""
        while self.coming and self.coming[0][0] <= self.step:
            self.waiting.append(self.coming.popleft()[1])
        running, mixes = len(self.ends), self.policy.mixes
        prompts = self.prompts_of_step()
        if prompts.chunks:
            decodes = running if mixes else 0
            context = self.context / running if decodes else 0.0
            self.runs.append(Run(1, *equal_chunks(prompts.chunks), len(prompts.finished), decodes, context))
            self.ends_steps(1, decodes, prompts.finished)
        elif running:
            until = self.ends[0][0] - self.decoded
            steps = min(until, self.coming[0][0] - self.step) if self.coming else until
            self.runs.append(Run(steps, decodes=running, context=self.context / running + (steps - 1) / 2))
            self.ends_steps(steps, running, [])
        else:
            idle = self.coming[0][0] - self.step
            self.runs.append(Run(idle))
            self.step += idle

    def prompts_of_step(self) -> "StepPrompts":
        if not self.waiting and self.partial is None:
            return NO_PROMPTS
        policy = self.policy
        left = policy.token_budget - (len(self.ends) if policy.mixes else 0)
        found = prompts_of_step(policy.chunks, left, self.inputs, self.partial, self.next_one, self.starts)
        self.partial = found.partial
        return found

    def next_one(self, num_finished: int) -> int | None:
        if not self.waiting or len(self.ends) + num_finished >= self.policy.most_running:
            return None
        number = self.waiting[0]
        return None if self.held and self.held + self.needs[number] > self.policy.cache_tokens else number

    def starts(self, number: int) -> None:
        self.waiting.popleft()
        self.started[number] = self.step
        self.held += self.needs[number]

    def ends_steps(self, steps: int, decodes: int, finished: list[int]) -> None:
        """Requests end and others come in their place; those whose prompts are `finished` have their first token."""
        self.step += steps
        if decodes:
            self.decoded += steps
            self.context += decodes * steps
        while self.ends and self.ends[0][0] == self.decoded:
            _, number = heappop(self.ends)
            self.context -= self.inputs[number] + self.outputs[number]
            self.leaves(number)
        for number in finished:
            self.first[number] = self.step
            if self.outputs[number] == 1:
                self.leaves(number)
            else:
                heappush(self.ends, (self.decoded + self.outputs[number] - 1, number))
                self.context += self.inputs[number] + 1

    def leaves(self, number: int) -> None:
        self.last[number] = self.step
        self.held -= self.needs[number]
        self.done += 1
        self.arrives(self.policy.steps_missed)


class Partial(NamedTuple):
    """A prompt that was cut."""

    request: int
    done: int  # tokens


class StepPrompts(NamedTuple):
    """What a step holds of prompts."""

    chunks: list[tuple[int, int]]  # (tokens, keys of the last one)
    whose: list[int]
    finished: list[int]  # whose prompts end with it
    partial: Partial | None  # of which more is left


NO_PROMPTS = StepPrompts([], [], [], None)


def prompts_of_step(
    may_cut: bool, left: int, lengths: Sequence[int], partial: Partial | None, next_one: Callable[[int], int | None],
    starts: Callable[[int], None],
) -> StepPrompts:  # fmt: skip
    """What is left of a prompt that was cut, then others as they come, up to `left` tokens; the last one is cut where that may be.

    `next_one` is the request that may start next, if any, when so many prompts end in the step; `starts` is told that it does.
    """
    chunks, whose, finished = list[tuple[int, int]](), list[int](), list[int]()
    if partial is not None:
        number, begun = partial
        part = max(1, min(left, lengths[number] - begun))  # it goes on, however many decode
        chunks.append((part, begun + part))
        whose.append(number)
        left -= part
        partial = Partial(number, begun + part) if begun + part < lengths[number] else None
        if partial is None:
            finished.append(number)
    while partial is None and left > 0 and (following := next_one(len(finished))) is not None:
        length = lengths[following]
        if length > left and not may_cut and chunks:
            break  # it waits for a step with room; one that no step has room for gets a step of its own
        part = min(length, left) if may_cut else length
        starts(following)
        chunks.append((part, part))
        whose.append(following)
        left -= part
        if part < length:
            partial = Partial(following, part)
        else:
            finished.append(following)
    return StepPrompts(chunks, whose, finished, partial)


def steps_alone(runs: Sequence[Run], mean_tokens: Sequence[float] | None = None) -> Schedule:
    """Steps without the requests they are of, to be priced."""
    columns = dict(zip(Run._fields, np.array(runs, dtype=np.float64).T, strict=True))
    columns |= {name: columns[name].astype(np.int64) for name in ("steps", "prefill_tokens", "chunks", "prompts_done", "decodes")}
    nobody = np.zeros(0, dtype=np.int64)
    return Schedule(
        **columns, arrival=nobody, taken=nobody, first=nobody, last=nobody, output_tokens=nobody, input_tokens=nobody,
        mean_tokens=None if mean_tokens is None else np.array(mean_tokens, dtype=np.float64),
    )  # fmt: skip


def equal_chunks(chunks: Sequence[tuple[int, int]]) -> tuple[int, int, float]:
    """Replace prompt chunks, (tokens, keys of the last one) each, by equal ones with the same tokens and query-key pairs.

    Returns all tokens, how many chunks, and the keys of the last token of each."""
    tokens = sum(part for part, _ in chunks)
    alike = max(1, round(tokens * tokens / sum(part * part for part, _ in chunks)))
    pairs = sum(part * (keys - part / 2) for part, keys in chunks)
    return tokens, alike, pairs / tokens + tokens / alike / 2


def cycled(requests: Sequence[Lengths], users: int = 0) -> Callable[[int], Lengths]:
    """Requests of a list in turn, from its start again when it ends.

    With `users`, the first request of each is cut short, by another amount for every user: equal lengths would keep them in step for
    ever, all waiting for their first token at once, which a load that has been running for a while never does.
    """

    def request(number: int) -> Lengths:
        asked, given = requests[number % len(requests)]
        return (asked, given) if number >= users else (asked, max(1, round(given * (number + 0.5) / users)))

    return request
