"""From the kernels of a step to its time: equal kernels are priced together, thousands of decode steps from a few of them.

Between two evaluated steps the time is taken to be linear in the context: kernels move by one tile at a time, and the sum over a run
comes out within 0.1 % of the sum over all steps.

Errors of a sum: a chip that is slow at one kernel is slow at all, so a part of every error, the level, adds up and never averages out; the
rest belongs to one kernel and one shape, and such parts add in squares. A formula that nothing corrects errs alike on all its shapes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.learning.profiles import Profile, opened
from tilecast.predictors import predict_kernel
from tilecast.workloads.graph import KernelCall, Step

# Half of the 80 % interval, in log, that is common to all kernels on one GPU. Two labs differ by 5 to 13 % (mean) on the same kernel and
# GPU, and 9 % between two is a deviation of 0.08 in each; a family of kernels on a GPU whose die was left out is off by a level of
# deviation 0.06 besides (the suite kernels-unseen, mean errors per GPU and family), together 0.10.
SEEN_LEVEL, UNSEEN_LEVEL = 1.28 * 0.08, 1.28 * 0.10
MOST_POINTS = 24  # decode steps evaluated of a run in which no request leaves
MOST_DEPARTURES = 64  # moments at which requests leave that get steps of their own
BASES = ("measured", "interpolated", "extrapolated-shape", "unseen-gpu", "unseen-generation", "analytic")  # strongest first
PLACES = {basis: place for place, basis in enumerate(BASES)}

NUMBERS = (int, float, np.integer, np.ndarray)

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
    basis: str  # of all steps together
    bases: np.ndarray  # of each, or one of all: places in BASES


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step's kernels, end to end. Arrays (S,)."""

    calls: tuple[CallTime, ...]
    median_s: Floats
    low_s: Floats
    high_s: Floats
    basis: str

    @property
    def bases(self) -> np.ndarray:
        """What each step rests on: places in BASES (S,)."""
        places = np.zeros(len(self.median_s), dtype=np.int64)
        for time in self.calls:
            np.maximum(places, time.bases, out=places)
        return places

    def times(self, number: int) -> "StepTime":
        """The same step `number` times over, without its kernels one by one."""
        return StepTime(calls=(), median_s=number * self.median_s, low_s=number * self.low_s, high_s=number * self.high_s, basis=self.basis)

    def beyond(self, other: "StepTime") -> "StepTime":
        """How much longer it takes than `other`, where it does."""
        longer = {name: np.maximum(getattr(self, name) - getattr(other, name), 0.0) for name in ("median_s", "low_s", "high_s")}
        return StepTime(calls=(), basis=self.basis, **longer)


def basis_words(shares: Mapping[str, float]) -> str:
    """What the time rests on, the most first: "74 % interpolated, 15 % analytic"; less than half a percent is not worth a word."""
    told = ((basis, f"{100 * share:.0f}") for basis, share in sorted(shares.items(), key=lambda item: -item[1]))
    return ", ".join(f"{percent} % {basis}" for basis, percent in told if percent != "0")


def weakest(bases: Iterable[str]) -> str:
    """A sum is known no better than the least known of its parts."""
    return max(bases, key=PLACES.__getitem__, default=BASES[0])


def with_profile(price: Price, profile: Profile | str | Path | None, gpu: GpuSpec) -> tuple[Price, Profile | None]:
    """Prices that heed what a profile says of this GPU, and the profile."""
    measured = opened(profile, gpu)
    return (price if measured is None else partial(price, profile=measured)), measured


def price_step(step: Step, gpu: GpuSpec, price: Price = predict_kernel) -> StepTime:
    (time,) = price_steps([step], gpu, price)
    return time


def price_steps(steps: Sequence[Step], gpu: GpuSpec, price: Price = predict_kernel) -> list[StepTime]:
    """Every call of the steps priced, those of one kind in one go, whichever step they belong to."""
    calls = [(call, step.num_steps) for step in steps for call in step.calls]
    groups: dict[object, list[int]] = {}
    for place, (call, _) in enumerate(calls):
        groups.setdefault(_kind(call, place), []).append(place)
    times: dict[int, CallTime] = {}
    for places in groups.values():
        times |= zip(places, _price_group([calls[place] for place in places], gpu, price), strict=True)
    ends = list(accumulate((len(step.calls) for step in steps), initial=0))
    return [joined(step, tuple(times[place] for place in range(*span))) for step, span in zip(steps, pairwise(ends), strict=True)]


def joined(step: Step, alone: tuple[CallTime, ...]) -> StepTime:
    """The step whose calls take these times, each by itself, in their order."""
    times = dict(enumerate(alone))
    ordered = tuple(_uncovered(time, times, step) for time in alone)
    median_s = np.sum([time.median_s for time in ordered], axis=0)
    above_s, below_s = (_joined([(time, side(time)) for time in ordered]) for side in (_above, _below))
    basis = weakest([time.basis for time in ordered])
    return StepTime(calls=ordered, basis=basis, median_s=median_s, low_s=median_s - below_s, high_s=median_s + above_s)


def _above(time: CallTime) -> Floats:
    return np.asarray(time.high_s - time.median_s)


def _below(time: CallTime) -> Floats:
    return np.asarray(time.median_s - time.low_s)


