"""python -m benchmarks.doubling: do measured kernels take longer when a size doubles, and what does it cost to predict so?

A pair is two measured launches of one kernel on one GPU that differ by a factor of two in one size. Counted are the pairs whose larger
launch is faster by more than 3 %, as measured, as the shipped weights have learned it, and as predicted, which keeps the law. The price of
the law is the error of the prediction beside that of what was learned; the least price is exact: the least mean error that any prediction
can have on these rows if it never falls by more than 3 % from one to the other, found by linear programming. A second table counts pairs
that differ in what kernels are built for, query heads of a KV head in decode, KV heads of the same query heads and the width of a head:
there the law ends at steps where rows show that a library runs another kernel. Beside them is what holding it at those steps too would
cost on these rows, by lowering the smaller launch or raising the larger one.
Writes results/doubling.json and doubling.md.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack
from scipy.sparse.csgraph import connected_components

from benchmarks.accuracy.ours import IDENTITY, shipped_and_learned
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.publish import markdown_table
from benchmarks.accuracy.suites.kernels_indist import FAMILIES, SLICES, rows
from tilecast.datasets.schema import SHAPES
from tilecast.errors import TilecastError
from tilecast.kernels.base import Doublings, size_built_for
from tilecast.kernels.registry import kernel
from tilecast.learning.built_sizes import NAMES, Pairs, doubled_pairs
from tilecast.learning.correction import load, slice_key

RESULTS = Path(__file__).parent / "results"
MOST_LOST = 0.03  # of the time, when a size doubles
QUICK_SLICES = 2  # of each family
MUCH_LOST = 0.2
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Priced:
    """One family: shares and errors in percent, errors as the mean over (GPU, engine) of each number format."""

    family: str
    rows: int
    pairs: int
    measured: float  # share of pairs that get faster
    learned: float
    predicted: float
    both: float  # of those learned to, how many do
    least_error: float  # of any prediction that keeps the law
    learned_error: float
    predicted_error: float


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Pairs that differ in what kernels are built for: shares and errors in percent."""

    family: str
    doubled: str
    pairs: int
    measured: float
    measured_much: float
    steps: int  # of a slice, from one number to twice as many
    changes: int  # steps of them at which another kernel runs
    predicted: float
    predicted_elsewhere: float  # at all other steps
    predicted_error: float
    lowered_error: float  # if the smaller launch of every step took no longer than the law leaves it
    raised_error: float  # if the larger one took as long as the law asks


def price(family: str, quick: bool, every: int = 1) -> tuple[Priced, list[BuiltIn]]:
    launches = _launches(family, quick, every)
    slices = [_Slice.of(part, family) for part in launches.partition_by(SLICES, maintain_order=True)]
    falls, told, kept = (np.concatenate([getattr(each, name) for each in slices]) for name in ("falls", "told", "kept"))
    shares = (_percent(share) for share in (falls, told, kept, falls[told]))
    errors = (100 * float(np.mean([getattr(each, name).mean() for each in slices])) for name in ERRORS)
    built_in = [_built_in(launches, family, name) for name in getattr(kernel(family), "built_for", ())]
    return Priced(family, launches.height, len(falls), *shares, *errors), built_in


def _percent(flags: NDArray[np.bool_]) -> float:
    return 100 * float(flags.mean()) if len(flags) else 0.0


def _built_in(launches: pl.DataFrame, family: str, name: str) -> BuiltIn:
    pairs, (steps, is_change) = pairs_of(launches, family, ((name,),)), _changes(launches, family, name)
    is_change = is_change[pairs[:, 0]]
    measured_s, predicted_s = (launches[column].to_numpy() for column in ("latency_s", "predicted_s"))
    falls = falling(predicted_s, pairs)
    measured, much = (_percent(flags) for flags in (falling(measured_s, pairs), falling(measured_s, pairs, MUCH_LOST)))
    together = pairs_of(launches, family, (*_always_held(family), (name,)))
    held = (predicted_s, lowered(predicted_s, together), raised(predicted_s, together))
    errors = (_over_slices(launches, np.abs(time_s / measured_s - 1)) for time_s in held)
    return BuiltIn(family, name, len(pairs), measured, much, *steps, _percent(falls), _percent(falls[~is_change]), *errors)


