"""Launch lists worked by hand: Llama-3.1-70B on four GPUs, Qwen3-30B-A3B on one and with its experts split, DeepSeek-V3 on eight."""

import pytest

from tilecast import hardware
from tilecast.engines.base import engine, kernel_step, with_settings
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import Batch, decode_tokens, prefill_tokens
from tilecast.workloads.model import model_config
from tilecast.workloads.parallelism import node_for, sharded


def calls(id, tokens, gpu="h100-sxm", tp=1, settings=None, **split):
    config, spec = model_config(id), hardware.gpu(gpu)
    shard = sharded(config, tp, node_for(spec, tp) if tp > 1 else None, **split)
    operations = architecture(config.architecture).step(config, shard)
    runs = with_settings(engine("sglang"), settings or {})
    return kernel_step(operations, tokens, config=config, shard=shard, engine=runs, gpu=spec, kv_dtype="bf16").calls


def check(found, expected):
    assert [(call.name, call.kernel.family, call.count) for call in found] == [entry[:3] for entry in expected]
    for call, (name, _, _, sizes) in zip(found, expected, strict=True):
        assert {key: getattr(call.kernel, key) for key in sizes} == sizes, name


DECODE = decode_tokens(Batch.uniform(16, 500, 2), [0])  # 16 requests that each see 501 tokens


def test_llama_70b_on_four_gpus():
    # 80 layers, hidden 8192, 64 heads and 8 KV heads of 128, MLP 28672, vocabulary 128256: a quarter of each on a GPU.
    sums = {"bytes": 16 * 8192 * 2, "num_gpus": 4, "identity": "custom"}
    check(
        calls("meta-llama/Llama-3.1-70B", DECODE, tp=4),
        [
            ("embedding", "embedding", 1, {"rows": 16, "cols": 8192, "vocab_size": 32064}),
            ("embedding_all_reduce", "all_reduce", 1, sums),
            ("input_norm", "rms_norm", 80, {"rows": 16, "cols": 8192, "residual": True}),
            ("qkv_proj", "gemm", 80, {"m": 16, "n": (16 + 2 + 2) * 128, "k": 8192, "dtype": "bf16"}),
            ("rope", "rope", 80, {"rows": 16, "num_heads": 16, "num_kv_heads": 2, "head_dim": 128}),
            ("kv_cache_write", "kv_cache_write", 80, {"rows": 16, "num_kv_heads": 2, "head_dim": 128}),
            ("attention", "attention_decode", 80, {"batch": 16, "kv_len": 501, "num_heads": 16, "num_kv_heads": 2}),
            ("o_proj", "gemm", 80, {"m": 16, "n": 8192, "k": 16 * 128}),
            ("attention_all_reduce", "all_reduce", 80, sums),
            ("post_attention_norm", "rms_norm", 80, {"rows": 16, "cols": 8192, "residual": True}),
            ("gate_up_proj", "gemm", 80, {"m": 16, "n": 2 * 7168, "k": 8192}),
            ("silu_mul", "silu_mul", 80, {"rows": 16, "cols": 7168}),
            ("down_proj", "gemm", 80, {"m": 16, "n": 8192, "k": 7168}),
            ("mlp_all_reduce", "all_reduce", 80, sums),
            ("final_norm", "rms_norm", 1, {"rows": 16, "cols": 8192}),
            ("lm_head", "gemm", 1, {"m": 16, "n": 32064, "k": 8192}),
            ("logits_all_gather", "all_gather", 1, {"bytes": 16 * 128256 * 2, "num_gpus": 4}),
            ("sampling", "sampling", 1, {"rows": 16, "cols": 128256}),
        ],
    )  # fmt: skip


