"""Launches to look at and not to learn from: the look is at those rows, and at nothing that any weights were chosen by."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("polars")

from benchmarks import kept_back

SAMPLE = Path(os.environ.get("TILECAST_DATA", "absent")) / "pipeweave" / "attn_fork_sample.parquet"


@pytest.mark.skipif(not SAMPLE.is_file(), reason="$TILECAST_DATA/pipeweave is absent")
def test_every_gpu_and_family_of_the_sample_is_told_of() -> None:
    found = kept_back.measure()
    assert {(row["gpu"], row["family"]) for row in found} == {
        (gpu, family) for gpu in ("a100-sxm-80gb", "h100-sxm") for family in kept_back.FAMILIES
    }
    for row in found:
        assert row["launches"] >= 14
        assert all(np.isfinite(value) for name, value in row.items() if name.endswith("%")), row
