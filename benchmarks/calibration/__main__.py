"""python -m benchmarks.calibration: error on a GPU nobody trained on, against how much of it was measured.

Writes calibration.json, .md and a picture of the learning curves. Exit codes: 0 scored; 3 the data is not here.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl

import tilecast
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.publish import markdown_table
from benchmarks.accuracy.suites.kernels_unseen import FAMILIES
from benchmarks.calibration import plot
from benchmarks.calibration.curves import COUNTS, DRAWS, points
from benchmarks.calibration.held_out import held_out
from benchmarks.calibration.runs import PARTS, scores
from tilecast import hardware
from tilecast.errors import MissingExtra, TilecastError, Unavailable
from tilecast.learning.manifests import artifacts_hash

RESULTS = Path(__file__).parents[1] / "results"
QUICK_COUNTS, QUICK_DRAWS = (0, 1, 5, 20), 1
TARGETS = "generation out, after 20 kernels: GEMM 6.0 %, attention 8.0 %; one run per GPU: prefill / decode step / total 3.5 / 5 / 2.5 %"
NOTES = (
    "Weights are fitted on training shapes of other GPUs: without the whole generation, or without the GPU and its siblings. Kernels that "
    "calibrate are training shapes of the held-out GPU; scores are on its held-out shapes.",
    "Kernels are of the same engine and number format as those scored; mean per (format, GPU, engine), then over engines and formats, then "
    "over GPUs (generation out: over generations).",
    f"Random: {DRAWS} seeded draws. Planned: greedy by expected variance, from the features alone.",
    "The prior's variances are fitted on errors of the other generations, training shapes only; --quick takes the package's.",
    "Inside: share of rows in the 80 % interval. GEMM: bf16, n and k of at least 512.",
)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few rows and draws, written to --out or to a temporary folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: benchmarks/results)")
    options = parser.parse_args(sys.argv[1:] if given is None else given)
    folder = options.out or (Path(tempfile.mkdtemp(prefix="tilecast-calibration-")) if options.quick else RESULTS)
    try:
        write(measured(options.quick), folder)
    except TilecastError as problem:
        say(f"error: {problem}")
        return problem.exit_code
    say(f"written to {folder}")
    return 0


def measured(quick: bool) -> dict[str, Any]:
    """Everything the files hold."""
    started = time.monotonic()
    counts, draws = (QUICK_COUNTS, QUICK_DRAWS) if quick else (COUNTS, DRAWS)
    rows = [point.to_dict() for point in points(held_out(quick), draws, counts, quick=quick)]
    runs: list[dict[str, Any]] = []
    try:
        runs = scores()
    except Unavailable as reason:
        say(f"whole runs skipped: {reason}")
    say(f"done in {time.monotonic() - started:.0f} s")
    return {
        "benchmark": "calibration", "date": date.today().isoformat(), "version": tilecast.__version__,
        "catalogue": hardware.catalogue_hash(),
        "artifacts": artifacts_hash(),
        "command": f"python -m benchmarks.calibration{' --quick' if quick else ''}", "quick": quick, "target": TARGETS,
        "notes": list(NOTES),
        "curves": curves(pl.DataFrame(rows)), "runs": runs, "run_errors": run_errors(runs),
    }  # fmt: skip


def curves(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Mean over slices of a GPU, over the GPUs of a generation where generations were held out, then over those."""
    archs = {gpu: hardware.gpu(gpu).arch for gpu in rows["gpu"].unique()}
    unit = pl.when(pl.col("held_out") == "generation").then(pl.col("gpu").replace_strict(archs)).otherwise(pl.col("gpu"))
    keys = ["held_out", "family", "choice", "measured"]
    means = [pl.col(name).mean() for name in ("error", "inside", "width")]
    by_gpu = rows.group_by(*keys, "gpu").agg(*means).with_columns(unit.alias("unit"))
    by_unit = by_gpu.group_by(*keys, "unit").agg(*means)
    whole = by_unit.group_by(*keys).agg(*means).with_columns(pl.lit("mean").alias("unit"))
    every = pl.concat([by_unit.select(whole.columns), whole]).sort(*keys, "unit")
    return every.with_columns(pl.col("error", "inside", "width").round(4)).to_dicts()


