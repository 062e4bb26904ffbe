"""python -m benchmarks.ablations [--quick]: what each part of the model is worth, on shapes and on whole generations that were held out.

The analytic time is made again without its compute pipelines, without its memory pipelines, and with work dealt out evenly instead of in
waves of tasks; the correction is then fitted on top of each in the same way. "No learning" is the analytic time alone.
Writes results/ablations.json and ablations.md.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from benchmarks import variants
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.scoring import SEED, capped
from benchmarks.accuracy.suites.kernels_indist import rows
from benchmarks.accuracy.suites.kernels_unseen import FAMILIES, POOL
from benchmarks.variants import Rows
from tilecast import hardware
from tilecast.execution import Priced, Protocol, TaskSet
from tilecast.execution.analytic import price
from tilecast.hardware import GpuSpec
from tilecast.learning import training
from tilecast.learning.examples import Examples, examples

ROWS, QUICK_ROWS = 800, 60  # of one (group, GPU, engine)
LEFT_OUT = ("arc-b60",)  # one GPU, one engine, kernels of its own
SETTINGS = training.Settings(shared_trees=150, local_trees=100, rows_per_slice=10**9, shared_rows=10**9)

Change = Callable[[TaskSet, GpuSpec], TaskSet]


def _whole(tasks: TaskSet, gpu: GpuSpec) -> TaskSet:
    return tasks


def _no_compute(tasks: TaskSet, gpu: GpuSpec) -> TaskSet:
    return tasks._replace(matrix_flop=0.0, vector_flop=0.0, special_ops=0.0)


def _no_memory(tasks: TaskSet, gpu: GpuSpec) -> TaskSet:
    return tasks._replace(l2_bytes=0.0, shared_bytes=0.0, dram_bytes=0.0, operand_bytes=0.0)


def _no_scheduling(tasks: TaskSet, gpu: GpuSpec) -> TaskSet:
    """As if work were a fluid: every SM has the mean, and tasks start once."""
    return tasks._replace(busiest_tasks=tasks.num_tasks / gpu.num_sms, rounds=1.0)


VARIANTS: dict[str, Change] = {
    "everything": _whole,
    "no compute pipelines": _no_compute,
    "no memory pipelines": _no_memory,
    "no scheduling": _no_scheduling,
}


def measure(quick: bool) -> Rows:
    """Mean absolute error in percent, mean over (GPU, engine), by family, what was held out, and variant."""
    found = []
    for family in FAMILIES:
        pool = pool_of(family, quick)
        for variant, change in VARIANTS.items():

            def ablated(kernel: Any, gpu: GpuSpec, protocol: Protocol, change: Change = change) -> Priced:
                return price(change(kernel.tasks(gpu, protocol), gpu), gpu, protocol)

            every = examples(pool, family, rows_per_slice=10**9, price=ablated)
            for held_out, parts in (("shapes", by_shape(every)), ("generation", by_generation(every))):
                learned, alone = zip(*(_errors(train, test, family, held_out) for train, test in parts), strict=True)
                found.append({"family": family, "held_out": held_out, "variant": variant, "mape": _mean(learned)})
                if variant == "everything":
                    found.append({"family": family, "held_out": held_out, "variant": "no learning", "mape": _mean(alone)})
            say(f"  {family}: {variant}")
    return found


def pool_of(family: str, quick: bool) -> pl.DataFrame:
    found = rows(family).filter(~pl.col("gpu").cast(pl.String).is_in(LEFT_OUT))
    if family == "gemm":
        found = found.filter((pl.col("group") == "gemm bf16") & (pl.col("n") >= 512) & (pl.col("k") >= 512))
    return capped(found, POOL, QUICK_ROWS if quick else ROWS)


def by_shape(every: Examples) -> Iterator[tuple[Examples, Examples]]:
    is_test = every.shape < 0.2
    yield every.where(~is_test), every.where(is_test)


def by_generation(every: Examples) -> Iterator[tuple[Examples, Examples]]:
    archs = np.array([hardware.gpu(gpu).arch for gpu in every.gpu])
    for arch in np.unique(archs):
        yield every.where(archs != arch), every.where(archs == arch)


def _errors(train: Examples, test: Examples, family: str, held_out: str) -> tuple[dict[str, float], dict[str, float]]:
    """(GPU, engine) -> error with the correction, and with physics alone."""
    correction = training.fit_once(train, family, SETTINGS, own=None if held_out == "shapes" else ())
    tested = training.tested_on(correction, test)
    engine = np.array([test.names[group]["engine"] for group in test.group_of])
    slices = np.char.add(np.char.add(test.gpu, " "), engine)

    def by_slice(log_ratio: Any) -> dict[str, float]:
        error = 100 * np.abs(np.expm1(log_ratio - test.target))
        return {str(name): float(error[slices == name].mean()) for name in np.unique(slices)}

    return by_slice(tested.predicted), by_slice(np.zeros(len(test.target)))


def _mean(parts: Sequence[dict[str, float]]) -> float:
    return round(float(np.mean([error for part in parts for error in part.values()])), 2)


def page(found: Rows, quick: bool) -> str:
    subset = f"{QUICK_ROWS if quick else ROWS} rows of each (family and dtype, GPU, engine), seed {SEED}"
    ordered = sorted(found, key=lambda row: row["variant"] == "no learning")
    return variants.page("What each part is worth", __doc__ or "", f"{subset}; few trees, so that all fits take minutes", ordered)


def main(given: Sequence[str] | None = None) -> int:
    return variants.command("ablations", __doc__ or "", measure, page, given)


if __name__ == "__main__":
    sys.exit(main())
