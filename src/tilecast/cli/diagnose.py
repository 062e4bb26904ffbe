"""`tilecast diagnose TRACE`: where a real run loses time, kernel by kernel, against what such kernels reach."""

import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilecast import hardware, units
from tilecast.cli.files import target, write_whole
from tilecast.cli.output import command_line, emit, output_options, profile_option, refuse_as_python, say
from tilecast.diagnosis.ceiling import MEANINGS
from tilecast.diagnosis.diagnose import Diagnosis, diagnose
from tilecast.diagnosis.rows import Row
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report, versions
from tilecast.units import signed_s

if TYPE_CHECKING:
    from tilecast.diagnosis.difference import Difference

MOST_SHOWN = 12
LEAST_PART = 0.02  # of a call, for a part of the gap to get a column
LARGE_BYTES = 16 << 20  # of a file, from which on its reading is reported
EVERY_S = 2.0


@click.command(name="diagnose")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("--gpu", help="Catalogue id, device string, or the path of a TOML file [default: what the trace says].")
@click.option("--against", metavar="OTHER", help="Another run, a trace or a folder of them: explain the difference.")
@click.option("--against-gpu", help="The other run's GPU [default: what its trace says].")
@click.option("--names", metavar="FILE.toml", help="Further kernel names, tried before the package's own.")
@click.option("--shapes", metavar="EAGER", help="A trace of the same work without CUDA graphs: identical launches take its shapes.")
@click.option("--quantile", type=float, default=0.9, show_default=True, help="Of efficiency, for the ceiling.")
@profile_option
@click.option("--all", "every", is_flag=True, help="Every kernel, not only the first dozen.")
@click.option("--html", "html_path", metavar="FILE.html", help="Also write a page that needs nothing else.")
@output_options
def command(
    traces: tuple[str, ...], gpu: str | None, against: str | None, against_gpu: str | None, names: str | None, shapes: str | None,
    quantile: float, profile: str | None, every: bool, html_path: str | None, as_json: bool, as_csv: bool, as_python: bool,
) -> None:  # fmt: skip
    """Diagnose PyTorch-profiler (Kineto) traces: .json or .json.gz, one for each rank, or a folder of them.

    Kernels are matched to the shapes of the operators that launched them, and set against prediction, ceiling and bound; what better
    kernels would save comes first. Record with record_shapes=True.
    """
    if against_gpu is not None and against is None:
        raise InvalidInput(f"--against-gpu {against_gpu} goes with --against")
    if profile is not None and against is not None:
        raise InvalidInput(f"--profile {profile} goes with one run: --against {against} sets measured times beside measured times")
    page = target("--html", html_path, (".html", ".htm"))
    line = command_line(
        "diagnose", *traces, gpu=gpu, against=against, against_gpu=against_gpu, names=names, shapes=shapes,
        quantile=quantile if quantile != 0.9 else None, profile=profile, all=every, html=html_path,
    )  # fmt: skip
    given = (("gpu", gpu), ("names", names), ("shapes", shapes), ("profile", profile))
    options = "".join(f", {name}={value!r}" for name, value in given if value is not None)
    options += f", quantile={quantile!r}" if quantile != 0.9 else ""
    python = f"import tilecast\ntilecast.diagnose({', '.join(map(repr, traces))}{options})"
    if against is not None:
        python = _difference_python(python, against, against_gpu, names, quantile)
    if as_python:
        refuse_as_python(html=html_path)
        emit(Report(answer="", python=python), as_json=as_json, as_csv=as_csv, as_python=as_python)
        return
    for name in (gpu, against_gpu):
        if name is not None and (note := hardware.resolution_note(name)):
            say(note)
    found = diagnose(*traces, gpu=gpu, names=names, shapes=shapes, quantile=quantile, profile=profile, progress=_progress)
    other = diagnose(against, gpu=against_gpu, names=names, quantile=quantile, progress=_progress) if against is not None else None
    for each in (found, other):
        for sentence in each.partial_because if each is not None else ():
            say(f"partial result: {sentence}")
    compared = None
    if other is not None:
        from tilecast.diagnosis.difference import difference

        compared = difference(found, other)
    report = diagnose_report(found, line, python, every=every, other=other, compared=compared, inputs={
        "traces": list(traces), "gpu": gpu, "against": against, "against_gpu": against_gpu, "names": names, "shapes": shapes,
        "quantile": quantile, **({"profile": found.profile.told()} if found.profile else {}),
    })  # fmt: skip
    if page is not None:
        from tilecast.report.renderers import diagnose_html

        write_whole("--html", page, diagnose_html.page(report))
    emit(report, as_json=as_json, as_csv=as_csv, as_python=as_python)


