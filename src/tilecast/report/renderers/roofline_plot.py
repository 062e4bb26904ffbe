"""Measured throughput of one family against the roofline of its GPUs, as a picture."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes

from tilecast import hardware, palette
from tilecast.datasets.cache import replacing
from tilecast.datasets.work import work
from tilecast.dtypes import QUANTISATIONS
from tilecast.errors import InvalidInput, MissingData

MOST_POINTS = 4000  # per panel: more only blackens it
MOST_PANELS = 9


def draw(frame: pl.DataFrame, family: str, gpu: str | None, path: Path) -> None:
    """One panel per GPU (the nine with most rows): FLOP per byte across, FLOP/s up, a colour per dtype, and the roofs."""
    least = work(family)
    if least is None:
        raise InvalidInput(f"{family} rows are several kernels: no roofline is known for them")
    if gpu:
        frame = frame.filter(pl.col("gpu").cast(pl.String) == gpu)
    if not frame.height:
        raise MissingData(f"no usable rows of {family}{f' on {gpu}' if gpu else ''}")
    points = frame.select(
        pl.col("gpu").cast(pl.String), pl.col("dtype").cast(pl.String), (least.flop / least.bytes).alias("intensity"),
        (least.flop / pl.col("latency_s")).alias("rate"),
    )  # fmt: skip
    gpus = points["gpu"].value_counts(sort=True)["gpu"].head(MOST_PANELS).to_list()
    columns = min(3, len(gpus))
    lines = -(-len(gpus) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(4.6 * columns, 3.6 * lines), squeeze=False, layout="constrained")
    dtypes = points["dtype"].value_counts(sort=True)["dtype"].head(len(palette.SERIES)).to_list()
    for panel, id in zip(panels.flat, gpus, strict=False):
        _panel(panel, points.filter(pl.col("gpu") == id), id, dtypes)
    for panel in list(panels.flat)[len(gpus) :]:
        panel.set_visible(False)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, markerscale=6)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    figure.suptitle(f"{family}: measured throughput against the roofline ({points.height:,} rows)")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format=path.suffix.removeprefix("."))
    plt.close(figure)


def _panel(panel: Axes, points: pl.DataFrame, id: str, dtypes: list[str]) -> None:
    spec = hardware.gpu(id)
    sampled = points.sample(min(MOST_POINTS, points.height), seed=0)
    for color, dtype in zip(palette.SERIES, dtypes, strict=False):
        mine = sampled.filter(pl.col("dtype") == dtype)
        panel.scatter(mine["intensity"], mine["rate"], s=3, alpha=0.35, color=color, label=dtype, linewidths=0)
        compute = QUANTISATIONS[dtype].compute.name
        if mine.height and (compute in spec.tensor_flop_per_s or compute in spec.vector_flop_per_s):
            across = np.geomspace(max(1e-2, sampled["intensity"].to_numpy().min()), 1e5, 200)
            panel.plot(across, np.minimum(across * spec.dram_bytes_per_s, spec.matrix_rate(compute)), color=color, linewidth=1)
    panel.set(xscale="log", yscale="log", title=id, xlabel="FLOP per compulsory byte", ylabel="FLOP/s")
