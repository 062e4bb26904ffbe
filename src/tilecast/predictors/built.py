"""What rows of a kernel say of the sizes that libraries build kernels for: from which numbers of query heads of a KV head and widths of
heads on, doubled, another kernel runs; which widths of heads, and which models' experts, were measured at all (`learning/built_sizes.py`).

Legend: L launches, S numbers of doublings from 0 on, P launches asked about, K launches that rows have, D sizes that they are known by
and beside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.kernels.base import Built, size_built_for
from tilecast.predictors.scaled import Integers, size_of

KV_HEADS = "num_kv_heads"  # of the same query heads: with more of them each has fewer
MOST_HALVED = 5  # times: further away rows say nothing of a launch

Flags = NDArray[np.bool_]


def same_kernel(kernel: Any, name: str, built: Built | None, steps: Integers) -> Flags:
    """Whether it is still the same kernel (L, S) after so many doublings of one size alone; KV heads double while queries share them."""
    at, is_shared = built_size(kernel, name)[:, None], name == KV_HEADS
    ends = _are_among(at >> steps if is_shared else at << steps, built.changes if built is not None else frozenset())
    if is_shared:
        ends |= at % (2 << steps) > 0
    return np.asarray(np.roll(~np.logical_or.accumulate(ends, axis=1), 1, axis=1) | (steps == 0))


@dataclass(frozen=True, slots=True)
class Known:
    """The sizes that rows have together, K of D names, and from each on how often it may double before another kernel runs."""

    sizes: Integers  # (K, D)
    steps: Integers  # (K, D)

    def are(self, sizes: Sequence[Integers]) -> Flags:
        """Which launches (L,) have sizes that rows have."""
        code, codes = np.zeros(1, np.int64), np.zeros(len(self.sizes), np.int64)
        for own, size in zip(self.sizes.T, sizes, strict=True):
            values, place = np.unique(own, return_inverse=True)
            at = np.minimum(np.searchsorted(values, size), len(values) - 1)
            code = np.where((code < 0) | (values[at] != size), -1, code * len(values) + at)
            codes = codes * len(values) + place
        return np.isin(code, codes)


@lru_cache(maxsize=1024)
def _known(built: Built) -> Known:
    sizes = np.array(sorted(built.known), np.int64)
    steps = np.arange(MOST_HALVED + 1)
    ends = np.isin(sizes[:, :, None] << steps, list(built.changes))
    return Known(sizes, np.where(ends.any(axis=2), ends.argmax(axis=2), MOST_HALVED))


def has_rows(kernel: Any, built: Built) -> Flags:
    """Which launches (L,) have sizes that rows have."""
    beside = [size_beside(kernel, name) for name in _beside(kernel)]
    return _known(built).are([*(size_of(kernel, name) for name in kernel.known_by), *beside])


def halvings_to_rows(kernel: Any, built: Built, num_launches: int) -> tuple[Integers, dict[str, Integers]]:
    """Launches (P,) of sizes that no row has, and after how many halvings of each (P,) rows of the same kernel have them: in all ways."""
    names, known, is_row = kernel.known_by, _known(built), has_rows(kernel, built)
    found, steps = ~is_row[:, None], []
    if is_row.all():
        return np.zeros(0, np.int64), {}
    for place, name in enumerate(names):
        own, size = known.sizes[:, place], size_of(kernel, name)[:, None]
        ratio = size // own
        step = np.log2(np.maximum(ratio, 1)).astype(np.int64)
        steps.append(np.broadcast_to(step, (num_launches, len(own))))
        found = found & (own << step == size) & (step <= known.steps[:, place]) & (own % parts_of(kernel, name) == 0)
        if hasattr(kernel, "may_double"):
            found &= (step == 0) | kernel.may_double(name, True)[:, None]
    for own, name in zip(known.sizes.T[len(names) :], _beside(kernel), strict=True):
        found = found & (own == size_beside(kernel, name)[:, None])
    rows, way = np.nonzero(np.broadcast_to(found, (num_launches, found.shape[1])))
    return rows, {name: step[rows, way] for name, step in zip(names, steps, strict=True)}


def _beside(kernel: Any) -> tuple[str, ...]:
    """The sizes that have to be the same for rows to speak: heads of some width may have been measured with a window alone."""
    return getattr(kernel, "known_beside", ())


def size_beside(kernel: Any, name: str) -> Integers:
    """One for each launch, or one for all; 0 where there is none."""
    given = np.ravel(np.array(getattr(kernel, name), np.float64))
    return np.where(np.isfinite(given), given, 0.0).astype(np.int64)


def parts_of(kernel: Any, name: str) -> Integers:
    """Among how many ranks a size is divided (L, 1)."""
    ranks = {"num_experts": "ep", "inter_size": "tp"}.get(name)
    return size_of(kernel, ranks)[:, None] if ranks else np.ones((1, 1), np.int64)


def _are_among(sizes: Integers, some: frozenset[int]) -> Flags:
    """As np.isin, at a fifth of its cost for the few that are asked about at once."""
    if sizes.size > 1000:
        return np.isin(sizes, list(some))
    return np.array([size in some for size in sizes.ravel().tolist()], bool).reshape(sizes.shape)


def built_size(kernel: Any, name: str) -> Integers:
    """What the kernel is built for (L,)."""
    return np.ravel(size_built_for(name, lambda size: size_of(kernel, size), type(kernel)))
