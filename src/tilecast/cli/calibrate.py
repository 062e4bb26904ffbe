"""`tilecast calibrate`: a profile of a GPU from measured kernels or a measured run, and a script that measures what tells most."""

import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilecast import hardware, units
from tilecast.cli.files import target_file
from tilecast.cli.output import command_line, emit, output_options, say
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.report import Grid, Report, versions

MOST_PLANNED = 200
ODD = 0.5  # trust below which a row is named


@click.command(name="calibrate")
@click.argument("rows", metavar="ROWS.csv", required=False)
@click.option("--gpu", required=True, help="The GPU that was measured: catalogue id, device string, or the path of a TOML file.")
@click.option("--run", "run_path", metavar="RUN.json", help="One whole run: inputs as `predict --json` prints them, and what was measured.")
@click.option("--plan", "planned", type=int, metavar="N", help="Write a script that times the N kernels that tell most.")
@click.option("--out", "-o", "target", required=True, metavar="FILE", help="The profile, or with --plan the script.")
@output_options
def command(rows: str | None, gpu: str, run_path: str | None, planned: int | None, target: str, **output: bool) -> None:
    """Make a profile of a GPU, for --profile of kernel, kernels, predict, support, step, diagnose and tune.

    ROWS.csv has the columns of `tilecast kernels` plus measured_s. RUN.json is {"command": "predict", "inputs": {...}, "measured":
    {"prefill_s": x, "decode_step_s": y, "total_s": z}}; any of the three will do. Rows and a run may be given together.
    """
    if note := hardware.resolution_note(gpu):
        say(note)
    spec = hardware.gpu(gpu)
    path = target_file("--out", target, reads=(rows, run_path, gpu))
    if planned is not None:
        if rows or run_path:
            raise InvalidInput("--plan says what to measure: it goes without ROWS.csv and --run")
        if not 1 <= planned <= MOST_PLANNED:
            raise InvalidInput(f"--plan {planned} must be a number of kernels from 1 to {MOST_PLANNED}")
        if output["as_python"]:
            emit(Report(answer="", python=_plan_python(gpu, planned, target)), **output)
            return
        emit(plan_report(spec, gpu, planned, target, path), **output)
    elif rows or run_path:
        if output["as_python"]:
            emit(Report(answer="", python=_python(gpu, rows, run_path, target)), **output)
            return
        emit(profile_report(spec, gpu, rows, run_path, target, path), **output)
    else:
        raise InvalidInput("give ROWS.csv, --run RUN.json, or --plan N")


def profile_report(gpu: GpuSpec, asked: str, rows: str | None, run_path: str | None, target: str, path: Path) -> Report:
    from tilecast.cli.kernels import check_columns, foreign_cells, meanings, read
    from tilecast.engines.calibrated import evidence_from_run, read_run
    from tilecast.learning import profiles
    from tilecast.learning.calibration import both
    from tilecast.predictors.calibrated import evidence_from_rows

    found, used = None, 0
    if rows:
        columns = meanings(read(Path(rows)))
        columns.setdefault("gpu", [gpu.id] * len(next(iter(columns.values()), [])))
        unread = check_columns(columns)
        found, used = evidence_from_rows([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)], gpu)
        if unread:
            say(f"not read: {', '.join(unread)}")
        if foreign := foreign_cells(columns):
            say(f"not read, as these kernels have no such parameter: {foreign}")
        if used < (given := len(columns["gpu"])):
            say(f"{given - used:,} of {given:,} rows are of other GPUs than {gpu.id} and left out")
    if run_path:
        run = evidence_from_run(read_run(Path(run_path)), gpu)
        found = run if found is None else both(found, run)
    assert found is not None
    profile = profiles.made(gpu, found, num_rows=used, num_runs=int(bool(run_path)))
    profiles.write(profile, path)
    table = levels(profile)
    payload = {"schema": "tilecast.calibrate/1", "path": target, "profile": profile.told(), "levels": table, "versions": versions()}
    return Report(
        answer=f"{profile.words[0].upper()}{profile.words[1:]}: the profile {profile.id} is in {target}.",
        grids=[_levels_grid(table)],
        payload=payload,
        records=table,
        python=_python(asked, rows, run_path, target),
        command=command_line("calibrate", *([rows] if rows else []), gpu=asked, run=run_path, out=target),
    )


