"""Compiled graphs: groups by hand, against what inductor forms on the CPU, and their bytes."""

import re
from dataclasses import replace

import pytest

from tilecast.engines.step import predict_step
from tilecast.workloads.aten import launches, matrix_flop
from tilecast.workloads.fusion import compiled
from tilecast.workloads.groups import FUSED
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape
from tilecast.workloads.step_models import model_graph, resolved

PLAIN = set("_unsafe_view view expand slice unsqueeze arange zeros_like permute scalar_tensor split transpose embedding clone full".split())
BIG, SMALL = TensorShape("fp32", (8, 64)), TensorShape("fp32", (64,))


def node(op, inputs=(BIG,), outputs=(BIG,), frees=(), phase="forward"):
    return Node(f"aten.{op}", phase, tuple(inputs), tuple(outputs), tuple(frees))


def graph(*nodes, mode="inference"):
    return OpGraph(name="made", mode=mode, segments=(Segment(1, nodes),), parameters=())


def kernels(of: OpGraph) -> list[str]:
    return [each.op for each in compiled(of).nodes() if launches(each)]


def read_and_written(each: Node) -> tuple[int, int]:
    return sum(tensor.nbytes for tensor in each.inputs), sum(tensor.nbytes for tensor in each.outputs)


# ---- by hand ------------------------------------------------------------------------------------------------------


def test_a_chain_reads_its_ends_alone():
    # y = relu(a + b) * c: three inputs of 2 KB are read, one result is written; two intermediate results stay in registers.
    chain = graph(node("add", (BIG, BIG)), node("relu", frees=(BIG,)), node("mul", (BIG, BIG), frees=(BIG,)))
    (one,) = compiled(chain).nodes()
    assert one.op == "fused.add_relu_mul"
    assert read_and_written(one) == (3 * 2048, 2048)


def test_what_a_later_kernel_wants_is_written_too():
    # The sum is kept for a residual: nothing frees it inside.
    both = graph(node("add", (BIG, BIG)), node("native_layer_norm", (BIG, SMALL, SMALL)), node("mm", (BIG, BIG)))
    fused, product = compiled(both).nodes()
    assert (fused.op, product.op) == ("fused.add_native_layer_norm", "aten.mm")
    assert read_and_written(fused) == (2 * 2048 + 2 * 256, 2 * 2048)


def test_a_library_call_and_a_sum_over_rows_end_a_group():
    steps = (
        node("gelu_backward", (BIG, BIG)),
        node("sum", (BIG,), (SMALL,)),
        node("mm", (BIG, TensorShape("fp32", (64, 64)))),
        node("add", (BIG, BIG)),
    )
    backward = graph(*(replace(each, phase="backward") for each in steps), mode="training")
    assert kernels(backward) == ["fused.gelu_backward", "fused.sum", "aten.mm", "fused.add"]


def test_a_kernel_waits_for_its_reader_past_a_product_that_does_not_read_it():
    # SwiGLU: silu(gate) * up, where the product that makes `up` stands between the two. Gate and up are read, the result is written.
    hidden, weight, inner = TensorShape("fp32", (8, 16)), TensorShape("fp32", (16, 64)), TensorShape("fp32", (8, 64))
    gated = graph(
        node("mm", (hidden, weight), (inner,)),
        node("silu", (inner,), (inner,), (inner,)),
        node("mm", (hidden, weight), (inner,)),
        node("mul", (inner, inner), (inner,), (inner, inner)),
    )
    assert kernels(gated) == ["aten.mm", "aten.mm", "fused.silu_mul"]
    assert read_and_written(list(compiled(gated).nodes())[-1]) == (2 * 2048, 2048)


def test_a_kernel_does_not_wait_past_a_product_that_reads_it():
    square = TensorShape("fp32", (64, 64))
    assert kernels(graph(node("relu"), node("mm", (BIG, square)), node("add", (BIG, BIG)))) == ["fused.relu", "aten.mm", "fused.add"]


def test_an_operator_joins_the_kernel_before_products_whose_results_it_does_not_read():
    # SwiGLU backwards: the gradient of silu(gate) is there before the products with the gradient of `up` are run.
    inner, weight, hidden = TensorShape("fp32", (8, 64)), TensorShape("fp32", (64, 16)), TensorShape("fp32", (8, 16))
    steps = (
        node("mul", (inner, inner), (inner,)),
        node("mul", (inner, inner), (inner,)),
        node("mm", (inner, weight), (hidden,), (inner,)),
        node("silu_backward", (inner, inner), (inner,), (inner,)),
    )
    backward = graph(*(replace(each, phase="backward") for each in steps), mode="training")
    assert kernels(backward) == ["fused.mul_silu_backward", "aten.mm"]


