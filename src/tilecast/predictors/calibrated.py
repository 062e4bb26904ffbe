"""From measured kernels to a profile: each row beside its prediction, and what launches look like to a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tilecast import hardware
from tilecast.errors import InvalidInput, MissingData, TilecastError, shown
from tilecast.execution import Priced, Protocol
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import checked_engine, priced
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning import profiles
from tilecast.learning.calibration import INTERVAL_SIGMAS, Evidence, Floats, Sites, apart, joined, of_rows, shipped, sites
from tilecast.learning.features import asked_names, launches
from tilecast.learning.profiles import Profile
from tilecast.predictors.kernel import KernelPrediction, as_asked, predict_kernel

MOST_ROWS = 2000
SHORTEST_S, LONGEST_S = 1e-8, 1e3
FASTEST = 0.7  # of the bound: a chip may boost a little above its facts, not more
SLOWEST = 30.0  # times the prediction
TIMING = ("timer", "cache", "engine")


def sites_of(kernel: Any, gpu: GpuSpec, found: Priced, protocol: Protocol, engine: str, width: Floats | float) -> Sites:
    """Launches as a profile sees them; a collective is a matter of its links, apart from everything on SMs."""
    if hasattr(kernel, "analyse"):
        node = getattr(kernel.node, "id", kernel.node)
        one = apart(f"{kernel.family} {kernel.identity} {node}", float(np.max(width)) / INTERVAL_SIGMAS)
        return one.where(np.zeros(np.size(found.analytic_s), np.int64))
    asked = launches(kernel, gpu, found, protocol, engine)
    return sites(kernel.family, replace(asked, names=asked_names(kernel, gpu, asked.names)), width, shipped())


def sites_of_prediction(predicted: KernelPrediction, engine: str = "sglang") -> Sites:
    """The same for a kernel that was predicted."""
    run = as_asked(predicted.kernel, predicted.gpu, engine)
    found = priced(run, predicted.gpu, predicted.protocol)
    width = np.log(predicted.high_s / np.maximum(predicted.learned_s, predicted.median_s))
    return sites_of(run, predicted.gpu, found, predicted.protocol, engine, width)


def profile_from_rows(rows: Sequence[Mapping[str, Any]], gpu: str | GpuSpec) -> Profile:
    """A profile of `gpu` from its rows: the columns of `tilecast kernels` plus measured_s. Rows of other GPUs are left out."""
    spec = hardware.gpu(gpu)
    evidence, used = evidence_from_rows(rows, spec)
    return profiles.made(spec, evidence, num_rows=used)


def evidence_from_rows(rows: Sequence[Mapping[str, Any]], gpu: GpuSpec) -> tuple[Evidence, int]:
    """Each launch's error, the median of those measured more than once; and how many rows were used."""
    for name in ("family", "measured_s"):
        if rows and name not in rows[0]:
            raise InvalidInput(f"the column {name!r} is missing; it has {', '.join(rows[0])}")
    rows = [{**row, "gpu": row.get("gpu") or gpu.id} for row in rows]  # a row that names none is of this one
    names = {str(row["gpu"]) for row in rows}
    named = {name: name if name == gpu.id else hardware.gpu(name).id for name in names}  # a user's own GPU is in no catalogue
    mine = [(place, row) for place, row in enumerate(rows) if named[str(row["gpu"])] == gpu.id]
    if not mine:
        others = ", ".join(sorted(set(named.values()))) or "none"
        raise MissingData(f"no rows of {gpu.id} to calibrate with; rows of: {others}")
    if len(mine) > MOST_ROWS:
        raise InvalidInput(
            f"{len(mine):,} rows are more than the {MOST_ROWS:,} a profile holds: use 'tilecast fit --sources' for whole sweeps"
        )
    found: dict[str, tuple[Sites, list[float]]] = {}
    for place, row in mine:
        try:
            site, offset = _measured(row, gpu)
        except TilecastError as problem:
            raise type(problem)(f"row {place + 1}: {problem}") from None
        key = repr([values.tolist() for values in (getattr(site, name) for name in Sites.__slots__)])
        found.setdefault(key, (site, []))[1].append(offset)
    ordered = [found[key] for key in sorted(found)]  # so that the order of rows changes nothing, not even a rounding
    offsets = np.array([float(np.median(each)) for _, each in ordered])
    return of_rows(joined([site for site, _ in ordered]), offsets), len(mine)


def _measured(row: Mapping[str, Any], gpu: GpuSpec) -> tuple[Sites, float]:
    """The row's launch, and log(measured / predicted)."""
    measured_s = row["measured_s"]
    is_number = isinstance(measured_s, int | float) and not isinstance(measured_s, bool)
    if not is_number or not SHORTEST_S <= measured_s <= LONGEST_S:
        told = "empty" if measured_s is None else measured_s if isinstance(measured_s, str) else shown(measured_s)
        raise InvalidInput(f"measured_s = {told} must be seconds between {SHORTEST_S:g} and {LONGEST_S:g}")
    if not row["family"]:
        raise InvalidInput("family is empty")
    record = kernel_record(str(row["family"]))
    if hasattr(record, "analyse"):
        raise InvalidInput(f"{row['family']} is a matter of links, not of a GPU: a profile cannot hold it")
    known = {entry.name for entry in fields(record)}
    try:
        built = record(**{name: value for name, value in row.items() if name in known and value is not None})
    except TypeError as problem:
        raise InvalidInput(f"{row['family']} lacks {str(problem).partition('argument')[2].lstrip('s: ').strip()}") from None
    timing = {name: row[name] for name in TIMING if row.get(name)}
    engine = checked_engine(str(timing.get("engine", "sglang")))
    predicted = predict_kernel(built, gpu, **timing)
    median_s, bound_s = float(predicted.median_s[0]), float(predicted.bound_s[0])
    if measured_s < FASTEST * bound_s:
        raise InvalidInput(f"measured_s = {measured_s:g} is less than the {bound_s:.3g} s below which no kernel of that size can go")
    if measured_s > SLOWEST * median_s:
        raise InvalidInput(f"measured_s = {measured_s:g} is more than {SLOWEST:g} times the {median_s:.3g} s predicted: is it in seconds?")
    return sites_of_prediction(predicted, engine), float(np.log(measured_s / median_s))
