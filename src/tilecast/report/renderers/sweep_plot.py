"""A sweep over one size as a picture: latency and its bound, so that waves show as a saw-tooth."""

import io
from html import escape
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from tilecast import palette
from tilecast.predictors.kernel import KernelPrediction


def draw(prediction: KernelPrediction, name: str, values: np.ndarray, path: Path) -> None:
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 6), sharex=True, layout="constrained", height_ratios=(2, 1))
    above.fill_between(
        values, prediction.low_s * 1e6, prediction.high_s * 1e6, color=palette.SKY, alpha=0.3, label="80 % interval", linewidth=0
    )
    above.plot(values, prediction.median_s * 1e6, color=palette.BLUE, label="latency")
    above.plot(values, prediction.bound_s * 1e6, color=palette.VERMILION, linestyle="--", label="bound")
    above.set(xscale="log", yscale="log", ylabel="microseconds", title=f"{prediction.kernel.family} on {prediction.gpu.id}")
    above.legend(frameon=False)
    below.plot(values, 100 * prediction.efficiency, color=palette.GREEN)
    below.set(xlabel=name, ylabel="efficiency, %", ylim=(0, 100))
    if path.suffix == ".html":
        picture = io.StringIO()
        figure.savefig(picture, format="svg")
        title = f"{prediction.kernel.family} on {prediction.gpu.id}"
        svg = picture.getvalue()
        style = "body{margin:0 auto;max-width:60rem;font-family:sans-serif}svg{width:100%;height:auto}"
        head = (
            f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title><style>{style}</style>"
        )
        path.write_text(f"<!doctype html><html><head>{head}</head><body>{svg[svg.index('<svg') :]}</body></html>", encoding="utf-8")
    else:
        figure.savefig(path, dpi=110)
    plt.close(figure)
