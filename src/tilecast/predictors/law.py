"""The law of doubling: a launch of twice the size takes at least 0.97 of the time.

Whoever has a kernel for twice the work can pad half of it, so a median is lowered to what its doublings allow. What is learned follows
measurements, which do not keep the law: libraries change kernels with the size (decision 0010). The least median over all doublings keeps
it; physics says which of them could matter. Where only a launch's smallest size was ever measured, keys without a prefix say, it is the
guess about more of them that gives way: it is raised to what the measured ones leave. So it is with numbers and widths of heads, and with
layers of experts, that no row of this kernel has. Where its rows show that a library runs another kernel from some number or width of
heads on, the law ends (`Asked.built`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecast.execution import Priced
from tilecast.execution.tasks import Floats, Numbers
from tilecast.kernels.base import KEPT, LARGEST, Built
from tilecast.predictors.built import KV_HEADS, Flags, built_size, halvings_to_rows, has_rows, same_kernel
from tilecast.predictors.scaled import Integers, scaled, size_of, taken

LOG_KEPT = -math.log(KEPT)
MOST_DOUBLINGS = 13  # of all sizes together
LARGEST_FALL = 1.5  # log: where physics grows by more, nothing learned makes up for it
MARGIN = 0.8  # log: what physics grows by along several sizes is less than the sum, where KV is split by rule
SLACK = 0.15  # log: where physics was asked, a launch is no faster beside it than the fastest row, but for this
AT_ONCE, IN_TURN = ((1, MOST_DOUBLINGS),), ((1, 1), (2, MOST_DOUBLINGS))  # the first and last doubling that physics is asked for together
ROWS, CHUNK = 1024, 4096  # launches whose doublings are looked at together, and doublings asked for at once, so that memory lasts
FEW = 64  # launches, few enough that asking twice costs more than asking for too many
WITHIN = {"q_len": "kv_len", "topk": "num_experts"}  # a size that grows alone stays within another one
SAME_FLOP = ((KV_HEADS,), ("num_experts",))  # doubled
STEPS = np.arange(MOST_DOUBLINGS + 1)
MOST = {"num_experts": 2048 >> STEPS}  # twice as many as any layer has
MOST_BUILT = {"num_heads": 256 >> STEPS, "head_dim": 512 >> STEPS}  # so of query heads of one KV head, and of the width of a head

NONE: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked about other launches of a kernel: physics, and the median as learned."""

    physics: Callable[[Any], Priced]
    median_s: Callable[[Any], Numbers]
    built: Mapping[str, Built] = field(default_factory=dict)  # what doubles alone -> what rows say of the kernels built for it
    lowest: float | None = None  # log(median / physics) of the launches that are fastest beside physics
    is_learned: bool = True

    def most_lost(self, median_s: Floats, analytic_s: Floats, margin: float = MARGIN) -> Floats:
        """By how much physics may grow, in log, for what was learned to make up for it."""
        if self.lowest is None:
            return np.full(len(median_s), LARGEST_FALL)
        return np.minimum(np.log(median_s / analytic_s) - self.lowest + margin, LARGEST_FALL)


Kept = Callable[[Any, Priced, Numbers, Asked], Numbers]  # what a step below leaves of medians


def lawful(kernel: Any, found: Priced, median_s: Numbers, asked: Asked) -> Numbers:
    """The medians as the law leaves them; `found` is what physics says of the same launches.

    Requests of different lengths, and experts with tokens of their own, have no one size to double: they stay as they were learned.
    """
    if not getattr(kernel, "doublings", ()) or not getattr(kernel, "has_sizes", True):
        return median_s
    return _above(kernel, *_halvings(kernel, np.size(median_s)), _kept(kernel, found, median_s, asked), asked, _kept)


