"""`tilecast step`: the two clocks by hand, laws of a step, and its command."""

import itertools
import json
import sys

import numpy as np
import pytest

import tilecast as package
from tilecast.engines.eager import Clocks, host_cost
from tilecast.engines.eager import run as run_clocks
from tilecast.engines.step import predict_layouts, predict_step
from tilecast.errors import InvalidInput, MissingExtra, UnknownName
from tilecast.workloads.layout import Layout
from tilecast.workloads.opgraph import Node, OpGraph, Segment, TensorShape

ASKED = {"mode": "training", "batch": 4, "seq": 256, "optimizer": None}


def made(numel=1 << 20, repeat=10, is_view=False):
    tensor = TensorShape("fp32", (numel,))
    node = Node("aten.mul", "forward", (tensor,), (tensor,), (tensor,), (), is_view)
    return OpGraph(name="made", mode="inference", segments=(Segment(repeat, (node,)),), parameters=((TensorShape("fp32", (8, 8)), 1),))


# ---- two clocks --------------------------------------------------------------------------------------------------


def test_long_kernels_hide_all_launches_but_the_first():
    # Launched at 10, 20, 30; the GPU starts at 10 and works 3 x 100 without a gap.
    assert run_clocks(np.full(3, 10.0), np.full(3, 100.0), Clocks()) == Clocks(30.0, 310.0)


def test_short_kernels_wait_for_every_launch():
    # The last of three is launched at 30 and takes 1.
    assert run_clocks(np.full(3, 10.0), np.full(3, 1.0), Clocks()) == Clocks(30.0, 31.0)


def test_a_long_kernel_in_the_middle_lets_the_host_run_ahead():
    # 10 + 1, then from 20 to 70, meanwhile launches at 30 and 40: both kernels are waiting when the GPU is free.
    assert run_clocks(np.full(4, 10.0), np.array([1.0, 50.0, 1.0, 1.0]), Clocks()) == Clocks(40.0, 72.0)


def test_a_lead_carries_over_into_the_next_phase():
    # The GPU is busy until 500 anyway, and the host is done launching long before.
    assert run_clocks(np.full(2, 10.0), np.full(2, 1.0), Clocks(100.0, 500.0)) == Clocks(120.0, 502.0)


def test_views_cost_the_host_alone():
    assert run_clocks(np.array([4.0, 4.0]), np.zeros(2), Clocks()) == Clocks(8.0, 0.0)


def test_small_operators_are_bound_by_the_host_and_large_ones_are_not():
    small, large = predict_step(made(1024, 100), "h100-sxm"), predict_step(made(1 << 28, 100), "h100-sxm")
    assert small.step_s.median == pytest.approx(100 * host_cost().op_s, rel=0.05)
    assert small.host_wait_s > 0.7 * small.step_s.median
    assert large.host_wait_s < 0.001 * large.step_s.median


# ---- laws --------------------------------------------------------------------------------------------------------


def test_a_step_is_the_sum_of_its_phases_and_of_its_breakdown():
    found = predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED | {"optimizer": "adamw"})
    phases = found.forward_s.median + found.backward_s.median + found.optimizer_s.median
    assert found.step_s.median == pytest.approx(phases)
    assert sum(part.time.median for part in found.breakdown) == pytest.approx(phases)
    assert sum(part.share_fraction for part in found.breakdown) == pytest.approx(1.0)
    assert found.step_s.low <= found.step_s.median <= found.step_s.high
    assert sum(part.bound_s for part in found.breakdown) <= found.step_s.median


def test_backward_takes_about_twice_the_forward_pass():
    found = predict_step("GPT3-XL", "a100-pcie-80gb", **ASKED | {"batch": 2, "seq": 1024})
    assert 1.6 < found.backward_s.median / (found.forward_s.median - found.loss_s.median) < 2.4


def test_flop_of_a_step_are_six_per_weight_and_token():
    # 24 layers of 12 h^2 and the head, six FLOP each per token; attention adds 12 L h s, counted in full.
    found = predict_step("GPT3-XL", "a100-pcie-80gb", **ASKED | {"batch": 2, "seq": 1024})
    weights = 24 * 12 * 3072**2 + 50257 * 3072
    flop = 2 * 1024 * (6 * weights + 12 * 24 * 3072 * 1024)
    peak = found.gpu.matrix_rate("fp32")
    assert found.mfu * found.step_s.median * peak == pytest.approx(flop, rel=1e-6)


