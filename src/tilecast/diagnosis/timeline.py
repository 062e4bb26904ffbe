"""How a GPU spent the time of a trace: busy, idle, communicating, and how much of that hid behind computation."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecast.execution.tasks import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Intervals on the GPU for the timeline, seconds since the first of them. Arrays (N,), sorted by start."""

    start_s: Floats
    end_s: Floats
    device: np.ndarray
    communicates: np.ndarray
    launched_s: Floats  # when the call that launched it was done; nan: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One GPU, or the mean of several. Time in which several streams are busy counts once."""

    span_s: float  # from the first kernel's start to the last one's end
    busy_s: float
    idle_s: float
    computing_s: float  # kernels and copies that do not communicate
    communicating_s: float
    overlapped_s: float  # communicating and computing at once
    waiting_for_host_s: float | None  # part of idle_s: the next kernel had not been launched yet; None: the clocks cannot tell
    longest_gap_s: float
    num_gaps: int

    @property
    def exposed_s(self) -> float:
        """Communication that nothing hides."""
        return self.communicating_s - self.overlapped_s

    def to_dict(self) -> dict[str, Any]:
        span = self.span_s or 1.0
        times = {name: getattr(self, name) for name in NAMES} | {"exposed_s": self.exposed_s}
        shares = {f"{name[:-2]}_fraction": None if value is None else value / span for name, value in times.items() if name != "span_s"}
        return {**times, **shares, "longest_gap_s": self.longest_gap_s, "num_gaps": self.num_gaps}


NAMES = ("span_s", "busy_s", "idle_s", "computing_s", "communicating_s", "overlapped_s", "waiting_for_host_s")


def timeline(activity: Activity, device: int, trust_host: bool = True) -> Timeline:
    """Of one device. With `trust_host` false the clocks of host and GPU disagree, and idle time has no reason."""
    mine = np.flatnonzero(activity.device == device)
    start, end, communicates = activity.start_s[mine], activity.end_s[mine], activity.communicates[mine]
    all_start, all_end = merged(start, end)
    busy = float((all_end - all_start).sum())
    computing, communicating = (merged(start[chosen], end[chosen]) for chosen in (~communicates, communicates))
    computing_s, communicating_s = (float((ends - starts).sum()) for starts, ends in (computing, communicating))
    span = float(all_end[-1] - all_start[0]) if len(all_end) else 0.0
    gaps_from, gaps_to = all_end[:-1], all_start[1:]
    waiting = 0.0 if trust_host else None
    if trust_host and len(gaps_to):
        first = np.searchsorted(start, gaps_to)  # the kernel that ends each gap
        launched = activity.launched_s[mine][np.minimum(first, len(mine) - 1)]
        waiting = float(np.nansum(np.clip(launched - gaps_from, 0.0, gaps_to - gaps_from)))
    return Timeline(
        span_s=span,
        busy_s=busy,
        idle_s=max(0.0, span - busy),
        computing_s=computing_s,
        communicating_s=communicating_s,
        overlapped_s=max(0.0, computing_s + communicating_s - busy),
        waiting_for_host_s=waiting,
        longest_gap_s=float((gaps_to - gaps_from).max()) if len(gaps_to) else 0.0,
        num_gaps=len(gaps_to),
    )


def merged(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The union of intervals sorted by start, as intervals that do not touch."""
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    places = np.flatnonzero(opens)
    return start[places], reach[np.concatenate([places[1:] - 1, [len(start) - 1]])]


def covered(start: Floats, end: Floats, low: Floats, high: Floats) -> Floats:
    """How much of each interval lies inside the union `low`, `high`."""
    if not len(low):
        return np.zeros_like(start)
    before = np.concatenate([[0.0], np.cumsum(high - low)])  # length of the union left of each of its intervals

    def until(moment: Floats) -> Floats:
        place = np.searchsorted(low, moment, side="right")
        inside = np.minimum(moment, high[np.maximum(place - 1, 0)]) - low[np.maximum(place - 1, 0)]
        return np.asarray(np.where(place > 0, before[np.maximum(place - 1, 0)] + inside, 0.0))

    return np.asarray(until(end) - until(start))


def _mean(values: list[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) / max(1, len(known)) if len(known) == len(values) else None


def mean_timeline(parts: list[Timeline]) -> Timeline:
    count = max(1, len(parts))
    return Timeline(
        **{name: _mean([getattr(part, name) for part in parts]) for name in NAMES},
        longest_gap_s=max((part.longest_gap_s for part in parts), default=0.0),
        num_gaps=sum(part.num_gaps for part in parts) // count,
    )
