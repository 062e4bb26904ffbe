"""PipeWeave's FP8 GEMM on its own split: trained on H20 and H800, tested on held-out shapes of both and on H100."""

import polars as pl

from benchmarks.accuracy import peers
from benchmarks.accuracy.ours import Learned
from benchmarks.accuracy.progress import ingesting
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.scoring import SEED, answered, capped, cases, contenders, scored
from tilecast.datasets import store
from tilecast.datasets.splits import Split

SLICES = ("gpu",)
QUICK_TRAIN = 1000  # per GPU; the test rows are few enough to take all


def sides() -> tuple[pl.DataFrame, pl.DataFrame]:
    """(train, test) as the source divided them."""
    rows = store.rows("gemm", ["pipeweave"], progress=ingesting)
    origin = pl.col("origin").cast(pl.String)
    return rows.filter(origin == "gemm_fp8.parquet#train"), rows.filter(origin == "gemm_fp8.parquet#test")


def run(quick: bool) -> Result:
    train, test = sides()
    split = Split("the source's own", "20% of shapes, and every shape on H100", 0, train.height, test.height)
    if quick:
        train = capped(train, SLICES, QUICK_TRAIN)
    peer = answered(cases(test, "gemm", SLICES), "PipeWeave", "peer", peers.pipeweave_fp8_gemm(test))
    notes = [
        "H20 and H800 are seen, with unseen shapes; H100 is not in training, but shares its die with H800 (a new SKU).",
        "PipeWeave is its published checkpoint's stored answer for each row. Its published scores are of efficiency, not of latency.",
        "The rows are means of 5 profiled launches on the same buffers.",
    ]
    if quick:
        notes.append(f"Quick: {QUICK_TRAIN:,} training rows per GPU, drawn with seed {SEED}.")
    return Result(
        suite=SUITE.name,
        question="How far off is an FP8 GEMM on PipeWeave's own test rows?",
        predictions=pl.concat([scored(contenders(Learned(("interpolated", "unseen-gpu"))), train, test, "gemm", SLICES), peer]),
        slices=SLICES,
        splits=[{"family": "gemm", **split.to_dict(), "num_train_used": train.height, "num_test_used": test.height}],
        notes=notes,
        target="PipeWeave's checkpoint 3.24 % over these rows (H20 1.81, H800 3.92, H100 4.01); a quick tree model 1.14 (0.35, 1.22, 1.86)",
    )


SUITE = Suite("fp8-gemm", "FP8 GEMM on PipeWeave's split", run, needs=("pipeweave",))
