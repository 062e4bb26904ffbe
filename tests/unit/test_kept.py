"""What a compiled training step keeps, against PyTorch's own partitioner on the CPU, and by hand."""

import operator

import pytest

from tilecast.workloads.fusion import compiled
from tilecast.workloads.kept import lean
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape, folded, renamed

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 896, "num_attention_heads": 4,
         "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}  # fmt: skip
GPT2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_head": 4, "n_positions": 512, "vocab_size": 512}
BERT = {"architectures": ["BertForPreTraining"], "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4,
        "max_position_embeddings": 512, "type_vocab_size": 2, "vocab_size": 512}  # fmt: skip
BATCH, SEQ = 2, 128
NARROW, WIDE, ROW = TensorShape("bf16", (8, 256)), TensorShape("fp32", (8, 256)), TensorShape("fp32", (8, 1))


def node(op, inputs, outputs, frees=(), phase="forward"):
    return Node(f"aten.{op}", phase, tuple(inputs), tuple(outputs), tuple(frees))


def kept(graph: OpGraph) -> int:
    return graph.live_bytes()["kept"]


def a_layer(bytes_of) -> float:
    """Of one layer among others."""
    return bytes_of(4) - bytes_of(3)


def with_layers(config, number):
    return {**config, "n_layer" if "n_embd" in config else "num_hidden_layers": number}


def partitioned_bytes(config, attention: str, number: int) -> int:
    """What the forward graph of inductor's partitioner hands to the backward graph; views count as the tensor they look at."""
    torch = pytest.importorskip("torch")
    from functorch.compile import aot_module, make_boxed_func, min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    from tilecast.workloads.tracing.modules.base import Asked
    from tilecast.workloads.tracing.modules.family import networks

    family = networks()[config["architectures"][0]]
    asked = Asked(mode="training", attention=attention, batch=BATCH, seq=SEQ)
    module = family.build(with_layers(config, number), asked).to(torch.bfloat16).train()
    for name, weight in module.named_parameters(remove_duplicate=False):  # tied ones are told apart: aot_module takes each once
        holder, _, last = name.rpartition(".")
        setattr(module.get_submodule(holder), last, torch.nn.Parameter(weight.detach().clone()))
    views = ("view", "permute", "alias", "expand", "slice", "t", "transpose", "unsqueeze", "squeeze", "detach", "_unsafe_view", "reshape")
    total = 0

    def base(node):
        while node.op == "call_function" and node.target is not operator.getitem and node.target.__name__.split(".")[0] in views:
            node = node.args[0]
        return node

    def forward(made, _):
        nonlocal total
        outputs = next(node for node in made.graph.nodes if node.op == "output").args[0]
        saved = {base(node) for node in outputs[1:] if hasattr(node, "meta") and hasattr(node.meta.get("val"), "shape")}
        total = sum(node.meta["val"].numel() * node.meta["val"].element_size() for node in saved if node.op != "placeholder")
        return make_boxed_func(made.forward)

    compile_with = {"partition_fn": min_cut_rematerialization_partition, "decompositions": select_decomp_table()}
    made = aot_module(module, forward, lambda graph, _: make_boxed_func(graph.forward), **compile_with)(*family.inputs(asked))
    (made if isinstance(made, torch.Tensor) else made[0]).float().sum().backward()
    return total


def traced_bytes(config, attention: str, number: int, made) -> int:
    from tilecast.workloads.tracing.bundled import traced_model

    asked = {"mode": "training", "batch": BATCH, "seq": SEQ, "dtype": "bf16", "attention": attention}
    return kept(made(traced_model("small", with_layers(config, number), **asked)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [LLAMA, GPT2, BERT], ids=["llama", "gpt2", "bert"])
def test_a_layer_keeps_what_pytorchs_partitioner_keeps(config, attention):
    pytest.importorskip("torch")
    theirs = a_layer(lambda number: partitioned_bytes(config, attention, number))
    ours = a_layer(lambda number: traced_bytes(config, attention, number, compiled))
    eager = a_layer(lambda number: traced_bytes(config, attention, number, lambda graph: graph))
    assert ours == pytest.approx(theirs, rel=0.05)
    assert ours <= eager


def test_a_wide_copy_that_pointwise_gradients_read_is_made_again_from_the_narrow_tensor():
    # A product's result in 2 bytes, its wide copy in 4 for exp's gradient. Eager PyTorch frees the first and keeps the copy and exp's
    # result: 2 x 8 x 256 x 4 = 16,384 bytes. From the narrow tensor, 4,096 bytes, both are worked out again.
    weight = TensorShape("bf16", (256, 256))
    step = (
        node("mm", (NARROW, weight), (NARROW,)),
        node("_to_copy", (NARROW,), (WIDE,), (NARROW,)),
        node("exp", (WIDE,), (WIDE,)),
        node("mul", (WIDE, WIDE), (WIDE,), (WIDE, WIDE), "backward"),
    )
    graph = OpGraph(name="made", mode="training", segments=(Segment(1, step),), parameters=())
    lighter = renamed(graph, segments=folded(lean(step)))
    assert (kept(graph), kept(lighter)) == (16_384, 4_096)
    last = list(lighter.nodes())[-1]
    assert last.inputs == (NARROW,) and last.frees == (NARROW,)


@pytest.mark.parametrize("op", ["mean", "native_dropout"])
def test_statistics_and_random_numbers_are_kept(op):
    made = ROW if op == "mean" else NARROW
    step = (
        node("mm", (NARROW, NARROW), (NARROW,)),
        node(op, (NARROW,), (made,)),
        node("mul", (NARROW, made), (NARROW,), (made,), "backward"),
    )
    assert lean(step) == list(step)


def test_what_a_product_reads_is_kept():
    weight = TensorShape("bf16", (256, 256))
    step = (
        node("mm", (NARROW, weight), (NARROW,)),
        node("relu", (NARROW,), (NARROW,)),
        node("mm", (NARROW, weight), (NARROW,)),
        node("mm", (weight, NARROW), (weight,), (NARROW, NARROW), "backward"),
    )
    assert lean(step) == list(step)
