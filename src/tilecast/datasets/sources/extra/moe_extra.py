"""moe_extra.parquet: expert products, and what stands around them."""

import polars as pl

from tilecast.datasets.sources.extra.base import (
    BACKEND,
    IN_VLLM,
    MODEL,
    OP,
    SOURCE,
    TOKENS,
    TP,
    RawTable,
    as_json,
    first_of,
    seconds,
    words,
)

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

TABLE = RawTable(
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
