"""One group of equal calls as a row of the report: what it is, how long it took, what it should take, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tilecast.diagnosis.advice import Facts, advise, unaligned
from tilecast.diagnosis.calls import CallGroup
from tilecast.diagnosis.ceiling import LEAST_MEASURED, ceiling_of, gap
from tilecast.diagnosis.kernel_names import short
from tilecast.diagnosis.op_shapes import launch_of
from tilecast.diagnosis.op_sizes import Unpriced, tensors
from tilecast.dtypes import quantisation
from tilecast.errors import TilecastError, UnknownName
from tilecast.execution import Protocol
from tilecast.hardware import GpuSpec
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.learning.ceilings import path_of, read
from tilecast.learning.profiles import Profile
from tilecast.predictors import KernelPrediction, predict_kernel

STREAMING = (
    "memory_pass", "elementwise", "softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "rms_norm", "silu_mul", "rope",
    "kv_cache_write", "quantize", "embedding", "optimizer_update",
)  # fmt: skip
HIDDEN_SIZES = ("dtype", "identity", "engine", "tile", "split", "node")
LEAST_PART_S = 1e-9  # of a gap, to be listed
TOO_FAST = "faster than the GPU's facts allow: shapes, GPU or clock are not as assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group of equal calls. Times of one call are medians, in seconds; None where it is not priced."""

    kernel: str
    kernels: tuple[str, ...]
    library: str
    family: str
    op: str
    shapes: str
    types: str
    module: str
    calls: int
    total_s: float
    share_fraction: float
    measured_s: float
    fastest_s: float
    slowest_s: float
    helper_s: float  # per call
    beside_fraction: float  # of its time, communication ran beside computation
    inferred_calls: int
    inferred_s: float  # part of total_s: launches whose operator is that of an identical one
    in_graph: bool
    unpriced_because: str = ""
    notes: tuple[str, ...] = ()
    model: str = ""  # Tilecast's family
    sizes: Mapping[str, Any] | None = None
    dtype: str = ""
    cache: str = ""
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    basis: str = ""
    bound_s: float | None = None
    bound_by: str = ""
    ceiling_s: float | None = None
    ceiling_from: str = ""
    recoverable_s: float | None = None  # all calls
    parts: tuple[tuple[str, float], ...] = ()
    advice: str = ""

    @property
    def is_priced(self) -> bool:
        return self.predicted_s is not None

    @property
    def error_fraction(self) -> float | None:
        return self.predicted_s / self.measured_s - 1 if self.predicted_s is not None and self.measured_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        found |= {"kernels": list(self.kernels), "notes": list(self.notes), "sizes": dict(self.sizes) if self.sizes is not None else None}
        found["gap"] = [{"part": name, "seconds": seconds} for name, seconds in found.pop("parts")]
        return {**found, "is_priced": self.is_priced, "error_fraction": self.error_fraction}


@dataclass(slots=True)
class Pricer:
    """Predictions, ceilings and gaps on one GPU."""

    gpu: GpuSpec
    quantile: float
    profile: Profile | None = None

    def predicted(self, kernel: Any, measured_s: float) -> tuple[KernelPrediction, str]:
        """With operands in DRAM, unless it was faster than that allows: then they were in L2."""
        cold = predict_kernel(kernel, self.gpu, cache="cold", profile=self.profile)
        if measured_s >= LEAST_MEASURED * float(cold.bound_s[0]):
            return cold, "cold"
        return predict_kernel(kernel, self.gpu, cache="warm", profile=self.profile), "warm"

    def ceiling(self, prediction: KernelPrediction) -> tuple[float, str]:
        """What well-made kernels take for this work, and where that is known from."""
        kernel, bound_s = prediction.kernel, float(prediction.bound_s[0])
        if kernel.family in read(path_of()):
            reached = ceiling_of(prediction, self.quantile)
            return float(reached.ceiling_s[0]), f"measured kernels, P{100 * self.quantile:.0f} ({reached.basis})"
        analytic_s = float(prediction.analytic_s[0])
        if kernel.family in STREAMING:
            tasks = kernel.tasks(self.gpu, Protocol(timer="profiler", cache="cold"))
            moved = float(np.ravel(tasks.least_bytes)[0])
            once = predict_kernel(
                MemoryPass(read_bytes=round(moved / 2), written_bytes=max(1, round(moved / 2))), self.gpu, cache=prediction.protocol.cache
            )
            return max(bound_s, min(analytic_s, float(once.analytic_s[0]))), "one pass over its bytes"
        if hasattr(kernel, "num_gpus"):
            best = min(float(predict_kernel(replace(kernel, identity=name), self.gpu).analytic_s[0]) for name in ("nccl", "custom"))
            return max(bound_s, best), "fastest algorithm"
        return max(bound_s, analytic_s), "physics"


