"""Refit constants/streaming.toml on training rows: python -m benchmarks.fit.streaming prints the values, it does not write them.

Training rows are NeuSight's own training side and four fifths of the shapes elsewhere. Of events only calls well above the host's floor
say something of the kernel; of NeuSight's softmax only rows that vectors divide, since its other ones are unaligned.

Flat kernels alone decide the rate of L2: a row of random width leaves lanes idle in its last vectors, which is not the memory's
doing. What is particular to engine kernels is then fitted on those, with the rate held.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import polars as pl
from scipy.optimize import minimize

from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.execution import Protocol
from tilecast.kernels import streaming
from tilecast.kernels.base import execution_of
from tilecast.kernels.registry import kernel

SHAPES = {
    "elementwise": ("op", "numel"),
    "softmax": ("rows", "cols"),
    "layer_norm": ("rows", "cols"),
    "rms_norm": ("rows", "cols", "residual"),
    "silu_mul": ("rows", "cols"),
    "rope": ("rows", "num_heads", "num_kv_heads", "head_dim"),
}
STAGES = (
    (("elementwise",), ("vector_bytes_per_clock_per_sm", "start_s")),
    (("silu_mul", "rope", "rms_norm"), ("scalar_accesses_per_clock_per_sm",)),
)
PER_SLICE = 120  # rows of one family, GPU, source and timer
ABOVE_HOST_S = 150e-6
LAUNCH = ["gpu", "dtype", "timer", "cache", "identity"]


def training_rows(family: str) -> pl.DataFrame:
    rows = store.rows(family).with_columns(pl.col(pl.Categorical).cast(pl.String))
    theirs = pl.col("source") == "neusight"
    train = pl.concat([rows.filter(theirs & pl.col("origin").str.ends_with("#train")), splits.by_shape(rows.filter(~theirs), family)[0]])
    train = train.filter((pl.col("timer") != "event") | (theirs & (pl.col("latency_s") > ABOVE_HOST_S)))
    if family == "softmax":
        train = train.filter(pl.col("cols") % 4 == 0)
    order = pl.int_range(pl.len()).shuffle(seed=0).over("gpu", "source", "timer")
    return train.filter(order < PER_SLICE)


def predicted(rows: pl.DataFrame, family: str) -> pl.DataFrame:
    """`rows` with log(analytic / measured)."""
    parts = []
    for (gpu, dtype, timer, cache, identity), part in rows.group_by(LAUNCH, maintain_order=True):
        shape = {name: part[name].fill_null(False).to_numpy() if name == "residual" else part[name].to_numpy() for name in SHAPES[family]}
        named = {"identity": str(identity)} if identity == "scalar" else {}
        analysis = execution_of(kernel(family)(dtype=dtype, **shape, **named), hardware.gpu(str(gpu)), Protocol(str(timer), str(cache)))
        parts.append(part.select("gpu", "source", "timer", pl.Series("miss", np.log(analysis.analytic_s / part["latency_s"].to_numpy()))))
    return pl.concat(parts)


def loss_of(rows: Mapping[str, pl.DataFrame], held: streaming.StreamingConstants, names: Sequence[str]) -> Callable[[np.ndarray], float]:
    """The mean over families of the mean over GPUs and sources of the mean absolute log ratio, each row capped."""

    def loss(logs: np.ndarray) -> float:
        trial = replace(held, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        streaming.streaming_constants = lambda: trial  # type: ignore[assignment]
        misses = [
            predicted(part, family)
            .group_by("gpu", "source", "timer")
            .agg(pl.col("miss").abs().clip(0, 0.7).mean())["miss"]
            .to_numpy()
            .mean()
            for family, part in rows.items()
        ]
        return float(np.mean(misses))

    return loss


def fitted(held: streaming.StreamingConstants, families: Sequence[str], names: Sequence[str]) -> streaming.StreamingConstants:
    """`held` with `names` fitted on `families`."""
    loss = loss_of({family: training_rows(family) for family in families}, held, names)
    first = np.log([getattr(held, name) for name in names])
    simplex = [first, *(first + 0.2 * np.eye(len(first)))]
    found = minimize(loss, first, method="Nelder-Mead", options={"maxfev": 80, "initial_simplex": simplex})
    print(f"{', '.join(names)} on {', '.join(families)}: loss {loss(first):.4f} -> {found.fun:.4f}")
    return replace(held, **dict(zip(names, np.exp(found.x).tolist(), strict=True)))


def main() -> None:
    held = streaming.streaming_constants()
    for families, names in STAGES:
        held = fitted(held, families, names)
    for name, value in asdict(held).items():
        print(f"{name} = {value:.4g}")


if __name__ == "__main__":
    main()
