"""One model on three engines, launch by launch: what differs on Hopper and on Ampere, and why. Read from the engines' sources and rows."""

import pytest

from tilecast import hardware, predict
from tilecast.engines.base import engine, kernel_step
from tilecast.errors import InvalidInput
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import Batch, decode_tokens, prefill_tokens
from tilecast.workloads.model import model_config
from tilecast.workloads.parallelism import node_for, sharded

ENGINES = ("sglang", "vllm", "trtllm")


def calls(name, gpu, phase="decode", model="Qwen/Qwen3-32B", tp=2, batch=30):
    config, spec = model_config(model), hardware.gpu(gpu)
    shard = sharded(config, tp, node_for(spec, tp))
    asked = Batch.uniform(batch, 1000, 4)
    tokens = decode_tokens(asked, [0]) if phase == "decode" else prefill_tokens(asked)
    operations = architecture(config.architecture).step(config, shard)
    step = kernel_step(operations, tokens, config=config, shard=shard, engine=engine(name), gpu=spec, kv_dtype=config.kv_dtype or "bf16")
    return step.calls


def launches(name, gpu, phase="decode", **more):
    """name -> kernel of every launch of a step."""
    return {call.name: call.kernel for call in calls(name, gpu, phase, **more)}


@pytest.mark.parametrize(("model", "expected"), [("Qwen/Qwen3-32B", "sglang"), ("Qwen/Qwen3-32B-FP8", "vllm")])
def test_products_of_vllm_in_16_bits_are_those_of_random_weights(model, expected):
    """Its own 16-bit rows multiply weights that nobody set; of block-scaled ones it has random weights."""
    asked = {call.name: call.measured_in for call in calls("vllm", "h100-sxm", "prefill", model=model)}
    assert asked["gate_up_proj"] == asked["down_proj"] == expected
    assert asked["attention"] == "vllm" and asked["lm_head"] == "sglang"


def identities(gpu, phase, launch, **more):
    return tuple(getattr(launches(name, gpu, phase, **more).get(launch), "identity", "no launch") for name in ENGINES)


def launched(gpu, launch, phase="decode", **more):
    return tuple(launch in launches(name, gpu, phase, **more) for name in ENGINES)


# (what, SGLang, vLLM, TensorRT-LLM, why)
HOPPER = [
    ("attention of decodes", "flashinfer_fa2", "fa3", "trtllm", "FlashInfer pages in SGLang, FA3 does both in vLLM, XQA is TRT-LLM's"),
    ("attention of prompts", "fa3", "fa3", "trtllm", "TensorRT-LLM brings its own FMHA"),
    ("rope", True, False, True, "Inductor joins the rotation to the norm of queries and keys; TRT-LLM keeps one kernel for all three"),
    ("q_norm", True, True, False, "TensorRT-LLM's fused_qk_norm_rope normalises too"),
    ("kv_cache_write", True, True, False, "TensorRT-LLM's attention writes the cache in its preprocessing"),
    ("post_attention_norm", True, False, False, "vLLM and TensorRT-LLM normalise inside the all-reduce; SGLang does so for few models"),
]  # fmt: skip
AMPERE = [
    ("attention of decodes", "flashinfer_fa2", "fa2", "trtllm", "no FA3 before Hopper: vLLM falls back to FA2"),
    ("attention of prompts", "flashinfer_fa2", "fa2", "trtllm", "the same for prompts"),
    ("rope", True, False, True, "compiled code and fused kernels do not depend on the generation"),
    ("q_norm", True, True, False, "the same"),
    ("kv_cache_write", True, True, False, "the same"),
    ("post_attention_norm", True, True, False, "FlashInfer's fused all-reduce needs Hopper; TensorRT-LLM's own runs on Ampere too"),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "table"), [("h100-sxm", HOPPER), ("a100-sxm-80gb", AMPERE)])
def test_launches_that_differ(gpu, table):
    for what, *expected, why in table:
        if what.startswith("attention"):
            found = identities(gpu, "decode" if "decodes" in what else "prefill", "attention")
        else:
            found = launched(gpu, what)
        assert found == tuple(expected), f"{what} on {gpu}: {why}"
        assert len(set(found)) > 1, what


def test_graphs_are_padded_to_each_engines_sizes():
    # 30 requests: all three have a graph for 32. 150: SGLang and vLLM go in steps of 8, TensorRT-LLM doubles beyond 128.
    assert [launches(name, "h100-sxm")["qkv_proj"].m for name in ENGINES] == [32, 32, 32]
    assert [launches(name, "h100-sxm", batch=150)["qkv_proj"].m for name in ENGINES] == [152, 152, 256]
    assert [launches(name, "h100-sxm", batch=150)["attention"].batch for name in ENGINES] == [150, 150, 150]  # padding has no context