def row_of(group: CallGroup, total_s: float, pricer: Pricer, world_size: int | None) -> Row:
    """The group measured and, where that can be done, priced; `total_s` is the GPU time of all groups."""
    row = _measured(group, total_s)
    if row.measured_s <= 0:
        return replace(row, unpriced_because="the trace gives it no duration")
    try:
        launch = launch_of(group, world_size)
        prediction, cache = pricer.predicted(launch.kernel, row.measured_s)
        ceiling_s, ceiling_from = pricer.ceiling(prediction)
    except Unpriced as problem:
        return replace(row, unpriced_because=str(problem))
    except TilecastError as problem:  # the catalogue lacks a fact, or the kernel cannot run so
        return replace(row, unpriced_because=f"no prediction: {problem}")
    kernel, analysis = launch.kernel, prediction.analysis
    priced = replace(
        row,
        model=kernel.family,
        sizes={name: value for name, value in _parameters(kernel).items() if value is not None},
        dtype=kernel.dtype,
        cache=cache,
        predicted_s=float(prediction.median_s[0]),
        low_s=float(prediction.low_s[0]),
        high_s=float(prediction.high_s[0]),
        basis=str(prediction.basis[0]),
        bound_s=float(prediction.bound_s[0]),
        bound_by=str(analysis.bound_by[0]),
        ceiling_s=ceiling_s,
        ceiling_from=ceiling_from,
        recoverable_s=max(0.0, row.total_s - row.calls * ceiling_s),
        parts=tuple((part.name, part.seconds) for part in gap(prediction, row.measured_s) if abs(part.seconds) > LEAST_PART_S),
    )
    facts = _facts(priced, group, kernel, float(np.ravel(analysis.placement.waves)[0]), pricer.gpu)
    return replace(priced, notes=(*launch.notes, *_notes(priced, facts)), advice=advise(facts))


def _measured(group: CallGroup, total_s: float) -> Row:
    durations = group.durations_s
    return Row(
        kernel=short(group.kernels[0]),
        kernels=group.kernels,
        library=group.rule.library if group.rule is not None else "",
        family=group.family,
        op=group.op.name if group.op is not None else "",
        shapes=_shapes(group),
        types=", ".join(dict.fromkeys(tensor.dtype.removeprefix("c10::") for tensor in tensors(group.op))),
        module=" ".join(name for name, _ in group.modules.most_common(2)),
        calls=len(durations),
        total_s=group.total_s,
        share_fraction=group.total_s / total_s if total_s else 0.0,
        measured_s=float(np.median(durations)),
        fastest_s=float(durations.min()),
        slowest_s=float(durations.max()),
        helper_s=group.helper_s / len(durations),
        beside_fraction=group.beside_s / group.total_s if group.total_s else 0.0,
        inferred_calls=group.num_inferred,
        inferred_s=group.inferred_s,
        in_graph=group.in_graph,
    )


def _facts(row: Row, group: CallGroup, kernel: Any, waves: float, gpu: GpuSpec) -> Facts:
    """What advice on a priced row may rest on."""
    assert row.predicted_s is not None and row.ceiling_s is not None and row.bound_s is not None
    return Facts(
        family=row.model,
        library=row.library,
        kernel=group.kernels[0],
        measured_s=row.measured_s,
        predicted_s=row.predicted_s,
        ceiling_s=row.ceiling_s,
        bound_s=row.bound_s,
        bound_by=row.bound_by,
        parts=dict(row.parts),
        sizes=row.sizes or {},
        element_bytes=_element_bytes(kernel),
        waves=waves,
        one_by_one=getattr(kernel, "identity", None) == "scalar",
        strided=_strided(group),
        is_amd=gpu.vendor.lower() == "amd",
        is_extrapolated="unseen" in row.ceiling_from,
        beside_fraction=row.beside_fraction,
    )


def _notes(row: Row, facts: Facts) -> list[str]:
    notes = []
    if unaligned(facts):
        notes.append("predicted as if its rows were aligned to 16 bytes")
    if row.measured_s < LEAST_MEASURED * facts.bound_s:
        notes.append(TOO_FAST)
    return notes


def _parameters(kernel: Any) -> dict[str, Any]:
    return {entry.name: getattr(kernel, entry.name) for entry in fields(kernel) if entry.name not in HIDDEN_SIZES}


def _element_bytes(kernel: Any) -> float:
    try:
        return quantisation(kernel.dtype).activation.bytes
    except UnknownName:
        return 2.0


def _strided(group: CallGroup) -> tuple[int, ...] | None:
    """The strides of the first operand that does not lie in memory as its shape reads, for kernels that only move data."""
    if group.family not in ("elementwise", "copy", "concatenate") or group.op is None or "copy" not in group.op.name:
        return None
    for tensor in tensors(group.op)[1:]:
        expected, size = [], 1
        for length in reversed(tensor.shape):
            expected.append(size)
            size *= length
        if len(tensor.strides) == len(tensor.shape) and any(
            stride != wanted and length > 1 for stride, wanted, length in zip(tensor.strides, reversed(expected), tensor.shape, strict=True)
        ):
            return tensor.strides
    return None


def _shapes(group: CallGroup) -> str:
    if group.collective is not None:
        return f"{group.collective[1]} {group.collective[4]} of {group.collective[3]} ranks"
    if group.op is None or not group.op.has_shapes:
        return f"{group.num_bytes:,} bytes" if group.num_bytes > 0 else ""
    shown = [_dims(dims) for dims in group.op.dims if dims]
    return " ".join(shown[:4]) + (" …" if len(shown) > 4 else "")


def _dims(dims: Any) -> str:
    if isinstance(dims, tuple) and dims and isinstance(dims[0], tuple):
        return "(" + " ".join(_dims(one) for one in dims[:3]) + (" …)" if len(dims) > 3 else ")")
    return "x".join(map(str, dims)) if isinstance(dims, tuple) else str(dims)
