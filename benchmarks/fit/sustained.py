"""Which boards do not keep up their power limit: python -m benchmarks.fit.sustained prints a table, it does not write the GPU files.

Asked are launches of one kernel that run from microseconds to tens of milliseconds (PipeWeave's fused experts) and that physics says
matrix units bind: against physics, how much slower are long launches than short ones? Long is what physics says is long: by the measured
time, whatever was slowed down for any reason would count as long. A board that cannot get rid of its heat is slower at every quartile; one
that was shared with somebody for a while (A40) has rows of two kinds, fast ones among them. So the mildest quartile counts, and below
NOTABLE of the rate it is a fact of the GPU's file: sustained_w is that share of tdp_w, to 5 W.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.datasets import store
from tilecast.execution import Protocol
from tilecast.kernels.base import priced
from tilecast.kernels.registry import kernel as kernel_record

SHORT_S, LONG_S = (1e-3, 8e-3), (12e-3, np.inf)
QUARTILES = (0.25, 0.5, 0.75)
NOTABLE = 0.9
FEWEST_ROWS = 30
SIZES = ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk")


def launches() -> pl.DataFrame:
    """Fused expert launches with default configurations that matrix units bind: GPU, seconds by physics, log(measured / physics)."""
    rows = store.rows("moe", ["pipeweave"]).filter(~pl.col("origin").cast(pl.String).str.contains("moe_dse|moe_tuning"))
    parts = []
    for key, part in rows.group_by("gpu", "dtype", "identity", "timer", "cache", "distribution", "moe_pass", maintain_order=True):
        gpu, dtype, identity, timer, cache, distribution, moe_pass = (None if name is None else str(name) for name in key)
        sizes = {name: part[name].to_numpy() for name in SIZES}
        kernel = kernel_record("moe")(**sizes, dtype=dtype, identity=identity, distribution=distribution, moe_pass=moe_pass)
        found = priced(kernel, hardware.gpu(str(gpu)), Protocol(str(timer), str(cache)))
        is_compute = found.busy_s["tensor"] > np.maximum(found.busy_s["dram"], found.busy_s["l2"])
        told = {"analytic_s": found.analytic_s, "log_ratio": np.log(part["latency_s"].to_numpy() / found.analytic_s)}
        parts.append(part.select(pl.col("gpu").cast(pl.String)).with_columns(pl.DataFrame(told)).filter(pl.Series(is_compute)))
    return pl.concat(parts)


def shares(short: NDArray[np.float64], long: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the rate of short launches, what long ones keep, at each quartile."""
    return np.exp(np.quantile(short, QUARTILES) - np.quantile(long, QUARTILES))


def kept(rows: pl.DataFrame) -> dict[str, tuple[int, NDArray[np.float64]]]:
    """GPU -> how many long launches it has, and the shares they keep; GPUs with too few are left out."""
    found = {}
    for gpu in sorted(rows["gpu"].unique()):
        mine = rows.filter(pl.col("gpu") == gpu)
        short, long = (mine.filter(pl.col("analytic_s").is_between(*span))["log_ratio"].to_numpy() for span in (SHORT_S, LONG_S))
        if min(len(short), len(long)) >= FEWEST_ROWS:
            found[gpu] = len(long), shares(short, long)
    return found


def sustained_w(gpu: str, share: NDArray[np.float64]) -> float | None:
    """What the GPU's file should say, to 5 W; None where its long launches are as fast as its short ones."""
    limit_w = hardware.gpu(gpu).tdp_w
    return None if limit_w is None or share.max() > NOTABLE else 5 * round(limit_w * float(share.max()) / 5)


def main() -> None:
    for gpu, (number, share) in kept(launches()).items():
        quartiles = " ".join(f"{value:.2f}" for value in share)
        print(f"{gpu}: {number} long launches keep {quartiles} of the rate; sustained_w = {sustained_w(gpu, share) or 'its limit'}")


if __name__ == "__main__":
    main()
