"""Predict prefill and decode workers apart: N users always waiting for an answer, what they see, and what the GPUs give them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.engines.breakdown import Part
from tilecast.engines.interval import Interval
from tilecast.engines.setup import check_context, inputs_of, said_of, set_up, warnings_of
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.kernels.collectives import node_of
from tilecast.learning.profiles import Profile
from tilecast.predictors import predict_kernel
from tilecast.serving.asked import batch_of, lengths_of, too_long, users_of
from tilecast.serving.breakdown import parts_of
from tilecast.serving.costs import SIDES, Costs
from tilecast.serving.handover import MEDIAN, Handover, interval, run_disaggregated
from tilecast.serving.link import Link, link_between
from tilecast.serving.policy import policy_of
from tilecast.serving.room import memory_under_load, most_at_once, no_room, with_room
from tilecast.serving.schedule import Lengths, Schedule
from tilecast.serving.seen import median_step
from tilecast.serving.served import Served
from tilecast.serving.workers import Workers
from tilecast.workloads.aggregate import Price, weakest, with_profile
from tilecast.workloads.memory import Memory
from tilecast.workloads.model import ModelConfig

MOST_WORKERS = 256
SMALL_BOX = 8  # GPUs that `layouts_of` fills


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
        warnings=(*warnings_of(found, lengths, box), *too_long(prefill.policy, asked, found.engine.name), *notes),
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