def _difference_python(python: str, against: str, gpu: str | None, names: str | None, quantile: float) -> str:
    *imports, call = python.splitlines()
    options = {"gpu": gpu, "names": names, "quantile": quantile if quantile != 0.9 else None}
    more = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
    wanted = "from tilecast.diagnosis.difference import difference"
    return "\n".join([*imports, wanted, f"difference({call}, tilecast.diagnose({against!r}{more}))"])


class _Reading:
    """Says on stderr how far the reading of a large file is."""

    def __init__(self, path: Path) -> None:
        self.path, self.last_s = path, clock.monotonic()

    def __call__(self, done: int, total: int, events: int) -> None:
        now = clock.monotonic()
        if total < LARGE_BYTES or now - self.last_s < EVERY_S:
            return
        self.last_s = now
        print(f"tilecast: {self.path.name}: {100 * done / max(total, 1):.0f} % read, {events:,} events", file=sys.stderr, flush=True)


def _progress(path: Path) -> _Reading:
    return _Reading(path)


# ---- the report --------------------------------------------------------------------------------------------------


def diagnose_report(
    found: Diagnosis, line: str, python: str, *, inputs: dict[str, object], every: bool = False, other: Diagnosis | None = None,
    compared: "Difference | None" = None,
) -> Report:  # fmt: skip
    payload = {**found.to_dict(), "answer": answer(found), "inputs": inputs, "versions": versions()}
    grids = [_headline(found), _findings(found), _ranks(found), _recoverable(found, every), _advice(found, every), _gaps(found, every)]
    grids += [_families(found), _unpriced(found, every), _unknown(found, every), _notes(found)]
    records = [row.to_dict() | {"gap": "; ".join(f"{name} {seconds:.3g}" for name, seconds in row.parts)} for row in found.rows]
    if compared is not None and other is not None:
        payload["against"] = {"gpu": other.gpu.id, "traces": list(other.traces), **compared.to_dict()}
        grids += [_difference(compared), _work(compared, every), _sentences(compared)]
        records = [part.to_dict() for part in compared.work]
    return Report(
        answer=answer(found),
        grids=[grid for grid in grids if grid.rows],
        payload=payload,
        records=records,
        inputs=inputs,
        python=python,
        command=line,
    )


def answer(found: Diagnosis) -> str:
    times = found.timeline
    saved = percent(found.recoverable_s, found.gpu_time_s)
    partial = " (partial)" if found.partial_because else ""
    return (
        f"{found.gpu.label}: busy {percent(times.busy_s, times.span_s)} of {seconds(times.span_s)}; of {seconds(found.gpu_time_s)} GPU "
        f"time {percent(found.priced_s, found.gpu_time_s)} is priced, and {seconds(found.recoverable_s)} ({saved}) lie above "
        f"what well-made kernels take{partial}."
    )


def seconds(value: float | None) -> str:
    return "-" if value is None else units.human("_s", value)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _waiting(waiting_s: float | None) -> str:
    return "for what is not known: clocks differ" if waiting_s is None else f"of it waiting for a launch: {seconds(waiting_s)}"


