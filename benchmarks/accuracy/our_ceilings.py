"""Tilecast's ceiling for rows it never saw: the same fit as the shipped one, on the training side of each fold."""

import numpy as np
import polars as pl

from benchmarks.accuracy.progress import say
from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.execution import Protocol
from tilecast.kernels.base import priced
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.ceiling_training import ROWS_PER_SLICE, Levels, dies_of, fit, folds_by, held_out_by, levels_of
from tilecast.learning.ceilings import Ceiling, well_made
from tilecast.learning.examples import Examples, examples
from tilecast.learning.features import Launches, launches
from tilecast.learning.recipes import training_rows

OURS = "Tilecast's"
QUANTILES = (0.5, 0.8, 0.9, 0.95)
OUTER_FOLDS = 5
TABLES = {"moe": "moe.parquet", "gemm": "gemm_fp8.parquet"}
PARAMETERS = {
    "moe": ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "tp", "ep", "distribution", "moe_pass"),
    "gemm": ("m", "n", "k"),
}


def described(family: str, measured: pl.DataFrame) -> tuple[Examples, np.ndarray, np.ndarray]:
    """The rows of the suite as examples, in its order, with their analytic times and bounds."""
    rows = store.rows(family, ["pipeweave"]).filter(pl.col("origin").cast(pl.String).str.starts_with(TABLES[family]))
    rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
    assert rows["origin_row"].to_list() == measured["origin_row"].to_list(), "the suite's own rows, in their order"
    parts: list[tuple[np.ndarray, Launches, np.ndarray, np.ndarray]] = []
    keys = ("gpu", "timer", "cache", "dtype", "identity")
    for key, part in rows.with_row_index("_place").group_by(*keys, maintain_order=True):
        first = part.row(0, named=True)
        texts = [name for name in PARAMETERS[family] if part.schema[name] == pl.String]
        arguments = {name: first[name] if name in texts else part[name].to_numpy() for name in PARAMETERS[family]}
        gpu, timing = hardware.gpu(str(key[0])), Protocol(first["timer"], first["cache"])
        built = well_made(kernel_record(family)(dtype=first["dtype"], identity=first["identity"], **arguments), gpu)
        found = priced(built, gpu, timing)
        asked = launches(built, gpu, found, timing, "")
        parts.append((part["_place"].to_numpy(), asked, np.asarray(found.analytic_s), np.asarray(found.bound_s)))
    order = np.argsort(np.concatenate([place for place, *_ in parts]), kind="stable")
    numbers = np.concatenate([entry.numbers for _, entry, _, _ in parts])[order]
    binds = np.concatenate([entry.group for _, entry, _, _ in parts])[order]
    analytic_s, bound_s = (np.concatenate([part[column] for part in parts])[order] for column in (2, 3))
    size = len(order)
    data = Examples(
        numbers=numbers, timed=numbers, names=[{}], group_of=np.zeros(size, np.int64), binds=binds, gpu=np.array(measured["gpu"].to_list()),
        target=np.log(measured["measured"].to_numpy() / analytic_s), shape=np.zeros(size), weight=np.ones(size),
        rank=np.arange(size), steady=np.ones(size, bool),
    )  # fmt: skip
    return data, analytic_s, bound_s


def for_layers(family: str, measured: pl.DataFrame, every: int = 1) -> dict[float, pl.DataFrame]:
    """Held out by layer, with every number of tokens and on every GPU; one row in `every`."""
    data, analytic_s, bound_s = described(family, measured)
    data, analytic_s, bound_s, measured = (
        data.where(np.arange(0, measured.height, every)),
        analytic_s[::every],
        bound_s[::every],
        measured[::every],
    )
    layers = measured["layer"].to_numpy()
    fold = folds_by(layers, OUTER_FOLDS)
    found = {quantile: np.empty(len(fold)) for quantile in QUANTILES}
    for number in range(OUTER_FOLDS):
        say(f"  {family}: ceiling of layers {number + 1} of {OUTER_FOLDS}")
        held = fold == number
        fitted = fit(data.where(~held), family, folds_by(layers[~held]), bases=("interpolated",), say=_quiet)
        _fill(found, fitted, data, held, analytic_s, bound_s)
    return {quantile: _framed(measured, times) for quantile, times in found.items()}


def for_gpus(family: str, measured: pl.DataFrame, siblings: str, every: int = 1) -> dict[float, pl.DataFrame]:
    """Held out by GPU, with those of its die where `siblings` is "out"; one row in `every`."""
    data, analytic_s, bound_s = described(family, measured)
    data, analytic_s, bound_s, measured = (
        data.where(np.arange(0, measured.height, every)),
        analytic_s[::every],
        bound_s[::every],
        measured[::every],
    )
    found = {quantile: np.empty(len(data.target)) for quantile in QUANTILES}
    shipped = None if len(dies_of(data)) > 1 else _shipped(family, every)
    for gpu in sorted(set(data.gpu.tolist())):
        say(f"  {family}: ceiling on {gpu}, unseen")
        away = np.isin(data.gpu, splits.same_die(gpu) if siblings == "out" else [gpu])
        elsewhere = None if shipped is None else _levels(shipped.where(shipped.gpu != gpu), family)
        fitted = fit(data.where(~away), family, np.zeros(0, np.int64), bases=("unseen-gpu",), elsewhere=elsewhere, say=_quiet)
        _fill(found, fitted, data, data.gpu == gpu, analytic_s, bound_s)
    return {quantile: _framed(measured, times) for quantile, times in found.items()}


def _shipped(family: str, every: int) -> Examples:
    return examples(training_rows(family, ()), family, rows_per_slice=ROWS_PER_SLICE // every, seen_as=well_made)


def _levels(data: Examples, family: str) -> Levels:
    """How far dies lie from one another."""
    return levels_of(list(held_out_by(dies_of(data), data, family, _quiet)))


def _fill(
    found: dict[float, np.ndarray], fitted: Ceiling, data: Examples, held: np.ndarray, analytic_s: np.ndarray, bound_s: np.ndarray
) -> None:
    for gpu in np.unique(data.gpu[held]):
        rows = np.flatnonzero(held & (data.gpu == gpu))
        asked = Launches(data.numbers[rows], {}, data.binds[rows])
        for quantile, times in found.items():
            times[rows] = np.maximum(analytic_s[rows] * np.exp(fitted.log_ratio(asked, str(gpu), quantile)), bound_s[rows])


def _framed(measured: pl.DataFrame, ceiling_s: np.ndarray) -> pl.DataFrame:
    return measured.with_columns((pl.col("bound_s") / pl.Series(ceiling_s)).alias("ceiling"))


def _quiet(_: str) -> None: ...
