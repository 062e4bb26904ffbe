"""Heads of `tilecast step`: the end of a class name in `architectures` says which, its weights and products are counted by hand."""

import json
from typing import Any

import pytest

from tests.unit.command_line import Tilecast
from tilecast.errors import InvalidInput
from tilecast.workloads.opgraph import OpGraph

torch = pytest.importorskip("torch", reason="needs the extra torch: pip install 'tilecast[torch]'")

from tilecast.workloads.aten import matrix_flop  # noqa: E402
from tilecast.workloads.divided import undivided  # noqa: E402
from tilecast.workloads.tensor_parallel import tensor_parallel  # noqa: E402
from tilecast.workloads.tracing.bundled import HEADLESS, traced_model  # noqa: E402
from tilecast.workloads.tracing.modules.base import Asked  # noqa: E402
from tilecast.workloads.tracing.modules.family import networks  # noqa: E402

# 64 wide, 2 layers, 100 words; texts of 16 tokens, two at once.
WIDTH, WORDS, BATCH, SEQ = 64, 100, 2, 16
ENCODER: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100,
    "max_position_embeddings": 40,
}  # fmt: skip
DISTILBERT = {"dim": 64, "n_heads": 4, "hidden_dim": 128, "n_layers": 2, "vocab_size": 100, "max_position_embeddings": 40}
LLAMA: dict[str, Any] = {
    **ENCODER, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "sliding_window": None,
}  # fmt: skip
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 40, "vocab_size": 100}
OPT = {**ENCODER, "ffn_dim": 128}
MPT = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100}
EXPERTS = {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "Bert": ENCODER, "Roberta": ENCODER, "XLMRoberta": ENCODER, "DistilBert": DISTILBERT, "GPT2": GPT2, "Llama": LLAMA, "Qwen3": LLAMA,
    "Phi3": LLAMA, "Gemma2": LLAMA, "GptOss": EXPERTS, "OPT": OPT, "Mpt": MPT,
}  # fmt: skip
PREFIXES_WITH_ENCODERS = ("Bert", "Roberta", "XLMRoberta", "DistilBert")


def traced(name: str, config: dict[str, Any], mode: str = "inference", **changed: Any) -> OpGraph:
    asked = {"mode": mode, "batch": BATCH, "seq": SEQ, "dtype": "fp32", "attention": "sdpa"}
    return traced_model("it", {**config, **changed, "architectures": [name]}, **asked)  # type: ignore[arg-type]


def flop(graph: OpGraph) -> float:
    return sum(matrix_flop(node) * times for node, times in graph.counted().items())


def beyond_the_body(prefix: str, ending: str, **changed: Any) -> tuple[int, float]:
    """Weights and FLOP of a forward pass that a head adds to a decoder without one."""
    head, none = (traced(prefix + end, FAMILIES[prefix], **changed) for end in (ending, "Model"))
    return head.num_parameters - none.num_parameters, flop(head) - flop(none)


@pytest.mark.parametrize("prefix", [prefix for prefix in FAMILIES if prefix not in PREFIXES_WITH_ENCODERS])
def test_a_decoders_head_follows_its_class_name(prefix):
    # 2 x 16 tokens of 64 numbers. Texts: 3 scores for every token, no bias. Tokens: 3 with a bias. Answers: 2, with a bias.
    assert beyond_the_body(prefix, "ForSequenceClassification", num_labels=3) == (3 * 64, 2 * 32 * 64 * 3)
    assert beyond_the_body(prefix, "ForTokenClassification", num_labels=3) == (3 * 64 + 3, 2 * 32 * 64 * 3)
    assert beyond_the_body(prefix, "ForQuestionAnswering", num_labels=3) == (2 * 64 + 2, 2 * 32 * 64 * 2)
    # A language model has 100 scores for every token, by the table of words where that is tied.
    language = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    untied = prefix not in ("GPT2", "OPT", "Mpt")
    assert beyond_the_body(prefix, language) == (100 * 64 if untied else 0, 2 * 32 * 64 * 100)


POOLER = 64 * 64 + 64
TRANSFORM = 64 * 64 + 64 + 2 * 64  # a layer and a norm; logits by the table of words, with a bias
ENCODERS = [
    # Class, weights of the head, rows x columns of its products by 64: the first token of two texts, or all 32.
    ("BertModel", POOLER, 2 * 64), ("BertForSequenceClassification", POOLER + 3 * 65, 2 * (64 + 3)),
    ("BertForTokenClassification", 3 * 65, 32 * 3), ("BertForQuestionAnswering", 2 * 65, 32 * 2),
    ("BertForMaskedLM", TRANSFORM + 100, 32 * (64 + 100)), ("BertLMHeadModel", TRANSFORM + 100, 32 * (64 + 100)),
    ("BertForNextSentencePrediction", POOLER + 2 * 65, 2 * (64 + 2)),
    ("BertForPreTraining", POOLER + 2 * 65 + TRANSFORM + 100, 2 * (64 + 2) + 32 * (64 + 100)),
    ("RobertaModel", POOLER, 2 * 64), ("RobertaForSequenceClassification", POOLER + 3 * 65, 2 * (64 + 3)),
    ("XLMRobertaForTokenClassification", 3 * 65, 32 * 3), ("CamembertForQuestionAnswering", 2 * 65, 32 * 2),
    ("RobertaForMaskedLM", TRANSFORM + 100, 32 * (64 + 100)), ("DistilBertModel", 0, 0),
    ("DistilBertForSequenceClassification", POOLER + 3 * 65, 2 * (64 + 3)), ("DistilBertForTokenClassification", 3 * 65, 32 * 3),
    ("DistilBertForQuestionAnswering", 2 * 65, 32 * 2), ("DistilBertForMaskedLM", TRANSFORM + 100, 32 * (64 + 100)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "weights", "products"), ENCODERS)
