"""The modules that `tilecast step` traces: every family in every format, its FLOP and its weights."""

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch: pip install 'tilecast[torch]'")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tilecast.errors import InvalidInput  # noqa: E402
from tilecast.workloads.aten import matrix_flop  # noqa: E402
from tilecast.workloads.divided import undivided  # noqa: E402
from tilecast.workloads.expert_parallel import expert_parallel  # noqa: E402
from tilecast.workloads.model import config_table, model_config, model_ids  # noqa: E402
from tilecast.workloads.step_models import DTYPES, facts, model_graph, resolved  # noqa: E402
from tilecast.workloads.tensor_parallel import tensor_parallel  # noqa: E402
from tilecast.workloads.tracing.bundled import FORMATS, traced_model  # noqa: E402
from tilecast.workloads.tracing.modules.base import Asked  # noqa: E402
from tilecast.workloads.tracing.modules.family import networks  # noqa: E402
from tilecast.workloads.tracing.wrapped import weightless  # noqa: E402

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")


def few_layers(config, number=2):
    return {**config, **{name: number for name in LAYERS if name in config}}


# A bundled config of every architecture, with one layer of each kind.
CONFIGS = {str(table["architectures"][0]): few_layers(table) for table in reversed(facts().values())}
BUNDLED = {str(config_table(id)["architectures"][0]): id for id in model_ids()}
DECODERS = [
    "Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration", "Phi3ForCausalLM", "MixtralForCausalLM",
    "Qwen2MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "Llama4ForConditionalGeneration", "MiniMaxM2ForCausalLM",
]  # fmt: skip
KINDS = {"Gemma2ForCausalLM": 2, "Gemma3ForConditionalGeneration": 2, "DeepseekV3ForCausalLM": 2, "GptOssForCausalLM": 2}
KINDS |= {"Llama4ForConditionalGeneration": 4}
CONFIGS |= {name: few_layers(config_table(BUNDLED[name]), KINDS.get(name, 1)) for name in DECODERS}
CONFIGS["DeepseekV3ForCausalLM"]["first_k_dense_replace"] = 1  # of its two layers one is dense and one has experts


def runs(config, mode, dtype, attention, seq=256):
    """A step with tensors that hold nothing, as it is traced: a product of two formats fails here as it does on a GPU."""
    family = networks()[config["architectures"][0]]
    asked = Asked(mode=mode, attention=attention, batch=2, seq=seq)
    training = mode == "training"
    with torch.device("meta"):
        module = family.build(config, asked).to(FORMATS[dtype])
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "amp")
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(training), autocast:
        module = weightless(module).train(training)
        outputs = module(*family.inputs(asked))
        if training:
            family.loss()(outputs).backward()
            assert attention != "eager" or all(weight.grad is not None for weight in module.parameters())
    return (outputs if isinstance(outputs, tuple) else (outputs,))[0]


def test_tf32_is_fp32_to_a_module():
    assert {dtype for dtype in DTYPES if FORMATS[dtype] == torch.float32} == {"fp32", "tf32", "amp"}  # and amp runs under autocast


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "tf32"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_runs_in_every_format(name, dtype):
    for mode, attention in (("training", "eager"), ("training", "sdpa")):  # which run the forward pass of inference
        logits = runs(CONFIGS[name], mode, dtype, attention)
        assert logits.dtype == (torch.bfloat16 if dtype == "amp" else FORMATS[dtype]), (mode, attention)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_switch_routes_in_fp32_and_works_in_bf16(mode):
    config = few_layers(facts()["Switch-XL-4"])
    graph = traced_model("switch", config, mode=mode, batch=1, seq=8, dtype="bf16", attention="eager")
    routers = [node for node in graph.nodes() if node.op == "aten._softmax" and node.outputs[0].shape[-1] == config["num_experts"]]
    assert [node.outputs[0].dtype for node in routers] == ["fp32"] * 2
    products = {tensor.dtype for node in graph.nodes() if node.op == "aten.mm" for tensor in node.inputs if config["d_ff"] in tensor.shape}
    assert products == {"bf16"}


# ---- decoders of our own ------------------------------------------------------------------------------------------


def flop(graph):
    return sum(matrix_flop(node) * times for node, times in graph.counted().items())


def traced(config, mode="inference", attention="eager", **sizes):
    return traced_model("model", config, mode=mode, dtype="bf16", attention=attention, **{"batch": 2, "seq": 32} | sizes)


@cache
def flop_of(name, mode="inference", attention="eager"):
    return flop(traced(CONFIGS[name], mode, attention))


