"""How far labels of whole models can be told from kernels at all: NeuSight's own operators added up, campaigns that disagree, fresh memory.

Nothing here is fitted or used by a prediction: it says which part of an error no kernel model can remove.
"""

from typing import Any

import polars as pl

from benchmarks.accuracy.peer_tables import parquet, scored
from tilecast import hardware
from tilecast.datasets.sources.neusight import GPUS
from tilecast.engines.step import predict_step

ADDED = "measured operators, added up"
CASE = ("gpu", "model", "mode", "seq_len", "batch", "option")
PARTS = {"forward": pl.col("fw_ms"), "backward": pl.col("bw_ms") + pl.col("acc_ms"), "total": pl.col("total_ms")}
MODES = {"inf": "inference", "train": "training"}
LARGE_FLOP = 5e10
LARGE_SIZE = 1024  # rows and columns of a product that fills a GPU
LONGEST = 16384  # reductions beyond are slower everywhere
LONGEST_FORWARD = 0.65  # of the backward pass, which has twice the FLOP: labels lie between 0.48 and 0.60, or from 0.72 up
KEEPING = ("a100-pcie-80gb", "mi210", "v100-pcie-32gb")  # GPUs whose training labels are compared below


def added_up(measured: pl.DataFrame) -> pl.DataFrame:
    """Cases as the sum of their operators' labels, each times the layers that run it."""
    rows = parquet("neusight", "perop_labels.parquet", f"{' '.join(CASE)} fw_ms bw_ms acc_ms total_ms repeat", GPUS)
    sums = [(1e-3 * part * pl.col("repeat")).sum().alias(name) for name, part in PARTS.items()]
    wide = rows.with_columns(pl.col("mode").replace_strict(MODES)).group_by(CASE, maintain_order=True).agg(*sums)
    long = wide.unpivot(list(PARTS), index=list(CASE), variable_name="part", value_name="predicted")
    joined = measured.join(long, on=[*CASE, "part"], how="inner", maintain_order="left")
    return scored(joined, ADDED, "bound").select(*measured.columns, "predictor", "kind", "predicted")


def on_the_same_rows(predictions: pl.DataFrame, added: pl.DataFrame) -> pl.DataFrame:
    """Everyone's predictions of the cases whose operators were measured, and the sums of these operators."""
    case = [*CASE, "part"]
    known = predictions.join(added, on=case, how="semi", maintain_order="left")
    return pl.concat([known, added.join(predictions, on=case, how="semi", maintain_order="left")])


def of_the_gpu(predictions: pl.DataFrame) -> pl.DataFrame:
    """Training cases whose forward label is in keeping with the backward one. The others asked the driver for memory meanwhile: as host
    time they all take 17 to 26 ms for a GB that they keep, on A100 and MI210 alike, whatever their kernels do."""
    wide = predictions.pivot(on="part", index=[*CASE, "predictor"], values="measured", aggregate_function="first")
    usual = wide.filter(pl.col("forward") <= LONGEST_FORWARD * pl.col("backward"))
    return predictions.join(usual, on=[*CASE, "predictor"], how="semi", maintain_order="left")


def fresh_memory(own: pl.DataFrame) -> str:
    """What forward labels of training take longer than our kernels, by the bytes they keep for the backward pass."""
    told: dict[str, list[str]] = {}
    for row in own.filter((pl.col("part") == "forward") & pl.col("gpu").is_in(KEEPING) & (pl.col("option") == "")).to_dicts():
        kept = predict_step(
            row["model"], row["gpu"], mode="training", batch=row["batch"], seq=row["seq_len"], dtype="fp32", attention="eager",
            optimizer=None, learned=False,
        ).memory  # fmt: skip
        beyond, whole = (1e12 * seconds / kept.saved_bytes for seconds in (row["measured"] - row["predicted"], row["measured"]))
        full = 100 * kept.total_bytes / kept.capacity_bytes
        told.setdefault(row["gpu"], []).append(f"{row['model']} x {row['batch']} {beyond:.1f} of {whole:.1f} ({full:.0f} %)")
    listed = "; ".join(f"{hardware.gpu(gpu).label}: {', '.join(entries)}" for gpu, entries in told.items())
    return (
        f"Forward labels of training beyond our kernels, and whole, in ms per GB that the pass keeps (and how full the GPU is): {listed}."
    )


def campaigns() -> str:
    """Rates of large linear layers in NeuSight's test rows over those of its training rows on the same GPU, and of two A100."""
    sizes = "B M N K".split()
    raw = parquet("neusight", "linear.parquet", "gpu B M N K split latency_ms", GPUS)
    flop = 2.0 * pl.col("B") * pl.col("M") * pl.col("N") * pl.col("K")
    large = (flop > LARGE_FLOP) & (pl.col("M") > LARGE_SIZE) & (pl.col("K") > LARGE_SIZE) & (pl.col("N") < LONGEST)
    rows = raw.filter(large).with_columns((flop / pl.col("latency_ms")).alias("rate"))
    medians = rows.group_by("gpu", "split").agg(pl.col("rate").median()).pivot(on="split", index="gpu", values="rate")
    both = medians.filter(pl.col("train").is_not_null() & pl.col("test").is_not_null()).sort("gpu")
    told = [f"{hardware.gpu(row['gpu']).label} {row['test'] / row['train']:.2f}" for row in both.to_dicts()]
    small, big = (rows.filter((pl.col("gpu") == gpu) & (pl.col("split") == "test")) for gpu in ("a100-pcie-40gb", "a100-pcie-80gb"))
    pairs = small.join(big, on=sizes)
    ratio: Any = (pairs["rate_right"] / pairs["rate"]).median()
    return (
        f"Linear layers above {LARGE_FLOP / 1e9:.0f} GFLOP, FLOP/s of test rows over training rows: {', '.join(told)};"
        f" A100 80GB (300 W) over A100 40GB (250 W), {pairs.height} equal shapes: {ratio:.2f}."
    )