def test_experts_and_fp8_products_on_hopper():
    moe = {"model": "Qwen/Qwen3-235B-A22B-FP8", "tp": 4}
    # SGLang and vLLM run Triton's fused experts, TensorRT-LLM CUTLASS grouped products.
    assert identities("h100-sxm", "decode", "experts", **moe) == (None, "triton", "cutlass")
    fp8 = {"model": "nvidia/Llama-3.1-70B-Instruct-FP8", "tp": 2}
    # Inductor writes 8-bit results from norms; TensorRT-LLM from the all-reduce; SGLang quantises in kernels of their own.
    assert launched("h100-sxm", "qkv_proj_quantize", **fp8) == (True, False, False)
    assert launched("h100-sxm", "down_proj_quantize", **fp8) == (True, False, False)
    assert launched("h100-sxm", "o_proj_quantize", **fp8) == (True, True, False)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("h100-sxm", (None, "deepgemm", None)),  # SGLang's is left open: what its newest release runs
        ("b200-sxm", (None, "deepgemm", "deepgemm")),
        ("l40s", (None, "triton", None)),  # DeepGEMM is written for Hopper and data-centre Blackwell
        ("rtx-pro-6000-server", (None, "triton", None)),
    ],
)
def test_products_with_block_scales_are_the_kernels_of_each_engines_rows(gpu, expected):
    block = {"model": "Qwen/Qwen3-32B-FP8", "tp": 1}
    assert identities(gpu, "prefill", "down_proj", **block) == expected


def test_blackwell_runs_tensorrt_llms_attention_everywhere():
    assert identities("b200-sxm", "decode", "attention") == ("trtllm", "trtllm", "trtllm")


def test_a_long_step_keeps_its_norms():
    # 30 x 1000 tokens x 5120 x 2 bytes = 307 MB: beyond every fused all-reduce.
    assert launched("h100-sxm", "post_attention_norm", "prefill") == (True, True, True)


@pytest.mark.parametrize(
    ("release", "hopper", "ampere"),
    [("0.5.9", ("fa3", "flashinfer_fa2"), ("flashinfer_fa2", "flashinfer_fa2")), ("0.5.10", ("fa3", "fa3"), ("fa3", "fa3")),
     ("0.5.14.post1", ("fa3", "fa3"), ("fa3", "fa3")), ("1.0", ("fa3", "fa3"), ("fa3", "fa3"))],
)  # fmt: skip
def test_a_release_has_every_change_up_to_its_own(release, hopper, ampere):
    for gpu, expected in (("h100-sxm", hopper), ("a100-sxm-80gb", ampere), ("l40s", ("flashinfer_fa2", "flashinfer_fa2"))):
        found = tuple(launches(f"sglang@{release}", gpu, phase)["attention"].identity for phase in ("prefill", "decode"))
        assert found == expected, f"{release} on {gpu}"


@pytest.mark.parametrize("asked", ["sglang@", "sglang@newest", "vllm@v0.19", "sglang@0.5.14;rm"])
def test_what_is_no_release_is_refused(asked):
    with pytest.raises(InvalidInput, match="is no release, such as"):
        engine(asked)


def test_answers_name_the_release():
    asked = {"gpu": "a100-sxm-80gb", "batch": 4, "isl": 256, "osl": 8}
    older, newer = (predict("Qwen/Qwen3-8B", **asked, engine=name) for name in ("sglang", "sglang@0.5.14"))
    assert (older.engine, newer.engine, newer.inputs["engine"]) == ("sglang", "sglang@0.5.14", "sglang@0.5.14")
    assert older.prefill_s.median != newer.prefill_s.median
    assert older.memory == newer.memory


def test_vllms_flash_attention_2_copies_heads_that_become_rows():
    def copies(gpu="a100-sxm-80gb", name="vllm", **more):
        return "attention_copies" in launches(name, gpu, **more)

    assert copies()
    assert not copies(phase="prefill")
    assert not copies(batch=1) and not copies(tp=8)  # one request, one KV head: views
    assert not copies(model="meta-llama/Llama-2-7b-hf")  # no groups
    assert not copies(gpu="h100-sxm") and not copies(name="sglang")
    kernel = launches("vllm", "a100-sxm-80gb")["attention_copies"]
    assert (kernel.op, kernel.numel) == ("copy", 32 * 32 * 128)  # a batch of 30 runs as 32; 32 heads of 128 on each of two GPUs
