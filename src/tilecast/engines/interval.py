"""Interval: a median and its 80 % interval, and how steps add up to one."""

from dataclasses import dataclass, field

import numpy as np

from tilecast import units
from tilecast.execution.tasks import Floats
from tilecast.workloads.aggregate import CallTime, StepTime, median_over_steps

TOKENS_PER_S = "tokens/s"


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 80 % interval, in SI units."""

    median: float
    low: float
    high: float
    unit: str = field(default="s", kw_only=True)  # times are told in the unit that suits them

    def __add__(self, other: "Interval") -> "Interval":
        """Errors on one GPU go together: the bounds of a sum are the sums of the bounds."""
        return Interval(self.median + other.median, self.low + other.low, self.high + other.high, unit=self.unit)

    def per(self, number: float) -> "Interval":
        return Interval(self.median / number, self.low / number, self.high / number, unit=self.unit)

    def rate_of(self, tokens: float) -> "Interval":
        """Tokens a second, of `tokens` in this time: the longest time is the lowest rate, and no time is no rate."""
        if not self.median:
            return Interval(0.0, 0.0, 0.0, unit=TOKENS_PER_S)
        return Interval(tokens / self.median, tokens / self.high, tokens / self.low, unit=TOKENS_PER_S)

    def to_dict(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        if self.unit == "s":
            return units.interval_s(self.median, self.low, self.high)
        return f"{units.significant(self.median)} ({units.significant(self.low)}-{units.significant(self.high)}) {self.unit}"


NOTHING = Interval(0.0, 0.0, 0.0)


def weighted_total(step: StepTime | CallTime, weights: Floats) -> Interval:
    return Interval(*(float(weights @ values) for values in (step.median_s, step.low_s, step.high_s)))


def median_step(points: np.ndarray, step: StepTime) -> Interval:
    return Interval(*(median_over_steps(points, values) for values in (step.median_s, step.low_s, step.high_s)))
