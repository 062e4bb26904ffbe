"""Fit ceilings from measured rows (extra `train`): a location and a spread, then scores of quantiles from rows that were held out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilecast
from tilecast import hardware
from tilecast.datasets.splits import same_die
from tilecast.learning.boosting import SEED, boost
from tilecast.learning.ceilings import ANY, QUANTILES, WORK, Ceiling, slot_of, well_made, with_flags
from tilecast.learning.examples import Examples, examples, flags, vocabulary
from tilecast.learning.features import GROUPS, Launches

TREES, DEPTH, RATE, BINS = 80, 4, 0.1, 64
NUM_FOLDS = 4
SHRINKAGE = 50  # rows that a GPU's level of one group is drawn towards the GPU's own median by

STRANGERS = 4  # dies' worth of levels that nobody saw; chosen on the rows that ship, die by die
ROWS_PER_DIE = 600  # that such levels are added to
MEDIAN_OF_NORMAL = 0.6745  # standard deviations that half of normal numbers stay within

NUM_PARTS = 39  # of a distribution, drawn from once each
ENOUGH = 300  # held-out rows that a slot needs for scores of its own
ROWS_PER_SLICE = 600  # of one GPU, engine, format and kernel
FAMILIES = ("gemm", "moe", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode")

Floats = NDArray[np.float64]
Say = Callable[[str], None]


def fit_once(data: Examples, family: str) -> Ceiling:
    """Location and spread of these rows; scores are the caller's to fill in."""
    slot = _slots(data)
    level = _levels(data, slot)
    slots, place = np.unique(slot, return_inverse=True)
    left = data.target - np.array([level[str(name)] for name in slots])[place.reshape(-1), data.binds]
    words = {name: values for name, values in vocabulary(data).items() if name in WORK and len(values) > 1}
    numbers = with_flags(data.numbers, flags(data, words)[data.group_of].astype(np.float32))
    weight = _even(data)
    location = boost(numbers, left, weight, TREES, DEPTH, RATE, BINS, "MAE", threads=1)
    away = np.abs(left - location.predict(numbers))
    spread = boost(numbers, away, weight, TREES, DEPTH, RATE, BINS, "MAE", threads=1)
    return Ceiling(family, tuple(sorted(level)), words, np.array([level[name] for name in sorted(level)]), location, spread, {})


def _even(data: Examples) -> Floats:
    """Every GPU weighs the same."""
    _, place, count = np.unique(data.gpu, return_inverse=True, return_counts=True)
    return np.asarray(len(data.gpu) / (len(count) * count[place.reshape(-1)]))


def _slots(data: Examples) -> NDArray[np.str_]:
    """The slot of every row."""
    kinds = np.array([slot_of("", names) for names in data.names])[data.group_of]
    return np.char.add(data.gpu.astype(np.str_), kinds)


def _levels(data: Examples, slot: NDArray[np.str_]) -> dict[str, Floats]:
    """Median log ratio by slot and what binds; a kind of work on a GPU nobody measured has the median over GPUs."""
    level: dict[str, Floats] = {}
    for name in np.unique(slot):
        mine = slot == name
        overall = float(np.median(data.target[mine]))
        own = np.full(len(GROUPS), overall)
        for group in range(len(GROUPS)):
            chosen = mine & (data.binds == group)
            if count := int(chosen.sum()):
                own[group] = (count * float(np.median(data.target[chosen])) + SHRINKAGE * overall) / (count + SHRINKAGE)
        level[str(name)] = own
    kinds = {name.partition(" ")[2] for name in level}
    anywhere = {
        f"{ANY} {kind}": np.median([own for name, own in level.items() if name.partition(" ")[2] == kind], axis=0) for kind in kinds
    }
    return {**level, **anywhere, ANY: np.median(list(level.values()), axis=0)}


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Rows that a ceiling never saw: log(measured / location), the spread it states, and the slot, of every row."""

    away: Floats
    spread: Floats
    slot: NDArray[np.str_]

    @property
    def scores(self) -> Floats:
        return self.away / self.spread

    @property
    def offset(self) -> Floats:
        """How far the level of every row's slot lies from where the ceiling thought it would."""
        names, place = np.unique(self.slot, return_inverse=True)
        return np.array([np.median(self.away[self.slot == name]) for name in names])[place.reshape(-1)]


