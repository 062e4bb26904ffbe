"""The same engine, step by step: every request is followed, every step priced as it is. Slow; the fast way is checked against it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilecast.engines.setup import Setup
from tilecast.serving.costs import by_kind
from tilecast.serving.policy import Policy
from tilecast.serving.schedule import Lengths
from tilecast.workloads.aggregate import Price, price_step
from tilecast.workloads.graph import Tokens
from tilecast.workloads.operations import Operation

StepTime = Callable[[list[Lengths], list[int]], float]  # prompt chunks as (tokens, keys), keys of every decode -> seconds


@dataclass(slots=True, eq=False)
class Request:
    input_tokens: int
    output_tokens: int
    arrived_s: float
    eligible: int  # the first step that can take it
    prefilled: int = 0
    produced: int = 0
    joined: bool = False  # it decodes; where prefill and decode are apart
    token_times_s: list[float] = field(default_factory=list)


def event_loop(policy: Policy, users: int, request: Callable[[int], Lengths], num_requests: int, step_s: StepTime) -> list[Request]:
    """The first `num_requests` requests, each with the time of every token; a user sends the next when the last one is answered."""
    sent: list[Request] = []
    queue: deque[Request] = deque()
    prefilling: list[Request] = []
    decoding: list[Request] = []
    now, step, finished = 0.0, 0, 0

    def send(eligible: int) -> None:
        if len(sent) < num_requests:
            new = Request(*request(len(sent)), arrived_s=now, eligible=eligible)
            sent.append(new)
            queue.append(new)

    for _ in range(users):
        send(0)
    while finished < num_requests:
        held = sum(policy.reserves(each.input_tokens, each.output_tokens) for each in (*prefilling, *decoding))
        left = policy.token_budget - (len(decoding) if policy.mixes else 0)
        chunks: list[tuple[Request, int]] = []
        for each in prefilling:
            part = max(1, min(left, each.input_tokens - each.prefilled))
            chunks.append((each, part))
            left -= part
        cut = any(each.prefilled + part < each.input_tokens for each, part in chunks)
        while queue and queue[0].eligible <= step and left > 0 and not cut:
            new, ready = queue[0], sum(1 for each, part in chunks if each.prefilled + part == each.input_tokens)
            needs = policy.reserves(new.input_tokens, new.output_tokens)
            if len(decoding) + ready >= policy.most_running or (held and held + needs > policy.cache_tokens):
                break
            if not policy.chunks and new.input_tokens > left and (chunks or left < policy.token_budget - len(decoding)):
                break
            part = min(left, new.input_tokens) if policy.chunks else new.input_tokens
            queue.popleft()
            prefilling.append(new)
            chunks.append((new, part))
            held += needs
            left -= part
            cut = part < new.input_tokens
        stepping = decoding if policy.mixes or not chunks else []
        if chunks or stepping:
            contexts = [each.input_tokens + each.produced for each in stepping]
            now += step_s([(part, each.prefilled + part) for each, part in chunks], contexts)
        step += 1
        for each in list(stepping):
            each.produced += 1
            each.token_times_s.append(now)
        for each, part in chunks:
            each.prefilled += part
        for each in [each for each in prefilling if each.prefilled == each.input_tokens]:
            prefilling.remove(each)
            each.produced = 1
            each.token_times_s.append(now)
            decoding.append(each)
        for each in [each for each in decoding if each.produced == each.output_tokens]:
            decoding.remove(each)
            finished += 1
            send(step + policy.steps_missed)
    return sent


def worker_loop(
    prefill: tuple[Policy, int, StepTime], decode: tuple[Policy, int, StepTime], users: int, request: Callable[[int], Lengths],
    num_requests: int, transfer_s: Callable[[int], float], ranks: tuple[int, int] = (1, 1), gives_first_token: bool = False,
) -> list[Request]:  # fmt: skip
    """The same for prefill and decode workers apart, each a policy, a number, a step's time and data-parallel ranks, which step together
    and wait for the fullest; pools.py says how requests pass."""
    (taking, num_taking, prompt_s), (giving, num_giving, token_s) = prefill, decode
    sent: list[Request] = []
    waiting: list[Request] = []
    queues: list[list[Request]] = [[] for _ in range(num_taking * ranks[0])]
    stepping: list[tuple[float, list[list[tuple[Request, int]]]] | None] = [None] * num_taking  # when the step ends, and its chunks by rank
    steps = [0] * num_taking
    links_s = [0.0] * len(queues)
    sending: list[tuple[float, Request]] = []
    rooms: list[list[Request]] = [[] for _ in range(num_giving * ranks[1])]  # requests that have room there
    here: list[list[Request]] = [[] for _ in rooms]  # of those, the ones whose cache is there
    decoding: list[tuple[float, list[Request]] | None] = [None] * num_giving
    rounds = [0] * num_giving
    now, finished = 0.0, 0

    def send() -> None:
        if len(sent) < num_requests:
            new = Request(*request(len(sent)), arrived_s=now, eligible=0)
            sent.append(new)
            waiting.append(new)

    def chunks_of(queue: list[Request], step: int) -> list[tuple[Request, int]]:
        left, chunks = taking.token_budget, list[tuple[Request, int]]()
        for each in queue:
            whole = each.input_tokens - each.prefilled
            if left <= 0 or (each.eligible > step and not each.prefilled) or (not taking.chunks and chunks and whole > left):
                break
            part = min(left, whole) if taking.chunks else whole
            chunks.append((each, part))
            left -= part
        return chunks

    for _ in range(users):
        send()
    while finished < num_requests:
        while waiting:
            new = waiting[0]
            if new.output_tokens > 1:
                room = min(rooms, key=len)
                held = sum(giving.reserves(each.input_tokens, each.output_tokens) for each in room)
                needs = giving.reserves(new.input_tokens, new.output_tokens)
                if len(room) >= giving.most_running or (room and held + needs > giving.cache_tokens):
                    break
                room.append(new)
            lane = min(range(len(queues)), key=lambda at: sum(each.input_tokens for each in queues[at]))
            place = lane // ranks[0]
            new.eligible = steps[place] + (1 + taking.steps_missed if stepping[place] else 0)
            queues[lane].append(waiting.pop(0))
        for place in range(num_taking):
            mine = queues[place * ranks[0] : (place + 1) * ranks[0]]
            if stepping[place] is not None or not any(mine):
                continue
            if not any(queue[0].prefilled for queue in mine if queue):
                steps[place] = max(steps[place], min(queue[0].eligible for queue in mine if queue))
            each_rank = [chunks_of(queue, steps[place]) for queue in mine]
            fullest = max(each_rank, key=lambda chunks: sum(part for _, part in chunks))
            stepping[place] = (now + prompt_s([(part, each.prefilled + part) for each, part in fullest], []), each_rank)
        for place in range(num_giving):
            ready = here[place * ranks[1] : (place + 1) * ranks[1]]
            if decoding[place] is not None or not any(ready):
                continue
            if not any(each.joined for rank in ready for each in rank):
                rounds[place] = max(rounds[place], min(each.eligible for rank in ready for each in rank))
            joined = [[each for each in rank if each.joined or each.eligible <= rounds[place]] for rank in ready]
            every = [each for rank in joined for each in rank]
            for each in every:
                if not each.joined and not gives_first_token:
                    each.produced = 1
                    each.token_times_s.append(now)
                each.joined = True
            mean = sum(each.input_tokens + each.produced for each in every) / len(every)
            fullest_rank = max(len(rank) for rank in joined)
            contexts = [each.input_tokens + each.produced for each in every] if ranks[1] == 1 else [mean] * fullest_rank
            decoding[place] = (now + token_s([], contexts), every)  # type: ignore[arg-type]
        now = min(end for end, *_ in (*filter(None, stepping), *filter(None, decoding), *sending))
        for place, running in enumerate(stepping):
            if running is None or running[0] > now:
                continue
            stepping[place] = None
            steps[place] += 1
            for rank, chunks in enumerate(running[1]):
                lane = place * ranks[0] + rank
                for each, part in chunks:
                    each.prefilled += part
                    if each.prefilled < each.input_tokens:
                        continue
                    queues[lane].remove(each)
                    if each.output_tokens == 1:
                        each.token_times_s.append(now)
                        finished += 1
                        send()
                    else:
                        links_s[lane] = max(now, links_s[lane]) + transfer_s(each.input_tokens)
                        sending.append((links_s[lane], each))
        for at, each in [entry for entry in sending if entry[0] <= now]:
            sending.remove((at, each))
            lane = next(number for number, room in enumerate(rooms) if each in room)
            place = lane // ranks[1]
            each.eligible = rounds[place] + (1 + giving.steps_missed if decoding[place] else 0)
            here[lane].append(each)
        for place, stepped in enumerate(decoding):
            if stepped is None or stepped[0] > now:
                continue
            decoding[place] = None
            rounds[place] += 1
            for each in stepped[1]:
                each.produced += 1
                each.token_times_s.append(now)
                if each.produced == each.output_tokens:
                    lane = next(number for number, room in enumerate(rooms) if each in room)
                    here[lane].remove(each)
                    rooms[lane].remove(each)
                    finished += 1
                    send()
    return sent


def exact_step_s(found: Setup, price: Price) -> StepTime:
    """Every kernel of a step priced for its own lengths, and the host; equal steps are priced once."""
    by_tokens, by_requests, of_phase = by_kind(found.operations)
    host, layers = found.engine.host, found.config.num_layers
    known: dict[object, float] = {}

    def gpu_s(operations: Sequence[Operation], phase: str, queries: list[int], keys: list[int]) -> float:
        key = (len(operations), phase, tuple(queries), tuple(keys))
        if key not in known:
            tokens = Tokens(phase, (np.array(queries),), (np.array(keys),))
            step = replace(found, operations=tuple(operations)).step(tokens)
            known[key] = float(price_step(step, found.gpu, price).median_s[0]) if step.calls else 0.0
        return known[key]

    def step_s(chunks: list[Lengths], contexts: list[int]) -> float:
        total = sum(part for part, _ in chunks) + len(contexts)
        done = len(contexts) + len(chunks)
        busy = gpu_s(by_tokens, "prefill" if chunks else "decode", [total], [total])
        busy += gpu_s(by_requests, "decode", [1] * done, [1] * done)
        if chunks:
            busy += gpu_s(of_phase["prefill"], "prefill", [part for part, _ in chunks], [keys for _, keys in chunks])
        if contexts:
            busy += gpu_s(of_phase["decode"], "decode", [1] * len(contexts), sorted(contexts))
        if chunks or len(contexts) > found.engine.most_captured or not found.gpu.replays_graphs:
            fixed = host.prefill_step_s + max(0.0, layers * host.prefill_layer_s - busy)
        else:
            fixed = host.decode_step_s + layers * host.decode_layer_s
        return busy + fixed + host.request_s * done

    return step_s