def test_recomputation_costs_a_forward_pass_and_saves_memory():
    plain, lean = (predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED, recompute=choice) for choice in (False, True))
    assert lean.backward_s.median - plain.backward_s.median == pytest.approx(plain.forward_s.median, rel=0.25)
    assert lean.memory.saved_bytes < 0.3 * plain.memory.saved_bytes
    assert lean.mfu < plain.mfu
    assert lean.mfu * lean.step_s.median == pytest.approx(plain.mfu * plain.step_s.median, rel=1e-6)  # the same model FLOP


def test_micro_batches_add_up_and_need_less_memory():
    whole = predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED | {"batch": 8})
    parts = predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED | {"batch": 8}, micro_batches=4)
    assert parts.step_s.median > 0.98 * whole.step_s.median
    assert parts.memory.activations_bytes < 0.3 * whole.memory.activations_bytes


def test_a_fused_optimizer_is_faster_than_one_that_goes_tensor_by_tensor():
    times = {
        name: predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED | {"optimizer": name}).optimizer_s.median
        for name in ("adamw-fused", "adamw", "adamw-per-tensor", "sgd")
    }
    assert times["adamw-fused"] < times["adamw"] < times["adamw-per-tensor"]
    assert times["sgd"] < times["adamw-fused"]
    # 774 M weights: four tensors read, three written, at 1,935 GB/s
    assert times["adamw-fused"] > 774e6 * 7 * 4 / 1.935e12


def test_without_an_optimizer_gradients_are_added_in_place():
    names = {part.name for part in predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED).breakdown}
    assert "accumulate_grad" in names
    names = {part.name for part in predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED | {"optimizer": "sgd"}).breakdown}
    assert "accumulate_grad" not in names


def test_memory_counts_states_and_says_what_does_not_fit():
    found = predict_step("GPT2-Large", "t4", **ASKED | {"optimizer": "adam", "batch": 8, "seq": 1024})
    memory = found.memory
    assert memory.weights_bytes == memory.gradients_bytes == 774_030_080 * 4
    assert memory.optimizer_bytes == 2 * memory.weights_bytes
    assert not found.fits
    assert found.step_s.median > 0


def test_tf32_is_faster_where_there_are_tensor_cores_for_it():
    fp32, tf32 = (
        predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED | {"batch": 8, "seq": 1024}, dtype=dtype) for dtype in ("fp32", "tf32")
    )
    assert tf32.step_s.median < 0.7 * fp32.step_s.median
    same = [predict_step("GPT2-Large", "v100-pcie-32gb", **ASKED, dtype=dtype).step_s.median for dtype in ("fp32", "tf32")]
    assert same[0] == same[1]  # nothing to run it on


def test_physics_alone_says_so():
    found = predict_step("GPT2-Large", "a100-pcie-80gb", **ASKED, learned=False)
    assert found.basis_shares == {"analytic": pytest.approx(1.0)}


def test_integers_of_numpy_are_those_of_python():
    given = predict_step("GPT2-Large", "h100-sxm", **(ASKED | {"batch": np.int32(4), "seq": np.int32(256)}))
    assert json.dumps(given.to_dict()) == json.dumps(predict_step("GPT2-Large", "h100-sxm", **ASKED).to_dict())


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_the_contract(tilecast):
    asked = "step GPT2-Large --gpu a100-pcie-80gb --mode training --batch 4 --seq 256 --dtype fp32"
    line = f"{asked} --runtime eager --attention eager --no-optimizer --json"
    result = tilecast(*line.split())
    payload = result.json
    assert result.code == 0
    assert payload["schema"] == "tilecast.step/1"
    for name in ("forward_s", "backward_s", "optimizer_s", "communication_s", "step_s"):
        assert set(payload[name]) == {"median", "low", "high"}
    assert {"mfu", "memory", "fits", "basis", "breakdown", "inputs", "versions"} <= set(payload)
    assert payload["step_s"]["median"] == pytest.approx(payload["forward_s"]["median"] + payload["backward_s"]["median"])
    assert payload["optimizer_s"]["median"] == 0


