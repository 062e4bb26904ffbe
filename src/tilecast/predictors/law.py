"""The law of doubling: a launch of twice the size takes at least 0.97 of the time.

Whoever has a kernel for twice the work can pad half of it, so a median is lowered to what its doublings allow. What is learned follows
measurements, which do not keep the law: libraries change kernels with the size (decision 0010). The least median over all doublings keeps
it; physics says which of them could matter. Where only a launch's smallest size was ever measured, keys without a prefix say, it is the
guess about more of them that gives way: it is raised to what the measured ones leave.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.execution import Priced
from tilecast.execution.tasks import Floats, Numbers
from tilecast.kernels.base import LARGEST, RAGGED

KEPT = 0.97  # of the time, at the least, when a size doubles
LOG_KEPT = -math.log(KEPT)
MOST_DOUBLINGS, MOST_OF_MANY, MANY = 10, 7, 4  # of all sizes together, and where so many of them could double
LARGEST_FALL = 1.5  # log: where physics grows by more, nothing learned makes up for it
AT_ONCE, IN_TURN = ((1, MOST_DOUBLINGS),), ((1, 1), (2, MOST_DOUBLINGS))  # the first and last doubling that physics is asked for together
CHUNK, FEW = 4096, 64  # launches asked for at once, and few enough that asking twice costs more than asking for too many
FOLLOWS = {"num_kv_heads": "num_heads", "kv_len": "q_len"}  # a size that was left open is another one
WITHIN = {"q_len": "kv_len"}  # a size that grows alone stays within another one

Integers = NDArray[np.int64]
NONE: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked about other launches of a kernel: physics, and the median as learned."""

    physics: Callable[[Any], Priced]
    median_s: Callable[[Any], Numbers]


def lawful(kernel: Any, found: Priced, median_s: Numbers, asked: Asked) -> Numbers:
    """The medians as the law leaves them; `found` is what physics says of the same launches.

    Requests of different lengths, and experts with tokens of their own, have no one size to double: they stay as they were learned.
    """
    if not getattr(kernel, "doublings", ()) or not getattr(kernel, "has_sizes", True):
        return median_s
    return _raised(kernel, _lowered(kernel, found, median_s, asked), asked)


def _lowered(kernel: Any, found: Priced, median_s: Numbers, asked: Asked) -> Numbers:
    """Each median, or less where a launch with something doubled is that much faster."""
    is_lone = not isinstance(median_s, np.ndarray)
    is_open = KEPT * median_s > 2.0 * found.flop_s if kernel.doubles_flop else median_s > 0.0  # else no doubled launch is that fast
    if not (is_open if is_lone else np.any(is_open)):
        return median_s
    every_s, rows = np.atleast_1d(median_s), np.flatnonzero(np.broadcast_to(is_open, np.size(median_s)))
    most = np.full(len(rows), MOST_DOUBLINGS, np.float64)
    if kernel.doubles_flop:
        flop_s = np.broadcast_to(found.flop_s, every_s.shape)[rows]
        most = np.minimum(most, np.log(every_s[rows] / flop_s) / math.log(2.0 / KEPT))
    kept_s = _least(kernel, rows, most, np.atleast_1d(found.analytic_s), every_s, asked)
    return kept_s.item() if is_lone else kept_s


def _raised(kernel: Any, median_s: Numbers, asked: Asked) -> Numbers:
    """Each median, or more where a launch of half the guessed size, or a quarter, is that much slower.

    What was lowered keeps the law in all other sizes, so the most of several does."""
    rows, steps = _halvings(kernel, np.size(median_s))
    if not len(rows):
        return median_s
    every_s = np.atleast_1d(median_s)
    smaller_s = np.atleast_1d(asked.median_s(_halved(kernel, rows, steps)))  # or less
    is_slower = KEPT**steps * smaller_s > every_s[rows]
    if not is_slower.any():
        return median_s
    rows, steps = rows[is_slower], steps[is_slower]
    smaller, highest_s = _halved(kernel, rows, steps), every_s.copy()
    np.maximum.at(highest_s, rows, KEPT**steps * _lowered(smaller, asked.physics(smaller), smaller_s[is_slower], asked))
    return highest_s if isinstance(median_s, np.ndarray) else highest_s.item()


