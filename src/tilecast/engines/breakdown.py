"""Part: one line of where the time goes, a launch of an engine's step or the host's share of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from tilecast.engines.interval import NOTHING, Interval, weighted_total
from tilecast.execution.tasks import Floats
from tilecast.workloads.aggregate import CallTime, StepTime
from tilecast.workloads.graph import KernelCall

HOST = "host"
PIPELINE = "pipeline_wait"  # for other micro-batches
OPTIONS = ("kv_dtype", "op", "distribution", "moe_pass", "node")  # of kernels: names, where sizes are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line of the breakdown: all launches of a call in a phase, or the host's share of it."""

    phase: str
    name: str
    family: str
    identity: str | None
    sizes: Mapping[str, Any]  # in decode, those of the last step
    launches_per_step: int
    time: Interval  # over the whole phase
    share_fraction: float  # of its phase
    bound_by: str
    bound_s: float
    basis: str
    call: KernelCall | None = None  # None: the host's own

    @property
    def efficiency(self) -> float | None:
        """How near it is to its bound; the host has none."""
        return self.bound_s / self.time.median if self.call is not None and self.time.median else None

    def to_dict(self) -> dict[str, Any]:
        times = {"median_s": self.time.median, "low_s": self.time.low, "high_s": self.time.high}
        return {
            "phase": self.phase, "name": self.name, "family": self.family, "identity": self.identity, **asked_of(self.call),
            "sizes": dict(self.sizes),
            "launches_per_step": self.launches_per_step, **times, "bound_s": self.bound_s, "share_fraction": self.share_fraction,
            "bound_by": self.bound_by, "efficiency": self.efficiency, "basis": self.basis,
        }  # fmt: skip


def asked_of(call: KernelCall | None) -> dict[str, Any]:
    """What else a launch was priced with: with its sizes, `tilecast kernel` gives its time again. The host has none of it."""
    if call is None:
        return {"dtype": None, "cache": None, "engine": None, "options": {}, "beside": None}
    chosen = {name: getattr(call.kernel, name, None) for name in OPTIONS}
    options = {name: getattr(value, "id", value) for name, value in chosen.items() if value is not None}
    return {"dtype": call.kernel.dtype, "cache": call.cache, "engine": call.measured_in, "options": options, "beside": call.beside}


def parts_of(phase: str, step: StepTime, weights: Floats, host: Interval, waits: StepTime | None) -> list[Part]:
    """A phase, launch by launch; then the host, and what stages wait for each other."""
    wait = weighted_total(waits, weights) if waits else NOTHING
    whole = weighted_total(step, weights).median + host.median + wait.median
    others = [(HOST, host, "analytic")] + ([(PIPELINE, wait, waits.basis)] if waits else [])
    return [_part(time, weights, whole) for time in step.calls] + [
        Part(
            phase=phase, name=name, family=name, identity=None, sizes={}, launches_per_step=1, time=time,
            share_fraction=time.median / whole, bound_by=name, bound_s=0.0, basis=basis,
        )
        for name, time, basis in others
    ]  # fmt: skip


def _part(time: CallTime, weights: Floats, whole_s: float) -> Part:
    call, total = time.call, weighted_total(time, weights)
    return Part(
        phase=call.phase,
        name=call.name,
        family=call.kernel.family,
        identity=call.kernel.identity,
        sizes=sizes_of(call.kernel),
        launches_per_step=call.count,
        time=total,
        share_fraction=total.median / whole_s,
        bound_by=time.bound_by,
        bound_s=float(weights @ time.bound_s),
        basis=time.basis,
        call=call,
    )


@cache
def _parameters(kernel: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kernel))


def sizes_of(kernel: Any) -> dict[str, Any]:
    """The numbers of a kernel, those of its last step; a ragged batch by its number of requests and its longest context."""
    shown: dict[str, Any] = {}
    is_ragged = getattr(kernel, "q_lens", None) is not None
    for name in _parameters(kernel.__class__):
        value = getattr(kernel, name)
        if name == "q_lens" and value is not None:
            shown |= {"batch": len(value[-1]), "q_tokens": int(np.sum(value[-1]))}
        elif name == "kv_lens" and value is not None:
            shown |= {"kv_tokens": int(np.sum(value[-1])), "kv_longest": int(np.max(value[-1]))}
        elif isinstance(value, bool):
            shown[name] = value
        elif isinstance(value, int | np.ndarray) and not (is_ragged and name == "batch"):
            shown[name] = int(value[-1]) if isinstance(value, np.ndarray) else value
    return shown
