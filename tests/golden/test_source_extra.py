"""The four readers of the mixed tables in extra/, against rows worked by hand; comments quote the raw row, microseconds first."""

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tilecast.datasets.schema import schema
from tilecast.datasets.sources import frontier, infersim, llmservingsim, vidur
from tilecast.datasets.sources.base import DataSource, Table
from tilecast.errors import MissingData

SOURCES: dict[str, DataSource] = {module.SOURCE.name: module.SOURCE for module in (vidur, frontier, llmservingsim, infersim)}
LAYERS, ATTENTION, COLLECTIVES = "layer_ops.parquet", "attention_ops.parquet", "collectives.parquet"
GEMMS, MOE, REQUESTS = "gemm_extra.parquet", "moe_extra.parquet", "serving_runs/requests.parquet"

needs_data = pytest.mark.skipif(
    not os.environ.get("TILECAST_DATA"), reason="$TILECAST_DATA is not set, so there are no raw tables in extra/ to read"
)


class Readings:
    """Frames of the tables that were asked for, each read once."""

    def __init__(self) -> None:
        self.frames: dict[tuple[str, str, str], pl.DataFrame] = {}

    def of(self, source: str, name: str, family: str) -> pl.DataFrame:
        key = (source, name, family)
        if key not in self.frames:
            self.frames[key] = SOURCES[source].read(SOURCES[source].locate(), Table(name, family))
        return self.frames[key]


@pytest.fixture(scope="module")
def readings() -> Readings:
    return Readings()


SUPERSEDED = "superseded by a newer file of the same source"
PROFILED = {"timer": "profiler", "set_aside": None}
IN_VLLM = {"engine": "vllm", "engine_version": "0.19"}

