"""Every architecture: published parameter counts, bytes of the KV cache, formats from a config, and shares of one GPU."""

import json
from contextlib import suppress

import pytest

from tilecast.dtypes import QUANTISATIONS
from tilecast.engines.base import engine
from tilecast.engines.fit import memory_of
from tilecast.engines.predict import predict
from tilecast.errors import InvalidInput, SpecError, TilecastError, UnknownName
from tilecast.hardware import gpu
from tilecast.workloads.architectures import architecture, architectures
from tilecast.workloads.architectures.base import read_config
from tilecast.workloads.graph import Batch
from tilecast.workloads.memory import weights_bytes
from tilecast.workloads.model import config_table, model_config, model_ids
from tilecast.workloads.parallelism import Shard, sharded
from tilecast.workloads.quantisation import read_precision, requantised

# Published counts, in billions: model cards and technical reports. GLM-4.5's 355 and 106 include a layer that predicts a second token.
PUBLISHED = {
    "meta-llama/Llama-2-7b-hf": 6.738, "meta-llama/Llama-2-70b-hf": 68.977, "meta-llama/Llama-3.1-8B": 8.030,
    "meta-llama/Llama-3.1-70B": 70.554, "meta-llama/Llama-3.1-405B": 405.853, "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108.6,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 401.6, "Qwen/Qwen2.5-14B": 14.770, "Qwen/Qwen2.5-7B": 7.616,
    "Qwen/Qwen3-0.6B": 0.596, "Qwen/Qwen3-32B": 32.762, "Qwen/Qwen3-30B-A3B": 30.532, "Qwen/Qwen3-235B-A22B": 235.094,
    "Qwen/Qwen1.5-MoE-A2.7B": 14.316, "Qwen/Qwen2-57B-A14B": 57.409, "mistralai/Mistral-7B-v0.3": 7.248,
    "mistralai/Mixtral-8x7B-v0.1": 46.703, "mistralai/Mixtral-8x22B-v0.1": 140.621, "deepseek-ai/DeepSeek-V2": 235.741,
    "deepseek-ai/DeepSeek-V2-Lite": 15.706, "deepseek-ai/DeepSeek-V3": 671.026, "deepseek-ai/DeepSeek-R1": 671.026,
    "moonshotai/Kimi-K2-Instruct": 1026.4, "MiniMaxAI/MiniMax-M2.5": 228.7, "google/gemma-2-9b": 9.242, "google/gemma-2-27b": 27.227,
    "google/gemma-3-1b-it": 1.000, "google/gemma-3-27b-it": 27.009, "microsoft/phi-4": 14.660, "microsoft/Phi-3-mini-4k-instruct": 3.821,
    "openai/gpt-oss-20b": 20.915, "openai/gpt-oss-120b": 116.829, "zai-org/GLM-4.5": 355.0, "zai-org/GLM-4.5-Air": 106.0,
    "openai-community/gpt2": 0.1244, "openai-community/gpt2-xl": 1.5576, "facebook/opt-1.3b": 1.3158,
    "google-bert/bert-base-uncased": 0.1095, "google-bert/bert-large-uncased": 0.335,
}  # fmt: skip


@pytest.mark.parametrize(("id", "billions"), PUBLISHED.items())
def test_parameters_are_the_published_count(id, billions):
    assert model_config(id).num_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_architecture_has_a_bundled_model_with_a_published_count():
    readers = {architectures()[model_config(id).architecture].read for id in PUBLISHED}
    assert readers == {entry.read for entry in architectures().values()}


@pytest.mark.parametrize("id", model_ids())
def test_every_bundled_model_is_read_and_runs(id):
    config = model_config(id)
    where = "b200-sxm" if "nvfp4" in config.precision.names else "h200-sxm"
    assert predict(id, where, batch=1, isl=16, osl=1 if config.is_encoder else 2).total_s.median > 0


