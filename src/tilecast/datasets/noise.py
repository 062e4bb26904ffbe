"""The noise floor: how far apart repeated measurements of one kernel are, by group. Below it there is nothing to learn."""

import re

import polars as pl

from tilecast.datasets.schema import SHAPES

SAME_PATH = 0.02  # two campaigns count as repeats of one kernel when their median ratio is within this of 1 ...
LARGEST_SPREAD = 0.15  # ... their median difference is below this (else two code paths cancel out) ...
FEWEST_SHAPES = 30  # ... and they share at least this many shapes


def repeat_pairs(frame: pl.DataFrame, family: str) -> pl.DataFrame:
    """Successive campaigns (engine versions) of one kernel on one GPU, paired shape by shape.

    One row per pair of campaigns: how many shapes they share, the median ratio, and the median, mean and 90th percentile of the absolute
    relative difference. `is_repeat` tells pairs whose median ratio is near 1 (noise) from those where the software changed.
    """
    where = ["source", "gpu", "engine", "identity", "dtype", "timer", "cache"]
    key = [*where, *SHAPES[family]]
    again = frame.group_by(where).agg(pl.col("engine_version").n_unique().alias("versions")).filter(pl.col("versions") > 1)
    # Most kernels have one version: leave them out before the heavy part.
    several = frame.join(again, on=where, how="semi", nulls_equal=True)
    campaigns = several.group_by([*key, "engine_version"]).agg(pl.col("latency_s").median())
    order = (
        campaigns.sort(_age(campaigns["engine_version"]))
        .with_columns(pl.struct(key).rank("dense").alias("kernel"))
        .sort("kernel", maintain_order=True)
    )
    paired = order.with_columns(
        pl.col("latency_s").shift(-1).alias("next_s"), pl.col("engine_version").shift(-1).alias("next_version")
    ).filter(pl.col("kernel") == pl.col("kernel").shift(-1))
    ratio = pl.col("next_s") / pl.col("latency_s")
    difference = (ratio - 1).abs()
    return (
        paired.group_by([*where, "engine_version", "next_version"])
        .agg(
            pl.len().alias("shapes"),
            ratio.median().alias("median_ratio"),
            difference.median().alias("median_difference"),
            difference.mean().alias("mean_difference"),
            difference.quantile(0.9).alias("p90_difference"),
        )
        .with_columns(
            (
                ((pl.col("median_ratio") - 1).abs() < SAME_PATH)
                & (pl.col("median_difference") < LARGEST_SPREAD)
                & (pl.col("shapes") >= FEWEST_SHAPES)
            ).alias("is_repeat")
        )
        .sort("shapes", descending=True)
    )


def noise_floor(frame: pl.DataFrame, family: str) -> pl.DataFrame:
    """Per GPU and engine: the shapes repeated, and the mean and median difference of two repeats (one sample's error is 1/sqrt 2 of it)."""
    pairs = repeat_pairs(frame, family).filter(pl.col("is_repeat"))
    weight = pl.col("shapes")
    return (
        pairs.group_by("gpu", "engine")
        .agg(
            weight.sum(),
            ((pl.col("median_difference") * weight).sum() / weight.sum()).alias("median_difference"),
            ((pl.col("mean_difference") * weight).sum() / weight.sum()).alias("mean_difference"),
        )
        .sort("gpu", "engine")
    )


def _age(versions: pl.Series) -> pl.Expr:
    """The place of each version among all, oldest first: 0.5.9 comes before 0.5.10."""
    oldest_first = sorted(versions.cast(pl.String).drop_nulls().unique(), key=_numbers_and_words)
    places = {version: place for place, version in enumerate(oldest_first)}
    return pl.col("engine_version").cast(pl.String).replace_strict(places, default=-1, return_dtype=pl.Int64)


def _numbers_and_words(version: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", version)]
