"""Predict an engine under load: N users always waiting for an answer, the steady state of continuous batching, and where its time goes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.engines.fit import memory_of, would_fit
from tilecast.engines.predict import Interval, Part, Setup, check_context, inputs_of, said_of, set_up, sizes_of, warnings_of
from tilecast.errors import InvalidInput
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.learning.profiles import Profile
from tilecast.predictors import predict_kernel
from tilecast.serving.costs import SIDES, Costs, costs
from tilecast.serving.policy import Policy, policy_of
from tilecast.serving.schedule import Lengths, Schedule, cycled, schedule
from tilecast.serving.served import Served
from tilecast.workloads.aggregate import Price, weakest, with_profile
from tilecast.workloads.graph import Batch
from tilecast.workloads.memory import Memory, activations_bytes
from tilecast.workloads.model import ModelConfig

MOST_USERS = 65_536
FEWEST_MEASURED = 48  # requests that a steady state is read from
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What users see, by side of the interval: arrays (Q,) over the requests that count, in seconds."""

    plan: Schedule
    cost: Costs
    counted: slice
    ttft_s: Mapping[str, Floats]
    tpot_s: Mapping[str, Floats]  # of requests with more than one token
    latency_s: Mapping[str, Floats]
    queue_s: Floats


def run_load(
    found: Setup,
    policy: Policy,
    users: int,
    requests: Sequence[Lengths],
    *,
    price: Price = predict_kernel,
    num_requests: int | None = None,
) -> Load:
    """`users` of one scheduler. Given `num_requests`, all of them count, the first burst too; else the steady state after it."""
    rounds = max(2, -(-FEWEST_MEASURED // users))
    total = num_requests or (rounds + 3) * users
    plan = schedule(policy, users, cycled(requests, 0 if num_requests else users), total)
    counted = slice(0, total) if num_requests else slice(2 * users, total - users)
    cost = costs(found, plan, price)
    ends = np.concatenate([[0], np.cumsum(plan.steps)])
    host = found.engine.host
    ttft, tpot, latency = dict[str, Floats](), dict[str, Floats](), dict[str, Floats]()
    several = plan.output_tokens[counted] > 1
    queue = np.zeros(0)
    for side in SIDES:
        clock = np.concatenate([[0.0], np.cumsum(cost.step_s(side) * plan.steps)])
        arrival, first, last = (np.interp(steps[counted], ends, clock) for steps in (plan.arrival, plan.first, plan.last))
        spread = {"median_s": 0.0, "low_s": -host.spread_fraction, "high_s": host.spread_fraction}[side]
        extra = (1.0 + spread) * (host.first_token_s + host.prompt_token_s * plan.input_tokens[counted])
        ttft[side] = first - arrival + extra
        latency[side] = last - arrival + extra
        tpot[side] = ((last - first)[several]) / (plan.output_tokens[counted][several] - 1)
        if side == "median_s":
            taken = np.interp(plan.taken[counted], ends, clock)
            queue = taken - arrival
    return Load(plan=plan, cost=cost, counted=counted, ttft_s=ttft, tpot_s=tpot, latency_s=latency, queue_s=queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPrediction(Served):
    """The steady state of `concurrency` users. Times are means over requests."""

    model: ModelConfig
    gpu: GpuSpec
    engine: str
    num_gpus: int
    node: str | None
    concurrency: int
    policy: Policy
    load: Load
    memory: Memory
    breakdown: tuple[Part, ...]  # seconds of GPU and host time per request
    inputs: Mapping[str, Any]
    groups: int  # schedulers: data-parallel ranks or pipeline groups that share the users
    warnings: tuple[str, ...] = ()
    profile: Profile | None = None

    @property
    def layout(self) -> str:
        return f"tp {self.inputs['tp']}"

    @property
    def ttft_s(self) -> Interval:
        return mean(self.load.ttft_s)

    @property
    def tpot_s(self) -> Interval:
        return mean(self.load.tpot_s)

    @property
    def total_s(self) -> Interval:
        """From a request's arrival to its last token."""
        return mean(self.load.latency_s)

    @property
    def queue_s(self) -> float:
        return float(np.mean(self.load.queue_s))

    @property
    def decode_step_s(self) -> Interval:
        """The median step that decodes."""
        plan, cost = self.load.plan, self.load.cost
        mine = plan.decodes > 0
        if not mine.any():
            return Interval(0.0, 0.0, 0.0)
        return Interval(*(weighted_median(cost.step_s(side)[mine], plan.steps[mine]) for side in SIDES))

    @property
    def basis(self) -> str:
        return self.load.cost.basis

    @property
    def mean_output_tokens(self) -> float:
        return float(np.mean(self.load.plan.output_tokens[self.load.counted]))

    @property
    def decode_steps(self) -> int:
        return int(self.load.plan.output_tokens.max()) - 1

    def schedules(self) -> Iterator[tuple[str | None, Schedule, Costs]]:
        """Steps that were run and what they cost, with the phase that the breakdown puts them in; None: that of each kind of kernels."""
        yield None, self.load.plan, self.load.cost

    def serving(self) -> dict[str, Any]:
        plan, cost = self.load.plan, self.load.cost
        seconds = cost.step_s("median_s") * plan.steps
        busy, mixed = float(seconds.sum()), plan.prefill_tokens > 0
        running = float((plan.decodes * seconds).sum() / busy)
        asked = float(np.mean(plan.input_tokens[self.load.counted]))
        given = self.mean_output_tokens
        return {
            "concurrency": self.concurrency,
            "output_tokens_per_s_per_gpu": self.output_tokens_per_s_per_gpu.to_dict(),
            "output_tokens_per_s_per_user": self.output_tokens_per_s_per_user.to_dict(),
            "total_tokens_per_s_per_gpu": self.output_tokens_per_s_per_gpu.per(given / (asked + given)).to_dict(),
            "requests_per_s": self.output_tokens_per_s.per(given).to_dict(),
            "queue_s": self.queue_s,
            **{f"{name}_percentiles": percentiles(values["median_s"]) for name, values in _seen(self.load).items()},
            "mean_running_requests": running * self.groups,
            "prefill_time_fraction": float(seconds[mixed].sum() / busy),
            "host_time_fraction": float((cost.host_s["median_s"] * plan.steps).sum() / busy),
            "token_budget": self.policy.token_budget,
            "most_running_requests": self.policy.most_running * self.groups,
            "kv_cache_tokens": self.policy.cache_tokens * self.groups,
        }


def mean(values: Mapping[str, Floats]) -> Interval:
    return Interval(*(float(np.mean(values[side])) if len(values[side]) else 0.0 for side in SIDES))


def _seen(load: Load) -> dict[str, Mapping[str, Floats]]:
    return {"ttft_s": load.ttft_s, "tpot_s": load.tpot_s, "total_s": load.latency_s}


def percentiles(values: Floats) -> dict[str, float]:
    return {f"p{each}": float(np.percentile(values, each)) if len(values) else 0.0 for each in PERCENTILES}


def weighted_median(values: Floats, counts: np.ndarray) -> float:
    order = np.argsort(values)
    sums = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])


def predict_load(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    gpu: str | GpuSpec,
    *,
    concurrency: int,
    isl: int | None = None,
    osl: int | None = None,
    requests: Sequence[Lengths] | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp_attention: int = 1,
    engine: str = "sglang",
    engine_settings: Mapping[str, object] | None = None,
    node: str | None = None,
    quant: str | None = None,
    kv_dtype: str | None = None,
    allow_longer_context: bool = False,
    overrides: Mapping[str, object] | None = None,
    profile: Profile | str | Path | None = None,
    price: Price = predict_kernel,
) -> LoadPrediction:
    """`concurrency` users, each with one request of `isl` and `osl` tokens in flight, or with those of `requests` in turn.

    >>> found = predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=32, isl=1024, osl=256, engine="vllm")
    >>> found.ttft_s.median > found.tpot_s.median > 0
    True
    """
    check_users(concurrency)
    asked = lengths_of(isl, osl, requests)
    found = set_up(
        model, gpu, tp=tp, pp=pp, ep=ep, dp_attention=dp_attention, engine=engine, engine_settings=engine_settings, node=node, quant=quant,
        kv_dtype=kv_dtype, overrides=overrides,
    )  # fmt: skip
    lengths = Batch(tuple(pair[0] for pair in asked), tuple(pair[1] for pair in asked))
    check_context(found.config, lengths, allow_longer_context)
    price, measured = with_profile(price, profile, found.gpu)
    policy = policy_of(found)
    longest = max(asked, key=sum)
    if policy.cache_tokens < sum(longest):
        policy = with_room(policy, sum(longest))  # it does not fit, which the memory says; times are given all the same
    groups = min(found.shard.dp * found.shard.pp, concurrency)
    load = run_load(found, policy, -(-concurrency // groups), asked, price=price)
    memory = memory_under_load(found, policy, asked, most_at_once(policy, asked, concurrency, groups))
    return LoadPrediction(
        model=found.config, gpu=found.gpu, engine=found.engine.label, num_gpus=found.shard.num_gpus,
        node=found.node.id if found.node else None, concurrency=concurrency, policy=policy, load=load, memory=memory,
        breakdown=tuple(parts_of(load.plan, load.cost, load.plan.num_requests)), groups=groups,
        inputs=inputs_of(
            found, {"tp": tp, "pp": pp, "ep": ep, "dp_attention": dp_attention}, found.node,
            {"concurrency": concurrency, **said_of(isl, osl, requests)},
            quant=quant, overrides=overrides, engine_settings=engine_settings, profile=measured,
        ),
        warnings=(*warnings_of(found.config, lengths, found.gpu, found.node), *too_long(policy, asked, found.engine.name)),
        profile=measured,
    )  # fmt: skip


def check_users(concurrency: object) -> None:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_USERS:
        raise InvalidInput(f"concurrency = {concurrency!r} must be a whole number from 1 to {MOST_USERS:,}")


def memory_under_load(found: Setup, policy: Policy, asked: Sequence[Lengths], num_held: int) -> Memory:
    """Of the fullest GPU of a worker whose caches hold so many requests together."""
    counted = [asked[place % len(asked)] for place in range(num_held)]
    share = policy.reserved_output_fraction if len(counted) > 1 else 1.0
    running = Batch(tuple(pair[0] for pair in counted), tuple(max(1, int(share * pair[1])) for pair in counted))
    memory = memory_of(found.config, found.shard, found.engine, found.gpu, running, found.kv_dtype)
    budget = min(policy.token_budget, sum(running.input_tokens))
    active = activations_bytes(found.config, found.shard, budget, budget * found.shard.dp, len(counted))
    memory = replace(memory, activations_bytes=active)
    if len(counted) > 1:  # an engine never takes in more than its cache holds; one request must fit
        memory = replace(memory, kv_cache_bytes=memory.kv_cache_bytes - min(memory.kv_cache_bytes, memory.missing_bytes))
    if not memory.fits:
        choices = would_fit(found.config, found.shard, found.engine, found.gpu, running, found.kv_dtype)
        memory = replace(memory, would_fit=tuple(choices))
    return memory


def too_long(policy: Policy, asked: Sequence[Lengths], engine: str) -> list[str]:
    """An engine that takes prompts whole refuses one that no step has room for; it is predicted as a step of its own."""
    longest = max(pair[0] for pair in asked)
    if policy.chunks or longest <= policy.token_budget:
        return []
    room = f"prompts of {longest:,} tokens are more than the {policy.token_budget:,} of a step"
    return [f"{room}, which {engine} takes only when it may cut them: --engine-set chunks_prompts=1; here they get a step of their own"]


def lengths_of(isl: int | None, osl: int | None, requests: Sequence[Lengths] | None) -> list[Lengths]:
    if requests is not None:
        if isl is not None or osl is not None:
            raise InvalidInput("give isl and osl, or requests, not both")
        pairs = [(int(asked), int(given)) for asked, given in requests]
    elif isl is None or osl is None:
        raise InvalidInput("isl and osl missing: give both, or requests")
    else:
        Batch.uniform(1, isl, osl)
        pairs = [(isl, osl)]
    Batch(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))
    return pairs


def with_room(policy: Policy, tokens: int) -> Policy:
    return replace(policy, cache_tokens=-(-tokens // policy.block_size) * policy.block_size)


def most_at_once(policy: Policy, asked: Sequence[Lengths], users: int, groups: int) -> int:
    """Requests in the cache together at most."""
    mean = max(1.0, float(np.mean([policy.reserves(*pair) for pair in asked])))
    return max(1, min(users, policy.most_running * groups, groups * int(policy.cache_tokens // mean)))


def parts_of(plan: Schedule, cost: Costs, number: int) -> list[Part]:
    """Every kernel's seconds per request, over the whole schedule."""
    steps = plan.steps.astype(np.float64)
    whole = float((cost.step_s("median_s") * steps).sum())
    parts: dict[object, Part] = {}
    for curve in cost.curves:
        often = curve.per_knot(steps)
        for priced, mine in curve.pieces:
            weights = often[mine]
            for time in priced.calls:
                call = time.call
                total = Interval(*(float(weights @ getattr(time, side)) for side in SIDES))
                key = (curve.phase, call.name, call.kernel.identity)
                part = Part(
                    phase=curve.phase, name=call.name, family=call.kernel.family, identity=call.kernel.identity,
                    sizes=sizes_of(call.kernel), launches_per_step=call.count, time=total.per(number), share_fraction=total.median / whole,
                    bound_by=time.bound_by, bound_s=float(weights @ time.bound_s) / number, basis=time.basis, call=call,
                )  # fmt: skip
                before = parts.get(key)
                parts[key] = part if before is None else _added(before, part)
    host = Interval(*(float((cost.host_s[side] * steps).sum()) for side in SIDES))
    alone = Part(
        phase="host", name="host", family="host", identity=None, sizes={}, launches_per_step=1, time=host.per(number),
        share_fraction=host.median / whole, bound_by="host", bound_s=0.0, basis="analytic",
    )  # fmt: skip
    return [*parts.values(), alone]


def _added(one: Part, other: Part) -> Part:
    """The same kernel in steps of other sizes."""
    basis, longer = weakest((one.basis, other.basis)), max(one, other, key=lambda part: part.time.median)
    share = one.share_fraction + other.share_fraction
    return replace(longer, time=one.time + other.time, share_fraction=share, bound_s=one.bound_s + other.bound_s, basis=basis)