# (source, raw file, family, raw row, what the schema row must say)
WORKED: list[tuple[str, str, str, int, dict[str, Any]]] = [
    # --- vidur
    # 220 std 1.2688577, A40, phi-2 gemm_up, 512 tokens, N 10240, K 2560, fp16, profiler_kernel_sum, median of 20: phi-2 has biases
    ("vidur", LAYERS, "gemm", 144707, {
        **PROFILED, "gpu": "a40", "m": 512, "n": 10240, "k": 2560, "batch": 1, "bias": True, "dtype": "fp16", "latency_s": 220e-6,
        "spread_s": 1.2688577e-6, "num_repeats": 20, "statistic": "median", "cache": "rotated", "identity": "cublas", "engine": None,
        "licence": "MIT",
    }),
    # 176, H100, Qwen-72B gemm_qkv at tp 4, 1024 tokens, N 6144 = 3 x 64 heads / 4 x 128, K 8192: the one product of Qwen-72B with a bias
    ("vidur", LAYERS, "gemm", 148297, {"gpu": "h100-sxm", "m": 1024, "n": 6144, "k": 8192, "bias": True, "latency_s": 176e-6}),
    # 4, A100, phi-2 residual_add of three tensors, 64 tokens x 2560 = 163840
    ("vidur", LAYERS, "elementwise", 91000, {"gpu": "a100-sxm-80gb", "op": "add3", "numel": 163840, "latency_s": 4e-6}),
    # 3, A100, Llama-3-8B rope at tp 8, 128 tokens, 32 / 8 heads and 8 / 8 key heads of 128
    ("vidur", LAYERS, "rope", 77704, {"rows": 128, "num_heads": 4, "num_kv_heads": 1, "head_dim": 128, "latency_s": 3e-6, "cache": "warm"}),
    # 9, A100, Llama-3-8B embedding at tp 2: the masking is in the time, so it is no plain lookup
    ("vidur", LAYERS, "layer", 71321, {
        "op": "embedding_masked", "model": "meta-llama/Meta-Llama-3-8B", "num_tokens": 128, "num_heads": 16, "hidden_size": 4096, "tp": 2,
        "latency_s": 9e-6,
    }),
    # 9, vidur_history, H100_PCIe_inferred, internlm-20b silu_mul at tp 2, 256 tokens, 13824 / 2 wide
    ("vidur", LAYERS, "silu_mul", 283051, {
        "gpu": "h100-pcie", "rows": 256, "cols": 6912, "latency_s": 9e-6, "set_aside": "known bad: GPU inferred, not documented",
    }),
    # 16, vidur_history, A100, flash_attention decode, 16 x (1 query on 33 keys), 32 and 4 heads of 128, superseded
    ("vidur", ATTENTION, "attention_decode", 98152, {
        "identity": "fa2", "kernel": "flash_attention", "batch": 16, "q_len": 1, "kv_len": 33, "num_heads": 32, "num_kv_heads": 4,
        "head_dim": 128, "causal": True, "kv_dtype": "fp16", "cache": "warm", "num_repeats": 5, "latency_s": 16e-6,
        "set_aside": SUPERSEDED,
    }),
    # 535, A100 all_reduce of 1001472 bytes on 16 GPUs, 8 a node, kineto_nccl_kernel_median
    ("vidur", COLLECTIVES, "all_reduce", 6086, {
        **PROFILED, "gpu": "a100-sxm-80gb", "bytes": 1001472, "num_gpus": 16, "gpus_per_node": 8, "node": "dgx_nvswitch",
        "identity": "nccl", "dtype": "fp16", "latency_s": 535e-6, "num_repeats": 3, "cache": "warm",
        "statistic": "median of 3 medians of 11 launches",
    }),
    # 106.496, vidur_history, V100 all_reduce of 1007616 bytes on 8 GPUs, cuda_event, superseded
    ("vidur", COLLECTIVES, "all_reduce", 76541, {
        "gpu": "v100-sxm2-32gb", "bytes": 1007616, "num_gpus": 8, "timer": "event", "cache": None, "num_repeats": None,
        "latency_s": 106.496e-6, "set_aside": SUPERSEDED,
    }),
    # 3502, vidur_history, A40 all_reduce of 128 MiB on 4 GPUs: 57 GB/s on a 56.25 GB/s link, flag above_nvlink_peak
    ("vidur", COLLECTIVES, "all_reduce", 138608, {
        "gpu": "a40", "bytes": 134217728, "timer": "profiler", "latency_s": 3502e-6,
        "set_aside": "faster than NVLink allows (source's own check)",
    }),
    # 186, vidur_history, A100 all_gather of 1001472 bytes from each of 4 GPUs: old, but there is no newer one
    ("vidur", COLLECTIVES, "all_gather", 36715, {**PROFILED, "bytes": 4005888, "num_gpus": 4, "latency_s": 186e-6}),
    # 26, A100 send_recv of 7962624 bytes, a file that also stands under A800 and H100
    ("vidur", COLLECTIVES, "send_recv", 14774, {
        "num_gpus": 2, "node": "pairwise_nvlink(4-GPU PCIe node)", "set_aside": "known bad: the same file stands under A100, A800 and H100",
    }),
    # --- frontier
    # 54.0155, H800, 405B-FP8 gemm_down at tp 8, 256 tokens, N 16384, K 53248 / 8 = 6656, profiler_kernel_sum
    ("frontier", LAYERS, "gemm", 384071, {
        **PROFILED, "gpu": "h800-sxm", "m": 256, "n": 16384, "k": 6656, "bias": False, "dtype": "fp8", "identity": None,
        "latency_s": 54.0155e-6,
    }),
    # 8.576, H800, fused_add_rms_norm of 8 x 16384, cuda_event_eager
    ("frontier", LAYERS, "rms_norm", 360978, {
        "rows": 8, "cols": 16384, "residual": None, "dtype": "bf16", "timer": "event", "latency_s": 8.576e-6, "cache": "warm",
    }),
    # 194.32, A800, qwen3 gemm_qkv at tp 8: the norms of q and k are in the time
    ("frontier", LAYERS, "layer", 354639, {
        "op": "qkv_proj_qk_norm", "gpu": "a800-sxm-80gb", "num_tokens": 8, "num_heads": 4, "tp": 8, "timer": "event",
        "latency_s": 194.32e-6, "attributes": json.dumps(
            {"op_raw": "attn_pre_proj", "num_kv_heads": 1, "head_dim": 128, "intermediate_size": 768, "vocab_size": 151936, "n": 768,
             "k": 2048},
            separators=(",", ":"),
        ),
    }),
    # 152.96, A800, flashinfer prefill of two ragged requests, cuda_event_eager: above the 100 us of noise
    ("frontier", ATTENTION, "attention_prefill", 29144, {
        "identity": "flashinfer_fa2", "kernel": "flashinfer", "batch": 2, "q_len": None, "kv_len": None, "q_lens": "[1152, 1152]",
        "kv_lens": "[1152, 1152]", "num_heads": 4, "num_kv_heads": 1, "timer": "event", "latency_s": 152.96e-6, "set_aside": None,
    }),
    # 80.576, and 105.184 for one request of 353 tokens, A800, qwen3, cuda_event_eager
    ("frontier", ATTENTION, "attention_decode", 22636, {"timer": "event", "set_aside": "known bad: launch noise"}),
    ("frontier", ATTENTION, "attention_decode", 22647, {"batch": 1, "kv_len": 353, "set_aside": "known bad: launch noise"}),
    # 135.037, H800, flashinfer prefill of 64 tokens after 9,344 others
    ("frontier", ATTENTION, "attention_prefill", 54309, {
        "gpu": "h800-sxm", "engine": "framework", "identity": "flashinfer_fa3", "q_len": 64, "kv_len": 9408,
    }),
    # 52.32, H800, flashinfer decode 128 x 449, one traced call, flag below_roofline
    ("frontier", ATTENTION, "attention_decode", 56055, {
        "gpu": "h800-sxm", "identity": None, "batch": 128, "q_len": 1, "kv_len": 449, "num_repeats": 1, "spread_s": None, "cache": "warm",
        "latency_s": 52.32e-6, "set_aside": "known bad: reads half of a 16-bit cache",
    }),
    # 30, H100_label_suspect, KV-cache write of 64 tokens, 16 heads of 128
    ("frontier", ATTENTION, "kv_cache_write", 40584, {
        "gpu": "h100-sxm", "rows": 64, "num_kv_heads": 16, "head_dim": 128, "latency_s": 30e-6,
        "set_aside": "known bad: GPU label doubtful",
    }),
    # 9.408, H800, attn_output_reshape, cuda_event_eager
    ("frontier", ATTENTION, "layer", 69892, {
        "op": "attn_output_reshape", "phase": "decode", "num_tokens": 1, "set_aside": "known bad: times an empty region",
    }),
    # 72.992, A800 all_reduce of 2 MiB on 8 GPUs
    ("frontier", COLLECTIVES, "all_reduce", 30532, {
        **PROFILED, "gpu": "a800-sxm-80gb", "bytes": 2097152, "num_gpus": 8, "node": "label pairwise_nvlink, 8-GPU node",
        "latency_s": 72.992e-6,
    }),
    # 16.832, H800, vllm_fused, 1 token x top 2 of 16 experts, ep 2, tp 4; one expert of this GPU's 8 is hit (0.125 x 8)
    ("frontier", MOE, "moe", 26798, {
        **PROFILED, "identity": "triton", "kernel": "vllm_fused", "num_tokens": 1, "hidden_size": 4096, "inter_size": 448,
        "num_experts": 16, "topk": 2, "tp": 4, "ep": 2, "distribution": "uniform", "moe_pass": "both", "gated": True, "active_experts": 1,
        "dtype": "bf16", "cache": "cold", "num_repeats": 20, "latency_s": 16.832e-6,
    }),
    # 173.984, A800, no backend, 1 token x top 8 all on this GPU's 32 of 128 experts: what 4 tokens over 4 GPUs send to each
    ("frontier", MOE, "moe", 16269, {
        "identity": None, "kernel": None, "num_tokens": 4, "num_experts": 128, "topk": 8, "ep": 4, "active_experts": 8, "timer": "event",
        "latency_s": 173.984e-6,
    }),
    # 12682, A100, mixtral, a Python loop over 8 experts
    ("frontier", MOE, "layer", 3075, {
        "op": "moe_grouped_gemm", "kernel": "torch_per_expert_loop", "model": "mixtral_8x7b_moe", "num_tokens": 4096, "dtype": "fp16",
        "num_repeats": None, "latency_s": 12682e-6,
    }),
    # --- llmservingsim
    # 1125.59, RTX4090, Llama-3.1-8B lm_head, 16 tokens, N 128256, K 4096, bf16, mean of 3 inside vLLM 0.19
    ("llmservingsim", LAYERS, "gemm", 388400, {
        **PROFILED, **IN_VLLM, "gpu": "rtx-4090", "m": 16, "n": 128256, "k": 4096, "bias": False, "dtype": "bf16", "statistic": "mean",
        "num_repeats": 3, "spread_s": None, "latency_s": 1125.59e-6,
    }),
    # 14.581, RTX_PRO_6000, sampler, 8 rows of 151936 logits
    ("llmservingsim", LAYERS, "sampling", 391824, {
        **IN_VLLM, "gpu": "rtx-pro-6000-server", "rows": 8, "cols": 151936, "latency_s": 14.581e-6,
    }),
    # 19.195, v0, RTX3090, k_proj at tp 2, 100 tokens, N 8 x 128 / 2 = 512, K 4096, fp16, median of 30
    ("llmservingsim", LAYERS, "gemm", 801769, {
        **PROFILED, "gpu": "rtx-3090", "engine": "pytorch", "engine_version": None, "m": 100, "n": 512, "k": 4096, "num_repeats": 30,
        "latency_s": 19.195e-6,
    }),
    # 35.114, v0, H100, Llama-3.1-70B rope_unfused_hf at tp 4, 64 / 4 heads
    ("llmservingsim", LAYERS, "layer", 586731, {
        "op": "rope_unfused_hf", "num_tokens": 100, "num_heads": 16, "tp": 4, "cache": "warm", "latency_s": 35.114e-6,
    }),
    # 17.493334, RTX_PRO_6000: a chunk of 16 on 512 cached, one decode on 512 cached and one on 128 cached, each with its own new token
    ("llmservingsim", ATTENTION, "attention_mixed", 292686, {
        **PROFILED, **IN_VLLM, "identity": "fa2", "kernel": "vllm0.19_flash_attn", "prefill_q_len": 16, "prefill_kv_len": 528,
        "decode_batch_a": 1, "decode_kv_len_a": 513, "decode_batch_b": 1, "decode_kv_len_b": 129, "num_heads": 32, "num_kv_heads": 4,
        "head_dim": 128, "kv_dtype": "bf16", "cache": "cold", "latency_s": 17.493334e-6,
    }),
    # 14.881, history, H100: a chunk of 16 on 16, one decode on 16, an empty second group; one iteration; which kernel is not told
    ("llmservingsim", ATTENTION, "attention_mixed", 623554, {
        "gpu": "h100-sxm", "identity": None, "prefill_q_len": 16, "prefill_kv_len": 32, "decode_batch_a": 1, "decode_kv_len_a": 17,
        "decode_batch_b": 0, "decode_kv_len_b": 0, "head_dim": 256, "num_repeats": 1, "latency_s": 14.881e-6,
    }),
    # 20.629, RTX4090: a fused step of 32 decodes on 16 cached is plain decode
    ("llmservingsim", ATTENTION, "attention_decode", 225703, {
        **IN_VLLM, "batch": 32, "q_len": 1, "kv_len": 17, "num_heads": 32, "num_kv_heads": 8, "cache": "cold", "latency_s": 20.629e-6,
    }),
    # 2.24, v0, RTX_A6000: 33 requests share 32 cached tokens, none each
    ("llmservingsim", ATTENTION, "attention_decode", 123043, {
        "gpu": "rtx-a6000", "batch": 33, "kv_len": 0, "identity": "fa2", "latency_s": 2.24e-6,
        "set_aside": "known bad: more queries than keys",
    }),
    # 11.296, v0, H100, flash_attn2_varlen prefill of 256, 16 and 2 heads after tp 4
    ("llmservingsim", ATTENTION, "attention_prefill", 179238, {
        **PROFILED, "identity": "fa2", "batch": 1, "q_len": 256, "kv_len": 256, "num_heads": 16, "num_kv_heads": 2, "cache": "warm",
        "latency_s": 11.296e-6,
    }),
    # 50.2297, RTX_PRO_6000: router and experts, 1 token forced to 8 experts
    ("llmservingsim", MOE, "layer", 34236, {
        **IN_VLLM, "op": "moe_block_router+fused_experts", "num_tokens": 1, "hidden_size": 2048, "num_repeats": 3, "latency_s": 50.2297e-6,
    }),
    # --- infersim
    # 384.141, H20, M 4096, N 6144, K 2048, fp8, kineto_kernel_l2flush
    ("infersim", GEMMS, "gemm", 7, {
        **PROFILED, "gpu": "h20", "m": 4096, "n": 6144, "k": 2048, "batch": 1, "bias": False, "dtype": "fp8_block", "identity": "deepgemm",
        "kernel": "deepgemm_fp8_gemm_nt", "cache": "cold", "latency_s": 384.141e-6, "licence": "Apache-2.0",
    }),
    # 10.881, H800, M 64, N 1536, K 7168
    ("infersim", GEMMS, "gemm", 382, {"gpu": "h800-sxm", "m": 64, "n": 1536, "k": 7168, "latency_s": 10.881e-6}),
    # 57.674, H20, MLA decode 16 x 1024, 128 heads of 576 = 512 + 64, torch_benchmark_wall
    ("infersim", ATTENTION, "mla_decode", 625771, {
        "batch": 16, "q_len": 1, "kv_len": 1024, "num_heads": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "identity": None, "kernel": "flashinfer_or_flashmla", "timer": "profiler", "cache": "warm",
        "statistic": "mean of calls in a row, host clock", "latency_s": 57.674e-6,
    }),
    # 116.88, H800, MLA prefill of 1024 by FA3, 128 heads of 192 = 128 + 64 and 128
    ("infersim", ATTENTION, "mla_prefill", 625846, {"q_len": 1024, "identity": "fa3", "qk_nope_head_dim": 128, "latency_s": 116.88e-6}),
    # 1038.003, H20, FA3 prefill of 4096, 16 and 1 heads of 256
    ("infersim", ATTENTION, "attention_prefill", 625740, {
        "identity": "fa3", "kernel": "fa3_varlen", "q_len": 4096, "kv_len": 4096, "num_heads": 16, "num_kv_heads": 1, "head_dim": 256,
        "latency_s": 1038.003e-6, "set_aside": None,
    }),
    # 9.97, H20, bf16 queries on fp8 keys
    ("infersim", ATTENTION, "attention_decode", 625367, {"dtype": "bf16", "kv_dtype": "fp8", "latency_s": 9.97e-6, "set_aside": None}),
    # 241.419, H800 32-2-128, the file's first row; the next one, on four times the keys, took 25.68
    ("infersim", ATTENTION, "attention_decode", 625575, {"latency_s": 241.419e-6, "set_aside": "known bad: first call, not warmed up"}),
    ("infersim", ATTENTION, "attention_decode", 625576, {
        "kv_len": 4096, "latency_s": 25.68e-6, "set_aside": "known bad: the host's launches, not the kernel",
    }),
    # 27.123, H20 16-2-128, one request of 32,768 keys, no longer than one of 4,096; 57.646 of 131,072
    ("infersim", ATTENTION, "attention_decode", 625122, {
        "gpu": "h20", "kv_len": 32768, "latency_s": 27.123e-6, "set_aside": "known bad: the host's launches, not the kernel",
    }),
    ("infersim", ATTENTION, "attention_decode", 625124, {"kv_len": 131072, "latency_s": 57.646e-6, "set_aside": None}),
    # 84.6816, H20 64-2-128, the file without a header
    ("infersim", ATTENTION, "attention_decode", 625412, {
        "latency_s": 84.6816e-6, "set_aside": "known bad: 1.8 to 3 times slower than its neighbours, another code path",
    }),
    # 45, H20, one kernel of a gated delta net, triton_do_bench
    ("infersim", ATTENTION, "layer", 625910, {
        "op": "gdn_kkt", "phase": "prefill", "engine": "sglang", "q_len": 4096, "kv_len": None, "timer": "event", "cache": "cold",
        "latency_s": 45e-6,
    }),
    # 28.718, H20, deepgemm_masked down, 16 tokens of this GPU x top 8 on 12 of 96 experts: 8 GPUs bring 128 tokens
    ("infersim", MOE, "moe", 278, {
        **PROFILED, "identity": "deepgemm", "kernel": "deepgemm_masked", "dtype": "fp8_block", "num_tokens": 128, "hidden_size": 2048,
        "inter_size": 1560, "num_experts": 96, "topk": 8, "tp": 1, "ep": 8, "moe_pass": "w2", "distribution": "uniform_0.7_1.3",
        "active_experts": None, "cache": "cold", "latency_s": 28.718e-6,
    }),
    # 3249, H800, deepgemm_contiguous up, 1024 tokens x top 8 on 256 experts
    ("infersim", MOE, "moe", 946, {"num_tokens": 1024, "ep": 1, "moe_pass": "w13", "distribution": "balanced", "latency_s": 3249e-6}),
    # 345.246, H20: the file says ep 2, but all 256 experts are on this GPU and get 168 x 8 / 256 = 5 tokens each
    ("infersim", MOE, "moe", 256, {"num_tokens": 168, "num_experts": 256, "ep": 1}),
    # 627.259, H20, flag below_roofline: many experts got no token
    ("infersim", MOE, "moe", 84, {"set_aside": "faster than DRAM and L2 allow (source's own check)"}),
]  # fmt: skip


