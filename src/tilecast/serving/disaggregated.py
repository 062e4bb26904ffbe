"""Predict prefill and decode workers apart: N users always waiting for an answer, what they see, and what the GPUs give them.

Steps depend on times here, and times on which steps there are: workers are run once with the times of likely steps, what they ran is
priced, and they are run again with these: at the median, and with either kind of worker at either end of its interval. A slower decode
worker may make first tokens come sooner, as users ask less often, so the ends of the interval are made of these runs (`interval`).
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.engines.breakdown import Part
from tilecast.engines.fit import stage_caches
from tilecast.engines.interval import Interval
from tilecast.engines.setup import Setup, check_context, inputs_of, said_of, set_up, warnings_of
from tilecast.errors import InvalidInput
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import SendRecv, node_of
from tilecast.learning.profiles import Profile
from tilecast.predictors import predict_kernel
from tilecast.serving.asked import batch_of, followed, lengths_of, too_long, users_of
from tilecast.serving.breakdown import parts_of
from tilecast.serving.costs import SIDES, Costs, costs
from tilecast.serving.policy import Policy, policy_of
from tilecast.serving.pools import DecodeRun, DecodeTimes, Passage, Pool, PrefillStep, Spans, run_pools
from tilecast.serving.room import memory_under_load, most_at_once, no_room, with_room
from tilecast.serving.schedule import Lengths, Run, Schedule, cycled, schedule, steps_alone
from tilecast.serving.seen import Seen, SeenBy, median_step, seen_by_users
from tilecast.serving.served import Served
from tilecast.workloads.aggregate import Price, weakest, with_profile
from tilecast.workloads.graph import Batch
from tilecast.workloads.memory import Memory
from tilecast.workloads.model import ModelConfig

SERVERS = 2  # frontends that a request passes: that of the prefill and that of the decode worker
MOST_WORKERS = 256
SMALL_BOX = 8  # GPUs that `layouts_of` fills
REQUEST_KNOTS, KEY_KNOTS = 24, 5
MOST_COMPARED = 192  # prefill steps that were priced, among which one like another is looked for
LIKELY_USERS = (1, 2, 4, 8)  # of one prefill worker, whose steps are priced before it is known which ones run


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
class Workers:
    """Workers of one kind: how many, and how each is set up."""

    number: int
    found: Setup
    policy: Policy

    @property
    def num_gpus(self) -> int:
        return self.number * self.found.shard.num_gpus

    @property
    def pool(self) -> Pool:
        gives = bool(self.found.engine.fact("decode_gives_first_token"))
        return Pool(policy=self.policy, workers=self.number, ranks=self.found.shard.dp * self.found.shard.pp, gives_first_token=gives)


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
        _prompts(prefill.found, _likely_steps(prefill.policy, requests, prefill.pool.ranks), price),
        _tokens(decode.found, [DecodeRun(0, int(number), ends[0]) for number in likely], ends, price)[1],
    )
    prompts = _prompts(prefill.found, first.prefill_steps, price)
    keys = [run.keys for run in first.decode_runs] or list(ends)
    plan, tokens = _tokens(decode.found, first.decode_runs or [DecodeRun(0, 1, ends[0])], (min(keys), max(keys)), price)
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


# ---- times of steps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prefill steps that were priced; one that was not takes the time per token of the one most like it."""

    steps: tuple[PrefillStep, ...]
    plan: Schedule
    cost: Costs

    def of(self, side: str) -> Callable[[PrefillStep], float]:
        seconds: dict[PrefillStep, float] = dict(zip(self.steps, self.cost.step_s(side).tolist(), strict=True))
        few = sorted(self.steps)
        few = [few[place] for place in np.unique(np.linspace(0, len(few) - 1, MOST_COMPARED).round().astype(np.int64))]
        known = np.log([_sizes(step) for step in few])

        def prefill_s(step: PrefillStep) -> float:
            if step not in seconds:
                near = few[int(np.argmin(np.abs(known - np.log(_sizes(step))).sum(axis=1)))]
                seconds[step] = seconds[near] * step.tokens / near.tokens
            return seconds[step]

        return prefill_s