def run_errors(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if not runs:
        return []
    frame = pl.DataFrame(list(runs)).with_columns(
        *((pl.col(name) / pl.col("measured") - 1).abs().alias(f"{name}_error") for name in ("before", "after"))
    )
    means = [pl.len().alias("cases"), *(pl.col(f"{name}_error").mean().round(4) for name in ("before", "after"))]
    by_gpu = frame.group_by("gpu", "part").agg(*means)
    whole = frame.group_by("part").agg(*means).with_columns(pl.lit("all").alias("gpu")).select(by_gpu.columns)
    return pl.concat([by_gpu, whole]).sort("gpu", "part").to_dicts()


def write(result: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = ""
    try:
        drawn = plot.draw(result["curves"], folder)
    except MissingExtra as reason:
        say(f"no picture: {reason}")
    text = markdown(result, drawn)
    (folder / "calibration.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")
    (folder / "calibration.md").write_text(text, encoding="utf-8", newline="\n")
    print(text)


def markdown(result: dict[str, Any], drawn: str) -> str:
    lines = ["# calibration", "", "How far off is a kernel, or a whole run, on a GPU of which a few measurements exist?", ""]
    lines += [f"**To beat:** {result['target']}", ""]
    made_with = f"tilecast {result['version']}, catalogue {result['catalogue']}, artifacts {result['artifacts']}"
    lines += [f"{made_with}, {result['date']}: `{result['command']}`", ""]
    counts = sorted({entry["measured"] for entry in result["curves"]})
    for held_out_, title in (("generation", "one generation out"), ("gpu", "one GPU out, siblings too")):
        lines += [f"## Kernels, {title}: mean absolute error in percent", ""]
        rows = [
            [family, choice, *(_cell(result, held_out_, family, choice, count) for count in counts)]
            for family in FAMILIES
            for choice in ("random", "planned")
        ]
        lines += [markdown_table(("family", "kernels", *(f"{count} measured" for count in counts)), rows), ""]
        lines += ["In brackets: the share of rows inside the 80 % interval.", ""]
        units = sorted({entry["unit"] for entry in result["curves"] if entry["held_out"] == held_out_} - {"mean"})
        lines += ["After 20 random kernels (before):", ""]
        each = [
            [family, *(f"{_error(result, held_out_, family, unit, 20)} ({_error(result, held_out_, family, unit, 0)})" for unit in units)]
            for family in FAMILIES
        ]
        lines += [markdown_table(("family", *units), each), ""]
    if drawn:
        lines += [f"![learning curves]({drawn})", ""]
    if result["run_errors"]:
        lines += ["## Whole runs: one run per GPU measured, the others scored", ""]
        rows = [
            [entry["gpu"], entry["part"], str(entry["cases"]), f"{100 * entry['before_error']:.1f}", f"{100 * entry['after_error']:.1f}"]
            for entry in sorted(result["run_errors"], key=lambda entry: (entry["gpu"], list(PARTS).index(entry["part"])))
        ]
        lines += [markdown_table(("GPU", "part", "cases", "before, %", "after one run, %"), rows), ""]
    lines += ["## Notes", "", *(f"- {note}" for note in result["notes"]), ""]
    return "\n".join(lines)


def _cell(result: dict[str, Any], held: str, family: str, choice: str, count: int) -> str:
    found = _find(result, held, family, choice, "mean", count)
    return f"{100 * found['error']:.1f} ({100 * found['inside']:.0f})" if found else "-"


def _error(result: dict[str, Any], held: str, family: str, unit: str, count: int) -> str:
    found = _find(result, held, family, "random", unit, count)
    return f"{100 * found['error']:.1f}" if found else "-"


def _find(result: dict[str, Any], *key: object) -> dict[str, Any] | None:
    names = ("held_out", "family", "choice", "unit", "measured")
    return next((entry for entry in result["curves"] if tuple(entry[name] for name in names) == key), None)


if __name__ == "__main__":
    sys.exit(main())
