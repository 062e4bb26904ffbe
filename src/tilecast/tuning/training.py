"""Fit the ranking of configurations from published searches (extras `data` and `train`).

A search kept only what came within 1 % of the best, so this is a classifier: kept configurations against others of the same space. Half of
the others are drawn from those that were good for some problem on that GPU: telling these apart is what a first pick needs. Trees for GPUs
nobody searched see only what was good for some problem on some GPU, and every problem counts the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilecast
from tilecast import hardware
from tilecast.datasets.splits import same_die
from tilecast.learning.boosting import SEED, boost
from tilecast.learning.ranking import ABROAD, SHARED, Ranking, is_among, ranking_of
from tilecast.learning.trees import Trees
from tilecast.tuning.account import FEATURES, account
from tilecast.tuning.searches import Searched, spaces

COVERAGE = 0.8
MOST_OTHERS = 400  # of a GPU's configurations that were good for no problem
MOST_GOOD = 30  # of one problem in the shared fit: easy problems have hundreds
WIDE = 0.2  # log: the interval where nothing was held out

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    shared_trees: int = 200
    shared_depth: int = 4
    local_trees: int = 150
    local_depth: int = 5
    abroad_trees: int = 200
    abroad_depth: int = 5
    abroad_others: int = 100  # of one problem, good somewhere
    abroad_weight: float = 20.0  # of all good ones of a problem together; any other is 1
    gain_trees: int = 200
    gain_local_trees: int = 100
    gain_depth: int = 4
    rate: float = 0.1
    bins: int = 64
    near: int = 60  # others of one problem that were good elsewhere
    far: int = 40  # any others


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rows of many problems: what each configuration asks for, whether it was good, and of which GPU and problem it is."""

    numbers: NDArray[np.float32]
    good: NDArray[np.float64]
    gpu: NDArray[np.str_]
    problem: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> "Sample":
        return Sample(self.numbers[chosen], self.good[chosen], self.gpu[chosen], self.problem[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Everything a fit reads of the searches, made once: folds then choose problems, nothing of a left-out one is looked at."""

    problems: Sequence[Searched]
    own: Mapping[str, NDArray[np.bool_]]  # of the rows of a GPU's space that are kept, its own good ones and the others
    configs: Mapping[str, NDArray[np.int64]]  # (kept, parameters): what a fit may draw, good for any problem anywhere, and some others
    numbers: Sequence[NDArray[np.float32]]  # of each problem, its kept rows
    good: Sequence[NDArray[np.bool_]]
    defaults: NDArray[np.float32]  # (P, F) of the default configuration
    gains: NDArray[np.float64]  # log, nan where not measured

    @property
    def gpus(self) -> NDArray[np.str_]:
        return np.array([problem.gpu for problem in self.problems])


def study(problems: Sequence[Searched]) -> Study:
    known = spaces(sorted({problem.gpu for problem in problems}))
    mine = {gpu: _kept(problems, gpu, len(space)) for gpu, space in known.items()}
    proven = _unique([known[problem.gpu].rows()[problem.good] for problem in problems])
    kept = {gpu: np.union1d(mine[gpu], np.flatnonzero(is_among(space.rows(), proven))) for gpu, space in known.items()}
    own = {gpu: np.isin(rows, mine[gpu]) for gpu, rows in kept.items()}
    configs = {gpu: known[gpu].rows()[rows] for gpu, rows in kept.items()}
    numbers, good, defaults = [], [], []
    for problem in problems:  # the whole space: some of its columns compare with the best of it
        space, rows = known[problem.gpu], kept[problem.gpu]
        found = account(problem.kernel, hardware.gpu(problem.gpu), space).numbers
        numbers.append(found[rows])
        good.append(np.isin(rows, problem.good))
        defaults.append(found[problem.default(space)])
    gains = np.log([problem.gain or np.nan for problem in problems])
    return Study(problems, own, configs, numbers, good, np.array(defaults), gains)


def _unique(configs: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.unique(np.concatenate(configs), axis=0)


def _kept(problems: Sequence[Searched], gpu: str, size: int) -> NDArray[np.int64]:
    good = np.unique(np.concatenate([problem.good for problem in problems if problem.gpu == gpu]))
    others = np.setdiff1d(np.arange(size), good)
    return np.sort(np.concatenate([good, _some(np.random.default_rng(SEED), others, MOST_OTHERS)]))


def sampled(of: Study, chosen: NDArray[np.int64], settings: Settings) -> Sample:
    """Good configurations of the chosen problems and some that were not; `near` ones are known from the chosen problems alone."""
    once_good = {gpu: np.any([of.good[place] for place in chosen if of.problems[place].gpu == gpu], axis=0) for gpu in set(of.gpus[chosen])}
    numbers, good, gpu, number = [], [], [], []
    for place in chosen:
        is_good, name = of.good[place], of.problems[place].gpu
        draw = np.random.default_rng([SEED, int(place)])
        near, far = (np.flatnonzero(mask & ~is_good & of.own[name]) for mask in (once_good[name], ~once_good[name]))
        drawn = (
            _some(draw, np.flatnonzero(is_good), 2 * MOST_GOOD),
            _some(draw, near, 2 * settings.near),
            _some(draw, far, 2 * settings.far),
        )
        rows = np.concatenate(drawn)
        numbers.append(of.numbers[place][rows])
        good.append(is_good[rows].astype(np.float64))
        gpu.append(np.full(len(rows), name))
        number.append(np.full(len(rows), place))
    return Sample(np.concatenate(numbers), np.concatenate(good), np.concatenate(gpu), np.concatenate(number))


def proven_by(of: Study, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The configurations that were good for at least one of the chosen problems."""
    return _unique([of.configs[of.problems[place].gpu][of.good[place]] for place in chosen])


def sampled_abroad(
    of: Study, chosen: NDArray[np.int64], proven: NDArray[np.int64], settings: Settings
) -> tuple[Sample, NDArray[np.float64]]:
    """Proven configurations of the chosen problems, good and not, with their weights."""
    candidate = {gpu: is_among(of.configs[gpu], proven) for gpu in sorted(set(of.gpus[chosen].tolist()))}
    rows_of, weight = [], []
    for place in chosen:
        is_good = of.good[place]
        draw = np.random.default_rng([SEED, int(place)])
        good = _some(draw, np.flatnonzero(is_good), MOST_GOOD)
        others = _some(draw, np.flatnonzero(candidate[of.problems[place].gpu] & ~is_good), settings.abroad_others)
        rows_of.append(np.concatenate([good, others]))
        weight += [np.full(len(good), settings.abroad_weight / max(len(good), 1)), np.ones(len(others))]
    places = np.repeat(chosen, [len(rows) for rows in rows_of])
    numbers = np.concatenate([of.numbers[place][rows] for place, rows in zip(chosen, rows_of, strict=True)])
    is_good = np.concatenate([of.good[place][rows] for place, rows in zip(chosen, rows_of, strict=True)])
    return Sample(numbers, is_good.astype(np.float64), of.gpus[places], places), np.concatenate(weight)


def _some(draw: np.random.Generator, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return rows if len(rows) <= most else draw.choice(rows, most, replace=False)


def fit_once(of: Study, chosen: NDArray[np.int64], settings: Settings, *, own: bool = True, abroad: bool = True) -> Ranking:
    """From the chosen problems alone; `own`: for the GPUs they are of, `abroad`: for others."""
    measured = chosen[np.isfinite(of.gains[chosen])]
    gain: dict[str, Trees] = {SHARED: _gain(of.defaults[measured], of.gains[measured], settings.gain_trees, settings)}
    chance: dict[str, Trees] = {}
    proven = proven_by(of, chosen)
    if abroad:
        rows, weight = sampled_abroad(of, chosen, proven, settings)
        chance[ABROAD] = _chance(rows, settings.abroad_trees, settings.abroad_depth, settings, weight=weight)
    if own:
        sample = sampled(of, chosen, settings)
        half = sample.where(np.arange(len(sample.good)) % 2 == 0)  # the shared trees see every GPU: half of each is plenty
        shared = chance[SHARED] = _chance(half, settings.shared_trees, settings.shared_depth, settings)
        for gpu in sorted(set(sample.gpu.tolist())):
            mine = sample.where(sample.gpu == gpu)
            chance[gpu] = _chance(mine, settings.local_trees, settings.local_depth, settings, base=shared.predict(mine.numbers))
            here = measured[of.gpus[measured] == gpu]
            left = of.gains[here] - gain[SHARED].predict(of.defaults[here])
            gain[gpu] = _gain(of.defaults[here], left, settings.gain_local_trees, settings)
    return ranking_of("moe", FEATURES, chance, gain, proven=proven, width={}, manifest={})


def _chance(
    rows: Sample,
    trees: int,
    depth: int,
    settings: Settings,
    *,
    base: NDArray[np.float64] | None = None,
    weight: NDArray[np.float64] | None = None,
) -> Trees:
    return boost(rows.numbers, rows.good, weight, trees, depth, settings.rate, settings.bins, "Logloss", base=base, threads=1)


def _gain(numbers: NDArray[np.float32], target: NDArray[np.float64], trees: int, settings: Settings) -> Trees:
    return boost(numbers, target, None, trees, settings.gain_depth, settings.rate, settings.bins, "RMSE", threads=1)


# ---- held out --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Weights that never saw the problems they are asked about."""

    name: str
    asked: NDArray[np.int64]
    ranking: Ranking


def shape_folds(of: Study, settings: Settings, say: Say, *, num_folds: int) -> list[Fold]:
    """Every expert shape is left out once, with all its token counts and on every GPU."""
    shapes = sorted({problem.shape for problem in of.problems})
    number = {shape: place % num_folds for place, shape in enumerate(shapes)}
    fold_of = np.array([number[problem.shape] for problem in of.problems])
    folds = []
    for fold in range(min(num_folds, len(shapes))):
        say(f"moe: fitting the ranking without shapes {fold + 1} of {num_folds}")
        folds.append(
            Fold(
                f"shapes {fold + 1}", np.flatnonzero(fold_of == fold), fit_once(of, np.flatnonzero(fold_of != fold), settings, abroad=False)
            )
        )
    return folds


def gpu_folds(of: Study, settings: Settings, say: Say, *, siblings: str) -> list[Fold]:
    """Every GPU is left out once, with the others of its die ("out") or without ("in")."""
    folds = []
    for gpu in sorted(set(of.gpus.tolist())):
        held = same_die(gpu) if siblings == "out" else (gpu,)
        say(f"moe: fitting the ranking without {', '.join(name for name in held if name in of.gpus)}")
        ranking = fit_once(of, np.flatnonzero(~np.isin(of.gpus, sorted(held))), settings, own=False)
        folds.append(Fold(gpu, np.flatnonzero(of.gpus == gpu), ranking))
    return folds


def gain_errors(of: Study, folds: Sequence[Fold]) -> NDArray[np.float64]:
    """log(measured gain / predicted gain) of the problems that were left out."""
    errors = []
    for fold in folds:
        errors += [
            of.gains[place] - fold.ranking.log_gain(of.defaults[place : place + 1], of.problems[place].gpu)[0]
            for place in fold.asked[np.isfinite(of.gains[fold.asked])]
        ]
    return np.array(errors)


def fit(problems: Sequence[Searched], settings: Settings | None = None, say: Say = print, *, num_folds: int = 8) -> Ranking:
    """The ranking from all problems, with intervals of the gain from held-out ones."""
    settings = settings or Settings()
    of = study(problems)
    held = {"interpolated": shape_folds(of, settings, say, num_folds=num_folds), "unseen-gpu": gpu_folds(of, settings, say, siblings="out")}
    width = {basis: float(np.quantile(np.abs(gain_errors(of, folds)), COVERAGE)) for basis, folds in held.items()}
    say("moe: fitting the ranking with every problem")
    final = fit_once(of, np.arange(len(problems)), settings)
    return replace(final, width=width or {"unseen-gpu": WIDE}, manifest=manifest(of, settings))


def manifest(of: Study, settings: Settings) -> dict[str, Any]:
    counts = {gpu: int((of.gpus == gpu).sum()) for gpu in sorted(set(of.gpus.tolist()))}
    return {
        "kernel": "moe", "date": date.today().isoformat(), "tilecast": tilecast.__version__, "catalogue": hardware.catalogue_hash(),
        "seed": SEED, "problems_per_gpu": counts, "good_configurations": int(sum(len(problem.good) for problem in of.problems)),
        "sources": [{"name": "pipeweave", "tables": ["moe_dse_configs", "moe_dse_summary"], "licence": "Apache-2.0",
                     "home": "zksainx/pipeweave @55e0317"}],
        "settings": {name: getattr(settings, name) for name in settings.__slots__},
        "trained_on": "all problems; intervals and scores are from weights fitted without the problems they are scored on",
    }  # fmt: skip
