"""Served models on a GPU that was never measured: every point priced with weights that saw no row of its GPU."""

from functools import lru_cache, partial
from typing import Any

import polars as pl

from benchmarks.accuracy.left_out import ROWS, corrections_without
from benchmarks.accuracy.peer_tables import Share, errors
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.suites import serving
from tilecast.predictors import predict_kernel

UNSEEN = "tilecast, without the point's GPU"
QUICK_ROWS = 60


def run(quick: bool) -> Result:
    aggregated = serving.peer(serving.cases()).filter(pl.col("mode") == "agg")

    @lru_cache(maxsize=1)  # points come GPU by GPU
    def price_on(gpu: str) -> Any:
        return partial(predict_kernel, corrections=corrections_without(gpu, rows=QUICK_ROWS if quick else ROWS))

    mine, _ = serving.ours(aggregated, quick, {UNSEEN: price_on} | dict(serving.PRICES))
    is_asked = pl.col("predictor") == UNSEEN  # the others say what the GPU's own rows, and learning, are worth
    mine = mine.with_columns(pl.when(is_asked).then(pl.col("kind")).otherwise(pl.lit("baseline")).alias("kind"))
    predictions = pl.concat([mine, aggregated])
    shares: list[Share] = []
    for metric in serving.PREDICTED:
        for group in ("dense", "moe"):
            of_class = predictions.filter((pl.col("metric") == metric) & (pl.col("model_class") == group))
            shares += errors(of_class, metric, f"aggregated {group} points", median=True)
        shares += serving.ranks(predictions, metric, "groups")
    return Result(
        suite=SUITE.name,
        question="How far off is a served model on a GPU of which no row was learned from?",
        predictions=predictions,
        slices=("metric", "model_class", "gpu", "engine"),
        splits=[{"kind": "gpu, siblings in", "held out": "the GPU of each point", "seed": 0, "rows": aggregated.height}],
        shares=shares,
        notes=[
            f"Weights without a row of the point's GPU, on at most {ROWS:,} rows of each GPU, engine, dtype and identity; GPUs of the same"
            " die may stand in. Engine constants are those of the package.",
            "AIConfigurator cannot leave a GPU out: its rows are those of the suite serving.",
        ],
        target="AIConfigurator with the GPU's own tables: TPOT 32.8 % pooled",
    )


SUITE = Suite(
    name="serving-unseen",
    title="Served models on GPUs never measured",
    run=run,
    needs=("aiconfigurator",),
    folders=("aiconfigurator",),
)
