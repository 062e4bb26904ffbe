"""What the doubling law costs: worked by hand, and on real pairs."""

import numpy as np
import polars as pl
import pytest

from benchmarks import doubling
from tilecast.datasets import store
from tilecast.datasets.schema import SHAPES
from tilecast.errors import MissingData
from tilecast.kernels.gemm import Gemm


def test_a_falling_pair_is_raised_or_lowered_where_that_is_cheaper():
    # 1.0 then 0.5: moving the first to 0.5 / 0.97 is off by 48 %, moving the second to 0.97 by 94 %.
    lawful = doubling.nearest_lawful(np.array([1.0, 0.5, 7.0]), np.array([[0, 1]]))
    np.testing.assert_allclose(lawful, [0.5 / 0.97, 0.5, 7.0])


def test_a_low_measurement_between_two_high_ones_is_the_one_that_moves():
    lawful = doubling.nearest_lawful(np.array([1.0, 0.9, 1.0]), np.array([[0, 1], [1, 2]]))
    np.testing.assert_allclose(lawful, [0.9 / 0.97, 0.9, 1.0])  # 7.2 % of the first, or 7.8 % of the second


def test_within_3_percent_nothing_moves():
    time_s = np.array([1.0, 0.98, 0.96])
    assert doubling.nearest_lawful(time_s, np.array([[0, 1], [1, 2]])) is time_s


def test_lowering_moves_the_smaller_launch_and_raising_the_larger_one():
    # 1.0 takes 0.5 when doubled, and that 0.6: one of the first two gives way, the third keeps the law with either but when raised.
    time_s, pairs = np.array([1.0, 0.5, 0.6]), np.array([[0, 1], [1, 2]])
    np.testing.assert_allclose(doubling.lowered(time_s, pairs), [0.5 / 0.97, 0.5, 0.6])
    np.testing.assert_allclose(doubling.raised(time_s, pairs), [1.0, 0.97, 0.97**2])
    assert doubling.lowered(time_s, pairs[:0]).tolist() == doubling.raised(time_s, pairs[:0]).tolist() == time_s.tolist()


def test_pairs_differ_in_one_size_by_two_and_in_nothing_else():
    rows = [(1, 64, "sglang"), (2, 64, "sglang"), (4, 64, "sglang"), (2, 128, "sglang"), (4, 128, "vllm"), (3, 64, "sglang")]
    table = pl.DataFrame(
        {
            "group": "gemm bf16",
            "gpu": "h100-sxm",
            "dtype": "bf16",
            "identity": None,
            "timer": "graph",
            "cache": "cold",
            **dict.fromkeys(SHAPES["gemm"]),
        }
        | {"m": [m for m, _, _ in rows], "n": [n for _, n, _ in rows], "engine": [engine for *_, engine in rows]},
        schema_overrides={"k": pl.Int64, "batch": pl.Int64, "bias": pl.Boolean, "identity": pl.String},
    )
    assert sorted(map(tuple, doubling.pairs_of(table, "gemm", Gemm.doublings).tolist())) == [(0, 1), (1, 2), (1, 3)]


@pytest.mark.data
@pytest.mark.parametrize("family", ["gemm", "attention_decode", "moe"])
def test_measurements_fall_and_predictions_do_not(family):
    try:
        store.source("aiconfigurator").locate()
    except MissingData as reason:
        pytest.skip(str(reason))
    found, _ = doubling.price(family, quick=True)
    assert found.pairs > 5_000
    assert found.measured > found.learned > 100 * found.predicted
    assert found.least_error > 0  # so the law and perfect accuracy exclude each other
    assert found.predicted_error < found.learned_error + 1