def test_an_encoders_head_follows_its_class_name(name, weights, products):
    distilled = name.startswith("DistilBert")
    types = 0 if distilled else 2 if name.startswith("Bert") else 1
    # A layer: four of 64 x 64 and two of 64 x 128 with biases, two norms. Tables of 100 words, 40 positions and the types, and a norm.
    layer = 4 * 64 * 65 + 64 * 128 + 128 + 128 * 64 + 64 + 4 * 64
    body = 2 * layer + (100 + 40 + types + 2) * 64
    graph = traced(name, DISTILBERT if distilled else ENCODER, num_labels=3)
    assert graph.num_parameters == body + weights
    # Per token and layer 4 x 64 x 64 + 2 x 64 x 128; scores and their mix are 2 x 2 texts x 16 x 16 x 64.
    assert flop(graph) == 2 * 2 * (32 * (4 * 64 * 64 + 2 * 64 * 128) + 2 * 2 * 16 * 16 * 64) + 2 * 64 * products


T5: dict[str, Any] = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12, "num_layers": 12, "vocab_size": 32128}
FLAN_T5 = {**T5, "d_ff": 2048, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12}
DISTILLED = {"dim": 768, "n_heads": 12, "hidden_dim": 3072, "n_layers": 6, "max_position_embeddings": 512, "vocab_size": 30522}


@pytest.mark.parametrize(
    ("name", "config", "published"),
    [
        ("BertForMaskedLM", {**BASE, "vocab_size": 30522, "max_position_embeddings": 512}, 109_514_298),
        ("RobertaForMaskedLM", {**BASE, "vocab_size": 50265, "max_position_embeddings": 514}, 124_697_433),
        ("XLMRobertaForMaskedLM", {**BASE, "vocab_size": 250002, "max_position_embeddings": 514}, 278_295_186),
        ("DistilBertForMaskedLM", DISTILLED, 66_985_530),
        ("T5ForConditionalGeneration", T5, 222_903_552),
        ("T5ForConditionalGeneration", FLAN_T5, 247_577_856),
    ],
)
def test_families_of_encoders_have_the_weights_that_hugging_face_counts(name, config, published):
    with torch.device("meta"):
        module = networks()[name].build(config, Asked(mode="inference", attention="eager", batch=1, seq=16))
    assert sum(weight.numel() for weight in module.parameters()) == published


@pytest.mark.parametrize(
    ("labels", "number"),
    [({}, 2), ({"num_labels": 5}, 5), ({"id2label": {"0": "a", "1": "b", "2": "c"}}, 3), ({"num_labels": 4, "id2label": {"0": "a"}}, 4)],
)
def test_labels_are_counted_or_named(labels, number):
    graph = traced("LlamaForSequenceClassification", LLAMA, **labels)
    assert graph.num_parameters - traced("LlamaModel", LLAMA).num_parameters == number * 64


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"num_labels": 0}, "num_labels = 0 must be a whole number of at least 1"), ({"num_labels": "x"}, "num_labels = 'x' must be"),
        ({"id2label": []}, r"id2label = \[\] must name at least one label"), ({"id2label": 3}, "id2label = 3 must name at least one"),
        ({"classifier_dropout": 2}, "classifier_dropout = 2.0 must be a share below 1"),
    ],
)  # fmt: skip
def test_labels_that_say_nonsense_are_refused_by_name(labels, sentence):
    with pytest.raises(InvalidInput, match=f"it: {sentence}"):
        traced("BertForSequenceClassification", ENCODER, **labels)


@pytest.mark.parametrize(
    ("name", "config", "shapes"),
    [
        ("LlamaForCausalLM", LLAMA, [(32, 100)]), ("LlamaForSequenceClassification", LLAMA, [(2, 3)]),
        ("GPT2ForTokenClassification", GPT2, [(32, 3)]), ("BertForQuestionAnswering", ENCODER, [(2, 16), (2, 16)]),
        ("BertForPreTraining", ENCODER, [(32, 100), (2, 2)]), ("BertForSequenceClassification", ENCODER, [(2, 3)]),
    ],
)  # fmt: skip
def test_the_loss_of_training_is_cross_entropy_over_what_the_head_chooses_from(name, config, shapes):
    # Words or labels of every token, labels of a text, or the place of an answer's beginning and of its end among the 16 tokens.
    graph = traced(name, config, "training", num_labels=3)
    assert [node.outputs[0].shape for node in graph.nodes() if node.op == "aten._log_softmax"] == shapes
    assert HEADLESS not in graph.notes