def test_the_table_leads_with_the_answer(tilecast):
    result = tilecast(*"step bert_large --gpu l4 --batch 8 --seq 512".split())
    assert result.code == 0
    assert "a forward pass of 8 x 512 tokens takes" in result.out.splitlines()[0]
    assert "Where the forward goes" in result.out


def test_the_python_call_gives_the_same(tilecast):
    result = tilecast(*"step GPT2-Large --gpu l4 --mode training --batch 2 --seq 128 --no-optimizer --as-python".split())
    out = result.out
    assert result.code == 0
    assert "tilecast.step('GPT2-Large', 'l4', mode='training', batch=2, seq=128" in out
    assert "optimizer=None" in out
    scope: dict[str, object] = {}
    exec(out.replace("tilecast.step(", "found = tilecast.step("), scope)
    assert scope["found"].step_s == predict_step("GPT2-Large", "l4", mode="training", batch=2, seq=128, optimizer=None).step_s


def test_a_saved_graph_is_a_model(tilecast, tmp_path):
    made().save(tmp_path / "made.graph.json")
    result = tilecast("step", str(tmp_path / "made.graph.json"), "--gpu", "l4", "--json")
    assert result.code == 0
    assert result.json["step_s"]["median"] == package.step(made(), "l4").step_s.median


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--mode training", "mode = 'training' does not fit made: it was traced for inference"),
        ("--dtype bf16", "dtype = 'bf16' does not fit made: it was traced in fp32; allowed: fp32, tf32"),
        ("--batch 7", "batch = 7 does not fit made: the graph was traced with the sizes of its example inputs"),
        ("--seq 7", "seq = 7 does not fit made"),
        ("--attention sdpa", "attention = 'sdpa' does not fit made"),
    ],
)
def test_what_a_traced_graph_already_is_cannot_be_asked_otherwise(tilecast, tmp_path, line, said):
    made().save(tmp_path / "made.graph.json")
    result = tilecast("step", str(tmp_path / "made.graph.json"), "--gpu", "h100-sxm", *line.split())
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def words(mode: str = "training") -> OpGraph:
    """A lookup of 4 texts of 32 tokens, as `tilecast.trace` writes it: without a batch; beside it distances of tokens, one for a head."""
    table, near, result = TensorShape("fp32", (1000, 64)), TensorShape("fp32", (32, 8)), TensorShape("fp32", (4, 32, 64))
    nodes = (
        Node("aten.embedding", "forward", (near, TensorShape("int64", (32, 32))), (TensorShape("fp32", (32, 32, 8)),)),
        Node("aten.embedding", "forward", (table, TensorShape("int64", (4, 32))), (result,)),
        Node("aten.embedding", "forward", (table, TensorShape("int64", (1, 32))), (TensorShape("fp32", (1, 32, 64)),)),
        Node("aten.relu", "forward", (result,), (result,)),
    )
    return OpGraph(name="words", mode=mode, segments=(Segment(1, nodes),), parameters=((table, 1),))


@pytest.mark.parametrize(
    "line", ["", "--batch 4", "--seq 32", "--batch 4 --seq 32", "--fsdp 2 --batch 8", "--dp 2 --micro-batches 3 --batch 24"]
)
def test_a_traced_graph_may_be_asked_for_the_sizes_it_has(tilecast, tmp_path, line):
    words().save(tmp_path / "words.graph.json")
    result = tilecast("step", str(tmp_path / "words.graph.json"), "--gpu", "h100-sxm", *line.split(), "--json")
    assert result.code == 0, result.err
    parts = {"--fsdp 2 --batch 8": 2, "--dp 2 --micro-batches 3 --batch 24": 6}.get(line, 1)
    assert (result.json["inputs"]["batch"], result.json["inputs"]["seq"]) == (4 * parts, 32)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--batch 8", "batch = 8 does not fit words: the graph was traced with 4"),
        ("--seq 16", "seq = 16 does not fit words: the graph was traced with 32"),
        (
            "--dp 2 --micro-batches 2 --batch 4",
            "batch = 4 does not fit words: the graph was traced with 4 on each GPU and in each micro-batch, 16 in all",
        ),
    ],
)
def test_other_sizes_than_those_of_a_traced_graph_are_refused_with_both(tilecast, tmp_path, line, said):
    words().save(tmp_path / "words.graph.json")
    result = tilecast("step", str(tmp_path / "words.graph.json"), "--gpu", "h100-sxm", *line.split())
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_the_images_of_a_convolution_are_the_batch_of_a_traced_graph():
    image, kernel = TensorShape("fp32", (4, 3, 32, 32)), TensorShape("fp32", (8, 3, 3, 3))
    options = (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1)), ("transposed", False), ("groups", 1))
    node = Node("aten.convolution", "forward", (image, kernel), (TensorShape("fp32", (4, 8, 30, 30)),), options=options)
    graph = OpGraph(name="images", mode="inference", segments=(Segment(1, (node,)),), parameters=((kernel, 1),))
    assert predict_step(graph, "h100-sxm", batch=4).step_s == predict_step(graph, "h100-sxm").step_s
    with pytest.raises(InvalidInput, match="traced with 4"):
        predict_step(graph, "h100-sxm", batch=3)


