"""Rows of GPUs whose weights were fitted without them: what calibration starts from, and what it is scored on.

Training shapes teach the weights (on other GPUs) and calibrate (on this one); held-out shapes are scored. The spread of errors, and how
much of the shared trees carries over, come from the other generations' held-out rows, as `tilecast fit` does it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy.progress import say
from benchmarks.accuracy.scoring import SEED, capped
from benchmarks.accuracy.suites.kernels_indist import rows
from benchmarks.accuracy.suites.kernels_unseen import FAMILIES, GPUS, POOL
from tilecast import hardware
from tilecast.datasets import splits
from tilecast.learning import training
from tilecast.learning.calibration import Floats, Prior, Sites, joined, sites
from tilecast.learning.correction import Correction
from tilecast.learning.examples import BY_ROW, Examples, examples
from tilecast.learning.features import COMMON, Launches
from tilecast.learning.intervals import with_intervals

ROWS = {"gemm": (1000, 300), "moe": (500, 150)}  # of one (group, GPU, engine): training, test
DEFAULT_ROWS = (700, 200)
QUICK_ROWS = (40, 15)
BOUND = COMMON.index("share bound")
SETTINGS = training.Settings(shared_rows=10**9)
NOT_SCORED = ("xe2",)  # one engine and one GPU: it teaches, but says nothing of how errors go together


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Measured launches of one family and GPU: what the weights say of them, and how far off that is."""

    family: str
    examples: Examples
    predicted: Floats  # log(median / analytic) before calibration
    width: Floats

    @property
    def offset(self) -> Floats:
        return np.asarray(self.examples.target - self.predicted)

    @property
    def engine(self) -> np.ndarray:
        return np.array([self.examples.names[group]["engine"] for group in self.examples.group_of])

    @property
    def group(self) -> np.ndarray:
        """Number formats, as the accuracy suites tell rows apart; an engine's kernels stand together."""
        formats = [(names["dtype"], names.get("kv_dtype", "")) for names in self.examples.names]
        return np.array([" ".join(formats[group]).strip() for group in self.examples.group_of])

    def sites(self, prior: Prior) -> Sites:
        order, parts = np.arange(len(self.width)), []
        found = self.examples
        for group in np.unique(found.group_of):
            mine = order[found.group_of == group]
            launches = Launches(found.numbers[mine], found.names[group], found.binds[mine])
            parts.append((mine, sites(self.family, launches, self.width[mine], prior)))
        places = np.argsort(np.concatenate([mine for mine, _ in parts]))
        return joined([part for _, part in parts]).where(places)

    def errors(self, shift: Floats) -> Floats:
        """|predicted - measured| / measured of each row, with `shift` on top; never below the bound."""
        median = np.maximum(self.predicted + shift, self.examples.numbers[:, BOUND])
        return np.asarray(np.abs(np.expm1(median - self.examples.target)))


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """One family on one GPU, with weights fitted without it: `kind` is generation or gpu (siblings out)."""

    kind: str
    held: str  # the generation, or the GPU
    gpu: str
    family: str
    train: Rows
    test: Rows


def held_out(quick: bool = False) -> list[HeldOut]:
    return [entry for family in FAMILIES for entry in of_family(family, quick)]


def of_family(family: str, quick: bool) -> list[HeldOut]:
    train, test = _examples(family, quick)
    gpus = sorted(set(train.gpu.tolist()) & set(test.gpu.tolist()))
    archs = sorted({hardware.gpu(gpu).arch for gpu in gpus})
    sets = [("generation", arch, [gpu for gpu in gpus if hardware.gpu(gpu).arch == arch]) for arch in archs]
    sets += [("gpu", gpu, [gpu]) for gpu in GPUS if gpu in gpus]
    found: list[tuple[str, str, str, Correction, Examples, Examples]] = []
    for kind, held, members in sets:
        out = members if kind == "generation" else splits.same_die(held)
        keep = ~np.isin(train.gpu, out)
        if not keep.any():
            continue
        correction = training.fit_once(train.where(keep), family, SETTINGS, own=())  # a held-out GPU has no trees of its own
        for gpu in members:
            sides = [side.where(side.gpu == gpu) for side in (train, test)]
            found.append((kind, held, gpu, correction, *sides))
        say(f"  {family}: fitted without {held}")
    return [entry for entry in _priced(family, found) if hardware.gpu(entry.gpu).arch not in NOT_SCORED]


def _priced(family: str, found: list[tuple[str, str, str, Correction, Examples, Examples]]) -> Iterator[HeldOut]:
    """Carry and widths of each from the generations that it does not belong to."""
    generations = {
        gpu: (held, training.tested_on(correction, train)) for kind, held, gpu, correction, train, _ in found if kind == "generation"
    }
    for kind, held, gpu, correction, *sides in found:
        tested = _together([tested for arch, tested in generations.values() if arch != hardware.gpu(gpu).arch])
        carry = training.best_carry(tested)
        carried = with_intervals(replace(correction, carry=carry), {"unseen-generation": tested.residuals(carry)})
        answers = [training.tested_on(carried, side) for side in sides]
        train, test = (Rows(family, answer.rows, answer.predicted, answer.width) for answer in answers)
        yield HeldOut(kind, held, gpu, family, train, test)


def _together(parts: Sequence[training.Tested]) -> training.Tested:
    """Rows of several GPUs, whose groups of names are numbered alike."""
    joined_rows: dict[str, Any] = {name: np.concatenate([getattr(part.rows, name) for part in parts]) for name in BY_ROW}
    rows = replace(parts[0].rows, **joined_rows)
    return training.Tested(rows, *(np.concatenate([getattr(part, name) for part in parts]) for name in ("predicted", "width")))


def _examples(family: str, quick: bool) -> tuple[Examples, Examples]:
    found = rows(family)
    if family == "gemm":
        found = found.filter((pl.col("group") == "gemm bf16") & (pl.col("n") >= 512) & (pl.col("k") >= 512))
    train, test, _ = splits.by_shape(found, family, test_fraction=0.2, seed=SEED)
    most = QUICK_ROWS if quick else ROWS.get(family, DEFAULT_ROWS)
    read = partial(examples, family=family, rows_per_slice=10**9)
    one, other = read(capped(train, POOL, most[0])), read(capped(test, POOL, most[1]))
    # Both sides number their groups of names from zero; one list serves both.
    names = one.names + other.names
    return replace(one, names=names), replace(other, names=names, group_of=other.group_of + len(one.names))