@pytest.mark.parametrize(
    ("id", "elements"),
    [
        ("meta-llama/Llama-3.1-70B", 2 * 80 * 8 * 128),
        ("deepseek-ai/DeepSeek-V3", 61 * (512 + 64)),  # one latent and one rotated key a token, whatever the heads
        ("Qwen/Qwen3-30B-A3B", 2 * 48 * 4 * 128),
        ("openai/gpt-oss-120b", 2 * 36 * 8 * 64),
        ("openai-community/gpt2", 2 * 12 * 768),
    ],
)
def test_the_cache_of_a_token(id, elements):
    assert model_config(id).kv_elements_per_token == elements


def test_a_latent_is_on_every_gpu_but_not_of_every_rank_s_requests():
    config, batch = model_config("deepseek-ai/DeepSeek-V3"), Batch.uniform(64, 1000, 24)
    spec = gpu("h200-sxm")
    # 64 requests x 1024 tokens x 61 layers x 576 elements x 2 bytes, on each of eight GPUs; split by requests: an eighth of it.
    whole = memory_of(config, sharded(config, 8), engine("sglang"), spec, batch, "bf16").kv_cache_bytes
    split = memory_of(config, sharded(config, 8, dp=8), engine("sglang"), spec, batch, "bf16").kv_cache_bytes
    assert whole == 64 * 1024 * 61 * 576 * 2 == 8 * split


def test_only_some_engines_models_forget_what_lies_outside_the_window():
    # 18 of 36 layers of GPT-OSS keep 128 tokens of 4096, the others all: 8 KV heads x 64 x 2 x 2 bytes each.
    held = predict("openai/gpt-oss-120b", "h100-sxm", batch=1, isl=4000, osl=96).memory.kv_cache_bytes
    assert held == 18 * (128 + 4096) * 8 * 64 * 2 * 2
    # SGLang keeps every key of Gemma 2.
    assert predict("google/gemma-2-9b", "h100-sxm", batch=1, isl=8000, osl=96).memory.kv_cache_bytes == 42 * 8096 * 8 * 256 * 2 * 2


# ---- layers ------------------------------------------------------------------------------------------------------


def kinds(id):
    return [(layer.attention.window, type(layer.mlp).__name__) for layer in model_config(id).layers]


def test_layers_alternate_as_each_family_does():
    assert kinds("openai/gpt-oss-20b")[:2] == [(128, "Experts"), (None, "Experts")]
    assert [window for window, _ in kinds("google/gemma-3-27b-it")[:7]] == [1024] * 5 + [None, 1024]
    assert [window for window, _ in kinds("meta-llama/Llama-4-Scout-17B-16E-Instruct")[:4]] == [8192] * 3 + [None]
    assert [mlp for _, mlp in kinds("meta-llama/Llama-4-Maverick-17B-128E-Instruct")[:4]] == ["Mlp", "Experts"] * 2
    assert [mlp for _, mlp in kinds("deepseek-ai/DeepSeek-V3")].count("Mlp") == 3
    assert [mlp for _, mlp in kinds("zai-org/GLM-4.5")][:4] == ["Mlp"] * 3 + ["Experts"]


def test_norms_of_gemma_stand_before_and_behind_both_blocks():
    operations = {op.name: op for op in architecture("Gemma2ForCausalLM").step(model_config("google/gemma-2-9b"), Shard())}
    norms = ("input_norm", "post_attention_norm", "pre_feedforward_norm", "post_feedforward_norm")
    assert [(operations[name].count, operations[name].sizes["residual"]) for name in norms] == [(42, True), (42, False)] * 2
    assert {"embedding_scale", "logits_soft_cap", "gelu_mul", "sliding_attention", "attention"} <= set(operations)


# ---- formats -----------------------------------------------------------------------------------------------------

