"""Compiled backward passes: norms and losses by hand, and against the kernels and bytes that inductor plans on the CPU."""

import functools

import pytest

from tilecast.engines.step import predict_step
from tilecast.workloads.aten import launches
from tilecast.workloads.fusion import compiled
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape

SMALL = {"n_embd": 256, "n_head": 4, "n_positions": 512, "n_layer": 2, "hidden_size": 256, "intermediate_size": 896,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512, "num_hidden_layers": 2, "vocab_size": 2048,
         "rms_norm_eps": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
GPT2, LLAMA = ({"architectures": [name], **SMALL} for name in ("GPT2LMHeadModel", "LlamaForCausalLM"))
ASKED = {"mode": "training", "batch": 2, "seq": 128, "attention": "sdpa"}


def node(op, inputs, outputs, frees=(), phase="backward"):
    return Node(f"aten.{op}", phase, tuple(inputs), tuple(outputs), tuple(frees))


def fused(*nodes, **how) -> list[Node]:
    made = compiled(OpGraph(name="made", mode="training", segments=(Segment(1, nodes),), parameters=()), **how)
    return [each for each in made.nodes() if launches(each)]


def read_and_written(each: Node) -> tuple[int, int]:
    return sum(tensor.nbytes for tensor in each.inputs), sum(tensor.nbytes for tensor in each.outputs)


# ---- by hand ------------------------------------------------------------------------------------------------------


def test_a_group_norm_is_one_kernel_with_its_activation_and_reads_its_image_twice():
    image, scale, statistic = TensorShape("bf16", (4, 64, 128, 128)), TensorShape("bf16", (64,)), TensorShape("bf16", (4, 32))
    normed = node("native_group_norm", (image, scale, scale), (image, statistic, statistic), phase="forward")
    made = fused(normed, node("silu", (image,), (image,), (image,), phase="forward"))
    assert [each.op for each in made] == ["fused.native_group_norm_silu"]
    read, written = read_and_written(made[0])
    # the image twice, two scales; the result and two statistics
    assert (read, written) == (2 * image.nbytes + 2 * scale.nbytes, image.nbytes + 2 * statistic.nbytes)


def a_loss(labels) -> tuple[Node, ...]:
    narrow, wide, one = TensorShape("bf16", (64, 512)), TensorShape("fp32", (64, 512)), TensorShape("fp32", ())
    hidden, head = TensorShape("bf16", (64, 32)), TensorShape("bf16", (32, 512))
    return (
        node("mm", (hidden, head), (narrow,), phase="forward"),
        node("_to_copy", (narrow,), (wide,), phase="loss"),
        node("_log_softmax", (wide,), (wide,), (wide,), phase="loss"),
        node("nll_loss_forward", (wide, labels), (one, one), phase="loss"),
        node("nll_loss_backward", (one, wide, labels, one), (wide,), (one,)),
        node("_log_softmax_backward_data", (wide, wide), (wide,), (wide, wide)),
        node("_to_copy", (wide,), (narrow,), (wide,)),
        node("mm", (TensorShape("bf16", (512, 64)), hidden), (TensorShape("bf16", (512, 32)),), (narrow, narrow)),
    )


def test_a_loss_reads_narrow_logits_once_forwards_and_once_backwards():
    # 64 rows of 512 logits in 2 bytes are 65,536 bytes; labels 64 x 8 = 512. Forwards they are read, and two numbers are written; backwards
    # they are read again, with the labels and these two, and as many bytes of gradients are written. Nothing is ever 4 bytes wide.
    labels = TensorShape("int64", (64,))
    forward, backward = (each for each in fused(*a_loss(labels)) if each.op.startswith("fused."))
    assert forward.op == "fused._to_copy__log_softmax_nll_loss_forward"
    assert read_and_written(forward) == (65_536 + 512, 8)
    assert backward.op == "fused.nll_loss_backward__log_softmax_backward_data__to_copy"
    assert read_and_written(backward) == (65_536 + 512 + 8, 65_536)


def test_a_compiled_step_never_holds_wide_log_probabilities():
    graph = OpGraph(name="made", mode="training", segments=(Segment(1, a_loss(TensorShape("int64", (64,)))),), parameters=())
    # Logits and two numbers are kept. Most is held when the head's weight has its gradient, 32,768 bytes, beside logits and theirs; one of
    # the two numbers is gone by then.
    assert compiled(graph).live_bytes()["kept"] == 65_536 + 8
    assert compiled(graph).live_bytes()["backward"] == 2 * 65_536 + 4 + 32_768


def a_norm(rows: int, cols: int) -> tuple[Node, ...]:
    """Its gradient comes from a product and is widened; the residual's is added, and the sum is narrowed for the next product."""
    narrow, wide = (TensorShape(dtype, (rows, cols)) for dtype in ("bf16", "fp32"))
    row, weight = (TensorShape("fp32", shape) for shape in ((rows, 1), (cols,)))
    square = TensorShape("bf16", (cols, cols))
    return (
        node("mm", (narrow, square), (narrow,)),
        node("_to_copy", (narrow,), (wide,), (narrow,)),
        node("_to_copy", (square,), (TensorShape("fp32", (cols, cols)),), (TensorShape("fp32", (cols, cols)),)),  # a weight's, meanwhile
        node("native_layer_norm_backward", (wide, wide, row, row, weight, weight), (wide, weight, weight), (wide, weight, weight)),
        node("add", (wide, wide), (wide,), (wide,)),
        node("_to_copy", (wide,), (narrow,)),
        node("mm", (narrow, square), (narrow,), (narrow,)),
    )


def test_a_norms_gradient_takes_its_neighbours_and_its_weights_are_summed_apart():
    # 72 x 32: rows read the narrow gradient (4,608 bytes), the row (9,216), two statistics (2 x 288), weight and bias (2 x 128) and the
    # residual's gradient (9,216), and write the sum (9,216) and its narrow copy (4,608). Columns read all but the residual's again.
    columns, rows = (each for each in fused(*a_norm(72, 32)) if "layer_norm" in each.op)
    assert rows.op == "fused._to_copy_native_layer_norm_backward_add"
    assert read_and_written(rows) == (4_608 + 9_216 + 576 + 256 + 9_216, 9_216 + 4_608)
    assert columns.op == "fused.native_layer_norm_backward"
    assert read_and_written(columns) == (4_608 + 9_216 + 576 + 256, 256)
    assert dict(columns.options)["passes"] == 2


def test_many_rows_are_read_once_for_both_reductions_but_not_by_pytorch_2_1():
    # Inductor mixes the orders from 4096 rows and 5 x 2^20 elements on, if there are twice as many rows as columns: 8192 x 640.
    both = [each for each in fused(*a_norm(8192, 640)) if "layer_norm" in each.op]
    assert len(both) == 1 and sum(tensor.shape == (640,) for tensor in both[0].outputs) == 2
    for rows, cols, how in ((8192, 632, {}), (4096, 2560, {}), (8192, 640, {"mixes_orders": False})):
        assert len([each for each in fused(*a_norm(rows, cols), **how) if "layer_norm" in each.op]) == 2


def test_a_product_that_only_a_sum_over_columns_reads_is_never_written():
    # RMSNorm: the weight's gradient is the sum of gradient x row; the product of both is worked out where it is summed.
    wide, row, weight = TensorShape("fp32", (64, 32)), TensorShape("fp32", (64, 1)), TensorShape("fp32", (1, 32))
    made = fused(
        node("mm", (wide, TensorShape("fp32", (32, 32))), (wide,)),
        node("mul", (wide, row), (wide,)),
        node("sum", (wide,), (weight,), (wide,)),
    )
    assert [each.op for each in made] == ["aten.mm", "fused.sum"]
    assert read_and_written(made[1]) == (8_192 + 256, 128)


# ---- whole steps --------------------------------------------------------------------------------------------------


def test_norms_and_loss_of_a_compiled_step_run_near_their_bytes():
    asked = {"mode": "training", "batch": 2, "seq": 512, "optimizer": None}
    eager, made = (predict_step("GPT2-Large", "a100-pcie-80gb", **asked, runtime=how) for how in ("eager", "compiled"))
    names = {part.name for part in made.breakdown}
    assert not names & {"native_layer_norm_backward", "nll_loss_backward", "nll_loss_forward", "_log_softmax_backward_data"}
    assert made.loss_s.median < 0.5 * eager.loss_s.median
    norms = [part for part in made.breakdown if "layer_norm_backward" in part.name]
    assert norms and all(part.time.median < 1.5 * part.bound_s for part in norms if part.bound_s > 50e-6 * part.launches)


def test_every_rms_norm_has_its_rows_and_its_columns_whatever_is_ignored():
    torch = pytest.importorskip("torch")
    import tilecast

    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(5000, 256), torch.nn.Linear(256, 5000, bias=False)
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(256) for _ in range(2))
            self.up, self.down = torch.nn.Linear(256, 300), torch.nn.Linear(300, 256)

        def forward(self, tokens, labels):
            hidden = self.table(tokens)
            hidden = hidden + self.down(torch.relu(self.up(self.norms[0](hidden))))
            logits = self.head(self.norms[1](hidden)).float()
            return torch.nn.functional.cross_entropy(logits.view(-1, 5000), labels.view(-1), ignore_index=-100)

    tokens = torch.zeros(8, 1024, dtype=torch.int64)
    made = list(compiled(tilecast.trace(Words(), (tokens, tokens), mode="training", autocast="bf16")).nodes())
    rows = [each for each in made if each.phase == "backward" and "div" in each.op and "sum" in each.op]
    columns = [each for each in made if each.op == "fused.sum" and each.outputs[0].shape == (1, 1, 256)]
    assert (len(rows), len(columns)) == (2, 2)
    # Logits in 2 bytes, labels and two numbers; gradients in 2 bytes.
    (loss,) = [each for each in made if "nll_loss_backward" in each.op]
    assert read_and_written(loss) == (8192 * 5000 * 2 + 8192 * 8 + 8, 8192 * 5000 * 2)


