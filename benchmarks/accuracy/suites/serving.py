"""Served models under load: measured TTFT and TPOT of aggregated deployments, beside AIConfigurator's predictions for the same points."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy.peer_tables import Share, errors, parquet, plain, scored, share, spearman
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.serving_points import answer, points
from tilecast.datasets import store
from tilecast.predictors import predict_kernel

AIC = "AIConfigurator 0.12.0"
PREDICTED = {"ttft": "aic_ttft_ms", "tpot": "aic_tpot_ms"}
# Models that share an architecture and size are one to a held-out split.
ARCHITECTURES: Mapping[str, str] = {
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "meta-llama/Llama-3.1-70B": "llama-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-8b",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-8b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "zhipuai/GLM-5": "glm-5",
}
DENSE = ("qwen3-32b", "llama-70b", "llama-8b")
CONSTANTS_FROM = ("llama-8b", "qwen3-32b")  # on H200: the only points from which constants may be taken
OURS, PHYSICS = "tilecast", "tilecast, physics alone"
QUICK = 40  # every so many points
PriceOn = Callable[[str], Any]  # GPU -> what prices kernels there
PRICES: Mapping[str, PriceOn] = {OURS: lambda _: predict_kernel, PHYSICS: lambda _: partial(predict_kernel, learned=False)}
GROUP = ("model", "gpu", "engine", "isl", "osl")
NEAR = ("isl", "osl", "concurrency", "tp")


def cases(*extra: str) -> pl.DataFrame:
    """One row per measured point and metric, in seconds. Points whose expert sizes are 0 (dense models) stay: 0 means "none" there."""
    rows = plain(store.rows("serving", ["aiconfigurator"], usable=False)).rename({"latency_s": "measured"})
    architecture = pl.col("model").replace_strict(ARCHITECTURES)
    return rows.select(
        pl.col("attributes").str.json_path_match("$.id").alias("id"),
        *("metric", "gpu", "engine", "engine_version", "model", "mode", "dtype"),
        architecture.alias("architecture"),
        pl.when(architecture.is_in(DENSE)).then(pl.lit("dense")).otherwise(pl.lit("moe")).alias("model_class"),
        *("isl", "osl", "concurrency", "batch", "tp", "attention_dp", "moe_tp", "moe_ep", "measured"),
        *extra,
    )


def peer(measured: pl.DataFrame) -> pl.DataFrame:
    """AIConfigurator on every point it was run on: null where it failed; `db_mode` says whether measured tables sufficed (SILICON)."""
    wide = parquet("aiconfigurator", "serving_points_with_aic.parquet", f"id db_mode err {' '.join(PREDICTED.values())}")
    tried = wide.filter(pl.col("aic_tpot_ms").is_not_null() | pl.col("err").is_not_null())
    names = {column: metric for metric, column in PREDICTED.items()}
    long = tried.rename(names).unpivot(list(PREDICTED), index=["id", "db_mode", "err"], variable_name="metric", value_name="ms")
    joined = measured.join(long, on=["id", "metric"], how="inner", maintain_order="left")
    return scored(joined, AIC, "peer", pl.col("ms") / 1e3).drop("ms")


def scaled_peer(aic: pl.DataFrame) -> pl.DataFrame:
    """AIConfigurator times one constant per metric, from the H200 points that constants may be taken from; scored on all other points."""
    allowed = (pl.col("gpu") == "h200-sxm") & pl.col("architecture").is_in(CONSTANTS_FROM)
    ratio = (pl.col("measured") / pl.col("predicted")).median().alias("constant")
    constants = aic.filter(allowed & pl.col("predicted").is_not_null()).group_by("metric").agg(ratio)
    others = aic.filter(~allowed).join(constants, on="metric", how="left", maintain_order="left")
    return scored(others, f"{AIC} x constant", "baseline", pl.col("predicted") * pl.col("constant")).select(aic.columns)


def nearest_point(aic: pl.DataFrame) -> pl.DataFrame:
    """The time of the nearest point of another architecture (same metric, class and engine; log distance over NEAR; the GPU is ignored)."""
    frames = []
    for _, part in aic.group_by("metric", "model_class", "engine", maintain_order=True):
        place = part.select(pl.col(NEAR).cast(pl.Float64).fill_null(1.0).log()).to_numpy()
        distance = np.abs(place[:, None, :] - place[None, :, :]).sum(axis=2)
        model = part["architecture"].to_numpy()
        barred = model[:, None] == model[None, :]
        nearest = np.where(barred, np.inf, distance).argmin(axis=1)
        predicted = np.where(barred.all(axis=1), np.nan, part["measured"].to_numpy()[nearest])
        frames.append(scored(part, "nearest point of another model", "baseline", pl.lit(pl.Series(predicted)).fill_nan(None)))
    return pl.concat(frames).select(aic.columns)


def ours(aic: pl.DataFrame, quick: bool, prices: Mapping[str, PriceOn]) -> tuple[pl.DataFrame, list[Mapping[str, object]]]:
    """Our own answers, by name of the predictor, and why the first has none. Labels are means: that is what the points show from which
    constants may be taken (docs/serving.md)."""
    asked = points(aic).sort("gpu", maintain_order=True)
    asked = asked.gather_every(QUICK) if quick else asked
    frames, refused = [], list[Mapping[str, object]]()
    for name, price_on in prices.items():
        rows = []
        for number, row in enumerate(asked.to_dicts()):
            if not number % 500:
                say(f"  {name}: {number:,} of {asked.height:,} served points")
            found = answer(row, price_on(row["gpu"]))
            if found["why"] and name == next(iter(prices)):
                refused.append({**row, "why": found["why"]})
            rows += [{"id": row["id"], "metric": metric, "ours": found.get(f"{metric}_mean")} for metric in PREDICTED]
        frame = pl.DataFrame(rows, schema={"id": pl.String, "metric": pl.String, "ours": pl.Float64})
        joined = aic.join(frame, on=["id", "metric"], how="inner", maintain_order="left")
        frames.append(scored(joined, name, "ours", "ours").select(aic.columns))
    return pl.concat(frames), refused


def ranks(predictions: pl.DataFrame, metric: str, over: str) -> list[Share]:
    """Median over groups of the rank correlation inside one: whether the better deployment is known to be better."""
    per_group = spearman(predictions.filter(pl.col("metric") == metric), GROUP)
    medians = per_group.group_by("predictor", maintain_order=True).agg(pl.col("spearman").median(), pl.len())
    name = f"{metric} median rank correlation over {over}"
    return [share(name, row["predictor"], row["spearman"], row["len"]) for row in medians.to_dicts()]


def run(quick: bool) -> Result:
    measured = cases()
    everywhere = peer(measured)
    aggregated = everywhere.filter(pl.col("mode") == "agg")
    mine, refused = ours(aggregated, quick, PRICES)
    predictions = pl.concat([mine, aggregated, scaled_peer(aggregated), nearest_point(aggregated)])
    allowed = (pl.col("gpu") == "h200-sxm") & pl.col("architecture").is_in(CONSTANTS_FROM)
    from_tables = pl.col("db_mode") == "SILICON"
    shares: list[Share] = []
    for metric in PREDICTED:
        asked = pl.col("metric") == metric
        shares += errors(everywhere.filter(asked), metric, "all predicted points, disaggregated ones too", median=True)
        shares += errors(predictions.filter(asked), metric, "aggregated points", median=True)
        for group in ("dense", "moe"):
            of_class = asked & (pl.col("model_class") == group)
            shares += errors(predictions.filter(of_class), metric, f"aggregated {group} points", median=True)
            others = predictions.filter(of_class & ~allowed)
            shares += errors(others, metric, f"aggregated {group} points, none that constants may come from", median=True)
            tables = aggregated.filter(of_class & from_tables)
            shares += errors(tables, metric, f"aggregated {group} points from measured tables", median=True)
            # The figures in circulation count the NVIDIA-quantised Llama and Qwen points as MoE.
            by_name = (pl.col("model_class") == "dense") & ~pl.col("model").str.starts_with("nvidia/")
            quoted = aggregated.filter(asked & from_tables & (by_name if group == "dense" else ~by_name))
            shares += errors(quoted, metric, f"aggregated {group} points from measured tables, as quoted", median=True)
        shares += ranks(predictions, metric, "groups")
        shares += ranks(aggregated.filter(from_tables), metric, "groups from measured tables")
    failed = aggregated.filter((pl.col("metric") == "tpot") & pl.col("predicted").is_null())
    answered = mine.filter((pl.col("predictor") == OURS) & (pl.col("metric") == "tpot"))
    shares.append(share("failed share of aggregated points", OURS, 100 * len(refused) / answered.height, answered.height))
    shares.append(share("failed share of aggregated points", AIC, 100 * failed.height / (aggregated.height / 2), aggregated.height // 2))
    reason = pl.col("err").str.extract(r"^(\w+:(?:\s*\w+){1,3})").alias("reason")
    reasons = failed.group_by(reason).agg(pl.len()).sort("len", "reason", descending=[True, False])
    return Result(
        suite=SUITE.name,
        question="How far off are time to first token and time per output token of a served model?",
        predictions=predictions,
        slices=("metric", "model_class", "gpu", "engine"),
        splits=[
            {"kind": "constants", "held out": "all but Llama-3.1-8B and Qwen3-32B on H200", "seed": None, "rows": aggregated.height},
            {"kind": "model", "held out": "each architecture in turn ('nearest point' only)", "seed": None, "rows": aggregated.height},
        ],
        shares=shares,
        notes=[
            f"{measured['id'].n_unique()} points measured; AIConfigurator was run on all {aggregated['id'].n_unique()} aggregated ones, and"
            f" on {everywhere['id'].n_unique() - aggregated['id'].n_unique()} disaggregated ones that count in the pooled figures only.",
            "AIConfigurator used its newest tables for every engine version (it refuses older ones), and its hybrid mode where these lack"
            " an entry.",
            "Our failures: " + "; ".join(f"{row['len']} {row['reason']}" for row in _reasons(refused)) + ".",
            "Ours are means over a simulated benchmark: InferenceMAX's public protocol (lengths drawn from 0.8 to 1 of the nominal ones,"
            " ten requests a user, all at once, its servers' limits), and for the other campaigns what docs/serving.md says.",
            "Its failures: " + "; ".join(f"{row['len']} {row['reason']}" for row in reasons.to_dicts()) + ".",
            "Figures in circulation for 'dense' and 'MoE' hold only where measured tables sufficed, and count 24 points of NVIDIA-quantised"
            " Llama and Qwen models as MoE; both readings are in the shares.",
            "Whether a label is a mean or a median is not stated, and some points may use speculative decoding.",
        ],
        target="AIConfigurator 0.12.0, pooled: TPOT 32.8 % (median 18.2), TTFT 53.6 % (46.3); median rank correlation of TPOT 0.976",
    )


def _reasons(refused: list[Mapping[str, object]]) -> list[dict[str, object]]:
    if not refused:
        return []
    what = (
        pl.col("why")
        .str.extract(r"^(tp = \d+ (?:cuts|does not divide|is more)|[\w.-]+ in \w+ is not modelled|[^;,]{1,60})")
        .alias("reason")
    )
    return pl.DataFrame(refused).select(what).group_by("reason").agg(pl.len()).sort("len", "reason", descending=[True, False]).to_dicts()


SUITE = Suite(
    name="serving",
    title="Served models under load: TTFT and TPOT",
    run=run,
    needs=("aiconfigurator",),
    folders=("aiconfigurator",),
)
