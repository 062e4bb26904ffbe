"""How the mixed raw tables in extra/ become schema rows: Vidur, Frontier, LLMServingSim and InferSim share them, told apart by a tag.

Each raw table says which family a row belongs to and what every column of that family is, as expressions over the raw columns.
A GPU, method, flag, source or operation that nothing here is written for raises: no row is dropped silently.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tilecast.datasets.schema import conform
from tilecast.datasets.sources.base import Table
from tilecast.datasets.sources.folder import data_folder, files_fingerprint, read_table
from tilecast.errors import MissingData

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
    # The host's clock over many calls in a row and one wait at the end: like events around a call, the host's launch floor is in it.
    "torch_benchmark_wall": "event",
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


def _protocol(raw: pl.DataFrame, table: RawTable) -> dict[str, pl.Expr]:
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


# --- layer_ops.parquet: the operations of one decoder layer, run one after another.

# Frontier's input norm is called with the residual aliasing the input: neither a plain norm nor one with a residual of its own.
IS_ALIASED = (OP == "fused_add_rms_norm") & (pl.col("op_raw") == "input_layernorm")
HAS_RESIDUAL = pl.when(IS_ALIASED).then(None).otherwise(OP == "fused_add_rms_norm")

LAYER_OPS = {
    **{
        f"gemm_{name}": "gemm"
        for name in words("qkv q k v wq o up up_single gate down expert_w1 expert_w2 expert_w3 lm_head")
    },
    "rms_norm": "rms_norm",
    "fused_add_rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
    "silu_mul": "silu_mul",
    "gelu": "elementwise",
    "residual_add": "elementwise",
    "rope": "rope",
    "embedding": "embedding",
    "sampler": "sampling",
    # Several kernels, averages over two, or (rms_norm_q) a width that the table does not tell.
    **dict.fromkeys(
        (
            "attn_hf", "fused_qkv_norm_wq", "gdn_layer", "gemm_mtp", "gemm_router_plus_topk", "qk_norm_avg", "rms_norm_avg", "rms_norm_q",
            "rms_norm_unfused_hf", "rope_unfused_hf", "silu_then_mul_unfused_hf",
        ),
        "layer",
    ),
}  # fmt: skip
# Frontier times the norms of q and k of Qwen3 models with their qkv product; Vidur and Frontier, a sharded table's masking with the lookup.
QKV_WITH_NORM = (SOURCE == "frontier") & (OP == "gemm_qkv") & MODEL.str.to_lowercase().str.starts_with("qwen3")
MASKED_EMBEDDING = SOURCE.is_in(["vidur", "vidur_history", "frontier"]) & (OP == "embedding") & (TP > 1)
PHI_2 = MODEL == "microsoft/phi-2"
IS_SCALAR = OP.is_in(["rms_norm", "silu_mul", "rope"]) & SOURCE.is_in(["vidur", "vidur_history", "frontier"])
IS_GEMM = OP.is_in([op for op, family in LAYER_OPS.items() if family == "gemm"])
READS_WEIGHTS = OP.str.starts_with("gemm_") | OP.is_in(["attn_hf", "fused_qkv_norm_wq", "gdn_layer"])
TOKENS = pl.col("num_tokens")
HEADS, KV_HEADS = pl.col("n_heads") // TP, (pl.col("n_kv_heads") // TP).clip(lower_bound=1)
INNER = pl.col("intermediate_size") // TP

LAYER_TABLE = RawTable(
    columns=words(
        "source gpu model op op_raw num_tokens M N K hidden_size intermediate_size n_heads n_kv_heads head_dim vocab_size tp dtype "
        "latency_us latency_std_us stat n_rep method superseded flag"
    ),
    family=pl.when(QKV_WITH_NORM | MASKED_EMBEDDING)
    .then(pl.lit("layer"))
    .otherwise(OP.replace_strict(LAYER_OPS, default=None, return_dtype=pl.String)),
    common={
        "engine": first_of((IN_VLLM, "vllm"), (SOURCE == "llmservingsim_v0", "pytorch")),
        "engine_version": first_of((IN_VLLM, "0.19")),
        # All of them call PyTorch's linear, which is cuBLAS in 16 bits; what ran the fp8 products is not told.
        # The norms, activations and rope that Vidur and Frontier ran are vLLM's of 2024, which took one element at a time.
        "identity": first_of((IS_GEMM & ~QKV_WITH_NORM & (pl.col("dtype") != "fp8"), "cublas"), (IS_SCALAR, "scalar")),
        # One layer runs over and over: its weights take turns in L2 and stay there as far as they fit; the activations were just written.
        "cache": pl.when(READS_WEIGHTS).then(pl.lit("rotated")).otherwise(pl.lit("warm")),
        "num_repeats": pl.col("n_rep"),
        "spread_s": seconds("latency_std_us"),
    },
    shapes={
        "gemm": {
            "m": pl.col("M"),
            "n": pl.col("N"),
            "k": pl.col("K"),
            "batch": pl.lit(1),
            "bias": PHI_2 | ((MODEL == "Qwen/Qwen-72B") & (OP == "gemm_qkv")),
        },
        "rms_norm": {"rows": TOKENS, "cols": pl.col("hidden_size"), "residual": HAS_RESIDUAL},
        "layer_norm": {"rows": TOKENS, "cols": pl.col("hidden_size")},
        "silu_mul": {"rows": TOKENS, "cols": INNER},
        "elementwise": {
            "op": first_of((OP == "gelu", "gelu"), (PHI_2, "add3"), (pl.lit(True), "add")),  # phi-2 adds three tensors
            "numel": TOKENS.cast(pl.Int64) * pl.when(OP == "gelu").then(INNER).otherwise(pl.col("hidden_size")),
        },
        "rope": {"rows": TOKENS, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": pl.col("head_dim")},
        "embedding": {"rows": TOKENS, "cols": pl.col("hidden_size"), "vocab_size": pl.col("vocab_size") // TP},
        "sampling": {"rows": TOKENS, "cols": pl.col("vocab_size")},
        "layer": {
            "op": pl.coalesce(first_of((QKV_WITH_NORM, "qkv_proj_qk_norm"), (MASKED_EMBEDDING, "embedding_masked")), OP),
            "model": MODEL,
            "num_tokens": TOKENS,
            "num_heads": HEADS,
            "hidden_size": pl.col("hidden_size"),
            "tp": TP,
            "attributes": as_json(
                op_raw="op_raw", num_kv_heads=KV_HEADS, head_dim="head_dim", intermediate_size="intermediate_size", vocab_size="vocab_size",
                n="N", k="K",
            ),
        },
    },
)  # fmt: skip

# --- attention_ops.parquet: attention and what stands around it. Heads are per GPU already; kv_len counts the new tokens.

ATTENTION_OPS = {
    "attn_prefill": "attention_prefill",
    "attn_decode": "attention_decode",
    "attn_kv_cache_save": "kv_cache_write",
    "mla_prefill": "mla_prefill",
    "mla_decode": "mla_decode",
    **dict.fromkeys(
        (
            "attn_input_reshape", "attn_output_reshape", "dsa_indexer_logits_decode", "dsa_indexer_logits_prefill", "dsa_sparse_decode",
            "dsa_sparse_prefill", "gdn_chunk_gdn", "gdn_chunk_o", "gdn_conv", "gdn_gdn_update", "gdn_kkt", "gdn_tril", "gdn_wu",
        ),
        "layer",
    ),
}  # fmt: skip
# A fused step of one kind only is plain prefill or decode; the others mix a chunk with decodes, or decodes of two lengths.
FUSED_STEPS = {
    "prefill": "attention_prefill",
    "decode": "attention_decode",
    "true_mixed": "attention_mixed",
    "decode_skewed": "attention_mixed",
}
EAGER_EVENTS = pl.col("method") == "cuda_event_eager"
FROM_FILE = pl.col("source_path").str.ends_with
ATTENTION: Columns = {
    "batch": pl.col("batch"),
    "q_len": pl.col("q_len"),
    "kv_len": pl.col("kv_len"),
    "num_heads": pl.col("n_heads"),
    "num_kv_heads": pl.col("n_kv_heads"),
    "head_dim": pl.col("head_dim"),
    "causal": pl.col("causal"),
    "kv_dtype": pl.col("kv_dtype"),
    "q_lens": pl.col("q_lens"),
    "kv_lens": pl.col("kv_lens"),
}
MLA: Columns = {
    "batch": pl.col("batch"),
    "q_len": pl.col("q_len"),
    "kv_len": pl.col("kv_len"),
    "num_heads": pl.col("n_heads"),
    # All rows are DeepSeek-V3: decode reads the 512 + 64 latents, prefill the 128 + 64 wide keys and 128 wide values made from them.
    "kv_lora_rank": pl.lit(512),
    "qk_nope_head_dim": pl.lit(128),
    "qk_rope_head_dim": pl.lit(64),
    "v_head_dim": pl.lit(128),
    "kv_dtype": pl.col("kv_dtype"),
}

ATTENTION_TABLE = RawTable(
    columns=words(
        "source gpu model op phase backend batch q_len kv_len q_lens kv_lens prefill_q prefill_hist n_dec_a kv_dec_a n_dec_b kv_dec_b "
        "total_q n_heads n_kv_heads head_dim head_dim_v tp page_size dtype kv_dtype causal latency_us latency_std_us stat n_rep method "
        "superseded flag source_path"
    ),
    family=pl.when(OP == "attn_fused_step")
    .then(PHASE.replace_strict(FUSED_STEPS, default=None, return_dtype=pl.String))
    .otherwise(OP.replace_strict(ATTENTION_OPS, default=None, return_dtype=pl.String)),
    common={
        "engine": first_of((IN_VLLM, "vllm"), (SOURCE == "llmservingsim_v0", "pytorch"), (BACKEND == "sglang_triton", "sglang")),
        "engine_version": first_of((IN_VLLM, "0.19")),
        "identity": pl.when(OP.is_in(["attn_prefill", "attn_decode", "attn_fused_step", "mla_prefill"])).then(
            first_of(
                (BACKEND.is_in(["flash_attention", "flash_attn2_varlen"]), "fa2"),
                (BACKEND == "fa3_varlen", "fa3"),
                (BACKEND == "flashinfer_decode", "flashinfer_fa2"),  # its decode wrapper has no other kernel
                # FlashInfer and vLLM choose version 3 on Hopper only, and there neither source tells which one ran.
                ((BACKEND == "flashinfer") & ~HOPPER, "flashinfer_fa2"),
                ((BACKEND == "vllm0.19_flash_attn") & ~HOPPER, "fa2"),
            )
        ),
        "kernel": BACKEND,
        # Alone, a call reads the same keys and values again; inside vLLM other layers' weights come between.
        "cache": pl.when(FLUSHED | IN_VLLM).then(pl.lit("cold")).otherwise(pl.lit("warm")),
        "num_repeats": pl.col("n_rep"),
        "spread_s": pl.when(pl.col("n_rep") > 1).then(seconds("latency_std_us")),
    },
    shapes={
        "attention_prefill": ATTENTION,
        "attention_decode": ATTENTION,
        "attention_mixed": {
            "prefill_q_len": pl.col("prefill_q"),
            "prefill_kv_len": pl.col("prefill_hist") + pl.col("prefill_q"),
            "decode_batch_a": pl.col("n_dec_a"),
            "decode_kv_len_a": pl.when(pl.col("n_dec_a") > 0).then(pl.col("kv_dec_a") + 1).otherwise(0),
            "decode_batch_b": pl.col("n_dec_b"),
            "decode_kv_len_b": pl.when(pl.col("n_dec_b") > 0).then(pl.col("kv_dec_b") + 1).otherwise(0),
            "num_heads": pl.col("n_heads"),
            "num_kv_heads": pl.col("n_kv_heads"),
            "head_dim": pl.col("head_dim"),
            "kv_dtype": pl.col("kv_dtype"),
        },
        "mla_prefill": MLA,
        "mla_decode": MLA,
        "kv_cache_write": {"rows": pl.col("total_q"), "num_kv_heads": pl.col("n_kv_heads"), "head_dim": pl.col("head_dim")},
        "layer": {
            "op": OP,
            "phase": PHASE,
            "model": MODEL,
            "batch": pl.col("batch"),
            "q_len": pl.col("q_len"),
            "kv_len": pl.col("kv_len"),
            "num_tokens": pl.col("total_q"),
            "num_heads": pl.col("n_heads"),
            "tp": TP,
            "kv_dtype": pl.col("kv_dtype"),
            "attributes": as_json(
                num_kv_heads="n_kv_heads", head_dim="head_dim", v_head_dim="head_dim_v", page_size="page_size", q_lens="q_lens",
                kv_lens="kv_lens",
            ),
        },
    },
    known_bad=first_of(
        (OP.str.ends_with("_reshape") & EAGER_EVENTS, "known bad: times an empty region"),
        (
            # Repeats of these differ by 58 % in the median.
            (pl.col("gpu") == "A800") & MODEL.str.starts_with("qwen3") & EAGER_EVENTS & (pl.col("latency_us") < 100),
            "known bad: launch noise",
        ),
        ((SOURCE == "llmservingsim_v0") & (pl.col("q_len") > pl.col("kv_len")), "known bad: more queries than keys"),
        (FROM_FILE("mha/decode/h20/64-2-128.csv"), "known bad: 1.8 to 3 times slower than its neighbours, another code path"),
        (
            FROM_FILE("mha/decode/h800/32-2-128.csv") & (pl.col("batch") == 1) & (pl.col("kv_len") == 1024),
            "known bad: first call, not warmed up",
        ),
    ),
)  # fmt: skip

# --- collectives.parquet: bytes are the buffer of one rank, in fp16.

COLLECTIVES = ("all_reduce", "all_gather", "send_recv")
COLLECTIVE: Columns = {
    # A rank's whole buffer: an all-gather's raw size is the part each rank brings.
    "bytes": pl.col("bytes") * pl.when(OP == "all_gather").then(pl.col("num_gpus")).otherwise(1),
    "num_gpus": pl.col("num_gpus"),
    "gpus_per_node": pl.col("gpus_per_node"),
    "node": pl.col("topology"),
}
NCCL_MEDIANS = pl.col("method") == "kineto_nccl_kernel_median"

COLLECTIVE_TABLE = RawTable(
    columns=words("source gpu op topology num_gpus gpus_per_node bytes latency_us latency_std_us stat method superseded flag"),
    family=pl.when(OP.is_in(COLLECTIVES)).then(OP),
    common={
        "dtype": pl.lit("fp16"),
        "engine": pl.lit("nccl"),
        "identity": pl.lit("nccl"),
        "cache": first_of((NCCL_MEDIANS, "warm")),  # the same buffers again; how the others were run is not told
        "num_repeats": pl.when(NCCL_MEDIANS).then(3),
        "spread_s": seconds("latency_std_us"),
    },
    shapes=dict.fromkeys(COLLECTIVES, COLLECTIVE),
    known_bad=first_of(
        (
            (SOURCE == "vidur") & (pl.col("gpu") == "A100") & (OP == "send_recv") & pl.col("topology").str.starts_with("pairwise_nvlink"),
            "known bad: the same file stands under A100, A800 and H100",
        )
    ),
)

# --- gemm_extra.parquet: DeepGEMM, fp8 with a scale for each 128 x 128 block of weights.

GEMM_TABLE = RawTable(
    columns=words("source gpu kernel M N K dtype latency_us stat method flag"),
    family=pl.when(pl.col("kernel") == "deepgemm_fp8_gemm_nt").then(pl.lit("gemm")),
    common={
        "dtype": pl.lit("fp8_block"),
        "identity": pl.lit("deepgemm"),
        "kernel": pl.col("kernel"),
        "cache": first_of((FLUSHED, "cold")),
    },
    shapes={"gemm": {"m": pl.col("M"), "n": pl.col("N"), "k": pl.col("K"), "batch": pl.lit(1), "bias": pl.lit(False)}},
)

# --- moe_extra.parquet: expert products, and what stands around them.

MOE_OPS = {
    "moe_grouped_gemm": "both",  # both products and the activation between them
    "grouped_gemm_up": "w13",
    "grouped_gemm_down": "w2",
}
MOE_MODULES = (
    "moe_gating", "moe_gating_linear", "moe_gating_routing_topk", "moe_shuffling", "moe_expert_up_proj", "moe_expert_down_proj",
    "moe_block_router+fused_experts",
)  # fmt: skip
EXPERT_LOOP = BACKEND.fill_null("") == "torch_per_expert_loop"  # a Python loop over experts, not one grouped launch
DEEPGEMM = BACKEND.fill_null("").str.starts_with("deepgemm_")
EP = pl.col("num_experts") // pl.col("num_local_experts")  # two rows say ep 2 with all experts on one GPU
# `num_tokens` counts the tokens of all `ep` GPUs, so that one GPU gets num_tokens x topk / ep of them in balance. InferSim, and Frontier
# before it had a backend column, send one GPU num_tokens x topk instead: those of an `ep` times larger batch.
TOKENS_OF_ALL = pl.when((SOURCE == "infersim") | BACKEND.is_null()).then(TOKENS * EP).otherwise(TOKENS)

MOE_TABLE = RawTable(
    columns=words(
        "source gpu model op backend num_tokens num_experts num_local_experts tp topk hidden_size moe_intermediate tokens_per_expert "
        "total_routed_tokens activated_experts N K dtype latency_us latency_std_us stat method expert_utilization load_distribution "
        "load_imbalance_cv routing_path gating_context flag"
    ),
    family=first_of((OP.is_in(MOE_MODULES) | (OP.is_in(list(MOE_OPS)) & EXPERT_LOOP), "layer"), (OP.is_in(list(MOE_OPS)), "moe")),
    common={
        "dtype": pl.when(DEEPGEMM).then(pl.lit("fp8_block")).otherwise(pl.col("dtype")),
        "engine": first_of((IN_VLLM | (BACKEND == "vllm_fused"), "vllm")),
        "engine_version": first_of((IN_VLLM, "0.19")),
        "identity": first_of((DEEPGEMM, "deepgemm"), ((BACKEND == "vllm_fused") & (OP == "moe_grouped_gemm"), "triton")),
        "kernel": BACKEND,
        # All experts together exceed L2, or L2 was flushed; choosing and sorting tokens reads what was just written.
        "cache": pl.when(OP.is_in(["moe_gating_routing_topk", "moe_shuffling"])).then(pl.lit("warm")).otherwise(pl.lit("cold")),
        "num_repeats": pl.when(SOURCE == "llmservingsim").then(3).when(SOURCE == "llmservingsim_history").then(1).when(
            (SOURCE == "frontier") & ~EXPERT_LOOP
        ).then(20),
        "spread_s": pl.when(~EXPERT_LOOP).then(seconds("latency_std_us")),  # over experts, not repeats, in the loop
    },
    shapes={
        "moe": {
            "num_tokens": TOKENS_OF_ALL,
            "hidden_size": pl.col("hidden_size"),
            "inter_size": pl.col("moe_intermediate"),
            "num_experts": pl.col("num_experts"),
            "topk": pl.col("topk"),
            "tp": TP,
            "ep": EP,
            # InferSim's masked rows draw each expert's tokens from 0.7 to 1.3 of the mean; "uniform" is a router that draws at random.
            "distribution": pl.coalesce(
                first_of((BACKEND == "deepgemm_contiguous", "balanced"), (BACKEND == "deepgemm_masked", "uniform_0.7_1.3")),
                pl.col("load_distribution"),
            ),
            "moe_pass": OP.replace_strict(MOE_OPS, default=None, return_dtype=pl.String),
            "gated": pl.lit(True),
            "active_experts": (pl.col("expert_utilization") * pl.col("num_local_experts")).round(),
        },
        "layer": {
            "op": OP,
            "model": MODEL,
            "num_tokens": TOKENS,
            "hidden_size": pl.col("hidden_size"),
            "tp": TP,
            "attributes": as_json(
                num_experts="num_experts", num_local_experts="num_local_experts", topk="topk", inter_size="moe_intermediate", n="N", k="K",
                routed_tokens="total_routed_tokens", tokens_per_expert="tokens_per_expert", active_experts="activated_experts",
                distribution="load_distribution", imbalance_cv="load_imbalance_cv", routing_path="routing_path",
                gating_context="gating_context",
            ),
        },
    },
    known_bad=first_of(((pl.col("total_routed_tokens") == 0) & (OP == "moe_grouped_gemm"), "known bad: no token reaches this GPU")),
)  # fmt: skip

# --- serving_runs/requests.parquet: one served request a row, which is three measurements.

REQUEST_METRICS = {"ttft_from_queued_ms": "ttft", "tpot_ms": "tpot", "e2e_from_queued_ms": "e2e"}
RUNS = "serving_runs/engine_configs.json"


def _requests(root: Path, raw: pl.DataFrame) -> pl.DataFrame:
    """A row for each request and metric, with how its run was deployed."""
    runs = _runs(root / RUNS)
    unknown = raw.join(runs, on="run_id", how="anti")["run_id"].unique().sort().to_list()
    if unknown:
        raise MissingData(f"{root / RUNS} has no run {', '.join(unknown)}")
    deployed = raw.with_columns(
        pl.when(pl.col("run_id").str.ends_with("_history"))
        .then(pl.lit("llmservingsim_history"))
        .otherwise(pl.lit("llmservingsim"))
        .alias("source"),
        method=pl.lit("client"),
        stat=pl.lit("one request"),
        dtype=pl.lit("bf16"),
    ).join(runs, on="run_id", how="left", maintain_order="left")
    return deployed.unpivot(
        on=list(REQUEST_METRICS),
        index=[name for name in deployed.columns if name not in REQUEST_METRICS],
        variable_name="op",
        value_name="ms",
    ).with_columns(latency_us=pl.col("ms") * 1e3)


def _runs(path: Path) -> pl.DataFrame:
    try:
        runs = json.loads(path.read_text())
        return pl.DataFrame(
            [
                {
                    "run_id": run["run_id"],
                    "model_id": run["model"],
                    "vllm_version": run["vllm_version"],
                    "tp": run["engine_kwargs"]["tensor_parallel_size"],
                    "dp": run["engine_kwargs"]["data_parallel_size"],
                    "expert_parallel": run["engine_kwargs"]["enable_expert_parallel"],
                    "max_num_seqs": run["engine_kwargs"]["max_num_seqs"],
                    "max_num_batched_tokens": run["engine_kwargs"]["max_num_batched_tokens"],
                }
                for run in runs
            ]
        )
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise MissingData(f"{path} is not the list of runs it should be: {problem!r}") from None


REQUEST_TABLE = RawTable(
    columns=words("run_id gpu request_id input_toks output_toks arrival_rel_s queue_ms") | set(REQUEST_METRICS),
    family=pl.when(pl.col("run_id").is_not_null()).then(pl.lit("serving")),
    common={"engine": pl.lit("vllm"), "engine_version": pl.col("vllm_version"), "num_repeats": pl.lit(1)},
    shapes={
        "serving": {
            "metric": OP.replace_strict(REQUEST_METRICS),
            "model": pl.col("model_id"),
            "mode": pl.lit("agg"),
            "isl": pl.col("input_toks"),
            "osl": pl.col("output_toks"),
            "tp": TP,
            "pp": pl.lit(1),
            "attention_dp": pl.col("dp"),
            "moe_tp": pl.when(pl.col("expert_parallel")).then(1),
            "moe_ep": pl.when(pl.col("expert_parallel")).then(TP * pl.col("dp")),
            "num_gpus": TP * pl.col("dp"),
            "attributes": as_json(
                run_id="run_id", request_id="request_id", arrival_s="arrival_rel_s", queue_s=pl.col("queue_ms") * 1e-3,
                max_num_seqs="max_num_seqs", max_num_batched_tokens="max_num_batched_tokens",
            ),
        }
    },
    prepare=_requests,
)  # fmt: skip

RAW_TABLES: Mapping[str, RawTable] = {
    "layer_ops.parquet": LAYER_TABLE,
    "attention_ops.parquet": ATTENTION_TABLE,
    "collectives.parquet": COLLECTIVE_TABLE,
    "gemm_extra.parquet": GEMM_TABLE,
    "moe_extra.parquet": MOE_TABLE,
    "serving_runs/requests.parquet": REQUEST_TABLE,
}


@dataclass(slots=True)
class ExtraSource:
    """One upstream source of the mixed tables: the rows of its `tags` in its `files`."""

    name: str
    licence: str
    home: str
    tags: tuple[str, ...]
    files: tuple[str, ...]

    def locate(self) -> Path:
        return data_folder("extra")

    def fingerprint(self, root: Path) -> str:
        files = [*self.files, *([RUNS] if "serving_runs/requests.parquet" in self.files else [])]
        for name in files:
            if not (root / name).is_file():
                raise MissingData(f"no file {root / name}")
        return files_fingerprint(root, files)

    def tables(self, root: Path) -> list[Table]:
        present: list[Table] = []
        for name in self.files:
            families = self._rows(root, name)["family"].unique().to_list()
            present += [Table(name, family) for family in sorted(families)]
        return present

    def read(self, root: Path, table: Table) -> pl.DataFrame:
        raw_table = RAW_TABLES[table.name]
        rows = self._rows(root, table.name).filter(pl.col("family") == table.family)
        columns = {**_protocol(rows, raw_table), **raw_table.common, **raw_table.shapes[table.family]}
        try:
            frame = rows.select(expression.alias(name) for name, expression in columns.items())
            return conform(frame, table.family, source=self.name, licence=self.licence, origin=table.name)
        except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError, pl.exceptions.SchemaError) as problem:
            raise MissingData(f"{root / table.name} holds values that are no {table.family} rows: {str(problem).splitlines()[0]}") from None

    def _rows(self, root: Path, name: str) -> pl.DataFrame:
        """This source's raw rows of one file, each with the family it belongs to."""
        raw_table, where = RAW_TABLES[name], str(root / name)
        raw = raw_table.prepare(root, read_table(root, name, set(raw_table.columns)))
        _check_known(raw, "source", TAGS, where)
        rows = raw.filter(pl.col("source").is_in(self.tags))
        _check_known(rows, "gpu", GPUS, where)
        _check_known(rows, "method", TIMERS, where)
        if "flag" in rows.columns:
            _check_known(rows, "flag", FLAGS, where)
        rows = rows.with_columns(family=raw_table.family)
        if rows["family"].null_count():
            what = [column for column in ("op", "kernel", "phase", "backend") if column in rows.columns]
            strays = rows.filter(pl.col("family").is_null()).select(what).unique(maintain_order=True).row(0, named=True)
            raise MissingData(
                f"{where} has rows of {', '.join(f'{key} {value!r}' for key, value in strays.items())}, which no family is written for"
            )
        return rows


def _check_known(rows: pl.DataFrame, column: str, known: Iterable[str], where: str) -> None:
    strays = sorted(set(rows[column].unique().to_list()) - set(known), key=str)
    if strays:
        raise MissingData(f"{where} has the {column} {', '.join(map(repr, strays))}; known are {', '.join(known)}")
