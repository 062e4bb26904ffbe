"""Refit constants/collectives.toml on training rows: python -m benchmarks.fit.collectives prints the values, it does not write them.

Boxes that a data sheet cannot describe stay out: A40 behind one slow host bridge, cloud nodes whose network is far below the DGX's own, and
two H100 of one campaign that reach a quarter of their links.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields

import numpy as np
import polars as pl
from scipy.optimize import minimize

from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.execution import Protocol
from tilecast.kernels import collectives
from tilecast.kernels.base import execution_of
from tilecast.kernels.registry import kernel

FAMILIES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
PER_SLICE = 60
LEAST_BYTES = {"nccl": 1 << 20, "custom": 1 << 12}  # NCCL's smaller messages are bimodal
SLICE = ["family", "source", "engine", "identity", "gpu", "num_gpus", "gpus_per_node", "node", "timer"]
# What the sources call their boxes, as nodes of the catalogue; (node, GPU) pairs that have none are left out.
NODES: Mapping[str, Mapping[str, str | None]] = {
    "dgx_nvswitch": {"a100-sxm-80gb": "dgx-a100", "h100-sxm": "dgx-h100"},
    "pairwise_nvlink(4-GPU PCIe node)": {"a100-sxm-80gb": "pcie-8x-a100"},
    "pairwise_nvlink(4-GPU node)": {"h100-sxm": "pcie-8x-h100"},
    "label pairwise_nvlink, 8-GPU node": {"a800-sxm-80gb": None},
}


def described(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose box the catalogue knows, with `bytes` as the whole buffer of a rank: Vidur counts an all-gather's input."""
    rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
    rows = rows.filter(pl.col("identity").is_in(collectives.IDENTITIES) & (pl.col("gpu") != "arc-b60"))
    known = pl.col("node").is_null() | pl.concat_str("node", "gpu", ignore_nulls=True).is_in(
        [f"{node}{gpu}" for node, of in NODES.items() for gpu in of]
    )
    per_rank = (pl.col("family") == "all_gather") & (pl.col("source") == "vidur")
    return rows.filter(known).with_columns(
        pl.when(per_rank).then(pl.col("bytes") * pl.col("num_gpus")).otherwise(pl.col("bytes")).alias("bytes")
    )


def typical(rows: pl.DataFrame) -> pl.DataFrame:
    """Without the boxes that no data sheet describes."""
    slow_network = (pl.col("gpus_per_node") < pl.col("num_gpus")) & (pl.col("gpu") == "a100-sxm-80gb")
    slow_pair = (pl.col("source") == "pipeweave") & pl.col("gpu").is_in(["h100-sxm", "rtx-6000-ada"]) & (pl.col("num_gpus") == 2)
    several_trays = (pl.col("gpu") == "gb300") & (pl.col("num_gpus") > 4)
    eager = (pl.col("identity") == "custom") & (pl.col("timer") == "event")  # the host's time
    return rows.filter(~slow_network & ~slow_pair & ~several_trays & ~eager)


def training_rows() -> pl.DataFrame:
    parts = []
    for family in FAMILIES:
        train = described(splits.by_shape(store.rows(family), family)[0]).select([*SLICE, "bytes", "cache", "dtype", "latency_s"])
        parts.append(train.filter(pl.col("bytes") >= pl.col("identity").replace_strict(LEAST_BYTES)))
    order = pl.int_range(pl.len()).shuffle(seed=0).over(SLICE)
    return typical(pl.concat(parts)).filter(order < PER_SLICE)


def predicted(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` with log(analytic / measured)."""
    parts = []
    names = ("family", "gpu", "node", "timer", "identity", "engine")
    for (family, gpu, node, timer, identity, engine), part in rows.group_by(*names, maintain_order=True):
        named = None if node is None else NODES[str(node)][str(gpu)]
        shape = {name: part[name].to_numpy() for name in ("bytes", "num_gpus", "gpus_per_node")}
        whose = {"engine": engine} if family == "all_reduce" else {}
        asked = kernel(str(family))(**shape, node=named, identity=identity, **whose)
        analysis = execution_of(asked, hardware.gpu(str(gpu)), Protocol(str(timer), "warm"))
        misses = np.log(analysis.analytic_s / part["latency_s"].to_numpy())
        parts.append(
            part.with_columns(pl.Series("miss", misses), pl.Series("bound_s", analysis.bound_s), pl.Series("way", analysis.variant))
        )
    return pl.concat(parts)


def loss_of(rows: pl.DataFrame) -> Callable[[np.ndarray], float]:
    names = [entry.name for entry in fields(collectives.CollectiveConstants)]

    def loss(logs: np.ndarray) -> float:
        trial = collectives.CollectiveConstants(**dict(zip(names, np.exp(logs).tolist(), strict=True)))
        collectives.collective_constants = lambda: trial  # type: ignore[assignment]
        return float(predicted(rows).group_by(SLICE).agg(pl.col("miss").abs().clip(0, 0.7).mean())["miss"].to_numpy().mean())

    return loss


def main() -> None:
    start = asdict(collectives.collective_constants())
    loss = loss_of(training_rows())
    first = np.log(list(start.values()))
    found = minimize(
        loss, first, method="Nelder-Mead", options={"maxfev": 400, "initial_simplex": [first, *(first + 0.15 * np.eye(len(first)))]}
    )
    print(f"loss {loss(first):.4f} -> {found.fun:.4f}")
    for name, value in zip(start, np.exp(found.x), strict=True):
        print(f"{name} = {value:.4g}")


if __name__ == "__main__":
    main()