def residuals(ceiling: Ceiling, test: Examples) -> Residuals:
    away, spread = np.empty(len(test.target)), np.empty(len(test.target))
    for group in np.unique(test.group_of):  # a group has one set of names, and may have several GPUs
        for gpu in np.unique(test.gpu[test.group_of == group]):
            rows = np.flatnonzero((test.group_of == group) & (test.gpu == gpu))
            centre, spread[rows] = ceiling.centre(Launches(test.numbers[rows], test.names[group], test.binds[rows]), str(gpu))
            away[rows] = test.target[rows] - centre
    return Residuals(away, spread, _slots(test))


def fit(data: Examples, family: str, fold: NDArray[np.int64], *, bases: Sequence[str] = ("interpolated", "unseen-gpu"), say: Say = print,
        elsewhere: "Levels | None" = None, manifest: dict[str, Any] | None = None) -> Ceiling:  # fmt: skip
    """A calibrated ceiling. `fold` numbers what is held out together: rows of one layer or shape have the same.

    Rows of one die cannot say how far another GPU may be: `elsewhere` has the levels of other rows for them.
    """
    found: dict[str, Floats] = {}
    if "interpolated" in bases:
        each = []
        for number in np.unique(fold):
            say(f"{family}: ceiling without shapes {number}")
            held = fold == number
            each.append(residuals(fit_once(data.where(~held), family), data.where(held)))
        found |= _by_slot(np.concatenate([one.scores for one in each]), np.concatenate([one.slot for one in each]))
    between = 0.0
    if "unseen-gpu" in bases:
        dies = dies_of(data)
        held_out = [*held_out_by(dies if len(dies) > 1 else [(gpu,) for gpu in sorted(set(data.gpu.tolist()))], data, family, say)]
        levels = levels_of(held_out) if len(dies) > 1 else (elsewhere or LEVELS).said_by(1)
        between = levels.between
        found["unseen-gpu"] = unseen_scores(held_out, levels, num_seen=len(dies) if len(dies) > 1 else 0)
    return replace(fit_once(data, family), score=found, between=between, manifest=manifest or {})


def fit_families(names: Sequence[str], families: Sequence[str] = FAMILIES, say: Say = print) -> dict[str, Ceiling]:
    """The ceilings that ship, from the same sources that teach the corrections."""
    from tilecast.learning.recipes import training_rows

    found = {}
    for family in families:
        rows = training_rows(family, names)
        data = examples(rows, family, rows_per_slice=ROWS_PER_SLICE, seen_as=well_made)
        counts = dict(zip(*(values.tolist() for values in np.unique(data.gpu, return_counts=True)), strict=True))
        say(f"{family}: ceiling from {len(data.target):,} rows on {len(counts)} GPUs")
        facts = {
            "date": date.today().isoformat(), "tilecast": tilecast.__version__, "catalogue": hardware.catalogue_hash(), "seed": SEED,
            "rows_per_gpu": counts, "sources": sorted(set(rows["source"].cast(str).to_list())), "settings": [TREES, DEPTH, RATE, BINS],
            "trained_on": "all usable rows, capped per slice; quantiles are calibrated on rows held out of the fit",
        }  # fmt: skip
        found[family] = fit(data, family, folds_by(data.shape), say=say, manifest=facts)
    return found


# ---- GPUs nobody measured --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Levels:
    """How far the levels of dies lie from what the other dies' rows say."""

    between: float  # log: one standard deviation, from the median, so that one odd die does not widen it
    num_dies: int  # that it was learned from, each held out of the fit to the others

    def said_by(self, num_dies: int) -> "Levels":
        """The same where so many dies' rows say what to expect: the fewer, the further their own mean lies from that of all dies."""
        return replace(self, between=self.between * sqrt((1 + 1 / num_dies) / (1 + 1 / max(self.num_dies - 1, 1))))


