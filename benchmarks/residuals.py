"""python -m benchmarks.residuals [FAMILY...]: where physics and measurements part most, by kernel and by size. Prints, writes nothing.

A slice is a GPU, engine, number format and identity. Slices come in the order of the spread of measured / analytic among their rows; for
each, the size along which that ratio moves most, and its median at every value. A ratio that steps where a library changes its kernel, or
grows with a size that should be free, is physics that is missing: trees learn it for this GPU, and mislead where only they speak. Shapes
that the suites hold out are not looked at.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.publish import markdown_table
from benchmarks.accuracy.scoring import SEED
from benchmarks.accuracy.suites.kernels_indist import FAMILIES, TEST_FRACTION
from tilecast.datasets import splits
from tilecast.errors import TilecastError
from tilecast.learning.examples import Examples, examples
from tilecast.learning.features import SIZES, number_names
from tilecast.learning.recipes import settings_of, training_rows

ROWS_PER_SLICE = 2_000
MOST_SLICES = 15
FEWEST_ROWS = 100
NAMES = ("engine", "dtype", "kv_dtype", "identity", "moe_pass")
LEAST_OF_A_BIN = 8  # rows

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """One slice: measured / analytic of its rows, and how it goes with a size."""

    name: str
    rows: int
    low: float  # tenth percentile
    median: float
    high: float  # ninetieth
    size: str  # that tells most of it
    told: float  # share of the variance of its logarithm
    medians: dict[int, float]  # power of two below the size -> median


def parts(data: Examples, family: str) -> list[Part]:
    """Every slice with enough rows, widest first."""
    found = [_part(name, data.where(rows), family) for name, rows in _slices(data) if len(rows) >= FEWEST_ROWS]
    return sorted(found, key=lambda part: part.low / part.high)


def _slices(data: Examples) -> Iterator[tuple[str, NDArray[np.int64]]]:
    words = [" ".join(entry[name] for name in NAMES if entry.get(name) not in (None, "None")) for entry in data.names]
    names = np.array([f"{gpu} {words[group]}" for gpu, group in zip(data.gpu.tolist(), data.group_of.tolist(), strict=True)])
    for name in np.unique(names):
        yield str(name), np.flatnonzero(names == name)


def _part(name: str, data: Examples, family: str) -> Part:
    columns = number_names(family)
    bins = {size: np.floor(data.numbers[:, columns.index(f"log2 {size}")]).astype(int) for size in SIZES[family]}
    shares = {size: _told(data.target, at) for size, at in bins.items()}
    size = max(shares, key=lambda each: shares[each])
    medians = {
        int(2**power): float(np.exp(np.median(data.target[bins[size] == power])))
        for power in np.unique(bins[size])
        if (bins[size] == power).sum() >= LEAST_OF_A_BIN
    }
    low, median, high = np.exp(np.quantile(data.target, (0.1, 0.5, 0.9))).tolist()
    return Part(name, len(data.target), low, median, high, size, shares[size], medians)


def _told(target: Floats, at: NDArray[np.int64]) -> float:
    """Share of the variance that lies between the bins."""
    _, place, count = np.unique(at, return_inverse=True, return_counts=True)
    means = np.bincount(place, target) / count
    return float(np.sum(count * (means - target.mean()) ** 2) / max(np.sum((target - target.mean()) ** 2), 1e-12))


def page(family: str, found: Sequence[Part]) -> str:
    head = ["slice", "rows", "tenth", "median", "ninetieth", "moves with", "told, %", "median by size"]
    body = [
        [part.name, f"{part.rows:,}", *(f"{value:.2f}" for value in (part.low, part.median, part.high)), part.size,
         f"{100 * part.told:.0f}", ", ".join(f"{size}: {value:.2f}" for size, value in part.medians.items())]
        for part in found[:MOST_SLICES]
    ]  # fmt: skip
    return f"{family}: measured / analytic, {len(found)} slices, the widest first\n\n{markdown_table(head, body)}\n"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residuals", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all, if none is given")
    options = parser.parse_args(given)
    unknown = [family for family in options.families if family not in FAMILIES]
    if unknown:
        parser.error(f"{unknown[0]!r} is no family that is learned: {', '.join(FAMILIES)}")
    try:
        for family in options.families or FAMILIES:
            seen, _, _ = splits.by_shape(training_rows(family, ()), family, test_fraction=TEST_FRACTION, seed=SEED)
            data = examples(seen, family, rows_per_slice=ROWS_PER_SLICE, most_host=settings_of(family).most_host)
            print(page(family, parts(data, family)))
    except TilecastError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
