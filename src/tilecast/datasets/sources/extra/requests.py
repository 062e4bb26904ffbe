"""serving_runs/requests.parquet: one served request a row, which is three measurements."""

import json
from pathlib import Path

import polars as pl

from tilecast.datasets.sources.extra.base import OP, TP, RawTable, as_json, words
from tilecast.errors import MissingData

REQUEST_METRICS = {"ttft_from_queued_ms": "ttft", "tpot_ms": "tpot", "e2e_from_queued_ms": "e2e"}
RUNS = "serving_runs/engine_configs.json"


def _requests(root: Path, raw: pl.DataFrame) -> pl.DataFrame:
    """A row for each request and metric, with how its run was deployed."""
    runs = _runs(root / RUNS)
    unknown = raw.join(runs, on="run_id", how="anti")["run_id"].unique().sort().to_list()
    if unknown:
        raise MissingData(f"{root / RUNS} has no run {', '.join(unknown)}")
    deployed = raw.with_columns(
        pl.when(pl.col("run_id").str.ends_with("_history"))
        .then(pl.lit("llmservingsim_history"))
        .otherwise(pl.lit("llmservingsim"))
        .alias("source"),
        method=pl.lit("client"),
        stat=pl.lit("one request"),
        dtype=pl.lit("bf16"),
    ).join(runs, on="run_id", how="left", maintain_order="left")
    return deployed.unpivot(
        on=list(REQUEST_METRICS),
        index=[name for name in deployed.columns if name not in REQUEST_METRICS],
        variable_name="op",
        value_name="ms",
    ).with_columns(latency_us=pl.col("ms") * 1e3)


def _runs(path: Path) -> pl.DataFrame:
    try:
        runs = json.loads(path.read_text())
        return pl.DataFrame(
            [
                {
                    "run_id": run["run_id"],
                    "model_id": run["model"],
                    "vllm_version": run["vllm_version"],
                    "tp": run["engine_kwargs"]["tensor_parallel_size"],
                    "dp": run["engine_kwargs"]["data_parallel_size"],
                    "expert_parallel": run["engine_kwargs"]["enable_expert_parallel"],
                    "max_num_seqs": run["engine_kwargs"]["max_num_seqs"],
                    "max_num_batched_tokens": run["engine_kwargs"]["max_num_batched_tokens"],
                }
                for run in runs
            ]
        )
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise MissingData(f"{path} is not the list of runs it should be: {problem!r}") from None


TABLE = RawTable(
    columns=words("run_id gpu request_id input_toks output_toks arrival_rel_s queue_ms") | set(REQUEST_METRICS),
    family=pl.when(pl.col("run_id").is_not_null()).then(pl.lit("serving")),
    common={"engine": pl.lit("vllm"), "engine_version": pl.col("vllm_version"), "num_repeats": pl.lit(1)},
    shapes={
        "serving": {
            "metric": OP.replace_strict(REQUEST_METRICS),
            "model": pl.col("model_id"),
            "mode": pl.lit("agg"),
            "isl": pl.col("input_toks"),
            "osl": pl.col("output_toks"),
            "tp": TP,
            "pp": pl.lit(1),
            "attention_dp": pl.col("dp"),
            "moe_tp": pl.when(pl.col("expert_parallel")).then(1),
            "moe_ep": pl.when(pl.col("expert_parallel")).then(TP * pl.col("dp")),
            "num_gpus": TP * pl.col("dp"),
            "attributes": as_json(
                run_id="run_id", request_id="request_id", arrival_s="arrival_rel_s", queue_s=pl.col("queue_ms") * 1e-3,
                max_num_seqs="max_num_seqs", max_num_batched_tokens="max_num_batched_tokens",
            ),
        }
    },
    prepare=_requests,
)  # fmt: skip
