"""One whole run per GPU: how far off the other SGLang cases are before and after `tilecast calibrate --run`."""

from typing import Any

import polars as pl

from benchmarks.accuracy.peer_tables import parquet
from benchmarks.accuracy.suites.e2e_inference import CASE, MODELS, cases
from tilecast.engines.calibrated import profile_from_run
from tilecast.engines.predict import predict

FIRST = ("Qwen2.5-14B", "arxiv_8")  # the case that calibrates; the others of its GPU are scored
PARTS = {"prefill": "prefill_s", "decode step": "decode_step_s", "total": "total_s"}


def scores() -> list[dict[str, Any]]:
    """A row for each scored case and part: measured, predicted before and after."""
    measured = cases()
    requests = parquet("pipeweave", "workload_requests.parquet", "workload request prefill_tokens output_len_used")
    every = measured.select(CASE).unique(maintain_order=True).to_dicts()
    found = []
    for gpu in sorted({case["gpu"] for case in every}):
        mine = [case for case in every if case["gpu"] == gpu]
        first = next(case for case in mine if (case["model"], case["workload"]) == FIRST)
        seconds = {PARTS[part]: value for part, value in _seconds(measured, first).items()}
        profile = profile_from_run({"command": "predict", "inputs": _inputs(first, requests), "measured": seconds}, gpu)
        for case in (case for case in mine if case != first):
            inputs = _inputs(case, requests)
            before, after = predict(**inputs), predict(**inputs, profile=profile)
            for part, value in _seconds(measured, case).items():
                row = {**case, "part": part, "measured": value}
                found.append({**row, "before": getattr(before, PARTS[part]).median, "after": getattr(after, PARTS[part]).median})
    return found


def _seconds(measured: pl.DataFrame, case: dict[str, Any]) -> dict[str, float]:
    mine = measured.filter(*(pl.col(name) == value for name, value in case.items()))
    return dict(mine.select("part", "measured").iter_rows())


def _inputs(case: dict[str, Any], requests: pl.DataFrame) -> dict[str, Any]:
    pairs = requests.filter(pl.col("workload") == case["workload"]).sort("request").select("prefill_tokens", "output_len_used")
    return {"model": MODELS[case["model"]], "gpu": case["gpu"], "tp": case["tp"], "requests": [list(pair) for pair in pairs.iter_rows()]}
