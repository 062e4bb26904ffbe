"""What users see of a load: times of every request that counts, and what is said of many of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tilecast.engines.base import Host
from tilecast.engines.interval import Interval
from tilecast.execution.tasks import Floats
from tilecast.serving.costs import SIDES, Costs
from tilecast.serving.schedule import Schedule

PERCENTILES = (50, 90, 99)
Way = TypeVar("Way")  # in which a load was run: a side of the interval, or sides of both kinds of workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Arrays (Q,) over the requests that count, in seconds."""

    ttft_s: Floats
    tpot_s: Floats  # of requests with more than one token
    latency_s: Floats  # from a request's arrival to its last token

    def percentiles(self) -> dict[str, dict[str, float]]:
        times = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "total_s": self.latency_s}
        return {f"{name}_percentiles": percentiles(values) for name, values in times.items()}


class SeenBy(Generic[Way]):
    """A load that was run in several ways, and what users saw in each."""

    __slots__ = ()
    seen: Mapping[Way, Seen]

    @property
    def ttft_s(self) -> Mapping[Way, Floats]:
        return {way: seen.ttft_s for way, seen in self.seen.items()}

    @property
    def tpot_s(self) -> Mapping[Way, Floats]:
        return {way: seen.tpot_s for way, seen in self.seen.items()}

    @property
    def latency_s(self) -> Mapping[Way, Floats]:
        return {way: seen.latency_s for way, seen in self.seen.items()}


def seen_by_users(
    arrival_s: Floats, first_s: Floats, last_s: Floats, *, input_tokens: np.ndarray, output_tokens: np.ndarray, host: Host, side: str,
    num_servers: int = 1,
) -> Seen:  # fmt: skip
    """The times at which tokens are there, as they reach users: each server that a request passes adds its frontend's time."""
    spread = {"median_s": 0.0, "low_s": -host.spread_fraction, "high_s": host.spread_fraction}[side]
    extra_s = (1.0 + spread) * (num_servers * host.first_token_s + host.prompt_token_s * input_tokens)
    several = output_tokens > 1
    return Seen(
        ttft_s=first_s - arrival_s + extra_s,
        tpot_s=(last_s - first_s)[several] / (output_tokens[several] - 1),
        latency_s=last_s - arrival_s + extra_s,
    )


def percentiles(values: Floats) -> dict[str, float]:
    return {f"p{each}": float(np.percentile(values, each)) if len(values) else 0.0 for each in PERCENTILES}


def median_step(plan: Schedule, cost: Costs, mine: np.ndarray) -> Interval:
    """The median of those steps."""
    if not mine.any():
        return Interval(0.0, 0.0, 0.0)
    return Interval(*(_weighted_median(cost.step_s(side)[mine], plan.steps[mine]) for side in SIDES))


def _weighted_median(values: Floats, counts: np.ndarray) -> float:
    order = np.argsort(values)
    sums = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2)])