@needs_data
@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "name", "family", "row", "expected"), WORKED, ids=[f"{source}-{family}-{row}" for source, _, family, row, _ in WORKED]
)
def test_a_row_worked_by_hand(readings: Readings, source: str, name: str, family: str, row: int, expected: dict[str, Any]) -> None:
    found = readings.of(source, name, family).filter(pl.col("origin_row") == row)
    assert found.height == 1
    got = found.row(0, named=True)
    assert (got["source"], got["origin"], got["family"]) == (source, name, family)
    for column, value in expected.items():
        if isinstance(value, float):
            assert got[column] == pytest.approx(value, rel=1e-6), column  # raw latencies are 32 bits wide
        else:
            assert got[column] == value, column


@needs_data
@pytest.mark.data
def test_a_served_request_is_its_ttft_tpot_and_e2e(readings: Readings) -> None:
    # raw row 600: Qwen3-30B-A3B on two RTX PRO 6000 (DP 2, EP 2), 2361 tokens in, 532 out; ttft 227.67717 ms, tpot 46.688845 and
    # e2e 25019.454, and indeed 227.677 + 531 x 46.688845 = 25019.454
    rows = readings.of("llmservingsim", REQUESTS, "serving").filter(pl.col("origin_row") == 600)
    times = {row["metric"]: row["latency_s"] for row in rows.iter_rows(named=True)}
    assert times == pytest.approx({"ttft": 0.22767717, "tpot": 0.046688845, "e2e": 25.019454})
    one = rows.row(0, named=True)
    expected = {
        "gpu": "rtx-pro-6000-server", "engine": "vllm", "engine_version": "0.19.0", "model": "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "isl": 2361, "osl": 532, "tp": 1, "pp": 1, "attention_dp": 2, "moe_tp": 1, "moe_ep": 2, "num_gpus": 2,
        "timer": "wall", "dtype": "bf16", "mode": "agg",
    }  # fmt: skip
    assert {column: one[column] for column in expected} == expected
    attributes = json.loads(one["attributes"])
    assert attributes["request_id"] == "bench-0"
    assert attributes["max_num_seqs"] == 128


