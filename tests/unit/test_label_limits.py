"""What labels of whole models can be told from: sums of operators and rates of campaigns, on tables made by hand."""

import polars as pl
import pytest

from benchmarks.accuracy import label_limits

CASE = {"gpu": "l4", "model": "bert_large", "mode": "training", "seq_len": 512, "batch": 2, "option": ""}


def test_operators_count_as_often_as_layers_run_them(monkeypatch):
    once = {**CASE, "mode": "train", "fw_ms": 1.0, "bw_ms": 2.0, "acc_ms": 0.5, "total_ms": 3.5, "repeat": 1}
    rows = pl.DataFrame([once, {**once, "repeat": 24}])
    monkeypatch.setattr(label_limits, "parquet", lambda *_: rows)
    measured = pl.DataFrame([{**CASE, "part": part, "measured": 0.1} for part in ("forward", "backward", "total")])
    added = label_limits.added_up(measured)
    # 25 times 1, 2 + 0.5 and 3.5 ms
    assert dict(added.select("part", "predicted").rows()) == pytest.approx({"forward": 0.025, "backward": 0.0625, "total": 0.0875})
    others = added.filter(pl.col("part") == "total").with_columns(pl.lit("tilecast").alias("predictor"))
    both = label_limits.on_the_same_rows(others, added)
    assert both["predictor"].to_list() == ["tilecast", label_limits.ADDED]


def test_rates_of_test_rows_over_training_rows_and_of_two_boards(monkeypatch):
    shape = {"B": 1, "M": 4096, "N": 4096, "K": 4096}
    made = [("t4", "train", 50.0), ("t4", "test", 40.0), ("a100-pcie-40gb", "test", 11.0), ("a100-pcie-80gb", "test", 10.0)]
    rows = pl.DataFrame([{**shape, "gpu": gpu, "split": split, "latency_ms": ms} for gpu, split, ms in made])
    monkeypatch.setattr(label_limits, "parquet", lambda *_: rows)
    said = label_limits.campaigns()
    assert "t4 1.25" in said.lower() and "1 equal shapes: 1.10" in said


def test_a_forward_label_that_is_no_half_of_its_backward_is_the_drivers() -> None:
    labels = {2: (0.103, 0.110), 4: (0.56, 1.08)}  # by batch: forward, backward
    made = [
        {**CASE, "batch": batch, "part": part, "measured": seconds, "predictor": "tilecast"}
        for batch, both in labels.items()
        for part, seconds in zip(("forward", "backward", "total"), (*both, sum(both)), strict=True)
    ]
    assert set(label_limits.of_the_gpu(pl.DataFrame(made))["batch"]) == {4}
