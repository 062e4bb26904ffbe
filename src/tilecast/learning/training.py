"""Fit a family's correction from measured rows (extra `train`): levels, shared trees, trees for GPUs with data, intervals, index.

Order matters. First each GPU's level, per what binds, is taken out; then trees learn from every GPU what shapes do, without a single
hardware number; last, what is left of each GPU, engine and number format gets trees of its own. Intervals come from rows that were held
out: shapes for GPUs with data, one GPU of each die for those that another of their die stands in for, whole dies for other unseen GPUs,
whole architectures for unseen generations.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.datasets.splits import same_die
from tilecast.errors import MissingData
from tilecast.execution.cache import FULL
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.boosting import boost
from tilecast.learning.built_sizes import built_sizes
from tilecast.learning.correction import (
    ERRORS,
    FRAMEWORKS,
    SAME_DIE,
    TRAFFIC,
    UNSEEN,
    Correction,
    forest_key,
    kernel_key,
    sizes_at,
    slice_key,
)
from tilecast.learning.examples import Examples, examples, flags, vocabulary
from tilecast.learning.features import GROUPS, Launches
from tilecast.learning.intervals import Residuals, with_intervals
from tilecast.learning.trees import grove

MOSTLY = 0.9  # of rows: what a slice is then said to be
HELD_OUT = 0.15  # of shapes, for the intervals of GPUs with data
ROWS_PER_TREE = 20  # of a GPU, engine and number format: a few rows make a few trees
ENOUGH = 200  # rows for a level of their own
CARRIES = (0.0, 0.25, 0.5, 0.75, 1.0)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How hard to try; the defaults fit a family in a few minutes on two cores."""

    shared_trees: int = 200
    shared_depth: int = 6
    shared_rate: float = 0.1
    shared_rows: int = 3_000  # of one GPU, engine, dtype and identity: all of them, equally
    shared_as_timed: bool = False  # whether shared trees see rows in the state they were timed in: caches differ most between GPUs
    tells_cold_apart: bool = False  # whether slices are told of whose rows found their data in L2, and so say nothing of DRAM
    most_host: float = 1.0  # share of the host in a row timed by events, above which it teaches nothing of the kernel
    local_trees: int = 300
    local_depth: int = 6
    local_rate: float = 0.3
    rows_per_slice: int = 24_000
    bins: int = 128
    held_out_rows: int = 48_000  # of a slice, for the fit that intervals of held-out shapes come from
    left_out_rows: int = 60_000  # for each of the fits that leave a die or an architecture out


def fit(
    rows: pl.DataFrame,
    family: str,
    *,
    settings: Settings | None = None,
    manifest: dict[str, Any] | None = None,
    errors: Collection[str] = ERRORS,
    own: Collection[str] | None = None,
    say: Say = print,
) -> Correction:
    """The correction of one family from all its rows, with intervals from held-out ones.

    `errors` are those whose intervals and scores are wanted, `own` the GPUs that get trees of their own (all, if not said).
    """
    settings = settings or Settings()
    data = examples(rows, family, rows_per_slice=settings.rows_per_slice, most_host=settings.most_host)
    say(f"{family}: {len(data.target):,} rows on {len(set(data.gpu))} GPUs")
    left_out = groups_to_leave_out(data, settings, errors)
    say = numbered(say, ("interpolated" in errors) + sum(map(len, left_out.values())) + 1)
    tested = held_out(data, family, settings, errors, left_out, own, say)
    carry = best_carry(tested["unseen-generation"]) if "unseen-generation" in tested else 1.0
    say(f"{family}: fitting with every row")
    final = replace(fit_once(data, family, settings, own), carry=carry)
    residuals = {kind: part.residuals(1.0 if kind in ("interpolated", SAME_DIE) else carry) for kind, part in tested.items()}
    found = replace(with_intervals(final, residuals), built=built_sizes(rows, family), lowest=lowest_by_slice(final, data))
    return replace(found, manifest=(manifest or {}) | {"scores": _scores(residuals)})


@dataclass(frozen=True, slots=True, eq=False)
class Tested:
    """Rows that were held out, the prediction of their log(measured / analytic), and half its interval."""

    rows: Examples
    predicted: NDArray[np.float64]
    width: NDArray[np.float64]

    def residuals(self, carry: float) -> "Residuals":
        return Residuals(self.rows, self.rows.target - carry * self.predicted)


