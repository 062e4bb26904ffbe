"""Fit ceilings from measured rows (extra `train`): a location and a spread, then scores of quantiles from rows that were held out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilecast
from tilecast import hardware
from tilecast.datasets.splits import same_die
from tilecast.learning.boosting import SEED, boost
from tilecast.learning.ceilings import ANY, LEAST_SPREAD, QUANTILES, WORK, Ceiling, slot_of, with_flags
from tilecast.learning.examples import Examples, examples, flags, vocabulary
from tilecast.learning.features import GROUPS, Launches

TREES, DEPTH, RATE, BINS = 80, 4, 0.1, 64
NUM_FOLDS = 4
SHRINKAGE = 50  # rows that a GPU's level of one group is drawn towards the GPU's own median by

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


def scores(ceiling: Ceiling, test: Examples) -> Floats:
    """(measured - location) / spread of rows that the ceiling never saw, in logs."""
    found = np.empty(len(test.target))
    for group in np.unique(test.group_of):  # a group has one set of names, and may have several GPUs
        for gpu in np.unique(test.gpu[test.group_of == group]):
            rows = np.flatnonzero((test.group_of == group) & (test.gpu == gpu))
            asked = Launches(test.numbers[rows], test.names[group], test.binds[rows])
            centre, spread = ceiling.centre(asked, str(gpu))
            found[rows] = (test.target[rows] - centre) / np.maximum(spread, LEAST_SPREAD)
    return found


def fit(data: Examples, family: str, fold: NDArray[np.int64], *, bases: Sequence[str] = ("interpolated", "unseen-gpu"), say: Say = print,
        manifest: dict[str, Any] | None = None) -> Ceiling:  # fmt: skip
    """A calibrated ceiling. `fold` numbers what is held out together: rows of one layer or shape have the same."""
    found: dict[str, Floats] = {}
    if "interpolated" in bases:
        each = []
        for number in np.unique(fold):
            say(f"{family}: ceiling without shapes {number}")
            held = fold == number
            each.append(scores(fit_once(data.where(~held), family), data.where(held)))
        found |= _by_slot(np.concatenate(each), np.concatenate([_slots(data.where(fold == number)) for number in np.unique(fold)]))
    if "unseen-gpu" in bases:
        found["unseen-gpu"] = _unseen(data, family, say)
    return replace(fit_once(data, family), score=found, manifest=manifest or {})


def fit_families(names: Sequence[str], families: Sequence[str] = FAMILIES, say: Say = print) -> dict[str, Ceiling]:
    """The ceilings that ship, from the same sources that teach the corrections."""
    from tilecast.learning.recipes import training_rows

    found = {}
    for family in families:
        rows = training_rows(family, names)
        data = examples(rows, family, rows_per_slice=ROWS_PER_SLICE)
        counts = dict(zip(*(values.tolist() for values in np.unique(data.gpu, return_counts=True)), strict=True))
        say(f"{family}: ceiling from {len(data.target):,} rows on {len(counts)} GPUs")
        facts = {
            "date": date.today().isoformat(), "tilecast": tilecast.__version__, "catalogue": hardware.catalogue_hash(), "seed": SEED,
            "rows_per_gpu": counts, "sources": sorted(set(rows["source"].cast(str).to_list())), "settings": [TREES, DEPTH, RATE, BINS],
            "trained_on": "all usable rows, capped per slice; quantiles are calibrated on rows held out of the fit",
        }  # fmt: skip
        found[family] = fit(data, family, folds_by(data.shape), say=say, manifest=facts)
    return found


def _unseen(data: Examples, family: str, say: Say) -> Floats:
    """Every die is held out once and counts the same, however many rows and GPUs it has."""
    gpus = sorted(set(data.gpu.tolist()))
    dies = sorted({tuple(gpu for gpu in gpus if gpu in same_die(name)) for name in gpus})
    if len(dies) < 2:
        dies = [(gpu,) for gpu in gpus]  # one die only: its GPUs are at least new SKUs to one another
    each, weight = [], []
    for held in dies:
        inside = np.isin(data.gpu, held)
        if inside.all():
            continue
        say(f"{family}: ceiling without {', '.join(held)}")
        each.append(scores(fit_once(data.where(~inside), family), data.where(inside)))
        weight.append(np.full(len(each[-1]), 1.0 / len(each[-1])))
    return _quantiles(np.concatenate(each), np.concatenate(weight)) if each else np.full(len(QUANTILES), 0.0)


def _by_slot(values: Floats, slot: NDArray[np.str_]) -> dict[str, Floats]:
    """Scores of all rows, and of every slot with enough of them: a quantile should hold for each GPU and kind of work."""
    names, place, count = np.unique(slot, return_inverse=True, return_counts=True)
    many = {str(name): _quantiles(values[place.reshape(-1) == number]) for number, name in enumerate(names) if count[number] >= ENOUGH}
    return {"interpolated": _quantiles(values), **many}


def _quantiles(values: Floats, weight: Floats | None = None) -> Floats:
    """For each quantile of efficiency the score that so many rows lie above: fast rows have low scores."""
    order = np.argsort(values)
    share = np.cumsum(np.ones(len(values)) if weight is None else weight[order])
    return np.interp(1.0 - np.array(QUANTILES), share / share[-1], values[order])


def folds_by(keys: NDArray[Any], num_folds: int = NUM_FOLDS) -> NDArray[np.int64]:
    """Folds of about the same size: keys that are equal stay together."""
    different, place = np.unique(keys, return_inverse=True)
    shuffled = np.random.default_rng(SEED).permutation(len(different))
    return np.asarray((shuffled % num_folds)[place.reshape(-1)])
