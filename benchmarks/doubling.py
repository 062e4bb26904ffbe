"""python -m benchmarks.doubling [--quick]: do measured kernels take longer when a size doubles, and what would it cost to predict so?

A pair is two measured launches of one kernel on one GPU that differ by a factor of two in one size. Counted are the pairs whose larger
launch is faster by more than 3 %, as measured and as predicted by the shipped weights. The price of the law is exact: the least mean
error that any prediction can have on these rows if it never falls by more than 3 % from one to the other, found by linear programming.
The lowered error is that of the shipped weights on a sample of the rows, each median brought down to what up to three doublings allow.
Writes results/doubling.json and doubling.md.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack
from scipy.sparse.csgraph import connected_components

from benchmarks.accuracy.ours import IDENTITY, shipped
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.publish import markdown_table
from benchmarks.accuracy.suites.kernels_indist import FAMILIES, SLICES, rows
from tilecast.datasets.schema import SHAPES
from tilecast.errors import TilecastError

RESULTS = Path(__file__).parent / "results"
MOST_LOST = 0.03  # of the time, when a size doubles
QUICK_SLICES = 2  # of each family
NUM_LOWERED, NUM_LOWERED_QUICK = 4000, 200  # launches of a family
MOST_DOUBLINGS = 3
DOUBLED = {  # what doubles together: new tokens come with their keys, query heads alone or with their KV heads
    "gemm": (("m",), ("n",), ("k",), ("batch",)),
    "attention_prefill": (("batch",), ("q_len", "kv_len"), ("num_heads",), ("num_heads", "num_kv_heads")),
    "attention_decode": (("batch",), ("kv_len",), ("num_heads",), ("num_heads", "num_kv_heads")),
    "mla_prefill": (("batch",), ("q_len", "kv_len"), ("num_heads",)),
    "mla_decode": (("batch",), ("kv_len",), ("num_heads",)),
    "moe": (("num_tokens",), ("topk",), ("hidden_size",), ("inter_size",)),
}

Floats = NDArray[np.float64]
Pairs = NDArray[np.int64]  # (P, 2): places of the smaller and of the larger launch


@dataclass(frozen=True, slots=True)
class Priced:
    """One family: shares and errors in percent, errors as the mean over (GPU, engine) of each number format."""

    family: str
    rows: int
    pairs: int
    measured: float  # share of pairs that get faster
    predicted: float
    both: float  # of those predicted to, how many do
    least_error: float  # of any prediction that keeps the law
    our_error: float
    sampled_error: float  # the same on a sample of the rows, all slices as one
    lowered_error: float  # ... with each median lowered to the law


def price(family: str, quick: bool) -> Priced:
    launches = _launches(family, quick)
    slices = [_Slice.of(part, family) for part in launches.partition_by(SLICES, maintain_order=True)]
    falls, told = (np.concatenate([getattr(each, name) for each in slices]) for name in ("falls", "told"))
    shares = (100 * float(share) for share in (falls.mean(), told.mean(), falls[told].mean() if told.any() else 0.0))
    errors = (100 * float(np.mean([getattr(each, name).mean() for each in slices])) for name in ("least_error", "our_error"))
    sample = launches.sample(min(NUM_LOWERED_QUICK if quick else NUM_LOWERED, len(launches)), seed=0)
    both_s = sample["predicted_s"].to_numpy(), lowered(sample, family)
    sampled = (100 * float(np.mean(np.abs(found_s / sample["latency_s"].to_numpy() - 1))) for found_s in both_s)
    return Priced(family, sum(len(each.our_error) for each in slices), len(falls), *shares, *errors, *sampled)


def lowered(table: pl.DataFrame, family: str) -> Floats:
    """Each median, or less where a launch with up to three doublings more would be predicted too much faster."""
    lowest_s = table["predicted_s"].to_numpy().copy()
    for count in range(1, MOST_DOUBLINGS + 1):
        for steps in combinations_with_replacement(DOUBLED[family], count):
            times = Counter(name for names in steps for name in names)
            larger = table.with_columns((pl.col(name) * 2**power).cast(table.schema[name]) for name, power in times.items())
            lowest_s = np.fmin(lowest_s, shipped(larger, family) / (1 - MOST_LOST) ** count)
    return lowest_s


@dataclass(frozen=True, slots=True)
class _Slice:
    """One GPU, engine and number format: per pair, and per launch."""

    falls: NDArray[np.bool_]
    told: NDArray[np.bool_]
    least_error: Floats
    our_error: Floats

    @staticmethod
    def of(table: pl.DataFrame, family: str) -> "_Slice":
        say(f"  {' '.join(map(str, table.select(SLICES).row(0)))}")
        measured_s, predicted_s = (table[name].to_numpy() for name in ("latency_s", "predicted_s"))
        pairs = doubled_pairs(table, family)
        errors = (np.abs(found_s / measured_s - 1) for found_s in (nearest_lawful(measured_s, pairs), predicted_s))
        return _Slice(falling(measured_s, pairs), falling(predicted_s, pairs), *errors)


def _launches(family: str, quick: bool) -> pl.DataFrame:
    """Every launch once, with the median of its measurements and the shipped weights' answer."""
    table = rows(family)
    if quick:
        table = table.join(table.select(SLICES).unique(maintain_order=True).head(QUICK_SLICES), on=SLICES, nulls_equal=True)
    table = table.group_by(_key(family), maintain_order=True).agg(pl.col("latency_s").median())
    table = table.with_columns(pl.Series("predicted_s", shipped(table, family)))
    return table.filter(pl.col("predicted_s").is_finite())