# ---- against inductor ---------------------------------------------------------------------------------------------


class _Planned(Exception):
    """Enough: nothing has to be compiled."""


def inductors(config, dtype: str, monkeypatch) -> list[tuple[str, frozenset[str], int]]:
    """Of every kernel that inductor plans for a training step: the pass, the operators it came from, and its bytes."""
    torch = pytest.importorskip("torch")
    from functorch.compile import aot_module, make_boxed_func, min_cut_rematerialization_partition
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.graph import GraphLowering

    from tilecast.workloads.tracing.losses import TokenLoss
    from tilecast.workloads.tracing.modules.base import Asked
    from tilecast.workloads.tracing.modules.family import networks

    network, asked = networks()[config["architectures"][0]], Asked(**ASKED)
    module = network.build(config, asked).train().to(torch.bfloat16 if dtype == "bf16" else torch.float32)
    for name, weight in module.named_parameters(remove_duplicate=False):  # tied ones are told apart: aot_module takes each once
        holder, _, last = name.rpartition(".")
        setattr(module.get_submodule(holder), last, torch.nn.Parameter(weight.detach().clone()))

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.loss = module, TokenLoss()

        def forward(self, *given):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "amp"):
                return self.loss(self.module(*given))

    planned = []

    def plan(lowering, *_, **__):
        lowering.codegen()
        for kernel in lowering.scheduler.nodes:
            made_by = [each for part in kernel.get_nodes() if part.node is not None for each in getattr(part.node, "origins", ())]
            names = {str(each.meta.get("original_aten")).removeprefix("aten.").partition(".")[0] for each in made_by}
            if "mm" in names:  # a library call, which carries the names of what it reads
                continue
            planned.append(("backward" if lowering.is_backward else "forward", frozenset(names), kernel.get_read_write_buffers_sizes()))
        raise _Planned

    def compiler(graph, inputs, is_backward):
        with pytest.raises(torch._inductor.exc.InductorError, match="_Planned"):
            compile_fx_inner(graph, inputs, is_backward=is_backward)
        return make_boxed_func(graph.forward)

    def partition(graph, inputs, **given):
        joint_graph_passes(graph)  # makes the gradient of picked log-probabilities pointwise
        return min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **given)

    monkeypatch.setattr(GraphLowering, "compile_to_module", plan)
    made = aot_module(
        WithLoss(),
        functools.partial(compiler, is_backward=False),
        functools.partial(compiler, is_backward=True),
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    made(*network.inputs(asked)).backward()
    return planned


def ours(config, dtype: str) -> list[Node]:
    from tilecast.workloads.tracing.bundled import traced_model

    return [each for each in compiled(traced_model("small", config, **ASKED, dtype=dtype)).nodes() if each.op.startswith("fused.")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("config", "dtype"), [(GPT2, "amp"), (LLAMA, "bf16")], ids=["gpt2", "llama"])
def test_losses_and_norms_move_the_bytes_that_inductor_plans(config, dtype, monkeypatch):
    theirs, made = inductors(config, dtype, monkeypatch), ours(config, dtype)

    def bytes_of(name: str, phases=("backward",)) -> list[int]:
        return [sum(read_and_written(each)) for each in made if name in each.op and each.phase in phases]

    # Row statistics, which we leave out, are 8 bytes for every 2048 logits. The CPU reads logits for the maximum, then for the sum; a GPU
    # has both of one reading (inductor's online softmax).
    forward = [size for where, names, size in theirs if where == "forward" and "_log_softmax" in names]
    assert bytes_of("_log_softmax", ("loss",)) == pytest.approx([max(forward)], rel=0.01)
    (backward,) = bytes_of("nll_loss_backward")
    assert backward == pytest.approx(sum(size for _, names, size in theirs if "_log_softmax_backward_data" in names), rel=0.01)
    if config is GPT2:
        # Rows with the residual's gradient, and columns. The narrow copy of their sum the CPU makes apart, a GPU in the same kernel.
        rows = [each for each in made if "native_layer_norm_backward_add" in each.op]
        wide = [read_and_written(each)[0] + sum(tensor.nbytes for tensor in each.outputs if tensor.dtype == "fp32") for each in rows]
        planned = [
            size
            for where, names, size in theirs
            if where == "backward" and "native_layer_norm_backward" in names and "embedding_dense_backward" not in names
        ]
        assert max(wide) == pytest.approx(max(planned), rel=0.02)
        assert min(bytes_of("native_layer_norm_backward")) == pytest.approx(min(planned), rel=0.02)
    else:
        rows = [sum(read_and_written(each)) for each in made if "sum_pow_div" in each.op]
        assert max(rows) == pytest.approx(max(size for _, names, size in theirs if {"div", "pow"} <= names and "expand" in names
                                              and "embedding_dense_backward" not in names), rel=0.02)  # fmt: skip
