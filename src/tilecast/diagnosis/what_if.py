"""Sensitivity by re-pricing: every lever is a GPU, a box or a batch that was changed and priced again.

The learned correction stays what it is on the real GPU: it was learned on real ones, its trees move in steps of a percent or two, and
those would be taken for the lever's effect. So a launch on a changed part takes its new analytic time at its old ratio of median to
analytic, and at least its new bound.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilecast import hardware
from tilecast.engines.many import Outcome, outcomes
from tilecast.engines.predict import HOST, Prediction, predict
from tilecast.errors import SpecError
from tilecast.hardware import NodeSpec
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import Price

STEP = 1.1  # how far each lever is moved
GOAL = 1.2  # "20 % faster"
LARGEST_FACTOR = 16.0
FACTS = {
    "boost_clock_hz": "SM clock",
    "num_sms": "number of SMs",
    "dram_bytes_per_s": "DRAM bandwidth",
    "tdp_w": "power limit",
}
LINK = "link bandwidth"
LESS_HOST = "host time"
BATCH_FACTORS = (0.5, 1.0, 1.1, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Times:
    prefill_s: float
    decode_s: float  # all steps

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What one change does. Fractions are of today's time; negative: it would take longer."""

    name: str
    change: str
    total_s: float
    total_saved_fraction: float
    prefill_saved_fraction: float
    decode_saved_fraction: float
    needed_factor: float | None  # of the lever, for a total 1.2 times as fast; None: out of reach

    def to_dict(self) -> dict[str, Any]:
        return {
            "lever": self.name, "change": self.change, "total_s": self.total_s, "total_saved_fraction": self.total_saved_fraction,
            "prefill_saved_fraction": self.prefill_saved_fraction, "decode_saved_fraction": self.decode_saved_fraction,
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
        best = self.levers[0]
        if best.total_saved_fraction <= 0.0005:
            return "No lever saves anything worth naming."
        reach = f"{best.needed_factor:.2f} times as much would" if best.needed_factor else "alone it cannot"
        saved = f"{best.change} saves {100 * best.total_saved_fraction:.1f} % of the total"
        return f"What helps most is {best.name}: {saved}; {reach} make it 20 % faster."


def why(found: Prediction, asked: Mapping[str, Any], price: Price = predict_kernel) -> Why:
    """Every lever of `found`, which `predict(**asked)` made."""
    plain = {name: value for name, value in asked.items() if value is not None and name not in ("overrides", "gpu")}
    real: list[Any] = []  # every price of the real GPU, in the order in which they are asked for

    def recorded(kernel: Any, gpu: Any, **conditions: Any) -> Any:
        real.append(price(kernel, gpu, **conditions))
        return real[-1]

    def priced(spec: Any, how: Price) -> Times:
        if "requests" in plain:
            whole = predict(gpu=spec, price=how, **plain)
            return Times(whole.prefill_s.median, whole.decode_s.median)
        (one,) = _outcomes(plain, spec, [int(plain["batch"])], how)
        return Times(one.prefill_s.median, one.decode_s.median)

    now = priced(found.gpu, recorded)

    def changed(spec: Any, link: float = 1.0) -> Times:
        return priced(spec, _corrected_as(real, _faster_link(_physics(price), link)))

    def with_fact(fact: str, factor: float) -> Times:
        value = getattr(found.gpu, fact) * factor
        return changed(hardware.with_overrides(found.gpu, {fact: round(value) if isinstance(getattr(found.gpu, fact), int) else value}))

    def with_link(factor: float) -> Times:
        return changed(found.gpu, factor)

    host = {phase: sum(part.time.median for part in found.breakdown if part.phase == phase and part.name == HOST) for phase in PHASES}

    def with_host(factor: float) -> Times:  # 1.1: a tenth less; 2: none
        return Times(now.prefill_s - host["prefill"] * (factor - 1), now.decode_s - host["decode"] * (factor - 1))

    ways: dict[str, Callable[[float], Times]] = {
        words: _bound(with_fact, fact) for fact, words in FACTS.items() if getattr(found.gpu, fact) is not None
    }
    if found.node is not None and any(hasattr(part.call.kernel, "node") for part in found.breakdown if part.call is not None):
        ways[LINK] = with_link
    levers = [lever for name, way in ways.items() if (lever := _lever(name, "10 % more", way, now)) is not None]
    less_host = _lever(LESS_HOST, "10 % less", with_host, now, largest=2.0)
    if less_host is not None:
        needed = less_host.needed_factor
        levers.append(replace(less_host, needed_factor=2.0 - needed if needed is not None else None))
    batches: list[Outcome] = []
    if "requests" not in plain:
        sizes = sorted({max(1, round(int(plain["batch"]) * factor)) for factor in BATCH_FACTORS})
        batches = _outcomes(plain, found.gpu, sizes, price)
    return Why(levers=tuple(sorted(levers, key=lambda lever: -lever.total_saved_fraction)), batches=tuple(batches))


PHASES = ("prefill", "decode")


def _outcomes(plain: Mapping[str, Any], spec: Any, batches: list[int], price: Price) -> list[Outcome]:
    options = {name: value for name, value in plain.items() if name not in ("model", "batch", "isl", "osl")}
    return outcomes(plain["model"], spec, [(batch, plain["isl"], plain["osl"]) for batch in batches], price=price, **options)


def _bound(way: Callable[[str, float], Times], fact: str) -> Callable[[float], Times]:
    return lambda factor: way(fact, factor)


def _physics(price: Price) -> Price:
    """The same prices without their correction, where that can be left out; what a profile adds is in the real prices."""
    if price is not predict_kernel:
        return price

    def priced(kernel: Any, gpu: Any, **conditions: Any) -> Any:
        return predict_kernel(kernel, gpu, learned=False, **{name: value for name, value in conditions.items() if name != "profile"})

    return priced


def _corrected_as(real: Sequence[Any], price: Price) -> Price:
    """Prices with the corrections of `real`: the same launches, in the same order, on the GPU as it is."""
    before = iter(real)

    def priced(kernel: Any, gpu: Any, **conditions: Any) -> Any:
        old, new = next(before), price(kernel, gpu, **conditions)
        assert old.kernel.family == kernel.family and len(old.median_s) == len(new.median_s), "a changed GPU runs other kernels"
        median_s = np.maximum(new.analytic_s * old.median_s / old.analytic_s, new.bound_s)
        scale = median_s / new.median_s
        return replace(new, median_s=median_s, low_s=new.low_s * scale, high_s=new.high_s * scale)

    return priced


def _faster_link(price: Price, factor: float) -> Price:
    """Collectives in a box whose links are `factor` times as fast; everything else as it is."""

    def priced(kernel: Any, gpu: Any, **options: Any) -> Any:
        node = getattr(kernel, "node", None)
        if isinstance(node, NodeSpec):
            rates = {name: getattr(node, name) for name in ("link_bytes_per_s", "pair_bytes_per_s", "pcie_bytes_per_s")}
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
        prefill_saved_fraction=1 - then.prefill_s / now.prefill_s,
        decode_saved_fraction=1 - then.decode_s / now.decode_s if now.decode_s else 0.0,
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