def _sizes(step: PrefillStep) -> tuple[float, ...]:
    """What two steps are compared by."""
    return step.tokens, step.alike, step.keys, step.mean_tokens


def _likely_steps(policy: Policy, requests: Sequence[Lengths], ranks: int) -> Counter[PrefillStep]:
    """Of one prefill worker with few users and with many: of its ranks one, half or all have as much to do as the fullest."""
    found = Counter[PrefillStep]()
    for users in LIKELY_USERS:
        plan = schedule(policy, users, lambda number: (requests[number % len(requests)][0], 1), max(2 * users, min(len(requests), 32)))
        for tokens, chunks, keys in zip(plan.prefill_tokens, plan.chunks, plan.chunk_context, strict=True):
            if tokens:
                for share in sorted({1.0 / ranks, 0.5 if ranks > 1 else 1.0, 1.0}):
                    found[PrefillStep(int(tokens), int(chunks), float(keys), int(chunks), float(tokens) * share)] += 1
    return found


def _prompts(found: Setup, steps: Counter[PrefillStep], price: Price) -> Prompts:
    runs = [
        Run(often, prefill_tokens=step.tokens, chunks=step.alike, chunk_context=step.keys, prompts_done=step.chunks)
        for step, often in steps.items()
    ]
    plan = steps_alone(runs, [step.mean_tokens for step in steps])
    return Prompts(steps=tuple(steps), plan=plan, cost=costs(found, plan, price))


def _tokens(
    found: Setup, runs: Sequence[DecodeRun], ends: tuple[float, float], price: Price
) -> tuple[tuple[Schedule, Costs], dict[str, DecodeTimes]]:
    """Price the given decode runs, and tabulate a step's time over its requests and their mean keys, the latter between `ends`."""
    distinct = np.unique([run.requests for run in runs])
    if len(distinct) > REQUEST_KNOTS:
        distinct = np.unique(distinct[np.linspace(0, len(distinct) - 1, REQUEST_KNOTS).round().astype(np.int64)])
    keys = np.unique(np.linspace(*ends, KEY_KNOTS))
    ran = [Run(run.steps, decodes=run.requests, context=run.keys) for run in runs]
    plan = steps_alone([*ran, *(Run(0, decodes=requests, context=context) for requests in distinct for context in keys)])
    cost = costs(found, plan, price)
    tables = {side: cost.step_s(side)[len(ran) :].reshape(len(distinct), len(keys)) for side in SIDES}
    return (plan, cost), {side: DecodeTimes(requests=distinct, keys=keys, seconds=table) for side, table in tables.items()}


# ---- the cache's way ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a prompt's cache crosses: seconds by its tokens and side of the interval."""

    kind: str  # of the link in the box, or of the network between boxes
    is_network: bool
    seconds: Mapping[str, Mapping[int, float]]
    bytes: Mapping[int, float]  # that the busiest GPU sends or takes
    basis: str

    def of(self, side: str) -> Callable[[int], float]:
        return self.seconds[side].__getitem__


def link_between(prefill: Workers, decode: Workers, requests: Sequence[Lengths], node: NodeSpec, price: Price) -> Link:
    """Every GPU sends its share to the GPUs that need it; the one with most to send or to take decides."""
    lengths = sorted({pair[0] for pair in requests})
    together = prefill.num_gpus + decode.num_gpus
    apart = together > node.num_gpus
    if apart and node.network_bytes_per_s is None:
        raise InvalidInput(f"{together} GPUs are more than {node.id} has, {node.num_gpus}, and no network between such boxes is known")
    held = [
        max(
            max(stage_caches(w.found.config, w.found.shard, w.found.engine, Batch((n,), (1,)), w.found.kv_dtype)) for w in (prefill, decode)
        )
        for n in lengths
    ]
    message = SendRecv(bytes=np.array(held, dtype=np.float64), num_gpus=2, node=node, gpus_per_node=1 if apart else None)
    sent = price(message, prefill.found.gpu)
    seconds = {side: dict(zip(lengths, np.asarray(getattr(sent, side)).tolist(), strict=True)) for side in SIDES}
    kind = (node.network_kind or "network") if apart else node.link_kind
    basis = weakest(str(each) for each in sent.basis)
    return Link(kind=kind, is_network=apart, seconds=seconds, bytes=dict(zip(lengths, map(float, held), strict=True)), basis=basis)


