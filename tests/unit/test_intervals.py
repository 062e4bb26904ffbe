"""How far the trees that say an error's size are trusted."""

import numpy as np
import pytest

from tilecast.learning import intervals
from tilecast.learning.trees import NOTHING, Trees

TREES = Trees(NOTHING.feature, NOTHING.threshold, np.ones((1, 2), np.float32))


def trust(said: np.ndarray, errors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(intervals, "_told_apart", lambda *_: (said, np.ones(len(said)), errors))
    return float(intervals._trusted(None, TREES, None).leaf[0, 0])  # type: ignore[arg-type]


def test_trees_that_know_are_trusted_and_trees_that_guess_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    size = np.exp(draw.normal(-3.0, 0.7, 4000))
    errors = size * np.abs(draw.normal(size=4000))
    assert trust(size, errors, monkeypatch) == 0.5  # a share of all rows is held most cheaply by widths less apart than the errors
    assert trust(draw.permutation(size), errors, monkeypatch) == 0.25


def test_the_share_held_is_the_one_stated() -> None:
    units = np.arange(1.0, 101.0)
    assert intervals._holding(units, np.ones(100)) == pytest.approx(80.0)
    few_weigh_more = np.where(units > 90, 10.0, 1.0)  # of 190, the last ten hold 100
    assert intervals._holding(units, few_weigh_more) == pytest.approx(97.0)