KIMI = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {"group_0": {"input_activations": None, "weights": {"num_bits": 4, "type": "int", "strategy": "group"}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "formats", "cache"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8_block",) * 5, None),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ("fp8",) * 5, None),
        ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8_static",) * 5, None),
        ({"quant_method": "awq", "bits": 4}, ("int4_wo",) * 5, None),
        ({"quant_method": "gptq", "bits": 8}, ("int8_wo",) * 5, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, ("fp8_static",) * 5, "fp8"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.layers.30.self_attn.q_b_proj", "lm_head"]},
            (None, "nvfp4", "nvfp4", "nvfp4", "nvfp4"), None,
        ),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]},
            (None, None, "w4a16_mxfp4", "w4a16_mxfp4", "w4a16_mxfp4"), None,
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]}, ("fp8_block",) * 5, None),
        (KIMI, (None, None, None, "int4_wo", None), None),
    ],
)  # fmt: skip
def test_formats_come_from_the_config(given, formats, cache):
    found, kv_dtype = read_precision({"quantization_config": given}, 60)
    assert (found.qkv, found.o, found.mlp, found.experts, found.shared) == formats
    assert kv_dtype == cache


def test_blocks_of_another_size_are_refused():
    weights = {"num_bits": 8, "type": "float", "strategy": "block"}
    groups = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights | {"block_structure": [128, 128]}}}}
    assert read_precision({"quantization_config": groups}, 60)[0].mlp == "fp8_block"
    for size in ([64, 64], [1, 128], 128):
        for given in (
            {"quant_method": "fp8", "weight_block_size": size},
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights | {"block_structure": size}}}},
        ):
            with pytest.raises(InvalidInput, match=r"= .* is not supported; \[128, 128\] is"):
                read_precision({"quantization_config": given}, 60)


def test_a_file_beside_the_config_may_say_the_format(tmp_path):
    table = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1000,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(table))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
    config = model_config(tmp_path)
    assert (config.precision.mlp, config.kv_dtype) == ("fp8_static", "fp8")
    # Where many lie in one folder each has its own: X_config.json and X_hf_quant_config.json.
    (tmp_path / "hf_quant_config.json").unlink()
    for name in ("mine", "other"):
        (tmp_path / f"{name}_config.json").write_text(json.dumps(table))
    (tmp_path / "mine_hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}))
    assert [model_config(tmp_path / f"{name}_config.json").precision.mlp for name in ("mine", "other")] == ["nvfp4", None]
    assert model_config(tmp_path / "mine_config.json").kv_dtype == "fp8" and model_config(tmp_path).precision.mlp is None
    (tmp_path / "mine_hf_quant_config.json").write_text(json.dumps({"quantization": [1]}))
    with pytest.raises(InvalidInput, match=r"mine_hf_quant_config.json: quantization = \[1\] must be a table"):
        model_config(tmp_path / "mine_config.json")


def test_embedding_head_and_norms_keep_the_models_own_format():
    # Qwen3-8B: linear layers 36 x (4096 x 6144 + 4096 x 4096 + 3 x 4096 x 12288) = 6,945,767,424 in one byte each; the rest in two.
    config = requantised(model_config("Qwen/Qwen3-8B"), "fp8")
    linear = 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12288)
    step = architecture(config.architecture).step(config, Shard())
    assert weights_bytes(config, step) == linear + 2 * (config.num_parameters - linear)


@pytest.mark.parametrize("quant", ["fp8", "fp8_block", "int8", "int4"])
def test_narrower_weights_are_smaller_and_no_slower_to_decode(quant):
    asked = {"batch": 4, "isl": 100, "osl": 20}
    whole, narrow = (predict("Qwen/Qwen3-32B", "h100-sxm", quant=name, **asked) for name in (None, quant))
    assert narrow.memory.weights_bytes < 0.6 * whole.memory.weights_bytes
    assert narrow.decode_step_s.median < whole.decode_step_s.median


def test_a_checkpoint_in_32_bits_is_served_in_16(tmp_path):
    # google/gemma-2-9b ships as float32; SGLang, vLLM and TensorRT-LLM cast such weights when they load them.
    table = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1000,
    }  # fmt: skip
    asked = {"batch": 4, "isl": 100, "osl": 20}
    wide, narrow = (predict(table | {"torch_dtype": name}, "h100-sxm", **asked) for name in ("float32", "bfloat16"))
    assert wide.total_s == narrow.total_s
    assert wide.memory == narrow.memory
    assert wide.warnings == ("the checkpoint is in fp32; engines cast it to bf16, as is predicted",)
    assert "cast it to fp16" in predict(table | {"torch_dtype": "float32"}, "t4", **asked).warnings[0]


