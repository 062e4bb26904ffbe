"""Measured rows as examples to learn from: each with its analytic account, its names, and log(measured / analytic)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.datasets.quality import is_steady
from tilecast.datasets.schema import SHAPES
from tilecast.datasets.splits import uniform
from tilecast.errors import InvalidInput, MissingData, SpecError, TilecastError
from tilecast.execution import Priced, Protocol, constants
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import priced
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.features import Launches, launches

SEED = 0
HELD_OUT_SEED = 1  # another one than the suites split with, so that their training side has shapes of both kinds
FEWEST_ROWS = 200
LARGEST_LOG = 3.0  # a row further than this from its analytic time teaches nothing
IDENTITY = ("gpu", "engine", "dtype", "identity", "timer", "cache")
BY_ROW = ("numbers", "timed", "group_of", "binds", "gpu", "target", "shape", "weight", "rank", "steady")


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Rows ready to learn from: columns (N, F) before names, names, what binds, the GPU, log(measured / analytic), and the shape's hash."""

    numbers: NDArray[np.float32]
    timed: NDArray[np.float32]  # the same, each row in the state it was timed in
    names: list[dict[str, str]]  # one per group
    group_of: NDArray[np.int64]  # row -> names
    binds: NDArray[np.int64]
    gpu: NDArray[np.str_]
    target: NDArray[np.float64]
    shape: NDArray[np.float64]  # in [0, 1): the same for every row of a shape
    weight: NDArray[np.float64]
    rank: NDArray[np.int64]  # at random among the rows of its GPU, engine, dtype and identity
    steady: NDArray[np.bool_]  # at clocks that would come again: others say how far off one can be, and teach nothing

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "Examples":
        return replace(self, **{name: getattr(self, name)[chosen] for name in BY_ROW})


def examples(
    rows: pl.DataFrame,
    family: str,
    *,
    rows_per_slice: int,
    most_host: float = 1.0,
    seed: int = SEED,
    price: Callable[..., Priced] = priced,
    seen_as: Callable[[Any, GpuSpec], Any] = lambda kernel, _: kernel,
) -> Examples:
    """Schema rows to examples: capped per slice, with their analytic account; rows the model refuses are left out, and those timed by
    events of which the host takes more than `most_host`: they tell about the host. `seen_as` is what kernel a row's work is priced as."""
    record = kernel_record(family)
    known = {entry.name for entry in fields(record)}
    parameters = [name for name in SHAPES[family] if name in known]
    numeric = [name for name in parameters if SHAPES[family][name] == pl.Int64]
    texts = [name for name in parameters if name not in numeric and name not in ("q_lens", "kv_lens", "node")]
    frame = _capped(rows, rows_per_slice, seed)
    frame = frame.with_columns(pl.Series("_shape", uniform(frame, family, HELD_OUT_SEED)))
    keys = [pl.col(name).cast(pl.String) for name in (*IDENTITY, *texts)]
    empties = [pl.col(name).is_null().alias(f"_{name}") for name in numeric]
    slices = frame.group_by("gpu", "engine", "dtype").len()
    weights = {tuple(map(str, key)): 1.0 / count for *key, count in slices.iter_rows()}
    keyed = frame.select(*keys, *numeric, *empties, "latency_s", "_shape", "_rank", is_steady().alias("_steady"))
    parts: list[tuple[Launches, pl.DataFrame]] = []
    for _, part in keyed.group_by(*IDENTITY, *texts, *(f"_{name}" for name in numeric), maintain_order=True):
        first = part.row(0, named=True)
        arguments: dict[str, Any] = {name: _typed(family, name, first[name]) for name in texts if first[name] is not None}
        arguments |= {name: part[name].to_numpy() for name in numeric if first[name] is not None}
        if "identity" in known:
            arguments["identity"] = first["identity"]
        if "engine" in known:
            arguments["engine"] = first["engine"]
        gpu, protocol = hardware.gpu(first["gpu"]), Protocol(first["timer"], first["cache"] or "warm")
        try:
            built = seen_as(record(dtype=first["dtype"], **arguments), gpu)
            analysis = price(built, gpu, protocol)
        except (InvalidInput, SpecError):
            continue
        if protocol.timer == "event":
            is_kernel = np.broadcast_to(constants().host_event_s <= most_host * np.asarray(analysis.analytic_s), part.height)
            if not is_kernel.all():
                part = part.filter(is_kernel)
                if not part.height:
                    continue
                arguments |= {name: part[name].to_numpy() for name in numeric if first[name] is not None}
                built = seen_as(record(dtype=first["dtype"], **arguments), gpu)
                analysis = price(built, gpu, protocol)
        measured = part.with_columns(pl.Series("_analytic", np.broadcast_to(analysis.analytic_s, part.height)))
        parts.append((launches(built, gpu, analysis, protocol, first["engine"] or ""), measured))
    if not parts:
        raise MissingData(f"{family}: no row can be modelled")
    table = pl.concat([part.select("latency_s", "_analytic", "_shape", "_rank", "_steady", "engine", "gpu", "dtype") for _, part in parts])
    target = np.log((table["latency_s"] / table["_analytic"]).to_numpy())
    weight = np.array([weights[tuple(map(str, key))] for key in table.select("gpu", "engine", "dtype").iter_rows()])
    every = Examples(
        numbers=np.concatenate([entry.numbers for entry, _ in parts]),
        timed=np.concatenate([entry.as_timed for entry, _ in parts]),
        names=[entry.names for entry, _ in parts],
        group_of=np.repeat(np.arange(len(parts)), [part.height for _, part in parts]),
        binds=np.concatenate([entry.group for entry, _ in parts]),
        gpu=np.array(table["gpu"].to_list()),
        target=target,
        shape=table["_shape"].to_numpy(),
        weight=weight / weight.mean(),
        rank=table["_rank"].cast(pl.Int64).to_numpy(),
        steady=table["_steady"].to_numpy(),
    )
    kept = every.where(np.isfinite(target) & (np.abs(target) < LARGEST_LOG))
    if len(kept.target) < FEWEST_ROWS:
        raise MissingData(f"{family}: {len(kept.target)} usable rows are too few to learn from; at least {FEWEST_ROWS} are needed")
    return kept


