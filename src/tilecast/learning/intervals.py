"""The 80 % interval of a correction, from rows that were held out.

Half of them teach trees how large an error to expect of such a launch; the other half says how far to trust them, so that intervals are
narrowest, and how many of those errors hold 80 % of the rows.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilecast.learning.boosting import boost
from tilecast.learning.correction import ERRORS, SAME_DIE, Correction
from tilecast.learning.examples import Examples, flags
from tilecast.learning.trees import Trees, empty, grove

COVERAGE = 0.8
TRUST = (0.25, 0.5, 0.75, 1.0)  # in what the trees say of an error's size; never none
SMALLEST_ERROR = 0.003  # log: below it an error's size is chance
EXTRAPOLATED = 1.5  # times the interval of a shape inside the range
NUM_TREES, DEPTH, RATE, BINS = 60, 5, 0.1, 64
KINDS = {"seen": ["interpolated"], SAME_DIE: [SAME_DIE], "unseen": ["unseen-generation", "unseen-gpu"]}  # trees -> whose errors teach them
ROWS_PER_TREE = 50  # few held-out rows tell little but one width for all


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Rows that were held out, and log(measured / median) of each."""

    rows: Examples
    log_error: NDArray[np.float64]


def with_intervals(correction: Correction, residuals: dict[str, Residuals]) -> Correction:
    """Trees of the error to expect, and per kind how many of those hold the stated share; other kinds borrow the nearest's."""
    spread, quantile = {}, {}
    for kind, told in KINDS.items():
        here = [basis for basis in told if basis in residuals]
        if not here:
            continue
        trees = spread[kind] = _trusted(correction, _spread(correction, residuals[here[0]], with_gpu=kind == "seen"), residuals[here[0]])
        for basis in here:
            quantile[basis] = _quantile(correction, trees, residuals[basis])
    fallback = next(quantile[name] for name in ("unseen-gpu", "unseen-generation", "interpolated", SAME_DIE) if name in quantile)
    table = {name: quantile.get(name, fallback) for name in ERRORS}
    table["extrapolated-shape"] = EXTRAPOLATED * table["interpolated"]
    table["unseen-generation"] = max(table["unseen-generation"], table["unseen-gpu"])  # never surer than a new GPU of a known one
    unseen = spread.get("unseen", spread.get("seen", empty()))
    packed = grove({kind: spread.get(kind, unseen) for kind in KINDS})
    return replace(correction, spread=packed, quantile=np.array(list(table.values())))


def _spread(correction: Correction, found: Residuals, *, with_gpu: bool) -> Trees:
    rows = found.rows.where(_first_half(found.rows))
    size = np.log(np.maximum(np.abs(found.log_error[_first_half(found.rows)]), SMALLEST_ERROR))
    columns = _spread_columns(correction, rows, with_gpu)
    return boost(columns, size, None, min(NUM_TREES, 1 + len(size) // ROWS_PER_TREE), DEPTH, RATE, BINS, loss="RMSE")


def _trusted(correction: Correction, trees: Trees, found: Residuals) -> Trees:
    """The trees, believed as far as makes intervals that hold the stated share the narrowest on average."""
    said, weight, errors = _told_apart(correction, trees, found)

    def mean_width(trust: float) -> float:
        expected = said**trust
        return _holding(errors / expected, weight) * float(np.average(expected, weights=weight))

    return replace(trees, leaf=trees.leaf * np.float32(min(TRUST, key=mean_width)))


def _quantile(correction: Correction, trees: Trees, found: Residuals) -> float:
    """Of |error| in units of what was expected."""
    expected, weight, errors = _told_apart(correction, trees, found)
    return _holding(errors / expected, weight)


def _told_apart(correction: Correction, trees: Trees, found: Residuals) -> tuple[NDArray[np.float64], ...]:
    """What was expected, the weight and the error of rows that taught no trees; every GPU counts the same."""
    other = ~_first_half(found.rows)
    if not other.any():
        other = ~other
    rows = found.rows.where(other)
    expected = np.exp(trees.predict(_spread_columns(correction, rows, with_gpu=True)))
    _, place, count = np.unique(rows.gpu, return_inverse=True, return_counts=True)
    return expected, 1.0 / count[place], np.abs(found.log_error[other])


def _holding(units: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """How many units hold the stated share of the weight."""
    order = np.argsort(units)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(units[order][np.searchsorted(reached, COVERAGE)])


def _first_half(rows: Examples) -> NDArray[np.bool_]:
    """By shape: another digit of its hash than the one that held it out."""
    return (rows.shape * 1000) % 1 < 0.5


def _spread_columns(correction: Correction, rows: Examples, with_gpu: bool) -> NDArray[np.float32]:
    here = np.zeros((len(rows.gpu), len(correction.gpus)), np.float32)
    if with_gpu:
        place = np.searchsorted(correction.gpus, rows.gpu)
        here[np.arange(len(place)), np.minimum(place, len(correction.gpus) - 1)] = 1.0
    return np.concatenate([rows.numbers, flags(rows, correction.vocabulary)[rows.group_of], here], axis=1)