@needs_data
@pytest.mark.data
def test_every_raw_row_comes_out_exactly_once(readings: Readings) -> None:
    origins: dict[str, list[pl.Series]] = {}
    for source in SOURCES.values():
        for table in source.tables(source.locate()):
            frame = readings.of(source.name, table.name, table.family)
            assert list(frame.schema.items()) == list(schema(table.family).items())
            assert (frame["latency_s"] > 0).all()
            origins.setdefault(table.name, []).append(frame["origin_row"])
    # The row counts stated where the tables were made.
    counted = {LAYERS: 892_441, ATTENTION: 625_915, COLLECTIVES: 297_640, GEMMS: 490, MOE: 34_337, REQUESTS: 1500}
    assert set(origins) == set(counted)
    for name, rows in counted.items():
        seen = pl.concat(origins[name])
        assert seen.len() == rows * (3 if name == REQUESTS else 1), name  # ttft, tpot and e2e
        assert (seen.n_unique(), seen.min(), seen.max()) == (rows, 0, rows - 1), name


# --- Damaged or newer files, in tables of one row.

GEMM_ROW = {
    "source": "infersim", "gpu": "H20", "kernel": "deepgemm_fp8_gemm_nt", "M": 16, "N": 6144, "K": 2048, "dtype": "fp8",
    "latency_us": 10.63, "stat": "mean", "method": "kineto_kernel_l2flush", "flag": "ok",
}  # fmt: skip
COLLECTIVE_ROW = {
    "source": "vidur", "gpu": "A100", "op": "all_reduce", "topology": "dgx_nvswitch", "num_gpus": 8, "gpus_per_node": 8, "bytes": 2048,
    "latency_us": 25.0, "latency_std_us": 0.5, "stat": "median", "method": "kineto_nccl_kernel_median", "superseded": False, "flag": "ok",
}  # fmt: skip


