"""Why one run took longer than another: the difference of their times, taken apart into parts that add up.

What GPUs did is matched by family first (that always adds up), then by work: the same operator on the same shapes, whatever kernels the two
machines ran for it. The difference of one piece of work is due to its number of calls, and to the time of a call; where both sides are
priced, the prediction says how much of the latter the GPUs explain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilecast import units
from tilecast.diagnosis.diagnose import Diagnosis
from tilecast.diagnosis.rows import Row

NO_SHAPES = " without shapes"
TELLING_SHARE = 0.1  # of a family's difference, for one piece of work to be named
LEAST_SHARE = 0.02  # of the difference's absolute parts, to be worth a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One piece of work in one run."""

    calls: int
    total_s: float
    kernel: str
    predicted_s: float | None  # one call

    def to_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "total_s": self.total_s, "kernel": self.kernel, "predicted_s": self.predicted_s}


NOTHING = Side(calls=0, total_s=0.0, kernel="", predicted_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One reason. `by_calls_s` and `by_speed_s` add up to `difference_s`."""

    name: str
    family: str
    this: Side
    other: Side

    @property
    def difference_s(self) -> float:
        return self.this.total_s - self.other.total_s

    @property
    def by_calls_s(self) -> float:
        """More or fewer calls, at the other run's time of a call; new work counts whole."""
        if not self.this.calls or not self.other.calls:
            return self.difference_s
        return (self.this.calls - self.other.calls) * self.other.total_s / self.other.calls

    @property
    def by_speed_s(self) -> float:
        return self.difference_s - self.by_calls_s

    @property
    def ratio(self) -> float | None:
        """Time of a call here over there."""
        if not (self.this.calls and self.other.calls and self.other.total_s):
            return None
        return (self.this.total_s / self.this.calls) / (self.other.total_s / self.other.calls)

    @property
    def predicted_ratio(self) -> float | None:
        if not self.this.predicted_s or not self.other.predicted_s:
            return None
        return self.this.predicted_s / self.other.predicted_s

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "family": self.family, "this": self.this.to_dict(), "other": self.other.to_dict(),
            "difference_s": self.difference_s, "by_calls_s": self.by_calls_s, "by_speed_s": self.by_speed_s, "ratio": self.ratio,
            "predicted_ratio": self.predicted_ratio,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """This run against the other. Times are one GPU's, the mean over ranks: idle, families and what runs at once add up to the span."""

    this_span_s: float
    other_span_s: float
    idle_s: float  # differences, this minus other
    at_once_s: float  # kernels of several streams at the same time shorten the span
    families: tuple[Part, ...]
    work: tuple[Part, ...]

    @property
    def span_s(self) -> float:
        return self.this_span_s - self.other_span_s

    def sentences(self) -> list[str]:
        """What the difference is made of, the largest part first."""
        return _sentences(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "this_span_s": self.this_span_s, "other_span_s": self.other_span_s, "span_s": self.span_s, "idle_s": self.idle_s,
            "at_once_s": self.at_once_s, "families": [part.to_dict() for part in self.families],
            "work": [part.to_dict() for part in self.work], "sentences": self.sentences(),
        }  # fmt: skip


def difference(this: Diagnosis, other: Diagnosis) -> Difference:
    def parts(key: Callable[[Row], tuple[str, str]]) -> tuple[Part, ...]:
        mine, theirs = _sides(this, key), _sides(other, key)
        found = (
            Part(name=name, family=family, this=mine.get((name, family), NOTHING), other=theirs.get((name, family), NOTHING))
            for name, family in dict.fromkeys([*mine, *theirs])
        )
        return tuple(sorted(found, key=lambda part: -abs(part.difference_s)))

    at_once = [each.gpu_time_s / max(1, len(each.ranks)) - each.timeline.busy_s for each in (this, other)]
    return Difference(
        this_span_s=this.timeline.span_s,
        other_span_s=other.timeline.span_s,
        idle_s=this.timeline.idle_s - other.timeline.idle_s,
        at_once_s=-(at_once[0] - at_once[1]),
        families=parts(lambda row: (row.family, row.family)),
        work=parts(_work),
    )


def _pieces(row: Row) -> list[Row]:
    """Calls whose operator was recorded, and those that only look like them: the other run may lack the latter's."""
    if not row.inferred_calls:
        return [row]
    seen = replace(row, calls=row.calls - row.inferred_calls, total_s=row.total_s - row.inferred_s)
    return [seen, replace(row, op="", shapes="", calls=row.inferred_calls, total_s=row.inferred_s, predicted_s=None)]


def _work(row: Row) -> tuple[str, str]:
    """The operator and its shapes; without them the family, in which kernels of two vendors meet."""
    return (f"{row.op} {row.shapes}".strip(), row.family) if row.op and row.shapes else (f"{row.family}{NO_SHAPES}", row.family)


def _sides(found: Diagnosis, key: Callable[[Row], tuple[str, str]]) -> dict[tuple[str, str], Side]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for piece in (piece for row in found.rows for piece in _pieces(row)):
        groups.setdefault(key(piece), []).append(piece)
    return {name: _side(rows, max(1, len(found.ranks))) for name, rows in groups.items()}


def _side(rows: Sequence[Row], num_gpus: int) -> Side:
    longest = max(rows, key=lambda row: row.total_s)
    priced = [row for row in rows if row.predicted_s is not None]
    calls = sum(row.calls for row in priced)
    is_whole = calls == sum(row.calls for row in rows)
    predicted = sum(row.calls * (row.predicted_s or 0.0) for row in priced) / calls if is_whole and calls else None
    return Side(
        calls=round(sum(row.calls for row in rows) / num_gpus),
        total_s=sum(row.total_s for row in rows) / num_gpus,
        kernel=longest.kernel,
        predicted_s=predicted,
    )


def _sentences(found: Difference) -> list[str]:
    spans = f"This run takes {_time(found.this_span_s)}, the other {_time(found.other_span_s)}"
    idle = f"its GPU is idle {_time(abs(found.idle_s))} {'longer' if found.idle_s > 0 else 'less'}" if found.idle_s else "as idle"
    said = [f"{spans}: {_time(abs(found.span_s))} {'longer' if found.span_s > 0 else 'less'}, and {idle}." if found.span_s else f"{spans}."]
    loud = sum(abs(part.difference_s) for part in found.families) + abs(found.idle_s) or 1.0
    for part in found.families:
        if abs(part.difference_s) < LEAST_SHARE * loud:
            continue
        alike = (one for one in found.work if one.family == part.family and not one.name.endswith(NO_SHAPES))
        most = next((one for one in alike if one.ratio is not None), None)
        more = f" ({_signed(part.by_calls_s)} by the number of calls, {part.other.calls:,} then {part.this.calls:,})"
        why = more if part.this.calls != part.other.calls else ""
        detail = ""
        if most is not None and most.ratio is not None and abs(most.difference_s) > TELLING_SHARE * abs(part.difference_s):
            expected = f"; the prediction says {most.predicted_ratio:.2f} times" if most.predicted_ratio is not None else ""
            other_kernel = f", {most.this.kernel} in place of {most.other.kernel}" if most.this.kernel != most.other.kernel else ""
            detail = f": {_signed(most.difference_s)} of it {most.name}, {most.ratio:.2f} times as long a call{other_kernel}{expected}"
        said.append(f"{part.family}: {_signed(part.difference_s)}{why}{detail}.")
    return said


def _time(value: float) -> str:
    return units.human("_s", value)


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{_time(abs(value))}"