def _changes(launches: pl.DataFrame, family: str, name: str) -> tuple[tuple[int, int], NDArray[np.bool_]]:
    """How many steps the shipped weights know and at how many of them another kernel runs, and which launches (L,) are before one."""
    correction = load(family)
    said = correction.built[name] if correction is not None else {}
    record, is_change = kernel(family), np.zeros(launches.height, bool)
    names = [column for column in NAMES if column in launches.columns]
    at = size_built_for(name, lambda size: launches[size], record).to_numpy()
    placed = launches.select(pl.col("gpu", *names).cast(pl.String).fill_null("None")).with_row_index("place")
    steps = changes = 0
    for (gpu, *called), part in placed.group_by("gpu", *names):
        built = said.get(slice_key(str(gpu), dict(zip(names, map(str, called), strict=True))))
        if built is not None:
            here = part["place"].to_numpy()
            sizes = set(at[here].tolist())
            steps, changes = steps + len(sizes), changes + len(sizes & built.changes)
            is_change[here] = np.isin(at[here], list(built.changes))
    return (steps, changes), is_change


def _always_held(family: str) -> Doublings:
    """What the law holds for without exception."""
    record = kernel(family)
    return tuple(names for names in record.doublings if not (len(names) == 1 and names[0] in getattr(record, "built_for", ())))


def pairs_of(launches: pl.DataFrame, family: str, doublings: Doublings) -> Pairs:
    """All pairs of launches of which one is the other with something doubled."""
    return np.concatenate([doubled_pairs(launches, _key(family), names) for names in doublings])


def _over_slices(launches: pl.DataFrame, error: Floats) -> float:
    means = launches.with_columns(pl.Series("error", error)).group_by(SLICES).agg(pl.col("error").mean())["error"]
    return 100 * float(means.to_numpy().mean())


def lowered(time_s: Floats, pairs: Pairs) -> Floats:
    """Each time, or less where a launch with something doubled is that much faster: the most that keeps the law and raises nothing."""
    lowest_s, (smaller, larger) = time_s.copy(), pairs.T
    while len(pairs):
        before_s = lowest_s.copy()
        np.minimum.at(lowest_s, smaller, lowest_s[larger] / (1 - MOST_LOST))
        if np.array_equal(before_s, lowest_s):
            break
    return lowest_s


def raised(time_s: Floats, pairs: Pairs) -> Floats:
    """Each time, or more where a launch of half of something is that much slower: times turned over are lowered."""
    return np.asarray(1 / lowered(1 / time_s, pairs[:, ::-1]))


ERRORS = ("least_error", "learned_error", "predicted_error")


@dataclass(frozen=True, slots=True)
class _Slice:
    """One GPU, engine and number format: per pair, and per launch."""

    falls: NDArray[np.bool_]
    told: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    least_error: Floats
    learned_error: Floats
    predicted_error: Floats

    @staticmethod
    def of(table: pl.DataFrame, family: str) -> "_Slice":
        say(f"  {' '.join(map(str, table.select(SLICES).row(0)))}")
        measured_s, learned_s, predicted_s = (table[name].to_numpy() for name in ("latency_s", "learned_s", "predicted_s"))
        pairs = pairs_of(table, family, _always_held(family))
        errors = (np.abs(found_s / measured_s - 1) for found_s in (nearest_lawful(measured_s, pairs), learned_s, predicted_s))
        falls, told, kept = (falling(time_s, pairs) for time_s in (measured_s, learned_s, predicted_s))
        return _Slice(falls, told, kept, *errors)


def _launches(family: str, quick: bool, every: int) -> pl.DataFrame:
    """Every launch once, with the median of its measurements and the shipped weights' answer."""
    table = rows(family)
    slices = table.select(SLICES).unique(maintain_order=True)
    table = table.join(slices.head(QUICK_SLICES) if quick else slices.gather_every(every), on=SLICES, nulls_equal=True)
    table = table.group_by(_key(family), maintain_order=True).agg(pl.col("latency_s").median())
    predicted_s, learned_s = shipped_and_learned(table, family)
    table = table.with_columns(pl.Series("predicted_s", predicted_s), pl.Series("learned_s", learned_s))
    return table.filter(pl.col("predicted_s").is_finite())


def _key(family: str) -> list[str]:
    return ["group", *IDENTITY, *SHAPES[family]]