def test_fp16_is_for_gpus_without_bf16():
    asked = {"batch": 1, "isl": 16, "osl": 2}
    with pytest.raises(SpecError, match=r"does not compute in bf16.*--quant fp16"):
        predict("Qwen/Qwen3-8B", "t4", tp=2, **asked)
    found = predict("Qwen/Qwen3-8B", "t4", tp=2, quant="fp16", **asked)
    assert (found.model.dtype, found.inputs["kv_dtype"]) == ("fp16", "fp16")
    assert predict("facebook/opt-1.3b", "h100-sxm", quant="bf16", **asked).model.dtype == "bf16"


def test_each_quantised_product_is_fed_by_a_kernel_that_narrows_its_input():
    parts = predict("Qwen/Qwen3-8B", "h100-sxm", quant="fp8_block", batch=4, isl=64, osl=4).breakdown
    names = [part.name for part in parts if part.phase == "decode"]
    for product in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
        assert names[names.index(product) - 1] == f"{product}_quantize"
    assert "lm_head_quantize" not in names
    weight_only = {part.family for part in predict("Qwen/Qwen3-8B", "h100-sxm", quant="int4", batch=4, isl=64, osl=4).breakdown}
    assert "quantize" not in weight_only


# ---- configs that say nonsense -----------------------------------------------------------------------------------

NONSENSE = (None, "x", "", -1, 0, 1.5, True, [], [1, 2], ["x"], {}, {"a": 1}, 10**30, float("nan"), "re:(", ["re:("])
SHARED = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1000,
    "intermediate_size": 2048, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "sliding_window": 512, "layer_types": None,
    "moe_intermediate_size": 512, "num_experts_per_tok": 2, "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8,
    "n_shared_experts": 1, "shared_expert_intermediate_size": 512, "first_k_dense_replace": 1, "moe_layer_freq": 1, "mlp_only_layers": [],
    "decoder_sparse_step": 1, "no_rope_layers": [], "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "kv_lora_rank": 512,
    "q_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_embd": 1024, "n_layer": 4, "n_head": 8,
    "n_positions": 1024, "ffn_dim": 2048, "word_embed_proj_dim": 1024, "type_vocab_size": 2, "tie_word_embeddings": False,
    "use_qk_norm": True, "attention_bias": False, "rope_scaling": None, "use_sliding_window": False, "sliding_window_pattern": 6,
    "activation_function": None, "text_config": None, "quantization_config": None,
}  # fmt: skip
QUANTISED = {
    "quant_method": "compressed-tensors", "ignore": ["lm_head"], "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "bits": 4,
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"dynamic": True}}},
    "weight_block_size": None, "exclude_modules": None, "modules_to_not_convert": None, "quant_algo": None, "activation_scheme": None,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(architectures()))
def test_no_field_of_a_config_can_do_worse_than_be_refused(name):
    assert read_config({**SHARED, "architectures": [name]}, "it").num_parameters > 0
    for field in (*SHARED, "architectures"):
        for value in NONSENSE:
            with suppress(TilecastError):
                assert read_config({**SHARED, "architectures": [name], field: value}, "it").num_parameters > 0


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq", "awq", "fp8", "modelopt", "mxfp4"])
def test_no_field_of_a_quantisation_can_do_worse_than_be_refused(method):
    groups = QUANTISED["config_groups"]
    inner = [{"group_0": {**groups["group_0"], part: value}} for part in ("weights", "input_activations") for value in NONSENSE]
    changed = [(field, value) for field in QUANTISED for value in NONSENSE]
    changed += [("config_groups", value) for value in (*inner, *({"group_0": value} for value in NONSENSE))]
    for field, value in changed:
        with suppress(TilecastError):
            precision, kv_dtype = read_precision({"quantization_config": {**QUANTISED, "quant_method": method, field: value}}, 4)
            assert set(precision.names) <= set(QUANTISATIONS) and kv_dtype in (None, "fp8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9}, "num_experts_per_tok = 9 exceeds the number of experts, 8"),
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 10**9}, "of at least 1 and at most 10,000"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": 3}, "mlp_only_layers = 3 must be a list of whole numbers"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": "3"}, "first_k_dense_replace = '3' must be a whole number"),
        ({"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "gptq", "bits": "x"}}, "gptq with 'x' bits"),
    ],
)
def test_nonsense_is_named(changes, message):
    with pytest.raises(InvalidInput, match=message):
        read_config(SHARED | changes, "it")