def test_qwen3_moe_on_one_gpu():
    # 48 layers, hidden 2048, 32 heads and 4 KV heads of 128, 128 experts of 768 and 8 of them for each token, vocabulary 151936.
    check(
        calls("Qwen/Qwen3-30B-A3B", DECODE),
        [
            ("embedding", "embedding", 1, {"rows": 16, "cols": 2048, "vocab_size": 151936}),
            ("input_norm", "rms_norm", 48, {"rows": 16, "cols": 2048, "residual": True}),
            ("qkv_proj", "gemm", 48, {"m": 16, "n": (32 + 4 + 4) * 128, "k": 2048}),
            ("q_norm", "rms_norm", 48, {"rows": 16 * 32, "cols": 128}),
            ("k_norm", "rms_norm", 48, {"rows": 16 * 4, "cols": 128}),
            ("rope", "rope", 48, {"rows": 16, "num_heads": 32, "num_kv_heads": 4}),
            ("kv_cache_write", "kv_cache_write", 48, {"rows": 16, "num_kv_heads": 4}),
            ("attention", "attention_decode", 48, {"batch": 16, "kv_len": 501, "num_heads": 32, "num_kv_heads": 4}),
            ("o_proj", "gemm", 48, {"m": 16, "n": 2048, "k": 4096}),
            ("post_attention_norm", "rms_norm", 48, {"rows": 16, "cols": 2048}),
            ("router", "gemm", 48, {"m": 16, "n": 128, "k": 2048, "dtype": "bf16"}),
            ("expert_topk", "softmax", 48, {"rows": 16, "cols": 128}),
            ("experts", "moe", 48, {"num_tokens": 16, "inter_size": 768, "num_experts": 128, "topk": 8, "tp": 1, "ep": 1}),
            ("final_norm", "rms_norm", 1, {"rows": 16, "cols": 2048}),
            ("lm_head", "gemm", 1, {"m": 16, "n": 151936, "k": 2048}),
            ("sampling", "sampling", 1, {"rows": 16, "cols": 151936}),
        ],
    )  # fmt: skip


def test_experts_of_one_rank_and_attention_of_one_data_parallel_rank():
    # Four GPUs, two ranks of 64 experts, each expert cut in two; attention in two groups of two GPUs, 8 of the 16 requests in each.
    found = {call.name: call for call in calls("Qwen/Qwen3-30B-A3B", DECODE, tp=4, ep=2)}
    assert (found["experts"].kernel.tp, found["experts"].kernel.ep, found["experts"].kernel.num_tokens) == (2, 2, 16)
    assert found["experts_all_reduce"].kernel.num_gpus == 4
    tokens = decode_tokens(Batch.uniform(16, 500, 2), [0], 2)
    found = {call.name: call for call in calls("Qwen/Qwen3-30B-A3B", tokens, tp=4, ep=2, dp=2)}
    sizes = {name: found[name].kernel for name in found}
    assert (sizes["qkv_proj"].m, sizes["qkv_proj"].n) == (8, (16 + 2 + 2) * 128)
    assert (sizes["attention_all_reduce"].num_gpus, sizes["attention_all_reduce"].bytes) == (2, 8 * 2048 * 2)
    assert (sizes["hidden_gather"].family, sizes["hidden_gather"].bytes) == ("all_gather", 16 * 2048 * 2)
    assert (sizes["router"].m, sizes["experts"].num_tokens) == (16, 16)
    assert sizes["experts_all_reduce"].family == "reduce_scatter"
    assert (sizes["lm_head"].m, sizes["lm_head"].n, sizes["sampling"].rows) == (16, 37984, 8)


