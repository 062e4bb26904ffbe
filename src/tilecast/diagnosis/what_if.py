"""Sensitivity by re-pricing: every lever is a GPU, a box, a batch or a load that was changed and priced again.

A launch on a changed part takes its new analytic time at the learned ratio of the part as it is (`predictors/kernel.py`): trees move in
steps of a percent or two, and those would be taken for the lever's effect.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilecast import hardware
from tilecast.diagnosis.levers import GOAL, LARGEST_FACTOR, STEP, WORDS
from tilecast.engines.breakdown import HOST, Part
from tilecast.engines.many import Outcome, outcomes
from tilecast.engines.predict import Prediction, predict
from tilecast.errors import SpecError
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import Price

FACTS = ("boost_clock_hz", "num_sms", "dram_bytes_per_s", "tdp_w")
LINK, NETWORK = WORDS["link_bytes_per_s"], WORDS["network_bytes_per_s"]
LINK_RATES = ("link_bytes_per_s", "pair_bytes_per_s", "pcie_bytes_per_s")
NETWORK_RATES = ("network_bytes_per_s",)
LESS_HOST = "host time"
BATCH_FACTORS = (0.5, 1.0, 1.1, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Times:
    """Of a batch: its prefill, all its decode steps, and both; of a load: first token, time per token, and latency."""

    first_s: float
    rest_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What one change does. Fractions are of today's time; negative: it would take longer."""

    name: str
    change: str
    total_s: float
    total_saved_fraction: float
    first_saved_fraction: float
    rest_saved_fraction: float
    needed_factor: float | None  # of the lever, for a total 1.2 times as fast; None: out of reach

    def to_dict(self, first: str = "prefill", rest: str = "decode") -> dict[str, Any]:
        return {
            "lever": self.name, "change": self.change, "total_s": self.total_s, "total_saved_fraction": self.total_saved_fraction,
            f"{first}_saved_fraction": self.first_saved_fraction, f"{rest}_saved_fraction": self.rest_saved_fraction,
            "needed_factor": self.needed_factor,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    levers: tuple[Lever, ...]  # what helps most comes first
    batches: tuple[Outcome, ...]  # the same requests, fewer and more of them; empty for a file of requests

    def to_dict(self) -> dict[str, Any]:
        return {"levers": [lever.to_dict() for lever in self.levers], "batches": [_batch(outcome) for outcome in self.batches]}

    @property
    def sentence(self) -> str:
        return what_helps(self.levers, "total")


def what_helps(levers: Sequence[Lever], whole: str) -> str:
    best = levers[0]
    if best.total_saved_fraction <= 0.0005:
        return "No lever saves anything worth naming."
    reach = f"{best.needed_factor:.2f} times as much would" if best.needed_factor else "alone it cannot"
    saved = f"{best.change} saves {100 * best.total_saved_fraction:.1f} % of the {whole}"
    return f"What helps most is {best.name}: {saved}; {reach} make it 20 % faster."


def why(found: Prediction, asked: Mapping[str, Any], price: Price = predict_kernel) -> Why:
    """Every lever of `found`, which `predict(**asked)` made."""
    plain = {name: value for name, value in asked.items() if value is not None and name not in ("overrides", "gpu")}

    def timed(spec: Any, how: Price) -> Times:
        if "requests" in plain:
            whole: Any = predict(gpu=spec, price=how, **plain)
        else:
            (whole,) = _outcomes(plain, spec, [int(plain["batch"])], how)
        return Times(whole.prefill_s.median, whole.decode_s.median, whole.total_s.median)

    host = {phase: sum(part.time.median for part in found.breakdown if part.phase == phase and part.name == HOST) for phase in PHASES}

    def with_less_host(now: Times, less: float) -> Times:
        prefill, decode = now.first_s - host["prefill"] * less, now.rest_s - host["decode"] * less
        return Times(prefill, decode, prefill + decode)

    batches: list[Outcome] = []
    if "requests" not in plain:
        sizes = sorted({max(1, round(int(plain["batch"]) * factor)) for factor in BATCH_FACTORS})
        batches = _outcomes(plain, found.gpu, sizes, price)
    linked = found.node is not None and has_links(found.breakdown)
    return Why(levers=levers_of(found.gpu, linked, timed, with_less_host, price), batches=tuple(batches))


def has_links(parts: Sequence[Part]) -> bool:
    return any(hasattr(part.call.kernel, "node") for part in parts if part.call is not None)


def levers_of(
    gpu: GpuSpec,
    linked: bool,
    timed: Callable[[GpuSpec, Price], Times],
    with_less_host: Callable[[Times, float], Times],
    price: Price = predict_kernel,
    *,
    networked: bool = False,
) -> tuple[Lever, ...]:
    """Every lever of what `timed` prices on a GPU, what helps most first; `with_less_host` takes a share of the host's time away.

    `networked`: the network between boxes is a lever.
    """
    now = timed(gpu, price)

    def changed(spec: GpuSpec, link: float = 1.0, rates: Sequence[str] = LINK_RATES) -> Times:
        return timed(spec, _faster_link(price, link, rates))

    def with_fact(fact: str, factor: float) -> Times:
        value = getattr(gpu, fact) * factor
        return changed(hardware.with_overrides(gpu, {fact: round(value) if isinstance(getattr(gpu, fact), int) else value}))

    ways: dict[str, Callable[[float], Times]] = {WORDS[fact]: _bound(with_fact, fact) for fact in FACTS if getattr(gpu, fact) is not None}
    if linked:
        ways[LINK] = lambda factor: changed(gpu, factor)
    if networked:
        ways[NETWORK] = lambda factor: changed(gpu, factor, NETWORK_RATES)
    levers = [lever for name, way in ways.items() if (lever := _lever(name, "10 % more", way, now)) is not None]
    # 1.1: a tenth less of it; 2: none
    less_host = _lever(LESS_HOST, "10 % less", lambda factor: with_less_host(now, factor - 1), now, largest=2.0)
    if less_host is not None:
        needed = less_host.needed_factor
        levers.append(replace(less_host, needed_factor=2.0 - needed if needed is not None else None))
    return tuple(sorted(levers, key=lambda lever: -lever.total_saved_fraction))


PHASES = ("prefill", "decode")


def _outcomes(plain: Mapping[str, Any], spec: Any, batches: list[int], price: Price) -> list[Outcome]:
    options = {name: value for name, value in plain.items() if name not in ("model", "batch", "isl", "osl")}
    return outcomes(plain["model"], spec, [(batch, plain["isl"], plain["osl"]) for batch in batches], price=price, **options)


def _bound(way: Callable[[str, float], Times], fact: str) -> Callable[[float], Times]:
    return lambda factor: way(fact, factor)


def _faster_link(price: Price, factor: float, names: Sequence[str] = LINK_RATES) -> Price:
    """Messages in a box whose links, or whose network, are `factor` times as fast; everything else as it is."""

    def priced(kernel: Any, gpu: Any, **options: Any) -> Any:
        node = getattr(kernel, "node", None)
        if isinstance(node, NodeSpec):
            rates = {name: getattr(node, name) for name in names}
            faster = {name: rate * factor for name, rate in rates.items() if rate is not None}
            kernel = replace(kernel, node=replace(node, **faster))
        return price(kernel, gpu, **options)

    return priced


def _lever(name: str, change: str, way: Callable[[float], Times], now: Times, largest: float = LARGEST_FACTOR) -> Lever | None:
    """None where no such machine is possible."""
    try:
        then = way(STEP)
    except SpecError:
        return None
    return Lever(
        name=name,
        change=change,
        total_s=then.total_s,
        total_saved_fraction=1 - then.total_s / now.total_s,
        first_saved_fraction=1 - then.first_s / now.first_s,
        rest_saved_fraction=1 - then.rest_s / now.rest_s if now.rest_s else 0.0,
        needed_factor=_needed_factor(way, then.total_s, now.total_s, largest),
    )


def _needed_factor(way: Callable[[float], Times], step_s: float, now_s: float, largest: float) -> float | None:
    """The factor that makes the total GOAL times as fast, to a percent: first past it, then between."""
    goal = math.log(now_s / GOAL)
    below, above = (0.0, math.log(now_s)), (math.log(STEP), math.log(step_s))
    if above[1] > below[1] - 0.002:  # it hardly moves: nothing will come of more
        return None
    try:
        while above[1] > goal:
            if above[0] >= math.log(largest):
                return None
            factor = min(math.exp(above[0]) * 1.5, largest)
            below, above = above, (math.log(factor), math.log(way(factor).total_s))
        for _ in range(6):
            slope = (above[1] - below[1]) / (above[0] - below[0])
            place = min(max(below[0] + (goal - below[1]) / slope, below[0] + 1e-3), above[0] - 1e-3) if slope else above[0]
            if above[0] - below[0] < 0.01:
                break
            middle = (place, math.log(way(math.exp(place)).total_s))
            if abs(middle[1] - goal) < 0.001:
                return math.exp(place)
            below, above = (middle, above) if middle[1] > goal else (below, middle)
    except SpecError:  # no such GPU is possible
        return None
    return math.exp(above[0])


def _batch(outcome: Outcome) -> dict[str, Any]:
    names = ("ttft_s", "tpot_s", "total_s", "output_tokens_per_s", "output_tokens_per_s_per_user")
    return {"batch": outcome.batch, **{name: getattr(outcome, name).to_dict() for name in names}, "fits": outcome.fits}