def test_a_batch_norm_that_has_its_statistics_fuses_with_what_follows():
    image, channels = TensorShape("fp32", (2, 8, 4, 4)), TensorShape("fp32", (8,))
    normed = graph(
        node("convolution", (image, TensorShape("fp32", (8, 8, 1, 1))), (image,)),
        node("_native_batch_norm_legit_no_training", (image, *[channels] * 4), (image,), (image,)),
        node("relu", (image,), (image,), (image,)),
    )
    (_, fused) = compiled(normed).nodes()
    assert fused.op == "fused._native_batch_norm_legit_no_training_relu"
    assert read_and_written(fused) == (1024 + 4 * 32, 1024)


def test_constants_and_views_cost_nothing():
    made = graph(node("full", (), (SMALL,)), node("mul", (BIG, SMALL)))
    assert kernels(made) == ["fused.mul"]


@pytest.mark.parametrize("model", ["BERT-Large", "GPT2-Large", "OPT-1.3B"])
def test_compiling_keeps_the_products_and_is_faster(model):
    whole = model_graph(model, mode="inference", batch=4, seq=512, dtype="fp32")
    made = compiled(whole)
    flop = [sum(matrix_flop(each) * number for each, number in one.counted().items()) for one in (whole, made)]
    assert flop[0] == pytest.approx(flop[1])
    eager, fused = (predict_step(model, "a100-pcie-40gb", batch=4, seq=512, runtime=how) for how in ("eager", "compiled"))
    assert fused.step_s.median < eager.step_s.median
    assert sum(part.launches for part in fused.breakdown) < sum(part.launches for part in eager.breakdown)


def test_a_compiled_training_step_is_faster_and_does_the_same_products():
    asked = {"mode": "training", "batch": 2, "seq": 512, "optimizer": None}
    eager, fused = (predict_step("GPT2-Large", "a100-pcie-80gb", **asked, runtime=how) for how in ("eager", "compiled"))
    assert 0.6 * eager.step_s.median < fused.step_s.median < eager.step_s.median
    assert fused.mfu * fused.step_s.median == pytest.approx(eager.mfu * eager.step_s.median)


def test_a_block_of_bert_is_ten_kernels():
    # Query, key and value; attention; out; add and norm; up; GELU; down; add and norm.
    layer = max(
        compiled(model_graph("BERT-Large", mode="inference", batch=4, seq=512, dtype="fp32")).segments, key=lambda each: each.repeat
    )
    assert layer.repeat == 24
    assert [each.op.removeprefix("aten.") for each in layer.nodes if launches(each)] == [
        *["addmm"] * 3, "_scaled_dot_product_efficient_attention", "addmm", "fused.add_native_layer_norm", "addmm", "fused.gelu", "addmm",
        "fused.add_native_layer_norm",
    ]  # fmt: skip


def test_pytorch_2_1_leaves_attention_in_three():
    # Scores (with copies of queries and keys), softmax with scaling and mask, mixing with the copies of values and result.
    whole = model_graph("BERT-Large", mode="inference", batch=4, seq=512, dtype="fp32", attention="eager")
    layer = max(compiled(whole, finds_attention=False).segments, key=lambda each: each.repeat)
    made = [each.op.removeprefix("aten.") for each in layer.nodes if launches(each)]
    assert made.count("bmm") == 2
    between = made[made.index("bmm") + 1 : len(made) - made[::-1].index("bmm") - 1]
    assert between[0].startswith("fused.") and "_softmax" in between[0]
    today, then = (
        predict_step("BERT-Large", "l4", batch=4, seq=512, attention="eager", runtime=how).step_s.median
        for how in ("compiled", "compiled-2.1")
    )
    assert today < then


# ---- against inductor ---------------------------------------------------------------------------------------------


class _CodeSeen(Exception):
    """Enough: nothing has to be compiled."""