def _key(family: str) -> list[str]:
    return ["group", *IDENTITY, *SHAPES[family]]


def doubled_pairs(table: pl.DataFrame, family: str) -> Pairs:
    """All pairs of launches of which one is the other with something doubled."""
    key = _key(family)
    placed = table.select(*key, pl.int_range(pl.len()).alias("place"))
    found = []
    for names in DOUBLED[family]:
        larger = placed.drop_nulls(names).with_columns(pl.col(name) * 2 for name in names)
        both = larger.join(placed, on=key, how="inner", nulls_equal=True, suffix="_larger")
        found.append(both.select("place", "place_larger").to_numpy())
    return np.concatenate(found).astype(np.int64)


def falling(time_s: Floats, pairs: Pairs) -> NDArray[np.bool_]:
    """Which pairs lose more than the law allows."""
    smaller, larger = time_s[pairs].T
    return np.asarray(larger < (1 - MOST_LOST) * smaller)


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


def page(found: Sequence[Priced]) -> str:
    head = ["family", "launches", "pairs", "measured: faster, % of pairs", "predicted: faster, %", "of which measured too, %",
            "least error that keeps the law, %", "our error on the same rows, %", "a sample, %", "lowered to the law, %"]  # fmt: skip
    body = [
        [each.family, f"{each.rows:,}", f"{each.pairs:,}", *(f"{value:.1f}" for value in (each.measured, each.predicted, each.both)),
         *(f"{value:.2f}" for value in (each.least_error, each.our_error, each.sampled_error, each.lowered_error))]
        for each in found
    ]  # fmt: skip
    note = f"Newest version of each engine, public kernel data; the shipped weights have seen most of these rows. {date.today()}"
    doc = (__doc__ or "").split("\n\n")[1].split("\nWrites")[0].replace("\n", " ")
    return "\n\n".join(["# What doubling a size does", doc, note, markdown_table(head, body)]) + "\n"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doubling", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="two slices of each family; print, write nothing")
    options = parser.parse_args(given)
    try:
        found = [price(family, options.quick) for family in FAMILIES]
    except TilecastError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    text = page(found)
    print(text)
    if not options.quick:
        (RESULTS / "doubling.md").write_text(text, encoding="utf-8")
        record = {"doubling": [asdict(each) for each in found], "date": str(date.today())}
        (RESULTS / "doubling.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
