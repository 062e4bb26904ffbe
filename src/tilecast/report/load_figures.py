"""What the plots of a load show, as plain values: the roofline of its kernels, and what users see over their number."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilecast.report.figures import curve_point, point, roofline, work
from tilecast.serving.asked import MOST_USERS
from tilecast.serving.disaggregated import DisaggregatedPrediction
from tilecast.serving.load import LoadPrediction
from tilecast.serving.outcome import load_outcome, load_outcomes

FEWEST_TO = 64  # the curve goes at least so far,
FURTHER = 4  # and to so many times the users that were asked for


Served = LoadPrediction | DisaggregatedPrediction


def load_figures(found: Served, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of `found`, which `predict_load(**asked)` or `predict_disaggregated(**asked)` made."""
    return {"roofline": roofline(found.gpu, _points(found)), "concurrencies": _concurrencies(found, asked)}


def _points(found: Served) -> list[dict[str, Any]]:
    """A kernel's mean launch over all steps of the schedule: its FLOP, bytes and seconds by how often each size ran."""
    sums: dict[tuple[str, str], Any] = {}
    formats: dict[tuple[str, str], str] = {}
    for phase, plan, cost in found.schedules():
        for curve in cost.curves:
            often = curve.per_knot(plan.steps.astype(np.float64))
            for time, mine in ((time, mine) for priced, mine in curve.pieces for time in priced.calls):
                if (each := work(time.call.kernel, found.gpu)) is None:
                    continue
                key = phase or curve.phase, time.call.name
                launches, ones = often[mine] * time.call.count, np.ones(len(mine))
                here = (launches @ (ones * each[1]), launches @ (ones * each[2]), often[mine] @ time.median_s, launches.sum())
                sums[key] = sums.get(key, 0.0) + np.array(here)
                formats[key] = each[0]
    points = []
    for part in found.breakdown:
        if (total := sums.get((part.phase, part.name))) is not None and total[3] > 0:
            flop, num_bytes, seconds, launches = total
            points.append(point(part, formats[part.phase, part.name], *(float(value / launches) for value in (flop, num_bytes, seconds))))
    return [entry for entry in points if entry is not None]


def _concurrencies(found: Served, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One user, two, four and so on."""
    most = min(MOST_USERS, max(FEWEST_TO, FURTHER * found.concurrency))
    sizes = {2**power for power in range(most.bit_length()) if 2**power <= most} - {found.concurrency}
    options = {name: value for name, value in asked.items() if name not in ("model", "gpu", "concurrency") and value}
    others = load_outcomes(asked["model"], asked["gpu"], sorted(sizes), **options)
    every = sorted((load_outcome(found), *others), key=lambda outcome: outcome.concurrency)
    return [{**curve_point(outcome), "queue_s": outcome.queue_s} for outcome in every]
