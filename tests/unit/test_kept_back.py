"""Launches to look at and not to learn from: weights that were learned elsewhere must not mislead there."""

import os
from pathlib import Path

import pytest

pytest.importorskip("polars")

from benchmarks import kept_back

SAMPLE = Path(os.environ.get("TILECAST_DATA", "absent")) / "pipeweave" / "attn_fork_sample.parquet"


@pytest.mark.skipif(not SAMPLE.is_file(), reason="$TILECAST_DATA/pipeweave is absent")
def test_what_was_learned_misleads_on_no_kernel_that_was_kept_back() -> None:
    found = kept_back.measure()
    assert {(row["gpu"], row["family"]) for row in found} == {
        (gpu, family) for gpu in ("a100-sxm-80gb", "h100-sxm") for family in kept_back.FAMILIES
    }
    for row in found:
        assert row["launches"] >= 14
        assert row["learned error %"] < 1.3 * row["physics error %"], row
