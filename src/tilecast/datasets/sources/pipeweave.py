"""PipeWeave's measurements: FP8 GEMM, the Triton MoE kernel and its tuning, NCCL collectives, whole SGLang and vLLM runs.

Kernels were timed with a profiler, over and over on the same buffers: weights that fit L2 come from L2. Their `engine` is null where the
source does not say whose build ran. Left out, because they hold no measurement of their own: `moe_dse_summary` (its best times are rows of
`moe_dse_configs`; the others are reconstructed from percentages) and the baselines of `moe_tuning_demo` (rows of `moe`). Run 0 of the
whole runs often includes warm-up and is kept: the median over runs is what counts. `attn_fork_sample` comes from the public fork
fwyc0573/pipeweave at 2392efd.
"""

from collections.abc import Mapping

import polars as pl

from tilecast.datasets.sources.folder import ParquetFolder, RawFile, Rows, one_row_each

GPUS = {
    "A100": "a100-sxm-80gb",
    "A40": "a40",
    "A800": "a800-sxm-80gb",
    "B200": "b200-sxm",
    "H100": "h100-sxm",
    "H20": "h20",
    "H200": "h200-sxm",
    "H800": "h800-sxm",
    "L20": "l20",
    "L40": "l40",
    "RTX_6000_Ada": "rtx-6000-ada",
    "RTX_A6000": "rtx-a6000",
    "RTX_PRO_6000_S": "rtx-pro-6000-server",
}
BIASED = "biased sample: peers' worst cases, for diagnosis only"
DIAGNOSIS = "kept for diagnosis only"

_PROFILED = {"timer": "profiler", "cache": "warm", "statistic": "mean"}
_MOE = {**_PROFILED, "identity": "triton", "dtype": "bf16", "distribution": "balanced", "tp": 1, "ep": 1, "gated": True}
# Repeats here and below: the smallest number that makes every time in the file a whole number of nanoseconds.
_ATTENTION = {**_PROFILED, "engine": "flashinfer", "dtype": "bf16", "kv_dtype": "bf16", "causal": True, "num_repeats": 15}


def _seconds(column: str) -> pl.Expr:
    return (pl.col(column) / 1e6).alias("latency_s")


