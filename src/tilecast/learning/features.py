"""What the correction may look at: how an analytic time is made up, the launch's sizes, and names. No hardware number by itself.

A GPU's own level is learned apart (training.py), so these features carry over to GPUs nobody measured: shares of the analytic time per
pipeline, waves and tails, how the working set compares with L2, how sizes align, and which kernel, dtype and engine it is.
"""

import json
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.execution import Analysis
from tilecast.execution.analytic import PIPELINES
from tilecast.execution.cache import cache_bytes
from tilecast.hardware import GpuSpec
from tilecast.learning.relations import relation_names, relations

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
GROUPS = ("compute", "memory", "launch")  # what a GPU's level is told apart by


@dataclass(frozen=True, slots=True)
class Launches:
    """L launches with everything the correction needs: numbers (L, F), names (one for all L), and what binds each."""

    numbers: Matrix
    names: dict[str, str]
    group: NDArray[np.int64]  # index into GROUPS


def number_names(family: str) -> list[str]:
    """The columns of `Launches.numbers`."""
    shares = [f"share {name}" for name in (*PIPELINES, "launch", "bound")]
    sizes = [f"log2 {name}" for name in SIZES[family]]
    aligned = [f"{name} in {step}s" for name in SIZES[family][:3] for step in ALIGNMENTS]
    return [
        *shares,
        "log waves",
        "tail",
        "clock",
        "log time in launches",
        "log traffic over cache",
        *sizes,
        *aligned,
        *relation_names(family),
    ]


# Rows of a launch's account, and which of them a GPU's level is told apart by: shared memory and the bound are left out.
PARTS = (*PIPELINES, "launch", "bound")
GROUPED = np.array([PARTS.index(name) for name in ("tensor", "vector", "special", "l2", "dram", "launch")])
GROUP_OF = np.array([GROUPS.index(name) for name in ("compute", "compute", "compute", "memory", "memory", "launch")])
STEPS = np.array(ALIGNMENTS, dtype=np.float64)[:, None]


def launches(kernel: Any, gpu: GpuSpec, analysis: Analysis, engine: str) -> Launches:
    time_s, placement = analysis.analytic_s, analysis.placement
    parts_s = np.zeros((len(PARTS), len(time_s)))
    for row, name in enumerate(PIPELINES):
        if name in analysis.busy_s:
            parts_s[row] = analysis.busy_s[name]
    parts_s[-2], parts_s[-1] = analysis.launch_s, analysis.bound_s
    logs = np.empty((len(PARTS) + 3, len(time_s)))
    np.divide(parts_s, time_s, out=logs[: len(PARTS)])
    logs[-3], logs[-2], logs[-1] = placement.waves, time_s / analysis.launch_s, analysis.dram_bytes / cache_bytes(gpu)
    np.log(np.maximum(logs, SMALLEST_SHARE), out=logs)
    sizes = _sizes(kernel, len(time_s))

    shares, pairs = len(PARTS) + 1, len(sizes)
    log2_sizes = np.log2(np.maximum(sizes, 1.0))
    related = relations(kernel.family, SIZES[kernel.family], sizes, log2_sizes, gpu)
    aligned = shares + 4 + pairs
    numbers = np.empty((aligned + 3 * len(ALIGNMENTS) + len(related), len(time_s)), np.float32)
    numbers[:shares], numbers[shares + 2 : shares + 4] = logs[:shares], logs[shares:]
    numbers[shares], numbers[shares + 1] = placement.tail_fraction, analysis.clock_hz / gpu.boost_clock_hz
    numbers[shares + 4 : aligned] = log2_sizes
    numbers[aligned : -len(related)] = (sizes[:3, None, :] % STEPS == 0).reshape(-1, len(time_s))
    numbers[-len(related) :] = related
    names = {name: str(getattr(kernel, name)) for name in _names_of(kernel.__class__)}
    # Timer and cache state are in the analytic time. As names they would stand for the lab: each lab has its own way of timing.
    names["engine"] = engine
    group = GROUP_OF.take(parts_s.take(GROUPED, axis=0).argmax(axis=0))
    return Launches(numbers.T, names, group)


@cache
def _names_of(kernel: Any) -> tuple[str, ...]:
    own = {entry.name for entry in fields(kernel)}
    return tuple(name for name in NAMES if name in own)


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


def _sizes(kernel: Any, length: int) -> NDArray[np.float64]:
    """The sizes of the family, (S, L)."""
    names = SIZES[kernel.family]
    is_ragged = getattr(kernel, "q_lens", None) is not None
    values = np.empty((len(names), length))
    for row, name in enumerate(names):
        raw = getattr(kernel, name)
        values[row] = _left_open(kernel, name) if raw is None or (is_ragged and name == "batch") else raw
    return values
