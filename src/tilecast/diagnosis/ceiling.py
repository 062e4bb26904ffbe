"""How fast such work gets on such a GPU, and what lies between that, the bound, and a measurement.

The ceiling is a high quantile of the efficiency that measured kernels reached, given the demand alone: no kernel's name enters. The gap is
taken apart with the account the prediction made, level by level from the bound upwards, so that the parts add up to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tilecast import units
from tilecast.errors import InvalidInput, MissingData
from tilecast.execution.analytic import Analysis, smooth_maximum
from tilecast.execution.tasks import Floats
from tilecast.kernels.base import priced
from tilecast.learning.ceilings import Ceiling, path_of, read, well_made
from tilecast.learning.features import asked_names, launches
from tilecast.predictors.kernel import KernelPrediction, in_engine

QUANTILE = 0.9  # of efficiency: one kernel in ten is faster
LEAST_MEASURED = 0.97  # of the bound: a faster measurement contradicts the GPU's facts, beyond the noise of timers and clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """L launches: the time at one quantile of efficiency."""

    ceiling_s: Floats
    quantile: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One reason for time above the bound."""

    name: str
    seconds: float
    meaning: str


def ceiling_of(prediction: KernelPrediction, quantile: float = QUANTILE, using: Ceiling | None = None) -> Reached:
    """What well-made kernels take for this demand; never below the bound."""
    gpu = prediction.gpu
    kernel = well_made(in_engine(prediction.kernel, "sglang"), gpu)
    ceiling = using or ceiling_for(kernel.family)
    found = priced(kernel, gpu, prediction.protocol)
    asked = launches(kernel, gpu, found, prediction.protocol, "sglang")
    asked = replace(asked, names=asked_names(kernel, gpu, asked.names))
    ratio = ceiling.log_ratio(asked, gpu.id, quantile)
    ceiling_s = np.maximum(np.atleast_1d(found.analytic_s) * np.exp(ratio), prediction.bound_s)
    return Reached(ceiling_s=ceiling_s, quantile=quantile, basis=ceiling.basis(gpu.id, asked.names))


def ceiling_for(family: str) -> Ceiling:
    known = read(path_of())
    if family not in known:
        raise MissingData(f"no ceiling of {family} is known: too few measurements; there is one of {', '.join(sorted(known))}")
    return known[family]


def check_measured(measured_s: float, prediction: KernelPrediction) -> None:
    bound_s = float(prediction.bound_s[0])
    if measured_s < LEAST_MEASURED * bound_s:
        raise InvalidInput(
            f"--measured {units.human('_s', measured_s)} is less than the bound, {units.human('_s', bound_s)}, and nothing real is faster:"
            " check the sizes, the GPU and --cache"
        )


def gap(prediction: KernelPrediction, measured_s: float | None = None, row: int = 0) -> list[Part]:
    """What lies between the bound and the prediction, and between that and the measurement: parts that add up."""
    levels = _levels(prediction.analysis, prediction.gpu.num_sms, row)
    parts = [Part(name=name, seconds=above - below, meaning=MEANINGS[name]) for (_, below), (name, above) in pairwise(levels)]
    median_s = float(prediction.median_s[row])
    parts.append(Part(name="beyond physics", seconds=median_s - levels[-1][1], meaning=MEANINGS["beyond physics"]))
    if measured_s is not None:
        parts.append(Part(name="this kernel", seconds=measured_s - median_s, meaning=MEANINGS["this kernel"]))
    return parts


MEANINGS = {
    "padding": "work on rows and columns that nobody asked for",
    "cache misses": "bytes read from DRAM more than once",
    "clock and rates": "sustained clock and reachable rates instead of peaks",
    "wave tail": "SMs that wait for the busiest one",
    "pipeline imbalance": "pipelines that compete instead of one that binds",
    "occupancy": "starts, ends and waits that too few resident tasks hide",
    "split": "reductions and further small kernels",
    "launch": "from launch to the first instruction and back",
    "beyond physics": "what measured kernels show that the account does not",
    "this kernel": "measured minus predicted",
}


def _levels(analysis: Analysis, num_sms: int, row: int) -> Sequence[tuple[str, float]]:
    """Times that never fall, each with one more reason in it; the first is the bound."""

    def at(values: Any) -> float:
        return float(values[row])

    busy = {name: at(values) for name, values in analysis.busy_s.items()}
    demand = {name: at(values) for name, values in analysis.demand_s.items()}
    stages = {name: at(values) for name, values in analysis.stages_s.items()}
    placement = analysis.placement
    evenly = at(placement.num_tasks) / num_sms / max(at(placement.busiest_tasks), 1e-30)
    on_sm = [name for name in busy if name != "dram"]
    level = at(analysis.bound_s)
    levels = [("bound", level)]

    def reach(name: str, seconds: float) -> None:
        nonlocal level
        level = max(level, seconds)
        levels.append((name, level))

    reach("padding", max((demand.get(name, 0.0) for name in on_sm if name != "l2"), default=0.0))
    reach("cache misses", demand.get("dram", 0.0))
    reach("clock and rates", max([busy.get("dram", 0.0), *(busy[name] * min(evenly, 1.0) for name in on_sm)]))
    reach("wave tail", max([busy.get("dram", 0.0), *(busy[name] for name in on_sm)]))
    if stages:
        together = smooth_maximum([stages["pipelines of the busiest SM together"], stages["DRAM"]])
        reach("pipeline imbalance", float(together))
        reach("occupancy", stages["SM and DRAM together"])
        further_s = stages["further kernels"]  # below zero where a kernel starts and ends faster than most
        reach("split", level + max(further_s, 0.0))
        reach("launch", level + stages["launch"] + min(further_s, 0.0))
    else:
        reach("launch", level + at(analysis.launch_s))
    return levels