def _kept(kernel: Any, found: Priced, median_s: Numbers, asked: Asked) -> Numbers:
    """Each median as its doublings leave it or, with heads of a width that no row has, as narrower ones ask that rows have."""
    lowest_s, known = _lowered(kernel, found, median_s, asked), _known(kernel, asked)
    if known is None:
        return lowest_s
    return _above(kernel, *halvings_to_rows(kernel, known, np.size(median_s)), lowest_s, asked, _lowered)


def _known(kernel: Any, asked: Asked) -> Built | None:
    """What rows have of the sizes that this family is known by."""
    found = asked.built.get(getattr(kernel, "known_by", ("",))[0])
    return found if found is not None and found.known else None


def _lowered(kernel: Any, found: Priced, median_s: Numbers, asked: Asked) -> Numbers:
    """Each median, or less where a launch with something doubled is that much faster."""
    is_lone = not isinstance(median_s, np.ndarray)
    is_open = KEPT * median_s > 2.0 * found.flop_s if kernel.doubles_flop else median_s > 0.0  # else nothing of twice the FLOP is as fast
    same_flop = [names in SAME_FLOP for names in kernel.doublings]
    if not any(same_flop) and not (is_open if is_lone else np.any(is_open)):
        return median_s
    every_s = np.atleast_1d(median_s)
    most = np.full(len(every_s), MOST_DOUBLINGS, np.float64)
    if kernel.doubles_flop:
        most = np.minimum(most, np.log(every_s / found.flop_s) / math.log(2.0 / KEPT))
    is_held = np.broadcast_to(is_open, every_s.shape)[:, None] | same_flop
    ways = _ways(kernel, is_held, asked)
    rows, kept_s = np.flatnonzero(ways.any(axis=(1, 2))), every_s
    for part in np.split(rows, range(ROWS, len(rows), ROWS)):
        if len(part):
            least_s = _least(kernel, part, most[part], ways[part], np.atleast_1d(found.analytic_s), every_s, asked)
            kept_s = np.minimum(kept_s, least_s)
    return kept_s.item() if is_lone else kept_s


def _above(kernel: Any, rows: Integers, halved: Mapping[str, Integers], median_s: Numbers, asked: Asked, kept: Kept) -> Numbers:
    """Each median, or more where one of these launches (P,), with sizes halved so often (P,), is that much slower.

    What is `kept` of that one keeps the law in all other sizes, so the most of several does."""
    if not len(rows):
        return median_s
    every_s, steps = np.atleast_1d(median_s), np.asarray(sum(halved.values()))
    smaller_s = np.atleast_1d(asked.median_s(scaled(kernel, rows, {name: -each for name, each in halved.items()})))  # or less
    is_slower = KEPT**steps * smaller_s > every_s[rows]
    if not is_slower.any():
        return median_s
    rows, steps, halved = rows[is_slower], steps[is_slower], {name: each[is_slower] for name, each in halved.items()}
    smaller, highest_s = scaled(kernel, rows, {name: -each for name, each in halved.items()}), every_s.copy()
    np.maximum.at(highest_s, rows, KEPT**steps * kept(smaller, asked.physics(smaller), smaller_s[is_slower], asked))
    return highest_s if isinstance(median_s, np.ndarray) else highest_s.item()