# ---- the prediction ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedPrediction(Served):
    """The steady state of `concurrency` users. Times are means over requests."""

    model: ModelConfig
    gpu: GpuSpec
    engine: str
    node: str
    concurrency: int
    prefill: Workers
    decode: Workers
    handover: Handover
    link: Link
    memories: Mapping[str, Memory]  # prefill, decode: a GPU of each
    breakdown: tuple[Part, ...]  # seconds of GPU and host time per request
    inputs: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    profile: Profile | None = None

    @property
    def layout(self) -> str:
        """2P1D tp 1+2: two prefill workers of one GPU, one decode worker of two."""
        tps = list(dict.fromkeys(str(workers.found.shard.tp) for workers in (self.prefill, self.decode)))
        return f"{self.prefill.number}P{self.decode.number}D tp {'+'.join(tps)}"

    @property
    def num_gpus(self) -> int:
        return self.prefill.num_gpus + self.decode.num_gpus

    @property
    def ttft_s(self) -> Interval:
        return interval(self.handover.ttft_s)

    @property
    def tpot_s(self) -> Interval:
        return interval(self.handover.tpot_s)

    @property
    def total_s(self) -> Interval:
        """From a request's arrival to its last token."""
        return interval(self.handover.latency_s)

    @property
    def transfer_s(self) -> Interval:
        return interval(self.handover.transfer_s)

    @property
    def queue_s(self) -> float:
        """For room on a decode worker, and for a prefill worker to start."""
        return self.room_s + float(np.mean(self.handover.queue_s))

    @property
    def room_s(self) -> float:
        return float(np.mean(self.handover.room_s))

    @property
    def decode_step_s(self) -> Interval:
        """The median step of the decode workers."""
        plan, cost = self.handover.decode
        return median_step(plan, cost, plan.steps > 0)

    @property
    def memory(self) -> Memory:
        """Of the kind of worker with less room to spare."""
        return min(self.memories.values(), key=lambda memory: memory.capacity_bytes - memory.total_bytes)

    @property
    def basis(self) -> str:
        return weakest((self.handover.prefill[1].basis, self.handover.decode[1].basis, self.link.basis))

    @property
    def mean_input_tokens(self) -> float:
        return self._mean_tokens("input_tokens")

    @property
    def mean_output_tokens(self) -> float:
        return self._mean_tokens("output_tokens")

    @property
    def decode_steps(self) -> int:
        return int(self.handover.median.output_tokens.max()) - 1

    def busy_fraction(self, kind: str) -> float:
        """Of the time of all workers of a kind: what a request takes of it, times how many there are."""
        passage = self.handover.median
        workers, busy = (self.prefill, passage.prefill_busy_s) if kind == "prefill" else (self.decode, passage.decode_busy_s)
        per_s = self.concurrency / self.total_s.median
        return min(1.0, busy / len(passage.arrival_s) * per_s / workers.number)

    def schedules(self) -> Iterator[tuple[str | None, Schedule, Costs]]:
        """Steps that were run and what they cost, with the phase that the breakdown puts them in."""
        yield "prefill", *self.handover.prefill
        yield "decode", *self.handover.decode

    def serving(self) -> dict[str, Any]:
        kinds = {"prefill": self.prefill, "decode": self.decode}
        return {
            "concurrency": self.concurrency,
            "disaggregated": self.inputs["disaggregated"],
            **self.rates(),
            "room_s": self.room_s,
            "kv_transfer_s": self.transfer_s.to_dict(),
            "kv_transfer_bytes_per_gpu": max(self.link.bytes.values()),
            "kv_transfer_over": self.link.kind,
            **self.handover.seen[MEDIAN].percentiles(),
            **{f"{kind}_workers": self._told(kind, workers) for kind, workers in kinds.items()},
        }

    def _told(self, kind: str, workers: Workers) -> dict[str, Any]:
        shard = workers.found.shard
        return {
            "workers": workers.number, "tp": shard.tp, "pp": shard.pp, "ep": shard.ep, "dp_attention": shard.dp,
            "num_gpus": workers.num_gpus, "busy_fraction": self.busy_fraction(kind), "memory": self.memories[kind].to_dict(),
            "token_budget": workers.policy.token_budget, "most_running_requests": workers.policy.most_running * workers.pool.lanes,
            "kv_cache_tokens": workers.policy.cache_tokens * workers.pool.lanes,
        }  # fmt: skip

    def _mean_tokens(self, name: str) -> float:
        return float(np.mean(getattr(self.handover.median, name)[self.handover.counted]))


