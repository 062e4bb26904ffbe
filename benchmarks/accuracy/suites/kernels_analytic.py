"""No learning at all: what the hardware's data sheet alone says of kernels and collectives."""

import polars as pl

from benchmarks.accuracy.baselines import PaddedRoofline, Roofline
from benchmarks.accuracy.ours import Analytic
from benchmarks.accuracy.predictors import Predictor
from benchmarks.accuracy.progress import ingesting, say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.scoring import SEED, capped, scored
from benchmarks.accuracy.suites import fp32_kernels, kernels_indist
from tilecast.datasets import store

SLICES = ("group", "gpu", "engine")
COLLECTIVES = ("all_reduce", "send_recv")
LEAST_BYTES = 1 << 20  # smaller messages are bimodal
QUICK_ROWS = 60


def analysts() -> list[Predictor]:
    """Predictors that need no training rows."""
    return [Analytic(), Roofline(), PaddedRoofline()]


def collectives(family: str, quick: bool) -> pl.DataFrame:
    """Medians of messages of at least 1 MiB; the group says how many GPUs took part."""
    rows = store.rows(family, ["pipeweave"], progress=ingesting).filter(pl.col("bytes") >= LEAST_BYTES)
    rows = rows.with_columns(pl.concat_str(pl.lit(f"{family}, "), pl.col("num_gpus"), pl.lit(" GPUs")).alias("group"))
    return capped(rows, SLICES, QUICK_ROWS) if quick else rows


def run(quick: bool) -> Result:
    predictions, made = [], []
    for side in kernels_indist.sides(quick):
        predictions.append(scored(analysts(), side.train, side.test, side.family, SLICES))
        made.append(kernels_indist.described(side))
    for op, family in fp32_kernels.FAMILIES.items():
        train, test = fp32_kernels.sides(op, quick)
        say(f"  {op} fp32")
        test = test.with_columns(pl.lit(f"{op} fp32").alias("group"))
        predictions.append(scored(analysts(), train, test, family, SLICES))
        made.append({"family": family, "kind": "the source's own", "held_out": f"{op} test rows", "seed": 0, "num_test_used": test.height})
    for family in COLLECTIVES:
        test = collectives(family, quick)
        say(f"  {family}")
        predictions.append(scored(analysts(), test.clear(), test, family, SLICES))
        made.append({"family": family, "kind": "all rows", "held_out": "medians, >= 1 MiB", "seed": SEED, "num_test_used": test.height})
    return Result(
        suite=SUITE.name,
        question="How far off is a prediction from the hardware's facts alone, before anything is learned?",
        predictions=pl.concat(predictions),
        slices=SLICES,
        splits=made,
        notes=(
            "The test rows of kernels-indist and of fp32-kernels, and PipeWeave's collectives.",
            kernels_indist.caps_note(quick),
            "analytic: the kernel models of the package, with the constants of execution/constants, fitted on training shapes only.",
            "A collective's roofline is its message on the GPU's own link (PCIe where it has none) times nccl-tests' bus factor.",
            "A roofline assumes cold caches; these kernels were timed on warm ones, so it can be above what was measured.",
            "Why the worst are the worst. TensorRT-LLM products on L40S: weights of 32 to 96 MiB come from its L2 of 96 MiB: "
            "they did not rotate there. MoE of 8 experts with 4 to 8 tokens: 29 us are the bytes of two experts, not of the seven that "
            "so many tokens reach. MLA decode of one request on RTX PRO: Triton splits a 131,072-token cache over more SMs than we let it. "
            "FP8 MoE with one expert per token, cut into 32, on a rank of eight: not understood.",
            *((f"Quick: {QUICK_ROWS} collectives per GPU and world size, drawn with seed {SEED}.",) if quick else ()),
        ),
        target="GEMM: wave model 13.5 %, roofline 40-50 %; roofline / 0.8 + 3 us: prefill attention 26 %, decode 36 %",
    )


NEEDS = ("aiconfigurator", "neusight", "pipeweave")
SUITE = Suite("kernels-analytic", "kernels and collectives from hardware facts alone", run, needs=NEEDS)
