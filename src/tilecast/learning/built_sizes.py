"""Where libraries change kernels (extra `train`): doublings of what kernels are built for at which measured launches get faster.

Twice the query heads of a KV head, or a head twice as wide, may be another kernel, and then a larger launch may be faster, by a little or
by a factor. Rows say for each kernel on each GPU where: the law of doubling ends there and holds everywhere else. They also say which
widths of heads, and which models' experts, were measured at all: the others are guesses.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast.datasets.schema import SHAPES
from tilecast.kernels.base import KEPT, Built, size_built_for
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.correction import slice_key
from tilecast.learning.examples import IDENTITY

MOST_LOWERED = 0.01  # on average, of the times before a step, if they were held to those behind it: a larger share is another kernel
FARTHEST = (1, 2, 3)  # doublings between two rows of a pair: the nearest ones there are
NAMES = ("engine", "dtype", "identity", "moe_pass", "kv_dtype")

Pairs = NDArray[np.int64]  # (P, 2): places of the smaller and of the larger launch


def built_sizes(rows: pl.DataFrame, family: str) -> dict[str, dict[str, Built]]:
    """What doubles alone -> `slice_key` -> what its rows say of it; the sizes that a family is known by stand with the first of them."""
    record = kernel_record(family)
    built, known_by = (tuple(getattr(record, name, ())) for name in ("built_for", "known_by"))
    if not built + known_by:
        return {}
    key = [*IDENTITY, *SHAPES[family]]
    launches = rows.group_by(key, maintain_order=True).agg(pl.col("latency_s").median())
    slices = _slices(launches)
    changes = {name: _changes(launches, key, name, record) for name in built}
    known = {known_by[0]: _known(launches, known_by, getattr(record, "known_beside", ()))} if known_by else {}
    nothing: dict[str, frozenset[Any]] = {}
    return {
        name: {
            each: Built(known.get(name, nothing).get(each, frozenset()), changes.get(name, nothing).get(each, frozenset()))
            for each in sorted(set(slices))
        }
        for name in dict.fromkeys(built + known_by[:1])
    }


def _changes(launches: pl.DataFrame, key: Sequence[str], name: str, record: type) -> dict[str, frozenset[int]]:
    """Slice -> from which sizes on another kernel runs."""
    pairs = pl.concat([_lowered(launches, doubled_pairs(launches, key, (name,), times), name, record, times) for times in FARTHEST])
    nearest = pairs.filter(pl.col("times") == pl.col("times").min().over("key", "at"))
    steps = nearest.group_by("key", "at").agg(pl.col("lowered").mean()).filter(pl.col("lowered") > MOST_LOWERED).drop_nulls()
    return {each: frozenset(at) for each, at in steps.group_by("key").agg("at").iter_rows()}


def _known(launches: pl.DataFrame, known_by: Sequence[str], beside: Sequence[str]) -> dict[str, frozenset[tuple[int, ...]]]:
    """Slice -> which of these sizes its rows have together; 0 of those beside them that a row has not."""
    sizes = launches.select(*known_by, pl.col(beside).fill_null(0)).with_columns(pl.Series("key", _slices(launches), pl.String))
    parts = sizes.drop_nulls().unique().group_by("key")
    return {str(each): frozenset(part.drop("key").iter_rows()) for (each,), part in parts}


def _lowered(launches: pl.DataFrame, pairs: Pairs, name: str, record: type, times: int) -> pl.DataFrame:
    """Of each pair its slice, what its smaller launch is built for, and by how much the law would lower that."""
    smaller, larger = (launches[places] for places in pairs.T)
    lowered = (1.0 - larger["latency_s"] / (KEPT**times * smaller["latency_s"])).clip(0.0)
    return _at(smaller, name, record).with_columns(lowered.alias("lowered"), pl.lit(times).alias("times"))


def _at(launches: pl.DataFrame, name: str, record: type) -> pl.DataFrame:
    """The slice and the size that kernels are built for, of each launch."""
    at = size_built_for(name, lambda size: launches[size], record)
    return pl.DataFrame({"key": _slices(launches), "at": at}, {"key": pl.String, "at": pl.Int64})


def _slices(launches: pl.DataFrame) -> list[str]:
    """The slice of each launch."""
    said = [name for name in NAMES if name in launches.columns]
    names = launches.select("gpu", pl.col(said).cast(pl.String))
    names = names.with_columns(pl.col("engine").fill_null(""), pl.exclude("gpu", "engine").fill_null("None"))
    keys = {row: slice_key(row[0], dict(zip(said, row[1:], strict=True))) for row in names.unique().iter_rows()}
    return [keys[row] for row in names.iter_rows()]


def doubled_pairs(launches: pl.DataFrame, key: Sequence[str], names: Sequence[str], times: int = 1) -> Pairs:
    """All pairs of launches of which one is the other with these sizes doubled so many times; the rest of the key is the same."""
    placed = launches.select(*key, pl.int_range(pl.len()).alias("place"))
    larger = placed.drop_nulls(names).with_columns(pl.col(name) * 2**times for name in names)
    both = larger.join(placed, on=list(key), how="inner", nulls_equal=True, suffix="_larger")
    return both.select("place", "place_larger").to_numpy().astype(np.int64)