def _halvings(kernel: Any, num_launches: int) -> tuple[Integers, dict[str, Integers]]:
    """Which launches (P,) are asked about after how many halvings (P,) of the guessed size: while it is even and no less than what was
    measured. Where it is held among guesses already, what was measured is enough."""
    name = getattr(kernel, "guessed", None)
    given = getattr(kernel, name) if name else None
    if not name or given is None or (isinstance(given, int) and given % 2):  # nothing is guessed, or it is the least already
        return NONE, {}
    size, least = size_of(kernel, name), np.ravel(kernel.guessed_from).astype(np.int64)
    every = np.log2(np.minimum(size & -size, np.maximum(1, size // least))).astype(np.int64)
    most = np.broadcast_to(every, num_launches)
    if (name,) in kernel.doublings:
        rows = np.flatnonzero((most > 0) & (size >> every == least))
        return rows, {name: most[rows]}
    rows, steps = np.nonzero(most[:, None] > np.arange(every.max()))
    return rows, {name: steps + 1}


def _ways(kernel: Any, is_held: Flags, asked: Asked) -> Flags:
    """By how many doublings launches that are held in some ways (L, A) are held (L, A, S): while sizes can double, unless that alone is
    another kernel, and no further than to where rows show that another one runs."""
    may = np.repeat(is_held[:, :, None], len(STEPS), axis=2) & (STEPS > 0)
    for axis, names in enumerate(kernel.doublings):
        for name in names:
            may[:, axis] &= size_of(kernel, name)[:, None] <= MOST.get(name, LARGEST >> MOST_DOUBLINGS)
        if hasattr(kernel, "may_double") and len(names) == 1:
            may[:, axis] &= kernel.may_double(names[0], asked.is_learned)[:, None]
        if _is_built(kernel, names):
            may[:, axis] &= same_kernel(kernel, names[0], asked.built.get(names[0]), STEPS)
            may[:, axis] &= built_size(kernel, names[0])[:, None] <= MOST_BUILT.get(names[0], LARGEST)
    return may


def _is_built(kernel: Any, names: Sequence[str]) -> bool:
    """Whether what doubles is one of the sizes that libraries build kernels for."""
    return len(names) == 1 and names[0] in getattr(kernel, "built_for", ())


def _least(kernel: Any, rows: Integers, most: Floats, may: Flags, analytic_s: Floats, median_s: Floats, asked: Asked) -> Floats:
    """The least of each median and what its doublings leave: of these rows, whose FLOP may be doubled `most` times."""
    which, powers = _faster(kernel, rows, most, may, analytic_s, median_s, asked)
    known = _known(kernel, asked)
    if known is not None and len(which):  # of guesses and rows it is the guesses that give way
        is_row = np.broadcast_to(has_rows(kernel, known), len(median_s))
        may_ask = has_rows(_doubled(kernel, which, powers), known) | ~is_row[which]
        which, powers = which[may_ask], powers[may_ask]
    if len(which) > FEW:  # trees take ten times as long as physics
        may_be_faster = _may_be_faster(kernel, which, powers, analytic_s, median_s, asked)
        which, powers = which[may_be_faster], powers[may_be_faster]
    if not len(which):
        return median_s
    lowest_s = median_s.copy()
    np.minimum.at(lowest_s, which, _answers(kernel, which, powers, asked.median_s) / KEPT ** powers.sum(axis=1))
    return lowest_s


def _may_be_faster(kernel: Any, which: Integers, powers: Integers, analytic_s: Floats, median_s: Floats, asked: Asked) -> Flags:
    """Whether physics of these doublings (P, A) of launches (P,) leaves room for what the law forbids."""

    def physics(doubled: Any) -> Floats:
        found = asked.physics(doubled)
        return np.stack(np.broadcast_arrays(np.atleast_1d(found.analytic_s), found.bound_s))

    (doubled_s, bound_s), num_doubled = _answers(kernel, which, powers, physics), powers.sum(axis=1)
    grown = np.log(doubled_s / analytic_s[which]) + LOG_KEPT * num_doubled
    is_near = grown < asked.most_lost(median_s[which], analytic_s[which], SLACK)
    return np.asarray(is_near & (bound_s < KEPT**num_doubled * median_s[which]))


def _answers(kernel: Any, which: Integers, powers: Integers, ask: Callable[[Any], Numbers]) -> Floats:
    """What is said of these doublings (P, A) of launches (P,), each different one asked about once."""
    first, same = _alike(kernel, which, powers)
    parts = np.split(first, range(CHUNK, len(first), CHUNK))
    return np.asarray(np.hstack([ask(_doubled(kernel, which[part], powers[part])) for part in parts])[..., same])


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


def _faster(
    kernel: Any, rows: Integers, most: Floats, may: Flags, analytic_s: Floats, median_s: Floats, asked: Asked
) -> tuple[Integers, Integers]:
    """Which launches (P,) may be slower than the law allows for which of their doublings (P, A): for several sizes doubled, as far as what
    physics grows by with each of them adds up."""
    growth = _growth(kernel, rows, most, may, analytic_s, median_s, asked)
    lost = asked.most_lost(median_s[rows], analytic_s[rows])
    place, total = np.arange(len(rows)), np.zeros(len(rows))
    powers = np.zeros((len(rows), len(kernel.doublings)), np.int64)
    num_flop = np.zeros(len(rows), np.int64)
    for axis, names in enumerate(kernel.doublings):  # each of these ways so far, with one more size doubled or not
        grown = total[:, None] + growth[place, axis] + LOG_KEPT * STEPS
        may_grow = (grown < lost[place, None]) & (powers.sum(axis=1)[:, None] + STEPS <= MOST_DOUBLINGS)
        if names not in SAME_FLOP:
            may_grow &= num_flop[:, None] + STEPS <= most[place, None]
        may_grow[:, 0] = True
        way, step = np.nonzero(may_grow)
        place, total, powers = place[way], grown[way, step], powers[way]
        powers[:, axis] = step
        num_flop = num_flop[way] + step * (names not in SAME_FLOP)
    found = np.flatnonzero(powers.any(axis=1))
    found = found[_fits(kernel, rows[place[found]], powers[found])]
    return rows[place[found]], powers[found]


def _growth(kernel: Any, rows: Integers, most: Floats, may: Flags, analytic_s: Floats, median_s: Floats, asked: Asked) -> Floats:
    """What physics grows by, in log, with each size doubled so many times; inf from where no such launch is faster than the law allows."""
    by_flop = np.where([names in SAME_FLOP for names in kernel.doublings], np.inf, most[:, None])
    may = may & (by_flop[:, :, None] >= STEPS)
    growth = np.full(may.shape, np.inf)
    growth[:, :, 0] = 0.0
    margin = 0.0 if getattr(kernel, "physics_grows", False) else MARGIN  # else less may follow more
    is_doubled, lost = np.asarray(may.any(axis=2)), asked.most_lost(median_s[rows], analytic_s[rows], margin)
    for first, last in AT_ONCE if is_doubled.size < FEW else IN_TURN:
        row, axis, step = np.nonzero(may[:, :, first : last + 1] & is_doubled[:, :, None])
        step += first
        power = np.eye(may.shape[1], dtype=np.int64)[axis] * step[:, None]
        fits = _fits(kernel, rows[row], power)
        row, axis, step, power = row[fits], axis[fits], step[fits], power[fits]
        if len(row):
            found = asked.physics(_doubled(kernel, rows[row], power))
            grown = np.log(found.analytic_s / analytic_s[rows[row]])
            may_be_faster = (grown + LOG_KEPT * step < lost[row]) & (found.bound_s < KEPT**step * median_s[rows[row]])
            growth[row, axis, step] = np.where(may_be_faster, grown, np.inf)
        is_doubled = np.isfinite(growth[:, :, last])
    return np.asarray(np.maximum.accumulate(growth, axis=2))


def _fits(kernel: Any, rows: Integers, powers: Integers) -> Flags:
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
    every = size_of(kernel, name)
    return (every if len(every) == 1 else every[rows]) << power, power


def _doubled(kernel: Any, rows: Integers, powers: Integers) -> Any:
    """These of its launches, each with its sizes doubled as often as `powers` (P, A) say."""
    names = dict.fromkeys(name for names in kernel.doublings for name in names)
    return scaled(kernel, rows, {name: powers[:, [name in axis for axis in kernel.doublings]].sum(axis=1) for name in names})
