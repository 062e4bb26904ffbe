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
    runs: list[Run] = []
    inputs, outputs, arrived, started, first, last = (list[int]() for _ in range(6))
    waiting: deque[int] = deque()
    coming: deque[tuple[int, int]] = deque()  # (step from which it can be taken, request)
    partial: list[list[int]] = []  # [request, tokens done]: a prompt that was cut
    ends: list[tuple[int, int]] = []  # (decode steps done when it ends, request)
    step = decoded = taken = context = 0  # steps and decode steps so far; cache tokens counted; keys that the next decode step sees

    def arrives(at: int, missed: int) -> None:
        number = len(arrived)
        if number < num_requests:
            asked, given = request(number)
            inputs.append(asked)
            outputs.append(given)
            arrived.append(at)
            started.append(0)
            first.append(0)
            last.append(0)
            coming.append((at + missed, number))

    for _ in range(min(users, num_requests)):
        arrives(0, 0)
    budget, most, room = policy.token_budget, policy.most_running, policy.cache_tokens
    done = 0
    while done < num_requests:
        while coming and coming[0][0] <= step:
            waiting.append(coming.popleft()[1])
        running = len(ends)
        left = budget - (running if policy.mixes else 0)
        chunks: list[tuple[int, int]] = []  # (tokens, keys of the last one)
        finished: list[int] = []
        if partial:
            number, begun = partial[0]
            part = max(1, min(left, inputs[number] - begun))
            chunks.append((part, begun + part))
            left -= part
            partial[0][1] = begun + part
            if begun + part == inputs[number]:
                partial.clear()
                finished.append(number)
        while waiting and not partial and left > 0 and running + len(finished) < most:
            number = waiting[0]
            needs = policy.reserves(inputs[number], outputs[number])
            if taken + needs > room and taken:
                break
            length = inputs[number]
            if length > left and not policy.chunks and (chunks or left < budget - running):
                break
            part = min(length, left) if policy.chunks else length
            waiting.popleft()
            started[number] = step
            taken += needs
            chunks.append((part, part))
            left -= part
            if part < length:
                partial.append([number, part])
            else:
                finished.append(number)
        if not chunks:
            if not running:  # nothing to do until somebody arrives
                runs.append(Run(coming[0][0] - step))
                step = coming[0][0]
                continue
            repeat = ends[0][0] - decoded
            if coming:
                repeat = min(repeat, coming[0][0] - step)
            runs.append(Run(repeat, decodes=running, context=context / running + (repeat - 1) / 2))
        else:
            repeat = 1
            decodes = running if policy.mixes else 0
            runs.append(Run(1, *equal_chunks(chunks), len(finished), decodes, context / running if decodes else 0.0))
        step += repeat
        if running and (policy.mixes or not chunks):
            decoded += repeat
            context += running * repeat
        while ends and ends[0][0] == decoded:
            _, number = heappop(ends)
            context -= inputs[number] + outputs[number]
            taken -= policy.reserves(inputs[number], outputs[number])
            last[number] = step
            done += 1
            arrives(step, policy.steps_missed)
        for number in finished:
            first[number] = last[number] = step
            if outputs[number] == 1:
                taken -= policy.reserves(inputs[number], outputs[number])
                done += 1
                arrives(step, policy.steps_missed)
            else:
                heappush(ends, (decoded + outputs[number] - 1, number))
                context += inputs[number] + 1
    return replace(
        steps_alone(runs), arrival=np.array(arrived), taken=np.array(started), first=np.array(first), last=np.array(last),
        output_tokens=np.array(outputs), input_tokens=np.array(inputs),
    )  # fmt: skip


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