def best_carry(tested: Tested) -> float:
    """The share of the shared trees' word that helps most where whole architectures were held out, mean over GPUs."""
    steady = tested.rows.steady
    gpu, target, predicted = tested.rows.gpu[steady], tested.rows.target[steady], tested.predicted[steady]

    def error(carry: float) -> float:
        off = np.abs(np.expm1(carry * predicted - target))
        return float(np.mean([off[gpu == name].mean() for name in np.unique(gpu)]))

    return min(CARRIES, key=error)


def numbered(say: Say, total: int) -> Say:
    """Each fit with its place among all, so that whoever waits knows how many are left."""
    places = count(1)
    return lambda text: say(f"{text} ({next(places)} of {total})")


def groups_to_leave_out(data: Examples, settings: Settings, errors: Collection[str]) -> dict[str, list[Sequence[str]]]:
    """kind of error -> the GPUs that leave together, each time; never all there are."""
    gpus = sorted(set(_thinned(data, settings).gpu))
    dies = sorted({tuple(gpu for gpu in same_die(name) if gpu in gpus) for name in gpus})
    sets: dict[str, Iterable[Sequence[str]]] = {
        SAME_DIE: [[die[place] for die in dies if place < len(die) > 1] for place in range(max(map(len, dies)))],
        "unseen-gpu": dies,
        "unseen-generation": sorted({tuple(g for g in gpus if hardware.gpu(g).arch == hardware.gpu(name).arch) for name in gpus}),
    }
    return {kind: [held for held in groups if 0 < len(held) < len(gpus)] for kind, groups in sets.items() if kind in errors}