def write(folder: Path, name: str, row: dict[str, Any], **changes: object) -> Path:
    pl.DataFrame([{**row, **changes}]).write_parquet(folder / name)
    return folder


def refusal(source: str, root: Path, name: str, family: str) -> str:
    with pytest.raises(MissingData) as problem:
        SOURCES[source].read(root, Table(name, family))
    assert len(str(problem.value).splitlines()) == 1
    return str(problem.value)


def test_a_table_of_one_row_is_read(tmp_path: Path) -> None:
    root = write(tmp_path, GEMMS, GEMM_ROW)
    frame = SOURCES["infersim"].read(root, Table(GEMMS, "gemm"))
    assert frame.select("m", "n", "k", "latency_s").rows() == [(16, 6144, 2048, pytest.approx(10.63e-6))]


def test_rows_of_other_sources_are_left_to_them(tmp_path: Path) -> None:
    root = write(tmp_path, COLLECTIVES, COLLECTIVE_ROW)
    assert SOURCES["vidur"].read(root, Table(COLLECTIVES, "all_reduce")).height == 1
    assert SOURCES["frontier"].read(root, Table(COLLECTIVES, "all_reduce")).height == 0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"no file {tmp_path / GEMMS}" in refusal("infersim", tmp_path, GEMMS, "gemm")
    with pytest.raises(MissingData, match="no file"):
        SOURCES["infersim"].fingerprint(tmp_path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pl.DataFrame([GEMM_ROW]).drop("K").write_parquet(tmp_path / GEMMS)
    assert "lacks the column K" in refusal("infersim", tmp_path, GEMMS, "gemm")


def test_a_truncated_file_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path, GEMMS, GEMM_ROW) / GEMMS
    path.write_bytes(path.read_bytes()[:-20])
    assert "is damaged or no parquet file" in refusal("infersim", tmp_path, GEMMS, "gemm")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpu": "B9000"}, "has the gpu 'B9000'"),
        ({"op": "all_shuffle"}, "has rows of op 'all_shuffle', which no family is written for"),
        ({"method": "stopwatch"}, "has the method 'stopwatch'"),
        ({"flag": "odd"}, "has the flag 'odd'"),
        ({"source": "someone"}, "has the source 'someone'"),
        ({"bytes": "many"}, "holds values that are no all_reduce rows"),
    ],
)
def test_what_no_reader_knows_is_named(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    root = write(tmp_path, COLLECTIVES, COLLECTIVE_ROW, **changes)
    assert sentence in refusal("vidur", root, COLLECTIVES, "all_reduce")


def test_an_unknown_kernel_is_named_by_tables_too(tmp_path: Path) -> None:
    root = write(tmp_path, GEMMS, GEMM_ROW, kernel="newgemm")
    assert "kernel 'newgemm'" in refusal("infersim", root, GEMMS, "gemm")
    write(root, ATTENTION, GEMM_ROW)
    with pytest.raises(MissingData, match="lacks the columns"):
        SOURCES["infersim"].tables(root)


def test_the_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILECAST_DATA", raising=False)
    for source in SOURCES.values():
        with pytest.raises(MissingData, match="TILECAST_DATA is not set"):
            source.locate()
