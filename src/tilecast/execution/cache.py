"""Which bytes come from DRAM: a smooth account of what L2 still holds when the kernel asks for it."""

from typing import Any

from tilecast.execution.arithmetic import clip, maximum
from tilecast.execution.tasks import Numbers
from tilecast.hardware import GpuSpec

FULL, EMPTY = 0.9, 1.4  # working set over cache: below FULL all of it is found there, above EMPTY nothing is


def cache_bytes(gpu: GpuSpec) -> float:
    return float(gpu.l2_bytes + (gpu.memory_side_cache_bytes or 0))


def kept_bytes(gpu: GpuSpec) -> float:
    """Of data that SMs everywhere read: each partition of an L2 keeps its own copy of them."""
    return cache_bytes(gpu) / gpu.l2_partitions


def hit_fraction(working_set_bytes: Numbers, gpu: GpuSpec, *, same_sm: bool = False) -> Any:
    """Share of a buffer found in L2 when everything used since its last use, by any SM or by the `same_sm`, is `working_set_bytes`."""
    kept = cache_bytes(gpu) if same_sm else kept_bytes(gpu)
    return clip((EMPTY - working_set_bytes / kept) / (EMPTY - FULL), 0.0, 1.0)


def from_dram(weights: Numbers, others: Numbers, gpu: GpuSpec, cache: str, rotated_copies: float) -> Any:
    """DRAM bytes of operands that are `weights` or not: activations and results may stay in L2 between launches."""
    total = weights + others
    if cache == "cold":
        return total
    if cache == "warm":
        return total * (1 - hit_fraction(total, gpu))
    return weights * (1 - hit_fraction(rotated_copies * weights + others, gpu)) + others * (1 - hit_fraction(total, gpu))


def least_from_dram(total: Numbers, gpu: GpuSpec, cache: str) -> Any:
    """No kernel reads less than this from DRAM in that cache state: for the bound."""
    return total if cache == "cold" else maximum(total - cache_bytes(gpu), 0.0)
