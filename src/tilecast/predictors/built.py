"""What rows of a kernel say of the sizes that libraries build kernels for: from which numbers of query heads of a KV head and widths of
heads on, doubled, another kernel runs; which widths, and which numbers of experts and of those a token has, were measured at all
(`learning/built_sizes.py`).

Legend: L launches, S numbers of doublings from 0 on, P launches asked about.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.kernels.base import Built, built_for
from tilecast.predictors.scaled import Integers, size_of

KV_HEADS = "num_kv_heads"  # of the same query heads: with more of them each has fewer
MOST_HALVED = 5  # times: further away rows say nothing of a launch
MANY = 2**20  # more than the experts of any layer, or than a token has

Flags = NDArray[np.bool_]


def same_kernel(kernel: Any, name: str, built: Built | None, steps: Integers) -> Flags:
    """Whether it is still the same kernel (L, S) after so many doublings of one size alone; KV heads double while queries share them."""
    at, is_shared = _at(kernel, name)[:, None], name == KV_HEADS
    ends = _are_among(at >> steps if is_shared else at << steps, built.changes if built is not None else frozenset())
    if is_shared:
        ends |= at % (2 << steps) > 0
    return np.asarray(np.roll(~np.logical_or.accumulate(ends, axis=1), 1, axis=1) | (steps == 0))


def has_rows(kernel: Any, built: Built) -> Flags:
    """Which launches (L,) have sizes that rows have."""
    return _are_known([size_of(kernel, name) for name in kernel.known_by], built)


def halvings_to_rows(kernel: Any, built: Built, num_launches: int) -> tuple[Integers, dict[str, Integers]]:
    """Launches (P,) of sizes that no row has, and after how many halvings of each (P,) rows of the same kernel have them: in all ways."""
    names, is_row = kernel.known_by, has_rows(kernel, built)
    if is_row.all():
        return np.zeros(0, np.int64), {}
    sizes = {name: size_of(kernel, name)[:, None] for name in names}
    steps = dict(zip(names, np.indices((MOST_HALVED + 1,) * len(names)).reshape(len(names), -1), strict=True))
    may = ~is_row[:, None]
    for name, size in sizes.items():
        may = may & _same_when_halved(kernel, name, size, built)[:, steps[name]]
    found = may & _are_known([size >> steps[name] for name, size in sizes.items()], built)
    rows, way = np.nonzero(np.broadcast_to(found, (num_launches, found.shape[1])))
    return rows, {name: steps[name][way] for name in names}


def _same_when_halved(kernel: Any, name: str, size: Integers, built: Built) -> Flags:
    """Whether it is still the same kernel (L, S), in whole numbers, after so many halvings of one size alone."""
    step = np.arange(MOST_HALVED + 1)
    ends = (size % (np.ravel(parts_of(kernel, name))[:, None] << step) > 0) | (_are_among(size >> step, built.changes) & (step > 0))
    if hasattr(kernel, "may_double"):
        ends |= ~kernel.may_double(name)[:, None] & (step > 0)
    return np.asarray(~np.logical_or.accumulate(ends, axis=1))


def parts_of(kernel: Any, name: str) -> Any:
    """Among how many ranks a size is divided."""
    return kernel.ep if name == "num_experts" else 1


def _are_known(sizes: Sequence[Integers], built: Built) -> Flags:
    """Which of these sizes, of several each, rows have."""
    code, known = sizes[0], [size for size, *_ in built.known]
    for place, size in enumerate(sizes[1:], 1):
        code, known = code * MANY + size, [so_far * MANY + some[place] for so_far, some in zip(known, built.known, strict=True)]
    return _are_among(code, frozenset(known))


def _are_among(sizes: Integers, some: frozenset[int]) -> Flags:
    """As np.isin, at a fifth of its cost for the few that are asked about at once."""
    if sizes.size > 1000:
        return np.isin(sizes, list(some))
    return np.array([size in some for size in sizes.ravel().tolist()], bool).reshape(sizes.shape)


def _at(kernel: Any, name: str) -> Integers:
    """What the kernel is built for (L,)."""
    return np.ravel(built_for(name, lambda size: size_of(kernel, size), type(kernel)))
