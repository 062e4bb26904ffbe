"""Which bytes come from DRAM: a smooth account of what L2 still holds when the kernel asks for it."""

from collections.abc import Mapping

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec

FULL, EMPTY = 0.9, 1.4  # working set over cache: below FULL all of it is found there, above EMPTY nothing is


def cache_bytes(gpu: GpuSpec) -> float:
    return float(gpu.l2_bytes + (gpu.memory_side_cache_bytes or 0))


def hit_fraction(working_set_bytes: Floats | float, gpu: GpuSpec) -> Floats:
    """Share of a buffer found in L2 when everything used since its last use amounts to `working_set_bytes`."""
    found: Floats = np.minimum(np.maximum((EMPTY - working_set_bytes / cache_bytes(gpu)) / (EMPTY - FULL), 0.0), 1.0)
    return found


def from_dram(streams: Mapping[str, tuple[Floats | float, bool]], gpu: GpuSpec, cache: str, rotated_copies: float) -> Floats | float:
    """DRAM bytes of named operand streams, each (bytes, is a weight); activations and results may stay in L2 between launches."""
    total = sum(size for size, _ in streams.values())
    if cache == "cold":
        return total
    if cache == "warm":
        return total * (1 - hit_fraction(total, gpu))
    weights = sum(size for size, is_weight in streams.values() if is_weight)
    others = total - weights
    return weights * (1 - hit_fraction(rotated_copies * weights + others, gpu)) + others * (1 - hit_fraction(total, gpu))


def least_from_dram(total: Floats | float, gpu: GpuSpec, cache: str) -> Floats | float:
    """No kernel reads less than this from DRAM in that cache state: for the bound."""
    return total if cache == "cold" else np.maximum(total - cache_bytes(gpu), 0.0)
