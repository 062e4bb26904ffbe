"""What a few measurements say of a GPU: the posterior of log(measured / predicted) for any launch, in numpy alone.

Predictions of one GPU go wrong together: some of it for every kernel, some for all that the same unit binds, some for a family, for one
kernel of it, and for shapes that are alike. `FamilyPrior.share` says how much of the variance each of these is, learned from GPUs that
were held out; the variance itself is the one behind the prediction's own interval. Measurements then move what they have in common with a
launch, and narrow its interval; what is a launch's own stays. A measurement far from all others counts little (Student's t).

An observation is one launch, or a whole run: then it is a weighted sum of launches and of what the host adds.

Letters: N observations, S sites (launches that observations are made of), L launches asked for, F features.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.learning.correction import kernel_key
from tilecast.learning.features import COMMON, SIZES, Launches

Floats = NDArray[np.float64]

SHARES = ("level", "group", "kernel", "engine", "family_shape", "kernel_shape", "engine_shape", "own")
MOST_SIZES = max(map(len, SIZES.values()))
INTERVAL_SIGMAS = 1.2816  # half an 80 % interval of a Gaussian
LEAST_SPREAD = 0.06  # log: two labs' medians of one kernel are this far apart even where weights have its GPU's rows
ROW_NOISE = 0.02  # log: a median of repeated timings, measured again
FREEDOM = 4.0  # of Student's t
REWEIGHTINGS = 12
JITTER = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class FamilyPrior:
    """How errors of one family go together on a GPU: shares of the variance, and over which distance in a feature shapes stay alike."""

    share: Mapping[str, float]  # by SHARES; they add up to one
    lengths: Floats  # (F,): the common features, then one for every size
    scale: float  # of the standard deviation that the interval tells


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """One FamilyPrior each, and how much of a GPU's level is the same in every family."""

    families: Mapping[str, FamilyPrior]  # "default" for those without rows to learn from
    level_between: float
    group_between: float

    def of(self, family: str) -> FamilyPrior:
        return self.families.get(family, self.families["default"])

    def correlation(self, one: "Sites", other: "Sites") -> Floats:
        """Of what sites have in common, without each one's own part: (len(one), len(other))."""
        (share, scaled), (their_share, their_scaled) = self._looked_up(one), self._looked_up(other)
        family, kernel = _same(one.family, other.family), _same(one.kernel, other.kernel)
        engine = kernel & _same(one.engine, other.engine)

        def part(name: str) -> Floats:
            return np.asarray(share[name][:, None] * their_share[name][None, :])

        within = part("kernel") * kernel + part("engine") * engine
        within += _alike(scaled, their_scaled) * (part("family_shape") + part("kernel_shape") * kernel + part("engine_shape") * engine)
        group = (one.group[:, None] == other.group[None, :]) * part("group")
        level = part("level")
        together = np.where(family, level + group + within, self.level_between * level + self.group_between * group)
        apart = one.apart[:, None] | other.apart[None, :]
        return np.asarray(np.where(apart, (kernel & family).astype(np.float64), together))

    def _looked_up(self, of: "Sites") -> tuple[dict[str, Floats], Floats]:
        """Square roots of the shares of each site, and its features in lengths of its family."""
        names, places = np.unique(of.family, return_inverse=True)
        found = [self.of(str(name)) for name in names]
        shares = {share: np.sqrt([each.share[share] for each in found])[places] for share in SHARES}
        return shares, of.numbers / np.stack([each.lengths for each in found])[places] if len(of) else of.numbers

    def own(self, of: "Sites") -> Floats:
        """The share of each site's variance that no other site tells about."""
        names, places = np.unique(of.family, return_inverse=True)
        shares = np.array([self.of(str(name)).share["own"] for name in names])[places]
        return np.asarray(np.where(of.apart, 0.0, shares))


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """Launches as the prior sees them. Those `apart` (the host, links) share their error with their like alone."""

    family: NDArray[np.str_]
    kernel: NDArray[np.str_]
    engine: NDArray[np.str_]
    group: NDArray[np.int64]
    numbers: Floats  # (S, F)
    spread: Floats  # standard deviation of log(measured / predicted) before anything was measured
    apart: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.group)

    def where(self, chosen: NDArray[np.int64] | NDArray[np.bool_] | slice) -> "Sites":
        return Sites(*(getattr(self, name)[chosen] for name in self.__slots__))


def sites(family: str, found: Launches, width: Floats | float, prior: Prior) -> Sites:
    """Launches of one family; `width` is half the interval of their prediction."""
    length = len(found.numbers)
    numbers = np.zeros((length, len(COMMON) + MOST_SIZES))
    kept = len(COMMON) + len(SIZES.get(family, ()))
    numbers[:, :kept] = found.numbers[:, :kept]
    spread = np.maximum(prior.of(family).scale * np.broadcast_to(width, length) / INTERVAL_SIGMAS, LEAST_SPREAD)
    kernel, engine = f"{family} {kernel_key(found.names)}", found.names.get("engine", "")
    texts = np.full(length, family), np.full(length, kernel), np.full(length, engine)
    return Sites(*texts, found.group, numbers, spread, np.zeros(length, bool))