def _headline(found: Diagnosis) -> Grid:
    times = found.timeline
    span = times.span_s
    several = f", mean of {len(found.ranks)} GPUs" if len(found.ranks) > 1 else ""
    twins = f"; {percent(found.inferred_s, found.gpu_time_s)} by an identical launch" if found.inferred_s else ""
    whole = found.gpu_time_s
    rows = [
        ("span", seconds(span), "", "first kernel to last" + several),
        ("busy", seconds(times.busy_s), percent(times.busy_s, span), "at least one kernel or copy runs"),
        ("idle", seconds(times.idle_s), percent(times.idle_s, span), _waiting(times.waiting_for_host_s)),
        ("communicating", seconds(times.communicating_s), percent(times.communicating_s, span),
         f"of it behind computation: {seconds(times.overlapped_s)}"),
        ("GPU time", seconds(found.gpu_time_s), "", f"{found.num_kernels:,} kernels and copies, end to end"),
        ("named", seconds(found.named_s), percent(found.named_s, found.gpu_time_s), "recognised by name"),
        ("priced", seconds(found.priced_s), percent(found.priced_s, whole), f"shapes known and prediction made{twins}"),
        ("recoverable", seconds(found.recoverable_s), percent(found.recoverable_s, found.gpu_time_s), "calls x (measured - ceiling)"),
    ]  # fmt: skip
    if found.profile:
        rows.append(("profile", found.profile.id, "", found.profile.words))
    if found.graph_s:
        rows.append(
            ("in CUDA graphs", seconds(found.graph_s), percent(found.graph_s, found.gpu_time_s), f"{found.num_graph_launches:,} replays")
        )
    return Grid(columns=("what", "time", "share", "meaning"), rows=rows, right=frozenset({"time", "share"}), spare=("meaning",))


def _findings(found: Diagnosis) -> Grid:
    return Grid(title="What stands out", columns=("", "finding"), rows=[("-", sentence) for sentence in found.findings])


def _notes(found: Diagnosis) -> Grid:
    said = [*(f"partial: {sentence}" for sentence in found.partial_because), *found.notes]
    return Grid(title="Notes", columns=("", "note"), rows=[("-", sentence) for sentence in said])


def _ranks(found: Diagnosis) -> Grid:
    rows = [
        (
            rank.name, str(rank.device), seconds(rank.timeline.span_s), percent(rank.timeline.busy_s, rank.timeline.span_s),
            percent(rank.timeline.idle_s, rank.timeline.span_s), seconds(rank.timeline.communicating_s),
            seconds(rank.timeline.overlapped_s),
        )
        for rank in found.ranks
    ]  # fmt: skip
    columns = ("rank", "device", "span", "busy", "idle", "communicating", "overlapped")
    return Grid(title="Ranks", columns=columns, rows=rows if len(rows) > 1 else [], right=frozenset(columns[2:]))


def _shown(rows: list[Row], every: bool) -> list[Row]:
    return rows if every else rows[:MOST_SHOWN]


def ranked(found: Diagnosis) -> list[Row]:
    return [row for row in found.rows if row.is_priced and row.recoverable_s]


def _recoverable(found: Diagnosis, every: bool) -> Grid:
    rows = [
        (
            str(place), row.op or row.kernel, row.shapes, f"{row.calls:,}", seconds(row.recoverable_s),
            percent(row.recoverable_s or 0.0, found.gpu_time_s), seconds(row.measured_s), seconds(row.predicted_s),
            seconds(row.ceiling_s), seconds(row.bound_s), row.bound_by, row.module, row.kernel,
        )
        for place, row in enumerate(_shown(ranked(found), every), 1)
    ]  # fmt: skip
    numbers = ("calls", "recoverable", "share", "measured", "predicted", "ceiling", "bound")
    columns = ("#", "operator", "shapes", *numbers, "bound by", "module", "kernel")
    return Grid(
        title="Where time could be saved", columns=columns, rows=rows,
        right=frozenset(numbers), spare=("module", "bound by", "share", "bound", "kernel"),
    )  # fmt: skip


def _advice(found: Diagnosis, every: bool) -> Grid:
    rows = [(str(place), row.advice) for place, row in enumerate(_shown(ranked(found), every), 1)]
    return Grid(title="What to do about them", columns=("#", "advice"), rows=rows)


