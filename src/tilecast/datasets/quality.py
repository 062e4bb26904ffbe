"""Which rows not to trust, and why. Nothing is dropped: a row that fails a check keeps its place and says so in `set_aside`.

The checks, in this order (a row keeps the first reason it meets; what a source already set aside keeps the source's words):
  known bad    a block of rows that its source, or our reading of it, shows to be wrong (said by the source's reader)
  zero shape   a size that is zero or negative
  no time      a latency that is zero, negative or not finite
  impossible   faster than the GPU's highest rate for the FLOP, or than DRAM for the bytes that cannot be in L2
  duplicate    the same measurement twice: same kernel, shape, protocol, latency and spread to the last bit (a timer that counts whole
               microseconds repeats itself honestly: its rows are no duplicates unless their spreads agree too)
  outlier      one of three or more versions of one kernel and shape that is far from the median of all of them
"""

import polars as pl

from tilecast import hardware
from tilecast.datasets.schema import IDENTITY, PROTOCOL, SHAPES
from tilecast.datasets.work import work
from tilecast.dtypes import QUANTISATIONS

SLACK = 0.98  # timers and data sheets are only so exact
OUTLIER_RATIO = 2.5
MAY_BE_ZERO = ("window", "padding", "prefill_q_len", "prefill_kv_len", "decode_batch_a", "decode_kv_len_a", "decode_batch_b",
"decode_kv_len_b",
               "num_sms", "group_m", "num_stages", "concurrency")  # fmt: skip
FORWARD_ONLY = ("layer", "step", "serving")  # several kernels: no least work is known


def judge(frame: pl.DataFrame, family: str) -> pl.DataFrame:
    """`frame` with `set_aside` filled in; same rows, same order."""
    reasons = [
        pl.col("set_aside").cast(pl.String),
        pl.when(_has_zero_shape(family)).then(pl.lit("zero shape")),
        pl.when(~(pl.col("latency_s").is_finite() & (pl.col("latency_s") > 0))).then(pl.lit("no time")),
    ]
    if work(family) is not None:
        frame = frame.with_columns(_least_s(frame, family).alias("_least_s"))
        reasons.append(pl.when(pl.col("latency_s") < SLACK * pl.col("_least_s")).then(pl.lit("impossible: faster than physics allows")))
    kernel = ["gpu", *IDENTITY, *PROTOCOL, *SHAPES[family]]
    judged = frame.with_columns(pl.coalesce(reasons).cast(pl.Categorical).alias("set_aside"))
    judged = _mark(judged, _is_repeat(judged, [*kernel, "latency_s", "spread_s", "num_repeats"]), "duplicate: the same measurement twice")
    if family not in FORWARD_ONLY:
        judged = _mark(
            judged, _is_outlier(judged, [name for name in kernel if name != "engine_version"]), "outlier: far from its other versions"
        )
    return judged.drop("_least_s", strict=False)


def usable(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("set_aside").is_null())


def is_steady() -> pl.Expr:
    """Not marked as throttled: how far a board throttles differs from sweep to sweep, so such rows do not repeat."""
    return (pl.col("clock").cast(pl.String) != "throttled").fill_null(True)


def summary(frame: pl.DataFrame) -> pl.DataFrame:
    """How many rows were set aside, by source, family and reason."""
    return (
        frame.filter(pl.col("set_aside").is_not_null())
        .group_by("source", "family", "set_aside")
        .agg(pl.len().alias("rows"))
        .sort("rows", descending=True)
    )


def _has_zero_shape(family: str) -> pl.Expr:
    sizes = [name for name, kind in SHAPES[family].items() if kind == pl.Int64 and name not in MAY_BE_ZERO]
    return pl.any_horizontal([(pl.col(name) <= 0).fill_null(False) for name in sizes])