def _joined(errors: list[tuple[CallTime, Floats]]) -> Floats:
    """How far the sum may be off to one side: levels together, then every kernel's own part and every bare formula's in squares."""
    common, own = np.zeros_like(errors[0][1]), dict[object, Floats]()
    for time, error_s in errors:
        level = SEEN_LEVEL if time.basis in BASES[: BASES.index("unseen-gpu")] else UNSEEN_LEVEL
        shared = np.minimum(error_s, level * time.median_s)
        common = common + shared
        key = time.call.kernel.family if time.basis == "analytic" else time.call.name
        own[key] = own.get(key, 0.0) + np.sqrt(error_s**2 - shared**2)
    return np.asarray(np.sqrt(common**2 + np.sum([part**2 for part in own.values()], axis=0)))


def _uncovered(time: CallTime, times: Mapping[int, CallTime], step: Step) -> CallTime:
    """What is left of a call that another one runs beside."""
    if time.call.beside is None:
        return time
    other = next((times[place] for place, call in enumerate(step.calls) if call.name == time.call.beside), None)
    if other is None:
        return time
    left = {name: np.maximum(getattr(time, name) - getattr(other, name), 0.0) for name in ("median_s", "low_s", "high_s", "bound_s")}
    left |= {"low_s": np.minimum(left["low_s"], left["median_s"]), "high_s": np.maximum(left["high_s"], left["median_s"])}
    return replace(time, **left)


def conditions(call: KernelCall) -> dict[str, str]:
    """What a price depends on besides the kernel and the GPU."""
    return {"cache": call.cache, "engine": call.measured_in}


@cache
def _parameters(kernel: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kernel))


def _is_number(value: object) -> bool:
    return isinstance(value, NUMBERS) and not isinstance(value, bool)


def _is_ragged(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 1)


def signature(step: Step) -> tuple[object, ...]:
    """Everything about a step's kernels that is no size."""
    return tuple((call.name, call.count, *_kind(call, place)) for place, call in enumerate(step.calls))


def _kind(call: KernelCall, place: int) -> tuple[object, ...]:
    """Calls of one kind differ only in numbers; a ragged batch is a kind of its own."""
    told: list[object] = [call.kernel.__class__, call.cache, call.measured_in]
    for name in _parameters(call.kernel.__class__):
        value = getattr(call.kernel, name)
        if value is None or isinstance(value, str | bool):
            told.append(value)
        elif _is_ragged(value):
            return (*told, "ragged", place)
        else:
            told.append(_is_number(value) or id(value))  # a box of GPUs, say: the same one
    return tuple(told)


def _price_group(calls: list[tuple[KernelCall, int]], gpu: GpuSpec, price: Price) -> list[CallTime]:
    """Calls of one kind, each with its number of steps, in one go; launches that are alike, in one or several, are priced once."""
    first, _ = calls[0]
    others = {name: getattr(first.kernel, name) for name in _parameters(first.kernel.__class__)}
    names = [name for name, value in others.items() if _is_number(value)]
    if not names or any(_is_ragged(value) for value in others.values()):
        predicted = price(first.kernel, gpu, **conditions(first))
        return _call_times(calls, predicted, [np.arange(len(predicted.median_s))] * len(calls))
    places: dict[tuple[float, ...], int] = {}
    rows = []
    for call, _ in calls:
        launches, which = _launches(call, names)
        rows.append(np.array([places.setdefault(launch, len(places)) for launch in launches])[which])
    distinct = {
        name: values[0] if len(places) == 1 else np.array(values) for name, values in zip(names, zip(*places, strict=True), strict=True)
    }
    return _call_times(calls, price(first.kernel.__class__(**{**others, **distinct}), gpu, **conditions(first)), rows)


def _launches(call: KernelCall, names: list[str]) -> tuple[Iterable[tuple[float, ...]], np.ndarray]:
    """The distinct sizes of a call's launches, and which of them each step has, or which one all have."""
    sizes = [getattr(call.kernel, name) for name in names]
    code = None
    for size in sizes:
        if isinstance(size, np.ndarray):
            known, which = np.unique(size, return_inverse=True)
            code = which if code is None else code * len(known) + which
    if code is None:
        return [tuple(sizes)], np.zeros(1, dtype=np.int64)
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    columns = (size[first].tolist() if isinstance(size, np.ndarray) else [size] * len(first) for size in sizes)
    return zip(*columns, strict=True), which


def _call_times(calls: list[tuple[KernelCall, int]], predicted: Any, rows: list[np.ndarray]) -> list[CallTime]:
    """What was predicted of a kind, dealt out to its calls: each has its launches at some rows, one for every step or one for all."""
    times_s = np.array([predicted.median_s, predicted.low_s, predicted.high_s, predicted.bound_s])
    known, binding = np.array([PLACES[basis] for basis in np.asarray(predicted.basis).tolist()]), np.asarray(predicted.analysis.bound_by)
    found = []
    for (call, num_steps), mine in zip(calls, rows, strict=True):
        each_s, bases = times_s.take(mine, axis=1) * call.count, known.take(mine)
        median_s, low_s, high_s, bound_s = each_s if len(mine) == num_steps else np.repeat(each_s, num_steps, axis=1)
        found.append(CallTime(
            call=call, median_s=median_s, low_s=low_s, high_s=high_s, bound_s=bound_s, bound_by=str(binding[mine[-1]]),
            basis=BASES[bases.max()], bases=bases,
        ))  # fmt: skip
    return found


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