LEVELS = Levels(between=0.11, num_dies=6)  # of the families that ship, the median: where the rows are of one die and nothing else is known


def dies_of(data: Examples) -> list[tuple[str, ...]]:
    """The GPUs of each die."""
    gpus = sorted(set(data.gpu.tolist()))
    return sorted({tuple(gpu for gpu in gpus if gpu in same_die(name)) for name in gpus})


def held_out_by(groups: Sequence[tuple[str, ...]], data: Examples, family: str, say: Say = print) -> Iterator[Residuals]:
    """Every group of GPUs is held out once; a single one is seen around its own fit, which is all there is."""
    for held in groups:
        say(f"{family}: ceiling without {', '.join(held)}")
        inside = np.isin(data.gpu, held)
        yield residuals(fit_once(data if inside.all() else data.where(~inside), family), data.where(inside))


def levels_of(dies: Sequence[Residuals]) -> Levels:
    """Every die counts the same, however many rows and GPUs it has."""
    away = np.concatenate([np.abs(die.offset) for die in dies])
    weight = np.concatenate([np.full(len(die.away), 1.0 / len(die.away)) for die in dies])
    return Levels(between=_weighted(away, weight, np.array([0.5]))[0] / MEDIAN_OF_NORMAL, num_dies=len(dies))


def unseen_scores(dies: Sequence[Residuals], levels: Levels, *, num_seen: int) -> Floats:
    """Scores in units of hypot(spread, between): of the dies as they were, and of some more whose levels nobody saw.

    What the next die's level will be is Student's t, as for the next of so many normal numbers around 0; its rows lie around that level as
    those of the dies do. These count as STRANGERS dies: of many dies the rows themselves say it, of few mostly the formula.
    """
    level = levels.between * student_quantiles(levels.num_dies)
    values, weight = [], []
    for die in dies:
        unit = np.hypot(die.spread, levels.between)
        some = np.random.default_rng(SEED).permutation(len(die.away))[:ROWS_PER_DIE]
        around = (die.away - die.offset)[some, None]
        drawn = ((around + level) / unit[some, None]).reshape(-1)
        values += [die.away / unit, drawn]
        weight += [np.full(len(unit), num_seen / len(unit) / len(dies)), np.full(len(drawn), STRANGERS / len(drawn) / len(dies))]
    return _quantiles(np.concatenate(values), np.concatenate(weight))


def student_quantiles(degrees: int) -> Floats:
    """Student's t in the middles of NUM_PARTS equal parts."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(degrees, (np.arange(NUM_PARTS) + 0.5) / NUM_PARTS))


def _by_slot(values: Floats, slot: NDArray[np.str_]) -> dict[str, Floats]:
    """Scores of all rows, and of every slot with enough of them: a quantile should hold for each GPU and kind of work."""
    names, place, count = np.unique(slot, return_inverse=True, return_counts=True)
    many = {str(name): _quantiles(values[place.reshape(-1) == number]) for number, name in enumerate(names) if count[number] >= ENOUGH}
    return {"interpolated": _quantiles(values), **many}


def _quantiles(values: Floats, weight: Floats | None = None) -> Floats:
    """For each quantile of efficiency the score that so many rows lie above: fast rows have low scores."""
    return _weighted(values, np.ones(len(values)) if weight is None else weight, 1.0 - np.array(QUANTILES))


def _weighted(values: Floats, weight: Floats, shares: Floats) -> Floats:
    order = np.argsort(values)
    share = np.cumsum(weight[order])
    return np.interp(shares, share / share[-1], values[order])


def folds_by(keys: NDArray[Any], num_folds: int = NUM_FOLDS) -> NDArray[np.int64]:
    """Folds of about the same size: keys that are equal stay together."""
    different, place = np.unique(keys, return_inverse=True)
    shuffled = np.random.default_rng(SEED).permutation(len(different))
    return np.asarray((shuffled % num_folds)[place.reshape(-1)])
