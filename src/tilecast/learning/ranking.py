"""A learned ranking of launch configurations: which is likely within 1 % of the best, and what the best gains over a default.

A GPU that was searched has trees of its own on top of those that all share. For GPUs nobody searched there are trees that only choose among
configurations that were good for some problem somewhere: what was never good on any GPU is not tried on a new one.
Numpy alone evaluates it; `tuning/training.py` fits it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import MissingData
from tilecast.learning import tensors
from tilecast.learning.manifests import FOLDER
from tilecast.learning.trees import Grove, Trees, forest, grove

SCHEMA = "tilecast.ranking/2"
SHARED, ABROAD = "shared", "abroad"  # trees of all searched GPUs, and those for GPUs that nobody searched
UNPROVEN = 100.0  # logit that a configuration loses abroad: below all that were good somewhere, and in their own order
PARTS = ("feature", "threshold", "leaf", "scale")  # of a Grove
NONE = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """`chance` are sets of trees for the logit of being good, `gain` for log(default / best): SHARED, and one for each searched GPU.

    `chance` has ABROAD too; `proven` (K, parameters) are the configurations that were good for some problem.
    """

    kernel: str
    features: tuple[str, ...]
    chance: Grove
    gain: Grove
    proven: NDArray[np.int64]
    width: Mapping[str, float]  # basis -> half the 80 % interval of the log gain
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.chance.where if name not in (SHARED, ABROAD))

    def basis(self, gpu: str) -> str:
        return "interpolated" if gpu in self.gpus else "unseen-gpu"

    def logit(self, numbers: NDArray[np.float32], gpu: str, configs: NDArray[np.int64]) -> NDArray[np.float64]:
        """How likely each configuration is good, by what it asks for (rows of `numbers`) and what it is (of `configs`)."""
        if gpu in self.gpus:
            return np.asarray(_summed(self.chance, numbers, (SHARED, gpu)))
        logit = np.asarray(_summed(self.chance, numbers, (ABROAD,)))
        return np.where(is_among(configs, self.proven), logit, logit - UNPROVEN)

    def log_gain(self, numbers: NDArray[np.float32], gpu: str) -> NDArray[np.float64]:
        """log(time of the default / time of the best), given what the default asks of the machine; never below 0."""
        return np.asarray(np.maximum(_summed(self.gain, numbers, (SHARED, gpu)), 0.0))


def is_among(configs: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows of `configs` are rows of `known`, too."""
    place = 1024 ** np.arange(configs.shape[1])  # one number for six parameters that are all smaller than that
    return np.isin(configs @ place, known @ place)


def _summed(sets: Grove, numbers: NDArray[np.float32], names: tuple[str, ...]) -> Any:
    parts = [sets.trees(name) for name in names if name in sets]
    return forest(parts, numbers.shape[1], NONE).predict(numbers)


def ranking_of(kernel: str, features: tuple[str, ...], chance: Mapping[str, Trees], gain: Mapping[str, Trees], **facts: Any) -> Ranking:
    return Ranking(kernel, features, grove(chance), grove(gain), **facts)


def path_of(kernel: str, folder: Path = FOLDER) -> Path:
    return folder / f"{kernel}_tuning.safetensors"


def write(ranking: Ranking, folder: Path) -> Path:
    arrays: dict[str, np.ndarray] = {}
    for name, sets in (("chance", ranking.chance), ("gain", ranking.gain)):
        arrays |= {f"{name}.{part}": getattr(sets, part) for part in PARTS}
    arrays["proven"] = ranking.proven.astype(np.int32)
    index = {
        "schema": SCHEMA, "kernel": ranking.kernel, "features": list(ranking.features), "width": dict(ranking.width),
        "where": {name: {key: list(rows) for key, rows in sets.where.items()} for name, sets in
                  (("chance", ranking.chance), ("gain", ranking.gain))},
    }  # fmt: skip
    path = path_of(ranking.kernel, folder)
    tensors.write_stated(path, arrays, {"index": json.dumps(index, sort_keys=True)}, ranking.manifest)
    return path


@lru_cache(maxsize=8)
def read(path: Path) -> Ranking:
    if not path.is_file():
        raise MissingData(f"no ranking of configurations: {path.name} is not among the artifacts")
    arrays, metadata = tensors.read(path)
    try:
        index = json.loads(metadata["index"])
        if index["schema"] != SCHEMA:
            raise ValueError(f"schema {index['schema']}")
        sets = {
            name: Grove(**{part: arrays[f"{name}.{part}"] for part in PARTS}, where=index["where"][name]) for name in ("chance", "gain")
        }
        manifest = tensors.manifest_of(path)
        proven = arrays["proven"].astype(np.int64)
        return Ranking(index["kernel"], tuple(index["features"]), sets["chance"], sets["gain"], proven, index["width"], manifest)
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as problem:
        raise MissingData(f"{path} is damaged or of another version ({problem}): {tensors.ADVICE[:-1]} moe-tuning'") from None
