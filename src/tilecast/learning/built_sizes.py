"""Where libraries change kernels (extra `train`): doublings of what kernels are built for at which measured launches get faster.

Twice the query heads of a KV head, or a head twice as wide, may be another kernel, and then a larger launch may be faster, by a little or
by a factor. Rows say for each kernel on each GPU where: the law of doubling ends there and holds everywhere else. They also say which of
these sizes were measured at all: the others are guesses.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast.datasets.schema import SHAPES
from tilecast.kernels.base import SHARED, Built, built_for
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.correction import slice_key
from tilecast.learning.examples import IDENTITY

MUCH = 0.1  # of its time that a launch loses when doubled: more than two runs of one kernel differ by
OFTEN = 0.1  # of a step's pairs that lose so much
FARTHEST = (1, 2, 3)  # doublings between two rows of a pair: the nearest ones there are
NAMES = ("engine", "dtype", "identity", "kv_dtype")

Pairs = NDArray[np.int64]  # (P, 2): places of the smaller and of the larger launch


def built_sizes(rows: pl.DataFrame, family: str) -> dict[str, dict[str, Built]]:
    """What doubles alone -> `slice_key` -> what its rows say of it."""
    record = kernel_record(family)
    names = getattr(record, "built_for", ())
    if not names:
        return {}
    key = [*IDENTITY, *SHAPES[family]]
    launches = rows.group_by(key, maintain_order=True).agg(pl.col("latency_s").median())
    return {name: _of(launches, key, name, record) for name in names}


def _of(launches: pl.DataFrame, key: Sequence[str], name: str, record: type) -> dict[str, Built]:
    pairs = pl.concat([_faster(launches, doubled_pairs(launches, key, (name,), times), name, record, times) for times in FARTHEST])
    nearest = pairs.filter(pl.col("times") == pl.col("times").min().over("key", "at"))
    changes = _lists(nearest.group_by("key", "at").agg(pl.col("faster").mean()).filter(pl.col("faster") > OFTEN))
    known = _lists(_at(launches, name, record))
    is_shared = name in SHARED and "num_kv_heads" in launches.columns
    return {key: Built(frozenset() if is_shared else sizes, changes.get(key, frozenset())) for key, sizes in known.items()}


def _faster(launches: pl.DataFrame, pairs: Pairs, name: str, record: type, times: int) -> pl.DataFrame:
    """Of each pair its slice, what its smaller launch is built for, and whether the larger one is that much faster."""
    smaller, larger = (launches[places] for places in pairs.T)
    is_faster = larger["latency_s"] < (1.0 - MUCH) * smaller["latency_s"]
    return _at(smaller, name, record).with_columns(is_faster.alias("faster"), pl.lit(times).alias("times"))


def _at(launches: pl.DataFrame, name: str, record: type) -> pl.DataFrame:
    """The slice and the size that kernels are built for, of each launch."""
    names = (
        launches.select("gpu", *NAMES).cast(pl.String).with_columns(pl.col("engine").fill_null(""), pl.exclude("engine").fill_null("None"))
    )
    keys = {row: slice_key(row[0], dict(zip(NAMES, row[1:], strict=True))) for row in names.unique().iter_rows()}
    at = built_for(name, lambda size: launches[size], record)
    return pl.DataFrame({"key": [keys[row] for row in names.iter_rows()], "at": at}, {"key": pl.String, "at": pl.Int64})


def _lists(found: pl.DataFrame) -> dict[str, frozenset[int]]:
    lists = found.drop_nulls().group_by("key").agg(pl.col("at").unique()).sort("key")
    return {key: frozenset(at) for key, at in lists.iter_rows()}


def doubled_pairs(launches: pl.DataFrame, key: Sequence[str], names: Sequence[str], times: int = 1) -> Pairs:
    """All pairs of launches of which one is the other with these sizes doubled so many times; the rest of the key is the same."""
    placed = launches.select(*key, pl.int_range(pl.len()).alias("place"))
    larger = placed.drop_nulls(names).with_columns(pl.col(name) * 2**times for name in names)
    both = larger.join(placed, on=list(key), how="inner", nulls_equal=True, suffix="_larger")
    return both.select("place", "place_larger").to_numpy().astype(np.int64)
