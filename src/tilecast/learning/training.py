"""Fit a family's correction from measured rows (extra `train`): levels, shared trees, trees for GPUs with data, intervals, index.

Order matters. First each GPU's level, per what binds, is taken out; then trees learn from every GPU what shapes do, without a single
hardware number; last, trees that may tell GPUs apart learn what is left. Intervals come from rows that were held out: shapes for
GPUs with data, whole dies for unseen GPUs, whole architectures for unseen generations.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.datasets.schema import SHAPES
from tilecast.datasets.splits import _uniform, same_die
from tilecast.errors import InvalidInput, MissingData, MissingExtra, SpecError
from tilecast.execution import Protocol
from tilecast.kernels.base import execution_of
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.correction import BASES, Correction, kernel_key
from tilecast.learning.features import GROUPS, Launches, launches
from tilecast.learning.trees import Trees, empty

SEED = 0
BINS = 6
COVERAGE = 0.8
HELD_OUT = 0.15  # of shapes, for the intervals of GPUs with data
HELD_OUT_SEED = 1  # another one than the suites split with, so that their training side has shapes of both kinds
FEWEST_ROWS = 200
SMALLEST_SPREAD = 1e-9  # log: rows closer together than this leave nothing to learn
THINNED_ROWS = 60_000
CARRIES = (0.0, 0.25, 0.5, 0.75, 1.0)
LARGEST_LOG = 3.0  # a row further than this from its analytic time teaches nothing
IDENTITY = ("gpu", "engine", "dtype", "identity", "timer", "cache")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How hard to try; the defaults fit a family in a few minutes on two cores."""

    shared_trees: int = 200
    shared_depth: int = 6
    local_trees: int = 600
    local_depth: int = 7
    rate: float = 0.1
    rows_per_slice: int = 12_000  # of one GPU, engine, dtype and identity
    bins: int = 64


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Rows ready to learn from: columns (N, F) before names, names, what binds, the GPU, log(measured / analytic), and the shape's hash."""

    numbers: NDArray[np.float32]
    names: list[dict[str, str]]  # one per group
    group_of: NDArray[np.int64]  # row -> names
    binds: NDArray[np.int64]
    gpu: NDArray[np.str_]
    target: NDArray[np.float64]
    shape: NDArray[np.float64]  # in [0, 1): the same for every row of a shape
    weight: NDArray[np.float64]

    def where(self, chosen: NDArray[np.bool_]) -> "Examples":
        parts = {name: getattr(self, name)[chosen] for name in ("numbers", "group_of", "binds", "gpu", "target", "shape", "weight")}
        return replace(self, **parts)


def examples(rows: pl.DataFrame, family: str, *, settings: Settings, seed: int = SEED) -> Examples:
    """Schema rows to examples: capped per slice, with their analytic account; rows the model refuses are left out."""
    record = kernel_record(family)
    known = {entry.name for entry in fields(record)}
    parameters = [name for name in SHAPES[family] if name in known]
    numeric = [name for name in parameters if SHAPES[family][name] == pl.Int64]
    texts = [name for name in parameters if name not in numeric and name not in ("q_lens", "kv_lens", "node")]
    frame = _capped(rows, settings.rows_per_slice, seed)
    frame = frame.with_columns(pl.Series("_shape", _uniform(frame, family, HELD_OUT_SEED)))
    keys = [pl.col(name).cast(pl.String) for name in (*IDENTITY, *texts)]
    empties = [pl.col(name).is_null().alias(f"_{name}") for name in numeric]
    slices = frame.group_by("gpu", "engine", "dtype").len()
    weights = {tuple(map(str, key)): 1.0 / count for *key, count in slices.iter_rows()}
    keyed = frame.select(*keys, *numeric, *empties, "latency_s", "_shape")
    parts: list[tuple[Launches, str, pl.DataFrame]] = []
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
            built = record(dtype=first["dtype"], **arguments)
            analysis = execution_of(built, gpu, protocol)
        except (InvalidInput, SpecError):
            continue
        measured = part.with_columns(pl.Series("_analytic", np.broadcast_to(analysis.analytic_s, part.height)))
        parts.append((launches(built, gpu, analysis, first["engine"] or ""), gpu.id, measured))
    if not parts:
        raise MissingData(f"{family}: no row can be modelled")
    table = pl.concat([part.select("latency_s", "_analytic", "_shape", "engine", "gpu", "dtype") for _, _, part in parts])
    target = np.log((table["latency_s"] / table["_analytic"]).to_numpy())
    weight = np.array([weights[tuple(map(str, key))] for key in table.select("gpu", "engine", "dtype").iter_rows()])
    every = Examples(
        numbers=np.concatenate([entry.numbers for entry, _, _ in parts]),
        names=[entry.names for entry, _, _ in parts],
        group_of=np.repeat(np.arange(len(parts)), [part.height for _, _, part in parts]),
        binds=np.concatenate([entry.group for entry, _, _ in parts]),
        gpu=np.array(table["gpu"].to_list()),
        target=target,
        shape=table["_shape"].to_numpy(),
        weight=weight / weight.mean(),
    )
    kept = every.where(np.isfinite(target) & (np.abs(target) < LARGEST_LOG))
    if len(kept.target) < FEWEST_ROWS:
        raise MissingData(f"{family}: {len(kept.target)} usable rows are too few to learn from; at least {FEWEST_ROWS} are needed")
    return kept


