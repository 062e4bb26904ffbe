"""Products of a step that goes on run at the clock that the power limit leaves on average."""

from unittest import mock

import numpy as np
import pytest

from tilecast.engines import step_parts
from tilecast.engines.settled import stretched
from tilecast.engines.step import predict_step


def test_products_alone_settle_whole():
    assert stretched(np.array([1.0, 2.0]), np.array([1.2, 1.1])) == pytest.approx([1.2, 1.1], rel=1e-5)


def test_what_draws_less_leaves_products_their_clock():
    # Half the time at 1.21 of the limit, half at 0.7: below it on average.
    assert stretched(np.array([0.5, 0.5]), np.array([1.1, 0.0])).tolist() == [1.0, 1.0]


def test_some_of_it_leaves_some():
    # y times as long, the product draws (1.2 / y)^2 of the limit; with half a second at 0.7 beside it: 1.44 / y - y = 0.15.
    found = stretched(np.array([1.0, 0.5]), np.array([1.2, 0.0]))
    assert found == pytest.approx([(np.sqrt(0.15**2 + 4 * 1.44) - 0.15) / 2, 1.0], rel=1e-5)


def test_a_product_below_the_settled_rate_keeps_its_time():
    assert stretched(np.array([1.0, 1.0]), np.array([1.3, 0.9]))[1] == 1.0


def alone_and_settled(gpu: str, **asked: object) -> float:
    """A step over one whose products keep the clock of a burst."""

    def step_s() -> float:
        how = {"mode": "training", "batch": 4, "seq": 2048, "dtype": "bf16", "optimizer": None, **asked}
        return predict_step("mosaicml/mpt-7b", gpu, **how).step_s.median

    with mock.patch.object(step_parts, "settled", lambda times, *_: tuple(times)):
        alone_s = step_s()
    return step_s() / alone_s


def test_h100_and_b200_are_slower_in_long_runs_and_a100_is_not():
    """Rows of single products: 777 TFLOP/s and 680 of the longest on H100, 1,616 and 1,403 on B200, 250 of all on A100."""
    assert 1.01 < alone_and_settled("h100-sxm") < 777 / 680
    assert 1.0 <= alone_and_settled("b200-sxm") < 1616 / 1403
    assert alone_and_settled("a100-sxm-80gb") == pytest.approx(1.0, abs=0.01)


def test_full_fp32_has_an_account_of_its_own():
    assert alone_and_settled("h100-sxm", dtype="fp32", attention="eager", batch=1) == 1.0
