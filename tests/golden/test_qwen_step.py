"""One decode step of Qwen3-32B on two H100, worked by hand: which kernels, how often, and their sizes; and the weights in bytes."""

import pytest

from tilecast import hardware
from tilecast.engines.base import engine, kernel_step
from tilecast.engines.predict import predict
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import Batch, decode_tokens, prefill_tokens
from tilecast.workloads.model import model_config
from tilecast.workloads.parallelism import node_for, sharded

# 64 layers, hidden 5120, 64 heads and 8 KV heads of 128, MLP 25600, vocabulary 151936; on each of two GPUs 32 heads, 4 KV heads,
# MLP 12800, vocabulary 75968. Eight requests with 1000 tokens of prompt: in the first decode step each sees 1001.
STEP = [
    ("embedding", "embedding", 1, {"rows": 8, "cols": 5120, "vocab_size": 75968}),
    ("embedding_all_reduce", "all_reduce", 1, {"bytes": 8 * 5120 * 2, "num_gpus": 2}),
    ("input_norm", "rms_norm", 64, {"rows": 8, "cols": 5120, "residual": True}),
    ("qkv_proj", "gemm", 64, {"m": 8, "n": (32 + 4 + 4) * 128, "k": 5120, "bias": False}),
    ("q_norm", "rms_norm", 64, {"rows": 8 * 32, "cols": 128, "residual": False}),
    ("k_norm", "rms_norm", 64, {"rows": 8 * 4, "cols": 128, "residual": False}),
    ("rope", "rope", 64, {"rows": 8, "num_heads": 32, "num_kv_heads": 4, "head_dim": 128}),
    ("kv_cache_write", "kv_cache_write", 64, {"rows": 8, "num_kv_heads": 4, "head_dim": 128}),
    ("attention", "attention_decode", 64, {"batch": 8, "q_len": 1, "kv_len": 1001, "num_heads": 32, "num_kv_heads": 4, "head_dim": 128}),
    ("o_proj", "gemm", 64, {"m": 8, "n": 5120, "k": 32 * 128}),
    ("attention_all_reduce", "all_reduce", 64, {"bytes": 8 * 5120 * 2, "num_gpus": 2}),
    ("post_attention_norm", "rms_norm", 64, {"rows": 8, "cols": 5120, "residual": True}),
    ("gate_up_proj", "gemm", 64, {"m": 8, "n": 2 * 12800, "k": 5120}),
    ("silu_mul", "silu_mul", 64, {"rows": 8, "cols": 12800}),
    ("down_proj", "gemm", 64, {"m": 8, "n": 5120, "k": 12800}),
    ("mlp_all_reduce", "all_reduce", 64, {"bytes": 8 * 5120 * 2, "num_gpus": 2}),
    ("final_norm", "rms_norm", 1, {"rows": 8, "cols": 5120, "residual": True}),
    ("lm_head", "gemm", 1, {"m": 8, "n": 75968, "k": 5120}),
    ("logits_all_gather", "all_gather", 1, {"bytes": 8 * 151936 * 2, "num_gpus": 2}),
    ("sampling", "sampling", 1, {"rows": 8, "cols": 151936}),
]


def step(tokens, gpu="h100-sxm"):
    config, spec = model_config("Qwen/Qwen3-32B"), hardware.gpu(gpu)
    shard = sharded(config, 2, node_for(spec, 2))
    operations = architecture(config.architecture).step(config, shard)
    return kernel_step(operations, tokens, config=config, shard=shard, engine=engine("sglang"), gpu=spec, kv_dtype="bf16")


def test_the_kernels_of_a_decode_step():
    calls = step(decode_tokens(Batch.uniform(8, 1000, 2), [0])).calls
    assert [(call.name, call.kernel.family, call.count) for call in calls] == [entry[:3] for entry in STEP]
    for call, (_, _, _, sizes) in zip(calls, STEP, strict=True):
        assert {name: getattr(call.kernel, name) for name in sizes} == sizes, call.name


def test_weights_and_cache_are_cold_and_activations_warm():
    cold = {call.name for call in step(decode_tokens(Batch.uniform(8, 1000, 2), [0])).calls if call.cache == "cold"}
    assert cold == {"embedding", "qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj", "lm_head"}


@pytest.mark.parametrize(
    ("gpu", "prefill", "decode"),
    [
        ("h100-sxm", "fa3", "flashinfer_fa2"),
        ("a100-sxm-80gb", "flashinfer_fa2", "flashinfer_fa2"),
        ("rtx-6000-ada", "flashinfer_fa2", "flashinfer_fa2"),
    ],
)
def test_attention_by_generation(gpu, prefill, decode):
    batch = Batch.uniform(8, 1000, 2)
    found = [
        next(call.kernel.identity for call in step(tokens, gpu).calls if call.name == "attention")
        for tokens in (prefill_tokens(batch), decode_tokens(batch, [0]))
    ]
    assert found == [prefill, decode]


def test_only_the_last_token_of_a_request_reaches_the_head():
    calls = {call.name: call.kernel for call in step(prefill_tokens(Batch((100, 300), (5, 5)))).calls}
    assert (calls["qkv_proj"].m, calls["lm_head"].m) == (400, 2)
    assert [list(lengths) for lengths in calls["attention"].q_lens] == [[100, 300]]


def test_weights_in_bytes():
    # One layer, whole: qkv 5120 x 80 x 128 = 52,428,800; o 64 x 128 x 5120 = 41,943,040; gate, up, down 3 x 5120 x 25600 = 393,216,000;
    # norms 2 x 5120 + 2 x 128 = 10,496. Together 487,598,336; 64 of them 31,206,293,504.
    # Embedding and head 2 x 151936 x 5120 = 1,555,824,640, final norm 5120: 32,762,123,264 parameters, the model's published count.
    assert model_config("Qwen/Qwen3-32B").num_parameters == 32_762_123_264
    # Half of the matrices on each of two GPUs, norms on both: (32,762,123,264 - norms) / 2 + norms, norms = 64 x 10,496 + 5120 = 676,864
    on_each = (32_762_123_264 - 676_864) // 2 + 676_864
    assert predict("Qwen/Qwen3-32B", "h100-sxm", tp=2, batch=1, isl=16, osl=1).memory.weights_bytes == 2 * on_each


def test_the_cache_in_bytes():
    # Keys and values: 2 x 64 layers x 4 heads x 128 x 2 bytes = 131,072 a token on each GPU; 8 x (1000 + 24) tokens.
    assert predict("Qwen/Qwen3-32B", "h100-sxm", tp=2, batch=8, isl=1000, osl=24).memory.kv_cache_bytes == 8 * 1024 * 131_072
    # Sixteen GPUs share eight KV heads: one on each, copied once.
    assert sharded(model_config("Qwen/Qwen3-32B"), 16).kv_heads(8) == 1