def levels(profile: Any) -> list[dict[str, Any]]:
    """What was learned, by family and what binds: errors before, after, and with each measurement left out in turn."""
    from tilecast.learning.features import GROUPS

    model, held = profile.posterior, profile.evidence
    precision = model.root.T @ model.root
    alone = held.offset - model.pull / np.diag(precision)  # what the others say of each observation
    single = (held.weights != 0).sum(axis=1) == 1
    table = []
    site = np.argmax(held.weights, axis=1)
    keys = [(str(held.sites.family[place]), GROUPS[held.sites.group[place]]) for place in site]
    for family, group in sorted({key for key, one in zip(keys, single, strict=True) if one}):
        mine = np.array([one and key == (family, group) for key, one in zip(keys, single, strict=True)])
        table.append(_level(family, group, held.offset[mine], alone[mine], model.trust[mine]))
    for place in np.flatnonzero(~single):
        phases = {str(name) for name in held.sites.family[held.weights[place] != 0]}
        part = "total" if {"host prefill", "host decode"} <= phases else "prefill" if "host prefill" in phases else "decode step"
        table += [_level("a run", part, held.offset[[place]], alone[[place]], model.trust[[place]])]
    return table


def _level(family: str, group: str, offset: np.ndarray, alone: np.ndarray, trust: np.ndarray) -> dict[str, Any]:
    return {
        "family": family, "part": group, "measured": len(offset), "measured_over_predicted": float(np.exp(np.median(offset))),
        "error_before": float(np.mean(np.abs(np.expm1(-offset)))), "error_left_out": float(np.mean(np.abs(np.expm1(alone - offset)))),
        "odd": int((trust < ODD).sum()),
    }  # fmt: skip


def _levels_grid(table: list[dict[str, Any]]) -> Grid:
    rows = [
        (entry["family"], entry["part"], str(entry["measured"]), f"{entry['measured_over_predicted']:.3f}",
         f"{100 * entry['error_before']:.1f} %", f"{100 * entry['error_left_out']:.1f} %", str(entry["odd"] or "-"))
        for entry in table
    ]  # fmt: skip
    columns = ("family", "part", "measured", "over predicted", "error before", "told by the others", "odd ones")
    return Grid(title="What the measurements say", columns=columns, rows=rows, right=frozenset(columns[2:]))


def plan_report(gpu: GpuSpec, asked: str, planned: int, target: str, path: Path) -> Report:
    from tilecast.engines.measurement import plan, script, write_script

    chosen = plan(gpu, planned)
    write_script(script(gpu, chosen, asked), path)
    records = [{**each.row, "predicted_s": each.median_s, "explains_fraction": each.explained} for each in chosen]
    rows = [
        (
            str(place + 1),
            each.row["family"],
            each.row["dtype"],
            each.sizes,
            each.bound_by,
            units.human("_s", each.median_s),
            f"{100 * each.explained:.0f} %",
        )
        for place, each in enumerate(chosen)
    ]
    after = f"tilecast calibrate rows.csv --gpu {shlex.quote(asked)} -o profile.json"
    columns = ("", "family", "dtype", "sizes", "bound by", "predicted", "explained so far")
    return Report(
        answer=f"{target} times {len(chosen)} kernels on {gpu.label}: run it there, then `{after}`.",
        grids=[Grid(columns=columns, rows=rows, right=frozenset({"predicted", "explained so far"}), spare=("sizes",))],
        payload={"schema": "tilecast.plan/1", "path": target, "gpu": gpu.id, "kernels": records, "versions": versions()},
        records=records,
        python=_plan_python(asked, planned, target),
        command=command_line("calibrate", gpu=asked, plan=planned, out=target),
    )


def _plan_python(gpu: str, planned: int, target: str) -> str:
    return (
        "from pathlib import Path\nimport tilecast\nfrom tilecast.engines.measurement import plan, script, write_script\n"
        f"gpu = tilecast.gpu({gpu!r})\nwrite_script(script(gpu, plan(gpu, {planned}), {gpu!r}), Path({target!r}))"
    )


def _python(gpu: str, rows: str | None, run_path: str | None, target: str) -> str:
    lines = ["from pathlib import Path", "from tilecast import hardware", "from tilecast.learning import profiles"]
    lines += [f"gpu = hardware.gpu({gpu!r})"]
    if rows:
        lines += ["from tilecast.cli.kernels import meanings, read", "from tilecast.predictors.calibrated import evidence_from_rows"]
        lines += [f"columns = meanings(read(Path({rows!r})))"]
        lines += ["evidence, used = evidence_from_rows([dict(zip(columns, row)) for row in zip(*columns.values())], gpu)"]
    if run_path:
        lines += ["from tilecast.engines.calibrated import evidence_from_run, read_run"]
        lines += [f"run = evidence_from_run(read_run(Path({run_path!r})), gpu)"]
    if rows and run_path:
        lines += ["from tilecast.learning.calibration import both", "evidence = both(evidence, run)"]
    found, more = ("evidence", ", num_rows=used") if rows else ("run", "")
    made = f"profiles.made(gpu, {found}{more}, num_runs={int(bool(run_path))})"
    return "\n".join([*lines, f"profiles.write({made}, Path({target!r}))"])