def modelled_rows(rows: pl.DataFrame, family: str) -> Iterator[tuple[int, float, float | str]]:
    """Each row's own number, what was measured, and its analytic time, or why it has none."""
    record = kernel_record(family)
    known = {entry.name for entry in fields(record)}
    names = [name for name in (*SHAPES[family], "dtype", "identity", "engine") if name in known and name in rows.columns]
    for row in rows.select("origin_row", "latency_s", "gpu", "timer", "cache", *names).iter_rows(named=True):
        given = {name: row[name] for name in names if row[name] is not None}
        try:
            found = priced(record(**given), hardware.gpu(row["gpu"]), Protocol(row["timer"], row["cache"]))
            yield row["origin_row"], row["latency_s"], float(np.ravel(found.analytic_s)[0])
        except TilecastError as problem:
            yield row["origin_row"], row["latency_s"], str(problem)


def vocabulary(data: Examples) -> dict[str, list[str]]:
    """name -> its values among the examples."""
    names = sorted({name for entry in data.names for name in entry})
    used = np.unique(data.group_of)
    return {name: sorted({data.names[group].get(name, "") for group in used}) for name in names}


def flags(data: Examples, vocabulary: Mapping[str, list[str]]) -> NDArray[np.float32]:
    """(groups of names, names of the vocabulary)"""
    return np.array(
        [[float(entry.get(name) == value) for name, values in vocabulary.items() for value in values] for entry in data.names], np.float32
    )


def _typed(family: str, name: str, text: str) -> Any:
    return text == "true" if SHAPES[family][name] == pl.Boolean else text


def _capped(rows: pl.DataFrame, most: int, seed: int) -> pl.DataFrame:
    order = np.random.default_rng(seed).permutation(rows.height)
    rank = pl.col("_order").rank("ordinal").over("gpu", "engine", "dtype", "identity")
    return (
        rows.with_columns(pl.Series("_order", order)).with_columns((rank - 1).alias("_rank")).filter(pl.col("_rank") < most).drop("_order")
    )
