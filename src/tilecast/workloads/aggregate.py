"""From the kernels of a step to its time: equal kernels are priced together, thousands of decode steps from a few of them.

Between two evaluated steps the time is taken to be linear in the context: kernels move by one tile at a time, and the sum over a run
comes out within 0.1 % of the sum over all steps. Errors of one GPU go together (a chip that is slow at one kernel is slow at all), so
the bounds of a sum are the sums of the bounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.predictors import predict_kernel
from tilecast.workloads.graph import KernelCall, Step

MOST_POINTS = 33  # decode steps evaluated of a run in which no request leaves
MOST_DEPARTURES = 64  # moments at which requests leave that get steps of their own
BASES = ("measured", "interpolated", "extrapolated-shape", "unseen-gpu", "unseen-generation", "analytic")  # strongest first

Price = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """All launches of one call in a step. Arrays (S,): one entry per step that was evaluated."""

    call: KernelCall
    median_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats
    bound_by: str  # at the last step
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step's kernels, end to end. Arrays (S,)."""

    calls: tuple[CallTime, ...]
    median_s: Floats
    low_s: Floats
    high_s: Floats
    basis: str


def weakest(bases: Sequence[str]) -> str:
    """A sum is known no better than the least known of its parts."""
    return max(bases, key=BASES.index) if bases else BASES[0]


def price_step(step: Step, gpu: GpuSpec, price: Price = predict_kernel) -> StepTime:
    """Every call of the step priced, those of one kind in one go."""
    groups: dict[object, list[int]] = {}
    for place, call in enumerate(step.calls):
        groups.setdefault(_kind(call, place), []).append(place)
    times: dict[int, CallTime] = {}
    for places in groups.values():
        calls = [step.calls[place] for place in places]
        times |= dict(zip(places, _price_group(calls, step.num_steps, gpu, price), strict=True))
    return joined(step, tuple(times[place] for place in range(len(step.calls))))


def joined(step: Step, ordered: tuple[CallTime, ...]) -> StepTime:
    """The step whose calls take these times, in their order."""
    assert len(ordered) == len(step.calls)
    total = {name: np.sum([getattr(time, name) for time in ordered], axis=0) for name in ("median_s", "low_s", "high_s")}
    return StepTime(calls=ordered, basis=weakest([time.basis for time in ordered]), **total)


def conditions(call: KernelCall) -> dict[str, str]:
    """What a price depends on besides the kernel and the GPU."""
    return {"cache": call.cache}


def _kind(call: KernelCall, place: int) -> object:
    """Calls of one kind differ only in numbers; a ragged batch is a kind of its own."""
    values = {entry.name: getattr(call.kernel, entry.name) for entry in fields(call.kernel)}
    if any(isinstance(value, list | tuple) or np.ndim(value) > 1 for value in values.values()):
        return place
    others = tuple((name, repr(value)) for name, value in values.items() if not _is_number(value))
    return type(call.kernel), call.cache, others


def _is_number(value: object) -> bool:
    return isinstance(value, np.ndarray | np.integer | int | float) and not isinstance(value, bool)


def _price_group(calls: list[KernelCall], num_steps: int, gpu: GpuSpec, price: Price) -> list[CallTime]:
    first = calls[0]
    names = [entry.name for entry in fields(first.kernel) if _is_number(getattr(first.kernel, entry.name))]
    ragged = any(isinstance(getattr(first.kernel, entry.name), list | tuple) for entry in fields(first.kernel))
    if ragged or not names:
        predicted = price(first.kernel, gpu, **conditions(first))
        return [_call_time(call, predicted, slice(None), num_steps) for call in calls]
    table = np.concatenate(
        [
            np.stack([np.broadcast_to(np.asarray(getattr(call.kernel, name), dtype=np.float64), num_steps) for name in names], axis=1)
            for call in calls
        ]
    )
    distinct, where = np.unique(table, axis=0, return_inverse=True)
    others = {entry.name: getattr(first.kernel, entry.name) for entry in fields(first.kernel) if entry.name not in names}
    kernel = type(first.kernel)(**others, **{name: distinct[:, column] for column, name in enumerate(names)})
    predicted = price(kernel, gpu, **conditions(first))
    rows = where.reshape(len(calls), num_steps)
    return [_call_time(call, predicted, rows[place], num_steps) for place, call in enumerate(calls)]


def _call_time(call: KernelCall, predicted: Any, rows: Any, num_steps: int) -> CallTime:
    def times(values: Floats) -> Floats:
        return np.asarray(np.broadcast_to(np.asarray(values)[rows], num_steps) * call.count)

    return CallTime(
        call=call,
        median_s=times(predicted.median_s),
        low_s=times(predicted.low_s),
        high_s=times(predicted.high_s),
        bound_s=times(predicted.bound_s),
        bound_by=str(np.asarray(predicted.analysis.bound_by)[rows][-1]),
        basis=weakest(sorted({str(basis) for basis in np.asarray(predicted.basis)[rows]})),
    )


# ---- many steps --------------------------------------------------------------------------------------------------


def evaluated_steps(outputs: Sequence[int], most_points: int = MOST_POINTS) -> np.ndarray:
    """The decode steps to evaluate of max(outputs) - 1: evenly spread ones, and those before and after a request leaves."""
    num_steps = max(outputs) - 1
    if num_steps == 0:
        return np.array([], dtype=np.int64)
    spread = np.linspace(0, num_steps - 1, min(most_points, num_steps)).round().astype(np.int64)
    lasts = np.unique(np.asarray(outputs, dtype=np.int64) - 2)  # the last step of those that leave
    lasts = lasts[(lasts >= 0) & (lasts < num_steps - 1)]
    if len(lasts) > MOST_DEPARTURES:
        lasts = lasts[np.linspace(0, len(lasts) - 1, MOST_DEPARTURES).round().astype(np.int64)]
    return np.unique(np.concatenate([spread, lasts, lasts + 1]))


def step_weights(points: np.ndarray) -> Floats:
    """How many steps each evaluated one stands for, so that weights x times is the sum of the linear interpolation over all."""
    weights = np.zeros(len(points))
    if len(points):
        gaps = np.diff(points).astype(np.float64)
        weights[:-1] += (gaps + 1.0) / 2.0
        weights[1:] += (gaps - 1.0) / 2.0
        weights[-1] += 1.0
    return weights


def median_over_steps(points: np.ndarray, values: Floats) -> float:
    """The median over all steps of times known at `points`."""
    if not len(points):
        return 0.0
    return float(np.median(np.interp(np.arange(points[0], points[-1] + 1), points, values)))