def test_tokens_are_sent_to_their_experts_alone():
    # Eight ranks of 2 requests each. A token goes to 8 experts in 8 bits and comes back in 16: 2 x 7168 x 8 of either; the three dense
    # layers still gather. The shared expert (2048 wide) and the router see a rank's own 2 tokens, the experts what all 16 chose.
    split = {"gpu": "h200-sxm", "tp": 8, "ep": 8, "dp": 8}
    of_rank = decode_tokens(Batch.uniform(16, 500, 2), [0], 8)
    sent = {call.name: call for call in calls("deepseek-ai/DeepSeek-V3", of_rank, settings={"experts_all_to_all": 1}, **split)}
    gathered = {call.name: call for call in calls("deepseek-ai/DeepSeek-V3", of_rank, **split)}
    assert "experts_all_reduce" not in sent and (sent["hidden_gather"].count, gathered["hidden_gather"].count) == (3, 61)
    for name, num_bytes in (("experts_dispatch", 2 * 7168 * 8), ("experts_combine", 2 * 7168 * 8 * 2)):
        assert (sent[name].kernel.family, sent[name].count, sent[name].kernel.bytes) == ("all_to_all", 58, num_bytes)
        assert name not in gathered
    assert (sent["router"].kernel.m, gathered["router"].kernel.m) == (2, 16)
    up, down = sent["shared_gate_up_proj"].kernel, sent["shared_down_proj"].kernel
    assert (up.m, up.n, up.k) == (2, 2 * 2048, 7168) and (down.m, down.n, down.k) == (2, 7168, 2048)
    assert sent["experts"].kernel.num_tokens == gathered["experts"].kernel.num_tokens == 16
    alone = calls("deepseek-ai/DeepSeek-V3", DECODE, gpu="h200-sxm", tp=8, settings={"experts_all_to_all": 1})
    assert "experts_dispatch" not in {call.name for call in alone}  # nothing was gathered there


def test_deepseek_v3_on_eight_gpus():
    # 61 layers, 3 of them dense (MLP 18432), hidden 7168, 128 heads: 16 on a GPU. Queries through a latent of 1536, keys and values of
    # 512 + 64, heads of 128 + 64 and values of 128. 256 experts of 2048 and one shared, which SGLang makes the 257th; fp8 in blocks.
    # All-reduce takes the norm behind it along, so no norm of 7168 but the last is launched.
    sums = {"bytes": 16 * 7168 * 2, "num_gpus": 8, "identity": "custom"}
    fp8 = {"dtype": "fp8_block"}
    check(
        calls("deepseek-ai/DeepSeek-V3", DECODE, gpu="h200-sxm", tp=8),
        [
            ("embedding", "embedding", 1, {"rows": 16, "cols": 7168, "vocab_size": 16160}),  # 129280 / 8
            ("embedding_all_reduce", "all_reduce", 1, sums),
            ("qkv_a_proj_quantize", "quantize", 61, {"rows": 16, "cols": 7168, "op": "per_block"}),
            ("qkv_a_proj", "gemm", 61, {"m": 16, "n": 1536 + 512 + 64, "k": 7168, **fp8}),
            ("q_a_norm", "rms_norm", 61, {"rows": 16, "cols": 1536}),
            ("kv_a_norm", "rms_norm", 61, {"rows": 16, "cols": 512}),
            ("q_b_proj_quantize", "quantize", 61, {"rows": 16, "cols": 1536}),
            ("q_b_proj", "gemm", 61, {"m": 16, "n": 16 * 192, "k": 1536, **fp8}),
            ("rope", "rope", 61, {"rows": 16, "num_heads": 16, "num_kv_heads": 1, "head_dim": 64}),
            ("kv_cache_write", "kv_cache_write", 61, {"rows": 16, "num_kv_heads": 1, "head_dim": 288}),
            ("q_absorb", "gemm", 61, {"m": 16, "n": 512, "k": 128, "batch": 16, "dtype": "bf16"}),
            ("attention", "mla_decode", 61, {"batch": 16, "kv_len": 501, "num_heads": 16, "identity": "flashmla"}),
            ("v_absorb", "gemm", 61, {"m": 16, "n": 128, "k": 512, "batch": 16}),
            ("o_proj_quantize", "quantize", 61, {"rows": 16, "cols": 2048}),
            ("o_proj", "gemm", 61, {"m": 16, "n": 7168, "k": 16 * 128, **fp8}),
            ("attention_all_reduce", "all_reduce", 61, sums),
            ("gate_up_proj_quantize", "quantize", 3, {"rows": 16, "cols": 7168}),
            ("gate_up_proj", "gemm", 3, {"m": 16, "n": 2 * 2304, "k": 7168, **fp8}),
            ("silu_mul", "silu_mul", 3, {"rows": 16, "cols": 2304}),
            ("down_proj_quantize", "quantize", 3, {"rows": 16, "cols": 2304}),
            ("down_proj", "gemm", 3, {"m": 16, "n": 7168, "k": 2304, **fp8}),
            ("mlp_all_reduce", "all_reduce", 3, sums),
            ("router", "gemm", 58, {"m": 16, "n": 256, "k": 7168, "dtype": "bf16"}),
            ("expert_topk", "softmax", 58, {"rows": 16, "cols": 256}),
            ("experts", "moe", 58, {"num_tokens": 16, "inter_size": 2048, "num_experts": 257, "topk": 9, "tp": 8, "ep": 1, **fp8}),
            ("experts_all_reduce", "all_reduce", 58, sums),
            ("final_norm", "rms_norm", 1, {"rows": 16, "cols": 7168}),
            ("lm_head", "gemm", 1, {"m": 16, "n": 16160, "k": 7168, "dtype": "bf16"}),
            ("logits_all_gather", "all_gather", 1, {"bytes": 16 * 129280 * 2, "num_gpus": 8}),
            ("sampling", "sampling", 1, {"rows": 16, "cols": 129280}),
        ],
    )  # fmt: skip