def _gaps(found: Diagnosis, every: bool) -> Grid:
    """One call of each: from the bound, part by part, to what was measured."""
    shown = _shown(ranked(found), every)
    names = [name for name in MEANINGS if any(abs(dict(row.parts).get(name, 0.0)) > LEAST_PART * row.measured_s for row in shown)]
    rows = [
        (str(place), seconds(row.bound_s), *(_part(dict(row.parts).get(name)) for name in names), seconds(row.measured_s))
        for place, row in enumerate(shown, 1)
    ]
    columns = ("#", "bound", *names, "measured")
    return Grid(title="What they are made of, one call", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _part(value: float | None) -> str:
    return "" if value is None else f"{'-' if value < 0 else ''}{units.human('_s', abs(value))}"


def _families(found: Diagnosis) -> Grid:
    rows = [
        (
            entry["family"], f"{entry['calls']:,}", seconds(entry["total_s"]), f"{100 * entry['share_fraction']:.1f} %",
            percent(entry["priced_s"], entry["total_s"]), seconds(entry["recoverable_s"]),
        )
        for entry in found.families()
    ]  # fmt: skip
    columns = ("what kernels do", "calls", "time", "share", "priced", "recoverable")
    return Grid(title="Where the time goes", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _unpriced(found: Diagnosis, every: bool) -> Grid:
    missing = found.unpriced()
    rows = [
        (
            entry["kernel"],
            entry["op"],
            f"{entry['calls']:,}",
            seconds(entry["total_s"]),
            f"{100 * entry['share_fraction']:.1f} %",
            entry["because"],
        )
        for entry in (missing if every else missing[:MOST_SHOWN])
    ]
    columns = ("kernel", "operator", "calls", "time", "share", "because")
    return Grid(title="Named, not priced", columns=columns, rows=rows, right=frozenset({"calls", "time", "share"}))


def _unknown(found: Diagnosis, every: bool) -> Grid:
    rows = [
        (row.kernels[0][:100], row.op, f"{row.calls:,}", seconds(row.total_s), percent(row.total_s, found.gpu_time_s))
        for row in _shown(list(found.unknown), every)
    ]
    columns = ("kernel", "operator", "calls", "time", "share")
    return Grid(title="Unknown kernels (--names FILE.toml adds rules)", columns=columns, rows=rows, right=frozenset(columns[2:]))


# ---- two runs ----------------------------------------------------------------------------------------------------


def _difference(compared: "Difference") -> Grid:
    rows = [
        (
            part.name, seconds(part.other.total_s), seconds(part.this.total_s), signed_s(part.difference_s), signed_s(part.by_calls_s),
            signed_s(part.by_speed_s),
        )
        for part in compared.families
    ]  # fmt: skip
    rows.append(("idle", "", "", signed_s(compared.idle_s), "", ""))
    rows.append(("at the same time", "", "", signed_s(compared.at_once_s), "", ""))
    rows.append(("span", seconds(compared.other_span_s), seconds(compared.this_span_s), signed_s(compared.span_s), "", ""))
    columns = ("against the other run", "other", "this", "difference", "by calls", "by speed")
    return Grid(title="The difference, one GPU", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _work(compared: "Difference", every: bool) -> Grid:
    rows = [
        (
            part.name, f"{part.other.calls:,}", f"{part.this.calls:,}", signed_s(part.difference_s),
            f"{part.ratio:.2f}" if part.ratio else "-", f"{part.predicted_ratio:.2f}" if part.predicted_ratio else "-",
            part.other.kernel, part.this.kernel,
        )
        for part in (compared.work if every else compared.work[:MOST_SHOWN])
    ]  # fmt: skip
    columns = ("work", "calls there", "here", "difference", "times as long", "predicted", "kernel there", "kernel here")
    return Grid(title="The difference, by work", columns=columns, rows=rows, right=frozenset(columns[1:6]), spare=columns[6:])


def _sentences(compared: "Difference") -> Grid:
    return Grid(title="In words", columns=("", "explanation"), rows=[("-", sentence) for sentence in compared.sentences()])
