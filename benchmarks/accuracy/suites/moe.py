"""The Triton MoE kernel of PipeWeave's data: held-out problems on seen GPUs, and one GPU out."""

import polars as pl

from benchmarks.accuracy.ours import Learned
from benchmarks.accuracy.progress import ingesting, say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.scoring import SEED, capped, contenders, scored
from tilecast.datasets import splits, store

SLICES = ("held_out", "gpu")
QUICK_ROWS = 300  # per GPU
UNSEEN = ("unseen-gpu", "unseen-generation")
BASES_OF = {"problems": ("interpolated",), "GPU, siblings seen": UNSEEN, "GPU, siblings out": UNSEEN}  # whose intervals are scored


def run(quick: bool) -> Result:
    rows = store.rows("moe", ["pipeweave"], progress=ingesting).filter(pl.col("origin").cast(pl.String) == "moe.parquet")
    if quick:
        rows = capped(rows, ["gpu"], QUICK_ROWS)
    divisions = [("problems", *splits.by_shape(rows, "moe", test_fraction=0.2, seed=SEED))]
    for gpu in sorted(rows["gpu"].cast(pl.String).unique()):
        divisions.append(("GPU, siblings seen", *splits.by_gpu(rows, gpu, siblings="in")))
        divisions.append(("GPU, siblings out", *splits.by_gpu(rows, gpu, siblings="out")))
    predictions = []
    for held_out, train, test, split in divisions:
        say(f"  {split.kind}: {split.held_out}")
        predictions.append(
            scored(contenders(Learned(BASES_OF[held_out])), train, test.with_columns(pl.lit(held_out).alias("held_out")), "moe", SLICES)
        )
    return Result(
        suite=SUITE.name,
        question="How far off is a fused MoE kernel for a problem, or on a GPU, that was not measured?",
        predictions=pl.concat(predictions),
        slices=SLICES,
        splits=[{"family": "moe", **split.to_dict()} for _, _, _, split in divisions],
        notes=(
            "The w13 (gate and up) pass alone, bf16, perfectly balanced routing; mean of 5 profiled launches on the same (warm) buffers.",
            "Problems (tokens, hidden size, inter size, experts, top-k) are held out as a whole, over all GPUs.",
            "'GPU, siblings seen' is a new SKU, 'GPU, siblings out' an unseen GPU; there, shapes are not held out.",
            *((f"Quick: {QUICK_ROWS} rows per GPU, drawn with seed {SEED}.",) if quick else ()),
        ),
        target="no peer figure exists",
    )


SUITE = Suite("moe", "PipeWeave's fused MoE kernel", run, needs=("pipeweave",))
