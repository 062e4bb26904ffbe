"""NVIDIA's public silicon data base, read straight out of the wheel `aiconfigurator-core==0.12.0`: 736 parquet tables on 10 systems.

Latencies are means over CUDA-graph replays (a few warm-ups, 6 to 20 replays), without an L2 flush: GEMM rotates copies of its weights (6
with SGLang and vLLM, as many as exceed L2 but at most 5 with TensorRT-LLM), attention and MoE reuse one set of buffers. vLLM's `fp8_block`
GEMM ran eagerly. On Arc B60 everything did, for PyTorch replays no graphs there: calls back to back, each as long as the slower of host
and GPU, labelled `graph` like the others (`GpuSpec.replays_graphs`). Raw latency is in milliseconds unless said.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tilecast import hardware
from tilecast.datasets import wheel
from tilecast.datasets.schema import conform
from tilecast.datasets.sources.base import Table, read_columns
from tilecast.errors import MissingData
from tilecast.execution.cache import kept_bytes
from tilecast.kernels.moe_defaults import default_configurations

PREFIX = "aiconfigurator_core/systems/data/"
SERVING_TABLE = "aiconfigurator_core/systems/silicon_sample.csv"

GPUS = {
    "a100_sxm": "a100-sxm-80gb", "b200_sxm": "b200-sxm", "b300_sxm": "b300-sxm", "b60": "arc-b60", "gb200": "gb200", "gb300": "gb300",
    "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000-server",
}  # fmt: skip
DTYPES = {
    "bfloat16": "bf16", "half": "fp16", "int8": "int8", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_static": "fp8_static",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4", "fp4": "nvfp4", "int8_wo": "int8_wo", "int4_wo": "int4_wo", "sq": "int8_sq", "w4afp8": "w4afp8",
    "w4a16_mxfp4": "w4a16_mxfp4",
    "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8", "default": "bf16",
}  # fmt: skip
WEIGHT_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}  # as TensorRT-LLM's collector counts them
MOST_COPIES = 5
MESSAGE_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}

# kernel_source -> our identity; absent: the label does not tell. The bf16 paths all end in cuBLAS.
GEMM_IDENTITY = {
    "sglang_torch_linear": "cublas", "torch.nn.functional.linear": "cublas", "sglang_sgl_kernel_fp8_scaled_mm": "cutlass",
    "CutlassFP8ScaledMMLinearKernel": "cutlass", "CutlassFp8BlockScaledMMKernel": "cutlass", "DeepGemmFp8BlockScaledMMKernel": "deepgemm",
    "deepgemm": "deepgemm", "sglang_deepgemm_gemm_nt_f8f8bf16": "deepgemm", "TritonFp8BlockScaledMMKernel": "triton",
    "sglang_flashinfer_cutedsl_nvfp4": "cutlass", "sglang_flashinfer_cutlass_nvfp4": "cutlass",
    "FlashInferCuteDslNvFp4LinearKernel": "cutlass",
    "FlashInferCutlassNvFp4LinearKernel": "cutlass",
}  # fmt: skip
GENERIC_GEMM = ("torch_flow", "sglang", "vllm_default")  # one label for every dtype: cuBLAS when that is bf16
ATTENTION_IDENTITY = {
    "fa3": "fa3", "vllm_flash_attn_fa2": "fa2", "vllm_flash_attn_fa3": "fa3", "vllm_flash_attn_fa4": "fa4", "trtllm_mha": "trtllm",
    "torch_flow": "trtllm", "torch_flow_flashinfer": "flashinfer_fa2", "vllm_flashinfer_fidecode": "flashinfer_fa2",
    "vllm_flashinfer_fiprefill": "flashinfer_fa2", "vllm_flashinfer_trtllmdecode": "trtllm", "vllm_flashinfer_trtllmprefill": "trtllm",
    "triton": "triton", "vllm_triton_attn": "triton", "flash_attention_v3": "fa3", "flash_attention_v4": "fa4",
    "vllm_vit_flash_attn_fa2": "fa2",
    "vllm_vit_flash_attn_fa3": "fa3", "vllm_vit_flash_attn_fa4": "fa4",
}  # fmt: skip
MLA_IDENTITY = {"trtllm_mla": "trtllm", "triton": "triton", "fa3": "fa3", "flashinfer": "flashinfer"}
DATA_CENTRE_BLACKWELL = ("b200-sxm", "b300-sxm", "gb200", "gb300")
NUM_REPEATS = {"gemm": {"trtllm": 6, "sglang": 6, "vllm": 6}, "attention": {"trtllm": 6, "sglang": 20, "vllm": 6}}

Read = Callable[[pl.DataFrame, "Coordinates"], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """What a table's path in the wheel says of its rows."""

    gpu: str
    engine: str
    engine_version: str
    origin: str

    @classmethod
    def of(cls, name: str) -> "Coordinates":
        system, _, engine, version, _ = name.removeprefix(PREFIX).split("/")
        if system not in GPUS:
            raise MissingData(f"{name}: unknown system {system!r}; known: {', '.join(GPUS)}")
        return cls(GPUS[system], engine, version, name.removeprefix(PREFIX))


