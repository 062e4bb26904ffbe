"""The shipped package against its own record: no slice of measured kernels or whole batches becomes worse unnoticed."""

import pytest

from benchmarks import gate
from tilecast.errors import Unavailable


@pytest.mark.data
def test_no_slice_became_worse_than_recorded() -> None:
    try:
        errors = gate.measure()
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert len(errors.keys() & gate.recorded().keys()) > 300
    assert gate.worse(gate.recorded(), errors) == []


def test_a_worse_slice_and_a_worse_mean_are_told() -> None:
    old = {f"slice {number}": 5.0 for number in range(20)}
    assert gate.worse(old, old) == []
    assert gate.worse(old, {**old, "slice 3": 6.9}) == []
    assert gate.worse(old, {**old, "slice 3": 7.1}) == ["slice 3: 5.0 -> 7.1 %"]
    assert gate.worse(old, dict.fromkeys(old, 5.4)) == ["mean over 20 slices: 5.00 -> 5.40 %"]
    assert gate.worse(old, {"another": 99.0}) == []