def _thinned(data: Examples, settings: Settings) -> Examples:
    """As many rows as the fits that leave GPUs out are given."""
    data = data.where(data.rank < settings.shared_rows)
    return data.where(np.arange(len(data.target)) % max(1, len(data.target) // settings.left_out_rows) == 0)


def held_out(
    data: Examples, family: str, settings: Settings, errors: Collection[str], left_out: dict[str, list[Sequence[str]]],
    own: Collection[str] | None, say: Say,
) -> dict[str, Tested]:  # fmt: skip
    """kind of error -> rows whose shape, GPU, die or architecture was held out, with predictions of weights that never saw them."""
    found: dict[str, Tested] = {}
    if "interpolated" in errors:
        is_test = data.shape < HELD_OUT
        if is_test.all() or not is_test.any():
            raise MissingData(f"{family}: rows of so few shapes leave none to hold out; measure more shapes")
        say(f"{family}: fitting without {HELD_OUT:.0%} of the shapes")
        without = fit_once(data.where(~is_test & (data.rank < settings.held_out_rows)), family, settings, own)
        found["interpolated"] = tested_on(without, data.where(is_test & data.steady))
    data = _thinned(data, settings)
    for kind, groups in left_out.items():
        if (tested := _leaving_out(data, family, settings, groups, say, stand_in=kind == SAME_DIE)) is not None:
            found[kind] = tested
    return found


def _leaving_out(
    data: Examples, family: str, settings: Settings, groups: Iterable[Sequence[str]], say: Say, *, stand_in: bool
) -> Tested | None:
    """Rows of GPUs left out, a group at a time. With `stand_in`, those for which a GPU of the same die speaks; else none may."""
    parts = []
    for held in groups:
        inside = np.isin(data.gpu, held)
        say(f"{family}: fitting without {', '.join(sorted(held))}")
        relatives = {gpu for name in held for gpu in same_die(name)} if stand_in else ()
        without = fit_once(data.where(~inside), family, settings, own=relatives)
        asked = np.flatnonzero(inside & (_spoken_for(without, data) if stand_in else True))
        if len(asked):
            parts.append((asked, tested_on(without, data.where(asked))))
    if not parts:
        return None
    rows = data.where(np.concatenate([rows for rows, _ in parts]))
    return Tested(rows, *(np.concatenate([getattr(tested, name) for _, tested in parts]) for name in ("predicted", "width")))


def _spoken_for(correction: Correction, data: Examples) -> NDArray[np.bool_]:
    """Rows whose kernel was measured on their GPU or on another of its die."""
    groups, first = np.unique(data.group_of, return_index=True)
    known = np.zeros(len(data.names), bool)
    known[groups] = [
        correction.stand_in(hardware.gpu(str(data.gpu[row])), kernel_key(data.names[group]), data.names[group].get("engine")) is not None
        for group, row in zip(groups.tolist(), first.tolist(), strict=True)
    ]
    return known[data.group_of]


def fit_once(data: Examples, family: str, settings: Settings, own: Collection[str] | None = None) -> Correction:
    """Levels and trees from the steady ones of these; intervals are the caller's to fill in. `own`: GPUs that get trees of their own."""
    data = data.where(data.steady)
    gpus = tuple(sorted(set(data.gpu.tolist())))
    words = vocabulary(data)
    level = levels(data, gpus, _from_dram(data) if settings.shared_as_timed else None, _of_servers(data, family))
    place = np.searchsorted(gpus, data.gpu)
    left = data.target - level[place, data.binds]
    named = flags(data, words)
    few = np.flatnonzero(data.rank < settings.shared_rows)
    seen = data.timed if settings.shared_as_timed else data.numbers
    columns = np.concatenate([seen[few], named[data.group_of[few]]], axis=1)
    shared = boost(columns, left[few], data.weight[few], settings.shared_trees, settings.shared_depth, settings.shared_rate, settings.bins)
    local, warm = {}, set()
    for key, rows in _own_rows(data, gpus if own is None else own).items():
        columns = np.concatenate([data.numbers[rows], named[data.group_of[rows]]], axis=1)
        trees = min(settings.local_trees, len(rows) // ROWS_PER_TREE)
        if trees:
            everywhere = np.concatenate([seen[rows], named[data.group_of[rows]]], axis=1) if settings.shared_as_timed else columns
            here = left[rows] - shared.predict(everywhere)
            local[key] = boost(columns, here, None, trees, settings.local_depth, settings.local_rate, settings.bins)
            if settings.tells_cold_apart and _found_in_l2(data.where(rows)):
                warm.add(key)
    return Correction(
        family=family,
        vocabulary=words,
        gpus=gpus,
        archs=tuple(sorted({hardware.gpu(gpu).arch for gpu in gpus})),
        measured={gpu: _kernels_on(data, gpu) for gpu in gpus},
        sizes=sizes_measured(data, family),
        level=level.astype(np.float32),
        low=data.numbers.min(axis=0),
        high=data.numbers.max(axis=0),
        shared=shared,
        local=grove(local),
        carry=1.0,
        warm=frozenset(warm),
        as_timed=settings.shared_as_timed,
        spread=grove({}),
        quantile=np.full(len(ERRORS), 0.3),
        manifest={},
        digest="",
    )


def sizes_measured(data: Examples, family: str) -> dict[str, list[list[float]]]:
    """GPU and kernel -> log2 of the least and the largest that its rows have of every size."""
    found: dict[str, list[list[float]]] = {}
    for group, row in zip(*np.unique(data.group_of, return_index=True), strict=True):
        key = f"{data.gpu[row]} {kernel_key(data.names[group])}"
        sizes = data.numbers[data.group_of == group][:, sizes_at(family)].astype(np.float64)
        here = np.array([sizes.min(axis=0), sizes.max(axis=0)])
        ends = np.array(found.get(key, here))
        found[key] = np.round([np.minimum(ends[0], here[0]), np.maximum(ends[1], here[1])], 3).tolist()
    return dict(sorted(found.items()))


def _found_in_l2(data: Examples) -> bool:
    """Whether nearly all rows whose data fit into L2 were timed with them there; of experts a few come from DRAM by turns."""
    cold, timed = data.numbers[:, TRAFFIC], data.timed[:, TRAFFIC]
    fits = (cold > np.log(0.02)) & (cold < np.log(FULL / 2.0))  # enough to tell, and inside L2 however that is divided
    return bool(fits.any() and (timed < cold - 0.1)[fits].mean() > MOSTLY)


def _own_rows(data: Examples, gpus: Collection[str]) -> dict[str, NDArray[np.int64]]:
    """forest_key -> its rows. A group of names is of one GPU, so the first row tells which."""
    first = np.full(len(data.names), -1)
    groups, rows = np.unique(data.group_of, return_index=True)
    first[groups] = rows
    keys = {
        int(group): forest_key(str(data.gpu[first[group]]), data.names[group]) for group in groups if str(data.gpu[first[group]]) in gpus
    }
    names = sorted(set(keys.values()))
    number = np.full(len(data.names), -1)
    for group, key in keys.items():
        number[group] = names.index(key)
    of_row = number[data.group_of]
    return {name: np.flatnonzero(of_row == place) for place, name in enumerate(names)}


def lowest_by_slice(correction: Correction, data: Examples) -> dict[str, float]:
    """`slice_key` -> the least log(median / analytic) of its rows: no launch of twice a size is faster by more (`predictors/law.py`).

    Of GPUs without rows too, where physics grows with every size; elsewhere what is guessed of them may be further off than any row."""
    seen = tested_on(correction, data).predicted
    lowest: dict[str, float] = {}
    for group, row in zip(*np.unique(data.group_of, return_index=True), strict=True):
        key = slice_key(str(data.gpu[row]), data.names[group])
        lowest[key] = min(lowest.get(key, 0.0), round(float(seen[data.group_of == group].min()), 3))
    if getattr(kernel_record(correction.family), "physics_grows", False):
        lowest[UNSEEN] = round(float(tested_on(correction, data, unseen=True).predicted.min(initial=0.0)), 3)
    return dict(sorted(lowest.items()))


def tested_on(correction: Correction, test: Examples, *, unseen: bool = False) -> Tested:
    """What the correction says of examples; or would say if no row spoke for their GPUs."""
    predicted, width = np.zeros(len(test.target)), np.zeros(len(test.target))
    order = np.argsort(test.group_of, kind="stable")
    starts = np.flatnonzero(np.diff(test.group_of[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows):
            part = Launches(test.numbers[rows], test.names[test.group_of[rows[0]]], test.binds[rows], test.timed[rows])
            gpu = hardware.gpu(str(test.gpu[rows[0]]))
            found = correction.correct(part, replace(gpu, id="", die="") if unseen else gpu)
            predicted[rows], width[rows] = found.log_ratio, found.width
    return Tested(test, predicted, width)


def _kernels_on(data: Examples, gpu: str) -> dict[str, list[str]]:
    """The kernels measured on a GPU, and in which engines."""
    found: dict[str, set[str]] = {}
    for group in np.unique(data.group_of[data.gpu == gpu]):
        names = data.names[group]
        found.setdefault(kernel_key(names), set()).add(names.get("engine", ""))
    return {key: sorted(engines) for key, engines in sorted(found.items())}


def levels(
    data: Examples, gpus: Sequence[str], from_dram: NDArray[np.bool_] | None = None, of_servers: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Median log ratio per GPU and what binds, shrunk towards the GPU's own median where rows are few.

    `from_dram`: rows that speak of DRAM; where a GPU has enough of them, those that were served by L2 do not tell its memory's level.
    `of_servers`: rows that speak for servers; where a GPU has any, calls of a library do not tell its level.
    """
    level = np.zeros((len(gpus), len(GROUPS)))
    for place, gpu in enumerate(gpus):
        mine = data.gpu == gpu
        if of_servers is not None and (mine & of_servers).any():
            mine &= of_servers
        overall = float(np.median(data.target[mine]))
        for group, name in enumerate(GROUPS):
            chosen = mine & (data.binds == group)
            if name == "memory" and from_dram is not None and (chosen & from_dram).sum() >= ENOUGH:
                chosen &= from_dram
            count = int(chosen.sum())
            own = float(np.median(data.target[chosen])) if count else overall
            level[place, group] = (count * own + 50 * overall) / (count + 50)
    return level


def _of_servers(data: Examples, family: str) -> NDArray[np.bool_] | None:
    """Rows that are no calls of a library, which pad and gather around a kernel of attention."""
    if not family.startswith("attention"):
        return None
    return np.array([names.get("engine", "") not in FRAMEWORKS for names in data.names])[data.group_of]


def _from_dram(data: Examples) -> NDArray[np.bool_]:
    """Rows that found nothing of their data in L2."""
    return np.asarray(data.timed[:, TRAFFIC] > data.numbers[:, TRAFFIC] - 0.01)


def _scores(residuals: dict[str, Residuals]) -> dict[str, dict[str, float]]:
    """kind of error -> GPU -> mean absolute relative error (percent) on held-out rows: what `tilecast trust` prints."""
    table: dict[str, dict[str, float]] = {kind: {} for kind in ERRORS if kind != "extrapolated-shape"}
    for kind, found in residuals.items():
        relative = 100 * np.abs(np.exp(-found.log_error) - 1)
        table[kind] = {str(gpu): round(float(relative[found.rows.gpu == gpu].mean()), 2) for gpu in np.unique(found.rows.gpu)}
    return table
