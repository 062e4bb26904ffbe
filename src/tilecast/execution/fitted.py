"""The fitted numbers of the analytic model: records read from `constants/*.toml`, one file per part, replaceable for what-ifs and fitting.

Nothing in them belongs to one GPU or one engine. With the few that were chosen by hand they are at most 40; a test counts them.
"""

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

FOLDER = Path(__file__).with_name("constants")

Record = TypeVar("Record")


def load(record: type[Record], name: str) -> Record:
    """`constants/<name>.toml` as a `record`, whose fields must be exactly the file's entries; each entry has a value and says why."""
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    wanted: Any = record
    names = {entry.name for entry in fields(wanted)}
    assert names == set(table), f"constants/{name}.toml and {record.__name__} disagree on {sorted(names ^ set(table))}"
    return record(**{key: float(entry["value"]) for key, entry in table.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Of the machine itself, used by every kernel; constants/machine.toml says what each one is."""

    launch_cycles: float
    launch_s: float
    fill_s: float
    drain_s: float
    dram_fraction: float
    stream_fraction: float
    multicast_bytes_per_clock_per_sm: float
    unicast_bytes_per_clock_per_sm: float
    tensor_fraction: float
    amd_fraction: float
    energy_j_per_flop: float
    energy_width_power: float
    vector_energy_j_per_flop: float
    burst_s: float
    l2_over_dram: float
    host_event_s: float


@cache
def constants() -> Constants:
    return load(Constants, "machine")