def _gemm(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    return raw.select("gpu", "origin_row", _seconds("duration_us"), m="M", n="N", k="K")


def _gemm_point(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    """As `_gemm`; one shape can occur with several launch configurations, which only the label tells apart."""
    label = pl.format("{}x{}x{} split_k={} ctas={}", "tile_M", "tile_N", "tile_K", "is_split_k", "cta_count")
    return _gemm(raw, family).with_columns(raw.select(kernel=label))


def _moe(time: str, **launch: str) -> Rows:
    """A row reader for the MoE tables, which differ in the column of the time and in those of the launch parameters.

    N is one expert's inter_size: the peer's own efficiencies (`overall_perf`) come out exactly with an output 2 N wide, and not with N.
    """

    def rows(raw: pl.DataFrame, family: str) -> pl.DataFrame:
        problem = {"num_tokens": "M", "hidden_size": "H", "inter_size": "N", "num_experts": "E", "topk": "topk", "moe_pass": "weight_type"}
        return raw.select("gpu", "origin_row", _seconds(time), **problem, **launch)

    return rows


def _collective(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    return raw.filter(pl.col("op") == family).select(
        "gpu",
        "origin_row",
        "bytes",
        _seconds("median_us"),
        spread_s=pl.col("std_us") / 1e6,
        num_gpus="world_size",
        gpus_per_node="devices_per_node",
    )


def _step(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    metrics = {"prefill_ms": "prefill", "decode_ms_median": "decode_step", "total_ms": "total"}
    decode = pl.col("metric") == "decode_step"
    # Alone on a card, RTX 6000 Ada's prefill slows from run to run (8.0 to 11.2 s) while its decode steps do not.
    hot = (pl.col("gpu") == "rtx-6000-ada") & (pl.col("tp") * pl.col("pp") == 1) & ~decode
    return one_row_each(raw, metrics, "metric", "ms").select(
        *("gpu", "origin_row", "metric", "model", "workload", "tp", "pp", "output_len"),
        engine="framework",
        latency_s=pl.col("ms") / 1e3,
        statistic=pl.when(decode).then(pl.lit("median")).otherwise(pl.lit("single run")),
        num_repeats=pl.when(decode).then(pl.col("output_len") - 1).otherwise(1),
        clock=pl.when(hot).then(pl.lit("throttled")),
        batch="batch_size",
        seq_len="max_input_len",
        num_gpus=pl.col("tp") * pl.col("pp"),
        attributes=pl.struct("total_prefill_tokens", "run_index").struct.json_encode(),
    )


def _attention(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    """Decoding where every request brings one new token; `q_len` and `kv_len` where all requests have the same."""
    lengths = [pl.col(name).str.json_decode(pl.List(pl.Int64)) for name in ("q_lengths", "kv_lengths")]
    q_len, kv_len = (pl.when(each.list.n_unique() == 1).then(each.list.first()) for each in lengths)
    decode = lengths[0].list.max() == 1
    return raw.filter(decode if family == "attention_decode" else ~decode).select(
        *("gpu", "origin_row", _seconds("duration_us")),
        identity="flashinfer_" + pl.col("attention_type").str.head(3),
        kernel="attention_type",
        batch="bs",
        q_len=q_len,
        kv_len=kv_len,
        num_heads="nh",
        num_kv_heads="nkv",
        head_dim="hd",
        q_lens="q_lengths",
        kv_lens="kv_lengths",
    )


def _rms_norm(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    """The source does not say whether a residual is added, so `residual` stays null."""
    return raw.select("gpu", "origin_row", _seconds("duration_us"), rows="seq", cols="dim")


def _silu_mul(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    """`dim` is the input, gate and up side by side: twice the output."""
    return raw.select("gpu", "origin_row", _seconds("duration_us"), rows="seq", cols=pl.col("dim") // 2)


_PROBLEM = "weight_type M E topk H N"
_HEADS = "attention_type bs q_lengths kv_lengths nh nkv hd duration_us"
_BOTH_PHASES = ("attention_prefill", "attention_decode")

FILES: Mapping[str, RawFile] = {
    "gemm_fp8.parquet": RawFile(
        families=("gemm",),
        columns="M N K duration_us split",
        rows=_gemm,
        constants={**_PROFILED, "identity": "scaled_mm", "dtype": "fp8", "num_repeats": 5, "batch": 1, "bias": False},
        by_split=True,
    ),
    "moe.parquet": RawFile(
        families=("moe",),
        columns=f"{_PROBLEM} duration_us assumed_BLOCK_SIZE_M assumed_BLOCK_SIZE_N assumed_BLOCK_SIZE_K assumed_GROUP_SIZE_M",
        rows=_moe(
            "duration_us",
            block_m="assumed_BLOCK_SIZE_M",
            block_n="assumed_BLOCK_SIZE_N",
            block_k="assumed_BLOCK_SIZE_K",
            group_m="assumed_GROUP_SIZE_M",
        ),
        constants={**_MOE, "num_repeats": 5},
    ),
    "moe_dse_configs.parquet": RawFile(
        families=("moe",),
        columns=f"{_PROBLEM} duration_us sample_count BLOCK_SIZE_M BLOCK_SIZE_N BLOCK_SIZE_K GROUP_SIZE_M num_warps num_stages",
        rows=_moe(
            "duration_us",
            block_m="BLOCK_SIZE_M",
            block_n="BLOCK_SIZE_N",
            block_k="BLOCK_SIZE_K",
            group_m="GROUP_SIZE_M",
            num_warps="num_warps",
            num_stages="num_stages",
            num_repeats="sample_count",
        ),
        constants=_MOE,
    ),
    "moe_tuning_demo.parquet": RawFile(
        families=("moe",),
        columns=f"{_PROBLEM} tuned_us best_BM best_BN best_BK best_GM best_num_warps best_num_stages",
        rows=_moe(
            "tuned_us",
            block_m="best_BM",
            block_n="best_BN",
            block_k="best_BK",
            group_m="best_GM",
            num_warps="best_num_warps",
            num_stages="best_num_stages",
        ),
        constants={**_MOE, "num_repeats": 3},
    ),
    # Vidur's profiler: NCCL's kernels alone, on a 16-bit buffer used again and again; (min + median + max) / 3 is the mean on every row.
    "collectives.parquet": RawFile(
        families=("all_reduce", "send_recv"),
        columns="op bytes world_size median_us std_us devices_per_node",
        rows=_collective,
        constants={**_PROFILED, "engine": "nccl", "identity": "nccl", "dtype": "fp16", "statistic": "median", "num_repeats": 3},
    ),
    "e2e_real.parquet": RawFile(
        families=("step",),
        columns="framework tp pp model workload run_index batch_size max_input_len output_len total_prefill_tokens "
        "prefill_ms decode_ms_median total_ms",
        rows=_step,
        constants={"dtype": "bf16", "timer": "wall", "mode": "inference", "dp": 1},
    ),
    "measured_points_gemm.parquet": RawFile(
        families=("gemm",),
        columns="M N K tile_M tile_N tile_K is_split_k cta_count duration_us",
        rows=_gemm_point,
        constants={**_PROFILED, "engine": "pytorch", "identity": "cublas", "dtype": "bf16", "batch": 1, "set_aside": BIASED},
    ),
    "measured_points_attn.parquet": RawFile(
        families=_BOTH_PHASES, columns=_HEADS, rows=_attention, constants={**_ATTENTION, "set_aside": BIASED}
    ),
    "measured_points_rmsnorm.parquet": RawFile(
        families=("rms_norm",),
        columns="seq dim duration_us",
        rows=_rms_norm,
        constants={**_PROFILED, "dtype": "bf16", "num_repeats": 15, "set_aside": BIASED},
    ),
    "measured_points_siluandmul.parquet": RawFile(
        families=("silu_mul",),
        columns="seq dim duration_us",
        rows=_silu_mul,
        constants={**_PROFILED, "dtype": "bf16", "num_repeats": 5, "set_aside": BIASED},
    ),
    "attn_fork_sample.parquet": RawFile(
        families=_BOTH_PHASES, columns=_HEADS, rows=_attention, constants={**_ATTENTION, "set_aside": DIAGNOSIS}
    ),
}


class Pipeweave(ParquetFolder):
    name = "pipeweave"
    licence = "Apache-2.0"
    home = "https://github.com/zksainx/pipeweave @ 55e0317"
    gpus = GPUS
    files = FILES


SOURCE = Pipeweave()
