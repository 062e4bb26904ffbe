"""Learning curves as a picture: one panel for each way of holding out, one line for each family."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilecast.errors import MissingExtra
from tilecast.palette import SERIES

DPI = 80
TITLES = {"generation": "one generation out", "gpu": "one GPU out, siblings too"}
LINES = {"random": "-", "planned": "--"}


def draw(curves: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write the PNG into `folder` and return its name."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.of("viz", "drawing plots") from None
    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, panels = plt.subplots(1, 2, figsize=(10, 4.5), sharey=True)
    for axes, (held, title) in zip(panels, TITLES.items(), strict=True):
        mine = [entry for entry in curves if entry["held_out"] == held and entry["unit"] == "mean"]
        for place, family in enumerate(sorted({entry["family"] for entry in mine})):
            for choice, line in LINES.items():
                found = sorted(
                    (entry["measured"], entry["error"]) for entry in mine if (entry["family"], entry["choice"]) == (family, choice)
                )
                across, up = [max(count, 0.4) for count, _ in found], [100 * error for _, error in found]
                label = f"{family}{', planned' if choice == 'planned' else ''}"
                axes.plot(across, up, line, marker="o", markersize=4, color=SERIES[place % len(SERIES)], label=label, linewidth=2)
        axes.set(xscale="log", ylim=(0, None), xlabel="kernels measured on the GPU", title=title)
        axes.set_xticks([0.4, 1, 5, 20, 100])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "none" if value < 1 else f"{value:g}"))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean absolute error (%)")
    panels[0].legend(fontsize=8, frameon=False, ncols=2)
    figure.suptitle("calibration")
    figure.tight_layout()
    name = "calibration-curves.png"
    figure.savefig(folder / name, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return name
