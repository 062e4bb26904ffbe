"""python -m benchmarks.kept_back: how far off are kernels that are here to look at and that nothing may learn from? Prints, writes nothing.

PipeWeave's small unbiased sample of attention (set aside as such), profiled in FlashInfer: each launch as a server would ask for it, by
the shipped weights and by physics alone. A bias that physics does not have was learned from rows that speak of something else.
"""

import sys

import numpy as np
import polars as pl

from benchmarks.accuracy.ours import Analytic, shipped
from benchmarks.accuracy.publish import markdown_table
from tilecast.datasets import store
from tilecast.datasets.sources.pipeweave import DIAGNOSIS
from tilecast.errors import TilecastError

FAMILIES = ("attention_decode", "attention_prefill")
SLICE = ("gpu", "identity")


def measure() -> list[dict[str, object]]:
    """One row per GPU and kernel: launches, and mean error and bias in percent, learned and physics."""
    found: list[dict[str, object]] = []
    for family in FAMILIES:
        rows = store.rows(family, ["pipeweave"], usable=False).filter(pl.col("set_aside").cast(pl.String) == DIAGNOSIS)
        asked = rows.with_columns(pl.lit("sglang").cast(rows.schema["engine"]).alias("engine"))
        off = {name: 100 * (seconds / rows["latency_s"].to_numpy() - 1) for name, seconds in _predicted(asked, family).items()}
        keyed = rows.select(pl.col(SLICE).cast(pl.String)).with_columns(pl.Series(name, values) for name, values in off.items())
        for key, part in keyed.group_by(SLICE, maintain_order=True):
            row: dict[str, object] = dict(zip(("gpu", "kernel"), key, strict=True))
            row |= {"family": family, "launches": int(part["physics"].is_finite().sum())}
            for name in off:
                here = part[name].to_numpy()
                row |= {f"{name} error %": float(np.nanmean(np.abs(here))), f"{name} bias %": float(np.nanmean(here))}
            found.append(row)
    return found


def _predicted(rows: pl.DataFrame, family: str) -> dict[str, np.ndarray]:
    return {"learned": shipped(rows, family), "physics": Analytic().predict(rows, family)}


def main() -> int:
    try:
        found = measure()
    except TilecastError as problem:
        print(f"kept_back: {problem}", file=sys.stderr)
        return 2
    rows = [[f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()] for row in found]
    print(markdown_table(list(found[0]), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
