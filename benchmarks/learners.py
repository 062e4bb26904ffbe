"""python -m benchmarks.learners [--quick]: which learner corrects the analytic time best, on shapes and on generations that were held out.

Every learner gets the same columns (no hardware number among them), the same rows, and log(measured / analytic) without each GPU's level;
on a GPU that was left out there is no level to add. Trees are the shared ones of the package. The others are made here in numpy: a ridge
regression, a network of two saturating layers, and a Gaussian process on a subset of the rows.
Writes results/learners.json and learners.md.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks import variants
from benchmarks.ablations import by_generation, by_shape, pool_of
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.scoring import capped
from benchmarks.accuracy.suites.kernels_unseen import POOL
from benchmarks.variants import Rows
from tilecast.learning.boosting import boost
from tilecast.learning.examples import Examples, examples, flags, vocabulary
from tilecast.learning.training import levels

Floats = NDArray[np.float64]
Predict = Callable[[Floats], Floats]
Fit = Callable[[Floats, Floats, Floats], Predict]

FAMILIES = ("gemm", "attention_prefill")
ROWS, QUICK_ROWS = 300, 40  # of one (group, GPU, engine)
RIDGE = 1.0  # per row of the mean weight
HIDDEN, STEPS, BATCH, RATE, DECAY = 64, 3000, 512, 3e-3, 1e-4
INDUCING, LENGTH, NOISE = 1500, 4.0, 0.3  # of the Gaussian process: rows, distance over which rows are alike, and noise over signal
SEED = 0


def _none(columns: Floats, target: Floats, weight: Floats) -> Predict:
    return lambda asked: np.zeros(len(asked))


def _ridge(columns: Floats, target: Floats, weight: Floats) -> Predict:
    weighted = columns * weight[:, None]
    coefficients = np.linalg.solve(columns.T @ weighted + RIDGE * np.eye(columns.shape[1]), weighted.T @ target)
    return lambda asked: np.asarray(asked @ coefficients)


def _network(columns: Floats, target: Floats, weight: Floats) -> Predict:
    """tanh, tanh, linear; Adam on the weighted absolute error (smoothed), decayed weights, a falling rate."""
    random = np.random.default_rng(SEED)
    sizes = (columns.shape[1], HIDDEN, HIDDEN, 1)
    weights = [random.normal(0, size**-0.5, (size, after)) for size, after in pairwise(sizes)]
    weights[-1] *= 0.1
    biases = [np.zeros(after) for after in sizes[1:]]
    parameters = [*weights, *biases]
    means, squares = ([np.zeros_like(each) for each in parameters] for _ in range(2))
    for step in range(1, STEPS + 1):
        rows = random.integers(0, len(columns), BATCH)
        layers = [columns[rows]]
        for layer in range(2):
            layers.append(np.tanh(layers[-1] @ weights[layer] + biases[layer]))
        off = (layers[-1] @ weights[2] + biases[2])[:, 0] - target[rows]
        back = (weight[rows] * off / np.sqrt(off**2 + 0.02**2) / BATCH)[:, None]
        slopes: list[Floats] = [np.empty(0)] * 6
        for layer in (2, 1, 0):
            slopes[layer], slopes[3 + layer] = layers[layer].T @ back + DECAY * weights[layer], back.sum(axis=0)
            back = (back @ weights[layer].T) * (1.0 - layers[layer] ** 2) if layer else back
        rate = RATE * (1.0 - step / (STEPS + 1))
        for place, slope in enumerate(slopes):
            means[place] = 0.9 * means[place] + 0.1 * slope
            squares[place] = 0.999 * squares[place] + 0.001 * slope**2
            parameters[place] -= rate * means[place] / (1 - 0.9**step) / (np.sqrt(squares[place] / (1 - 0.999**step)) + 1e-8)
    return lambda asked: np.asarray(
        (np.tanh(np.tanh(asked @ weights[0] + biases[0]) @ weights[1] + biases[1]) @ weights[2] + biases[2])[:, 0]
    )


def _process(columns: Floats, target: Floats, weight: Floats) -> Predict:
    """A Gaussian process with one length for every standardised column, on rows drawn by weight; it fades to zero away from them."""
    random = np.random.default_rng(SEED)
    rows = random.choice(len(columns), min(INDUCING, len(columns)), replace=False, p=weight / weight.sum())
    known = columns[rows]

    def alike(one: Floats, other: Floats) -> Floats:
        distance = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2.0 * one @ other.T
        return np.asarray(np.exp(-0.5 * np.maximum(distance, 0.0) / LENGTH**2))

    pull = np.linalg.solve(alike(known, known) + NOISE**2 * np.eye(len(known)), target[rows])
    return lambda asked: np.concatenate([alike(asked[at : at + 4000], known) @ pull for at in range(0, len(asked), 4000)])


def _trees(columns: Floats, target: Floats, weight: Floats) -> Predict:
    grown = boost(columns.astype(np.float32), target, weight, 200, 6, 0.1, 128)
    return lambda asked: np.asarray(grown.predict(asked.astype(np.float32)))


LEARNERS: dict[str, Fit] = {"none": _none, "ridge": _ridge, "network": _network, "Gaussian process": _process, "trees": _trees}


def measure(quick: bool) -> Rows:
    """Mean absolute error in percent, mean over (GPU, engine)."""
    found: Rows = []
    for family in FAMILIES:
        every = examples(capped(pool_of(family, quick), POOL, QUICK_ROWS if quick else ROWS), family, rows_per_slice=10**9)
        for held_out, parts in (("shapes", by_shape(every)), ("generation", by_generation(every))):
            errors: dict[str, list[float]] = {name: [] for name in LEARNERS}
            for train, test in parts:
                _score(train, test, errors, with_level=held_out == "shapes")
            found += [
                {"family": family, "held_out": held_out, "variant": name, "mape": round(float(np.mean(each)), 2)}
                for name, each in errors.items()
            ]
            say(f"  {family}: {held_out}")
    return found


def _score(train: Examples, test: Examples, errors: dict[str, list[float]], *, with_level: bool) -> None:
    gpus = tuple(sorted(set(train.gpu.tolist())))
    level, words = levels(train, gpus), vocabulary(train)
    left = train.target - level[np.searchsorted(gpus, train.gpu), train.binds]
    columns, asked = (
        np.concatenate([side.numbers, flags(side, words)[side.group_of]], axis=1).astype(np.float64) for side in (train, test)
    )
    middle, spread = columns.mean(axis=0), np.maximum(columns.std(axis=0), 1e-6)
    columns, asked = (np.clip((each - middle) / spread, -4.0, 4.0) for each in (columns, asked))
    base = level[np.searchsorted(gpus, test.gpu), test.binds] if with_level else np.zeros(len(test.target))
    slices = np.array([f"{gpu} {test.names[group]['engine']}" for gpu, group in zip(test.gpu, test.group_of, strict=True)])
    for name, fit in LEARNERS.items():
        error = 100 * np.abs(np.expm1(base + fit(columns, left, train.weight)(asked) - test.target))
        errors[name] += [float(error[slices == each].mean()) for each in np.unique(slices)]


def page(found: Rows, quick: bool) -> str:
    subset = f"{QUICK_ROWS if quick else ROWS} rows of each (family and dtype, GPU, engine)"
    return variants.page("Which learner", __doc__ or "", f"{subset}; shapes: with each GPU's level", found)


def main(given: Sequence[str] | None = None) -> int:
    return variants.command("learners", __doc__ or "", measure, page, given)


if __name__ == "__main__":
    sys.exit(main())
