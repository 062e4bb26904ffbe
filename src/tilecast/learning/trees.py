"""Oblivious trees in plain numpy: every node of a level asks the same question, so a tree is a few comparisons and one look-up.

They saturate: beyond the last threshold nothing changes any more, which is what a correction must do far from its data.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 256  # rows at a time: their comparisons stay in cache


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """T trees of depth D. `feature` and `threshold` are (T, D), `leaf` is (T, 2 ** D)."""

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]

    def predict(self, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of every tree's leaf, for each row."""
        num_trees, depth = self.feature.shape
        total = np.zeros(len(numbers))
        if not num_trees:
            return total
        first = (np.arange(num_trees, dtype=np.int32) << depth)[:, None]
        leaves = self.leaf.reshape(-1)
        for start in range(0, len(numbers), BLOCK):
            columns = np.ascontiguousarray(numbers[start : start + BLOCK].T)  # a question reads one feature of many rows
            where = np.repeat(first, columns.shape[1], axis=1)
            for level in range(depth):
                answers = columns[self.feature[:, level]] > self.threshold[:, level, None]
                where += answers.astype(np.int32) << level
            total[start : start + BLOCK] = leaves[where].sum(axis=0, dtype=np.float64)
        return total


def empty() -> Trees:
    return Trees(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros((0, 2), np.float32))