def test_a_traced_graph_keeps_its_own_format_and_may_run_as_tf32():
    tensor = TensorShape("bf16", (512, 512))
    product = Node("aten.mm", "forward", (tensor, tensor), (tensor,))
    graph = OpGraph(name="made", mode="inference", segments=(Segment(1, (product,)),), parameters=((tensor, 1),))
    found = predict_step(graph, "h100-sxm")
    assert found.inputs["dtype"] == "bf16"
    assert found.mfu == pytest.approx(2 * 512**3 / (found.step_s.median * 989.4e12), rel=1e-3)
    assert predict_step(made(), "h100-sxm", dtype="tf32").inputs["dtype"] == "tf32"


@pytest.mark.parametrize(
    ("line", "said", "code"),
    [
        ("step GPT2-Large --gpu l4 --batch 0 --seq 128", "batch = 0 must be a whole number", 2),
        ("step GPT2-Large --gpu l4 --batch 99999999999999999 --seq 128", "must be a whole number from 1 to 1,099,511,627,776", 2),
        (
            "step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --pp 4 --micro-batches 8 --schedule interleaved "
            "--virtual-stages 20",
            "pp = 4 stages of virtual_stages = 20 groups are more than the 36 layers",
            2,
        ),
        ("step GPT2-Large --gpu l4 --seq 128", "batch and seq are missing", 2),
        ("step GPT2-Large --gpu l4 --batch 2 --seq 4096", "beyond the 1,024 positions", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 6 --seq 128 --micro-batches 4", "batch = 6 must be a multiple", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --micro-batches 2", "micro_batches is for training", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --recompute", "recompute is for training", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --dtype fp4", "dtype = 'fp4' must be one of", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --attention warp", "attention = 'warp' must be one of", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --runtime turbo", "runtime = 'turbo' must be one of eager, compiled", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --dp 4", "batch = 6 must be a multiple of 4 (dp 4)", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --dp -4", "dp = -4 must be a whole number from 1", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --fsdp many", "--fsdp 'many' must be a whole number", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --fsdp \u00b2", "--fsdp '\u00b2' must be a whole number", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --fsdp", "or stand alone behind --dp of two and more", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --tp 3", "tp = 3 must divide the 20 attention heads", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --pp 40", "pp = 40 stages are more than the 36 layers", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --dp 2 --ep 2", "ep needs a model with experts", 2),
        ("step Switch-XL-4 --gpu l4 --mode training --batch 9 --seq 128 --dp 3 --ep 3", "ep = 3 must divide the 4 experts", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --dp 2 --zero 3", "zero = 3 must be one of 0, 1, 2", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --pp 2 --schedule zigzag", "schedule = 'zigzag' must be one of", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --pp 2 --virtual-stages 2", "needs the schedule interleaved", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 16 --seq 128 --dp 16", "its network is not known; give", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 8 --seq 128 --dp 2 --trace out.txt", "--trace 'out.txt' must end in .json", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 6 --seq 128 --optimizer lion", "optimizer = 'lion' must be one of", 2),
        ("step GPT2-Large --gpu l4 --batch 6 --seq 128 --optimizer adam --no-optimizer", "exclude one another", 2),
        ("step GPT2-Large --gpu l4 --mode training --batch 6 --seq 128 --recompute --recompute-attention", "exclude one another", 2),
        ("step GPT7 --gpu l4 --batch 6 --seq 128", "unknown model 'GPT7'", 2),
        ("step nowhere.graph.json --gpu l4", "cannot read nowhere.graph.json", 3),
    ],
)
def test_a_wrong_question_is_one_sentence(tilecast, line, said, code):
    result = tilecast(*line.split())
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--mode training --zero 1", "zero = 1 divides what dp ranks hold alike, and dp = 1"),
        ("--mode training --tp 2 --zero 2", "zero = 2 divides what dp ranks hold alike, and dp = 1"),
        ("--mode training --dp 2 --fsdp 2 --zero 1", "zero = 1 and fsdp = 2 exclude one another"),
        ("--mode training --dp 4 --fsdp --zero 1", "zero = 1 and fsdp = 4 exclude one another"),
        ("--dp 2 --zero 1", "zero = 1 is for training"),
        ("--mode training --dp 2 --sequence-parallel", "sequence_parallel divides by tokens what tp leaves whole, and tp = 1"),
        ("--mode training --schedule interleaved", "schedule = 'interleaved' is an order of pipeline stages, and pp = 1"),
        ("--mode training --dp 2 --schedule gpipe", "schedule = 'gpipe' is an order of pipeline stages, and pp = 1"),
        ("--mode training --pp 2 --micro-batches 2 --schedule interleaved", "needs virtual_stages of 2 or more"),
        ("--mode training --dp 2 --no-overlap-gather", "overlap_gather is for dp with zero = 1 or 2"),
        ("--mode training --dp 2 --overlap-gather", "--overlap-gather is for --dp with --zero 1 or 2"),
    ],
)
def test_an_option_that_does_nothing_is_refused(tilecast, options, said):
    result = tilecast(*f"step GPT2-Large --gpu a100-sxm-80gb --batch 8 --seq 128 {options}".split())
    assert (result.code, result.out) == (2, "")
    assert said in result.err and len(result.err.strip().splitlines()) == 1