def inductors(model: str, monkeypatch, mode: str = "inference", attention: str = "eager") -> tuple[list[frozenset[str]], OpGraph]:
    """Operators of every kernel that inductor generates for the forward pass of a small model of one layer, without views; our graph."""
    torch = pytest.importorskip("torch")
    from torch._inductor.graph import GraphLowering

    from tilecast.workloads.tracing.bundled import traced_model
    from tilecast.workloads.tracing.modules.base import Asked
    from tilecast.workloads.tracing.modules.family import networks

    id, facts = resolved(model)
    small = {"num_hidden_layers": 1, "n_layer": 1, "hidden_size": 128, "n_embd": 128, "num_attention_heads": 4, "n_head": 4,
             "intermediate_size": 512, "num_key_value_heads": 2, "vocab_size": 512}  # fmt: skip
    config = dict(facts) | {name: value for name, value in small.items() if name in facts}
    other = config.pop("architectures_in_inference", None)
    config["architectures"] = other if other and mode == "inference" else config["architectures"]
    family = next(networks()[name] for name in config["architectures"] if name in networks())
    asked = Asked(mode=mode, attention=attention, batch=2, seq=64)
    seen: list[str] = []

    def stop(lowering, *_, **__):
        seen.append(lowering.codegen()[0].value)
        raise _CodeSeen

    monkeypatch.setattr(GraphLowering, "compile_to_module", stop)
    module = family.build(config, asked)
    with torch.set_grad_enabled(mode == "training"), pytest.raises(torch._inductor.exc.InductorError, match="_CodeSeen"):
        torch.compile(module.train(mode == "training"))(*family.inputs(asked))
    torch._dynamo.reset()
    called = seen[0][seen[0].index("def call(") :]
    names = re.findall(r"cpp_fused_(\w+)_\d+\(|extern_kernels\.(\w+)\(|= torch\.ops\.aten\.(_scaled_dot_product)\w*\.default\(", called)
    found = []
    for fused, extern, _ in names:
        # A longer name hides shorter ones: take known operators out of it one by one.
        left, operators = fused, set()
        for operator in ("native_layer_norm", "zeros_like", "scalar_tensor", *sorted(PLAIN, key=len, reverse=True)):
            if operator in left:
                operators.add(operator)
                left = left.replace(operator, "")
        operators |= set(left.split("_")) - {""} if fused and "scaled_dot" not in fused else set()
        found.append(frozenset(operators - PLAIN) if fused else frozenset([extern or "attention"]))
    graph_of_it = traced_model(id, config, mode=mode, batch=2, seq=64, dtype="fp32", attention=attention)
    return [each for each in found if each], graph_of_it


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["BERT-Large", "GPT2-Large"])
def test_groups_are_those_of_inductor(model, monkeypatch):
    theirs, traced = inductors(model, monkeypatch)
    # Inductor works the mask of all ones out when it compiles: `mul` of rsub is gone from its first kernel.
    assert [each - {"mul"} if "native_layer_norm" in each else each for each in our_groups(traced)] == theirs


@pytest.mark.filterwarnings("ignore")
def test_groups_of_a_llama_block_are_those_of_inductor(monkeypatch):
    # Of a training step: where nothing is kept, inductor's CPU kernels write the turned halves of queries and keys apart.
    theirs, traced = inductors("meta-llama/Llama-3.1-8B", monkeypatch, "training", "sdpa")
    tables = {"cos", "sin", "cat", "ones"}  # of positions: inductor works them out anew where they are used
    assert [each - tables for each in our_groups(traced)] == [each - tables for each in theirs]
    assert frozenset(["silu", "mul"]) in theirs


def our_groups(traced: OpGraph) -> list[frozenset[str]]:
    """Operators of every kernel of the compiled forward pass, without views."""
    ours = []
    for each in compiled(traced).nodes():
        if not launches(each) or each.phase != "forward":
            continue
        name = each.op.removeprefix("aten.")
        if name.startswith(FUSED):
            known = {"native_layer_norm": "NORM", "zeros_like": "ZERO"}
            for long, short in known.items():
                name = name.replace(long, short)
            operators = {
                next((long for long, short in known.items() if short == part), part) for part in name.removeprefix(FUSED).split("_")
            }
            ours.append(frozenset(operators - PLAIN - {"rsub"}))
        else:
            ours.append(frozenset(["attention" if "scaled_dot" in name else name]))
    return ours


@pytest.mark.parametrize("model", ["BERT-Large", "GPT2-Large", "Switch-XL-4"])
def test_fused_attention_lets_go_what_its_operators_did(model: str):
    asked = {"mode": "inference", "batch": 4, "seq": 512, "dtype": "fp32"}
    eager, fused = (predict_step(model, "h100-sxm", **asked, runtime=how).memory.activations_bytes for how in ("eager", "compiled"))
    assert 0.3 * eager < fused <= 1.001 * eager