@pytest.mark.parametrize("name", sorted(set(BUNDLED) & set(networks()) - {"BertLMHeadModel"}))
def test_a_module_has_the_weights_of_its_config(name):
    config = config_table(BUNDLED[name])
    with torch.device("meta"):
        module = networks()[name].build(config, Asked(mode="inference", attention="eager", batch=1, seq=2048))
    chooses_by = sum(buffer.numel() for path, buffer in module.named_buffers() if path.endswith("correction"))
    assert sum(weight.numel() for weight in module.parameters()) + chooses_by == model_config(BUNDLED[name]).num_parameters


def test_every_bundled_model_that_is_known_has_a_module():
    assert all(any(name in networks() for name in config_table(id)["architectures"]) for id in model_ids())


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "training") for name in ("Qwen3ForCausalLM", "Gemma2ForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM")),
        *(("Qwen2MoeForCausalLM", mode) for mode in ("inference", "training")),  # others: a training step holds the forward pass
    ],
)
def test_flop_of_a_decoder_are_those_that_pytorch_counts(name, mode):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        runs(CONFIGS[name], mode, "bf16", "eager", seq=32)
    assert flop_of(name, mode) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "DeepseekV3ForCausalLM", "BertForPreTraining", "MPTForCausalLM"])
def test_model_flop_do_not_depend_on_the_kind_of_attention(name):
    # Each product of the forward pass has two gradients; a fused kernel works the scores out once more, which is recomputation.
    eager, sdpa = (flop_of(name, "training", attention) for attention in ("eager", "sdpa"))
    assert sdpa == eager
    if name != "BertForPreTraining":  # our BERT-Large has another head in inference
        assert eager == 3 * flop_of(name)


@pytest.mark.parametrize("seq", [1, 7, 32])  # 2 x 7 x 8 visits: fewer than the 128 experts; 2 x 1 x 8 are 16
def test_experts_multiply_every_visit_once(seq):
    config = few_layers(config_table("Qwen/Qwen3-30B-A3B"), 1)
    graph = traced(config, seq=seq, attention="sdpa")
    # Three matrices of 2,048 x 768 for each of the eight visits of 2 x seq tokens.
    assert sum(matrix_flop(node) for node in graph.nodes() if node.op == "aten.bmm") == 2 * 3 * 2048 * 768 * 8 * 2 * seq


def test_windows_shorter_than_the_text_are_masked():
    config = {**few_layers(config_table("google/gemma-3-1b-it"), 3), "sliding_window": 16, "sliding_window_pattern": 2}
    attended = [node for node in traced(config, attention="sdpa").nodes() if "scaled_dot_product" in node.op]
    assert [dict(node.options)["is_causal"] for node in attended] == [False, True, False]  # every other one sees everything
    longer = [node for node in traced({**config, "sliding_window": 32}, attention="sdpa").nodes() if "scaled_dot_product" in node.op]
    assert all(dict(node.options)["is_causal"] for node in longer)


@pytest.mark.parametrize(("model", "seq"), [("mistralai/Mixtral-8x7B-v0.1", 64), ("Qwen/Qwen1.5-MoE-A2.7B", 64)])
def test_grouped_experts_are_divided_by_tensor_and_expert_parallelism(model, seq):
    config = few_layers(config_table(model), 6)
    whole = traced(config, "training", "sdpa", batch=1, seq=seq)
    for ways in (2, 4):
        spread = expert_parallel(undivided(whole), ways)
        assert flop(spread.graph) == pytest.approx(flop(whole), rel=1e-3)
        held = [
            sum(tensor.numel * times for tensor, times in graph.parameters if len(tensor.shape) == 3) for graph in (whole, spread.graph)
        ]
        assert held[1] == spread.expert_numel == held[0] // ways
        divided = tensor_parallel(undivided(whole), ways)
        assert ways * flop(divided.graph) == pytest.approx(flop(whole), rel=0.01)  # the router is whole on each
        assert divided.sums[0] == (3 if "Qwen" in model else 2)  # a shared expert has its own
    described = model_config(model).layers[0].mlp
    # Every visit is a token of `hidden` numbers of two bytes.
    assert expert_parallel(undivided(whole), 2).exchanged_bytes == described.topk * seq * model_config(model).hidden_size * 2


GROUPED = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 32,
    "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 2048, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def saved_by_a_layer(graph):
    (layer,) = (segment for segment in graph.segments if segment.repeat > 1 and segment.nodes[0].phase == "forward")
    return sum(node.allocated_bytes - node.freed_bytes for node in layer.nodes)


def shapes_of(graph, op, phase):
    return {node.outputs[0].shape for node in graph.nodes() if (node.op, node.phase) == (op, phase)}


