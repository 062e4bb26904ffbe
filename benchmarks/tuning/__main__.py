"""Diagnose, then tune: do kernels that stand far above the ceiling gain when somebody tunes them? `python -m benchmarks.tuning`

The ceiling never saw the layer it is asked about. Gains are of two kinds: PipeWeave re-tuned kernels that its own ceiling had flagged
(`moe_tuning_demo`), and its exhaustive searches give the best time of 16 layers whether anybody flagged them or not (`moe_dse_summary`).
Written: the figures as benchmarks/results/tuning.json, their table and the picture in docs/tuning.md.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.accuracy.our_ceilings import for_layers
from benchmarks.accuracy.peer_tables import parquet
from benchmarks.accuracy.suites.ceiling import cases
from tilecast.datasets.sources.pipeweave import GPUS
from tilecast.report import versions

PROBLEM = ("gpu", "tokens", "layer")
QUANTILE = 0.8
FLAG = 0.05  # measured this much above the ceiling
GAINED = 0.05
NEAR = 0.02  # of the ceiling: this much above it still counts as reached
FOLDER = Path(__file__).parents[2]
PICTURE = FOLDER / "docs" / "tuning-gap.png"
RESULT = FOLDER / "benchmarks" / "results" / "tuning.json"
DOCUMENT = FOLDER / "docs" / "tuning.md"
BEGIN, END = "<!-- gains:begin -->", "<!-- gains:end -->"


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
        pl.len().alias("num_kernels"), flagged.sum().alias("num_flagged"),
        (100 * gained.filter(flagged).mean()).alias("flagged_gained_percent"),
        (100 * gained.filter(~flagged).mean()).alias("others_gained_percent"),
        (1 + pl.col("gain").filter(flagged).mean()).alias("flagged_speedup"),
        (1 + pl.col("gain").filter(~flagged).mean()).alias("others_speedup"),
        (100 * (pl.col("gap") < pl.col("gain") + NEAR).filter(flagged).mean()).alias("reached_ceiling_percent"),
        pl.corr("gap", "gain").alias("correlation"), pl.corr("gap", "gain", method="spearman").alias("rank_correlation"),
        pl.corr("peer_gap", "gain").fill_nan(None).alias("peer_correlation"),
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


HEADER = (
    "kernels", "GPU", "flagged", "of these gained", "of the others", "speed-up: flagged, others", "reached the ceiling", "gap and gain: r",
    "rank r", "PipeWeave's r",
)  # fmt: skip


def markdown(entries: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for entry in entries:
        peer = entry["peer_correlation"]
        cells = (
            entry["of"], entry["gpu"], f"{entry['num_flagged']} of {entry['num_kernels']}", _percent(entry["flagged_gained_percent"]),
            _percent(entry["others_gained_percent"]), f"{entry['flagged_speedup']:.2f}, {entry['others_speedup']:.2f}",
            _percent(entry["reached_ceiling_percent"]), f"{entry['correlation']:.2f}", f"{entry['rank_correlation']:.2f}",
            "" if peer is None else f"{peer:.2f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([BEGIN, *lines, END])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def renewed(text: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """The page with its table made anew."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: markdown(entries), text, flags=re.DOTALL)


def main() -> None:
    rows = gains()
    entries = summed(rows).to_dicts()
    draw(rows)
    RESULT.write_text(json.dumps({"versions": versions(), "gpus": entries}, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(encoding="utf-8"), entries), encoding="utf-8")
    print(markdown(entries))


if __name__ == "__main__":
    main()