def _halvings(kernel: Any, num_launches: int) -> tuple[Integers, Integers]:
    """Which launches (P,) are asked about after how many halvings (P,) of the guessed size: while it is even and no less than what was
    measured. Where it is held among guesses already, what was measured is enough."""
    name = getattr(kernel, "guessed", None)
    given = getattr(kernel, name) if name else None
    if not name or given is None or (isinstance(given, int) and given % 2):  # nothing is guessed, or it is the least already
        return NONE, NONE
    size, least = _size(kernel, name), np.ravel(kernel.guessed_from).astype(np.int64)
    every = np.log2(np.minimum(size & -size, np.maximum(1, size // least))).astype(np.int64)
    most = np.broadcast_to(every, num_launches)
    if (name,) in kernel.doublings:
        rows = np.flatnonzero((most > 0) & (size >> every == least))
        return rows, most[rows]
    rows, steps = np.nonzero(most[:, None] > np.arange(every.max()))
    return rows, steps + 1


def _halved(kernel: Any, rows: Integers, steps: Integers) -> Any:
    every = _size(kernel, kernel.guessed)
    return replace(kernel, **{**taken(kernel, rows), kernel.guessed: (every if len(every) == 1 else every[rows]) >> steps})


def _least(kernel: Any, rows: Integers, most: Floats, analytic_s: Floats, median_s: Floats, asked: Asked) -> Floats:
    """The least of each median and what its doublings leave: of these rows, which FLOP alone allow to be doubled `most` times."""
    which, powers = _faster(kernel, rows, most, analytic_s, median_s, asked)
    if not len(which):
        return median_s
    first, same = _alike(kernel, which, powers)
    parts = np.split(first, range(CHUNK, len(first), CHUNK))
    other_s = np.hstack([asked.median_s(_doubled(kernel, which[part], powers[part])) for part in parts])
    lowest_s = median_s.copy()
    np.minimum.at(lowest_s, which, other_s[same] / KEPT ** powers.sum(axis=1))
    return lowest_s


def _alike(kernel: Any, rows: Integers, powers: Integers) -> tuple[Integers, Integers]:
    """The first of those that are the same launch, and which of these each one is: neighbours of a sweep share most of their doublings."""
    names = list(dict.fromkeys(name for names in kernel.doublings for name in names))
    if rows[0] == rows[-1] or taken(kernel, rows[:1]).keys() - set(names):  # of one launch, or launches that differ in more than sizes
        return np.arange(len(rows)), np.arange(len(rows))
    doubled, code = _doubled(kernel, rows, powers), np.zeros(len(rows), np.int64)
    for name in names:
        known, which = np.unique(getattr(doubled, name), return_inverse=True)
        _, first, code = np.unique(code * len(known) + which, return_index=True, return_inverse=True)  # so that none gets too large
    return first, code


def _faster(kernel: Any, rows: Integers, most: Floats, analytic_s: Floats, median_s: Floats, asked: Asked) -> tuple[Integers, Integers]:
    """Which launches (P,) may be slower than the law allows for which of their doublings (P, A): for several sizes doubled, as far as what
    physics grows by with each of them adds up."""
    growth = _growth(kernel, rows, most, analytic_s, median_s, asked)
    can_double = np.isfinite(growth[:, :, 1])
    num_axes = can_double.sum(axis=1)
    found = [(NONE, np.zeros((0, len(kernel.doublings)), np.int64))]
    for is_asked, together in ((num_axes >= MANY, MOST_OF_MANY), ((num_axes > 0) & (num_axes < MANY), MOST_DOUBLINGS)):
        if is_asked.any():
            axes = np.flatnonzero(can_double[is_asked].any(axis=0))
            every = _powers(len(axes), together)
            count = every.sum(axis=1)
            total = LOG_KEPT * count + sum(growth[is_asked, axis][:, power] for axis, power in zip(axes, every.T, strict=True))
            place, which = np.nonzero((total < LARGEST_FALL) & (count <= most[is_asked, None]))
            powers = np.zeros((len(which), len(kernel.doublings)), np.int64)
            powers[:, axes] = every[which]
            fits = _fits(kernel, rows[is_asked][place], powers)
            found.append((rows[is_asked][place][fits], powers[fits]))
    which, powers = (np.concatenate(part) for part in zip(*found, strict=True))
    return which, powers


def _growth(kernel: Any, rows: Integers, most: Floats, analytic_s: Floats, median_s: Floats, asked: Asked) -> Floats:
    """What physics grows by, in log, with each size doubled so many times; inf from where no such launch is faster than the law allows."""
    is_doubled = _held(kernel, len(median_s))[rows]
    growth = np.full((*is_doubled.shape, MOST_DOUBLINGS + 1), np.inf)
    growth[:, :, 0] = 0.0
    for first, last in AT_ONCE if is_doubled.size < FEW else IN_TURN:
        row, axis = (each[:, None] for each in np.nonzero(is_doubled))
        row, axis, step = (each.reshape(-1) for each in np.broadcast_arrays(row, axis, np.arange(first, last + 1)))
        power = np.eye(is_doubled.shape[1], dtype=np.int64)[axis] * step[:, None]
        can_be = (step <= most[row]) & _fits(kernel, rows[row], power)
        row, axis, step, power = row[can_be], axis[can_be], step[can_be], power[can_be]
        if not len(row):
            break
        found = asked.physics(_doubled(kernel, rows[row], power))
        grown = np.log(found.analytic_s / analytic_s[rows[row]])
        may_be_faster = (grown + LOG_KEPT * step < LARGEST_FALL) & (found.bound_s < KEPT**step * median_s[rows[row]])
        growth[row, axis, step] = np.where(may_be_faster, grown, np.inf)
        is_doubled = np.isfinite(growth[:, :, last])
    return np.asarray(np.maximum.accumulate(growth, axis=2))


def _fits(kernel: Any, rows: Integers, powers: Integers) -> NDArray[np.bool_]:
    """Which doublings (P, A) of these launches (P,) can be launched: what grows alone stays within what it is of."""
    fits = np.ones(len(rows), bool)
    for name, outer in WITHIN.items():
        if (name,) in kernel.doublings:
            size, grown = _grown(kernel, name, rows, powers)
            within, outer_grown = _grown(kernel, outer, rows, powers)
            fits &= (grown <= outer_grown) | (size <= within)
    return fits


def _grown(kernel: Any, name: str, rows: Integers, powers: Integers) -> tuple[Integers, Integers]:
    """(a size after these doublings, how often it was doubled)."""
    power = powers[:, [name in names for names in kernel.doublings]].sum(axis=1)
    every = _size(kernel, name)
    return (every if len(every) == 1 else every[rows]) << power, power


def _held(kernel: Any, num_launches: int) -> NDArray[np.bool_]:
    """Which launches are held to which doublings (L, A): all whose sizes can double, but one alone where many are another kernel."""
    held = np.ones((num_launches, len(kernel.doublings)), bool)
    for axis, names in enumerate(kernel.doublings):
        for name in names:
            held[:, axis] &= _size(kernel, name) <= LARGEST >> MOST_DOUBLINGS
        if names == (getattr(kernel, "one_alone", None),):
            held[:, axis] &= _size(kernel, names[0]) > 1
    return held


def _size(kernel: Any, name: str) -> Integers:
    """One for each launch, or one for all."""
    given = getattr(kernel, name)
    return np.ravel(getattr(kernel, FOLLOWS[name]) if given is None else given).astype(np.int64)


@cache
def _powers(num_axes: int, most: int) -> Integers:
    """All ways to double along the axes, up to so often together."""
    every = [steps for count in range(1, most + 1) for steps in combinations_with_replacement(range(num_axes), count)]
    return np.array([[steps.count(axis) for axis in range(num_axes)] for steps in every])


def _doubled(kernel: Any, rows: Integers, powers: Integers) -> Any:
    """These of its launches, each with its sizes doubled as often as `powers` (P, A) say."""
    size: dict[str, Integers] = {}
    for names, power in zip(kernel.doublings, powers.T, strict=True):
        for name in names:
            if name not in size:
                every = _size(kernel, name)
                size[name] = every if len(every) == 1 else every[rows]
            size[name] = size[name] << power
    return replace(kernel, **{**taken(kernel, rows), **size})


def taken(kernel: Any, rows: Any) -> dict[str, Any]:
    """Of what differs between launches, the entries of these."""
    given = {entry.name: getattr(kernel, entry.name) for entry in fields(kernel) if entry.name not in RAGGED}
    lists = {name: np.asarray(value) for name, value in given.items() if np.ndim(value) > 0 and len(value) > 1}
    return {name: values[rows] for name, values in lists.items()}
