"""A profile: what was measured on one GPU, ready to correct every prediction on it. A JSON file, written by `tilecast calibrate`.

The basis of a prediction stays what it was: it tells what the weights were trained on, and a profile trains none. That a profile was used
stands in the answer's inputs, by its id. A profile never widens an interval; the law of doubling may, where it holds the median back.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

import tilecast
from tilecast.errors import InvalidInput, MissingData
from tilecast.hardware import GpuSpec, catalogue_hash
from tilecast.learning.calibration import INTERVAL_SIGMAS, Evidence, Floats, Posterior, Sites, apart, posterior, shipped
from tilecast.learning.correction import load
from tilecast.learning.features import SIZES
from tilecast.learning.manifests import artifacts_hash

SCHEMA = "tilecast.profile/1"
HOST = "host"
SITE_TYPES = {"family": np.str_, "kernel": np.str_, "engine": np.str_, "group": np.int64, "numbers": np.float64, "spread": np.float64,
              "apart": np.bool_}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Measurements of one GPU. `made_with` says which weights and facts their errors are counted from."""

    gpu: str
    date: str
    num_rows: int
    num_runs: int
    made_with: Mapping[str, str]
    evidence: Evidence

    @cached_property
    def posterior(self) -> Posterior:
        return posterior(self.evidence, shipped())

    @cached_property
    def id(self) -> str:
        """Eight hex digits that change with what was measured, and with nothing else."""
        content = self.content()
        return _digest({name: content[name] for name in ("gpu", "sites", "observations")})[:8]

    def adjust(self, asked: Sites, width: Floats | float) -> tuple[Floats, Floats]:
        """(L,) what to add to log(median) of each launch, and half its interval: narrower as the spread became."""
        mean, spread = self.posterior.shift(asked)
        return mean, np.asarray(width * spread / asked.spread)

    def host(self, phase: str, spread: float) -> tuple[float, float]:
        """The factor on what the host adds to a step, and half its interval in log."""
        mean, left = self.posterior.shift(apart(f"{HOST} {phase}", spread))
        return float(np.exp(mean[0])), INTERVAL_SIGMAS * float(left[0])

    @property
    def words(self) -> str:
        counts = [
            f"{number} {what}{'s' if number > 1 else ''}" for number, what in ((self.num_rows, "kernel"), (self.num_runs, "run")) if number
        ]
        return f"{' and '.join(counts)} measured on {self.gpu}, {self.date}"

    def told(self) -> dict[str, Any]:
        """What an answer says of the profile it was made with."""
        return {"id": self.id, "gpu": self.gpu, "rows": self.num_rows, "runs": self.num_runs, "date": self.date}

    def content(self) -> dict[str, Any]:
        """The file without its hash."""
        held = self.evidence.sites
        weights = [[[int(place), float(row[place])] for place in np.flatnonzero(row)] for row in self.evidence.weights]
        return {
            "schema": SCHEMA, "gpu": self.gpu, "date": self.date, "rows": self.num_rows, "runs": self.num_runs,
            "made_with": dict(self.made_with),
            "sites": {name: getattr(held, name).tolist() for name in SITE_TYPES},
            "observations": {"weights": weights, "offset": self.evidence.offset.tolist(), "noise": self.evidence.noise.tolist()},
        }  # fmt: skip


def made(gpu: GpuSpec, evidence: Evidence, *, num_rows: int = 0, num_runs: int = 0) -> Profile:
    """A profile of today, counted from the weights and facts of this installation."""
    return Profile(
        gpu=gpu.id, date=date.today().isoformat(), num_rows=num_rows, num_runs=num_runs, made_with=_here(), evidence=evidence
    )  # fmt: skip


def opened(given: "Profile | str | Path | None", gpu: GpuSpec) -> Profile | None:
    """The profile itself or read from its file; one of another GPU is refused."""
    if not isinstance(given, str | Path | Profile | None) or given == "":
        raise InvalidInput(f"profile = {given!r} must be the path of a file that 'tilecast calibrate' wrote, or a Profile")
    found = read(Path(given).resolve()) if isinstance(given, str | Path) else given
    if found is not None and found.gpu != gpu.id:
        raise InvalidInput(
            f"the profile {_shown(given)} was measured on {found.gpu}, not on {gpu.id}: predict for {found.gpu}, or calibrate again"
        )
    return found


@cache
def read(path: Path) -> Profile:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingData(f"no profile {path.name} in {path.parent}") from None
    except (OSError, ValueError) as problem:
        raise MissingData(f"{path.name} is damaged or no profile: {problem}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise MissingData(f"{path.name} has the schema {schema!r}, this version reads {SCHEMA!r}: run 'tilecast calibrate' again")
    told = content.pop("sha256", None)
    if told != _digest(content):
        raise MissingData(f"{path.name} does not have the hash it states, it was changed or cut: run 'tilecast calibrate' again")
    found = _from(content)
    if stale := [name for name, now in _here().items() if found.made_with.get(name) != now]:
        was, now = found.made_with.get(stale[0]), _here()[stale[0]]
        raise MissingData(
            f"{path.name} was made with other {stale[0]} ({was}, here {now}): run 'tilecast calibrate' again on the same rows"
        )
    return found


def write(profile: Profile, path: Path) -> None:
    """Under a temporary name first, so that a failure leaves what was there."""
    content = profile.content()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_text(json.dumps({**content, "sha256": _digest(content)}) + "\n", encoding="utf-8", newline="\n")
        temporary.replace(path)
    except OSError as problem:
        raise InvalidInput(f"{str(path)!r} cannot be written: {(problem.strerror or str(problem)).lower()}") from None
    finally:
        temporary.unlink(missing_ok=True)
    read.cache_clear()


def _from(content: Mapping[str, Any]) -> Profile:
    found, seen = content["sites"], content["observations"]
    sites = Sites(**{name: np.array(found[name], dtype=kind) for name, kind in SITE_TYPES.items()})
    weights = np.zeros((len(seen["offset"]), len(sites)))
    for row, entries in enumerate(seen["weights"]):
        for place, weight in entries:
            weights[row, place] = weight
    evidence = Evidence(sites, weights, np.array(seen["offset"], float), np.array(seen["noise"], float))
    return Profile(
        gpu=content["gpu"], date=content["date"], num_rows=content["rows"], num_runs=content["runs"], made_with=content["made_with"],
        evidence=evidence,
    )  # fmt: skip


def _here() -> dict[str, str]:
    """What errors are measured against. Weights that cannot be read are other weights: predictions are physics alone then."""
    return {
        "tilecast": tilecast.__version__,
        "catalogue": catalogue_hash(),
        "artifacts": " without ".join([artifacts_hash(), *_unreadable()]),
    }


@cache
def _unreadable() -> tuple[str, ...]:
    return tuple(family for family in SIZES if not _is_readable(family))


def _is_readable(family: str) -> bool:
    try:
        return load(family) is not None
    except MissingData:
        return False


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _shown(given: object) -> str:
    return Path(given).name if isinstance(given, str | Path) else "given"
