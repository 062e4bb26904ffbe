"""attention_ops.parquet: attention and what stands around it. Heads are per GPU already; kv_len counts the new tokens."""

import polars as pl

from tilecast.datasets.sources.extra.base import (
    BACKEND,
    FLUSHED,
    HOPPER,
    IN_VLLM,
    MODEL,
    OP,
    PHASE,
    SOURCE,
    TP,
    Columns,
    RawTable,
    as_json,
    first_of,
    seconds,
    words,
)

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

TABLE = RawTable(
    columns=words(
        "source gpu model op phase backend batch q_len kv_len q_lens kv_lens prefill_q prefill_hist n_dec_a kv_dec_a n_dec_b kv_dec_b "
        "total_q n_heads n_kv_heads head_dim head_dim_v tp page_size dtype kv_dtype causal latency_us latency_std_us stat n_rep method "
        "superseded flag source_path"
    ),
    family=pl.when(OP == "attn_fused_step")
    .then(PHASE.replace_strict(FUSED_STEPS, default=None, return_dtype=pl.String))
    .otherwise(OP.replace_strict(ATTENTION_OPS, default=None, return_dtype=pl.String)),
    common={
        "engine": first_of(
            (IN_VLLM, "vllm"), (SOURCE == "llmservingsim_v0", "pytorch"), (BACKEND == "sglang_triton", "sglang"),
            # A profiler's own calls of a FlashInfer that is not the servers': 128 decodes of 33 keys and 32 heads take 200 us on A800, as
            # those of 65 keys do, and 2.7 times physics; the median of SGLang's such rows is 0.97 on L40S and 1.13 on RTX PRO.
            ((SOURCE == "frontier") & (BACKEND == "flashinfer"), "framework"),
        ),
        "engine_version": first_of((IN_VLLM, "0.19")),
        "identity": pl.when(OP.is_in(["attn_prefill", "attn_decode", "attn_fused_step", "mla_prefill"])).then(
            first_of(
                (BACKEND.is_in(["flash_attention", "flash_attn2_varlen"]), "fa2"),
                (BACKEND == "fa3_varlen", "fa3"),
                (BACKEND == "flashinfer_decode", "flashinfer_fa2"),  # its decode wrapper has no other kernel
                # FlashInfer and vLLM choose version 3 on Hopper only, and there neither source tells which one ran. FlashInfer's prefills
                # do: however few queries, a long cache takes its whole length on one SM, and only version 3 never splits it.
                ((BACKEND == "flashinfer") & ~HOPPER, "flashinfer_fa2"),
                ((BACKEND == "flashinfer") & (OP == "attn_prefill"), "flashinfer_fa3"),
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
            # Repeats of these differ by 58 % in the median; decodes of 100 us and more still lie between 0.6 and 9 times what DRAM takes.
            (pl.col("gpu") == "A800") & MODEL.str.starts_with("qwen3") & EAGER_EVENTS
            & ((pl.col("latency_us") < 100) | (OP == "attn_decode")),
            "known bad: launch noise",
        ),
        ((SOURCE == "llmservingsim_v0") & (pl.col("q_len") > pl.col("kv_len")), "known bad: more queries than keys"),
        (
            # Twice what DRAM gives wherever the cache exceeds L2: it held 8 bits, or keys alone, and nothing says which.
            (SOURCE == "frontier") & (MODEL == "Llama-3.1-405B-Instruct-FP8") & (OP == "attn_decode") & ~EAGER_EVENTS,
            "known bad: reads half of a 16-bit cache",
        ),
        (FROM_FILE("mha/decode/h20/64-2-128.csv"), "known bad: 1.8 to 3 times slower than its neighbours, another code path"),
        (
            FROM_FILE("mha/decode/h800/32-2-128.csv") & (pl.col("batch") == 1) & (pl.col("kv_len") == 1024),
            "known bad: first call, not warmed up",
        ),
        (  # none is below 25 us, however short its work, but in one file that was timed in another way: 10 us. Up to 46 us the same
            # work takes 26 us in one row and 45 in the next.
            (pl.col("method") == "torch_benchmark_wall") & (pl.col("latency_us") < 50) & ~FROM_FILE("mha/decode/h20/32-8-128.csv"),
            "known bad: the host's launches, not the kernel",
        ),
    ),
)  # fmt: skip
