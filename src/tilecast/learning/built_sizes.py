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
from tilecast.kernels.base import KEPT, SHARED, Built, built_for
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.correction import slice_key
from tilecast.learning.examples import IDENTITY

MOST_LOWERED = 0.01  # on average, of the times before a step, if they were held to those behind it: a larger share is another kernel
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
    pairs = pl.concat([_lowered(launches, doubled_pairs(launches, key, (name,), times), name, record, times) for times in FARTHEST])
    nearest = pairs.filter(pl.col("times") == pl.col("times").min().over("key", "at"))
    changes = _lists(nearest.group_by("key", "at").agg(pl.col("lowered").mean()).filter(pl.col("lowered") > MOST_LOWERED))
    known = _lists(_at(launches, name, record))
    is_shared = name in SHARED and "num_kv_heads" in launches.columns
    return {key: Built(frozenset() if is_shared else sizes, changes.get(key, frozenset())) for key, sizes in known.items()}


def _lowered(launches: pl.DataFrame, pairs: Pairs, name: str, record: type, times: int) -> pl.DataFrame:
    """Of each pair its slice, what its smaller launch is built for, and by how much the law would lower that."""
    smaller, larger = (launches[places] for places in pairs.T)
    lowered = (1.0 - larger["latency_s"] / (KEPT**times * smaller["latency_s"])).clip(0.0)
    return _at(smaller, name, record).with_columns(lowered.alias("lowered"), pl.lit(times).alias("times"))


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