@pytest.mark.parametrize(
    ("name", "parts", "family"),
    [
        ("BertForSequenceClassification", {}, "an encoder, .* the nearest family is bert"),
        ("GemmaForCausalLM", {}, "the nearest family is gemma2"),
        ("GPTBigCodeForCausalLM", {}, "the nearest family is gpt2"),
        ("FalconForCausalLM", {}, "a dense decoder, .* the nearest family is llama"),
        ("Qwen3NextForCausalLM", {"num_experts": 8, "linear_num_key_heads": 4}, "cannot be modelled yet; the nearest family is qwen3_moe"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "an encoder beside the decoder, of which .* cannot be modelled yet"),
        ("RwkvForCausalLM", {"attention_hidden_size": 768}, "linear-attention layers, of which .* cannot be modelled yet"),
        ("Lfm2ForCausalLM", {"conv_L_cache": 3}, "linear-attention layers, of which .* cannot be modelled yet"),
        ("MixtralXForCausalLM", {"num_local_experts": 8}, "the nearest family is mixtral"),
        ("LongcatForCausalLM", {"n_routed_experts": 8, "kv_lora_rank": 512}, "the nearest family is deepseek"),
    ],
)
def test_an_unknown_architecture_is_near_those_of_its_name_and_parts(name, parts, family):
    with pytest.raises(UnknownName, match=family):
        read_config({"architectures": [name], "hidden_size": 64, **parts}, "it")


# ---- what fits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
@pytest.mark.parametrize(("id", "tp"), [("Qwen/Qwen3-32B", 2), ("deepseek-ai/DeepSeek-V3", 8), ("openai/gpt-oss-120b", 1)])
def test_the_largest_batch_and_context_are_the_last_that_fit(id, tp, engine):
    # TensorRT-LLM leaves free a share of what weights and activations leave: it depends on the batch.
    asked = {"tp": tp, "isl": 1500, "osl": 100, "engine": engine}
    room = predict(id, "h200-sxm", batch=4, **asked).memory
    assert predict(id, "h200-sxm", batch=room.largest_batch, **asked).fits
    assert not predict(id, "h200-sxm", batch=room.largest_batch + 1, **asked).fits
    longest = room.largest_context
    limit = model_config(id).max_context
    assert predict(id, "h200-sxm", tp=tp, batch=4, isl=longest - 100, osl=100, engine=engine).fits
    assert longest == limit or not predict(id, "h200-sxm", tp=tp, batch=4, isl=longest - 99, osl=100, engine=engine).fits


def test_what_would_fit_does():
    asked = {"batch": 8, "isl": 512, "osl": 64}
    found = predict("meta-llama/Llama-3.1-405B", "h100-sxm", tp=8, **asked)
    assert not found.fits
    assert found.memory.missing_bytes == found.memory.total_bytes - found.memory.capacity_bytes > 0
    assert found.memory.would_fit
    for choice in found.memory.would_fit:
        assert predict("meta-llama/Llama-3.1-405B", "h100-sxm", **({"tp": 8} | asked | choice)).fits


