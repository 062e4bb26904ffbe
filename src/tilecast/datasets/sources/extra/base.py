"""What the raw tables of extra/ share: the words they use for GPUs, timers and doubts, and what a table has to say of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

Columns = Mapping[str, pl.Expr]

TAGS = ("vidur", "vidur_history", "frontier", "llmservingsim", "llmservingsim_history", "llmservingsim_v0", "infersim")

GPUS = {
    "A100": "a100-sxm-80gb",
    "A40": "a40",
    "A800": "a800-sxm-80gb",
    "H100": "h100-sxm",
    "H100_label_suspect": "h100-sxm",
    "H100_PCIe_inferred": "h100-pcie",
    "H800": "h800-sxm",
    "H20": "h20",
    "RTX3090": "rtx-3090",
    "RTX4090": "rtx-4090",
    "RTX_A6000": "rtx-a6000",
    "RTX_PRO_6000": "rtx-pro-6000-server",
    "V100": "v100-sxm2-32gb",
}
GPU_DOUBTS = {
    "H100_label_suspect": "known bad: GPU label doubtful",
    "H100_PCIe_inferred": "known bad: GPU inferred, not documented",
}
FLAGS = {
    "ok": None,
    "unchecked": None,  # no byte model to check against
    "below_roofline": "faster than DRAM and L2 allow (source's own check)",
    "above_nvlink_peak": "faster than NVLink allows (source's own check)",
}
SUPERSEDED = "superseded by a newer file of the same source"

TIMERS = {
    "profiler_kernel_sum": "profiler",
    "kineto": "profiler",
    "kineto_nccl_kernel_median": "profiler",
    "kineto_kernel_l2flush": "profiler",
    "cuda_event": "event",
    "cuda_event_eager": "event",
    "triton_do_bench": "event",
    # The host's clock over many calls in a row and one wait at the end: a kernel longer than a launch hides the host (a row of 9.9 us).
    "torch_benchmark_wall": "profiler",
    "client": "wall",
}
STATISTICS = {
    "kineto_nccl_kernel_median": "median of 3 medians of 11 launches",
    "torch_benchmark_wall": "mean of calls in a row, host clock",
}
FLUSHED = pl.col("method").is_in(["kineto_kernel_l2flush", "triton_do_bench"])

OP, SOURCE, MODEL, TP = pl.col("op"), pl.col("source"), pl.col("model"), pl.col("tp")
BACKEND, PHASE, HOPPER = pl.col("backend"), pl.col("phase"), pl.col("gpu").str.starts_with("H")
IN_VLLM = SOURCE.is_in(["llmservingsim", "llmservingsim_history"])  # profiled inside vLLM 0.19
NOTHING = pl.lit(None)
TOKENS = pl.col("num_tokens")


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def first_of(*cases: tuple[pl.Expr, str]) -> pl.Expr:
    """The text of the first case that holds, else null."""
    return pl.coalesce(*(pl.when(holds).then(pl.lit(text)) for holds, text in cases))


def seconds(microseconds: str) -> pl.Expr:
    return pl.col(microseconds).cast(pl.Float64) * 1e-6


def as_json(**values: pl.Expr | str) -> pl.Expr:
    """One JSON object per row; a string names a raw column."""
    fields = (pl.col(value) if isinstance(value, str) else value for value in values.values())
    return pl.struct(*(field.alias(name) for name, field in zip(values, fields, strict=True))).struct.json_encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """One mixed raw file."""

    columns: frozenset[str]  # what it must have
    family: pl.Expr  # null for an operation that is not known
    common: Columns  # over what `_protocol` gives
    shapes: Mapping[str, Columns]  # family -> its own columns
    known_bad: pl.Expr = NOTHING  # why a row is set aside, beyond what the GPU's name, the flag and `superseded` say
    prepare: Callable[[Path, pl.DataFrame], pl.DataFrame] = lambda _, raw: raw


def protocol(raw: pl.DataFrame, table: RawTable) -> dict[str, pl.Expr]:
    """The columns that every raw table gives in the same way."""
    doubts = [pl.col("gpu").replace_strict(GPU_DOUBTS, default=None, return_dtype=pl.String), table.known_bad.cast(pl.String)]
    if "flag" in raw.columns:
        doubts.append(pl.col("flag").replace_strict(FLAGS, return_dtype=pl.String))
    if "superseded" in raw.columns:
        doubts.append(first_of((pl.col("superseded"), SUPERSEDED)))
    return {
        "gpu": pl.col("gpu").replace_strict(GPUS),
        "dtype": pl.col("dtype"),
        "timer": pl.col("method").replace_strict(TIMERS),
        "statistic": pl.coalesce(pl.col("method").replace_strict(STATISTICS, default=None, return_dtype=pl.String), pl.col("stat")),
        "latency_s": seconds("latency_us"),
        "set_aside": pl.coalesce(*doubts),
        "origin_row": pl.col("origin_row"),
    }