def layouts_of(tp: int, prefill_tp: int | None = None, decode_tp: int | None = None) -> list[str]:
    """Every number of workers that a box of 8 has room for; of larger workers one of each."""
    prefill, decode = prefill_tp or tp, decode_tp or tp
    most = max(SMALL_BOX, prefill + decode)
    return [f"{x}P{y}D" for x in range(1, most) for y in range(1, most) if x * prefill + y * decode <= most]


def workers_in(layout: str) -> tuple[int, int]:
    """(2, 1) from "2P1D"."""
    found = re.fullmatch(r"(\d+)P(\d+)D", layout.strip(), flags=re.IGNORECASE)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(1 <= number <= MOST_WORKERS for number in numbers):
        raise InvalidInput(
            f"disaggregated = {layout!r} must name prefill and decode workers such as 2P1D, from 1 to {MOST_WORKERS} of each, or auto alone"
        )
    return numbers


def predict_disaggregated(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    gpu: str | GpuSpec,
    *,
    disaggregated: str,
    concurrency: int,
    isl: int | None = None,
    osl: int | None = None,
    requests: Sequence[Lengths] | None = None,
    tp: int = 1,
    ep: int = 1,
    dp_attention: int = 1,
    prefill_tp: int | None = None,
    prefill_ep: int | None = None,
    prefill_dp_attention: int | None = None,
    decode_tp: int | None = None,
    decode_ep: int | None = None,
    decode_dp_attention: int | None = None,
    engine: str = "sglang",
    engine_settings: Mapping[str, object] | None = None,
    node: str | None = None,
    quant: str | None = None,
    kv_dtype: str | None = None,
    allow_longer_context: bool = False,
    overrides: Mapping[str, object] | None = None,
    profile: Profile | str | Path | None = None,
    price: Price = predict_kernel,
    with_interval: bool = True,
) -> DisaggregatedPrediction:
    """`concurrency` users of the workers that `disaggregated` names; `tp` is of both kinds unless `prefill_tp` or `decode_tp` says more.

    Without `with_interval` the median alone is run, in less time: both ends of every interval are it.

    >>> found = predict_disaggregated("Qwen/Qwen3-8B", "h100-sxm", disaggregated="2P1D", concurrency=32, isl=1024, osl=256, decode_tp=2)
    >>> found.num_gpus, found.transfer_s.median < found.ttft_s.median
    (4, True)
    """
    concurrency = users_of(concurrency)
    numbers = workers_in(disaggregated)
    asked = lengths_of(isl, osl, requests)
    common: dict[str, Any] = {
        "engine": engine, "engine_settings": engine_settings, "node": node, "quant": quant, "kv_dtype": kv_dtype, "overrides": overrides,
    }  # fmt: skip
    shapes: dict[str, dict[str, Any]] = {
        "prefill": {"tp": prefill_tp or tp, "ep": prefill_ep or ep, "dp_attention": prefill_dp_attention or dp_attention},
        "decode": {"tp": decode_tp or tp, "ep": decode_ep or ep, "dp_attention": decode_dp_attention or dp_attention},
    }
    setups = {kind: set_up(model, gpu, **shape, **common) for kind, shape in shapes.items()}
    found = setups["prefill"]
    if found.config.is_encoder:
        raise InvalidInput(f"{found.config.name} has no decode to put on workers of its own")
    lengths = batch_of(asked)
    check_context(found.config, lengths, allow_longer_context)
    price, measured = with_profile(price, profile, found.gpu)
    needed = {"prefill": max(prompt for prompt, _ in asked), "decode": max(map(sum, asked))}
    workers, crowded, notes = dict[str, Workers](), set[str](), list[str]()
    for (kind, each), number in zip(setups.items(), numbers, strict=True):
        policy = policy_of(each)
        if policy.cache_tokens < needed[kind]:
            policy = with_room(policy, needed[kind], concurrency)
            crowded.add(kind)
            notes.append(f"{kind} workers: {no_room(each, needed[kind], concurrency)}")
        workers[kind] = Workers(number=number, found=each, policy=policy)
    prefill, decode = workers["prefill"], workers["decode"]
    box = found.node or decode.found.node or node_of(found.gpu, node)
    link = link_between(prefill, decode, asked, box, price)
    handover = run_disaggregated(
        prefill, decode, concurrency, asked, {side: link.of(side) for side in SIDES}, price=price, with_interval=with_interval
    )  # fmt: skip
    prompts = [(pair[0], 1) for pair in asked]
    together = max(1, min(concurrency, prefill.policy.token_budget // max(1, round(float(np.mean([pair[0] for pair in asked]))))))
    decoding = most_at_once(decode.policy, asked, -(-concurrency // decode.number), decode.found.shard.dp)
    memories = {
        "prefill": memory_under_load(prefill.found, prefill.policy, prompts, 1 if "prefill" in crowded else together),
        "decode": memory_under_load(decode.found, decode.policy, asked, 1 if "decode" in crowded else decoding),
    }
    layout = {"disaggregated": f"{numbers[0]}P{numbers[1]}D", "tp": decode.found.shard.tp}
    layout |= {f"{kind}_{name}": value for kind, shape in shapes.items() for name, value in shape.items()}
    total = len(handover.median.arrival_s)
    return DisaggregatedPrediction(
        model=found.config, gpu=found.gpu, engine=found.engine.label, node=box.id, concurrency=concurrency, prefill=prefill, decode=decode,
        handover=handover, link=link, memories=memories, breakdown=tuple(_parts(handover, total, prefill, decode)),
        inputs=inputs_of(
            found, layout, box, {"concurrency": concurrency, **said_of(isl, osl, requests)},
            quant=quant, overrides=overrides, engine_settings=engine_settings, profile=measured,
        ),
        warnings=(*warnings_of(found.config, lengths, found.gpu, box), *too_long(prefill.policy, asked, found.engine.name), *notes),
        profile=measured,
    )  # fmt: skip


def _parts(handover: Handover, num_requests: int, prefill: Workers, decode: Workers) -> list[Part]:
    """Of prefill and decode workers; a step counts once for every rank that takes it. Shares are of the busy time of both together."""
    kinds = {
        kind: (replace(plan, steps=plan.steps * workers.pool.ranks), cost)
        for kind, (plan, cost), workers in (("prefill", handover.prefill, prefill), ("decode", handover.decode, decode))
    }
    busy = {kind: float((cost.step_s("median_s") * plan.steps).sum()) for kind, (plan, cost) in kinds.items()}
    whole = sum(busy.values())
    return [
        replace(part, phase=kind, share_fraction=part.share_fraction * busy[kind] / whole)
        for kind, (plan, cost) in kinds.items()
        if busy[kind]
        for part in parts_of(plan, cost, num_requests)
    ]