def test_a_list_of_layouts_may_have_options_that_do_nothing():
    asked = {"mode": "training", "batch": 8, "seq": 128}
    idle, plain = predict_layouts("GPT2-Large", "a100-sxm-80gb", [Layout(tp=2, schedule="gpipe"), Layout(tp=2)], **asked)
    assert idle.step_s == plain.step_s


def test_a_gather_behind_the_optimizer_is_asked_for_again_in_both_languages(tilecast):
    asked = "step GPT2-Large --gpu h100-sxm --mode training --batch 8 --seq 128 --dp 8 --zero 1".split()
    result = tilecast(*asked, "--no-overlap-gather")
    assert result.code == 0 and "--no-overlap-gather" in result.out
    assert "overlap_gather=False" in tilecast(*asked, "--no-overlap-gather", "--as-python").out
    assert "overlap" not in tilecast(*asked, "--as-python").out


def test_without_torch_the_extra_is_named(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "torch" or name.startswith("torch."):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"tilecast\[torch\]"):
        predict_step("meta-llama/Llama-3.1-8B", "l4", batch=1, seq=16)
    with pytest.raises(MissingExtra, match=r"tilecast\[torch\]"):
        package.trace(None, ())


def test_names_of_models_are_forgiving():
    same = {predict_step(name, "l4", batch=1, seq=128).step_s for name in ("GPT2-Large", "gpt2_large", "gpt2-large")}
    assert len(same) == 1
    with pytest.raises(UnknownName, match="BERT-Large"):
        predict_step("BERT-Larg", "l4", batch=1, seq=128)


def test_a_graph_of_views_runs_nothing():
    with pytest.raises(InvalidInput, match="runs no kernel"):
        predict_step(made(is_view=True), "l4")


# ---- the time line -----------------------------------------------------------------------------------------------


def ends_at(found, *tracks):
    return max(span.end_s for span in found.spans if span.track in tracks)


def test_the_time_line_of_one_gpu_has_both_clocks_and_ends_with_the_step():
    asked = {"mode": "training", "batch": 1, "seq": 64, "draw": True}
    for optimizer in ("adamw-per-tensor", "sgd-fused", None):
        found = predict_step("BERT-Large", "h100-sxm", **asked, optimizer=optimizer)
        assert found.host_wait_s > 0.1 * found.step_s.median  # small kernels: the host sets the pace
        assert ends_at(found, "stream") == pytest.approx(found.step_s.median, rel=1e-6)
        assert {span.track for span in found.spans} == {"host", "stream"}