@pytest.mark.parametrize(
    ("id", "gpu", "asked", "choices"),
    [
        # Two boxes of eight where one is too small: 958 GiB of weights on 16 x 80 GiB.
        ("moonshotai/Kimi-K2-Instruct", "h100-sxm", {"tp": 8, "batch": 4}, [{"pp": 2}, {"quant": "int4"}]),
        # 36 x 8 x 128 x 2 x 2 bytes a token: 4,000 requests of 5,000 tokens need terabytes, 79 GiB hold fewer.
        ("Qwen/Qwen3-8B", "h100-sxm", {"batch": 4000, "isl": 4000, "osl": 1000}, ["batch"]),
        ("Qwen/Qwen3-8B", "l4", {"batch": 1, "isl": 20_000, "osl": 20_000}, [{"tp": 2}, {"kv_dtype": "fp8"}, {"quant": "fp8"}, "isl"]),
        # Its experts of 1536 are 12 blocks, which 8 GPUs cannot share: they take whole experts.
        ("Qwen/Qwen3-235B-A22B-FP8", "rtx-pro-6000-server", {"tp": 2, "batch": 4}, [{"tp": 4}]),
        ("Qwen/Qwen3-235B-A22B-FP8", "l40s", {"tp": 4, "batch": 4}, [{"tp": 8, "ep": 8}]),
    ],
)
def test_stages_narrower_caches_smaller_batches_and_shorter_prompts_are_tried_too(id, gpu, asked, choices):
    asked = {"isl": 100, "osl": 8} | asked
    found = predict(id, gpu, **asked)
    assert not found.fits
    for choice in choices:
        assert choice in found.memory.would_fit or any(choice in each for each in found.memory.would_fit)
    for each in found.memory.would_fit:
        assert predict(id, gpu, **(asked | each)).fits


def test_stages_share_layers_and_the_fullest_decides():
    # 61 layers over 4 stages: 15, 15, 15, and 16 on the last, which has the head too.
    config = model_config("deepseek-ai/DeepSeek-V3")
    assert [len(Shard(pp=4).stage(config.layers, stage)) for stage in range(4)] == [15, 15, 15, 16]
    one, two = (predict("meta-llama/Llama-3.1-70B", "h200-sxm", tp=2, pp=pp, batch=4, isl=100, osl=10) for pp in (1, 2))
    assert 0.5 < two.memory.weights_bytes / one.memory.weights_bytes < 0.52
    sent = next(part for part in two.breakdown if part.name == "stage_send")
    assert sent.sizes["bytes"] == 400 * 2 * 8192 * 2 // 2  # hidden state and residual of 400 tokens, half from each rank
    assert two.total_s.median == pytest.approx(one.total_s.median, rel=0.05)  # one micro-batch: stages one after the other


def test_more_requests_than_a_micro_batch_takes_wait_for_one_another():
    one, two = (predict("Qwen/Qwen3-0.6B", "h200-sxm", pp=2, batch=batch, isl=16, osl=4) for batch in (1024, 2048))
    assert "pipeline_wait" not in {part.name for part in one.breakdown}
    waits = next(part for part in two.breakdown if part.name == "pipeline_wait" and part.phase == "decode")
    assert 0.3 < waits.time.median / (two.decode_s.median - waits.time.median) < 0.8  # about a stage more of two


def test_stages_beyond_a_box_need_a_network():
    with pytest.raises(InvalidInput, match="no network between such boxes is known"):
        predict("Qwen/Qwen3-32B", "rtx-4090", tp=8, pp=2, batch=1, isl=16, osl=2)
    parts = predict("deepseek-ai/DeepSeek-V3", "h100-sxm", tp=8, pp=2, batch=1, isl=16, osl=2).breakdown
    assert [part.launches_per_step for part in parts if part.name == "stage_send_network"] == [1, 1]


def test_the_time_on_each_basis_adds_up():
    found = predict("Qwen/Qwen3-30B-A3B", "h100-sxm", batch=8, isl=256, osl=32)
    assert sum(found.basis_shares.values()) == pytest.approx(1.0)
    assert list(found.basis_shares)[-1] == found.basis
    assert found.to_dict()["basis_shares"] == found.basis_shares