def test_deepseek_prefill_expands_the_latents_and_runs_long_norms_apart():
    found = {call.name: call.kernel for call in calls("deepseek-ai/DeepSeek-V3", prefill_tokens(Batch.uniform(4, 1000, 2)), "h200-sxm", 8)}
    assert (found["kv_b_proj"].m, found["kv_b_proj"].n, found["kv_b_proj"].k) == (4000, 16 * (128 + 128), 512)
    assert (found["attention"].family, found["attention"].identity) == ("mla_prefill", "fa3")
    assert not {"q_absorb", "v_absorb"} & set(found)
    assert {"input_norm", "post_attention_norm"} <= set(found)  # 4000 tokens are more than the fused kernel takes


@pytest.mark.parametrize(
    ("gpu", "split", "fused"), [("h200-sxm", {}, True), ("h20", {}, False), ("a100-sxm-80gb", {}, False), ("h200-sxm", {"dp": 2}, False)]
)
def test_all_reduce_takes_the_norm_along_where_sglang_does(gpu, split, fused):
    names = {call.name for call in calls("Qwen/Qwen3-30B-A3B", DECODE, gpu, 2, **split)}
    assert ("post_attention_norm" not in names) == fused


def test_a_shared_expert_runs_beside_the_others_where_it_is_not_one_of_them():
    found = {call.name: call.kernel for call in calls("deepseek-ai/DeepSeek-V2-Lite", DECODE)}
    assert (found["experts"].num_experts, found["experts"].topk) == (64, 6)
    assert (found["shared_gate_up_proj"].n, found["shared_down_proj"].k) == (2 * 2 * 1408, 2 * 1408)
    assert found["q_proj"].n == 16 * 192  # no latent for its queries


@pytest.mark.parametrize(("gpu", "identity"), [("h100-sxm", "fa3"), ("a100-sxm-80gb", "triton"), ("b200-sxm", "trtllm")])
def test_attention_with_sinks(gpu, identity):
    found = {call.name: call.kernel for call in calls("openai/gpt-oss-120b", DECODE, gpu)}
    assert (found["sliding_attention"].window, found["attention"].window) == (128, None)
    assert found["sliding_attention"].identity == found["attention"].identity == identity
    assert found["experts"].dtype == ("w4a8_mxfp4_mxfp8" if gpu == "b200-sxm" else "w4a16_mxfp4")
