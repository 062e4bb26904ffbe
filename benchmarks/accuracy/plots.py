"""Two pictures of a result: the error CDF of every predictor, and predicted against measured for the best of each kind."""

from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.accuracy.comparison import KINDS, best
from benchmarks.accuracy.result import Result, headline
from tilecast.errors import MissingExtra
from tilecast.palette import GREY, SERIES

LINES = {"ours": "-", "baseline": "--", "peer": ":"}
MOST_POINTS = 4000
DPI = 80


def draw(result: Result, folder: Path) -> list[str]:
    """Write both PNG files into `folder` and return their names."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.of("viz", "drawing plots") from None
    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{result.suite}-cdf.png", f"{result.suite}-scatter.png"]
    _cdf(result, folder / names[0])
    _scatter(result, folder / names[1])
    return names


def _answers(result: Result, predictor: str) -> pl.DataFrame:
    return result.predictions.filter((pl.col("predictor") == predictor) & pl.col("predicted").is_not_null())


def _cdf(result: Result, path: Path) -> None:
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, axes = plt.subplots(figsize=(7, 4.5))
    drawn = dict.fromkeys(KINDS, 0)  # a colour is used once for each kind, and kinds differ in line style
    for row in headline(result).sort("mape", "predictor").iter_rows(named=True):
        rows = _answers(result, row["predictor"])
        error = np.sort(100 * (rows["predicted"] / rows["measured"] - 1).abs().to_numpy())
        points = np.unique(np.linspace(0, len(error) - 1, 400).astype(int))
        label = f"{row['predictor']} ({row['mape']:.3g} %)"
        axes.plot(
            np.maximum(error[points], 0.01),
            100 * (points + 1) / len(error),
            LINES.get(row["kind"], "-"),
            color=SERIES[drawn[row["kind"]] % len(SERIES)],
            label=label,
            linewidth=2,
        )
        drawn[row["kind"]] += 1
    axes.set(xscale="log", xlim=(0.1, 1000), ylim=(0, 100), xlabel="absolute error of a row (%)", ylabel="share of rows below it (%)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(result.suite)
    axes.grid(alpha=0.3)
    axes.legend(title="mean over slices", fontsize=8, title_fontsize=8, loc="upper left", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)


def _scatter(result: Result, path: Path) -> None:
    from matplotlib import pyplot as plt

    table = headline(result)
    chosen = {kind: best(table, kind) for kind in KINDS}
    shown = [(kind, name) for kind, name in chosen.items() if name is not None]
    figure, grid = plt.subplots(1, max(1, len(shown)), figsize=(4.6 * max(1, len(shown)), 4.6), sharex=True, sharey=True, squeeze=False)
    for position, (kind, name) in enumerate(shown):
        rows, axes = _answers(result, name), grid[0][position]
        if rows.height > MOST_POINTS:
            rows = rows[np.sort(np.random.default_rng(0).choice(rows.height, MOST_POINTS, replace=False))]
        measured, predicted = rows["measured"].to_numpy(), rows["predicted"].to_numpy()
        ends = np.array([measured.min() / 1.5, measured.max() * 1.5])
        axes.fill_between(ends, ends / 2, ends * 2, color=GREY, alpha=0.12, linewidth=0)
        axes.plot(ends, ends, color=GREY, linewidth=1)
        inside = np.clip(predicted, ends[0] / 3, ends[1] * 3)
        axes.scatter(measured, inside, s=4, alpha=0.35, color=SERIES[KINDS.index(kind)], linewidths=0)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=(ends[0] / 3, ends[1] * 3), xlabel="measured")
        axes.set_title(f"{name} ({kind})", fontsize=10)
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("predicted; band: within a factor of 2")
    figure.suptitle(result.suite)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