@pytest.mark.parametrize(
    "id", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b", "meta-llama/Llama-4-Scout-17B-16E-Instruct"]
)
@pytest.mark.parametrize(
    "split", [{"ep": 8}, {"dp_attention": 8}, {"ep": 4, "dp_attention": 2}, {"pp": 2}, {"pp": 2, "ep": 8, "dp_attention": 4}], ids=str
)  # fmt: skip
def test_every_way_to_split_runs_ragged_batches_and_holds_less(id, split):
    requests = [(900, 20), (30, 5), (400, 30), (1200, 3), (77, 12)]
    engine = "vllm" if "gpt-oss" in id else "sglang"  # which widens MXFP4 experts that are whole
    whole = predict(id, "h200-sxm", tp=4 if "Scout" in id else 8, requests=requests, engine=engine)
    split = {name: min(value, whole.tp) if name != "pp" else value for name, value in split.items()}
    found = predict(id, "h200-sxm", tp=whole.tp, requests=requests, engine=engine, **split)
    assert 0 < found.prefill_s.low < found.prefill_s.median < found.prefill_s.high
    assert found.decode_steps == 29
    assert ("hidden_gather" in {part.name for part in found.breakdown}) == ("dp_attention" in split)
    if "pp" in split:
        assert found.memory.weights_bytes < 0.6 * whole.memory.weights_bytes
    elif "dp_attention" in split:  # attention and embedding are held more than once
        assert found.memory.weights_bytes > whole.memory.weights_bytes


def test_data_parallel_attention_of_one_request_leaves_the_others_idle():
    # Two requests on eight ranks: each of two ranks has one, so attention sees a batch of one and the experts both tokens.
    parts = predict("deepseek-ai/DeepSeek-V3", "h200-sxm", tp=8, dp_attention=8, batch=2, isl=100, osl=4).breakdown
    sizes = {part.name: part.sizes for part in parts if part.phase == "decode"}
    assert (sizes["attention"]["batch"], sizes["attention"]["num_heads"], sizes["experts"]["num_tokens"]) == (1, 128, 2)


def test_a_model_with_an_image_encoder_says_that_only_its_language_part_is_counted():
    asked = {"batch": 1, "isl": 16, "osl": 2}
    for id in ("Qwen/Qwen3-VL-8B-Instruct", "google/gemma-3-27b-it", "moonshotai/Kimi-K2.5"):
        assert any("only the language model" in warning for warning in predict(id, "h200-sxm", **asked).warnings), id
    assert not predict("Qwen/Qwen3-8B", "h200-sxm", **asked).warnings


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("openai/gpt-oss-20b", "head_dim"), ("openai/gpt-oss-20b", "sliding_window"), ("Qwen/Qwen3-30B-A3B", "head_dim"),
        ("Qwen/Qwen3-30B-A3B", "num_key_value_heads"), ("deepseek-ai/DeepSeek-V3", "first_k_dense_replace"),
        ("deepseek-ai/DeepSeek-V3", "n_shared_experts"), ("deepseek-ai/DeepSeek-V3", "q_lora_rank"),
        ("mistralai/Mixtral-8x7B-v0.1", "num_key_value_heads"),
    ],
)  # fmt: skip
def test_a_field_that_models_of_a_family_differ_in_is_asked_for_and_not_guessed(model: str, field: str) -> None:
    table = dict(config_table(model))
    del table[field]
    with pytest.raises(InvalidInput, match=f"{field} is missing; .* models differ in it"):
        model_config(table)


def test_ranks_with_requests_of_their_own_keep_whole_what_fp8_blocks_cannot_be_cut_into():
    asked = {"tp": 32, "ep": 32, "batch": 64, "isl": 100, "osl": 4}
    parts = predict("deepseek-ai/DeepSeek-V3", "gb200", dp_attention=32, **asked).breakdown
    sizes = {part.name: part.sizes for part in parts if part.phase == "decode"}
    # 18,432 columns are 144 blocks and 2,048 are 16, which 32 ranks cannot share: two own tokens a rank through all of them.
    assert (sizes["gate_up_proj"]["m"], sizes["gate_up_proj"]["n"]) == (2, 2 * 18_432)
    assert (sizes["shared_down_proj"]["m"], sizes["shared_down_proj"]["k"]) == (2, 2_048)
    assert "mlp_all_reduce" not in sizes
    with pytest.raises(InvalidInput, match="through a 128-wide fp8 block"):
        predict("deepseek-ai/DeepSeek-V3", "gb200", dp_attention=16, **asked)
