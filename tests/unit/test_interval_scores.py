"""Coverage, sharpness and rank correlation of stated intervals, on errors that are known."""

import numpy as np
import polars as pl
import pytest

from benchmarks.accuracy.intervals import interval_shares
from benchmarks.accuracy.result import Result


def result(spread: np.ndarray, width: np.ndarray, **columns: object) -> Result:
    """Lognormal errors of these spreads around a prediction of 1, with intervals of these half widths."""
    error = spread * np.random.default_rng(0).standard_normal(len(spread))
    frame = pl.DataFrame({"gpu": "x", "measured": np.exp(error), "predicted": 1.0, "low": np.exp(-width), "high": np.exp(width)})
    return Result("toy", "?", frame.with_columns(predictor=pl.lit("ours"), kind=pl.lit("ours")), slices=("gpu",))


def figures(found: Result) -> dict[str, float]:
    return {str(share["name"]): float(str(share["value"])) for share in interval_shares(found) if str(share["name"]).endswith(": all")}


def test_intervals_that_follow_the_error_are_true_sharp_and_ranked() -> None:
    spread = np.repeat([0.02, 0.3], 3000)
    found = figures(result(spread, 1.2816 * spread))
    assert found["inside the 80 % interval: all"] == pytest.approx(0.8, abs=0.02)
    assert found["its width over a constant one of equal coverage: all"] < 0.95
    assert found["rank correlation of width and error: all"] > 0.5


def test_a_constant_width_is_as_sharp_as_itself_and_knows_nothing() -> None:
    found = figures(result(np.full(4000, 0.1), np.full(4000, 0.12816)))
    assert found["its width over a constant one of equal coverage: all"] == pytest.approx(1.0, abs=0.03)


def test_too_narrow_intervals_are_told() -> None:
    assert figures(result(np.full(4000, 0.1), np.full(4000, 0.05)))["inside the 80 % interval: all"] == pytest.approx(0.38, abs=0.03)


def test_predictions_without_intervals_have_no_shares() -> None:
    bare = result(np.full(100, 0.1), np.full(100, 0.1))
    assert interval_shares(Result("toy", "?", bare.predictions.drop("low", "high"), slices=("gpu",))) == []
    few = Result("toy", "?", bare.predictions.head(10), slices=("gpu",))
    assert interval_shares(few) == []