def _least_s(frame: pl.DataFrame, family: str) -> pl.Expr:
    """The time no kernel can beat in the row's cache state, from nominal facts at the highest clock."""
    least = work(family)
    assert least is not None
    flop_per_s, bytes_per_s, cached_bytes = _limits(frame)
    # Warm and rotated buffers may be in L2 (and in a cache behind it): only what exceeds it must come from DRAM.
    from_dram = pl.when(pl.col("cache").cast(pl.String) == "cold").then(least.bytes).otherwise((least.bytes - cached_bytes).clip(0, None))
    compute_s = least.flop / flop_per_s
    if family == "moe":  # routing decides how many experts are read, and the rows do not tell: only the FLOP are certain
        return compute_s
    if family == "conv2d":  # Winograd and cuDNN's default TF32 do it with fewer or cheaper FLOP: only the bytes are certain
        return from_dram / bytes_per_s
    return pl.max_horizontal(compute_s, from_dram / bytes_per_s)


def _limits(frame: pl.DataFrame) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """Highest FLOP/s for the row's GPU and dtype, DRAM bandwidth, and bytes that caches may hold."""
    # Attention over an fp8 cache may also compute in fp8, whatever the activations are.
    dtypes = ["dtype", "kv_dtype"] if "kv_dtype" in frame.columns else ["dtype"]
    names = [pl.col(name).cast(pl.String).fill_null("") for name in ("gpu", *dtypes)]
    flop, bandwidth, cached = {}, {}, {}
    for gpu, *used in frame.select(names).unique().iter_rows():
        spec = hardware.gpu(gpu)
        flop["|".join((gpu, *used))] = max(_highest_flop_per_s(spec, dtype) for dtype in used if dtype)
        bandwidth[gpu] = spec.dram_bytes_per_s
        cached[gpu] = float(spec.l2_bytes + (spec.memory_side_cache_bytes or 0))
    gpu_name = pl.col("gpu").cast(pl.String)
    return (
        pl.concat_str(names, separator="|").replace_strict(flop, return_dtype=pl.Float64),
        gpu_name.replace_strict(bandwidth, return_dtype=pl.Float64),
        gpu_name.replace_strict(cached, return_dtype=pl.Float64),
    )


def _highest_flop_per_s(spec: hardware.GpuSpec, dtype: str) -> float:
    compute = QUANTISATIONS[dtype].compute.name
    rates = {**spec.vector_flop_per_clock_per_sm, **spec.tensor_flop_per_clock_per_sm}
    # A dtype the GPU has no unit for is converted first: no rate of its own exceeds the 16-bit one.
    sixteen_bit = rates.get("fp16", 0.0) if compute not in ("fp32", "fp64", "tf32") else 0.0
    return spec.num_sms * max(rates.get(compute, 0.0), sixteen_bit, rates["fp32"]) * spec.highest_clock_hz


def _mark(frame: pl.DataFrame, is_bad: pl.Expr, reason: str) -> pl.DataFrame:
    marked = pl.when(pl.col("set_aside").is_null() & is_bad).then(pl.lit(reason).cast(pl.Categorical)).otherwise(pl.col("set_aside"))
    return frame.with_columns(marked.alias("set_aside"))


def _is_repeat(frame: pl.DataFrame, key: list[str]) -> pl.Expr:
    ticks = pl.col("latency_s") * 1e6
    is_coarse = pl.col("spread_s").is_null() & ((ticks - ticks.round()).abs() < 1e-6)
    return pl.lit(~frame.select(pl.struct(key).is_first_distinct().alias("first"))["first"]) & ~is_coarse


def _is_outlier(frame: pl.DataFrame, key: list[str]) -> pl.Expr:
    versions = pl.col("engine_version").filter(pl.col("set_aside").is_null()).n_unique().over(key)
    if frame["engine_version"].n_unique() < 3:
        return pl.lit(False)
    median_s = pl.col("latency_s").filter(pl.col("set_aside").is_null()).median().over(key)
    ratio = pl.col("latency_s") / median_s
    return (versions >= 3) & ((ratio > OUTLIER_RATIO) | (ratio < 1 / OUTLIER_RATIO))
