"""Shapes never seen, on GPUs that were: NVIDIA's public kernel data, one shape in five held out."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from benchmarks.accuracy.baselines import NearestShape
from benchmarks.accuracy.progress import ingesting, say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.scoring import SEED, capped, contenders, grouped, scored
from tilecast.datasets import splits, store

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "moe")
SLICES = ("group", "gpu", "engine")
TEST_FRACTION = 0.2  # of shapes
MOST_TEST, MOST_TRAIN = 3000, 24000  # rows of one slice
QUICK_TEST, QUICK_TRAIN = 15, 150


@dataclass(frozen=True, slots=True)
class Sides:
    """One family's training and test rows, after the caps, and the split before them."""

    family: str
    train: pl.DataFrame
    test: pl.DataFrame
    split: splits.Split


def rows(family: str) -> pl.DataFrame:
    """The newest engine versions' usable rows, with their group."""
    return grouped(splits.newest(store.rows(family, ["aiconfigurator"], progress=ingesting)), family)


def sides(quick: bool) -> Iterator[Sides]:
    """Each family split by shape; shared with the analytic suite, so that both score the same rows."""
    for family in FAMILIES:
        say(f"  {family}")
        train, test, split = splits.by_shape(rows(family), family, test_fraction=TEST_FRACTION, seed=SEED)
        most_test, most_train = caps(quick)
        yield Sides(family, capped(train, SLICES, most_train), capped(test, SLICES, most_test), split)


def caps(quick: bool) -> tuple[int, int]:
    """(test, training) rows of one slice."""
    return (QUICK_TEST, QUICK_TRAIN) if quick else (MOST_TEST, MOST_TRAIN)


def described(side: Sides) -> dict[str, object]:
    return {"family": side.family, **side.split.to_dict(), "num_train_used": side.train.height, "num_test_used": side.test.height}


def caps_note(quick: bool) -> str:
    test, train = caps(quick)
    return f"Of each (family and dtype, GPU, engine) at most {test:,} test and {train:,} training rows are used, drawn with seed {SEED}."


def run(quick: bool) -> Result:
    predictions, made = [], []
    for side in sides(quick):
        predictions.append(scored(contenders(), side.train, side.test, side.family, SLICES))
        made.append(described(side))
    return Result(
        suite=SUITE.name,
        question="How far off is a kernel of a shape that was not measured, on a GPU and engine that were?",
        predictions=pl.concat(predictions),
        slices=SLICES,
        splits=made,
        notes=(
            "Seen GPUs, unseen shapes: all rows of a shape, over GPUs, engines and versions, fall on one side.",
            "The newest version of each engine on each system; rows that datasets/quality keeps; mean per slice, then over slices.",
            caps_note(quick),
            f"The nearest shape is sought among at most {NearestShape().max_rows:,} of those training rows per kernel.",
            "GEMM weights rotate through a few copies, everything else was timed on the same buffers again and again (warm L2).",
        ),
        target=(
            "boosted trees on the same data: GEMM bf16 4.2 % (TensorRT-LLM rows), 5.6 % (SGLang), prefill attention 3.1 %, decode 3.3 %; "
            "repeats of the same GEMM differ by about 3.3 % pooled"
        ),
    )


SUITE = Suite("kernels-indist", "kernels of unseen shapes on seen GPUs", run, needs=("aiconfigurator",))
