"""Requests that prefill workers hand over to decode workers, run through both.

Steps depend on times here, and times on which steps there are: workers are run once with the times of likely steps, what they ran is
priced, and they are run again with these: at the median, and with either kind of worker at either end of its interval. A slower decode
worker may make first tokens come sooner, as users ask less often, so the ends of the interval are made of these runs (`interval`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilecast.engines.interval import Interval
from tilecast.execution.tasks import Floats
from tilecast.predictors import predict_kernel
from tilecast.serving.asked import followed
from tilecast.serving.costs import Costs
from tilecast.serving.pools import DecodeRun, DecodeTimes, Passage, Spans, run_pools
from tilecast.serving.room import most_at_once
from tilecast.serving.schedule import Lengths, Schedule, cycled
from tilecast.serving.seen import Seen, SeenBy, seen_by_users
from tilecast.serving.workers import REQUEST_KNOTS, Prompts, Workers, likely_steps, prompts_of, tokens_of
from tilecast.workloads.aggregate import Price

SERVERS = 2  # frontends that a request passes: that of the prefill and that of the decode worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """A way to run the workers: the side of the interval that either kind's times are at, or one of the things not known of a load."""

    prefill: str = "median_s"
    decode: str = "median_s"
    in_turns: bool = False  # requests are dealt to workers in turn, however busy they are
    in_step: bool = False  # users started together
    polled: bool = False  # handshakes are seen between steps: one step of either worker is waited for beside all else


MEDIAN = Sides()
IN_TURNS, IN_STEP, POLLED = Sides(in_turns=True), Sides(in_step=True), Sides(polled=True)
ENDS = (Sides(prefill="low_s"), Sides(prefill="high_s"), Sides(decode="low_s"), Sides(decode="high_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover(SeenBy[Sides]):
    """What users see, by the sides at which both kinds of workers were run: arrays (Q,) over the requests that count, in seconds."""

    passages: Mapping[Sides, Passage]
    spans: Spans  # of the median
    prefill: tuple[Schedule, Costs]
    decode: tuple[Schedule, Costs]
    counted: slice
    seen: Mapping[Sides, Seen]
    transfer_s: Mapping[Sides, Floats]  # from the end of a prompt to its cache being where it decodes
    room_s: Floats  # waiting for room on a decode worker
    queue_s: Floats  # and after that, or without, for a prefill worker to start

    @property
    def median(self) -> Passage:
        return self.passages[MEDIAN]


def interval(values: Mapping[Sides, Floats]) -> Interval:
    """The 80 % interval of the mean over requests."""
    return interval_of({sides: float(np.mean(each)) if len(each) else 0.0 for sides, each in values.items()})


def interval_of(means: Mapping[Sides, float]) -> Interval:
    """Combine the runs at fast and slow prefill and decode into one interval, then widen each end by the unknown that moves it most.

    Whether the errors of both kinds of worker go together is not known: the wider of both answers. The unknowns are how requests are
    routed, whether users are in step and whether handshakes wait for a step; they are run at the median."""
    median = means[MEDIAN]
    if median <= 0.0 or len(means) == 1:  # nothing was waited for, or no ends were run
        return Interval(median, median, median)
    fast, slow, fast_decode, slow_decode = (math.log(means[sides] / median) for sides in ENDS)
    otherwise = [math.log(means[sides] / median) for sides in (IN_TURNS, IN_STEP, POLLED) if sides in means]
    together = (fast + fast_decode, slow + slow_decode)
    up = math.hypot(max(fast, slow, 0.0), max(fast_decode, slow_decode, 0.0))
    down = math.hypot(min(fast, slow, 0.0), min(fast_decode, slow_decode, 0.0))
    low, high = min(*together, -down) + min([0.0, *otherwise]), max(*together, up) + max([0.0, *otherwise])
    return Interval(median, median * math.exp(low), median * math.exp(high))


def run_disaggregated(
    prefill: Workers,
    decode: Workers,
    users: int,
    requests: Sequence[Lengths],
    transfer_s: Mapping[str, Callable[[int], float]],
    *,
    price: Price = predict_kernel,
    num_requests: int | None = None,
    with_interval: bool = True,
) -> Handover:
    """Given `num_requests`, all of them count, the first burst too; else the steady state after it."""
    total, counted = followed(users, num_requests)
    asked = cycled(requests, 0 if num_requests else users)

    def run(sides: Sides, prompts: Prompts, tokens: Mapping[str, DecodeTimes], spans: Spans | None = None) -> Passage:
        return run_pools(
            prefill.pool, decode.pool, users, cycled(requests) if sides.in_step else asked, total, prefill_s=prompts.of(sides.prefill),
            decode_times=tokens[sides.decode], transfer_s=transfer_s[sides.prefill], spans=spans, in_turns=sides.in_turns,
        )  # fmt: skip

    lanes = decode.pool.lanes
    largest = most_at_once(decode.policy, requests, users, lanes)
    likely = np.unique(np.geomspace(1, max(1, -(-largest // lanes)), REQUEST_KNOTS).round().astype(np.int64))
    ends = (min(pair[0] for pair in requests) + 1.0, float(max(sum(pair) for pair in requests)))
    first = run(
        MEDIAN,
        prompts_of(prefill.found, likely_steps(prefill.policy, requests, prefill.pool.ranks), price),
        tokens_of(decode.found, [DecodeRun(0, int(number), ends[0]) for number in likely], ends, price)[1],
    )
    prompts = prompts_of(prefill.found, first.prefill_steps, price)
    keys = [run.keys for run in first.decode_runs] or list(ends)
    plan, tokens = tokens_of(decode.found, first.decode_runs or [DecodeRun(0, 1, ends[0])], (min(keys), max(keys)), price)
    ran: tuple[Sides, ...] = (MEDIAN,)
    if with_interval:
        ran = (MEDIAN, *ENDS, IN_TURNS) if num_requests else (MEDIAN, *ENDS, IN_TURNS, IN_STEP)
    spans = Spans()
    passages = {sides: run(sides, prompts, tokens, spans if sides == MEDIAN and not num_requests else None) for sides in ran}
    host = prefill.found.engine.host
    seen, sent = dict[Sides, Seen](), dict[Sides, Floats]()
    for sides, passage in passages.items():
        arrival_s, first_s, last_s = (times[counted] for times in (passage.arrival_s, passage.first_s, passage.last_s))
        seen[sides] = seen_by_users(
            arrival_s, first_s, last_s, input_tokens=passage.input_tokens[counted], output_tokens=passage.output_tokens[counted],
            host=host, side=sides.prefill, num_servers=SERVERS,
        )  # fmt: skip
        sent[sides] = (passage.there_s - passage.prefilled_s)[counted]
    middle = passages[MEDIAN]
    if with_interval:
        steps = sum(run.steps for run in middle.decode_runs)
        polled_s = middle.prefill_busy_s / max(1, sum(middle.prefill_steps.values())) + middle.decode_busy_s / max(1, steps)
        usual = seen[MEDIAN]
        seen[POLLED] = replace(usual, ttft_s=usual.ttft_s + polled_s, latency_s=usual.latency_s + polled_s)
        sent[POLLED] = sent[MEDIAN] + polled_s
    return Handover(
        passages=passages, spans=spans, prefill=(prompts.plan, prompts.cost), decode=plan, counted=counted, seen=seen, transfer_s=sent,
        room_s=(middle.placed_s - middle.arrival_s)[counted], queue_s=(middle.taken_s - middle.placed_s)[counted],
    )  # fmt: skip
