"""Prefill and decode workers apart: measured TTFT and TPOT of the points that name their workers, beside AIConfigurator's predictions."""

import polars as pl

from benchmarks.accuracy.disaggregated_points import answer, points
from benchmarks.accuracy.peer_tables import Share, errors, scored, share
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.suites import serving

QUICK = 12  # every so many points
METRICS = ("ttft", "tpot")


def ours(asked: pl.DataFrame) -> pl.DataFrame:
    """One row per point and metric: our mean, the ends of its interval, and why there is none."""
    rows = []
    for number, row in enumerate(asked.to_dicts()):
        if not number % 50:
            say(f"  {number:,} of {asked.height:,} points")
        found = answer(row)
        rows += [
            {"id": row["id"], "metric": metric, "why": found["why"]}
            | {name: found.get(key) for name, key in (("ours", metric), ("low", f"{metric}_low"), ("high", f"{metric}_high"))}
            for metric in METRICS
        ]
    numbers = dict.fromkeys(("ours", "low", "high"), pl.Float64)
    return pl.DataFrame(rows, schema={"id": pl.String, "metric": pl.String, "why": pl.String, **numbers})


def run(quick: bool) -> Result:
    every = serving.cases("attributes").filter(pl.col("mode") == "disagg")
    named = points(every)
    asked = named.gather_every(QUICK) if quick else named
    measured = every.drop("attributes").filter(pl.col("id").is_in(asked["id"].to_list()))
    answers = measured.join(ours(asked), on=["id", "metric"], how="left", maintain_order="left")
    columns = [*measured.columns, "predictor", "kind", "predicted"]
    mine, peer = scored(answers, serving.OURS, "ours", "ours"), serving.peer(measured)
    predictions = pl.concat([mine.select(columns), peer.select(columns)])
    tried = peer.filter(pl.col("predicted").is_not_null())["id"].unique().to_list()
    shares: list[Share] = []
    for metric in METRICS:
        of_metric = predictions.filter(pl.col("metric") == metric)
        shares += errors(of_metric, metric, "points that name their workers", median=True)
        shares += errors(of_metric.filter(pl.col("id").is_in(tried)), metric, "points that AIConfigurator answers", median=True)
        known = mine.filter((pl.col("metric") == metric) & pl.col("predicted").is_not_null())
        inside = known.filter(pl.col("measured").is_between(pl.col("low"), pl.col("high"))).height
        shares.append(share(f"{metric} inside the 80 % interval", serving.OURS, 100 * inside / max(1, known.height), known.height))
    refused = mine.filter((pl.col("metric") == "tpot") & pl.col("predicted").is_null())
    reasons = refused.group_by(pl.col("why").str.slice(0, 60)).len().sort("len", descending=True).to_dicts()
    return Result(
        suite=SUITE.name,
        question="How far off are TTFT and TPOT where prefill and decode run on workers of their own?",
        predictions=predictions,
        slices=("metric", "engine", "gpu"),
        splits=[{"kind": "constants", "held out": "all of them: nothing is fitted on these points", "seed": None, "rows": measured.height}],
        shares=shares,
        notes=[
            f"{every['id'].n_unique():,} points are disaggregated; {named.height} name their workers and their users, and can be asked.",
            f"AIConfigurator was run on 94 of all; {len(tried)} of these are among the ones asked here and got an answer.",
            "Our failures: " + ("; ".join(f"{row['len']} {row['why']}" for row in reasons) or "none") + ".",
            "Lengths and rounds as for aggregated points; how many requests TensorRT-LLM's decode workers may run is what the points'"
            " recipes publish (disaggregated_points.py). Other limits, and how requests were routed, are not known of all: engines run as"
            " they come, with our one rule (docs/serving.md). Speculative decoding is not marked, and counts.",
            "In the racks, tokens are sent to their experts alone where the recipes say so (experts_all_to_all). SGLang's block-scaled"
            " experts on Blackwell are priced as the fused kernel that was measured for it, a third as fast as DeepGEMM: hence the worst"
            " first tokens.",
        ],
        target="none published: AIConfigurator on the points that it answers",
    )


SUITE = Suite(
    name="serving-disaggregated",
    title="Prefill and decode workers apart: TTFT and TPOT",
    run=run,
    needs=("aiconfigurator",),
    folders=("aiconfigurator",),
)
