"""Oblivious trees: worked by hand, saturating, and the same in blocks as one by one."""

import numpy as np
import pytest

from tilecast.learning.trees import BLOCK, Trees, empty, forest


def two_trees() -> Trees:
    """First: x0 > 1 counts 1, x1 > 10 counts 2. Second: x1 > 5 alone, its other question nobody passes."""
    return Trees(
        feature=np.array([[0, 1], [1, 0]], np.int32),
        threshold=np.array([[1.0, 10.0], [5.0, np.inf]], np.float32),
        leaf=np.array([[0.5, 1.0, 2.0, 4.0], [-0.25, 0.125, 99.0, 99.0]], np.float32),
    )


@pytest.mark.parametrize(
    ("x0", "x1", "total"),
    [
        (0.0, 0.0, 0.5 - 0.25),  # no, no: leaf 0; no: leaf 0
        (2.0, 0.0, 1.0 - 0.25),  # yes, no: leaf 1
        (0.0, 11.0, 2.0 + 0.125),  # no, yes: leaf 2; yes: leaf 1
        (2.0, 11.0, 4.0 + 0.125),  # yes, yes: leaf 3
        (2.0, 7.0, 1.0 + 0.125),  # 7 passes 5, not 10
        (1.0, 10.0, 0.5 + 0.125),  # a threshold itself is not passed
    ],
)
def test_two_trees_worked_by_hand(x0: float, x1: float, total: float) -> None:
    assert two_trees().predict(np.array([[x0, x1]], np.float32)) == pytest.approx([total], abs=1e-12)


def test_beyond_the_last_threshold_nothing_changes_any_more() -> None:
    numbers = np.array([[x, y] for x in (1.001, 10.0, 1e30) for y in (10.001, 1e3, 3e38)], np.float32)
    assert set(two_trees().predict(numbers)) == {4.125}
    assert set(two_trees().predict(-numbers)) == {0.25}


def test_blocks_of_rows_are_the_rows_one_by_one() -> None:
    rng = np.random.default_rng(7)
    trees = Trees(
        feature=rng.integers(0, 5, (20, 4)).astype(np.int32),
        threshold=rng.normal(size=(20, 4)).astype(np.float32),
        leaf=rng.normal(size=(20, 16)).astype(np.float32),
    )
    numbers = rng.normal(size=(2 * BLOCK + 3, 5)).astype(np.float32)
    together = trees.predict(numbers)
    assert together.shape == (2 * BLOCK + 3,)
    for row in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 2):
        assert trees.predict(numbers[row : row + 1])[0] == together[row]


def test_a_sum_of_leaves_walked_in_plain_python() -> None:
    rng = np.random.default_rng(8)
    feature, threshold = rng.integers(0, 3, (6, 3)), rng.normal(size=(6, 3)).astype(np.float32)
    leaf = rng.normal(size=(6, 8)).astype(np.float32)
    numbers = rng.normal(size=(10, 3)).astype(np.float32)
    walked = [sum(float(leaf[t][sum(2**d for d in range(3) if row[feature[t, d]] > threshold[t, d])]) for t in range(6)) for row in numbers]
    np.testing.assert_allclose(Trees(feature.astype(np.int32), threshold, leaf).predict(numbers), walked, rtol=1e-12)


def test_no_trees_say_zero() -> None:
    assert empty().predict(np.ones((3, 4), np.float32)).tolist() == [0.0, 0.0, 0.0]


def test_no_rows_give_no_answers() -> None:
    assert two_trees().predict(np.zeros((0, 2), np.float32)).shape == (0,)
    assert empty().predict(np.zeros((0, 2), np.float32)).shape == (0,)


def test_questions_on_known_columns_may_be_answered_beforehand() -> None:
    rng = np.random.default_rng(9)
    open_columns, known = rng.normal(size=(BLOCK + 5, 4)).astype(np.float32), np.array([1.0, 0.0, 1.0], np.float32)

    def some(num_trees: int, depth: int) -> Trees:
        feature = rng.integers(0, 7, (num_trees, depth)).astype(np.int32)
        feature[0] = 5  # a tree that asks of known columns alone
        threshold = np.where(feature < 4, rng.normal(size=feature.shape), 0.5).astype(np.float32)
        return Trees(feature, threshold, rng.normal(size=(num_trees, 2**depth)).astype(np.float32))

    parts = [some(30, 3), some(20, 8), empty()]
    every = np.concatenate([open_columns, np.broadcast_to(known, (len(open_columns), 3))], axis=1)
    whole = sum(trees.predict(every) for trees in parts)
    folded = forest(parts, 4, known)
    assert folded.question.shape[0] <= 49 and folded.feature.max() < 4
    np.testing.assert_allclose(folded.predict(open_columns), whole, rtol=1e-12)
    for row in (0, 7, BLOCK):
        np.testing.assert_allclose(folded.predict(open_columns[row]), whole[row], rtol=1e-12)


def test_two_shallow_trees_become_one_and_say_the_same() -> None:
    # Seven trees of 3 questions and a deep one of 8: pairs of 6 questions, an odd one alone, and the tree of a sum's own that adds nothing.
    rng = np.random.default_rng(10)
    shallow, deep = (
        Trees(
            rng.integers(0, 4, (num_trees, depth)).astype(np.int32),
            rng.normal(size=(num_trees, depth)).astype(np.float32),
            rng.normal(size=(num_trees, 2**depth)).astype(np.float32),
        )
        for num_trees, depth in ((7, 3), (1, 8))
    )
    joined = forest([shallow, deep], 4, np.zeros(0, np.float32))
    assert np.diff([*joined.first, len(joined.leaf)]).tolist() == [2**8, 2**4, 2**6, 2**6, 2**6]
    numbers = rng.normal(size=(50, 4)).astype(np.float32)
    walked = [
        sum(
            float(trees.leaf[t][sum(2**d for d, asked in enumerate(trees.feature[t]) if row[asked] > trees.threshold[t, d])])
            for trees in (shallow, deep)
            for t in range(len(trees.feature))
        )
        for row in numbers
    ]
    np.testing.assert_allclose(joined.predict(numbers), walked, rtol=1e-12)
    np.testing.assert_allclose([joined.sums(row)[0] for row in numbers], walked, rtol=1e-12)
