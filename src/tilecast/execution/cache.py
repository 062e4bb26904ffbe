"""Which bytes come from DRAM: a smooth account of what L2 still holds when the kernel asks for it."""

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec

FULL, EMPTY = 0.9, 1.4  # working set over cache: below FULL all of it is found there, above EMPTY nothing is


def cache_bytes(gpu: GpuSpec) -> float:
    return float(gpu.l2_bytes + (gpu.memory_side_cache_bytes or 0))


def hit_fraction(working_set_bytes: Floats, gpu: GpuSpec) -> Floats:
    """Share of a buffer found in L2 when everything used since its last use amounts to `working_set_bytes`."""
    ratio = np.asarray(working_set_bytes) / cache_bytes(gpu)
    return np.asarray(np.clip((EMPTY - ratio) / (EMPTY - FULL), 0.0, 1.0))


def from_dram(streams: dict[str, tuple[Floats, bool]], gpu: GpuSpec, cache: str, rotated_copies: float) -> Floats:
    """DRAM bytes of named operand streams, each (bytes, is a weight); activations and results may stay in L2 between launches."""
    total = np.asarray(sum(size for size, _ in streams.values()))
    if cache == "cold":
        return total
    weights = np.asarray(sum((size for size, is_weight in streams.values() if is_weight), start=np.zeros_like(total)))
    if cache == "warm":
        return np.asarray(total * (1 - hit_fraction(total, gpu)))
    others = total - weights
    return np.asarray(weights * (1 - hit_fraction(rotated_copies * weights + others, gpu)) + others * (1 - hit_fraction(total, gpu)))


def least_from_dram(total: Floats, gpu: GpuSpec, cache: str) -> Floats:
    """No kernel reads less than this from DRAM in that cache state: for the bound."""
    return np.asarray(total) if cache == "cold" else np.asarray(np.maximum(np.asarray(total) - cache_bytes(gpu), 0.0))