def fit(
    rows: pl.DataFrame, family: str, *, settings: Settings | None = None, manifest: dict[str, Any] | None = None, say: Say = print
) -> Correction:
    """The correction of one family from all its rows, with intervals from held-out ones."""
    settings = settings or Settings()
    data = examples(rows, family, settings=settings)
    say(f"{family}: {len(data.target):,} rows on {len(set(data.gpu))} GPUs")
    tested = held_out(data, family, settings, say)
    carry = best_carry(tested["unseen-generation"])
    residuals = {basis: part.residuals(1.0 if basis == "interpolated" else carry) for basis, part in tested.items()}
    edges = np.quantile(data.numbers[:, 11], np.linspace(0, 1, BINS + 1)[1:-1]).astype(np.float32)
    final = fit_once(data, family, settings)
    final = replace(final, carry=carry)
    return replace(final, edges=edges, width=_widths(residuals, edges), manifest=(manifest or {}) | {"scores": _scores(residuals)})


@dataclass(frozen=True, slots=True, eq=False)
class Tested:
    """Rows that were held out: log time in launches, log(measured / analytic), its prediction, and the GPU."""

    times: NDArray[np.float64]
    target: NDArray[np.float64]
    predicted: NDArray[np.float64]
    gpu: NDArray[np.str_]

    def residuals(self, carry: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_]]:
        return self.times, self.target - carry * self.predicted, self.gpu


def best_carry(tested: Tested) -> float:
    """The share of the shared trees' word that helps most where whole architectures were held out, mean over GPUs."""
    if not len(tested.target):
        return 1.0

    def error(carry: float) -> float:
        off = np.abs(np.expm1(carry * tested.predicted - tested.target))
        return float(np.mean([off[tested.gpu == gpu].mean() for gpu in np.unique(tested.gpu)]))

    return min(CARRIES, key=error)


