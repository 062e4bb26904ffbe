"""The wheel's raw rows against the schema rows they must become, worked by hand; every row counted; damage against its sentence."""

import io
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tilecast import hardware
from tilecast.datasets import wheel
from tilecast.datasets.schema import CACHES, TIMERS
from tilecast.datasets.sources.aiconfigurator import PREFIX, SERVING_TABLE, SOURCE
from tilecast.datasets.sources.base import Table
from tilecast.dtypes import QUANTISATIONS
from tilecast.errors import MissingData

Row = dict[str, Any]
BASE = {"source": "aiconfigurator", "licence": "Apache-2.0", "statistic": "mean", "set_aside": None, "clock": None, "spread_s": None}
GRAPH = {**BASE, "timer": "graph", "cache": "warm"}
GEMM = {**BASE, "timer": "graph", "cache": "rotated", "batch": 1, "bias": False, "num_repeats": 6}
ATTENTION = {**GRAPH, "causal": True, "q_lens": None, "kv_lens": None}
DEEPSEEK_MLA = {**GRAPH, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
MOE = {**GRAPH, "moe_pass": "both", "active_experts": None, "block_m": None}
COLLECTIVE = {**BASE, "cache": "warm", "node": None}
DISPATCH = {**BASE, "timer": "event", "cache": "warm", "distribution": None}

# (table, family, origin_row, raw values, schema values of each row it becomes). Raw times are ms unless their name says us; ours are s.
CASES: list[tuple[str, str, int, Row, list[Row]]] = [
    # ---- GEMM: one table per engine; m, n, k keep their names -----------------------------------------------------
    (
        "h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet", "gemm", 50443,
        {"kernel_source": "sglang_torch_linear", "gemm_dtype": "bfloat16", "m": 7, "n": 3072, "k": 10240, "latency": 0.029812445243199665},
        [{**GEMM, "gpu": "h100-sxm", "engine": "sglang", "engine_version": "0.5.14", "identity": "cublas", "kernel": "sglang_torch_linear",
          "dtype": "bf16", "m": 7, "n": 3072, "k": 10240, "latency_s": 29.812445243199665e-6,
          "origin": "h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet"}],
    ),
    # TensorRT-LLM has one label for every dtype: it tells of cuBLAS when that is bf16, and of nothing otherwise.
    (
        "h100_sxm/gemm/trtllm/1.3.0rc20/gemm_perf.parquet", "gemm", 51610,
        {"kernel_source": "torch_flow", "gemm_dtype": "bfloat16", "m": 64, "n": 3072, "k": 65536, "latency": 0.1492906709512075},
        [{**GEMM, "engine": "trtllm", "identity": "cublas", "dtype": "bf16", "m": 64, "n": 3072, "k": 65536,
          "latency_s": 149.2906709512075e-6}],
    ),
    # Its collector rotates ceil(L2 / weight) copies, five at most. Two of 48 MiB fill the 96 MiB of an L40S and stay; two of 56 do not fit.
    (
        "l40s/gemm/trtllm/1.3.0rc20/gemm_perf.parquet", "gemm", 16639,
        {"kernel_source": "torch_flow", "gemm_dtype": "bfloat16", "m": 9, "n": 12288, "k": 2048, "latency": 0.024567998945713043},
        [{**GEMM, "cache": "warm", "gpu": "l40s", "engine": "trtllm", "m": 9, "n": 12288, "k": 2048, "latency_s": 24.567998945713043e-6}],
    ),
    (
        "l40s/gemm/trtllm/1.3.0rc20/gemm_perf.parquet", "gemm", 25445,
        {"kernel_source": "torch_flow", "gemm_dtype": "bfloat16", "m": 2, "n": 8192, "k": 3584, "latency": 0.08413867155710857},
        [{**GEMM, "gpu": "l40s", "engine": "trtllm", "m": 2, "n": 8192, "k": 3584, "latency_s": 84.13867155710857e-6}],
    ),
    (
        "h100_sxm/gemm/trtllm/1.3.0rc20/gemm_perf.parquet", "gemm", 47428,
        {"kernel_source": "torch_flow", "gemm_dtype": "fp8_block", "m": 4353, "n": 3584, "k": 16384, "latency": 0.6441919803619385},
        [{**GEMM, "engine": "trtllm", "identity": None, "dtype": "fp8_block", "m": 4353, "n": 3584, "k": 16384,
          "latency_s": 644.1919803619385e-6}],
    ),
    (
        "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", "gemm", 53587,
        {"kernel_source": "torch.nn.functional.linear", "gemm_dtype": "bfloat16", "m": 225, "n": 65536, "k": 16384,
         "latency": 0.745109346177843},
        [{**GEMM, "engine": "vllm", "identity": "cublas", "dtype": "bf16", "m": 225, "n": 65536, "k": 16384,
          "latency_s": 745.109346177843e-6}],
    ),
    (
        "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", "gemm", 53590,
        {"kernel_source": "CutlassFP8ScaledMMLinearKernel", "gemm_dtype": "fp8", "m": 225, "n": 65536, "k": 16384,
         "latency": 0.46390665902031797},
        [{**GEMM, "identity": "cutlass", "dtype": "fp8", "m": 225, "n": 65536, "k": 16384, "latency_s": 463.90665902031797e-6}],
    ),
    # vLLM runs fp8_block without a graph and on one copy of the weights: kept, and set aside.
    (
        "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", "gemm", 53606,
        {"kernel_source": "DeepGemmFp8BlockScaledMMKernel", "gemm_dtype": "fp8_block", "m": 225, "n": 65536, "k": 5120,
         "latency": 0.16364799936612448},
        [{**GEMM, "identity": "deepgemm", "dtype": "fp8_block", "timer": "event", "cache": "warm", "latency_s": 163.64799936612448e-6,
          "set_aside": "known bad: timed eagerly, launch included"}],
    ),
    # nvfp4: SGLang rotates six copies, vLLM keeps one.
    (
        "b200_sxm/gemm/sglang/0.5.14/gemm_perf.parquet", "gemm", 50265,
        {"kernel_source": "sglang_flashinfer_cutedsl_nvfp4", "gemm_dtype": "nvfp4", "m": 96, "n": 1536, "k": 256,
         "latency": 0.007653333246707916},
        [{**GEMM, "gpu": "b200-sxm", "identity": "cutlass", "dtype": "nvfp4", "m": 96, "n": 1536, "k": 256,
          "latency_s": 7.653333246707916e-6}],
    ),
    (
        "b200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", "gemm", 71508,
        {"kernel_source": "FlashInferCuteDslNvFp4LinearKernel", "gemm_dtype": "nvfp4", "m": 225, "n": 65536, "k": 51200,
         "latency": 0.4889386494954427},
        [{**GEMM, "gpu": "b200-sxm", "identity": "cutlass", "dtype": "nvfp4", "timer": "graph", "cache": "warm",
          "latency_s": 488.9386494954427e-6}],
    ),
    # MLA's absorbed weights: per head, 128 wide queries into the 512 wide latent (n = 512, k = 128), and back (n = 128, k = 512).
    (
        "h100_sxm/mla_bmm/sglang/0.5.14/mla_bmm_perf.parquet", "gemm", 848,
        {"op_name": "mla_gen_pre", "kernel_source": "sglang_torch_bmm", "bmm_dtype": "bfloat16", "num_tokens": 1, "num_heads": 128,
         "latency": 0.0062304001301527025},
        [{**GRAPH, "dtype": "bf16", "batch": 128, "m": 1, "n": 512, "k": 128, "bias": False, "latency_s": 6.2304001301527025e-6}],
    ),
    (
        "h100_sxm/mla_bmm/sglang/0.5.14/mla_bmm_perf.parquet", "gemm", 1248,
        {"op_name": "mla_gen_post", "kernel_source": "sglang_torch_bmm", "bmm_dtype": "bfloat16", "num_tokens": 1, "num_heads": 128,
         "latency": 0.00578560009598732},
        [{**GRAPH, "dtype": "bf16", "batch": 128, "m": 1, "n": 128, "k": 512, "latency_s": 5.78560009598732e-6}],
    ),
    # ---- attention: kv_len = isl + step; a window of 0 is none ----------------------------------------------------
    (
        "h100_sxm/attention/sglang/0.5.14/context_attention_perf.parquet", "attention_prefill", 16969,
        {"kernel_source": "fa3", "batch_size": 16, "isl": 2048, "num_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
         "attn_dtype": "fp8", "kv_cache_dtype": "fp8", "step": 0, "window_size": 0, "latency": 0.36765758991241454},
        [{**ATTENTION, "gpu": "h100-sxm", "engine": "sglang", "identity": "fa3", "dtype": "fp8", "kv_dtype": "fp8", "batch": 16,
          "q_len": 2048, "kv_len": 2048, "num_heads": 8, "num_kv_heads": 1, "head_dim": 256, "window": None, "num_repeats": 20,
          "latency_s": 367.65758991241454e-6}],
    ),
    (
        "h100_sxm/attention/trtllm/1.3.0rc20/context_attention_perf.parquet", "attention_prefill", 20785,
        {"kernel_source": "torch_flow", "batch_size": 1, "isl": 16, "num_heads": 24, "num_key_value_heads": 8, "head_dim": 64,
         "attn_dtype": "fp8", "kv_cache_dtype": "fp8", "step": 0, "window_size": 128, "latency": 0.016927999754746754},
        [{**ATTENTION, "identity": "trtllm", "dtype": "fp8", "kv_dtype": "fp8", "batch": 1, "q_len": 16, "kv_len": 16, "num_heads": 24,
          "num_kv_heads": 8, "head_dim": 64, "window": 128, "num_repeats": 6, "latency_s": 16.927999754746754e-6}],
    ),
    # bf16 queries on an fp8 cache, under a window, with the board's power.
    (
        "b200_sxm/attention/vllm/0.22.0/context_attention_perf.parquet", "attention_prefill", 30472,
        {"kernel_source": "vllm_flashinfer", "batch_size": 8, "isl": 1024, "num_heads": 24, "num_key_value_heads": 24, "head_dim": 128,
         "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "step": 0, "window_size": 128, "latency": 0.06392724100748698,
         "power": 775.8805},
        [{**ATTENTION, "gpu": "b200-sxm", "engine_version": "0.22.0", "identity": None, "kernel": "vllm_flashinfer", "dtype": "bf16",
          "kv_dtype": "fp8", "window": 128, "power_w": 775.8805, "latency_s": 63.92724100748698e-6}],
    ),
    # step 127 and the new token: 128 keys.
    (
        "h100_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet", "attention_decode", 30683,
        {"kernel_source": "vllm_flash_attn_fa3", "batch_size": 128, "isl": 1, "num_heads": 40, "num_key_value_heads": 4, "head_dim": 128,
         "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "step": 127, "window_size": 128, "latency": 0.03198933353026708},
        [{**ATTENTION, "identity": "fa3", "dtype": "bf16", "kv_dtype": "fp8", "batch": 128, "q_len": 1, "kv_len": 128, "num_heads": 40,
          "num_kv_heads": 4, "head_dim": 128, "window": 128, "latency_s": 31.98933353026708e-6}],
    ),
    (
        "a100_sxm/attention/trtllm/1.0.0/generation_attention_perf.parquet", "attention_decode", 2513,
        {"kernel_source": "torch_flow", "batch_size": 64, "isl": 1, "num_heads": 64, "num_key_value_heads": 2, "head_dim": 128,
         "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 3, "window_size": 0, "latency": 0.023210667073726654},
        [{**ATTENTION, "gpu": "a100-sxm-80gb", "identity": "trtllm", "kv_dtype": "bf16", "q_len": 1, "kv_len": 4, "window": None,
          "latency_s": 23.210667073726654e-6, "set_aside": "known bad: measured with a K-only cache"}],
    ),
    # An encoder sees both ways and has a key head per query head.
    (
        "h100_sxm/encoder_attention/vllm/0.24.0/encoder_attention_perf.parquet", "attention_prefill", 3839,
        {"kernel_source": "vllm_vit_flash_attn_fa3", "batch_size": 1, "isl": 1500, "num_heads": 14, "head_dim": 72,
         "attn_dtype": "bfloat16", "latency": 0.03419733295838038},
        [{**ATTENTION, "causal": False, "identity": "fa3", "dtype": "bf16", "kv_dtype": "bf16", "batch": 1, "q_len": 1500, "kv_len": 1500,
          "num_heads": 14, "num_kv_heads": 14, "head_dim": 72, "window": None, "latency_s": 34.19733295838038e-6}],
    ),
    # ---- MLA: heads are already divided by tp ---------------------------------------------------------------------
    (
        "h100_sxm/mla/trtllm/1.3.0rc20/context_mla_perf.parquet", "mla_prefill", 880,
        {"kernel_source": "default", "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "num_heads": 32, "batch_size": 2, "isl": 512,
         "tp_size": 2, "step": 0, "latency": 0.04266666869322459},
        [{**DEEPSEEK_MLA, "identity": "trtllm", "dtype": "bf16", "kv_dtype": "bf16", "batch": 2, "q_len": 512, "kv_len": 512,
          "num_heads": 32, "latency_s": 42.66666869322459e-6}],
    ),
    (
        "h100_sxm/mla/sglang/0.5.14/generation_mla_perf.parquet", "mla_decode", 2896,
        {"kernel_source": "flash_attention", "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "num_heads": 128, "batch_size": 1,
         "isl": 1, "tp_size": 1, "step": 1, "latency": 0.01263200044631958},
        [{**DEEPSEEK_MLA, "identity": None, "kernel": "flash_attention", "dtype": "bf16", "batch": 1, "q_len": 1, "kv_len": 2,
          "num_heads": 128, "latency_s": 12.63200044631958e-6}],
    ),
    # ---- mixture of experts ---------------------------------------------------------------------------------------
    (
        "h100_sxm/moe/trtllm/1.3.0rc20/moe_perf.parquet", "moe", 63747,
        {"kernel_source": "moe_torch_flow_cutlass", "moe_dtype": "fp8_block", "num_tokens": 1, "hidden_size": 5120, "inter_size": 8192,
         "topk": 1, "num_experts": 128, "moe_tp_size": 16, "moe_ep_size": 16, "distribution": "power_law_1.01",
         "latency": 0.026208001375198364},
        [{**MOE, "identity": "cutlass", "dtype": "fp8_block", "num_tokens": 1, "hidden_size": 5120, "inter_size": 8192, "topk": 1,
          "num_experts": 128, "tp": 16, "ep": 16, "gated": True, "distribution": "power_law_1.01", "latency_s": 26.208001375198364e-6}],
    ),
    (  # the collector runs GPT-OSS on Hopper with OpenAI's Triton kernels, and labels them like any other
        "h100_sxm/moe/trtllm/1.3.0rc20/moe_perf.parquet", "moe", 26182,
        {"kernel_source": "moe_torch_flow", "moe_dtype": "w4a16_mxfp4", "num_tokens": 64, "hidden_size": 2880, "inter_size": 2880,
         "topk": 4, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 8, "distribution": "balanced", "latency": 0.16666666666666666},
        [{**MOE, "identity": "triton", "dtype": "w4a16_mxfp4", "num_tokens": 64, "hidden_size": 2880, "inter_size": 2880, "topk": 4,
          "num_experts": 128, "tp": 1, "ep": 8, "gated": True, "distribution": "balanced", "latency_s": 0.16666666666666666e-3}],
    ),
    (
        "h100_sxm/moe/vllm/0.24.0/moe_perf.parquet", "moe", 22202,
        {"kernel_source": "vllm_unquantizedfusedmoe_triton_tritonexperts", "moe_dtype": "bfloat16", "num_tokens": 8, "hidden_size": 5120,
         "inter_size": 8192, "topk": 1, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 8, "distribution": "power_law_1.2",
         "latency": 0.18020479679107665},
        [{**MOE, "identity": "triton", "dtype": "bf16", "num_tokens": 8, "tp": 1, "ep": 8, "gated": True, "distribution": "power_law_1.2",
          "latency_s": 180.20479679107665e-6}],
    ),
    (  # before 0.15, vLLM's default was 64 x 64 for more tokens than experts, 16 x 32 for fewer
        "a100_sxm/moe/vllm/0.14.0/moe_perf.parquet", "moe", 1234,
        {"kernel_source": "vllm_fused_moe", "moe_dtype": "bfloat16", "num_tokens": 2048, "hidden_size": 6144, "inter_size": 2560, "topk": 8,
         "num_experts": 160, "moe_tp_size": 2, "moe_ep_size": 1, "distribution": "power_law_1.2", "latency": 10.718476867675781},
        [{**MOE, "dtype": "bf16", "num_tokens": 2048, "tp": 2, "ep": 1, "gated": True, "block_m": 64, "block_n": 64,
          "block_k": 32, "group_m": 8, "latency_s": 10718.476867675781e-6}],
    ),
    (
        "a100_sxm/moe/vllm/0.14.0/moe_perf.parquet", "moe", 38,
        {"kernel_source": "vllm_fused_moe", "moe_dtype": "bfloat16", "num_tokens": 64, "hidden_size": 2048, "inter_size": 768, "topk": 8,
         "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "power_law_1.01", "latency": 0.663327980041504},
        [{**MOE, "num_tokens": 64, "block_m": 16, "block_n": 32, "block_k": 64, "group_m": 1, "latency_s": 663.327980041504e-6}],
    ),
    (
        "a100_sxm/moe/sglang/0.5.10/moe_perf.parquet", "moe", 13839,
        {"kernel_source": "sglang_fused_moe_triton", "moe_dtype": "bfloat16", "num_tokens": 16384, "hidden_size": 2048, "inter_size": 768,
         "topk": 8, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 8, "distribution": "balanced", "latency": 11.676953125},
        [{**MOE, "identity": "triton", "num_tokens": 16384, "ep": 8, "distribution": "balanced", "latency_s": 11676.953125e-6,
          "set_aside": "known bad: a rank of expert parallelism did the work of all"}],
    ),
    (
        "h100_sxm/moe/trtllm/1.3.0rc20/moe_perf.parquet", "moe", 65555,
        {"kernel_source": "moe_torch_flow_nongated", "moe_dtype": "bfloat16", "num_tokens": 1, "hidden_size": 8192, "inter_size": 5120,
         "topk": 22, "num_experts": 512, "moe_tp_size": 8, "moe_ep_size": 32, "distribution": "balanced", "latency": 0.05786666770776113},
        [{**MOE, "identity": "cutlass", "dtype": "bf16", "topk": 22, "num_experts": 512, "tp": 8, "ep": 32, "gated": False,
          "distribution": "balanced", "latency_s": 57.86666770776113e-6}],
    ),
    (
        "h100_sxm/moe/trtllm/1.3.0rc10/wideep_moe_perf.parquet", "moe", 2079,
        {"kernel_source": "wideep_compute_cutlass", "moe_dtype": "fp8_block", "num_tokens": 4, "hidden_size": 6144, "inter_size": 2048,
         "topk": 8, "num_experts": 256, "moe_tp_size": 1, "moe_ep_size": 16, "distribution": "power_law_1.2_eplb",
         "latency": 0.09052799940109253},
        [{**MOE, "identity": "cutlass", "dtype": "fp8_block", "num_tokens": 4, "hidden_size": 6144, "inter_size": 2048, "topk": 8,
          "num_experts": 256, "tp": 1, "ep": 16, "distribution": "power_law_1.2_eplb", "latency_s": 90.52799940109253e-6}],
    ),
    # The source's `uniform` is our `balanced`.
    (
        "h100_sxm/moe/sglang/0.5.10/wideep_context_moe_perf.parquet", "moe", 230,
        {"kernel_source": "deepepmoe", "moe_dtype": "fp8_block", "num_tokens": 16384, "hidden_size": 7168, "inter_size": 2048, "topk": 8,
         "num_experts": 256, "moe_tp_size": 1, "moe_ep_size": 8, "distribution": "uniform", "latency": 1.621206862585885},
        [{**MOE, "identity": "deepgemm", "num_tokens": 16384, "ep": 8, "distribution": "balanced", "latency_s": 1.621206862585885e-3}],
    ),
    (
        "h200_sxm/moe/sglang/0.5.6.post2/wideep_generation_moe_perf.parquet", "moe", 192,
        {"kernel_source": "deepepmoe", "moe_dtype": "fp8_block", "num_tokens": 32, "hidden_size": 7168, "inter_size": 2048, "topk": 8,
         "num_experts": 256, "moe_tp_size": 1, "moe_ep_size": 32, "distribution": "uniform", "latency": 0.11445759534835816},
        [{**MOE, "gpu": "h200-sxm", "engine_version": "0.5.6.post2", "identity": "deepgemm", "num_tokens": 32, "ep": 32,
          "distribution": "balanced", "latency_s": 114.45759534835816e-6}],
    ),
    # ---- collectives: bytes = elements x bytes of one -------------------------------------------------------------
    # 262,144 half numbers are 524,288 bytes.
    (
        "b200_sxm/comm/nccl/2.29.2/nccl_perf.parquet", "all_reduce", 304,
        {"op_name": "all_reduce", "kernel_source": "NCCL", "nccl_dtype": "half", "num_gpus": 4, "message_size": 262144, "latency": 0.017},
        [{**COLLECTIVE, "timer": "graph", "gpu": "b200-sxm", "engine": "nccl", "engine_version": "2.29.2", "identity": "nccl",
          "dtype": "fp16", "bytes": 524288, "num_gpus": 4, "gpus_per_node": 4, "latency_s": 17e-6}],
    ),
    (
        "b200_sxm/comm/nccl/2.29.2/nccl_perf.parquet", "all_to_all", 220,
        {"op_name": "alltoall", "nccl_dtype": "half", "num_gpus": 4, "message_size": 262144, "latency": 0.01848},
        [{**COLLECTIVE, "family": "all_to_all", "timer": "graph", "identity": "nccl", "bytes": 524288, "num_gpus": 4,
          "latency_s": 18.48e-6}],
    ),
    (
        "b60/comm/oneccl/2021.15.9/oneccl_perf.parquet", "all_gather", 115,
        {"op_name": "all_gather", "kernel_source": "oneCCL", "nccl_dtype": "half", "num_gpus": 4, "message_size": 262144,
         "latency": 0.0931202},
        [{**COLLECTIVE, "timer": "graph", "gpu": "arc-b60", "engine": "oneccl", "identity": "oneccl", "dtype": "fp16", "bytes": 524288,
          "num_gpus": 4, "latency_s": 93.1202e-6}],
    ),
    (
        "l40s/comm/nccl/2.27.3/nccl_perf.parquet", "all_reduce", 315,
        {"op_name": "all_reduce", "kernel_source": "NCCL", "nccl_dtype": "int8", "num_gpus": 4, "message_size": 512, "latency": 0.01177},
        [{**COLLECTIVE, "gpu": "l40s", "bytes": 512, "latency_s": 11.77e-6,
          "set_aside": "known bad: L40S collectives are implausible and copied across versions"}],
    ),
    # The same message with and without a graph: the launch is in one of them only.
    (
        "b200_sxm/comm/sglang/0.5.14/custom_allreduce_perf.parquet", "all_reduce", 69,
        {"kernel_source": "SGLang_CustomAllReduce_eager", "allreduce_dtype": "bfloat16", "num_gpus": 4, "message_size": 262144,
         "latency": 0.06396736145019531},
        [{**COLLECTIVE, "timer": "event", "engine": "sglang", "identity": "custom", "dtype": "bf16", "bytes": 524288, "num_gpus": 4,
          "latency_s": 63.96736145019531e-6}],
    ),
    (
        "b200_sxm/comm/sglang/0.5.14/custom_allreduce_perf.parquet", "all_reduce", 68,
        {"kernel_source": "SGLang_CustomAllReduce_graph", "allreduce_dtype": "bfloat16", "num_gpus": 4, "message_size": 262144,
         "latency": 0.007617599964141845},
        [{**COLLECTIVE, "timer": "graph", "identity": "custom", "dtype": "bf16", "bytes": 524288, "latency_s": 7.617599964141845e-6}],
    ),
    # ---- quantisation ---------------------------------------------------------------------------------------------
    (
        "h100_sxm/quantize/sglang/0.5.14/scale_matrix_perf.parquet", "quantize", 814,
        {"kernel_source": "sglang", "m": 225, "k": 7168, "quant_dtype": "fp8", "latency": 0.015848533312479655},
        [{**GRAPH, "op": "static_scaled_fp8", "dtype": "fp8", "rows": 225, "cols": 7168, "latency_s": 15.848533312479655e-6}],
    ),
    (
        "h100_sxm/quantize/sglang/0.5.14/computescale_perf.parquet", "quantize", 814,
        {"kernel_source": "sglang", "m": 225, "k": 7168, "quant_dtype": "fp8", "latency": 0.0},
        [{**GRAPH, "op": "compute_scale", "rows": 225, "cols": 7168, "latency_s": 0.0,
          "set_aside": "known bad: the difference of two timings, not a time"}],
    ),
    # ---- modules: 1,024 new tokens after 32,768 are 33,792 keys ---------------------------------------------------
    (
        "h100_sxm/sparse_attention/sglang/0.5.14/dsa_context_module_perf.parquet", "layer", 62901,
        {"op_name": "dsa_context_module", "model": "zai-org/GLM-5", "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
         "gemm_type": "bfloat16", "num_heads": 64, "batch_size": 8, "isl": 1024, "tp_size": 1, "step": 32768, "latency": 12.5897},
        [{**GRAPH, "op": "dsa_context_module", "phase": "context", "model": "zai-org/GLM-5", "dtype": "bf16", "kv_dtype": "bf16",
          "batch": 8, "q_len": 1024, "kv_len": 33792, "num_heads": 64, "tp": 1, "attributes": '{"gemm_type":"bfloat16"}',
          "latency_s": 12.5897e-3}],
    ),
    (
        "h100_sxm/msa/sglang/0.5.16/msa_generation_module_perf.parquet", "layer", 733,
        {"op_name": "msa_generation_module", "model": "MiniMaxAI/MiniMax-M3", "mla_dtype": "bfloat16", "num_heads": 16, "batch_size": 32,
         "isl": 1, "tp_size": 4, "step": 32768, "latency": 0.1667},
        [{**GRAPH, "op": "msa_generation_module", "phase": "generation", "batch": 32, "q_len": 1, "kv_len": 32769, "num_heads": 16, "tp": 4,
          "latency_s": 166.7e-6}],
    ),
    (
        "b200_sxm/sparse_attention/sglang/0.5.14/dsv4_csa_topk_calib_perf.parquet", "layer", 5182,
        {"op_name": "dsv4_csa_topk_calib", "mla_dtype": "fp8_e4m3", "kv_cache_dtype": "fp8_e4m3", "gemm_type": "fp8_block",
         "compress_ratio": 4, "score_mode": "v1_flat", "latency": 0.0},
        [{**GRAPH, "phase": "topk", "dtype": "fp8", "kv_dtype": "fp8", "latency_s": 0.0,
          "attributes": '{"gemm_type":"fp8_block","compress_ratio":4,"score_mode":"v1_flat"}',
          "set_aside": "known bad: the difference of two timings, not a time"}],
    ),
    (
        "h100_sxm/linear_attention/sglang/0.5.14/gdn_perf.parquet", "layer", 4410,
        {"op_name": "gdn", "kernel_source": "chunk_gated_delta_rule", "phase": "context", "batch_size": 1, "seq_len": 1024,
         "num_tokens": 1024, "d_model": 5120, "d_conv": 4, "num_k_heads": 8, "head_k_dim": 128, "num_v_heads": 24, "head_v_dim": 128,
         "model_name": "Qwen/Qwen3.5-27B", "latency": 0.11341055870056152},
        [{**GRAPH, "op": "gdn", "kernel": "chunk_gated_delta_rule", "phase": "context", "model": "Qwen/Qwen3.5-27B", "dtype": "bf16",
          "batch": 1, "q_len": 1024, "num_tokens": 1024, "hidden_size": 5120, "latency_s": 113.41055870056152e-6,
          "attributes": '{"d_conv":4,"num_k_heads":8,"head_k_dim":128,"num_v_heads":24,"head_v_dim":128}'}],
    ),
    (
        "h100_sxm/linear_attention/trtllm/1.3.0rc20/mamba2_perf.parquet", "layer", 329,
        {"op_name": "mamba2", "phase": "context", "batch_size": 16, "seq_len": 8192, "num_tokens": 131072, "d_model": 1024, "d_state": 64,
         "d_conv": 4, "nheads": 16, "head_dim": 64, "n_groups": 4, "chunk_size": 128, "latency": 0.3286463975906372},
        [{**GRAPH, "op": "mamba2", "batch": 16, "q_len": 8192, "num_tokens": 131072, "hidden_size": 1024,
          "latency_s": 328.6463975906372e-6,
          "attributes": '{"d_state":64,"d_conv":4,"nheads":16,"head_dim":64,"n_groups":4,"chunk_size":128}'}],
    ),
    (
        "h100_sxm/mhc/sglang/0.5.14/mhc_module_perf.parquet", "layer", 69,
        {"op_name": "post", "architecture": "DeepseekV4ForCausalLM", "num_tokens": 4096, "num_sites": 2, "hc_mult": 4, "hidden_size": 4096,
         "sinkhorn_iters": 20, "latency": 0.2094},
        [{**GRAPH, "op": "mhc_post", "model": "DeepseekV4ForCausalLM", "num_tokens": 4096, "hidden_size": 4096, "latency_s": 209.4e-6,
          "attributes": '{"num_sites":2,"hc_mult":4,"sinkhorn_iters":20}'}],
    ),
    (
        "h100_sxm/mlp/sglang/0.5.6.post2/wideep_context_mlp_perf.parquet", "layer", 9,
        {"op_name": "mlp", "quant_type": "fp8_block", "num_token": 512, "hidden_size": 7168, "intermediate_size": 2048,
         "avg_ms": 0.05718719959259033},
        [{**GRAPH, "op": "mlp", "phase": "context", "dtype": "fp8_block", "num_tokens": 512, "hidden_size": 7168,
          "attributes": '{"intermediate_size":2048}', "latency_s": 57.18719959259033e-6}],
    ),
    # ---- dispatch and combine of experts --------------------------------------------------------------------------
    (
        "gb200/comm/trtllm/1.3.0rc10/trtllm_alltoall_perf.parquet", "moe_dispatch", 1048,
        {"op_name": "alltoall_combine", "kernel_source": "NVLinkTwoSided", "moe_dtype": "nvfp4", "num_tokens": 320, "hidden_size": 7168,
         "topk": 8, "num_experts": 256, "moe_ep_size": 8, "distribution": "balanced", "latency": 0.07706239819526672},
        [{**DISPATCH, "gpu": "gb200", "timer": "graph", "op": "combine", "kernel": "NVLinkTwoSided", "dtype": "nvfp4", "num_tokens": 320,
          "hidden_size": 7168, "topk": 8, "num_experts": 256, "ep": 8, "distribution": "balanced", "latency_s": 77.06239819526672e-6}],
    ),
    # This table's `latency` is in us.
    (
        "b200_sxm/comm/trtllm/1.3.0rc11/moe_a2a_perf.parquet", "moe_dispatch", 352,
        {"comm_backend": "trtllm_deepep_ll", "phase": "combine", "comm_dtype": "bfloat16", "ep_size": 8, "node_num": 1,
         "hidden_size": 7168, "topk": 6, "num_experts": 384, "num_tokens": 160, "sms": 0, "latency": 60.334400199353695},
        [{**DISPATCH, "op": "combine", "kernel": "trtllm_deepep_ll", "dtype": "bf16", "ep": 8, "num_nodes": 1, "hidden_size": 7168,
          "topk": 6, "num_experts": 384, "num_tokens": 160, "num_sms": 0, "latency_s": 60.334400199353695e-6}],
    ),
    (
        "h100_sxm/comm/sglang/0.5.12/wideep_deepep_ll_perf.parquet", "moe_dispatch", 88,
        {"op_name": "ll", "node_num": 1, "hidden_size": 5120, "num_token": 1, "num_topk": 1, "num_experts": 128,
         "combine_avg_t_us": 11.453, "dispatch_avg_t_us": 9.227},
        [{**DISPATCH, "op": "dispatch", "kernel": "ll", "dtype": "bf16", "num_nodes": 1, "hidden_size": 5120, "num_tokens": 1, "topk": 1,
          "num_experts": 128, "num_sms": None, "latency_s": 9.227e-6},
         {**DISPATCH, "op": "combine", "kernel": "ll", "latency_s": 11.453e-6}],
    ),
    # Transmit and notify, one after the other: 26.77 + 32.97 = 59.74 us out, 49.0 + 34.47 = 83.47 us back.
    (
        "h200_sxm/comm/sglang/0.5.6.post2/wideep_deepep_normal_perf.parquet", "moe_dispatch", 23,
        {"op_name": "normal", "node_num": 2, "hidden_size": 7168, "num_token": 1, "num_topk": 8, "num_experts": 256, "dispatch_sms": 4,
         "dispatch_transmit_us": 26.77, "dispatch_notify_us": 32.97, "combine_sms": 4, "combine_transmit_us": 49.0,
         "combine_notify_us": 34.47},
        [{**DISPATCH, "op": "dispatch", "num_nodes": 2, "num_sms": 4, "topk": 8, "latency_s": 59.74e-6},
         {**DISPATCH, "op": "combine", "num_nodes": 2, "num_sms": 4, "topk": 8, "latency_s": 83.47e-6}],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def root() -> Path:
    try:
        return SOURCE.locate()
    except MissingData as absent:
        pytest.skip(str(absent))


def raw_table(root: Path, name: str) -> pl.DataFrame:
    return pl.read_parquet(io.BytesIO(wheel.member(wheel.open_wheel(root), name)))


def assert_rows(found: pl.DataFrame, expected: list[Row]) -> None:
    assert found.height == len(expected)
    for place, wanted in enumerate(expected):
        got = found.select(wanted.keys()).row(place, named=True)
        assert got == {key: pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for key, value in wanted.items()}


@pytest.mark.data
@pytest.mark.parametrize(("name", "family", "row", "raw", "expected"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_raw_row_becomes_the_rows_worked_by_hand(root: Path, name: str, family: str, row: int, raw: Row, expected: list[Row]) -> None:
    assert raw_table(root, PREFIX + name).select(raw.keys()).row(row, named=True) == raw
    read = SOURCE.read(root, Table(PREFIX + name, family))
    assert_rows(read.filter(pl.col("origin_row") == row), expected)


@pytest.mark.data
def test_a_serving_point_becomes_a_ttft_and_a_tpot(root: Path) -> None:
    # Row 2805: DeepSeek-R1 in fp4 on B200, tp_size 1 x attention_dp_size 8 = 8 GPUs, silicon_concurrency=128,
    # silicon_ttft_ms 768.9561675804725, silicon_tpot_ms 19.22801949506841.
    serving = SOURCE.read(root, Table(SERVING_TABLE, "serving"))
    shared = {"gpu": "b200-sxm", "engine": "trtllm", "engine_version": "1.2.0rc6.post2", "dtype": "nvfp4", "timer": "wall", "cache": None,
              "model": "deepseek-ai/DeepSeek-R1", "mode": "agg", "isl": 1024, "osl": 8192, "concurrency": 128, "batch": 16, "tp": 1,
              "pp": 1, "attention_dp": 8, "moe_tp": 1, "moe_ep": 8, "num_gpus": 8}  # fmt: skip
    assert_rows(
        serving.filter(pl.col("origin_row") == 2805),
        [
            {**shared, "metric": "ttft", "latency_s": 0.7689561675804725},
            {**shared, "metric": "tpot", "latency_s": 0.01922801949506841},
        ],
    )
    # Row 1000: Qwen3-32B on one H100, no precision stated (bf16), attention_dp_size left empty (1).
    dense = {"gpu": "h100-sxm", "engine": "sglang", "dtype": "bf16", "isl": 2048, "osl": 128, "concurrency": 16, "tp": 1, "attention_dp": 1,
             "num_gpus": 1}  # fmt: skip
    assert_rows(
        serving.filter(pl.col("origin_row") == 1000),
        [
            {**dense, "metric": "ttft", "latency_s": 16.425307918578124},
            {**dense, "metric": "tpot", "latency_s": 0.02465844426875},
        ],
    )


@dataclass
class Everything:
    """What one pass over all tables sees."""

    num_rows: Counter[str] = field(default_factory=Counter)  # table -> rows of ours
    origins: dict[str, list[pl.Series]] = field(default_factory=dict)  # table -> raw row numbers
    words: dict[str, set[str | None]] = field(default_factory=lambda: {name: set() for name in ("gpu", "dtype", "timer", "cache")})


@pytest.fixture(scope="module")
def everything(root: Path) -> Everything:
    seen = Everything()
    for table in SOURCE.tables(root):
        rows = SOURCE.read(root, table)
        seen.num_rows[table.name] += rows.height
        seen.origins.setdefault(table.name, []).append(rows["origin_row"])
        for name, words in seen.words.items():
            words |= set(rows[name].unique())
    return seen


@pytest.mark.data
def test_every_raw_row_is_read_once_and_two_times_in_one_row_twice(root: Path, everything: Everything) -> None:
    archive = wheel.open_wheel(root)
    num_raw = {
        name: pl.scan_parquet(io.BytesIO(archive.read(name))).select(pl.len()).collect().item()
        for name in archive.namelist()
        if name.endswith(".parquet")
    }
    assert sum(num_raw.values()) == 12_586_413
    num_raw[SERVING_TABLE] = archive.read(SERVING_TABLE).count(b"\n") - 1  # the header
    assert set(num_raw) == set(everything.origins)
    for name, height in num_raw.items():
        times = 2 if "deepep" in name or name == SERVING_TABLE else 1
        origins = np.sort(pl.concat(everything.origins[name]).to_numpy())
        assert np.array_equal(origins, np.repeat(np.arange(height), times)), f"{name}: {origins.size} rows of ours for {height} raw ones"
    # 12,586,413 + 17,300 of DeepEP once more + 2 x 5,221 served points
    assert sum(everything.num_rows.values()) == 12_586_413 + 17_300 + 2 * 5_221


@pytest.mark.data
def test_every_gpu_is_catalogued_and_every_dtype_and_protocol_is_a_known_word(everything: Everything) -> None:
    assert everything.words["gpu"] <= {spec.id for spec in hardware.gpus()}
    assert len(everything.words["gpu"]) == 10
    assert everything.words["dtype"] <= set(QUANTISATIONS)
    assert everything.words["timer"] <= set(TIMERS)
    assert everything.words["cache"] <= {*CACHES, None}


# ---- damage --------------------------------------------------------------------------------------------------------

GEMM_TABLE = f"{PREFIX}h100_sxm/gemm/trtllm/1.3.0rc20/gemm_perf.parquet"
SOUND = {"kernel_source": ["torch_flow"], "gemm_dtype": ["bfloat16"], "m": [1], "n": [384], "k": [256], "latency": [0.005]}


def tiny_wheel(folder: Path, name: str = GEMM_TABLE, content: bytes | None = None, **columns: list[Any]) -> Path:
    """A wheel with one table, sound unless told otherwise; a column given as [] is left out."""
    written = io.BytesIO()
    pl.DataFrame({key: values for key, values in {**SOUND, **columns}.items() if values}).write_parquet(written)
    path = folder / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, written.getvalue() if content is None else content)
    return path


def sentence(path: Path, name: str = GEMM_TABLE) -> str:
    """The one sentence that reading the table raises."""
    with pytest.raises(MissingData) as caught:
        SOURCE.read(path, Table(name, "gemm"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tiny_wheel_is_read_like_the_real_one(tmp_path: Path) -> None:
    path = tiny_wheel(tmp_path)
    assert SOURCE.tables(path)[0] == Table(GEMM_TABLE, "gemm")
    assert_rows(
        SOURCE.read(path, Table(GEMM_TABLE, "gemm")),
        [{"gpu": "h100-sxm", "identity": "cublas", "m": 1, "n": 384, "k": 256, "latency_s": 5e-6}],
    )


@pytest.mark.parametrize("column", SOUND)
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path, column: str) -> None:
    found = sentence(tiny_wheel(tmp_path, **{column: []}))
    assert f"{GEMM_TABLE} lacks the column {column}; it has " in found


@pytest.mark.parametrize("kept", [0, 0.5, 0.95])
def test_a_truncated_table_is_damaged(tmp_path: Path, kept: float) -> None:
    with zipfile.ZipFile(tiny_wheel(tmp_path)) as sound:
        whole = sound.read(GEMM_TABLE)
    found = sentence(tiny_wheel(tmp_path, content=whole[: int(kept * len(whole))]))
    assert found.startswith(f"{GEMM_TABLE} in tiny.whl is damaged or of another layout: ")


@pytest.mark.parametrize("columns", [{"gemm_dtype": ["fp3"]}, {"m": ["many"]}, {"latency": ["5 us"]}])
def test_values_of_another_kind_are_another_layout(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    assert "is damaged or of another layout: " in sentence(tiny_wheel(tmp_path, **columns))


def test_an_unknown_system_is_named_with_the_known_ones(tmp_path: Path) -> None:
    name = GEMM_TABLE.replace("h100_sxm", "z900")
    assert "unknown system 'z900'; known: a100_sxm, b200_sxm, " in sentence(tiny_wheel(tmp_path, name), name)


def test_an_unknown_table_is_named_with_the_known_ones(tmp_path: Path) -> None:
    path = tiny_wheel(tmp_path, GEMM_TABLE.replace("gemm_perf", "gemn_perf"))
    with pytest.raises(MissingData, match=r"^[^\n]+gemn_perf\.parquet: unknown table 'gemn_perf'; known: gemm_perf, [^\n]+$"):
        SOURCE.tables(path)


def test_a_table_that_is_not_in_the_wheel_is_named(tmp_path: Path) -> None:
    name = GEMM_TABLE.replace("1.3.0rc20", "9.9.9")
    assert sentence(tiny_wheel(tmp_path), name).endswith(f"tiny.whl has no file {name}")


def test_a_flipped_byte_is_damage_that_names_the_table(tmp_path: Path) -> None:
    path = tiny_wheel(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[30 + len(GEMM_TABLE) + 100] ^= 0xFF  # 30 bytes of zip header and the name come before the table
    path.write_bytes(damaged)
    assert f"tiny.whl is damaged at {GEMM_TABLE} (" in sentence(path)


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut short"])
def test_a_file_that_is_no_zip_says_to_pull_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.whl"
    path.write_bytes(content)
    with pytest.raises(MissingData, match=r"broken\.whl is not a readable wheel \([^\n]+\): run 'tilecast data pull' again$"):
        SOURCE.tables(path)
