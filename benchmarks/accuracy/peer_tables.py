"""What peers and publishers wrote down: their tables under $TILECAST_DATA, laid beside measured cases, and the scores their papers use.

Measured kernel, step and serving rows come from the store; only what the store does not hold (others' predictions, published training
runs, the search summaries) is read here.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from tilecast.datasets.sources.base import read_columns
from tilecast.datasets.sources.folder import catalogue_ids, data_folder, read_table
from tilecast.errors import MissingData

Share = Mapping[str, object]


def parquet(folder: str, file: str, columns: str, gpus: Mapping[str, str] | None = None) -> pl.DataFrame:
    """The named columns (separated by spaces) of one table, with `origin_row`; GPUs by catalogue id where `gpus` translates them."""
    root = data_folder(folder)
    raw = read_table(root, file, set(columns.split()))
    return raw if gpus is None else catalogue_ids(raw, gpus, str(root / file))


def csv(folder: str, file: str, columns: str) -> pl.DataFrame:
    """As `parquet`, of a comma-separated file."""
    path = data_folder(folder) / file
    try:
        raw = pl.read_csv(path, infer_schema_length=None)
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise MissingData(f"{path} is damaged or no table: {str(problem).splitlines()[0]}") from None
    return read_columns(raw, set(columns.split()), str(path)).select(columns.split()).with_row_index("origin_row")


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Categories as text, so that frames of different sources join."""
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


def scored(cases: pl.DataFrame, predictor: str, kind: str, predicted: pl.Expr | str = "predicted") -> pl.DataFrame:
    """`cases` as one predictor's rows of a Result; its `predicted` in the unit of `measured`, null where it failed."""
    value = pl.col(predicted) if isinstance(predicted, str) else predicted
    return cases.with_columns(pl.lit(predictor).alias("predictor"), pl.lit(kind).alias("kind"), value.cast(pl.Float64).alias("predicted"))


def share(name: str, predictor: str, value: float | None, of: int) -> Share:
    """One score that is not an error: its value, and how many rows, groups or problems it is taken over."""
    return {"name": name, "predictor": predictor, "value": value, "of": of}


def errors(predictions: pl.DataFrame, what: str, over: str, *, median: bool = False) -> list[Share]:
    """MAPE (and the median error) of each predictor over rows, in percent, whatever their slice: how peers state their own figures."""
    error = 100 * ((pl.col("predicted") - pl.col("measured")) / pl.col("measured")).abs()
    known = predictions.filter(pl.col("predicted").is_not_null())
    scores = (error.mean().alias("MAPE"), error.median().alias("median error"), pl.len())
    summed = known.group_by("predictor", maintain_order=True).agg(*scores)
    wanted = ("MAPE", "median error") if median else ("MAPE",)
    return [share(f"{what} {score} over {over}", row["predictor"], row[score], row["len"]) for row in summed.to_dicts() for score in wanted]


def spearman(predictions: pl.DataFrame, groups: Sequence[str] = (), *, at_least: int = 3) -> pl.DataFrame:
    """Rank correlation of predicted with measured per predictor and group; groups of too few rows, or of equal ones, are left out."""
    correlation = pl.corr("predicted", "measured", method="spearman").alias("spearman")
    known = predictions.filter(pl.col("predicted").is_not_null())
    per_group = known.group_by("predictor", *groups, maintain_order=True).agg(correlation, pl.len().alias("rows"))
    return per_group.filter((pl.col("rows") >= at_least) & pl.col("spearman").is_not_null() & pl.col("spearman").is_not_nan())
