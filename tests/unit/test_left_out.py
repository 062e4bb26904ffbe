"""Corrections as if a GPU had never been measured."""

from pathlib import Path

import pytest

from benchmarks.accuracy.left_out import corrections_without
from tilecast import hardware
from tilecast.datasets import store


def test_no_row_of_the_gpu_is_left_and_its_siblings_stand_in() -> None:
    where = store.available()["aiconfigurator"]
    if not isinstance(where, Path):
        pytest.skip(f"aiconfigurator: {where}")
    found = corrections_without("h100-sxm", families=("mla_prefill",), rows=60)["mla_prefill"]
    assert "h100-sxm" not in found.gpus and not any(key.startswith("h100-sxm") for key in found.local.where)
    assert {key.split()[0] for key in found.local.where} <= {"h200-sxm", "h800-sxm", "h20"}
    kernel = next(iter(found.measured["h200-sxm"]))
    assert found.stand_in(hardware.gpu("h100-sxm"), kernel) == "h200-sxm"
