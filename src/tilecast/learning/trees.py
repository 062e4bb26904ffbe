"""Oblivious trees in plain numpy: every node of a level asks the same question, so a tree is a few comparisons and one look-up.

They saturate: beyond the last threshold nothing changes any more, which is what a correction must do far from its data.
Names and GPUs are columns too, the same for all launches of a call: a `Forest` has answered their questions beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 256  # rows at a time: their answers stay in cache
DEEPEST = 8  # questions of a tree: the number of a leaf fits a byte
SMALLEST_LEAF = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """T trees of depth D. `feature` and `threshold` are (T, D), `leaf` is (T, 2 ** D)."""

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]

    def predict(self, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of every tree's leaf, for each row."""
        return forest([self], numbers.shape[1], np.zeros(0, np.float32)).predict(numbers)


# Nobody passes, and nothing is added.
NOTHING = Trees(np.zeros((1, 1), np.int32), np.full((1, 1), np.inf, np.float32), np.zeros((1, 2), np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """T trees of at most DEEPEST questions that make one sum or several; each of the Q different questions is asked once."""

    feature: NDArray[np.int64]  # (Q,)
    threshold: NDArray[np.float32]  # (Q,)
    question: NDArray[np.int64]  # (T, DEEPEST), lowest bit first; what is beyond a tree's depth is a question that nobody passes
    first: NDArray[np.int64]  # (T,) of each tree's leaves
    leaf: NDArray[np.float64]  # wide enough to hold sums of two trees' as they are
    begin: NDArray[np.int64]  # (S,) the first tree of each sum; every sum has one

    def predict(self, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of every tree's leaf, for each row of (R, F), of a forest that makes one sum."""
        return np.asarray(self.sums(numbers)[0])

    def sums(self, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
        """(S, R) for the rows of (R, F), or (S,) for a single row (F,)."""
        if numbers.ndim == 1:
            passed = numbers.take(self.feature) > self.threshold
            leaf_of = np.packbits(passed.take(self.question), bitorder="little")
            values = self.leaf.take(leaf_of + self.first)
            return np.add.reduceat(values, self.begin)
        totals = np.empty((len(self.begin), len(numbers)))
        parts = [slice(*ends) for ends in pairwise((*self.begin.tolist(), None))]
        for start in range(0, len(numbers), BLOCK):
            columns = np.ascontiguousarray(numbers[start : start + BLOCK].T)  # a question reads one feature of many rows
            answers = (columns.take(self.feature, axis=0) > self.threshold[:, None]).view(np.uint8)
            values = self.leaf.take(self._leaves(answers) + self.first[:, None], mode="clip")
            for total, trees in zip(totals, parts, strict=True):
                values[trees].sum(axis=0, out=total[start : start + BLOCK])
        return totals

    def _leaves(self, answers: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The number of the leaf that each row (Q, R) reaches in each tree: (T, R)."""
        leaf_of = np.zeros((len(self.question), answers.shape[1]), np.uint8)
        for question in self.question.T[::-1]:
            leaf_of += leaf_of  # the next bit; a shift by one
            leaf_of |= answers.take(question, axis=0)
        return leaf_of

    def moved(self, columns: int, num_questions: int) -> "Forest":
        """The same trees, but the first questions are about features that lie that many columns further right."""
        return replace(self, feature=self.feature + np.where(np.arange(len(self.feature)) < num_questions, columns, 0))


def together(forests: Sequence[Forest]) -> Forest:
    """Their sums one after the other, from one look at the numbers."""

    def joined(name: str, counted: str | None = None) -> Any:
        """Entries end to end; places in what is `counted` move with it."""
        lengths = [len(getattr(each, counted)) if counted else 0 for each in forests]
        moved = accumulate(lengths[:-1], initial=0)
        parts = [(getattr(each, name), start) for each, start in zip(forests, moved, strict=True)]
        return np.concatenate([values + start if start else values for values, start in parts])

    places = {"question": "feature", "first": "leaf", "begin": "first"}
    return Forest(**{entry.name: joined(entry.name, places.get(entry.name)) for entry in fields(Forest)})


def forest(parts: Sequence[Trees], num_open: int, known: NDArray[np.float32]) -> Forest:
    """Specialise the trees of `parts` to known names: answer their questions once, leave those about numbers open.

    Columns from `num_open` on are known; the forest gives the sum of all trees."""
    folded = [_folded(trees, num_open, known) for trees in (*parts, NOTHING)]  # a sum has one tree at least
    feature, threshold = (np.concatenate([getattr(trees, name) for trees, _ in folded]) for name in ("feature", "threshold"))
    leaf = np.concatenate([trees.leaf for trees, _ in folded]).astype(np.float64)
    depth = np.concatenate([depth for _, depth in folded])
    nobody_passes = np.arange(DEEPEST) >= depth[:, None]
    codes = np.where(nobody_passes, -1, feature.astype(np.int64) << 32 | threshold.view(np.uint32))
    constant = leaf[depth == 0, 0].sum()
    codes, leaf, depth = _paired(*_deepest_first(codes, leaf, depth))
    leaf[0] += constant  # what trees add that have no question left
    different, question = np.unique(codes, return_inverse=True)
    size = 1 << depth
    asked = different >= 0
    return Forest(
        feature=np.where(asked, different >> 32, 0),
        threshold=np.where(asked, (different & 0xFFFFFFFF).astype(np.uint32).view(np.float32), np.inf).astype(np.float32),
        question=question.reshape(codes.shape),
        first=np.cumsum(size) - size,
        leaf=leaf[np.arange(1 << DEEPEST) < size[:, None]],
        begin=np.zeros(1, np.int64),
    )


Asked = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]  # questions (T, DEEPEST), leaves (T, 2 ** DEEPEST), depths (T,)


def _deepest_first(codes: NDArray[np.int64], leaf: NDArray[np.float64], depth: NDArray[np.int64]) -> Asked:
    """Without those that have no question left."""
    order = np.argsort(-depth, kind="stable")[: np.count_nonzero(depth)]
    return codes[order], leaf[order], depth[order]


def _paired(codes: NDArray[np.int64], leaf: NDArray[np.float64], depth: NDArray[np.int64]) -> Asked:
    """Two trees as one, which fills more of its byte: each of the deepest with the shallowest that is left, where that has room."""
    lengths, left = depth.tolist(), len(depth)
    first: list[int] = []
    for place, length in enumerate(lengths):
        if place + 1 < left and length + lengths[left - 1] <= DEEPEST:
            first.append(place)
            left -= 1
    second = len(depth) - 1 - np.arange(len(first))
    own, levels = depth[first, None], np.arange(DEEPEST)
    behind = np.take_along_axis(codes[second], np.maximum(levels - own, 0), axis=1)
    paired = codes[:left].copy(), leaf[:left].copy(), depth[:left].copy()
    paired[0][first] = np.where(levels < own, codes[first], behind)
    paired[1][first] += np.take_along_axis(leaf[second], np.arange(1 << DEEPEST) >> own, axis=1)
    paired[2][first] += depth[second]
    return paired


def _folded(trees: Trees, num_open: int, known: NDArray[np.float32]) -> tuple[Trees, NDArray[np.int64]]:
    """The trees at depth DEEPEST with their open questions first, and how many of these each one has."""
    levels = trees.feature.shape[1]
    assert levels <= DEEPEST, f"trees ask {levels} questions, at most {DEEPEST} are read"
    pad = ((0, 0), (0, DEEPEST - levels))
    feature, threshold = np.pad(trees.feature, pad), np.pad(trees.threshold, pad)
    is_open = (feature < num_open) & (np.arange(DEEPEST) < levels)
    passes = np.append(known, 0.0)[np.where(feature < num_open, -1, feature - num_open)] > threshold
    reached = ((passes & ~is_open)[:, :levels] << np.arange(levels)).sum(axis=1)
    order = np.argsort(~is_open, axis=1, kind="stable")
    depth = is_open.sum(axis=1)
    place = reached[:, None]  # of leaf 0, then of the leaves with one more bit, ...
    for level in range(DEEPEST):
        place = np.concatenate([place, place + np.where(level < depth, 1 << order[:, level], 0)[:, None]], axis=1)
    leaf = np.take_along_axis(trees.leaf, place, axis=1)
    return Trees(np.take_along_axis(feature, order, axis=1), np.take_along_axis(threshold, order, axis=1), leaf), depth


@dataclass(frozen=True, slots=True, eq=False)
class Grove:
    """Many sets of trees end to end, as they lie in a file: a leaf is a byte times its tree's scale. `where` names each set's rows."""

    feature: NDArray[np.uint8]  # (T, D)
    threshold: NDArray[np.float32]
    leaf: NDArray[np.int8]  # (T, 2 ** D)
    scale: NDArray[np.float32]  # (T,)
    where: Mapping[str, Sequence[int]]  # name -> first tree, and the one after the last

    def __contains__(self, name: str) -> bool:
        return name in self.where

    def trees(self, name: str) -> Trees:
        rows = slice(*self.where[name])
        return Trees(self.feature[rows].astype(np.int32), self.threshold[rows], self.leaf[rows] * self.scale[rows, None])


def grove(sets: Mapping[str, Trees]) -> Grove:
    """`sets` packed; a leaf moves by at most 1/254 of its tree's largest."""
    kept = {name: trees for name, trees in sets.items() if len(trees.feature)}
    if not kept:
        return Grove(np.zeros((0, 1), np.uint8), np.zeros((0, 1), np.float32), np.zeros((0, 2), np.int8), np.zeros(0, np.float32), {})
    deepest = max(trees.feature.shape[1] for trees in kept.values())
    deep = [_deepened(trees, deepest) for trees in kept.values()]
    feature, threshold, leaf = (np.concatenate([getattr(trees, part) for trees in deep]) for part in ("feature", "threshold", "leaf"))
    assert feature.max() < 256, "a feature's number must fit a byte"
    scale = (np.maximum(np.abs(leaf).max(axis=1), SMALLEST_LEAF) / 127).astype(np.float32)
    ends = np.cumsum([len(trees.feature) for trees in kept.values()]).tolist()
    where = {name: (end - len(trees.feature), end) for (name, trees), end in zip(kept.items(), ends, strict=True)}
    return Grove(feature.astype(np.uint8), threshold, np.rint(leaf / scale[:, None]).astype(np.int8), scale, where)


def _deepened(trees: Trees, depth: int) -> Trees:
    """The same trees with more questions, which nobody passes."""
    more = depth - trees.feature.shape[1]
    feature = np.pad(trees.feature, ((0, 0), (0, more)))
    threshold = np.pad(trees.threshold, ((0, 0), (0, more)), constant_values=np.inf)
    return Trees(feature, threshold, np.pad(trees.leaf, ((0, 0), (0, (1 << depth) - trees.leaf.shape[1]))))


def empty() -> Trees:
    return Trees(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros((0, 2), np.float32))
