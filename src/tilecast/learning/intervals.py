"""The 80 % interval of a correction, from rows that were held out.

Half of them teach trees how large an error to expect of such a launch, the other half how many of those errors hold 80 % of the rows.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilecast.learning.boosting import boost
from tilecast.learning.correction import BASES, Correction
from tilecast.learning.examples import Examples, flags
from tilecast.learning.trees import Trees, empty, grove

COVERAGE = 0.8
UNSEEN_COVERAGE = 0.85  # a GPU's level is one draw for all its rows: with a dozen GPUs, aim higher
SMALLEST_ERROR = 0.003  # log: below it an error's size is chance
EXTRAPOLATED = 1.5  # times the interval of a shape inside the range
NUM_TREES, DEPTH, RATE, BINS = 60, 5, 0.1, 64
ROWS_PER_TREE = 50  # few held-out rows tell little but one width for all


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Rows that were held out, and log(measured / median) of each."""

    rows: Examples
    log_error: NDArray[np.float64]


def with_intervals(correction: Correction, residuals: dict[str, Residuals]) -> Correction:
    """Trees of the error to expect, and per basis how many of those hold the stated share; other bases borrow the nearest's."""
    spread, quantile = {}, {}
    for kind, told in (("seen", ["interpolated"]), ("unseen", ["unseen-generation", "unseen-gpu"])):
        here = [basis for basis in told if basis in residuals]
        if not here:
            continue
        trees = spread[kind] = _spread(correction, residuals[here[0]], with_gpu=kind == "seen")
        for basis in here:
            quantile[basis] = _quantile(correction, trees, residuals[basis], COVERAGE if kind == "seen" else UNSEEN_COVERAGE)
    known = list(quantile.values())
    nearest = {"extrapolated-shape": EXTRAPOLATED * quantile.get("interpolated", known[0])}
    table = [quantile.get(basis, nearest.get(basis, known[-1])) for basis in BASES]
    table[-1] = max(table[-2:])  # a new generation is never surer than a new GPU of a known one
    unseen = spread.get("unseen", spread.get("seen", empty()))
    packed = grove({"seen": spread.get("seen", unseen), "unseen": unseen})
    return replace(correction, spread=packed, quantile=np.array(table))


def _spread(correction: Correction, found: Residuals, *, with_gpu: bool) -> Trees:
    rows = found.rows.where(_first_half(found.rows))
    size = np.log(np.maximum(np.abs(found.log_error[_first_half(found.rows)]), SMALLEST_ERROR))
    columns = _spread_columns(correction, rows, with_gpu)
    return boost(columns, size, None, min(NUM_TREES, 1 + len(size) // ROWS_PER_TREE), DEPTH, RATE, BINS, loss="RMSE")


def _quantile(correction: Correction, trees: Trees, found: Residuals, coverage: float) -> float:
    """Of |error| in units of what was expected, on rows that taught no trees; every GPU counts the same."""
    other = ~_first_half(found.rows)
    rows = found.rows.where(other) if other.any() else found.rows
    errors = np.abs(found.log_error[other] if other.any() else found.log_error)
    units = errors / np.exp(trees.predict(_spread_columns(correction, rows, with_gpu=True)))
    weight = 1.0 / np.unique(rows.gpu, return_counts=True)[1][np.unique(rows.gpu, return_inverse=True)[1]]
    order = np.argsort(units)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(units[order][np.searchsorted(reached, coverage)])


def _first_half(rows: Examples) -> NDArray[np.bool_]:
    """By shape: another digit of its hash than the one that held it out."""
    return (rows.shape * 1000) % 1 < 0.5


def _spread_columns(correction: Correction, rows: Examples, with_gpu: bool) -> NDArray[np.float32]:
    here = np.zeros((len(rows.gpu), len(correction.gpus)), np.float32)
    if with_gpu:
        place = np.searchsorted(correction.gpus, rows.gpu)
        here[np.arange(len(place)), np.minimum(place, len(correction.gpus) - 1)] = 1.0
    return np.concatenate([rows.numbers, flags(rows, correction.vocabulary)[rows.group_of], here], axis=1)
