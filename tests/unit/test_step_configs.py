"""Configs that say nonsense, to `step` and to `predict`: one sentence with the field, its value and what would do."""

import json
from math import isfinite
from typing import Any

import pytest

from tests.unit.command_line import Tilecast
from tilecast import predict
from tilecast.errors import TilecastError

torch = pytest.importorskip("torch", reason="modules need the extra 'torch'")

from tilecast.workloads.tracing.bundled import built, traced_model  # noqa: E402
from tilecast.workloads.tracing.modules.base import Asked  # noqa: E402

NONSENSE = (None, "abc", "", [], [5], ["x"], {}, {"a": 1}, -1, 0, 3, 1.5, True, 2**40, 10**30, float("nan"), float("inf"))
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_scaling": None, "rope_theta": 1e4, "attention_bias": False,
    "sliding_window": None, "quantization_config": None, "text_config": None, "_name_or_path": "x", "hidden_act": "silu",
}  # fmt: skip
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": None, "n_positions": 1024, "n_ctx": 1024,
    "vocab_size": 100, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "torch_dtype": "float16",
}  # fmt: skip
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 128, "num_hidden_layers": 2,
    "vocab_size": 100, "max_position_embeddings": 2048, "word_embed_proj_dim": 64, "do_layer_norm_before": True,
    "_remove_final_layer_norm": False, "torch_dtype": "float16", "activation_function": "relu",
}  # fmt: skip
BERT: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"], "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2,
    "vocab_size": 100, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}  # fmt: skip
CONFIGS = {"llama": LLAMA, "gpt2": GPT2, "opt": OPT, "bert": BERT}


@pytest.mark.parametrize("family", CONFIGS)
def test_no_field_can_do_worse_than_be_refused_by_a_module(family):
    asked = Asked(mode="training", attention="eager", batch=2, seq=16)
    built("it", CONFIGS[family], asked, torch.bfloat16)
    for field in CONFIGS[family]:
        for value in NONSENSE:
            try:
                built("it", {**CONFIGS[family], field: value}, asked, torch.bfloat16)
            except TilecastError as problem:
                assert str(problem).startswith("it: ") and "\n" not in str(problem)
                assert field in str(problem) or "no module for" in str(problem)


@pytest.mark.parametrize("family", [name for name in CONFIGS if name != "bert"])
def test_no_field_can_do_worse_than_be_refused_by_predict(family):
    for field in CONFIGS[family]:
        for value in NONSENSE:
            try:
                found = predict({**CONFIGS[family], field: value}, "h100-sxm", batch=1, isl=8, osl=2)
            except TilecastError:
                continue
            times_s = [each for time in (found.ttft_s, found.tpot_s, found.total_s) for each in (time.low, time.median, time.high)]
            assert all(isfinite(each) and each > 0 for each in times_s), (field, value, times_s)


@pytest.mark.parametrize(
    ("family", "changed", "sentence"),
    [
        ("llama", {"architectures": None}, "architectures is missing; it names the model family, e.g. LlamaForCausalLM"),
        ("llama", {"architectures": [5]}, "architectures = [5] must be a list of names, e.g. ['LlamaForCausalLM']"),
        ("llama", {"architectures": 0}, "architectures = 0 must be a list of names, e.g. ['LlamaForCausalLM']"),
        ("llama", {"architectures": "LlamaForCausalLM"}, "architectures = 'LlamaForCausalLM' must be a list of names"),
        ("llama", {"rms_norm_eps": "abc"}, "rms_norm_eps = 'abc' must be a number of at least 0"),
        ("llama", {"rms_norm_eps": [5]}, "rms_norm_eps = [5] must be a number of at least 0"),
        ("llama", {"rms_norm_eps": -1}, "rms_norm_eps = -1 must be a number of at least 0"),
        ("llama", {"tie_word_embeddings": "abc"}, "tie_word_embeddings = 'abc' must be true or false"),
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads = 4 must be a multiple of num_key_value_heads = 3"),
        ("llama", {"head_dim": 3}, "head_dim = 3 must be even"),
        ("llama", {"max_position_embeddings": -5}, "max_position_embeddings = -5 must be a whole number of at least 1"),
        ("bert", {"hidden_size": 2**40}, "hidden_size = 1,099,511,627,776 makes weights of more elements than a tensor can hold"),
        ("gpt2", {"activation_function": "geglu"}, "activation_function = 'geglu' must be one of gelu, gelu_new, "),
        ("bert", {"hidden_act": 3}, "hidden_act = 3 must be one of gelu, "),
        ("gpt2", {"resid_pdrop": 1.5}, "resid_pdrop = 1.5 must be a share below 1"),
        ("opt", {"dropout": "abc"}, "dropout = 'abc' must be a number of at least 0"),
        ("gpt2", {"n_positions": "abc"}, "n_positions = 'abc' must be a whole number of at least 1"),
        ("gpt2", {"n_head": 5}, "n_embd = 64 must be a multiple of n_head = 5"),
        ("opt", {"num_attention_heads": 5}, "hidden_size = 64 must be a multiple of num_attention_heads = 5"),
        ("bert", {"num_attention_heads": 5}, "hidden_size = 64 must be a multiple of num_attention_heads = 5"),
    ],
)
def test_a_wrong_field_is_one_sentence_and_exit_code_2(tilecast: Tilecast, tmp_path, family, changed, sentence):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS[family], **changed}))
    refused = tilecast("step", str(tmp_path), "--gpu", "h100-sxm", "--mode", "inference", "--batch", "1", "--seq", "16", "--dtype", "bf16")
    assert (refused.code, refused.out) == (2, "")
    assert sentence in refused.err and refused.err.count("\n") == 1


def test_a_field_that_is_null_is_one_that_was_left_out(tilecast: Tilecast, tmp_path):
    asked = ["--gpu", "h100-sxm", "--mode", "inference", "--batch", "1", "--seq", "16", "--dtype", "bf16", "--json"]
    times = []
    for changed in ({}, {"rms_norm_eps": None, "tie_word_embeddings": None, "max_position_embeddings": None}):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changed}))
        times.append(tilecast("step", str(tmp_path), *asked).json["step_s"])
    assert times[0] == times[1]


def operators(config: dict[str, Any]) -> set[str]:
    graph = traced_model("it", config, mode="training", batch=2, seq=16, dtype="fp32", attention="eager")
    return {node.op for node in graph.nodes() if node.phase == "forward"}


@pytest.mark.parametrize(
    ("family", "field", "value", "run", "gone"),
    [
        ("gpt2", "activation_function", "relu", "aten.relu", "aten.tanh"), ("bert", "hidden_act", "silu", "aten.silu", "aten.gelu"),
        ("opt", "activation_function", "gelu", "aten.gelu", "aten.relu"),
    ],
)  # fmt: skip
def test_the_activation_is_the_configs(family, field, value, run, gone):
    assert run not in operators(CONFIGS[family]) and gone in operators(CONFIGS[family])
    changed = operators({**CONFIGS[family], field: value})
    assert run in changed and (gone not in changed or gone == "aten.tanh")


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gpt2", ("attn_pdrop", "resid_pdrop", "embd_pdrop")), ("bert", ("attention_probs_dropout_prob", "hidden_dropout_prob")),
        ("opt", ("dropout", "attention_dropout")),
    ],
)  # fmt: skip
def test_dropping_nothing_launches_nothing(family, fields):
    assert "aten.native_dropout" in operators(CONFIGS[family])
    assert "aten.native_dropout" not in operators(CONFIGS[family] | dict.fromkeys(fields, 0.0))
