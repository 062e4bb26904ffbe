"""The learners that are compared learn what they can: a line, a curve, and nothing away from their rows."""

import numpy as np
import pytest

pytest.importorskip("polars")
pytest.importorskip("catboost")

from benchmarks.learners import LEARNERS

RANDOM = np.random.default_rng(1)
COLUMNS = RANDOM.normal(size=(3000, 3))
LINE = 0.2 * COLUMNS[:, 0] - 0.1 * COLUMNS[:, 1]
CURVE = 0.3 * np.sin(2.0 * COLUMNS[:, 0])


@pytest.mark.parametrize("name", LEARNERS)
def test_each_learns_a_line_but_for_the_one_that_learns_nothing(name: str) -> None:
    left = np.abs(LEARNERS[name](COLUMNS[:2500], LINE[:2500], np.ones(2500))(COLUMNS[2500:]) - LINE[2500:]).mean()
    assert left == pytest.approx(np.abs(LINE[2500:]).mean()) if name == "none" else left < 0.3 * np.abs(LINE[2500:]).mean()


@pytest.mark.parametrize("name", ["network", "Gaussian process", "trees"])
def test_a_curve_needs_more_than_a_line(name: str) -> None:
    def left(learner: str) -> float:
        return float(np.abs(LEARNERS[learner](COLUMNS[:2500], CURVE[:2500], np.ones(2500))(COLUMNS[2500:]) - CURVE[2500:]).mean())

    assert left(name) < 0.75 * left("ridge")


def test_the_process_fades_away_from_its_rows_and_the_line_does_not() -> None:
    far = np.full((1, 3), 40.0)
    answers = {name: abs(float(LEARNERS[name](COLUMNS, LINE, np.ones(3000))(far)[0])) for name in ("ridge", "Gaussian process")}
    assert answers["Gaussian process"] < 1e-6 < 1.0 < answers["ridge"]
