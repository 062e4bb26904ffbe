"""What libraries build kernels for, query heads of a KV head and the width of a head: which widths rows of a kernel have, and from which
size on, doubled, another kernel runs (`learning/built_sizes.py`).

Legend: L launches, S numbers of doublings from 0 on, P launches asked about.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.kernels.base import Built, built_for
from tilecast.predictors.scaled import Integers, size_of

KV_HEADS = "num_kv_heads"  # of the same query heads: with more of them each has fewer
MOST_HALVED = 5  # times: further away rows say nothing of a launch

Flags = NDArray[np.bool_]


def same_kernel(kernel: Any, name: str, built: Built | None, steps: Integers) -> Flags:
    """Whether it is still the same kernel (L, S) after so many doublings of one size alone; KV heads double while queries share them."""
    at, is_shared = _at(kernel, name)[:, None], name == KV_HEADS
    ends = _are_among(at >> steps if is_shared else at << steps, built.changes if built is not None else frozenset())
    if is_shared:
        ends |= at % (2 << steps) > 0
    return np.asarray(np.roll(~np.logical_or.accumulate(ends, axis=1), 1, axis=1) | (steps == 0))


def has_rows(kernel: Any, name: str, built: Built) -> Flags:
    """Which launches (L,) have a size that rows have."""
    return _are_among(size_of(kernel, name), built.known)


def halvings_to_rows(kernel: Any, name: str, built: Built, num_launches: int) -> tuple[Integers, Integers]:
    """Launches (P,) of a size that no row has, and after how many halvings (P,) rows of the same kernel have it."""
    steps, size = np.arange(MOST_HALVED + 1), size_of(kernel, name)[:, None]
    if has_rows(kernel, name, built).all():
        return steps[:0], steps[:0]
    smaller = size >> steps
    ends = (size % (1 << steps) > 0) | (_are_among(smaller, built.changes) & (steps > 0))
    found = _are_among(smaller, built.known) & ~np.logical_or.accumulate(ends, axis=1)
    halved = np.broadcast_to(found.argmax(axis=1), num_launches)
    rows = np.flatnonzero(halved)
    return rows, halved[rows]


def _are_among(sizes: Integers, some: frozenset[int]) -> Flags:
    """As np.isin, at a fifth of its cost for the few that are asked about at once."""
    if sizes.size > 1000:
        return np.isin(sizes, list(some))
    return np.array([size in some for size in sizes.ravel().tolist()], bool).reshape(sizes.shape)


def _at(kernel: Any, name: str) -> Integers:
    """What the kernel is built for (L,)."""
    return np.ravel(built_for(name, lambda size: size_of(kernel, size), type(kernel)))
