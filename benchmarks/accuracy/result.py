"""What a suite returns: every prediction beside its measurement, and how errors are summed up.

Error of a row: |predicted - measured| / measured. A pooled number never stands alone: scores are given per slice (GPU, engine, family), and
the headline is the mean over slices, so that a GPU with many rows does not drown the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True, slots=True)
class Result:
    """One suite's outcome.

    `predictions` is long: one row per (predictor, measured case) with the columns `predictor`, `kind` ("ours", "baseline", "peer"), the
    slice columns, `measured`, `predicted` (same unit; null where the predictor failed) and, for the worst cases, whatever describes the
    case.
    """

    suite: str
    question: str  # what is scored, in one sentence a person would say
    predictions: pl.DataFrame
    slices: tuple[str, ...] = ("gpu", "engine")  # scores are made per slice, then averaged
    splits: Sequence[Mapping[str, object]] = ()  # kind, held out, seed, rows on each side
    shares: Sequence[Mapping[str, object]] = ()  # scores that are not errors: shares, correlations; {"name", "predictor", "value", "of"}
    notes: Sequence[str] = ()  # what a reader must know to compare: protocols, exclusions, peers' published figures
    target: str = ""  # the number to beat, with where it comes from


@dataclass(frozen=True, slots=True)
class Suite:
    """A named benchmark: `run(quick)` scores everything; quick takes a small fixed subset for CI."""

    name: str
    title: str
    run: Callable[[bool], Result]
    needs: tuple[str, ...] = ()  # data sources; the suite is skipped, and says so, where one is missing
    folders: tuple[str, ...] = field(default=())  # folders of $TILECAST_DATA it reads besides


ERROR = ((pl.col("predicted") - pl.col("measured")) / pl.col("measured")).alias("error")
SCORES = (
    pl.len().alias("rows"),
    (100 * pl.col("error").abs().mean()).alias("mape"),
    (100 * pl.col("error").abs().median()).alias("median"),
    (100 * pl.col("error").abs().quantile(0.9)).alias("p90"),
    (100 * pl.col("error").mean()).alias("bias"),
)


def by_slice(result: Result) -> pl.DataFrame:
    """MAPE, median, 90th percentile and signed bias (all in percent) per predictor and slice."""
    return (
        result.predictions.filter(pl.col("predicted").is_not_null())
        .with_columns(ERROR)
        .group_by("predictor", "kind", *result.slices, maintain_order=True)
        .agg(*SCORES)
    )


def headline(result: Result) -> pl.DataFrame:
    """Per predictor: the mean over slices, with the number of slices, rows and failures."""
    missing = result.predictions.group_by("predictor").agg(pl.col("predicted").is_null().sum().alias("failed"))
    return (
        by_slice(result)
        .group_by("predictor", "kind", maintain_order=True)
        .agg(pl.len().alias("slices"), pl.col("rows").sum(), *(pl.col(name).mean() for name in ("mape", "median", "p90", "bias")))
        .join(missing, on="predictor", how="left")
    )


def worst(result: Result, predictor: str, count: int = 10) -> pl.DataFrame:
    """The cases with the largest absolute error, with everything known of them."""
    rows = result.predictions.filter((pl.col("predictor") == predictor) & pl.col("predicted").is_not_null()).with_columns(ERROR)
    return rows.sort(pl.col("error").abs(), descending=True).head(count)
