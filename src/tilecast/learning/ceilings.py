"""How fast well-made kernels get: quantiles of log(measured / analytic) given what a launch demands, and no name of any kernel.

A location and a spread are learned from the shares of the analytic time; every quantile is the location plus the spread times a number
that held-out rows fixed, so quantiles never cross and hold as often as they say. On a GPU nobody measured the spread is wider: its level is
not known either. Numpy alone evaluates it; `ceiling_training.py` fits it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import InvalidInput, MissingData
from tilecast.hardware import GpuSpec
from tilecast.learning import tensors
from tilecast.learning.features import COMMON, GROUPS, Launches
from tilecast.learning.manifests import FOLDER
from tilecast.learning.trees import Grove, Trees, grove

SCHEMA = "tilecast.ceiling/2"
PARTS = ("feature", "threshold", "leaf", "scale")  # of a Grove
LEAST_SPREAD = 0.01  # log: rows are not known better than this
WORK = ("dtype", "kv_dtype", "moe_pass", "distribution", "causal")  # names of what is asked for; never of the kernel or engine that does it
KIND = ("dtype", "moe_pass")  # of these, what has levels of its own
ANY = "*"
QUANTILES = tuple(round(0.01 * step, 2) for step in range(1, 100))  # of efficiency

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling:
    """One family. `score` has, for each basis and for slots with many rows, how many spreads each of QUANTILES lies above the location."""

    family: str
    slots: tuple[str, ...]  # what has a level of its own: a GPU and the work, the work on any GPU, anything
    words: Mapping[str, list[str]]  # name of the work -> its values among the rows
    level: Floats  # (slots, groups)
    location: Trees
    spread: Trees
    score: Mapping[str, Floats]
    between: float = 0.0  # log: how far the level of a GPU lies from what the other GPUs' rows say, one standard deviation
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def basis(self, gpu: str, names: Mapping[str, str]) -> str:
        return "interpolated" if slot_of(gpu, names) in self.slots else "unseen-gpu"

    def log_ratio(self, asked: Launches, gpu: str, quantile: float) -> Floats:
        """log(time at that quantile of efficiency / analytic time), for each launch."""
        check_quantile(quantile)
        centre, spread = self.centre(asked, gpu)
        if self.basis(gpu, asked.names) == "unseen-gpu":
            spread = np.hypot(spread, self.between)
        return centre + spread * float(np.interp(quantile, QUANTILES, self._scores(gpu, asked.names)))

    def _scores(self, gpu: str, names: Mapping[str, str]) -> Floats:
        """Those of the slot where enough of its rows were held out, else those of all rows."""
        return self.score.get(slot_of(gpu, names), self.score[self.basis(gpu, names)])

    def centre(self, asked: Launches, gpu: str) -> tuple[Floats, Floats]:
        known = (slot_of(gpu, asked.names), slot_of(ANY, asked.names), ANY)
        place = self.slots.index(next(slot for slot in known if slot in self.slots))
        flags = [float(asked.names.get(name) == value) for name, values in self.words.items() for value in values]
        numbers = with_flags(asked.numbers, np.broadcast_to(np.array(flags, np.float32), (len(asked.numbers), len(flags))))
        centre = self.level[place, asked.group] + self.location.predict(numbers)
        return centre, np.maximum(self.spread.predict(numbers), LEAST_SPREAD)


def well_made(kernel: Any, gpu: GpuSpec) -> Any:
    """The work of a kernel, as a ceiling prices it: where a kernel's file knows how it is done well, without what this one chose."""
    return kernel.well_made(gpu) if hasattr(kernel, "well_made") else kernel


def slot_of(gpu: str, names: Mapping[str, str]) -> str:
    """A GPU and the kind of work: labs and kernels of different formats and passes have levels of their own."""
    return " ".join((gpu, *(names.get(name, "-") for name in KIND)))


def with_flags(numbers: NDArray[np.float32], flags: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a ceiling looks at: the shares of the analytic time, and which work it is."""
    return np.concatenate([numbers[:, : len(COMMON)], flags], axis=1)


def check_quantile(quantile: float) -> None:
    if not QUANTILES[0] <= quantile <= QUANTILES[-1]:
        raise InvalidInput(f"quantile = {quantile} must lie between {QUANTILES[0]} and {QUANTILES[-1]}")


def path_of(folder: Path = FOLDER) -> Path:
    return folder / "ceiling.safetensors"


def write(ceilings: Mapping[str, Ceiling], folder: Path) -> Path:
    """All families in one small file, and its manifest."""
    sets: dict[str, Trees] = {}
    arrays: dict[str, np.ndarray] = {}
    families: dict[str, Any] = {}
    for family, one in ceilings.items():
        sets |= {f"{family} location": one.location, f"{family} spread": one.spread}
        arrays |= {f"{family}.level": one.level.astype(np.float32)}
        arrays |= {f"{family}.score.{basis}": np.asarray(values, np.float32) for basis, values in one.score.items()}
        families[family] = {"slots": list(one.slots), "bases": list(one.score), "words": dict(one.words), "between": one.between}
    packed = grove(sets)
    arrays |= {f"trees.{part}": getattr(packed, part) for part in PARTS}
    index = {"schema": SCHEMA, "families": families, "where": {name: list(rows) for name, rows in packed.where.items()}}
    path = path_of(folder)
    manifest = {family: dict(one.manifest) for family, one in ceilings.items()}
    tensors.write_stated(path, arrays, {"index": json.dumps(index, sort_keys=True)}, manifest)
    return path


@lru_cache(maxsize=4)
def read(path: Path) -> dict[str, Ceiling]:
    if not path.is_file():
        raise MissingData(f"no ceilings: {path.name} is not among the artifacts")
    arrays, metadata = tensors.read(path)
    try:
        index = json.loads(metadata["index"])
        if index["schema"] != SCHEMA:
            raise ValueError(f"schema {index['schema']}")
        packed = Grove(**{part: arrays[f"trees.{part}"] for part in PARTS}, where=index["where"])
        manifest = tensors.manifest_of(path)
        return {
            family: Ceiling(
                family, tuple(facts["slots"]), facts["words"], arrays[f"{family}.level"].astype(np.float64).reshape(-1, len(GROUPS)),
                packed.trees(f"{family} location"), packed.trees(f"{family} spread"),
                {basis: arrays[f"{family}.score.{basis}"].astype(np.float64) for basis in facts["bases"]}, float(facts["between"]),
                manifest[family],
            )
            for family, facts in index["families"].items()
        }  # fmt: skip
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as problem:
        raise MissingData(f"{path} is damaged or of another version ({problem}): {tensors.ADVICE[:-1]} ceiling'") from None