@pytest.mark.parametrize("layout", [{"dp": 4}, {"dp": 4, "zero": 1}, {"fsdp": 4}, {"tp": 2, "dp": 2}, {"fsdp": 4, "micro_batches": 16}])
def test_the_time_line_of_many_gpus_ends_with_the_step(layout):
    found = predict_step("GPT2-Large", "a100-sxm-80gb", mode="training", batch=64, seq=128, draw=True, **layout)
    assert ends_at(found, "stream", "collectives") == pytest.approx(found.step_s.median, rel=1e-6)
    assert any("adamw (optimizer)" in span.name for span in found.spans)


def test_the_time_line_of_stages_shows_every_micro_batch_and_what_is_sent():
    layout = {"pp": 2, "dp": 2, "micro_batches": 16}
    found = predict_step("GPT2-Large", "a100-sxm-80gb", mode="training", batch=64, seq=128, draw=True, **layout)
    names = [span.name for span in found.spans if span.stage == 0]
    assert sum(name.startswith("micro-batch") for name in names) == 2 * 16
    assert sum(name.startswith("send micro-batch") for name in names) == 16
    assert "gradients that nothing hides" in names and "adamw (optimizer)" in names
    assert ends_at(found, "stream", "collectives") == pytest.approx(found.step_s.median, rel=1e-9)
    forward = predict_step("GPT2-Large", "a100-sxm-80gb", batch=64, seq=128, draw=True, pp=2, micro_batches=4)
    assert not any("backward" in span.name for span in forward.spans)


@pytest.mark.parametrize("schedule", [{}, {"schedule": "gpipe"}, {"schedule": "interleaved", "virtual_stages": 2}])
@pytest.mark.parametrize("layout", [{"pp": 2}, {"pp": 4, "tp": 2}, {"pp": 5}, {"pp": 4, "dp": 2, "zero": 1}, {"pp": 2, "fsdp": 2}])
def test_the_time_line_of_stages_ends_with_the_step(layout, schedule):
    asked = {"mode": "training", "batch": 40, "seq": 128, "micro_batches": 20, "draw": True}
    found = predict_step("GPT2-Large", "a100-sxm-80gb", **asked, **layout, **schedule)
    assert ends_at(found, "stream", "collectives") == pytest.approx(found.step_s.median, rel=1e-9)
    # What is drawn is as long as it takes, but for the stretch.
    micro = [span for span in found.spans if span.name.startswith("micro-batch")]
    busy_s = sum(part.time.median for part in found.breakdown if part.phase in ("forward", "loss", "backward") and part.launches)
    assert sum(span.end_s - span.start_s for span in micro) / layout["pp"] >= 0.99 * busy_s
    for stage in range(layout["pp"]):
        mine = sorted((span.start_s, span.end_s) for span in micro if span.stage == stage)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(mine))


@pytest.mark.parametrize("micro", [4, 16])
def test_the_time_line_of_interleaved_stages_shows_every_group_and_ends_with_the_step(micro):
    layout = {"pp": 4, "micro_batches": micro, "schedule": "interleaved", "virtual_stages": 3}
    found = predict_step("GPT2-Large", "a100-sxm-80gb", mode="training", batch=4 * micro, seq=128, draw=True, **layout)
    names = [span.name for span in found.spans if span.stage == 0]
    assert sum(name.startswith("micro-batch") for name in names) == 2 * 3 * micro
    # Of the first stage every group's result is sent on, and the gradients of all but the first group.
    assert sum(name.startswith("send micro-batch") for name in names) == (3 + 2) * micro
    assert ends_at(found, "stream", "collectives") == pytest.approx(found.step_s.median, rel=1e-9)
    (sent,) = found.collectives
    assert sum(span.name.startswith("send") for span in found.spans) == pytest.approx(sent.number * 4, abs=4)