def _mapped(column: str, table: Mapping[str, str]) -> pl.Expr:
    """A known label's own word, else null."""
    return pl.col(column).cast(pl.Categorical).replace_strict(table, default=None, return_dtype=pl.Categorical)


def _dtype(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(DTYPES, return_dtype=pl.Categorical).alias("dtype")


def _kv_dtype() -> pl.Expr:
    return pl.col("kv_cache_dtype").replace_strict(DTYPES, return_dtype=pl.Categorical).alias("kv_dtype")


def _common(milliseconds: str = "latency") -> list[pl.Expr]:
    return [pl.col("origin_row"), pl.col("kernel_source").alias("kernel"), (pl.col(milliseconds) / 1e3).alias("latency_s")]


def _attributes(*columns: str) -> pl.Expr:
    """Columns that only some tables have, as one JSON text."""
    return pl.struct(columns).struct.json_encode().alias("attributes")


def _where(frame: pl.DataFrame, is_bad: pl.Expr, reason: str) -> pl.DataFrame:
    return frame.with_columns(pl.when(is_bad).then(pl.lit(reason)).otherwise(None).alias("set_aside"))


def _power(raw: pl.DataFrame) -> list[pl.Expr]:
    return [pl.col("power").alias("power_w")] if "power" in raw.columns else []


# ---- one function per kind of table ------------------------------------------------------------------------------


def _gemm(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    is_generic = pl.col("kernel_source").is_in(GENERIC_GEMM) & (pl.col("gemm_dtype") == "bfloat16")
    # vLLM's collector keeps one copy of these weights, so they stay in L2 when they fit, and runs fp8_block without a graph.
    one_copy = pl.col("gemm_dtype").is_in(["fp8_block", "nvfp4"]) & pl.lit(at.engine == "vllm")
    stays = _copies_stay(at) if at.engine == "trtllm" else one_copy
    eager = (pl.col("gemm_dtype") == "fp8_block") & pl.lit(at.engine == "vllm")
    frame = raw.select(
        *_common(), "m", "n", "k", _dtype("gemm_dtype"),
        pl.when(is_generic).then(pl.lit("cublas").cast(pl.Categorical)).otherwise(_mapped("kernel_source",
        GEMM_IDENTITY)).alias("identity"),
        pl.when(stays).then(pl.lit("warm")).otherwise(pl.lit("rotated")).cast(pl.Categorical).alias("cache"),
        pl.when(eager).then(pl.lit("event")).otherwise(pl.lit("graph")).cast(pl.Categorical).alias("timer"),
    )  # fmt: skip
    frame = _where(
        frame, (pl.col("dtype").cast(pl.String) == "fp8_block") & pl.lit(at.engine == "vllm"), "known bad: timed eagerly, launch included"
    )
    return conform(frame, "gemm", batch=1, bias=False, num_repeats=NUM_REPEATS["gemm"].get(at.engine), **_constants(at))


def _copies_stay(at: Coordinates) -> pl.Expr:
    """Whether all copies of a weight that TensorRT-LLM's collector rotates fit the L2 that they should exceed; some fill it exactly."""
    gpu = hardware.gpu(at.gpu)
    weight_bytes = pl.col("n") * pl.col("k") * pl.col("gemm_dtype").replace_strict(WEIGHT_BYTES, default=2.0, return_dtype=pl.Float64)
    copies = (gpu.l2_bytes / weight_bytes).ceil().clip(1, MOST_COPIES)
    return copies * weight_bytes <= kept_bytes(gpu)


def _mla_bmm(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    """The two absorbed-weight products of MLA decode: a head's 128 wide query into the 512 wide latent, and back."""
    into = pl.col("op_name") == "mla_gen_pre"
    frame = raw.select(
        *_common(), _dtype("bmm_dtype"), pl.col("num_heads").alias("batch"), pl.col("num_tokens").alias("m"),
        pl.when(into).then(512).otherwise(128).alias("n"), pl.when(into).then(128).otherwise(512).alias("k"),
    )  # fmt: skip
    return conform(frame, "gemm", bias=False, timer="graph", cache="warm", **_constants(at))


def _attention_labels(family: str, at: Coordinates) -> dict[str, str]:
    """What a label means there: some only say whose library it is.

    Inferred from how training times step with sizes, not told by the source: on data-centre Blackwell FlashInfer sends TensorRT-LLM's calls
    to that library's own kernels, and SGLang's prefill to one that has no word here; on A100 SGLang's tiles are those of FA3 for Ampere.
    """
    is_new = at.gpu in DATA_CENTRE_BLACKWELL
    labels = dict(ATTENTION_IDENTITY)
    if is_new:
        labels["torch_flow_flashinfer"] = "trtllm"
    if not is_new or family == "attention_decode":
        labels["flashinfer"] = "flashinfer_fa2"
    if at.gpu.startswith("a100"):
        labels |= {"flash_attention": "fa3", "vllm_flash_attn": "fa2"}
    return labels


def _attention(family: str) -> Read:
    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        window = pl.when(pl.col("window_size") > 0).then(pl.col("window_size")) if "window_size" in raw.columns else pl.lit(None, pl.Int64)
        kv_heads = pl.col("num_key_value_heads")
        frame = raw.select(
            *_common(), *_power(raw), _dtype("attn_dtype"), _kv_dtype(),
            _mapped("kernel_source", _attention_labels(family, at)).alias("identity"),
            pl.col("batch_size").alias("batch"), pl.col("isl").alias("q_len"), (pl.col("isl") + pl.col("step")).alias("kv_len"),
            "num_heads",
            pl.when(kv_heads > 0).then(kv_heads).otherwise(pl.col("num_heads")).alias("num_kv_heads"), "head_dim", window.alias("window"),
        )  # fmt: skip
        if family == "attention_decode" and at.engine == "trtllm" and at.engine_version == "1.0.0":
            frame = _where(frame, pl.lit(True), "known bad: measured with a K-only cache")
        return conform(
            frame, family, causal=True, timer="graph", cache="warm", num_repeats=NUM_REPEATS["attention"].get(at.engine), **_constants(at)
        )

    return read


def _encoder_attention(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    frame = raw.select(
        *_common(), _dtype("attn_dtype"), _mapped("kernel_source", ATTENTION_IDENTITY).alias("identity"),
        pl.col("batch_size").alias("batch"),
        pl.col("isl").alias("q_len"), pl.col("isl").alias("kv_len"), "num_heads", pl.col("num_heads").alias("num_kv_heads"), "head_dim",
    )  # fmt: skip
    return conform(frame, "attention_prefill", causal=False, kv_dtype="bf16", timer="graph", cache="warm", **_constants(at))


def _mla(family: str) -> Read:
    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        frame = raw.select(
            *_common(), _dtype("mla_dtype"), _kv_dtype(), pl.col("batch_size").alias("batch"), pl.col("isl").alias("q_len"),
            (pl.col("isl") + pl.col("step")).alias("kv_len"), "num_heads",
            (pl.lit("trtllm").cast(pl.Categorical) if at.engine == "trtllm" else _mapped("kernel_source", MLA_IDENTITY)).alias("identity"),
        )  # fmt: skip
        sizes = {
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        }  # DeepSeek V3's; no other is collected
        return conform(frame, family, timer="graph", cache="warm", **sizes, **_constants(at))

    return read


def _moe(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    kernel = pl.col("kernel_source").str.to_lowercase()
    # Nemotron's experts have no gate in any engine, though only TensorRT-LLM's label says so: with one, hundreds of rows would beat DRAM.
    is_nemotron = (pl.col("topk") == 22) | ((pl.col("hidden_size") == 2688) & (pl.col("inter_size") == 1856))
    is_gated = ~kernel.str.contains("nongated") & ~is_nemotron
    # TensorRT-LLM's unlabelled path is CUTLASS without a gate and on everything but data-centre Blackwell; OpenAI's Triton kernels for
    # MXFP4, says the collector.
    is_older = pl.lit(at.engine == "trtllm" and at.gpu not in DATA_CENTRE_BLACKWELL)
    is_openai = is_older & (kernel == "moe_torch_flow") & (pl.col("moe_dtype") == "w4a16_mxfp4")
    is_cutlass = is_older | (pl.lit(at.engine == "trtllm") & ~is_gated)
    identity = (
        pl.when(kernel.str.contains("deepgemm|deepep")).then(pl.lit("deepgemm"))
        .when(kernel.str.contains("triton") | (kernel == "vllm_fused_moe") | is_openai).then(pl.lit("triton"))
        .when(kernel.str.contains("marlin")).then(pl.lit("marlin"))
        .when(kernel.str.contains("cutlass") | is_cutlass).then(pl.lit("cutlass"))
        .otherwise(None).cast(pl.Categorical)
    )  # fmt: skip
    frame = raw.select(
        *_common(), *_power(raw), _dtype("moe_dtype"), identity.alias("identity"), "num_tokens", "hidden_size", "inter_size",
        "num_experts", "topk", pl.col("moe_tp_size").alias("tp"), pl.col("moe_ep_size").alias("ep"), is_gated.alias("gated"),
        pl.col("distribution").replace({"uniform": "balanced"}).alias("distribution"),
    )  # fmt: skip
    if at.engine == "sglang" and at.engine_version == "0.5.10":  # 8 ranks of many experts take 0.9 of one's time, with 0.5.14 a third
        did_all = (pl.col("ep") > 1) & ~frame["kernel"].cast(pl.String).str.contains("deepep")
        frame = _where(frame, did_all, "known bad: a rank of expert parallelism did the work of all")
    return conform(_as_launched(frame, at), "moe", moe_pass="both", timer="graph", cache="warm", **_constants(at))


def _as_launched(frame: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    """vLLM before 0.15 launched its Triton kernel with the default that SGLang still has, not the one that physics assumes for vLLM."""
    if at.engine != "vllm" or tuple(map(int, at.engine_version.split(".")[:2])) >= (0, 15):
        return frame
    on_rank = (frame["num_experts"] // frame["ep"]).to_numpy()
    launched = default_configurations("sglang", frame["num_tokens"].to_numpy(), on_rank, "bf16", None)
    is_plain = pl.col("dtype").cast(pl.String).is_in(["bf16", "fp16"])
    return frame.with_columns(pl.when(is_plain).then(pl.Series(name, values)).alias(name) for name, values in launched.items())


def _moe_a2a(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    frame = raw.select(
        "origin_row", pl.col("comm_backend").alias("kernel"), (pl.col("latency") / 1e6).alias("latency_s"), _dtype("comm_dtype"),
        pl.col("phase").alias("op"), "num_tokens", "hidden_size", "num_experts", "topk", pl.col("ep_size").alias("ep"),
        pl.col("node_num").alias("num_nodes"), pl.col("sms").alias("num_sms"),
    )  # fmt: skip
    return conform(frame, "moe_dispatch", timer="event", cache="warm", **_constants(at))


def _trtllm_alltoall(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    frame = raw.select(
        *_common(), _dtype("moe_dtype"), pl.col("op_name").str.strip_prefix("alltoall_").alias("op"), "num_tokens", "hidden_size",
        "num_experts",
        "topk", pl.col("moe_ep_size").alias("ep"), "distribution",
    )  # fmt: skip
    return conform(frame, "moe_dispatch", timer="graph", cache="warm", **_constants(at))


def _deepep(*, dispatch_us: tuple[str, ...], combine_us: tuple[str, ...], sms: bool) -> Read:
    """A raw row times dispatch and combine side by side: two rows of ours with one origin."""

    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        halves = [
            raw.select(
                "origin_row", pl.col("op_name").alias("kernel"), (pl.sum_horizontal(columns) / 1e6).alias("latency_s"),
                pl.lit(op).alias("op"),
                pl.col("num_token").alias("num_tokens"), "hidden_size", "num_experts", pl.col("num_topk").alias("topk"),
                pl.col("node_num").alias("num_nodes"), *([pl.col(f"{op}_sms").alias("num_sms")] if sms else []),
            )
            for op, columns in (("dispatch", dispatch_us), ("combine", combine_us))
        ]  # fmt: skip
        return conform(pl.concat(halves), "moe_dispatch", dtype="bf16", timer="event", cache="warm", **_constants(at))

    return read


def _quantize(op: str, set_aside: str | None = None) -> Read:
    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        frame = raw.select(*_common(), pl.col("m").alias("rows"), pl.col("k").alias("cols"))
        return conform(frame, "quantize", op=op, dtype="fp8", timer="graph", cache="warm", set_aside=set_aside, **_constants(at))

    return read


def _collective(raw: pl.DataFrame, at: Coordinates, family: str, dtype: str, timer: pl.Expr, identity: str) -> pl.DataFrame:
    frame = raw.select(
        *_common(), _dtype(dtype), (pl.col("message_size") * pl.col(dtype).replace_strict(MESSAGE_BYTES,
        return_dtype=pl.Int64)).alias("bytes"),
        "num_gpus", pl.col("num_gpus").alias("gpus_per_node"), timer.alias("timer"),
    )  # fmt: skip
    if at.gpu == "l40s":
        frame = _where(frame, pl.lit(True), "known bad: L40S collectives are implausible and copied across versions")
    return conform(frame, family, identity=identity, cache="warm", **_constants(at))


def _nccl(op_name: str, family: str) -> Read:
    """nccl-tests launch back to back, so that no host time is inside: as in a graph."""

    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        identity = "oneccl" if at.engine == "oneccl" else "nccl"
        return _collective(raw.filter(pl.col("op_name") == op_name), at, family, "nccl_dtype", pl.lit("graph"), identity)

    return read


def _custom_all_reduce(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    eager = pl.col("kernel_source").str.ends_with("_eager")
    return _collective(raw, at, "all_reduce", "allreduce_dtype", pl.when(eager).then(pl.lit("event")).otherwise(pl.lit("graph")), "custom")


def _module(phase: str, *attributes: str, set_aside: str | None = None) -> Read:
    """Attention modules of one architecture: several kernels, projections included."""

    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        present = [name for name in ("gemm_type", *attributes) if name in raw.columns]
        # The wide-EP decode tables state the cache length as isl and no step.
        is_decode = pl.lit(at.origin.endswith("wideep_generation_mla_perf.parquet"))
        model = pl.col("model") if "model" in raw.columns else pl.lit(None, pl.String)
        frame = raw.select(
            *_common(), _dtype("mla_dtype"), _kv_dtype(), pl.col("op_name").alias("op"), model.alias("model"),
            pl.col("batch_size").alias("batch"),
            pl.when(is_decode).then(1).otherwise(pl.col("isl")).alias("q_len"), (pl.col("isl") + pl.col("step")).alias("kv_len"),
            "num_heads", pl.col("tp_size").alias("tp"), *([_attributes(*present)] if present else []),
        )  # fmt: skip
        return conform(frame, "layer", phase=phase, timer="graph", cache="warm", set_aside=set_aside, **_constants(at))

    return read


def _recurrent(*attributes: str) -> Read:
    """Linear-attention and state-space kernels: several to a layer, told apart by `kernel`."""

    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        frame = raw.select(
            *_common(), pl.col("op_name").alias("op"), "phase", pl.col("model_name").alias("model"), pl.col("batch_size").alias("batch"),
            pl.col("seq_len").alias("q_len"), "num_tokens", pl.col("d_model").alias("hidden_size"), _attributes(*attributes),
        )  # fmt: skip
        return conform(frame, "layer", dtype="bf16", timer="graph", cache="warm", **_constants(at))

    return read


def _hyper_connection(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    frame = raw.select(
        *_common(), pl.format("mhc_{}", pl.col("op_name")).alias("op"), pl.col("architecture").alias("model"), "num_tokens", "hidden_size",
        _attributes("num_sites", "hc_mult", "sinkhorn_iters"),
    )  # fmt: skip
    return conform(frame, "layer", dtype="bf16", timer="graph", cache="warm", **_constants(at))


def _mlp(phase: str) -> Read:
    def read(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
        frame = raw.select(
            *_common("avg_ms"), _dtype("quant_type"), pl.col("op_name").alias("op"), pl.col("num_token").alias("num_tokens"), "hidden_size",
            _attributes("intermediate_size"),
        )  # fmt: skip
        return conform(frame, "layer", phase=phase, timer="graph", cache="warm", **_constants(at))

    return read


def _mega_moe(raw: pl.DataFrame, at: Coordinates) -> pl.DataFrame:
    frame = raw.select(
        *_common(), _dtype("moe_dtype"), pl.col("op_name").alias("op"), "phase", "num_tokens", "hidden_size",
        _attributes("inter_size", "topk", "num_experts", "moe_ep_size", "distribution", "global_num_tokens"),
    )  # fmt: skip
    return conform(frame, "layer", timer="graph", cache="warm", **_constants(at))


def _at_least_one(column: str) -> pl.Expr:
    """A degree of parallelism, which the raw file also writes as 0 or leaves empty for none; unknown when disaggregated."""
    return pl.when(pl.col("mode") == "agg").then(pl.col(column).fill_null(1).clip(1, None))


def _serving(raw: pl.DataFrame) -> pl.DataFrame:
    """Measured serving points: time to first token and per output token, two rows of ours for one raw row."""
    concurrency = pl.col("silicon_data_source").str.extract(r"silicon_concurrency=(\d+)").cast(pl.Int64)
    precision = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bf16", "int4": "int4_wo"}
    detail = ("id", "gemm_quant_mode", "moe_quant_mode", *(name for name in raw.columns if name.startswith(("prefill_", "decode_"))))
    shared = raw.select(
        "origin_row", pl.col("system").replace_strict(GPUS).alias("gpu"), pl.col("backend").alias("engine"),
        pl.col("backend_version").alias("engine_version"),
        pl.col("precision").replace_strict(precision, default="bf16").alias("dtype"), pl.col("model_path").alias("model"), "mode", "isl",
        "osl",
        concurrency.alias("concurrency"), pl.col("batch_size").alias("batch"), pl.col("tp_size").alias("tp"), pl.col("pp_size").alias("pp"),
        _at_least_one("attention_dp_size").alias("attention_dp"), _at_least_one("moe_tp_size").alias("moe_tp"),
        _at_least_one("moe_ep_size").alias("moe_ep"),
        (pl.col("tp_size") * pl.col("pp_size").fill_null(1) * _at_least_one("attention_dp_size")).alias("num_gpus"), _attributes(*detail),
        "silicon_ttft_ms", "silicon_tpot_ms",
    )  # fmt: skip
    halves = [
        shared.with_columns((pl.col(f"silicon_{metric}_ms") / 1e3).alias("latency_s"), pl.lit(metric).alias("metric"))
        .drop("silicon_ttft_ms", "silicon_tpot_ms")
        .filter(pl.col("latency_s").is_not_null())
        for metric in ("ttft", "tpot")
    ]
    return conform(pl.concat(halves), "serving", timer="wall", origin=SERVING_TABLE, source=SOURCE.name, licence=SOURCE.licence)


_DELTA = "known bad: the difference of two timings, not a time"
_SPARSE = ("compress_ratio", "score_mode", "local_num_heads")
_GDN = ("d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")

# Table file -> the families its rows belong to and their readers.
READERS: Mapping[str, Mapping[str, Read]] = {
    "gemm_perf": {"gemm": _gemm},
    "mla_bmm_perf": {"gemm": _mla_bmm},
    "context_attention_perf": {"attention_prefill": _attention("attention_prefill")},
    "generation_attention_perf": {"attention_decode": _attention("attention_decode")},
    "encoder_attention_perf": {"attention_prefill": _encoder_attention},
    "context_mla_perf": {"mla_prefill": _mla("mla_prefill")},
    "generation_mla_perf": {"mla_decode": _mla("mla_decode")},
    "moe_perf": {"moe": _moe},
    "wideep_moe_perf": {"moe": _moe},
    "wideep_context_moe_perf": {"moe": _moe},
    "wideep_generation_moe_perf": {"moe": _moe},
    "moe_a2a_perf": {"moe_dispatch": _moe_a2a},
    "trtllm_alltoall_perf": {"moe_dispatch": _trtllm_alltoall},
    "wideep_deepep_ll_perf": {
        "moe_dispatch": _deepep(dispatch_us=("dispatch_avg_t_us",), combine_us=("combine_avg_t_us",), sms=False),
    },
    "wideep_deepep_normal_perf": {
        "moe_dispatch": _deepep(
            dispatch_us=("dispatch_transmit_us", "dispatch_notify_us"), combine_us=("combine_transmit_us", "combine_notify_us"), sms=True
        ),
    },
    "scale_matrix_perf": {"quantize": _quantize("static_scaled_fp8")},
    "computescale_perf": {"quantize": _quantize("compute_scale", set_aside=_DELTA)},
    "nccl_perf": {
        family: _nccl(op, family)
        for op, family in (
            ("all_reduce", "all_reduce"),
            ("all_gather", "all_gather"),
            ("reduce_scatter", "reduce_scatter"),
            ("alltoall", "all_to_all"),
        )
    },
    "oneccl_perf": {family: _nccl(family, family) for family in ("all_reduce", "all_gather", "reduce_scatter")},
    "custom_allreduce_perf": {"all_reduce": _custom_all_reduce},
    **{
        f"{name}_perf": {"layer": _module(phase, *_SPARSE)}
        for name, phase in (
            ("mla_context_module", "context"), ("mla_generation_module", "generation"), ("wideep_context_mla", "context"),
            ("wideep_generation_mla", "generation"), ("dsa_context_module", "context"), ("dsa_generation_module", "generation"),
            ("dsv4_csa_context_module", "context"), ("dsv4_csa_generation_module", "generation"), ("dsv4_hca_context_module", "context"),
            ("dsv4_hca_generation_module", "generation"), ("dsv4_hca_attn_module", "attention"), ("dsv4_paged_mqa_logits_module", "logits"),
            ("glm5_dsa_attn_module", "attention"), ("glm5_mqa_logits_module", "logits"), ("msa_context_module", "context"),
            ("msa_generation_module", "generation"),
        )
    },
    **{f"{name}_perf": {"layer": _module("topk", *_SPARSE, set_aside=_DELTA)} for name in ("dsv4_csa_topk_calib", "glm5_topk_module")},
    "gdn_perf": {"layer": _recurrent(*_GDN)},
    "kda_perf": {"layer": _recurrent(*_GDN)},
    "mamba2_perf": {"layer": _recurrent("d_state", "d_conv", "nheads", "head_dim", "n_groups", "chunk_size")},
    "mhc_module_perf": {"layer": _hyper_connection},
    "wideep_context_mlp_perf": {"layer": _mlp("context")},
    "wideep_generation_mlp_perf": {"layer": _mlp("generation")},
    "dsv4_megamoe_module_perf": {"layer": _mega_moe},
}  # fmt: skip


def _constants(at: Coordinates) -> dict[str, object]:
    identity = {"gpu": at.gpu, "engine": at.engine, "engine_version": at.engine_version}
    return {**identity, "statistic": "mean", "source": SOURCE.name, "licence": SOURCE.licence, "origin": at.origin}


@dataclass(frozen=True, slots=True)
class AiConfigurator:
    name: str = "aiconfigurator"
    licence: str = "Apache-2.0"
    home: str = f"PyPI package {wheel.PACKAGE}=={wheel.VERSION} (ai-dynamo/aiconfigurator)"

    def locate(self) -> Path:
        return wheel.wheel_path()

    def fingerprint(self, root: Path) -> str:
        return wheel.SHA256[:12] if root.name == wheel.FILE_NAME else wheel.sha256_of(root)[:12]

    def tables(self, root: Path) -> list[Table]:
        names = sorted(name for name in wheel.open_wheel(root).namelist() if name.startswith(PREFIX) and name.endswith(".parquet"))
        tables = [Table(name, family) for name in names for family in self._readers(name)]
        return [*tables, Table(SERVING_TABLE, "serving")]

    def read(self, root: Path, table: Table) -> pl.DataFrame:
        content = io.BytesIO(wheel.member(wheel.open_wheel(root), table.name))
        try:
            raw = pl.read_csv(content, infer_schema_length=None) if table.name == SERVING_TABLE else pl.read_parquet(content)
            raw = raw.with_row_index("origin_row")
            if table.name == SERVING_TABLE:
                return _serving(raw)
            return self._readers(table.name)[table.family](raw, Coordinates.of(table.name))
        except pl.exceptions.ColumnNotFoundError as problem:
            read_columns(raw, {str(problem).split('"')[1] if '"' in str(problem) else str(problem).splitlines()[0]}, table.name)
            raise
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise MissingData(f"{table.name} in {root.name} is damaged or of another layout: {str(problem).splitlines()[0]}") from None

    def _readers(self, name: str) -> Mapping[str, Read]:
        kind = name.rsplit("/", 1)[-1].removesuffix(".parquet")
        if kind not in READERS:
            raise MissingData(f"{name}: unknown table {kind!r}; known: {', '.join(READERS)}")
        return READERS[kind]


SOURCE = AiConfigurator()