def test_keys_that_queries_share_are_divided_with_them():
    # 4 heads of keys, each for 4 queries: of 2 GPUs each has 2 heads for 8 queries, of 4 one for 4.
    whole = traced(GROUPED, "training", "flash", batch=1, seq=128)
    for ways, heads in ((2, 2), (4, 1)):
        part = tensor_parallel(undivided(whole), ways, sequence_parallel=True).graph
        assert ways * saved_by_a_layer(part) == saved_by_a_layer(whole)  # with the logarithms of softmax's sums: nothing is whole
        assert (1, heads, 4, 128, 32) in shapes_of(part, "aten.clone", "forward")  # written out for every query
        assert (1, heads, 1, 128, 32) in shapes_of(part, "aten.sum", "backward")  # and its gradient added up
        assert (1, heads, 128, 32) in shapes_of(part, "aten.add", "forward")  # turned by their positions
        assert (128, 32 * heads) in shapes_of(part, "aten.mm", "forward")


def test_a_gpu_has_at_least_one_head_of_keys():
    # 8 GPUs have 2 of 16 queries each, and one of the 4 heads of keys, which two of them share: 32 of its 128 columns.
    part = tensor_parallel(undivided(traced(GROUPED, "training", "flash", batch=1, seq=128)), 8, sequence_parallel=True).graph
    assert (1, 1, 2, 128, 32) in shapes_of(part, "aten.clone", "forward")
    assert (1, 1, 128, 32) in shapes_of(part, "aten.add", "forward")
    assert (32, 512) in {tensor.shape for tensor, _ in part.parameters}
    assert shapes_of(part, "aten.rsqrt", "forward") == {(1, 16, 1)}  # 128 tokens are no width of 128
    with pytest.raises(InvalidInput, match="tp = 32 must divide the 16 attention heads"):
        tensor_parallel(undivided(traced(GROUPED, "training", "flash", batch=1, seq=128)), 32)


@pytest.mark.parametrize(("ways", "heads"), [(2, 8 + 2), (4, 4 + 2), (8, 2 + 2)])
def test_queries_keys_and_values_of_one_layer_are_divided_by_heads(ways, heads):
    # Phi-3 makes them in one product: of 16 queries a GPU has its part, of 2 heads of keys and of values at least one each.
    config = {**CONFIGS["Phi3ForCausalLM"], **{name: GROUPED[name] for name in GROUPED if name != "architectures"}}
    config |= {"num_key_value_heads": 2, "num_hidden_layers": 2}
    part = tensor_parallel(undivided(traced(config, "training", "flash", batch=1, seq=128)), ways).graph
    assert (32 * heads, 512) in {tensor.shape for tensor, _ in part.parameters}
    given = {tensor.shape for node in part.nodes() if node.op == "aten.cat" and node.phase == "backward" for tensor in node.inputs}
    assert (1, 128, 32) in given and (1, 128, 2 * 32) not in given


@pytest.mark.parametrize(
    ("model", "reason"), [("openai/gpt-oss-20b", "both are 2880 wide"), ("deepseek-ai/DeepSeek-V2-Lite", "4096 x 512")]
)
def test_what_tensor_parallelism_does_to_a_model_is_known_or_refused(model, reason):
    graph = traced(few_layers(config_table(model)))
    with pytest.raises(InvalidInput, match=f"tp .*{reason}"):
        tensor_parallel(undivided(graph), 2)


def test_an_unknown_architecture_names_the_nearest_family_and_all_that_are_known():
    config = {**CONFIGS["Qwen3ForCausalLM"], "architectures": ["Qwen9ForCausalLM"]}
    with pytest.raises(
        InvalidInput, match=r"no module for 'Qwen9ForCausalLM'; the nearest family is qwen.*Qwen3ForCausalLM.*tilecast.trace"
    ):
        model_graph(config, mode="inference", batch=1, seq=8, dtype="bf16")


def test_a_bundled_id_without_facts_of_its_own_is_the_model_we_have():
    assert resolved("google/switch-xl-4") == resolved("Switch-XL-4")


def test_attention_with_narrower_values_and_its_gradients_are_those_of_plain_operators() -> None:
    from tilecast.workloads.tracing.modules.latent import latent_attention

    torch.manual_seed(0)
    given = [torch.randn(2, 3, 7, width, requires_grad=True) for width in (6, 6, 4)]
    query, key, value = given
    scores = (query @ key.transpose(-1, -2)) * 6**-0.5
    plain = torch.softmax(scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), float("-inf")), -1) @ value
    weight = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weight).sum(), given)
    fused = latent_attention(query, key, value)
    found = torch.autograd.grad((fused * weight).sum(), given)
    torch.testing.assert_close(fused, plain)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
