"""layer_ops.parquet: the operations of one decoder layer, run one after another."""

import polars as pl

from tilecast.datasets.sources.extra.base import IN_VLLM, MODEL, OP, SOURCE, TOKENS, TP, RawTable, as_json, first_of, seconds, words

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
HEADS, KV_HEADS = pl.col("n_heads") // TP, (pl.col("n_kv_heads") // TP).clip(lower_bound=1)
INNER = pl.col("intermediate_size") // TP

TABLE = RawTable(
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