def held_out(data: Examples, family: str, settings: Settings, say: Say) -> dict[str, Tested]:
    """basis -> rows whose shape, die or architecture was held out, with their predictions."""
    found: dict[str, Tested] = {}
    is_test = data.shape < HELD_OUT
    if is_test.all() or not is_test.any():
        raise MissingData(f"{family}: rows of so few shapes leave none to hold out; measure more shapes")
    say(f"{family}: fitting without {HELD_OUT:.0%} of the shapes")
    found["interpolated"] = _tested(fit_once(data.where(~is_test), family, settings), data.where(is_test))
    quick = replace(settings, local_trees=0)
    every = max(1, len(data.target) // THINNED_ROWS)  # these fits repeat for every die and architecture: fewer rows will do
    data = data.where(np.arange(len(data.target)) % every == 0)
    gpus = sorted(set(data.gpu))
    dies = sorted({tuple(gpu for gpu in same_die(name) if gpu in gpus) for name in gpus})
    archs = sorted({hardware.gpu(name).arch for name in gpus})
    found["unseen-gpu"] = _leaving_out(data, family, quick, [set(die) for die in dies], say)
    found["unseen-generation"] = _leaving_out(
        data, family, quick, [{g for g in gpus if hardware.gpu(g).arch == arch} for arch in archs], say
    )
    return found


def _leaving_out(data: Examples, family: str, settings: Settings, sets: Iterable[set[str]], say: Say) -> Tested:
    parts = []
    for held in sets:
        inside = np.isin(data.gpu, sorted(held))
        if inside.all():
            continue
        say(f"{family}: fitting without {', '.join(sorted(held))}")
        parts.append(_tested(fit_once(data.where(~inside), family, settings), data.where(inside)))
    if not parts:
        return Tested(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype="<U1"))
    return Tested(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("times", "target", "predicted", "gpu")))


def fit_once(data: Examples, family: str, settings: Settings) -> Correction:
    """Levels and trees from these examples; intervals are the caller's to fill in."""
    gpus = tuple(sorted(set(data.gpu.tolist())))
    vocabulary = _vocabulary(data)
    level = _levels(data, gpus)
    place = np.searchsorted(gpus, data.gpu)
    columns = np.concatenate([data.numbers, _flags(data, vocabulary)], axis=1)
    left = data.target - level[place, data.binds]
    shared = _boost(columns, left, data.weight, settings.shared_trees, settings.shared_depth, settings)
    left = left - shared.predict(columns)
    local = empty()
    if settings.local_trees:
        here = np.zeros((len(columns), len(gpus)), np.float32)
        here[np.arange(len(columns)), place] = 1.0
        local = _boost(np.concatenate([columns, here], axis=1), left, data.weight, settings.local_trees, settings.local_depth, settings)
    return Correction(
        family=family,
        vocabulary=vocabulary,
        gpus=gpus,
        archs=tuple(sorted({hardware.gpu(gpu).arch for gpu in gpus})),
        measured={gpu: _kernels_on(data, gpu) for gpu in gpus},
        level=level.astype(np.float32),
        low=data.numbers.min(axis=0),
        high=data.numbers.max(axis=0),
        shared=shared,
        local=local,
        carry=1.0,
        edges=np.zeros(0, np.float32),
        width=np.full((len(BASES), 1), 0.3, np.float32),
        manifest={},
        digest="",
    )


