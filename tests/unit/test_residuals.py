"""Where physics and measurements part: the slice that is told to be wide, and the size that tells why."""

import numpy as np
import pytest

pytest.importorskip("polars")

from benchmarks.residuals import page, parts
from tilecast.learning.examples import Examples
from tilecast.learning.features import number_names

RANDOM = np.random.default_rng(2)
COLUMNS = number_names("gemm")


def made(count: int = 600) -> Examples:
    """Two slices: one as physics says, with noise; one whose ratio grows by a tenth with every power of two of k."""
    numbers = np.zeros((count, len(COLUMNS)), np.float32)
    for size in ("m", "n", "k"):
        numbers[:, COLUMNS.index(f"log2 {size}")] = RANDOM.integers(4, 12, count) + 0.5
    group = np.arange(count) % 2
    target = 0.01 * RANDOM.normal(size=count) + np.where(group == 1, 0.1 * numbers[:, COLUMNS.index("log2 k")], 0.0)
    names = [{"engine": "sglang", "dtype": "bf16", "identity": "cublas"}, {"engine": "trtllm", "dtype": "fp8", "identity": "None"}]
    of_rows = {"numbers": numbers, "timed": numbers, "group_of": group, "binds": group, "gpu": np.full(count, "h100-sxm")}
    ones = np.ones(count)
    return Examples(names=names, target=target, shape=ones, weight=ones, rank=group, steady=ones > 0, **of_rows)


def test_the_widest_slice_comes_first_with_the_size_it_moves_with() -> None:
    first, second = parts(made(), "gemm")
    assert (first.name, first.size, first.rows) == ("h100-sxm trtllm fp8", "k", 300)
    assert first.told > 0.95
    assert list(first.medians) == [2**power for power in range(4, 12)]
    np.testing.assert_allclose(np.diff(np.log(list(first.medians.values()))), 0.1, atol=0.02)
    assert second.name == "h100-sxm sglang bf16 cublas"
    assert 0.98 < second.low < second.high < 1.02
    assert second.told < 0.2


def test_its_page_names_both() -> None:
    text = page("gemm", parts(made(), "gemm"))
    assert text.startswith("gemm: measured / analytic, 2 slices")
    assert text.index("trtllm fp8") < text.index("sglang bf16 cublas")


def test_slices_of_few_rows_are_left_out() -> None:
    assert parts(made(100), "gemm") == []