def falling(time_s: Floats, pairs: Pairs, most_lost: float = MOST_LOST) -> NDArray[np.bool_]:
    """Which pairs lose more than the law allows, beyond rounding."""
    smaller, larger = time_s[pairs].T
    return np.asarray(larger < (1 - most_lost) * (1 - 1e-9) * smaller)


def nearest_lawful(time_s: Floats, pairs: Pairs) -> Floats:
    """The times with the least mean relative error that keep the law. Rows that only meet kept pairs stay as they are."""
    touched = _connected(pairs, falling(time_s, pairs), len(time_s))
    here = pairs[touched[pairs[:, 0]]]
    places, inverse = np.unique(here, return_inverse=True)
    if not len(places):
        return time_s
    smaller, larger = inverse.reshape(here.shape).T
    law, ratio = np.arange(len(here)), time_s[here[:, 0]] / time_s[here[:, 1]]
    # With each time as 1 + up - down of its measurement, the law says fall @ (1 + up - down) <= 0.
    entries = np.concatenate([(1 - MOST_LOST) * ratio, np.full(len(here), -1.0)])
    fall = csr_array((entries, (np.tile(law, 2), np.concatenate([smaller, larger]))), shape=(len(here), len(places)))
    solved = linprog(np.ones(2 * len(places)), A_ub=hstack([fall, -fall]), b_ub=-fall.sum(axis=1), method="highs")
    up, down = np.split(solved.x, 2)
    lawful_s = time_s.copy()
    lawful_s[places] *= 1 + up - down
    return lawful_s


def _connected(pairs: Pairs, falls: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Launches that some chain of pairs connects with a pair that falls."""
    graph = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, component = connected_components(graph, directed=False)
    return np.isin(component, component[pairs[falls, 0]])


def page(found: Sequence[Priced], built_in: Sequence[BuiltIn], every: int = 1) -> str:
    head = ["family", "launches", "pairs", "measured: faster, % of pairs", "learned: faster, %", "of which measured too, %",
            "predicted: faster, %", "least error that keeps the law, %", "error as learned, %", "error as predicted, %"]  # fmt: skip
    body = [
        [each.family, f"{each.rows:,}", f"{each.pairs:,}", *(f"{value:.1f}" for value in (each.measured, each.learned, each.both)),
         f"{each.predicted:.3f}", *(f"{value:.2f}" for value in (each.least_error, each.learned_error, each.predicted_error))]
        for each in found
    ]  # fmt: skip
    free = ["family", "doubled", "pairs", "measured: faster, %", "by more than a fifth, %", "steps", "to another kernel",
            "predicted: faster, %", "at other steps, %", "error as predicted, %", "if held by lowering, %", "by raising, %"]  # fmt: skip
    rest = [
        [each.family, each.doubled, f"{each.pairs:,}", *(f"{value:.1f}" for value in (each.measured, each.measured_much)),
         f"{each.steps:,}", f"{each.changes:,}", f"{each.predicted:.2f}", f"{each.predicted_elsewhere:.3f}",
         *(f"{value:.2f}" for value in (each.predicted_error, each.lowered_error, each.raised_error))]
        for each in built_in
    ]  # fmt: skip
    part = f"one slice (GPU, engine and number format) of {every}" if every > 1 else "all slices (GPU, engine and number format)"
    note = f"Newest version of each engine, public kernel data, {part}; the shipped weights have seen most of these rows. {date.today()}"
    doc = (__doc__ or "").split("\n\n")[1].split("\nWrites")[0].replace("\n", " ")
    parts = [
        "# What doubling a size does",
        doc,
        note,
        markdown_table(head, body),
        "What kernels are built for:",
        markdown_table(free, rest),
    ]
    return "\n\n".join(parts) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doubling", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="two slices of each family; print, write nothing")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth slice: all of them take hours of one core")
    options = parser.parse_args(given)
    try:
        both = [price(family, options.quick, max(1, options.every)) for family in FAMILIES]
    except TilecastError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    found, built_in = [priced for priced, _ in both], [each for _, free in both for each in free]
    text = page(found, built_in, max(1, options.every))
    print(text)
    if not options.quick:
        (RESULTS / "doubling.md").write_text(text, encoding="utf-8")
        record = {
            "doubling": list(map(asdict, found)),
            "built_in": list(map(asdict, built_in)),
            "every": options.every,
            "date": str(date.today()),
        }
        (RESULTS / "doubling.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