def _tested(correction: Correction, test: Examples) -> Tested:
    predicted = np.zeros(len(test.target))
    order = np.argsort(test.group_of, kind="stable")
    starts = np.flatnonzero(np.diff(test.group_of[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows):
            part = Launches(test.numbers[rows], test.names[test.group_of[rows[0]]], test.binds[rows])
            predicted[rows] = correction.correct(part, hardware.gpu(str(test.gpu[rows[0]]))).log_ratio
    return Tested(test.numbers[:, 11].astype(np.float64), test.target, predicted, test.gpu)


def _kernels_on(data: Examples, gpu: str) -> dict[str, list[str]]:
    """The kernels measured on a GPU, and in which engines."""
    found: dict[str, set[str]] = {}
    for group in np.unique(data.group_of[data.gpu == gpu]):
        names = data.names[group]
        found.setdefault(kernel_key(names), set()).add(names.get("engine", ""))
    return {key: sorted(engines) for key, engines in sorted(found.items())}


def _levels(data: Examples, gpus: Sequence[str]) -> NDArray[np.float64]:
    """Median log ratio per GPU and what binds, shrunk towards the GPU's own median where rows are few."""
    level = np.zeros((len(gpus), len(GROUPS)))
    for place, gpu in enumerate(gpus):
        mine = data.gpu == gpu
        overall = float(np.median(data.target[mine]))
        for group in range(len(GROUPS)):
            chosen = mine & (data.binds == group)
            count = int(chosen.sum())
            own = float(np.median(data.target[chosen])) if count else overall
            level[place, group] = (count * own + 50 * overall) / (count + 50)
    return level


def _vocabulary(data: Examples) -> dict[str, list[str]]:
    names = sorted({name for entry in data.names for name in entry})
    used = np.unique(data.group_of)
    return {name: sorted({data.names[group].get(name, "") for group in used}) for name in names}


def _flags(data: Examples, vocabulary: dict[str, list[str]]) -> NDArray[np.float32]:
    table = np.array(
        [[float(entry.get(name) == value) for name, values in vocabulary.items() for value in values] for entry in data.names], np.float32
    )
    return table[data.group_of]


def _boost(
    columns: NDArray[np.float32], target: NDArray[np.float64], weight: NDArray[np.float64], trees: int, depth: int, settings: Settings
) -> Trees:
    try:
        from catboost import CatBoostRegressor, Pool
    except ImportError:
        raise MissingExtra.of("train", "fitting") from None
    if np.ptp(target) < SMALLEST_SPREAD:
        return empty()
    model = CatBoostRegressor(
        iterations=trees, depth=depth, learning_rate=settings.rate, loss_function="MAE", border_count=settings.bins, l2_leaf_reg=5.0,
        random_seed=SEED, verbose=0, allow_writing_files=False, thread_count=2,
    )  # fmt: skip
    model.fit(Pool(columns, target, weight=weight))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        exported = json.loads(path.read_text())
    return _from_catboost(exported, depth)


def _from_catboost(exported: dict[str, Any], depth: int) -> Trees:
    """CatBoost's oblivious trees as arrays; a tree that stopped early asks questions nobody passes."""
    scale, (bias,) = exported["scale_and_bias"]
    entries = exported["oblivious_trees"]
    feature = np.zeros((len(entries), depth), np.int32)
    threshold = np.full((len(entries), depth), np.inf, np.float32)
    leaf = np.zeros((len(entries), 2**depth), np.float32)
    for tree, entry in enumerate(entries):
        splits = entry["splits"] or []
        for level, split in enumerate(splits):
            feature[tree, level] = split["float_feature_index"]
            threshold[tree, level] = split["border"]
        leaf[tree, : len(entry["leaf_values"])] = np.asarray(entry["leaf_values"]) * scale
    leaf[0] += bias
    return Trees(feature, threshold, leaf)


def _widths(residuals: dict[str, Any], edges: NDArray[np.float32]) -> NDArray[np.float32]:
    """80 % quantiles of |residual| per basis and bin; a basis without rows borrows the wider neighbour's."""
    width = np.zeros((len(BASES), BINS), np.float32)
    for row, basis in enumerate(BASES):
        source = residuals["interpolated" if basis == "extrapolated-shape" else basis]
        times, errors, _ = source if len(source[0]) else residuals["interpolated"]
        bins = np.searchsorted(edges, times)
        overall = float(np.quantile(np.abs(errors), COVERAGE))
        for place in range(BINS):
            mine = np.abs(errors[bins == place])
            width[row, place] = np.quantile(mine, COVERAGE) if len(mine) >= 50 else overall
        if basis == "extrapolated-shape":
            width[row] *= 1.5
    return width


def _scores(residuals: dict[str, Any]) -> dict[str, dict[str, float]]:
    """basis -> GPU -> mean absolute relative error (percent) on held-out rows: what `tilecast trust` prints."""
    table: dict[str, dict[str, float]] = {}
    for basis, (_, errors, gpus) in residuals.items():
        relative = 100 * np.abs(np.exp(-errors) - 1)
        table[basis] = {str(gpu): round(float(relative[gpus == gpu].mean()), 2) for gpu in np.unique(gpus)}
    return table


def _typed(family: str, name: str, text: str) -> Any:
    return text == "true" if SHAPES[family][name] == pl.Boolean else text


def _capped(rows: pl.DataFrame, most: int, seed: int) -> pl.DataFrame:
    order = np.random.default_rng(seed).permutation(rows.height)
    rank = pl.col("_order").rank("ordinal").over("gpu", "engine", "dtype", "identity")
    return rows.with_columns(pl.Series("_order", order)).filter(rank <= most).drop("_order")
