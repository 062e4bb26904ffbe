"""Recorded times of configurations, served as if they were measured now."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilecast.errors import InvalidInput, MissingData
from tilecast.kernels.moe import Moe
from tilecast.tuning.space import PARAMETERS

COLUMNS = ("num_tokens", *PARAMETERS.values(), "latency_s")
PASSES = ("w13", "w2")
Key = tuple[str, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Times by pass, number of tokens and configuration; a pass that the file does not name is the first."""

    times: Mapping[Key, float]

    def time_s(self, launch: Moe, config: Mapping[str, int]) -> float | None:
        return self.times.get((str(launch.moe_pass), int(launch.num_tokens), tuple(config[name] for name in PARAMETERS.values())))


def replay_of(file: str) -> Replay:
    """A CSV file with the columns num_tokens, BLOCK_SIZE_M ... num_stages, latency_s and, if it likes, moe_pass; no time: not measured."""
    path = Path(file)
    if not path.is_file():
        raise MissingData(f"no file {path}")
    try:
        return Replay(_times(path))
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{path} is no CSV file of recorded times") from None


def _times(path: Path) -> dict[Key, float]:
    times: dict[Key, float] = {}
    with path.open(newline="", encoding="utf-8") as lines:
        table = csv.DictReader(lines)
        missing = next((name for name in COLUMNS if name not in (table.fieldnames or ())), None)
        if missing is not None:
            raise InvalidInput(f"{path} lacks the column {missing!r}; it has {', '.join(table.fieldnames or ()) or 'none'}")
        for number, row in enumerate(table, start=1):
            if not (row["latency_s"] or "").strip():
                continue
            try:
                config = tuple(int(row[name]) for name in PARAMETERS.values())
                tokens, seconds = int(row["num_tokens"]), float(row["latency_s"])
            except (TypeError, ValueError):
                raise InvalidInput(f"{path}, row {number}: num_tokens, the six parameters and latency_s must be numbers") from None
            if not 0 < seconds < 1e3:
                raise InvalidInput(f"{path}, row {number}: latency_s = {seconds} must lie between 0 and 1000 seconds")
            moe_pass = row.get("moe_pass") or "w13"
            if moe_pass not in PASSES:
                raise InvalidInput(f"{path}, row {number}: moe_pass = {moe_pass!r} must be one of {', '.join(PASSES)}")
            times[moe_pass, tokens, config] = seconds
    return times
