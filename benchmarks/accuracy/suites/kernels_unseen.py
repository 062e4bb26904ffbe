"""A GPU that was never measured: one GPU out (same-die siblings in, then out), and one whole generation out."""

from collections.abc import Callable, Iterator
from functools import partial

import polars as pl

from benchmarks.accuracy.baselines import NearestShape
from benchmarks.accuracy.ours import Learned
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.scoring import SEED, capped, contenders, scored
from benchmarks.accuracy.suites.kernels_indist import rows
from tilecast import hardware
from tilecast.datasets import splits
from tilecast.learning.correction import SAME_DIE

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "moe")
GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "l40s", "rtx-pro-6000-server")
SLICES = ("group", "held_out", "gpu", "engine")
POOL = ("group", "gpu", "engine")
MOST_ROWS, MOST_TEST = 8000, 1500  # of one (group, GPU, engine): in all, and asked of a held-out GPU
QUICK_ROWS, QUICK_TEST = 60, 10
SHARED_ROWS = 1000  # of one (GPU, engine, dtype, identity), for the trees all GPUs share: 68 times five fits of ours

Divide = Callable[[pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame, splits.Split]]


def pool(family: str, quick: bool) -> pl.DataFrame:
    """The rows all splits of a family are made from."""
    found = rows(family)
    if family == "gemm":
        found = found.filter((pl.col("group") == "gemm bf16") & (pl.col("n") >= 512) & (pl.col("k") >= 512))
    return capped(found, POOL, QUICK_ROWS if quick else MOST_ROWS)


def divisions(found: pl.DataFrame) -> Iterator[tuple[str, Divide]]:
    """(what is held out, in words; how to divide the rows)."""
    present = set(found["gpu"].cast(pl.String).unique())
    for gpu in GPUS:
        if gpu in present:
            yield "GPU, siblings seen", partial(splits.by_gpu, gpu=gpu, siblings="in")
            yield "GPU, siblings out", partial(splits.by_gpu, gpu=gpu, siblings="out")
    for arch in sorted({hardware.gpu(gpu).arch for gpu in present}):
        yield "generation", partial(splits.by_generation, arch=arch)


def _ours(held_out: str, split: splits.Split) -> Learned:
    """Intervals as generations left out tell them; where the GPU's siblings may be seen, these have trees of their own."""
    if held_out == "GPU, siblings seen":
        return Learned((SAME_DIE, "unseen-generation"), splits.same_die(split.held_out), SHARED_ROWS)
    return Learned(("unseen-generation",), (), SHARED_ROWS)


def run(quick: bool) -> Result:
    predictions, made = [], []
    for family in FAMILIES:
        found = pool(family, quick)
        for held_out, divide in divisions(found):
            train, test, split = divide(found)
            test = capped(test, POOL, QUICK_TEST if quick else MOST_TEST).with_columns(pl.lit(held_out).alias("held_out"))
            say(f"  {family}: {split.kind} {split.held_out}, {train.height:,} training and {test.height:,} test rows")
            made.append({"family": family, **split.to_dict(), "num_test_used": test.height})
            if train.height and test.height:
                predictions.append(scored(contenders(_ours(held_out, split)), train, test, family, SLICES))
    most, test_most = (QUICK_ROWS, QUICK_TEST) if quick else (MOST_ROWS, MOST_TEST)
    return Result(
        suite=SUITE.name,
        question="How far off is a kernel on a GPU, or a whole GPU generation, of which nothing was measured?",
        predictions=pl.concat(predictions),
        slices=SLICES,
        splits=made,
        notes=(
            "'GPU, siblings seen' is a new SKU: GPUs of the same die may be in training. 'GPU, siblings out' is unseen. "
            "'generation' holds every GPU of the architecture out.",
            "GEMM: bf16 with n and k of at least 512. Attention and MoE: every dtype, told apart by group; a dtype that no training GPU "
            "has cannot be fitted and counts as failed where a predictor needs it.",
            "Shapes are not held out: the same shape on another GPU is what a new GPU is predicted from.",
            f"Of each (group, GPU, engine) at most {most:,} rows are used, at most {test_most:,} of a held-out one; seed {SEED}.",
            f"The nearest shape is sought on the GPU with the nearest rate and bandwidth, among at most {NearestShape().max_rows:,} rows.",
            "KernelSight-LM claims 12.1 % for an unseen generation, on its own data.",
        ),
        target=(
            "GEMM bf16, one GPU out: A100 12, H100 9, H200 7, B200 7, L40S 18, RTX PRO 14.5 %; generation out: Hopper 12-13, "
            "Blackwell 14.5; prefill attention 8 / 12 / 10 / 7 / 28 / 16; decode - / 11 / 11 / 4 / 14 / 16 (generation out 14-27)"
        ),
    )


SUITE = Suite("kernels-unseen", "kernels on GPUs and generations never measured", run, needs=("aiconfigurator",))
