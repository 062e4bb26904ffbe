"""Diagnose, then tune: do kernels that stand far above the ceiling gain when somebody tunes them? `python -m benchmarks.tuning`

The ceiling never saw the layer it is asked about. Gains are of two kinds: PipeWeave re-tuned kernels that its own ceiling had flagged
(`moe_tuning_demo`), and its exhaustive searches give the best time of 16 layers whether anybody flagged them or not (`moe_dse_summary`).
"""

from pathlib import Path

import polars as pl

from benchmarks.accuracy.our_ceilings import for_layers
from benchmarks.accuracy.peer_tables import parquet
from benchmarks.accuracy.suites.ceiling import cases
from tilecast.datasets.sources.pipeweave import GPUS

PROBLEM = ("gpu", "tokens", "layer")
QUANTILE = 0.8
FLAG = 0.05  # measured this much above the ceiling
GAINED = 0.05
FOLDER = Path(__file__).parents[2]
PICTURE = FOLDER / "docs" / "tuning-gap.png"
RESULT = FOLDER / "benchmarks" / "results" / "tuning.json"


def keyed(table: pl.DataFrame) -> pl.DataFrame:
    layer = pl.concat_str([pl.col(name).cast(pl.String) for name in ("E", "topk", "H", "N")], separator="x").alias("layer")
    return table.with_columns(layer, pl.col("M").alias("tokens"))


def gains() -> pl.DataFrame:
    """Every launch that was measured and tuned: its gap to the ceiling, and what tuning gained."""
    rows = for_layers("moe", cases("moe"))[QUANTILE]
    gap = (pl.col("measured") * pl.col("ceiling") / pl.col("bound_s") - 1).alias("gap")
    found = rows.select(*PROBLEM, "measured", gap)
    demo = keyed(parquet("pipeweave", "moe_tuning_demo.parquet", "gpu M E topk H N baseline_us tuned_us rel_gap", GPUS))
    demo = demo.select(
        *PROBLEM, (pl.col("tuned_us") * 1e-6).alias("best"), (-pl.col("rel_gap")).alias("peer_gap"), pl.lit("re-tuned").alias("of")
    )
    summary = keyed(parquet("pipeweave", "moe_dse_summary.parquet", "gpu M E topk H N best_us", GPUS))
    searched = summary.select(
        *PROBLEM, (pl.col("best_us") * 1e-6).alias("best"), pl.lit(None, pl.Float64).alias("peer_gap"), pl.lit("searched").alias("of")
    )
    joined = pl.concat([demo, searched]).join(found, on=PROBLEM, how="inner")
    return joined.with_columns((pl.col("measured") / pl.col("best") - 1).alias("gain"), (pl.col("gap") > FLAG).alias("flagged"))


def summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Per set and GPU: how many were flagged, how many of those gained, by how much, and how the gap goes with the gain."""
    flagged = pl.col("flagged")
    gained = pl.col("gain") > GAINED
    return rows.group_by("of", "gpu").agg(
        pl.len().alias("kernels"), flagged.sum().alias("flagged"),
        (100 * gained.filter(flagged).mean()).alias("flagged that gained, %"),
        (100 * gained.filter(~flagged).mean()).alias("others that gained, %"),
        (1 + pl.col("gain").filter(flagged).mean()).alias("speed-up, flagged"),
        (1 + pl.col("gain").filter(~flagged).mean()).alias("speed-up, others"),
        (100 * (1 + pl.col("gap") < 1 + pl.col("gain") + 0.02).filter(flagged).mean()).alias("flagged that reached the ceiling, %"),
        pl.corr("gap", "gain").alias("correlation of gap and gain"), pl.corr("gap", "gain", method="spearman").alias("rank correlation"),
        pl.corr("peer_gap", "gain").alias("PipeWeave's correlation"),
    ).sort("of", "gpu")  # fmt: skip


def draw(rows: pl.DataFrame) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, of in zip(axes, ("searched", "re-tuned"), strict=True):
        for (gpu,), part in rows.filter(pl.col("of") == of).sort("gpu").group_by("gpu", maintain_order=True):
            axis.scatter(100 * part["gap"], 100 * part["gain"], s=5, alpha=0.6, label=str(gpu))
        axis.axline((0, 0), slope=1, color="0.6", lw=0.8)
        axis.axvline(100 * FLAG, color="0.8", lw=0.8, ls="--")
        axis.set(
            title=f"{of}: {rows.filter(pl.col('of') == of).height} kernels",
            xlabel="measured above the P80 ceiling, %",
            xlim=(-40, 160),
            ylim=(-10, 200),
        )
        axis.legend(fontsize=7)
    axes[0].set_ylabel("gained by tuning, %")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    rows = gains()
    table = summed(rows)
    draw(rows)
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=220, float_precision=2):
        print(table)


if __name__ == "__main__":
    main()
