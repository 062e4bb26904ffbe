"""A trace, diagnosed: every call set against prediction, ceiling and bound, and ranked by the time that better kernels would save."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast import hardware, units
from tilecast.diagnosis.advice import RunFacts, advise_run
from tilecast.diagnosis.attention_pattern import unfused
from tilecast.diagnosis.calls import CallGroup, Run, infer, matched
from tilecast.diagnosis.ceiling import QUANTILE
from tilecast.diagnosis.kernel_names import Rule, own_rules, read_rules
from tilecast.diagnosis.rows import TOO_FAST, Pricer, Row, row_of
from tilecast.diagnosis.timeline import Timeline, mean_timeline, timeline
from tilecast.diagnosis.trace_reader import Progress, read_trace, trace_files
from tilecast.errors import InvalidInput, UnknownName
from tilecast.hardware import GpuSpec
from tilecast.learning.profiles import Profile, opened
from tilecast.markup import html_table

SCHEMA = "tilecast.diagnose/1"
MOST_SHOWN = 20  # rows in a notebook
MOST_ZERO = 0.01  # of GPU events: more without a duration, and what a trace adds up to is partial
POINTWISE = ("elementwise", "concatenate", "reduction", "copy", "gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    name: str
    path: str
    device: int
    timeline: Timeline

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.name, "path": self.path, "device": self.device, **self.timeline.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything a report says."""

    gpu: GpuSpec
    traces: tuple[str, ...]
    timeline: Timeline  # the mean of all GPUs
    ranks: tuple[RankTime, ...]
    rows: tuple[Row, ...]  # what can be recovered first
    gpu_time_s: float  # all kernels and copies, end to end
    num_kernels: int
    named_s: float
    priced_s: float
    inferred_s: float  # part of priced_s: shapes of an identical launch
    recoverable_s: float
    graph_s: float
    num_graph_launches: int
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    partial_because: tuple[str, ...]
    profile: Profile | None = None

    @property
    def named_fraction(self) -> float:
        return min(self.named_s / self.gpu_time_s, 1.0) if self.gpu_time_s else 0.0  # sums in two orders differ by a rounding

    @property
    def priced_fraction(self) -> float:
        return min(self.priced_s / self.gpu_time_s, 1.0) if self.gpu_time_s else 0.0

    @property
    def unknown(self) -> tuple[Row, ...]:
        """Kernels that no rule names, longest first."""
        return tuple(sorted((row for row in self.rows if row.family == "unknown"), key=lambda row: -row.total_s))

    def unpriced(self) -> list[dict[str, Any]]:
        """What is named and not priced, by kernel, operator and reason, longest first."""
        found: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.rows:
            if not row.is_priced and row.family != "unknown":
                found.setdefault((row.kernel, row.op, row.unpriced_because), []).append(row)
        entries = [
            {
                "kernel": kernel, "op": op, "because": because, "calls": sum(row.calls for row in rows),
                "total_s": sum(row.total_s for row in rows), "share_fraction": sum(row.share_fraction for row in rows),
            }
            for (kernel, op, because), rows in found.items()
        ]  # fmt: skip
        return sorted(entries, key=lambda entry: -entry["total_s"])

    def errors(self) -> dict[str, dict[str, Any]]:
        """How far predictions are off, by Tilecast's family; every call weighs as its time."""
        found: dict[str, list[tuple[float, float]]] = {}
        for row in self.rows:
            if row.error_fraction is not None:
                found.setdefault(row.model, []).append((row.total_s, row.error_fraction))
        return {
            family: {
                "time_s": sum(weight for weight, _ in entries),
                "mean_error_percent": 100 * sum(weight * abs(error) for weight, error in entries) / sum(weight for weight, _ in entries),
                "bias_percent": 100 * sum(weight * error for weight, error in entries) / sum(weight for weight, _ in entries),
                "shapes": len(entries),
            }
            for family, entries in sorted(found.items(), key=lambda item: -sum(weight for weight, _ in item[1]))
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "gpu": self.gpu.id, "traces": list(self.traces), "partial": bool(self.partial_because),
            "partial_because": list(self.partial_because), "timeline": self.timeline.to_dict(),
            "ranks": [rank.to_dict() for rank in self.ranks],
            "gpu_time_s": self.gpu_time_s, "num_kernels": self.num_kernels, "named_s": self.named_s, "named_fraction": self.named_fraction,
            "priced_s": self.priced_s, "priced_fraction": self.priced_fraction, "inferred_s": self.inferred_s,
            "inferred_fraction": self.inferred_s / self.gpu_time_s if self.gpu_time_s else 0.0, "recoverable_s": self.recoverable_s,
            "recoverable_fraction": self.recoverable_s / self.gpu_time_s if self.gpu_time_s else 0.0, "graph_s": self.graph_s,
            "num_graph_launches": self.num_graph_launches, "findings": list(self.findings), "notes": list(self.notes),
            "families": self.families(), "errors": self.errors(), "kernels": [row.to_dict() for row in self.rows],
            "unpriced": self.unpriced(),
            "unknown": [
                {"kernel": row.kernels[0], "op": row.op, "calls": row.calls, "total_s": row.total_s, "share_fraction": row.share_fraction}
                for row in self.unknown
            ],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        def times(row: Row) -> tuple[str, ...]:
            return tuple(units.human("_s", value or 0.0) for value in (row.measured_s, row.ceiling_s, row.recoverable_s))

        shown = [row for row in self.rows if row.is_priced][:MOST_SHOWN]
        rows = [(row.op or row.kernel, row.shapes, str(row.calls), *times(row), row.advice) for row in shown]
        header = ("operator", "shapes", "calls", "measured", "ceiling", "recoverable", "advice")
        return html_table(f"{', '.join(Path(path).name for path in self.traces)} on {self.gpu.id}", header, rows)

    def families(self) -> list[dict[str, Any]]:
        """Time by what kernels do."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.family, []).append(row)
        return sorted(
            (
                {
                    "family": family, "total_s": sum(row.total_s for row in rows),
                    "share_fraction": sum(row.share_fraction for row in rows),
                    "calls": sum(row.calls for row in rows), "recoverable_s": sum(row.recoverable_s or 0.0 for row in rows),
                    "priced_s": sum(row.total_s for row in rows if row.is_priced),
                }
                for family, rows in found.items()
            ),
            key=lambda entry: -entry["total_s"],
        )  # fmt: skip


def diagnose(
    *paths: str | Path, gpu: str | GpuSpec | None = None, names: str | Path | None = None, shapes: str | Path | None = None,
    quantile: float = QUANTILE, profile: Profile | str | Path | None = None,
    progress: Callable[[Path], Progress | None] | None = None,
) -> Diagnosis:  # fmt: skip
    """What the traces of one run say: one file for each rank, or a folder of them.

    `names` is a file of further kernel names; `shapes` a trace of the same work without CUDA graphs, whose shapes identical launches take;
    `profile` what `tilecast calibrate` made of measurements on this GPU. Ceilings are other people's measurements and stay.
    """
    if not 0.5 <= quantile < 1.0:
        raise InvalidInput(f"quantile = {quantile} must be at least 0.5 and below 1")
    rules = (*(read_rules(names) if names is not None else ()), *own_rules())
    elsewhere = _run(Path(shapes), rules, progress) if shapes is not None else None
    runs = [_run(path, rules, progress, elsewhere) for path in trace_files(tuple(map(str, paths)))]
    if not runs:
        raise InvalidInput("no trace is given")
    spec = _gpu(runs, gpu)
    pricer = Pricer(spec, quantile, opened(profile, spec))
    merged = _merge(group for run in runs for group in run.groups)
    world_size = next((run.world_size for run in runs if run.world_size is not None), len(runs) if len(runs) > 1 else None)
    total_s = sum(group.total_s for group in merged)
    rows = [row_of(group, total_s, pricer, world_size) for group in merged]
    rows.sort(key=lambda row: (-(row.recoverable_s or 0.0), -row.total_s))
    ranks = _ranks(runs)
    whole = mean_timeline([rank.timeline for rank in ranks])
    findings = [*_whole_run(runs, ranks, whole, merged, total_s)]
    if pattern := unfused(rows, spec, total_s):
        findings.insert(0, pattern)
    notes, partial = _notes(runs, rows, total_s)
    return Diagnosis(
        gpu=spec,
        traces=tuple(run.path for run in runs),
        timeline=whole,
        ranks=tuple(ranks),
        rows=tuple(rows),
        gpu_time_s=total_s,
        num_kernels=sum(run.num_gpu_events for run in runs),
        named_s=sum(row.total_s for row in rows if row.family != "unknown"),
        priced_s=sum(row.total_s for row in rows if row.is_priced),
        inferred_s=sum(row.inferred_s for row in rows if row.is_priced),
        recoverable_s=sum(row.recoverable_s or 0.0 for row in rows),
        graph_s=sum(run.graph_s for run in runs),
        num_graph_launches=sum(run.num_graph_launches for run in runs),
        findings=tuple(findings),
        notes=tuple(notes),
        partial_because=tuple(partial),
        profile=pricer.profile,
    )


def _run(path: Path, rules: Sequence[Rule], progress: Callable[[Path], Progress | None] | None, elsewhere: Run | None = None) -> Run:
    """One file, reduced to its calls before the next is opened."""
    trace = read_trace(path, progress(path) if progress is not None else None)
    if not len(trace.gpu_events):
        if trace.truncated:
            raise InvalidInput(f"{path} breaks off before its first GPU event, after {trace.num_events:,} others: {trace.truncated}")
        kept = f"{trace.num_events:,} events" + (f", {trace.num_dropped:,} of them kernels without a time" if trace.num_dropped else "")
        raise InvalidInput(f"{path} has no GPU events ({kept}): record it with ProfilerActivity.CUDA, where a GPU is visible")
    run = matched(trace, rules, elsewhere.contexts if elsewhere is not None else None)
    return replace(run, groups=infer(run.groups, elsewhere.groups if elsewhere is not None else ()))


def _gpu(runs: Sequence[Run], asked: str | GpuSpec | None) -> GpuSpec:
    if asked is not None:
        return hardware.gpu(asked) if isinstance(asked, str) else asked
    names = list(dict.fromkeys(name for run in runs for name in run.device_names))
    if not names:
        how = f"breaks off ({runs[0].truncated}) before it names its GPU" if runs[0].truncated else "does not name its GPU"
        raise InvalidInput(f"{runs[0].path} {how}: give --gpu ID")
    found = {}
    for name in names:
        try:
            found[hardware.gpu(name).id] = hardware.gpu(name)
        except UnknownName as problem:
            raise UnknownName(f"the trace was made on {name!r}, which is not in the catalogue: give --gpu ID ({problem})") from None
    if len(found) > 1:
        raise InvalidInput(f"the traces were made on different GPUs ({', '.join(found)}): diagnose them apart, or give --gpu ID")
    return next(iter(found.values()))


def _merge(groups: Iterable[CallGroup]) -> list[CallGroup]:
    """Equal calls of several ranks together."""
    found: dict[Any, CallGroup] = {}
    for group in groups:
        grids = tuple(sorted(group.grids.items()))
        key = (group.op, group.kernels, grids, group.collective, group.num_bytes, group.requests, group.in_graph)
        if key in found:
            first = found[key]
            first.durations_s = np.concatenate([first.durations_s, group.durations_s])
            first.helper_s += group.helper_s
            first.beside_s += group.beside_s
            first.num_inferred += group.num_inferred
            first.inferred_s += group.inferred_s
            first.modules.update(group.modules)
        else:
            found[key] = group
    return list(found.values())


# ---- the run as a whole ------------------------------------------------------------------------------------------


def _ranks(runs: Sequence[Run]) -> list[RankTime]:
    found = []
    for place, run in enumerate(runs):
        name = str(run.rank if run.rank is not None else place)
        for device in np.unique(run.activity.device).tolist():
            times = timeline(run.activity, device, trust_host=run.num_skewed == 0)
            found.append(RankTime(name=name, path=run.path, device=device, timeline=times))
    return found


def _whole_run(runs: Sequence[Run], ranks: Sequence[RankTime], whole: Timeline, groups: Sequence[CallGroup], total_s: float) -> list[str]:
    copies = [group for group in groups if group.family == "host copy"]
    pointwise = [group for group in groups if group.family in POINTWISE]
    facts = RunFacts(
        span_s=whole.span_s,
        idle_s=whole.idle_s,
        longest_gap_s=whole.longest_gap_s,
        waiting_for_host_s=whole.waiting_for_host_s,
        num_gaps=whole.num_gaps,
        communicating_s=whole.communicating_s,
        exposed_s=whole.exposed_s,
        with_stack=any(run.with_stack for run in runs),
        host_copy_s=sum(group.total_s for group in copies),
        pageable_copies=sum(len(group.durations_s) for group in copies if "Pageable" in group.kernels[0]),
        pointwise_s=sum(group.total_s for group in pointwise),
        pointwise_calls=sum(len(group.durations_s) for group in pointwise),
        gpu_s=total_s,
        rank_communicating_s={rank.name: rank.timeline.communicating_s for rank in ranks} if len(runs) > 1 else {},
    )
    return advise_run(facts)


def _rank_notes(runs: Sequence[Run]) -> list[str]:
    """Which ranks are missing, and which are there twice."""
    files: dict[int, list[str]] = {}
    for run in runs:
        if run.rank is not None:
            files.setdefault(run.rank, []).append(Path(run.path).name)
    notes = [
        f"{' and '.join(names)} all say that they are rank {rank}: are they of one run?" for rank, names in files.items() if len(names) > 1
    ]
    world = max((run.world_size or 0 for run in runs), default=0)
    if files and len(files) < world:
        notes.append(
            f"{len(files)} of {world} ranks {'is' if len(files) == 1 else 'are'} here: what collectives wait for may lie in the others"
        )
    return notes


def _notes(runs: Sequence[Run], rows: Sequence[Row], total_s: float) -> tuple[list[str], list[str]]:
    """Notes, and the reasons why the result is partial."""
    notes, partial = [], []
    for run in runs:
        name = Path(run.path).name
        if run.truncated:
            partial.append(f"{name} breaks off ({run.truncated}): {run.num_gpu_events:,} GPU events up to there are counted")
        if not run.has_shapes:
            partial.append(f"{name} has no shapes (record_shapes=True): only kernels that tell their own sizes are priced")
        if run.num_dropped:
            partial.append(f"{name}: {run.num_dropped:,} GPU events with impossible times are left out")
        if run.num_zero > MOST_ZERO * run.num_gpu_events:
            partial.append(
                f"{name}: {run.num_zero:,} of {run.num_gpu_events:,} GPU events last 0 s, so their time is missing from every sum"
            )
        elif run.num_zero:
            notes.append(f"{name}: {run.num_zero:,} GPU events last 0 s: below the profiler's resolution")
        if run.num_skewed:
            notes.append(
                f"{name}: {run.num_skewed:,} kernels start before the call that launched them, by up to {run.skew_s * 1e6:.0f} us: "
                "the clocks of host and GPU differ, so idle time is given no reason"
            )
        if run.num_matched < 0.98 * run.num_gpu_events and run.has_shapes:
            missing = run.num_gpu_events - run.num_matched
            notes.append(f"{name}: {missing:,} of {run.num_gpu_events:,} GPU events belong to no recorded operator")
    notes += _rank_notes(runs)
    contradicting = [row for row in rows if TOO_FAST in row.notes]
    if contradicting:
        share = sum(row.total_s for row in contradicting) / total_s
        partial.append(f"{100 * share:.1f} % of the time is faster than this GPU can be: is it the right --gpu?")
    return notes, partial