@pytest.mark.parametrize(
    ("name", "config"), [("LlamaModel", LLAMA), ("GPT2Model", GPT2), ("BertModel", ENCODER), ("DistilBertModel", DISTILBERT)]
)
def test_a_model_without_a_head_trains_on_the_mean_of_its_output_and_says_so(name, config):
    graph = traced(name, config, "training")
    assert not any("log_softmax" in node.op for node in graph.nodes()) and graph.notes == (HEADLESS,)
    assert "aten.mean" in {node.op for node in graph.nodes() if node.phase == "loss"}
    assert flop(graph) == 3 * flop(traced(name, config))  # every product has two gradients
    assert traced(name, config).notes == ()


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification", "RobertaForQuestionAnswering"])
def test_a_head_is_the_same_in_inference_and_training(name):
    assert flop(traced(name, ENCODER, "training")) == 3 * flop(traced(name, ENCODER))


def test_roberta_has_as_many_positions_as_come_behind_its_padding():
    # Of 18 rows two lie up to the id of padding, 1: texts of 16 tokens are the longest.
    traced("RobertaForMaskedLM", {**ENCODER, "max_position_embeddings": 18})
    with pytest.raises(InvalidInput, match="seq = 16 is beyond its positions: max_position_embeddings = 17 less 2"):
        traced("RobertaForMaskedLM", {**ENCODER, "max_position_embeddings": 17})


SMALL_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_layers": 6, "vocab_size": 100}
GATED_T5 = {**SMALL_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


@pytest.mark.parametrize(("config", "matrices"), [(SMALL_T5, 2), (GATED_T5, 3)])
def test_t5_reads_one_text_and_writes_another_of_the_same_length(config, matrices):
    # Per token and layer: 4 matrices of 64 x 64 in each attention, 2 or 3 of 64 x 128; attention over 2 texts, 16 x 16 pairs, 64 wide.
    attention, mlp = 32 * 4 * 64 * 64 + 2 * 2 * 16 * 16 * 64, 32 * matrices * 64 * 128
    encoder, decoder = 2 * 6 * (attention + mlp), 2 * 6 * (2 * attention + mlp)
    assert flop(traced("T5EncoderModel", config)) == encoder
    assert flop(traced("T5Model", config)) == encoder + decoder
    graph = traced("T5ForConditionalGeneration", config, "training")
    assert flop(graph) == 3 * (encoder + decoder + 2 * 32 * 64 * 100)
    assert HEADLESS not in graph.notes and HEADLESS in traced("T5EncoderModel", config, "training").notes


def test_t5_with_an_activation_nobody_knows_is_refused_by_name():
    with pytest.raises(InvalidInput, match="it: feed_forward_proj = 'odd' must be one of gelu"):
        traced("T5Model", {**SMALL_T5, "feed_forward_proj": "gated-odd"})


def test_an_unknown_head_of_a_known_family_names_those_it_has():
    with pytest.raises(InvalidInput) as refused:
        traced("BertForMultipleChoice", ENCODER)
    assert "no module for 'BertForMultipleChoice'" in str(refused.value) and "BertForQuestionAnswering" in str(refused.value)
    assert "Llama" not in str(refused.value)


def test_every_family_of_decoders_has_every_head():
    endings = "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
    decoders = [name.removesuffix("ForCausalLM") for name in networks() if name.endswith("ForCausalLM")]
    assert len(decoders) >= 20
    assert all(prefix + ending in networks() for prefix in (*decoders, "GPT2", "Bert") for ending in endings)


@pytest.mark.parametrize("ending", ["Model", "ForSequenceClassification", "ForCausalLM"])
def test_tensor_parallelism_divides_the_table_of_words_with_any_head(ending):
    graph = traced(f"Llama{ending}", LLAMA, "training", num_hidden_layers=6)
    held = {tensor.shape for tensor, _ in tensor_parallel(undivided(graph), 2).graph.parameters}
    assert (WORDS // 2, WIDTH) in held and (WORDS, WIDTH) not in held
    assert ((2, WIDTH) in held) == (ending == "ForSequenceClassification")  # two labels are not worth dividing


@pytest.mark.parametrize("options", [[], ["--tp", "2"], ["--dp", "2"], ["--fsdp", "2"], ["--runtime", "compiled"], ["--recompute"]])
@pytest.mark.parametrize("ending", ["ForSequenceClassification", "ForQuestionAnswering", "Model"])
def test_heads_are_stepped_on_one_gpu_and_on_many(tilecast: Tilecast, tmp_path, ending, options):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 6, "architectures": [f"Llama{ending}"]}))
    asked = "--gpu h100-sxm --mode training --batch 4 --seq 32 --dtype bf16 --json".split()
    assert tilecast("step", str(tmp_path), *asked, *options).json["step_s"]["median"] > 0
