"""Rows and predictors in, long predictions out: what every kernel suite shares."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from benchmarks.accuracy.baselines import KERNEL, baselines
from benchmarks.accuracy.ours import Analytic, Learned
from benchmarks.accuracy.predictors import Predictor
from tilecast.datasets.schema import SHAPES

SEED = 0

# The dtypes whose rows are told apart in tables; others of a kind are few and stand together.
DTYPE_GROUPS = {
    "bf16": "bf16", "fp16": "bf16", "fp32": "fp32", "fp8": "fp8", "fp8_static": "fp8", "fp8_block": "fp8 block", "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4", "int8_wo": "int", "int4_wo": "int", "int8_sq": "int", "w4afp8": "int",
}  # fmt: skip


def contenders(learned: Learned | None = None) -> list[Predictor]:
    """Everything that is fitted and scored beside the peers: ours with and without learning, and the baselines."""
    return [learned or Learned(), Analytic(), *baselines()]


def grouped(rows: pl.DataFrame, family: str) -> pl.DataFrame:
    """`rows` with the column `group`: family and dtype, with MLA's batched products told apart from plain GEMM."""
    name = pl.when(pl.col("batch") > 1).then(pl.lit("batched gemm")).otherwise(pl.lit("gemm")) if family == "gemm" else pl.lit(family)
    dtype = pl.col("dtype").cast(pl.String).replace(DTYPE_GROUPS)
    if "kv_dtype" in rows.columns:
        cache = pl.col("kv_dtype").cast(pl.String)
        dtype = pl.when(cache != pl.col("dtype").cast(pl.String)).then(dtype + "+" + cache + " kv").otherwise(dtype)
    return rows.with_columns(pl.concat_str(name, pl.lit(" "), dtype).alias("group"))


def capped(rows: pl.DataFrame, by: Sequence[str], most: int, seed: int = SEED) -> pl.DataFrame:
    """At most `most` rows of each group, drawn with the seed; the others keep their order."""
    order = np.random.default_rng(seed).permutation(rows.height)
    rank = pl.col("_order").rank("ordinal").over(by)
    return rows.with_columns(pl.Series("_order", order)).filter(rank <= most).drop("_order")


def cases(test: pl.DataFrame, family: str, slices: Iterable[str]) -> pl.DataFrame:
    """The slice columns, what was measured, and the kernel and shape as text."""
    shape = [
        pl.when(pl.col(name).is_not_null()).then(pl.concat_str(pl.lit(f"{name}="), pl.col(name).cast(pl.String)))
        for name, kind in SHAPES[family].items()
        if kind != pl.String and not test[name].is_null().all()
    ]
    kernel = [pl.col(name).cast(pl.String) for name in ("engine_version", *KERNEL[1:])]
    return test.select(
        *(pl.col(name).cast(pl.String) for name in slices),
        pl.concat_str(kernel, separator=" ", ignore_nulls=True).alias("kernel"),
        pl.concat_str(shape, separator=" ", ignore_nulls=True).alias("shape"),
        pl.col("latency_s").alias("measured"),
    )


def answered(
    case: pl.DataFrame, name: str, kind: str, seconds: pl.Series, interval: tuple[np.ndarray, np.ndarray] | None = None
) -> pl.DataFrame:
    """The cases with one predictor's answers; what is not finite counts as failed, a negative time does not: it is an answer."""
    low, high = (None, None) if interval is None else (pl.Series(part).fill_nan(None) for part in interval)
    return case.with_columns(
        pl.lit(name).alias("predictor"),
        pl.lit(kind).alias("kind"),
        pl.when(seconds.is_finite()).then(seconds).alias("predicted"),
        pl.lit(low, pl.Float64).alias("low"),
        pl.lit(high, pl.Float64).alias("high"),
    )


def scored(predictors: Iterable[Predictor], train: pl.DataFrame, test: pl.DataFrame, family: str, slices: Iterable[str]) -> pl.DataFrame:
    """Each predictor fitted on `train` and asked for `test`, long; with its interval where it gives one."""
    case = cases(test, family, slices)
    # Whatever a predictor is given to answer, it never sees the answer.
    asked = test.with_columns(pl.lit(None, pl.Float64).alias("latency_s"))
    frames = []
    for each in predictors:
        fitted = each.fit(train, family)
        interval = fitted.interval(asked, family) if isinstance(fitted, Learned) else None
        frames.append(answered(case, each.name, each.kind, pl.Series(fitted.predict(asked, family)), interval))
    return pl.concat(frames)
