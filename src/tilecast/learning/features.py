"""What the correction may look at: how an analytic time is made up, the launch's sizes, and names. No hardware number by itself.

A GPU's own level is learned apart (training.py), so these features carry over to GPUs nobody measured: shares of the analytic time per
pipeline, waves and tails, how the working set compares with L2, how sizes align, and which kernel, dtype and engine it is.
"""

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.execution import Analysis
from tilecast.execution.analytic import PIPELINES
from tilecast.execution.cache import cache_bytes
from tilecast.hardware import GpuSpec

Matrix = NDArray[np.float32]

SMALLEST_SHARE = 1e-3
ALIGNMENTS = (8, 64, 256)
# The sizes of each family whose magnitude and alignment may matter, largest effect first.
SIZES = {
    "gemm": ("m", "n", "k", "batch"),
    "attention_prefill": ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "window"),
    "attention_decode": ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "window"),
    "mla_prefill": ("batch", "q_len", "kv_len", "num_heads"),
    "mla_decode": ("batch", "q_len", "kv_len", "num_heads"),
    "moe": ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "tp", "ep"),
}
NAMES = ("dtype", "identity", "kv_dtype", "distribution", "moe_pass", "causal", "op")
COMMON = (
    *(f"share {name}" for name in (*PIPELINES, "launch", "bound")), "log waves", "tail", "clock", "log time in launches",
    "log traffic over cache",
)  # fmt: skip
GROUPS = ("compute", "memory", "launch")  # what a GPU's level is told apart by


@dataclass(frozen=True, slots=True)
class Launches:
    """L launches with everything the correction needs: numbers (L, F), names (one for all L), and what binds each."""

    numbers: Matrix
    names: dict[str, str]
    group: NDArray[np.int64]  # index into GROUPS


def number_names(family: str) -> list[str]:
    """The columns of `Launches.numbers`; a family that is not in SIZES has the common ones alone."""
    named = SIZES.get(family, ())
    sizes = [f"log2 {name}" for name in named]
    aligned = [f"{name} in {step}s" for name in named[:3] for step in ALIGNMENTS]
    return [*COMMON, *sizes, *aligned]


def launches(kernel: Any, gpu: GpuSpec, analysis: Analysis, engine: str) -> Launches:
    length = len(analysis.analytic_s)
    time_s = analysis.analytic_s
    none = np.zeros(length)

    def share(part_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.maximum(part_s / time_s, SMALLEST_SHARE)))

    busy = {name: analysis.busy_s.get(name, none) for name in PIPELINES}
    columns = [share(busy[name]) for name in PIPELINES]
    columns += [share(analysis.launch_s), share(analysis.bound_s)]
    traffic_bytes = analysis.demand_s.get("dram", none) * gpu.dram_bytes_per_s
    columns += [
        np.log(np.maximum(analysis.placement.waves, SMALLEST_SHARE)),
        analysis.placement.tail_fraction,
        analysis.clock_hz / gpu.boost_clock_hz,
        np.log(time_s / analysis.launch_s),
        np.log(np.maximum(traffic_bytes / cache_bytes(gpu), SMALLEST_SHARE)),
    ]
    values = [_size(kernel, name, length) for name in SIZES.get(kernel.family, ())]
    columns += [np.log2(np.maximum(value, 1.0)) for value in values]
    columns += [(value % step == 0).astype(np.float64) for value in values[:3] for step in ALIGNMENTS]
    compute = np.maximum(np.maximum(busy["tensor"], busy["vector"]), busy["special"])
    memory = np.maximum(busy["dram"], busy["l2"])
    group = np.argmax(np.stack([compute, memory, analysis.launch_s]), axis=0)
    names = {name: str(getattr(kernel, name)) for name in NAMES if name in {entry.name for entry in fields(kernel)}}
    # Timer and cache state are in the analytic time. As names they would stand for the lab: each lab has its own way of timing.
    names |= {"engine": engine}
    return Launches(np.stack(columns, axis=1).astype(np.float32), names, group)


def asked_names(kernel: Any, gpu: GpuSpec, names: dict[str, str]) -> dict[str, str]:
    """`names` of a question rather than a measurement: what was left open is what the newest SGLang would run."""
    filled = dict(names)
    if getattr(kernel, "identity", None) is None and hasattr(kernel, "newest_identity"):
        filled["identity"] = str(kernel.newest_identity(gpu))
    if "kv_dtype" in names and kernel.kv_dtype is None:
        filled["kv_dtype"] = names["dtype"]
    return filled


def _left_open(kernel: Any, name: str) -> Any:
    """A size that follows from others: a ragged batch's count and mean lengths, as many KV heads as heads, no window."""
    if name == "num_kv_heads":
        return kernel.num_heads
    lists = {"batch": "q_lens", "q_len": "q_lens", "kv_len": "kv_lens"}.get(name)
    given = getattr(kernel, lists, None) if lists else None
    if given is None:
        return 0.0
    parsed = json.loads(given) if isinstance(given, str) else given
    each = parsed if len(parsed) and isinstance(parsed[0], list | tuple | np.ndarray) else [parsed]
    return [len(batch) if name == "batch" else float(np.mean(batch)) for batch in each]


def _size(kernel: Any, name: str, length: int) -> NDArray[np.float64]:
    raw = getattr(kernel, name)
    if raw is None or (name == "batch" and getattr(kernel, "q_lens", None) is not None):
        raw = _left_open(kernel, name)
    return np.broadcast_to(np.asarray(raw, dtype=np.float64).reshape(-1), length)
