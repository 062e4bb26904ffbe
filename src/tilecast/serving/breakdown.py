"""Where the time of a schedule goes: every kernel's share of it, and the host's."""

from dataclasses import replace

import numpy as np

from tilecast.engines.breakdown import Part, sizes_of
from tilecast.engines.interval import Interval
from tilecast.serving.costs import SIDES, Costs
from tilecast.serving.schedule import Schedule
from tilecast.workloads.aggregate import weakest


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