def test_the_trace_is_what_perfetto_opens(tilecast, tmp_path):
    path = tmp_path / "step.json"
    assert (
        tilecast(*"step GPT2-Large --gpu a100-sxm-80gb --mode training --batch 8 --seq 128 --fsdp 8 --trace".split(), str(path)).code == 0
    )
    events = json.loads(path.read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {"collectives", "stream"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in drawn)
    spans = {cat: [(each["ts"], each["ts"] + each["dur"]) for each in drawn if each["cat"] == cat] for cat in ("stream", "collectives")}
    assert any(a < y and x < b for a, b in spans["collectives"] for x, y in spans["stream"])  # gathers run beside kernels


def test_a_text_shorter_than_the_saved_graphs_says_so_when_torch_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"12 tokens: the saved graph is for 64 and more\) needs the extra 'torch'"):
        predict_step("GPT2-Large", "h100-sxm", batch=8, seq=12)
    with pytest.raises(MissingExtra, match=r"\(inference, bf16, eager attention\) needs"):
        predict_step("GPT2-Large", "h100-sxm", batch=8, seq=12, dtype="bf16")


def test_an_optimizer_of_a_forward_pass_is_refused(tilecast):
    asked = "step GPT2-Large --gpu h100-sxm --batch 8 --seq 128 --optimizer adamw".split()
    refused = tilecast(*asked, "--json")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "tilecast: --optimizer adamw is for training: an inference pass updates nothing\n"
    assert tilecast(*asked, "--mode", "training", "--json").code == 0


@pytest.mark.parametrize(
    "asked",
    [
        "step GPT2-Large --batch 8 --seq 128 --tp 2", "kernel all_reduce --bytes 1024 --num-gpus 8",
        "predict Qwen/Qwen3-8B --tp 2 --batch 1 --isl 16 --osl 2",
    ],
)  # fmt: skip
def test_another_gpus_box_is_used_with_a_note_and_an_unknown_one_is_refused(tilecast, asked):
    note = "tilecast: dgx-b200 holds b200-sxm, not h100-sxm: only its links are used\n"
    for node, expected in (("dgx-b200", note), ("dgx-h100", "")):
        answered = tilecast(*asked.split(), "--gpu", "h100-sxm", "--node", node, "--json")
        assert (answered.code, answered.err) == (0, expected)
    assert tilecast(*asked.split(), "--gpu", "h100-sxm", "--node", "nosuch").code == 2


def test_an_unknown_box_is_refused_for_one_gpu_too():
    with pytest.raises(UnknownName, match="nosuch"):
        predict_step("GPT2-Large", "h100-sxm", batch=8, seq=128, node="nosuch")


# ---- MPT's flash attention ---------------------------------------------------------------------------------------


def mpt_times(gpu, attention):
    found = predict_step("mosaicml/mpt-1b", gpu, mode="training", batch=4, seq=512, dtype="bf16", attention=attention)
    return [time.median for time in (found.forward_s, found.backward_s, found.step_s)]


@pytest.mark.parametrize("gpu", ["l40s", "b200", "rtx-5090", "mi300x"])
def test_mpts_flash_attention_is_pytorchs_on_gpus_that_its_trainer_never_saw(gpu):
    assert mpt_times(gpu, "flash") == mpt_times(gpu, None) == mpt_times(gpu, "sdpa")


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "a40", "rtx-3090"])
def test_mpts_flash_attention_is_its_trainers_up_to_ampere(gpu):
    assert mpt_times(gpu, "flash") == mpt_times(gpu, None) != mpt_times(gpu, "sdpa")


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_flash_is_flash_attention_2_on_hopper_and_sdpa_is_faster_there(mode):
    """FlashAttention-3's authors: 2 reaches 335 of the 989 TFLOP/s there, cuDNN about 550 (heads of 128)."""

    def attention_s(attention):
        found = predict_step("mosaicml/mpt-7b", "h100-sxm", mode=mode, batch=4, seq=2048, dtype="bf16", attention=attention, optimizer=None)
        return sum(line.time.median for line in found.breakdown if "scaled_dot_product" in line.name)

    assert 1.2 < attention_s("flash") / attention_s("sdpa") < 1.8


def test_more_work_never_shortens_a_step_whose_optimizer_the_host_launches():
    asked = {"mode": "training", "dtype": "bf16", "seq": 1024, "dp": 4, "fsdp": 8, "micro_batches": 2, "optimizer": "adamw-per-tensor"}
    steps = [predict_step("mosaicml/mpt-1b", "b200-sxm", batch=batch, master_weights=True, **asked) for batch in (64, 128, 256, 512)]
    for less, more in itertools.pairwise(steps):
        assert more.step_s.median > less.step_s.median and more.optimizer_s.median <= 1.001 * less.optimizer_s.median
