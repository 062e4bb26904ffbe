"""One schema for a measurement: what ran (family and shape), as which kernel (identity), where (GPU), how it was timed, how long it took.

A family's rows are one frame: the common columns below, then the family's own shape columns, always all of them and in this order.
Sizes are what the kernel itself sees: after tensor parallelism, in elements, with bytes where the name says so.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from tilecast.errors import MissingData, UnknownName

SCHEMA_VERSION = 1

TIMERS = ("profiler", "graph", "event", "wall")  # kernel time; CUDA-graph replay; events around a call; a client's clock
CACHES = ("cold", "warm", "rotated")  # flushed or larger than L2; same buffers again; a few copies in turn

COMMON: Mapping[str, Any] = {
    "family": pl.Categorical,
    "gpu": pl.Categorical,  # catalogue id
    "engine": pl.Categorical,  # sglang, vllm, trtllm, pytorch, nccl, ...
    "engine_version": pl.Categorical,
    "identity": pl.Categorical,  # our word for the kernel; null where the source does not tell
    "kernel": pl.Categorical,  # the source's own label
    "dtype": pl.Categorical,  # a name of dtypes.QUANTISATIONS
    "timer": pl.Categorical,
    "cache": pl.Categorical,
    "clock": pl.Categorical,  # state of the clocks where known: "ramping", "throttled"
    "latency_s": pl.Float64,
    "statistic": pl.Categorical,  # mean, median, mean of the 5 fastest of 25, ...
    "num_repeats": pl.Int32,
    "spread_s": pl.Float64,  # standard deviation of the repeats
    "power_w": pl.Float64,  # board power while it ran
    "source": pl.Categorical,
    "licence": pl.Categorical,
    "origin": pl.Categorical,  # the file inside the source
    "origin_row": pl.UInt32,  # the row inside that file
    "set_aside": pl.Categorical,  # why quality.py keeps the row out; null for rows to use
}

_INT, _TEXT, _BOOL = pl.Int64, pl.Categorical, pl.Boolean
_ATTENTION = {
    "batch": _INT, "q_len": _INT, "kv_len": _INT, "num_heads": _INT, "num_kv_heads": _INT, "head_dim": _INT, "causal": _BOOL,
    "window": _INT, "kv_dtype": _TEXT, "q_lens": pl.String, "kv_lens": pl.String,
}  # fmt: skip
_MLA = {
    "batch": _INT, "q_len": _INT, "kv_len": _INT, "num_heads": _INT, "kv_lora_rank": _INT, "qk_nope_head_dim": _INT,
    "qk_rope_head_dim": _INT,
    "v_head_dim": _INT, "kv_dtype": _TEXT,
}  # fmt: skip
_ROWS = {"rows": _INT, "cols": _INT}
_COLLECTIVE = {"bytes": _INT, "num_gpus": _INT, "gpus_per_node": _INT, "node": _TEXT}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "gemm": {"m": _INT, "n": _INT, "k": _INT, "batch": _INT, "bias": _BOOL},
    "attention_prefill": _ATTENTION,
    "attention_decode": _ATTENTION,
    # One fused launch over a prefill chunk and two groups of decoding requests.
    "attention_mixed": {
        "prefill_q_len": _INT, "prefill_kv_len": _INT, "decode_batch_a": _INT, "decode_kv_len_a": _INT, "decode_batch_b": _INT,
        "decode_kv_len_b": _INT, "num_heads": _INT, "num_kv_heads": _INT, "head_dim": _INT, "window": _INT, "kv_dtype": _TEXT,
    },
    "mla_prefill": _MLA,
    "mla_decode": _MLA,
    "moe": {
        "num_tokens": _INT, "hidden_size": _INT, "inter_size": _INT, "num_experts": _INT, "topk": _INT, "tp": _INT, "ep": _INT,
        "distribution": _TEXT, "moe_pass": _TEXT, "gated": _BOOL, "active_experts": _INT, "block_m": _INT, "block_n": _INT, "block_k": _INT,
        "group_m": _INT, "num_warps": _INT, "num_stages": _INT,
    },
    "moe_dispatch": {
        "op": _TEXT, "num_tokens": _INT, "hidden_size": _INT, "num_experts": _INT, "topk": _INT, "ep": _INT, "num_nodes": _INT,
        "num_sms": _INT,
        "distribution": _TEXT,
    },
    "rms_norm": {**_ROWS, "residual": _BOOL},
    "layer_norm": _ROWS,
    "softmax": _ROWS,
    "silu_mul": _ROWS,
    "elementwise": {"op": _TEXT, "numel": _INT},
    "rope": {"rows": _INT, "num_heads": _INT, "num_kv_heads": _INT, "head_dim": _INT},
    "embedding": {**_ROWS, "vocab_size": _INT},
    "kv_cache_write": {"rows": _INT, "num_kv_heads": _INT, "head_dim": _INT},
    "sampling": _ROWS,
    "quantize": {**_ROWS, "op": _TEXT},
    "conv2d": {
        "batch": _INT, "in_channels": _INT, "out_channels": _INT, "height": _INT, "width": _INT, "kernel_size": _INT, "stride": _INT,
        "padding": _INT,
    },
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"), _COLLECTIVE),
    # Whole layers or modules that are several kernels: `op` says which, `attributes` holds what only some of them have (JSON).
    "layer": {
        "op": _TEXT, "phase": _TEXT, "model": _TEXT, "batch": _INT, "q_len": _INT, "kv_len": _INT, "num_tokens": _INT, "num_heads": _INT,
        "hidden_size": _INT, "tp": _INT, "kv_dtype": _TEXT, "attributes": _TEXT,
    },
    # One whole forward pass, decode step or training step of a model: `metric` says what was timed.
    "step": {
        "metric": _TEXT, "model": _TEXT, "mode": _TEXT, "workload": _TEXT, "batch": _INT, "seq_len": _INT, "output_len": _INT, "tp": _INT,
        "pp": _INT,
        "dp": _INT, "num_gpus": _INT, "option": _TEXT, "attributes": _TEXT,
    },
    # A served deployment under load: `metric` is ttft or tpot (or a request's own e2e).
    "serving": {
        "metric": _TEXT, "model": _TEXT, "mode": _TEXT, "isl": _INT, "osl": _INT, "concurrency": _INT, "batch": _INT, "tp": _INT,
        "pp": _INT,
        "attention_dp": _INT, "moe_tp": _INT, "moe_ep": _INT, "num_gpus": _INT, "attributes": _TEXT,
    },
}  # fmt: skip

# How a kernel was configured rather than what it was asked to do: never part of a problem's identity.
CONFIGURATION = frozenset({"block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages"})

FAMILIES = tuple(SHAPES)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
IDENTITY = ("engine", "engine_version", "identity", "kernel", "dtype")
PROTOCOL = ("timer", "cache", "clock")
REQUIRED = ("gpu", "dtype", "timer", "latency_s", "source", "licence", "origin", "origin_row")


def schema(family: str) -> dict[str, Any]:
    """Column -> type of one family's frame, in order."""
    if family not in SHAPES:
        raise UnknownName.among("family", family, FAMILIES)
    return {**COMMON, **SHAPES[family]}


def conform(frame: pl.DataFrame, family: str, **constants: object) -> pl.DataFrame:
    """`frame` with exactly the columns of `family`, typed and ordered; what it lacks is `constants` or null.

    A column the schema does not know is a bug in the reader; a required value that is missing is a damaged file.
    """
    wanted = schema(family)
    given = {**dict.fromkeys(wanted), "family": family, **constants}
    unknown = (set(frame.columns) | set(constants)) - set(wanted)
    assert not unknown, f"{family} has no columns {sorted(unknown)}"
    columns = [(pl.col(name) if name in frame.columns else pl.lit(given[name])).cast(kind).alias(name) for name, kind in wanted.items()]
    conformed = frame.select(columns) if frame.width else pl.DataFrame(schema=wanted)
    for name in REQUIRED:
        if conformed[name].null_count():
            where = conformed["origin"][0] if conformed.height else family
            raise MissingData(f"{where}: {conformed[name].null_count()} rows have no {name}")
    return conformed
