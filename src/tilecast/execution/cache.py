"""Which bytes come from DRAM: a smooth account of what L2 still holds when the kernel asks for it."""

from typing import Any

from tilecast.execution.arithmetic import clip, maximum
from tilecast.execution.tasks import Numbers
from tilecast.hardware import GpuSpec

FULL, EMPTY = 0.9, 1.4  # working set over cache: below FULL all of it is found there, above EMPTY nothing is
ROTATED_COPIES = 6  # of the weights, in SGLang's and vLLM's benchmarks of a rotated cache


def cache_bytes(gpu: GpuSpec) -> float:
    return float(gpu.l2_bytes + (gpu.memory_side_cache_bytes or 0))


def kept_bytes(gpu: GpuSpec) -> float:
    """Of data that SMs everywhere read: each partition of an L2 keeps its own copy of them."""
    return cache_bytes(gpu) / gpu.l2_partitions


def hit_fraction(working_set_bytes: Numbers, gpu: GpuSpec, *, same_sm: bool = False) -> Any:
    """Share of a buffer found in L2 when everything used since its last use, by any SM or by the `same_sm`, is `working_set_bytes`."""
    kept = cache_bytes(gpu) if same_sm else kept_bytes(gpu)
    return clip((EMPTY - working_set_bytes / kept) / (EMPTY - FULL), 0.0, 1.0)


def in_turn_fraction(working_set_bytes: Numbers, gpu: GpuSpec) -> Any:
    """The same for buffers that take turns: what was used longest ago leaves first and is asked for next, so all are gone where half of a
    working set without an order would still be found. Copies of a weight on L40S and RTX PRO 6000 stay up to 0.9 to 1.05 of L2.
    """
    gone = (FULL + EMPTY) / 2.0
    return clip((gone - working_set_bytes / kept_bytes(gpu)) / (gone - FULL), 0.0, 1.0)


def from_dram(weights: Numbers, others: Numbers, gpu: GpuSpec, cache: str) -> Any:
    """DRAM bytes of operands that are `weights` or not: activations and results may stay in L2 between launches."""
    total = weights + others
    if cache == "cold":
        return total
    if cache == "warm":
        return total * (1 - in_turn_fraction(total, gpu))
    return weights * (1 - in_turn_fraction(ROTATED_COPIES * weights + others, gpu)) + others * (1 - in_turn_fraction(total, gpu))


def least_from_dram(total: Numbers, gpu: GpuSpec, cache: str) -> Any:
    """No kernel reads less than this from DRAM in that cache state: for the bound."""
    return total if cache == "cold" else maximum(total - cache_bytes(gpu), 0.0)
