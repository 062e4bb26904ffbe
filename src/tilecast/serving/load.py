"""Predict an engine under load: N users always waiting for an answer, the steady state of continuous batching, and where its time goes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.engines.breakdown import Part
from tilecast.engines.interval import Interval
from tilecast.engines.setup import Setup, check_context, inputs_of, said_of, set_up, warnings_of
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.learning.profiles import Profile
from tilecast.predictors import predict_kernel
from tilecast.serving.asked import batch_of, followed, lengths_of, too_long, users_of
from tilecast.serving.breakdown import parts_of
from tilecast.serving.costs import SIDES, Costs, costs
from tilecast.serving.policy import Policy, policy_of
from tilecast.serving.room import memory_under_load, most_at_once, no_room, with_room
from tilecast.serving.schedule import Lengths, Schedule, cycled, schedule
from tilecast.serving.seen import Seen, SeenBy, median_step, seen_by_users
from tilecast.serving.served import Served
from tilecast.workloads.aggregate import Price, with_profile
from tilecast.workloads.memory import Memory
from tilecast.workloads.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(SeenBy[str]):
    """A schedule that was run, and what its users saw by side of the interval."""

    plan: Schedule
    cost: Costs
    counted: slice
    seen: Mapping[str, Seen]
    queue_s: Floats  # of the requests that count, at the median


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
    total, counted = followed(users, num_requests)
    plan = schedule(policy, users, cycled(requests, 0 if num_requests else users), total)
    cost = costs(found, plan, price)
    ends = np.concatenate([[0], np.cumsum(plan.steps)])
    seen = dict[str, Seen]()
    queue_s = np.zeros(0)
    for side in SIDES:
        clock_s = np.concatenate([[0.0], np.cumsum(cost.step_s(side) * plan.steps)])
        times = (plan.arrival, plan.taken, plan.first, plan.last)
        arrival_s, taken_s, first_s, last_s = (np.interp(steps[counted], ends, clock_s) for steps in times)
        seen[side] = seen_by_users(
            arrival_s, first_s, last_s, input_tokens=plan.input_tokens[counted], output_tokens=plan.output_tokens[counted],
            host=found.engine.host, side=side,
        )  # fmt: skip
        if side == "median_s":
            queue_s = taken_s - arrival_s
    return Load(plan=plan, cost=cost, counted=counted, seen=seen, queue_s=queue_s)


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
        return median_step(self.load.plan, self.load.cost, self.load.plan.decodes > 0)

    @property
    def basis(self) -> str:
        return self.load.cost.basis

    @property
    def mean_input_tokens(self) -> float:
        return float(np.mean(self.load.plan.input_tokens[self.load.counted]))

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
        return {
            "concurrency": self.concurrency,
            **self.rates(),
            **self.load.seen["median_s"].percentiles(),
            "mean_running_requests": running * self.groups,
            "prefill_time_fraction": float(seconds[mixed].sum() / busy),
            "host_time_fraction": float((cost.host_s["median_s"] * plan.steps).sum() / busy),
            "token_budget": self.policy.token_budget,
            "most_running_requests": self.policy.most_running * self.groups,
            "kv_cache_tokens": self.policy.cache_tokens * self.groups,
        }


def mean(values: Mapping[str, Floats]) -> Interval:
    return Interval(*(float(np.mean(values[side])) if len(values[side]) else 0.0 for side in SIDES))


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
    concurrency = users_of(concurrency)
    asked = lengths_of(isl, osl, requests)
    found = set_up(
        model, gpu, tp=tp, pp=pp, ep=ep, dp_attention=dp_attention, engine=engine, engine_settings=engine_settings, node=node, quant=quant,
        kv_dtype=kv_dtype, overrides=overrides,
    )  # fmt: skip
    lengths = batch_of(asked)
    check_context(found.config, lengths, allow_longer_context)
    price, measured = with_profile(price, profile, found.gpu)
    policy, longest = policy_of(found), max(map(sum, asked))
    groups = min(found.shard.dp * found.shard.pp, concurrency)
    users = -(-concurrency // groups)  # of one scheduler
    num_held, notes = most_at_once(policy, asked, concurrency, groups), too_long(policy, asked, found.engine.name)
    if policy.cache_tokens < longest:
        num_held, policy = 1, with_room(policy, longest, users)
        notes.append(no_room(found, longest, concurrency))
    load = run_load(found, policy, users, asked, price=price)
    memory = memory_under_load(found, policy, asked, num_held)
    return LoadPrediction(
        model=found.config, gpu=found.gpu, engine=found.engine.label, num_gpus=found.shard.num_gpus,
        node=found.node.id if found.node else None, concurrency=concurrency, policy=policy, load=load, memory=memory,
        breakdown=tuple(parts_of(load.plan, load.cost, load.plan.num_requests)), groups=groups,
        inputs=inputs_of(
            found, {"tp": tp, "pp": pp, "ep": ep, "dp_attention": dp_attention}, found.node,
            {"concurrency": concurrency, **said_of(isl, osl, requests)},
            quant=quant, overrides=overrides, engine_settings=engine_settings, profile=measured,
        ),
        warnings=(*warnings_of(found, lengths, found.node), *notes),
        profile=measured,
    )  # fmt: skip
