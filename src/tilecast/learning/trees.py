"""Oblivious trees in plain numpy: every node of a level asks the same question, so a tree is a few comparisons and one look-up.

They saturate: beyond the last threshold nothing changes any more, which is what a correction must do far from its data.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024  # rows at a time: their comparisons stay in cache


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """T trees of depth D. `feature` and `threshold` are (T, D), `leaf` is (T, 2 ** D)."""

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]

    def predict(self, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of every tree's leaf, for each row."""
        num_trees, depth = self.feature.shape
        if not num_trees:
            return np.zeros(len(numbers))
        question, threshold = self.feature.reshape(-1), self.threshold.reshape(-1)
        weight = (1 << np.arange(depth)).astype(np.float32)
        first = (np.arange(num_trees) << depth)[None, :]
        leaves = self.leaf.reshape(-1)
        total = np.empty(len(numbers))
        for start in range(0, len(numbers), BLOCK):
            part = numbers[start : start + BLOCK]
            answers = (part[:, question] > threshold).reshape(len(part), num_trees, depth)
            where = (answers @ weight).astype(np.int64) + first
            total[start : start + BLOCK] = leaves[where].sum(axis=1, dtype=np.float64)
        return total


def empty() -> Trees:
    return Trees(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros((0, 2), np.float32))
