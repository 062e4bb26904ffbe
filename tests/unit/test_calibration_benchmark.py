"""The calibration benchmark on rows made by hand: a GPU that is a third slower than predicted."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("scipy", reason="fitting the prior needs the extra 'train'")

from benchmarks.calibration import __main__ as command
from benchmarks.calibration.curves import points
from benchmarks.calibration.held_out import HeldOut, Rows
from tilecast.learning.examples import Examples
from tilecast.learning.features import GROUPS, number_names

SLOWER = 0.3


def rows(count: int, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, len(number_names("gemm")))).astype(np.float32)
    numbers[:, number_names("gemm").index("share bound")] = -3.0
    examples = Examples(
        numbers=numbers, timed=numbers, names=[{"dtype": "bf16", "identity": "cublas", "engine": "vllm"}],
        group_of=np.zeros(count, np.int64),
        binds=random.integers(0, len(GROUPS), count), gpu=np.full(count, "l40s"), target=SLOWER + 0.03 * random.normal(size=count),
        shape=np.zeros(count), weight=np.ones(count), rank=np.arange(count),
        steady=np.ones(count, bool),
    )  # fmt: skip
    return Rows("gemm", examples, np.zeros(count), np.full(count, 0.35))


@pytest.fixture(scope="module")
def found() -> pl.DataFrame:
    entry = HeldOut("generation", "ada", "l40s", "gemm", rows(120, 0), rows(60, 1))
    return pl.DataFrame([point.to_dict() for point in points([entry], draws=2, counts=(0, 1, 5, 20, 100), quick=True)])


def test_error_falls_with_what_was_measured_and_the_interval_narrows(found: pl.DataFrame):
    random = found.filter(pl.col("choice") == "random").group_by("measured").agg(pl.col("error", "width", "inside").mean()).sort("measured")
    errors, widths = random["error"].to_list(), random["width"].to_list()
    assert errors[0] == pytest.approx(1 - np.exp(-SLOWER), abs=0.02)
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.08
    assert widths == sorted(widths, reverse=True) and widths[0] == pytest.approx(0.35)
    assert found.filter(pl.col("choice") == "planned")["measured"].max() == 20


def test_the_files_hold_every_curve(found: pl.DataFrame, tmp_path: Path):
    runs = [{"gpu": "l40s", "part": "prefill", "measured": 1.0, "before": 1.3, "after": 1.1}]
    parts = [{**runs[0], "part": part} for part in ("prefill", "decode step", "total")]
    result = {
        "version": "0", "catalogue": "c0ffee", "artifacts": "decade", "date": "2026-01-02", "command": "toy", "target": "none",
        "notes": ["a note"], "curves": command.curves(found), "runs": parts, "run_errors": command.run_errors(parts),
    }  # fmt: skip
    command.write(result, tmp_path)
    text = (tmp_path / "calibration.md").read_text(encoding="utf-8")
    assert "| all  | prefill     | 1     | 30.0      | 10.0             |" in text and "- a note" in text
    assert json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))["curves"] == result["curves"]
    whole = next(entry for entry in result["curves"] if (entry["unit"], entry["measured"], entry["choice"]) == ("mean", 20, "random"))
    assert f"{100 * whole['error']:.1f} ({100 * whole['inside']:.0f})" in text