def apart(name: str, spread: float) -> Sites:
    """A site that is no work on SMs: the host's part of a step, or a link."""
    return Sites(
        np.array([name]),
        np.array([name]),
        np.array([""]),
        np.zeros(1, np.int64),
        np.zeros((1, len(COMMON) + MOST_SIZES)),
        np.array([spread]),
        np.ones(1, bool),
    )


def joined(parts: Sequence[Sites]) -> Sites:
    return Sites(*(np.concatenate([getattr(part, name) for part in parts]) for name in Sites.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """N observations of S sites: `offset` = `weights` @ (errors of the sites) + noise."""

    sites: Sites
    weights: Floats  # (N, S)
    offset: Floats  # (N,): log(measured / predicted)
    noise: Floats  # (N,): standard deviation of the measurement itself


def of_rows(measured: Sites, offset: Floats) -> Evidence:
    """One observation for each launch."""
    return Evidence(measured, np.eye(len(measured)), offset, np.full(len(measured), ROW_NOISE))


def both(one: Evidence, other: Evidence) -> Evidence:
    weights = np.zeros((len(one.offset) + len(other.offset), len(one.sites) + len(other.sites)))
    weights[: len(one.offset), : len(one.sites)] = one.weights
    weights[len(one.offset) :, len(one.sites) :] = other.weights
    noise, offset = (np.concatenate([getattr(one, name), getattr(other, name)]) for name in ("noise", "offset"))
    return Evidence(joined([one.sites, other.sites]), weights, offset, noise)


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What was measured, ready to be asked about any launch."""

    prior: Prior
    evidence: Evidence
    pull: Floats  # (N,): what each observation adds to a launch with which it has everything in common
    root: Floats  # (N, N): inverse of the Cholesky factor of the observations' covariance
    trust: Floats  # (N,): how much an observation counts; an outlier little

    def shift(self, asked: Sites) -> tuple[Floats, Floats]:
        """(L,) the error to expect of each launch's prediction, and its standard deviation."""
        common = self.covariance(asked)
        mean = common @ self.pull
        known = np.sum((common @ self.root.T) ** 2, axis=1)
        return mean, np.sqrt(np.maximum(asked.spread**2 - known, 0.0))

    def covariance(self, asked: Sites) -> Floats:
        """Of launches and observations: (L, N)."""
        held = self.evidence.sites
        common = self.prior.correlation(asked, held) * asked.spread[:, None] * held.spread[None, :]
        return np.asarray(common @ self.evidence.weights.T)


def posterior(evidence: Evidence, prior: Prior) -> Posterior:
    """Condition the prior on the evidence; the order of observations does not matter."""
    held, weights = evidence.sites, evidence.weights
    smooth = weights @ (prior.correlation(held, held) * held.spread[:, None] * held.spread[None, :]) @ weights.T
    noise = weights**2 @ (prior.own(held) * held.spread**2) + evidence.noise**2 + JITTER
    single = (weights != 0).sum(axis=1) == 1  # only single launches can be told to be odd by their like
    trust = np.ones(len(noise))
    for _ in range(REWEIGHTINGS if single.any() else 0):
        left = evidence.offset - smooth @ np.linalg.solve(smooth + np.diag(noise / trust), evidence.offset)
        trust = np.where(single, np.minimum((FREEDOM + 1.0) / (FREEDOM + left**2 / noise), 1.0), 1.0)
    root = np.linalg.inv(np.linalg.cholesky(smooth + np.diag(noise / trust)))
    return Posterior(prior, evidence, root.T @ (root @ evidence.offset), root, trust)


@cache
def shipped() -> Prior:
    """The prior of the package, from calibration.toml."""
    return prior_from(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))


def prior_from(table: Mapping[str, Any]) -> Prior:
    families = {name: _family_prior(entry) for name, entry in table["family"].items()}
    families |= {name: families[other] for name, other in table["like"].items()}
    return Prior(families, float(table["level_between"]), float(table["group_between"]))


def _family_prior(table: Mapping[str, Any]) -> FamilyPrior:
    share, lengths = table["share"], table["length"]
    assert set(share) == set(SHARES) and set(lengths) == {*COMMON, "size"}, "calibration.toml has other names than the model"
    each = [float(lengths[name]) for name in COMMON] + [float(lengths["size"])] * MOST_SIZES
    return FamilyPrior({name: share[name] / sum(share.values()) for name in SHARES}, np.array(each), float(table["scale"]))


def _same(one: NDArray[np.str_], other: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Equal names, compared as numbers: there are few names and many launches."""
    codes = {name: place for place, name in enumerate(dict.fromkeys([*np.unique(one).tolist(), *np.unique(other).tolist()]))}
    first, second = (_codes(names, codes) for names in (one, other))
    return np.asarray(first[:, None] == second[None, :])


def _codes(names: NDArray[np.str_], codes: Mapping[str, int]) -> NDArray[np.int64]:
    found, places = np.unique(names, return_inverse=True)
    return np.array([codes[name] for name in found.tolist()], dtype=np.int64)[places]


def _alike(one: Floats, other: Floats) -> Floats:
    distance = np.sum(one**2, axis=1)[:, None] + np.sum(other**2, axis=1)[None, :] - 2.0 * one @ other.T
    return np.asarray(np.exp(-0.5 * np.maximum(distance, 0.0)))
