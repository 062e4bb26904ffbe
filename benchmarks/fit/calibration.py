"""Refit learning/calibration.toml: python -m benchmarks.fit.calibration prints the values, it does not write them.

Marginal likelihood of the errors on GPUs whose whole generation was left out of training, families mixed, training shapes only.
"""

import sys
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from benchmarks.accuracy.suites.kernels_unseen import FAMILIES
from benchmarks.calibration.held_out import HeldOut, held_out
from tilecast.learning.calibration import MOST_SIZES, SHARES, FamilyPrior, Floats, Prior, Sites, joined
from tilecast.learning.features import COMMON

ROWS_PER_GPU = 120
FARTHEST = 0.7  # log: the likelihood is Gaussian, odd rows must not decide it
MOST_STEPS = 25
START = {"level": 0.15, "group": 0.08, "kernel": 0.1, "engine": 0.07, "family_shape": 0.15, "kernel_shape": 0.15, "engine_shape": 0.1,
         "own": 0.2}  # fmt: skip
START_LENGTHS = {"share bound": 1.5, "clock": 0.1, "tail": 0.5, "log waves": 4.0, "log time in launches": 5.0, "size": 6.0}
USUAL_LENGTH = 3.0
LEAST_OWN = 1e-6  # of a variance
STIFFNESS = 1e-3  # per row: how much the start is worth against the data

Sets = list[tuple[Sites, Floats]]


def fitted(entries: Sequence[HeldOut], without: str = "") -> Prior:
    """The prior from every held-out generation but `without`."""
    used = [entry for entry in entries if entry.kind == "generation" and entry.held != without]
    plain = Prior({"default": _family_prior(_guess())}, 0.5, 0.5)
    families: dict[str, FamilyPrior] = {}
    for family in FAMILIES:
        mine = [entry for entry in used if entry.family == family]
        if mine:
            families[family] = _fitted_family(_sets(mine, plain, ROWS_PER_GPU))
    families["default"] = _mean(list(families.values()))
    sets = _sets(used, plain, ROWS_PER_GPU // 3)

    def loss(between: float) -> float:
        return sum(_surprise(Prior(families, between, between), *each) for each in sets)

    between = float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"maxiter": 12}).x)
    return Prior(families, between, between)


def _sets(entries: Sequence[HeldOut], prior: Prior, most: int) -> Sets:
    """Errors of each GPU, its families together."""
    sets: Sets = []
    random = np.random.default_rng(0)
    for gpu in sorted({entry.gpu for entry in entries}):
        parts = []
        for entry in (entry for entry in entries if entry.gpu == gpu):
            rows = random.choice(len(entry.train.width), min(most, len(entry.train.width)), replace=False)
            parts.append((entry.train.sites(prior).where(rows), entry.train.offset[rows]))
        sets.append((joined([each for each, _ in parts]), np.clip(np.concatenate([each for _, each in parts]), -FARTHEST, FARTHEST)))
    return sets


def _fitted_family(sets: Sets) -> FamilyPrior:
    guess, count = _guess(), sum(len(offset) for _, offset in sets)

    def loss(values: Floats) -> float:
        prior = Prior({"default": _family_prior(values)}, 0.0, 0.0)
        return float(sum(_surprise(prior, *each) for each in sets) / count + STIFFNESS * np.sum((values - guess) ** 2))

    return _family_prior(minimize(loss, guess, method="L-BFGS-B", options={"maxiter": MOST_STEPS, "maxfun": 10**6}).x)


def _guess() -> Floats:
    lengths = [START_LENGTHS.get(name, USUAL_LENGTH) for name in (*COMMON, "size")]
    return np.asarray(np.log([*(START[name] for name in SHARES), *lengths, 1.0]))


def _family_prior(values: Floats) -> FamilyPrior:
    shares = np.exp(values[: len(SHARES)])
    lengths = np.exp(values[len(SHARES) : -1])
    each = np.concatenate([lengths[:-1], np.full(MOST_SIZES, lengths[-1])])
    return FamilyPrior(dict(zip(SHARES, (shares / shares.sum()).tolist(), strict=True)), each, float(np.exp(values[-1])))


def _mean(families: Sequence[FamilyPrior]) -> FamilyPrior:
    """For families without rows: what the others have on average, lengths by their logarithm."""
    shares = {name: float(np.mean([each.share[name] for each in families])) for name in SHARES}
    return FamilyPrior(
        shares, np.exp(np.mean([np.log(each.lengths) for each in families], axis=0)), float(np.mean([e.scale for e in families]))
    )


def _surprise(prior: Prior, found: Sites, offset: Floats) -> float:
    """Minus the log likelihood of a GPU's errors."""
    names, places = np.unique(found.family, return_inverse=True)
    spread = np.array([prior.of(str(name)).scale for name in names])[places] * found.spread
    own = np.diag(prior.own(found) + LEAST_OWN)  # else launches that are alike to the last digit leave nothing to invert
    matrix = (prior.correlation(found, found) + own) * spread[:, None] * spread[None, :]
    root = np.linalg.cholesky(matrix)
    white = np.linalg.solve(root, offset)
    return float(0.5 * white @ white + np.log(np.diag(root)).sum())


def text(prior: Prior) -> str:
    lines = [f"level_between = {prior.level_between:.3f}", f"group_between = {prior.group_between:.3f}"]
    for name, family in prior.families.items():
        lengths = zip((*COMMON, "size"), family.lengths.tolist(), strict=False)
        lines += ["", f"[family.{name}]", f"scale = {family.scale:.3f}"]
        lines += ["share = { " + ", ".join(f"{key} = {value:.4f}" for key, value in family.share.items()) + " }"]
        lines += ["length = { " + ", ".join(f'"{key}" = {value:.3g}' for key, value in lengths) + " }"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(text(fitted(held_out("--quick" in sys.argv))))
