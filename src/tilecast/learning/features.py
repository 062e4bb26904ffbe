"""What the correction may look at: how an analytic time is made up, the launch's sizes, and names. No hardware number by itself.

A GPU's own level is learned apart (training.py), so these features carry over to GPUs nobody measured: shares of the analytic time per
pipeline, waves and tails, how the working set compares with L2, how sizes align, and which kernel, dtype and engine it is, for GPUs that
copy and multiply asynchronously or for all others, and from Intel's libraries or those that all others share.
"""

import json
import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.execution import Priced, Protocol
from tilecast.execution.analytic import PIPELINES
from tilecast.execution.arithmetic import argmax, log2, maximum, minimum, where
from tilecast.execution.cache import cache_bytes
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import priced
from tilecast.learning.relations import relation_names, relations

Matrix = NDArray[np.float32]

# Trees of one GPU see launches as if timed this way, however they are: the same shape in another cache state is made up of other shares,
# and trees would take the lab's habit for the shape's. What the state costs is in the analytic time.
DESCRIBED_AS = Protocol("profiler", "cold")
SMALLEST_SHARE = 1e-3
PLAIN = (int, float)
LONGEST_KEYS = 2.0**17  # that any row has: beyond these and a window, more of them change nothing
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
FLAGS = {"1": "True", "0": "False", "1.0": "True", "0.0": "False"}  # numbers that stand for true and false
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
    timed: Matrix | None = None  # the same numbers in the state they are timed in, where that is another than DESCRIBED_AS

    @property
    def as_timed(self) -> Matrix:
        return self.numbers if self.timed is None else self.timed

    def called(self, names: dict[str, str]) -> "Launches":
        return Launches(self.numbers, names, self.group, self.timed)

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Launches":
        return Launches(self.numbers[rows], self.names, self.group[rows], None if self.timed is None else self.timed[rows])


def number_names(family: str) -> list[str]:
    """The columns of `Launches.numbers`; a family that is not in SIZES has the common ones alone."""
    named = SIZES.get(family, ())
    sizes = [f"log2 {name}" for name in named]
    aligned = [f"{name} in {step}s" for name in named[:3] for step in ALIGNMENTS]
    return [*COMMON, *sizes, *aligned, *(relation_names(family) if named else ())]


# Rows of a launch's account, and which of them a GPU's level is told apart by: shared memory and the bound are left out.
PARTS = (*PIPELINES, "launch", "bound")
GROUPED = tuple(PARTS.index(name) for name in ("tensor", "vector", "special", "l2", "dram", "launch"))
GROUP_OF = np.array([GROUPS.index(name) for name in ("compute", "compute", "compute", "memory", "memory", "launch")])


def launches(kernel: Any, gpu: GpuSpec, found: Priced, protocol: Protocol, engine: str) -> Launches:
    """`found` is what the kernel costs under `protocol`."""
    names = {name: str(getattr(kernel, name)) for name in _names_of(kernel.__class__)}
    if names.get("causal") in FLAGS:
        names["causal"] = FLAGS[names["causal"]]
    names |= {"engine": engine, "asynchronous": str(gpu.multicasts), "intel": str(gpu.vendor == "intel")}
    numbers, group = _described(kernel, gpu, found)
    if protocol == DESCRIBED_AS:
        return Launches(numbers, names, group)
    described, group = _described(kernel, gpu, priced(kernel, gpu, DESCRIBED_AS))
    return Launches(described, names, group, numbers)


def _described(kernel: Any, gpu: GpuSpec, found: Priced) -> tuple[Matrix, NDArray[np.int64]]:
    """(L, F) numbers, and what binds each launch."""
    time_s, busy = found.analytic_s, found.busy_s
    is_lone = not isinstance(time_s, np.ndarray)
    parts_s = [*[busy.get(name, 0.0) for name in PIPELINES], found.launch_s, found.bound_s]
    traffic = found.dram_bytes / cache_bytes(gpu)
    shares = [part_s / time_s for part_s in parts_s]
    binds = argmax([shares[part] for part in GROUPED])
    group = GROUP_OF[binds : binds + 1] if is_lone else GROUP_OF.take(binds)
    logs = np.log(np.maximum(np.array([*shares, found.waves, time_s / found.launch_s, traffic]), SMALLEST_SHARE))
    logs = logs.tolist() if is_lone else logs
    rows = [*logs[:9], found.tail_fraction, found.clock_hz / gpu.boost_clock_hz, *logs[9:]]
    if kernel.family in SIZES:
        sizes = _sizes(kernel, is_lone)
        if is_lone:
            counts = [size if size >= 1.0 else 1.0 for size in sizes]
            logs = list(map(math.log2, counts))
        else:
            counts = [maximum(size, 1.0) for size in sizes]
            logs = [log2(count) for count in counts]
        rows += [*logs, *[size % step == 0 for size in sizes[:3] for step in ALIGNMENTS]]
        rows += relations(kernel.family, SIZES[kernel.family], counts, logs, gpu)
    if is_lone:
        return np.array([rows], np.float32), group
    numbers = np.empty((len(rows), np.size(time_s)), np.float32)
    for row, values in enumerate(rows):
        numbers[row] = values
    return numbers.T, group


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
    """A size that follows from others: a ragged batch's count and mean lengths, as many KV heads as heads, keys for the queries alone, no
    window."""
    if name == "num_kv_heads":
        return kernel.num_heads
    lists = {"batch": ("q_lens", "kv_lens"), "q_len": ("q_lens",), "kv_len": ("kv_lens", "q_lens")}.get(name, ())
    given = next((found for found in (getattr(kernel, each, None) for each in lists) if found is not None), None)
    if given is None:
        return kernel.q_len if name == "kv_len" and kernel.q_len is not None else 0.0
    parsed = json.loads(given) if isinstance(given, str) else given
    each = parsed if len(parsed) and isinstance(parsed[0], list | tuple | np.ndarray) else [parsed]
    return [len(batch) if name == "batch" else float(np.mean(batch)) for batch in each]


def _sizes(kernel: Any, is_lone: bool) -> list[Any]:
    """The sizes of the family: numbers where all launches have the same, else arrays (L,)."""
    is_ragged = getattr(kernel, "q_lens", None) is not None or getattr(kernel, "kv_lens", None) is not None
    found = []
    for name in SIZES[kernel.family]:
        size = getattr(kernel, name)
        if size is None or (is_ragged and name == "batch"):
            size = _left_open(kernel, name)
        if not isinstance(size, PLAIN):
            size = np.asarray(size, np.float64)
            size = np.where(np.isfinite(size), size, 0.0)  # no window, among some
            size = size.item() if is_lone else size
        found.append(size)
    if getattr(kernel, "window", None) is not None:
        names = SIZES[kernel.family]
        keys, window = found[names.index("kv_len")], found[names.index("window")]
        found[names.index("kv_len")] = where(window > 0, minimum(keys, maximum(window, LONGEST_KEYS)), keys)
    return found
