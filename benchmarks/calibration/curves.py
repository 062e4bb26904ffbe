"""Learning curves: error on held-out shapes of a held-out GPU after 0, 1, 5, 20 and 100 of its kernels were measured."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.accuracy.progress import say
from benchmarks.calibration.held_out import HeldOut
from benchmarks.fit.calibration import fitted
from tilecast import hardware
from tilecast.engines.measurement import greedy
from tilecast.learning.calibration import Floats, Prior, Sites, of_rows, posterior, shipped

COUNTS = (0, 1, 5, 20, 100)
DRAWS = 3
MOST_PLANNED = 20
MOST_OFFERED, MOST_ASKED = 400, 200  # launches between which a plan chooses, and those it chooses for


@dataclass(frozen=True, slots=True)
class Point:
    """One family, GPU, engine and number format after `measured` of its own kernels."""

    held_out: str
    family: str
    gpu: str
    engine: str
    group: str
    choice: str  # random or planned
    measured: int
    draw: int
    error: float
    inside: float  # share within the 80 % interval
    width: float  # mean half interval, log

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def points(entries: Sequence[HeldOut], draws: int = DRAWS, counts: Sequence[int] = COUNTS, *, quick: bool = False) -> Iterator[Point]:
    """Each slice by itself: kernels of one engine and number format calibrate, and are scored. `quick` takes the package's prior."""
    priors: dict[str, Prior] = {}
    for entry in entries:
        arch = hardware.gpu(entry.gpu).arch
        if arch not in priors:
            say(f"  {'the prior of the package' if quick else 'prior fitted'} for {arch}")
            priors[arch] = shipped() if quick else fitted(entries, without=arch)
        yield from _of_entry(entry, priors[arch], draws, counts)


def _of_entry(entry: HeldOut, prior: Prior, draws: int, counts: Sequence[int]) -> Iterator[Point]:
    train, test = entry.train, entry.test
    offered, asked = train.sites(prior), test.sites(prior)
    sides = [list(zip(rows.engine.tolist(), rows.group.tolist(), strict=True)) for rows in (train, test)]
    for slice_ in sorted(set(sides[1])):
        pool, mine = (np.flatnonzero([each == slice_ for each in side]) for side in sides)
        if len(pool) < max(counts) or not len(mine):
            continue
        picks = [("random", draw, np.random.default_rng([draw, 1]).permutation(pool)) for draw in range(draws)]
        picks.append(("planned", 0, _planned(offered, prior, pool, max(count for count in counts if count <= MOST_PLANNED))))
        for choice, draw, order in picks:
            for count in (count for count in counts if count <= len(order)):
                shift, spread = np.zeros(len(mine)), asked.where(mine).spread
                if count:
                    rows = order[:count]
                    shift, spread = posterior(of_rows(offered.where(rows), train.offset[rows]), prior).shift(asked.where(mine))
                yield _point(entry, slice_, choice, draw, count, mine, shift, test.width[mine] * spread / asked.where(mine).spread)


def _planned(launches: Sites, prior: Prior, pool: np.ndarray, count: int) -> np.ndarray:
    """The rows that a plan would measure: greedy, for launches like those of the slice; measured times are not looked at."""
    shuffled = np.random.default_rng(2).permutation(pool)
    offered, asked = launches.where(shuffled[:MOST_OFFERED]), launches.where(shuffled[-MOST_ASKED:])
    chosen, _ = greedy(asked, np.full(len(asked), 1.0 / len(asked)), offered, min(count, len(offered)), prior)
    return np.asarray(shuffled[chosen])


def _point(
    entry: HeldOut, slice_: tuple[str, str], choice: str, draw: int, count: int, mine: np.ndarray, shift: Floats, width: Floats
) -> Point:
    whole = np.zeros(len(entry.test.width))
    whole[mine] = shift
    error = entry.test.errors(whole)[mine]
    inside = np.abs(entry.test.offset[mine] - shift) <= width
    return Point(
        held_out=entry.kind, family=entry.family, gpu=entry.gpu, engine=slice_[0], group=slice_[1], choice=choice, measured=count,
        draw=draw, error=float(error.mean()), inside=float(inside.mean()), width=float(width.mean()),
    )  # fmt: skip
