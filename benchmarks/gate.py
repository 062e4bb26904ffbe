"""python -m benchmarks.gate [--write]: has the shipped package become worse anywhere? Per slice, old against new, on a small fixed subset.

The subset is drawn with a fixed seed from the public kernel data and the end-to-end cases. It is a guard, not an accuracy claim: the
shipped weights have seen most of these rows. `--write` records today's errors in results/gate.json; without it they are compared with
the recorded ones, and the exit code is 1 when a slice or the mean became worse by more than the tolerances below.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.accuracy.ours import shipped
from benchmarks.accuracy.scoring import capped, grouped
from benchmarks.accuracy.suites import e2e_inference
from benchmarks.accuracy.suites.kernels_indist import FAMILIES, SLICES
from tilecast.datasets import splits, store
from tilecast.errors import TilecastError

RECORDED = Path(__file__).parent / "results" / "gate.json"
ROWS = 12  # of a slice
POINTS, SHARE = 2.0, 0.25  # a slice may become worse by this many percentage points, or this share of its error, whichever is more
MEAN_POINTS = 0.3  # and the mean over slices by this much

Errors = dict[str, float]  # slice -> mean absolute error in percent


def measure() -> Errors:
    """Today's error of every slice that has its data here."""
    return dict(sorted([*_kernels(), *_deployments()]))


def _kernels() -> Iterator[tuple[str, float]]:
    """The shipped weights' error per (group, GPU, engine)."""
    for family in FAMILIES:
        rows = capped(grouped(splits.newest(store.rows(family, ["aiconfigurator"])), family), SLICES, ROWS)
        error = (100 * (pl.Series(shipped(rows, family)) / rows["latency_s"] - 1).abs()).fill_nan(None)
        told = rows.with_columns(error.alias("error")).group_by(SLICES, maintain_order=True).agg(pl.col("error").mean())
        yield from ((" ".join(map(str, key)), value) for *key, value in told.iter_rows() if value is not None)


def _deployments() -> Iterator[tuple[str, float]]:
    """Whole batches per GPU and part."""
    found = e2e_inference.ours(e2e_inference.cases())
    error = 100 * (pl.col("predicted") / pl.col("measured") - 1).abs()
    for gpu, part, value in found.group_by("gpu", "part", maintain_order=True).agg(error.mean()).iter_rows():
        yield f"e2e {gpu} {part}", value


def worse(old: Mapping[str, float], new: Mapping[str, float]) -> list[str]:
    """A sentence per regression; slices that only one side has are not compared."""
    both = sorted(old.keys() & new.keys())
    found = [f"{name}: {old[name]:.1f} -> {new[name]:.1f} %" for name in both if new[name] - old[name] > max(POINTS, SHARE * old[name])]
    if both:
        before, after = (float(np.mean([side[name] for name in both])) for side in (old, new))
        if after - before > MEAN_POINTS:
            found.insert(0, f"mean over {len(both)} slices: {before:.2f} -> {after:.2f} %")
    return found


def recorded() -> Errors:
    """What was written down last."""
    errors: Errors = json.loads(RECORDED.read_text(encoding="utf-8"))["errors"]
    return errors


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="record today's errors")
    options = parser.parse_args(given)
    try:
        errors = measure()
    except TilecastError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    if options.write:
        rounded = {name: round(value, 2) for name, value in errors.items()}
        RECORDED.write_text(json.dumps({"rows_of_a_slice": ROWS, "errors": rounded}, indent=1) + "\n", encoding="utf-8")
        print(f"recorded {len(errors)} slices, mean {np.mean(list(errors.values())):.2f} %")
        return 0
    found = worse(recorded(), errors)
    print("\n".join(found) or f"no slice of {len(errors)} became worse")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
