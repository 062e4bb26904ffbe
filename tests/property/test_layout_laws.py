"""Laws of a step on many GPUs, and volumes worked by hand."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilecast import hardware
from tilecast.engines.distributed import Held, Work, backward_pass, exposed, forward_pass, gradients_left_s, weights_left_s, whole_step
from tilecast.engines.messages import Messages, Pass
from tilecast.engines.schedules import gpipe, interleaved, one_forward_one_backward, run_in_order
from tilecast.engines.step import predict_layouts, predict_step
from tilecast.workloads.aten import matrix_flop
from tilecast.workloads.divided import undivided
from tilecast.workloads.expert_parallel import expert_parallel
from tilecast.workloads.fusion import compiled
from tilecast.workloads.layout import Layout, Members, members
from tilecast.workloads.opgraph import renamed
from tilecast.workloads.recompute import recomputed
from tilecast.workloads.stages import Layers, layers, layers_of
from tilecast.workloads.step_models import model_graph
from tilecast.workloads.tensor_parallel import tensor_parallel

MODEL, GPU = "mosaicml/mpt-1b", "a100-sxm-80gb"
ASKED = {"mode": "training", "batch": 64, "seq": 512, "dtype": "bf16"}
GPT3, GPT3_ASKED = "GPT3-2.7B", {"mode": "training", "batch": 4, "seq": 512, "dtype": "fp32"}
times = st.floats(1e-4, 1.0)


def parts(number: int) -> Layers:
    return Layers(number=number, forward=frozenset(), backward=frozenset(), places={})


def flop(graph):
    return sum(matrix_flop(node) * number for node, number in graph.counted().items())


# ---- one GPU, and bounds ------------------------------------------------------------------------------------------


def test_one_gpu_is_the_plain_step():
    alone = predict_step(MODEL, GPU, **ASKED | {"batch": 8})
    listed = predict_layouts(MODEL, GPU, [Layout()], **ASKED | {"batch": 8})[0]
    assert listed.step_s == alone.step_s and listed.memory == alone.memory and alone.communication_s.median == 0.0


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused", "adamw-per-tensor", "sgd-per-tensor"])
@pytest.mark.parametrize("how", [{"dp": 2}, {"dp": 2, "micro_batches": 2}])
def test_the_same_work_on_each_of_two_gpus_waits_as_long_for_the_host(optimizer, how):
    asked = {"mode": "training", "seq": 64, "optimizer": optimizer}
    micro = how.get("micro_batches", 1)
    alone = predict_step("BERT-Large", "h100-sxm", **asked, batch=micro, micro_batches=micro)
    both = predict_step("BERT-Large", "h100-sxm", **asked, batch=2 * micro, **how)
    hidden_s = alone.optimizer_s.median - both.optimizer_s.median  # launched while the GPU waits for messages
    assert -1e-9 <= hidden_s <= 1.02 * both.communication_s.median
    assert both.host_wait_s == pytest.approx(alone.host_wait_s - hidden_s)
    assert both.step_s.median >= (1 - 1e-9) * alone.step_s.median
    assert sum(part.share_fraction for part in both.breakdown) == pytest.approx(1.0, abs=1e-6)


def test_an_optimizer_that_goes_tensor_by_tensor_is_launched_by_the_host_of_every_stage():
    # 398 tensors x 8 operations x 12 us = 38.2 ms, 0.2 of them while the backward pass ends. Of two stages each has 12 of 24 layers of 16
    # tensors, and of what is around them about a tenth of all weights.
    asked = {"mode": "training", "seq": 64, "optimizer": "adamw-per-tensor"}
    sharded = predict_step("BERT-Large", "h100-sxm", **asked, batch=2, fsdp=2)
    launched_s = 398 * 8 * 12e-6
    assert 0.99 * launched_s - sharded.communication_s.median <= sharded.optimizer_s.median < launched_s
    staged = predict_step("BERT-Large", "h100-sxm", **asked, batch=4, pp=2, micro_batches=4)
    assert 12 * 16 * 8 * 12e-6 < staged.optimizer_s.median < (12 * 16 + 40) * 8 * 12e-6


@pytest.mark.parametrize(
    "how", [{"dp": 8}, {"fsdp": 8}, {"tp": 8}, {"pp": 8, "micro_batches": 8}, {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 4}]
)
def test_no_layout_beats_its_share_of_the_work(how):
    spread = predict_step(MODEL, GPU, **ASKED, **how)
    bound_s = sum(part.bound_s for part in spread.breakdown if part.phase in ("forward", "loss", "backward"))
    assert bound_s <= spread.forward_s.median + spread.backward_s.median
    assert 0.0 < spread.mfu < 1.0
    assert spread.step_s.low <= spread.step_s.median <= spread.step_s.high
    assert sum(part.share_fraction for part in spread.breakdown) == pytest.approx(1.0, abs=1e-6)
    phases = (spread.forward_s, spread.backward_s, spread.optimizer_s)
    assert spread.step_s.median == pytest.approx(sum(phase.median for phase in phases))


STAGES = {"pp": 4, "micro_batches": 8}
LAYOUTS = [
    {}, {"dp": 8}, {"fsdp": 8}, {"dp": 2, "fsdp": 4}, {"dp": 8, "zero": 1}, {"dp": 8, "zero": 2}, {"tp": 8},
    {"dp": 8, "zero": 1, "overlap_gather": False}, {"dp": 4, "zero": 1} | STAGES | {"schedule": "interleaved", "virtual_stages": 2},
    {"tp": 4, "sequence_parallel": True}, STAGES, STAGES | {"schedule": "gpipe"}, STAGES | {"schedule": "interleaved", "virtual_stages": 2},
    {"fsdp": 4, "pp": 2, "micro_batches": 4}, {"dp": 4, "tp": 2, "pp": 2, "zero": 1, "micro_batches": 4, "sequence_parallel": True},
]  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw", None])
@pytest.mark.parametrize("how", LAYOUTS)
def test_a_step_is_its_phases_and_communication_is_part_of_them(how, optimizer):
    found = predict_step(MODEL, GPU, **ASKED | {"batch": 32}, optimizer=optimizer, **how)
    for side in ("median", "low", "high"):
        phases = [getattr(getattr(found, name), side) for name in ("forward_s", "backward_s", "optimizer_s")]
        assert sum(phases) == pytest.approx(getattr(found.step_s, side), rel=1e-12)
        assert getattr(found.communication_s, side) <= sum(phases)
    assert sum(found.exposed_s.values()) == pytest.approx(found.communication_s.median, rel=1e-12)
    for phase, open_s in found.exposed_s.items():
        assert 0.0 <= open_s <= getattr(found, f"{phase}_s").median
    assert optimizer or found.optimizer_s.median == 0.0
    # What a phase does not wait for, it computes: the lines of the breakdown, which has communication apart.
    spent = {name: sum(part.time.median for part in found.breakdown if part.phase == name) for name in ("optimizer", "communication")}
    assert spent["communication"] == pytest.approx(found.communication_s.median)
    assert spent["optimizer"] == pytest.approx(found.optimizer_s.median - found.exposed_s["optimizer"])


def test_every_phase_waits_for_its_own_messages():
    asked = ASKED | {"batch": 32}
    waits = {name: predict_step(MODEL, GPU, **asked, **how).exposed_s for name, how in
             {"dp": {"dp": 8}, "zero": {"dp": 8, "zero": 1}, "behind": {"dp": 8, "zero": 1, "overlap_gather": False}, "fsdp": {"fsdp": 8},
              "tp": {"tp": 8}}.items()}  # fmt: skip
    assert [waits["dp"][phase] > 0 for phase in ("forward", "backward", "optimizer")] == [False, True, False]
    assert [waits["zero"][phase] > 0 for phase in ("forward", "backward", "optimizer")] == [True, True, False]
    assert [waits["behind"][phase] > 0 for phase in ("forward", "backward", "optimizer")] == [False, True, True]
    assert waits["zero"]["forward"] < waits["behind"]["optimizer"]
    assert [waits["fsdp"][phase] > 0 for phase in ("forward", "backward", "optimizer")] == [True, True, False]
    # Sums behind a weight's gradient hide in the backward pass alone.
    assert waits["tp"]["forward"] > waits["tp"]["backward"] > 0.0
    passed = predict_step("GPT3-XL", GPU, mode="inference", batch=8, seq=512, tp=8)
    assert passed.exposed_s["forward"] == passed.communication_s.median > 0.0 == passed.backward_s.median


def test_no_phase_gets_shorter_where_another_stage_is_last():
    # With messages the last stage has less forward work ahead than without: the phase that grows takes all of it.
    assert exposed(Pass(5.0, 5.0), Pass(4.0, 7.0), 0.5) == (0.0, 1.0, 0.5)
    assert exposed(Pass(5.0, 5.0), Pass(7.0, 4.0), 0.0) == (1.0, 0.0, 0.0)
    assert exposed(Pass(5.0, 5.0), Pass(5.5, 6.0), 0.0) == (0.5, 1.0, 0.0)


@pytest.mark.parametrize("how", [{"dp": 16}, {"fsdp": 16}, {"tp": 8, "dp": 2}, {"pp": 16, "micro_batches": 16}])
def test_faster_links_and_networks_are_never_slower(how):
    box = hardware.node("dgx-a100")
    steps = []
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
        rates = {name: factor * getattr(box, name) for name in ("link_bytes_per_s", "pair_bytes_per_s", "network_bytes_per_s")}
        steps.append(predict_step(MODEL, GPU, **ASKED, **how, node=replace(box, **rates)).step_s.median)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_more_micro_batches_shrink_the_bubble():
    steps = [predict_step(MODEL, GPU, **ASKED, pp=4, micro_batches=micro) for micro in (1, 4, 16)]
    bubbles = [sum(part.time.median for part in step.breakdown if part.name == "pipeline bubble") for step in steps]
    assert bubbles[0] > bubbles[1] > bubbles[2] > 0.0


def test_sharding_moves_bytes_to_other_gpus_and_costs_messages():
    whole, states, gradients, weights = (
        predict_step(MODEL, GPU, **ASKED, **how).memory for how in ({"dp": 8}, {"dp": 8, "zero": 1}, {"dp": 8, "zero": 2}, {"fsdp": 8})
    )
    assert states.optimizer_bytes == pytest.approx(whole.optimizer_bytes / 8, rel=1e-6)
    assert gradients.gradients_bytes == pytest.approx(whole.gradients_bytes / 8, rel=1e-6)
    assert weights.total_bytes < gradients.total_bytes < states.total_bytes < whole.total_bytes
    assert weights.activations_bytes == whole.activations_bytes


def test_recomputation_trades_time_for_memory():
    plain, selective, full = (predict_step(MODEL, GPU, **ASKED, fsdp=8, recompute=how) for how in (False, "selective", "full"))
    assert plain.step_s.median < selective.step_s.median < full.step_s.median
    assert plain.memory.saved_bytes > selective.memory.saved_bytes > full.memory.saved_bytes
    # MFU counts model FLOP alone: the same FLOP in more time.
    assert full.mfu * full.step_s.median == pytest.approx(plain.mfu * plain.step_s.median)


def test_model_flop_and_weights_are_those_of_the_whole_model():
    plain, divided = (predict_step(MODEL, GPU, **ASKED, **how) for how in ({"dp": 8}, {"tp": 8}))
    assert divided.inputs["num_parameters"] == plain.inputs["num_parameters"]
    assert divided.mfu * divided.step_s.median == pytest.approx(plain.mfu * plain.step_s.median)


def test_layers_that_run_again_add_their_sums_again():
    plain, again = (predict_step(MODEL, GPU, **ASKED, tp=8, recompute=how).collectives[0] for how in (False, True))
    assert (plain.number, again.number) == (4 * 24, 6 * 24)
    graph = model_graph(MODEL, mode="training", batch=8, seq=512, dtype="bf16")
    stopped = renamed(graph, segments=recomputed(graph.segments), recompute=True)
    # Today the second run stops before the last product of a layer: attention's sum is made again, the other is not.
    assert tensor_parallel(undivided(stopped), 8).sums == (2.0, 1.0)
    assert flop(graph) < flop(stopped) < flop(renamed(graph, segments=recomputed(graph.segments, stops_early=False)))


def test_a_part_may_be_compiled():
    eager, fused = (predict_step("GPT2-Large", GPU, batch=8, seq=512, tp=4, runtime=how) for how in ("eager", "compiled"))
    assert fused.step_s.median < eager.step_s.median
    assert fused.communication_s.median == pytest.approx(eager.communication_s.median)


def test_many_layouts_are_each_what_it_is_alone():
    layouts = [Layout(fsdp=8), Layout(tp=4, dp=2), Layout(pp=4, dp=2, micro_batches=4), Layout(fsdp=8)]
    together = predict_layouts(MODEL, GPU, layouts, **ASKED)
    for layout, found in zip(layouts, together, strict=True):
        how = {name: value for name, value in layout.to_dict().items() if name != "num_gpus"}
        assert found.to_dict() == predict_step(MODEL, GPU, **ASKED, **how).to_dict()


# ---- volumes by hand ----------------------------------------------------------------------------------------------


def test_fsdp_gathers_every_weight_twice_and_scatters_every_gradient_once():
    # 24 layers of 12 h^2 + 13 h elements (h = 2048) in 2 bytes: 100.7 MB each. Two gathers of a layer and one scatter, four micro-batches.
    found = predict_step(MODEL, GPU, **ASKED, fsdp=8, micro_batches=4)
    layer = 2 * (12 * 2048**2 + 13 * 2048)
    told = {(each.family, each.bytes): each.number for each in found.collectives}
    assert told["all_gather", layer] == 2 * 24 * 4
    assert told["reduce_scatter", layer] == 24 * 4
    # The rest: embedding 50368 x 2048, positions 512 x 2048, the last norm; gathered once.
    rest = 2 * (50368 * 2048 + 512 * 2048 + 2 * 2048)
    assert told["all_gather", rest] == told["reduce_scatter", rest] == 4


def test_replicas_add_every_gradient_once_whatever_the_micro_batches():
    found = predict_step(MODEL, GPU, **ASKED, dp=8, micro_batches=4)
    assert sum(each.bytes * each.number for each in found.collectives) == pytest.approx(2 * found.inputs["num_parameters"], rel=1e-6)


@pytest.mark.parametrize(
    ("how", "weights"),
    [({"zero": 1}, 40e6), ({"zero": 2}, 40e6), ({"master_weights": True, "fp32_gradients": True}, 40e6), ({}, 25 * 2**20 / 2)],
)
def test_buckets_of_gradients_are_megatrons_where_its_buffers_hold_them(how, weights):
    # Its distributed_data_parallel.py: the larger of 40 million weights and a million for every replica; PyTorch's have 25 MiB.
    for replicas in (8, 64):
        found = predict_step(MODEL, GPU, **ASKED, dp=replicas, **how)
        number = sum(each.number for each in found.collectives if each.family in ("reduce_scatter", "all_reduce"))
        least = found.inputs["num_parameters"] / (max(weights, 1e6 * replicas) if weights == 40e6 else weights)
        assert least <= number < least + 2  # of layers, and of what lies around them


def test_tensor_parallel_adds_two_activations_a_layer_each_way():
    # Micro-batch of 64 / 1 texts x 512 tokens x 2048 x 2 bytes; 2 sums forward and 2 backward in 24 layers.
    found = predict_step(MODEL, GPU, **ASKED, tp=8)
    (one,) = found.collectives
    assert (one.family, one.bytes, one.number, one.ranks, one.per_node) == ("all_reduce", 64 * 512 * 2048 * 2, 4 * 24, 8, 8)
    both = predict_step(MODEL, GPU, **ASKED, tp=8, sequence_parallel=True).collectives
    # Inputs of the first layer of a pair are not kept whole: backwards they are gathered once more.
    assert {each.family: each.number for each in both} == {"reduce_scatter": 4 * 24, "all_gather": 6 * 24}


def test_sequence_parallelism_waits_for_gradients_that_it_gathers():
    # No product can run before: two gathers a layer and micro-batch are waited for, at least.
    plain = predict_step(MODEL, GPU, **ASKED, tp=8, sequence_parallel=True)
    gather = next(each for each in plain.collectives if each.family == "all_gather")
    assert plain.exposed_s["backward"] >= 2 * 24 * gather.total_s / gather.number


def test_stages_send_activations_forward_and_gradients_back():
    # Each of 3 boundaries between 4 stages carries 8 micro-batches both ways: 48 messages, 12 for each GPU on average.
    found = predict_step(MODEL, GPU, **ASKED, pp=4, micro_batches=8)
    (one,) = found.collectives
    assert (one.family, one.bytes, one.number) == ("send_recv", 8 * 512 * 2048 * 2, 12)


@pytest.mark.parametrize("runtime", ["eager", "compiled"])
@pytest.mark.parametrize("model", ["GPT2-Large", "BERT-Large", "OPT-1.3B"])
def test_stages_send_the_residual_stream_whatever_ends_a_layer(model, runtime):
    # Dropout, compiled, ends in a kernel that writes its mask first. 2 texts of 512 tokens, 1,280, 1,024 and 2,048 wide, in fp32.
    hidden = {"GPT2-Large": 1280, "BERT-Large": 1024, "OPT-1.3B": 2048}[model]
    found = predict_step(model, GPU, mode="training", batch=8, seq=512, pp=2, micro_batches=4, runtime=runtime)
    assert [each.bytes for each in found.collectives] == [2 * 512 * hidden * 4]


def test_gpus_that_share_a_layer_send_a_part_each_and_put_the_parts_together():
    # 8 texts of 512 tokens x 2048 x 2 bytes are 16.8 MB: 4 GPUs send 4.2 each. 3 boundaries, 8 micro-batches, both ways: 12 for each GPU.
    whole = 8 * 512 * 2048 * 2
    told = {}
    for name, how in {"alike": {}, "by tokens": {"sequence_parallel": True}}.items():
        found = predict_step(MODEL, GPU, **ASKED, tp=4, pp=4, micro_batches=8, **how)
        told[name] = {each.name: (each.bytes, each.number) for each in found.collectives if "stages" in each.name}
    assert told["alike"] == {"send_recv (stages)": (whole // 4, 12), "all_gather (what stages sent)": (whole, 12)}
    assert told["by tokens"] == {"send_recv (stages)": (whole // 4, 12)}


def test_interleaved_groups_hand_on_from_the_last_stage_to_the_first():
    # 4 stages of 2 groups have 7 boundaries: 8 micro-batches both ways are 112 messages, 28 for each GPU on average.
    found = predict_step(MODEL, GPU, **ASKED, pp=4, micro_batches=8, schedule="interleaved", virtual_stages=2)
    (one,) = found.collectives
    assert (one.family, one.bytes, one.number) == ("send_recv", 8 * 512 * 2048 * 2, 28)


@given(times, times, st.integers(2, 6), st.integers(1, 3), st.integers(2, 4))
def test_interleaved_groups_of_equal_stages_wait_as_long_as_is_priced(forward, backward, stages, rounds, groups):
    drawn = run_in_order(interleaved(stages, rounds * stages, groups), [(forward, backward)] * stages, 0.0, groups)
    expected = (rounds * stages + (stages - 1) / groups) * (forward + backward)
    assert max(span.end_s for span in drawn) == pytest.approx(expected)
    for stage in range(stages):
        mine = sorted((span.start_s, span.end_s) for span in drawn if span.stage == stage)
        assert len(mine) == 2 * rounds * stages * groups
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(mine))


def test_groups_fill_a_node_in_megatrons_order():
    layout = Layout(tp=4, fsdp=4, dp=2, pp=2)
    assert members(layout, "tp", 8) == Members(4, 4)
    assert members(layout, "fsdp", 8) == Members(4, 2)
    assert members(layout, "dp", 8) == Members(2, 1)
    assert members(layout, "pp", 8) == Members(2, 1)
    assert members(Layout(dp=12), "dp", 8) == Members(12, 6)


# ---- what is divided ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["GPT2-Large", "BERT-Large", "OPT-1.3B", "mosaicml/mpt-1b"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_divides_the_products_and_weights(model, sequence_parallel):
    dtype = "bf16" if "mpt" in model else "fp32"
    whole = model_graph(model, mode="training", batch=2, seq=512, dtype=dtype)
    part = tensor_parallel(undivided(whole), 4, sequence_parallel=sequence_parallel).graph
    assert flop(whole) / flop(part) == pytest.approx(4.0, rel=1e-3)
    assert whole.num_parameters / part.num_parameters == pytest.approx(4.0, rel=0.02)  # norms and biases of sums are whole
    ratio = whole.live_bytes()["kept"] / part.live_bytes()["kept"]
    assert ratio > 3.9 if sequence_parallel else 1.5 < ratio < 3.9


def test_experts_keep_the_work_of_a_gpu_and_give_their_weights_away():
    whole = model_graph("Switch-XL-4", mode="training", batch=2, seq=512, dtype="fp32")
    part = expert_parallel(undivided(whole), 4)
    assert flop(part.graph) == pytest.approx(flop(whole))
    # 24 layers of 4 experts with two matrices of 16384 x 1024: 3 of 4 are elsewhere.
    assert whole.num_parameters - part.graph.num_parameters == 24 * 3 * 2 * 16384 * 1024
    assert part.exchanges == 24
    assert part.expert_numel == 24 * 2 * 16384 * 1024


def test_experts_that_nobody_shares_are_not_added_up():
    asked = {"mode": "training", "batch": 8, "seq": 512, "dtype": "fp32", "dp": 4}
    everywhere, spread = (predict_step("Switch-XL-4", GPU, **asked, **how) for how in ({}, {"ep": 4}))
    added = [sum(each.bytes * each.number for each in step.collectives if each.family == "all_reduce") for step in (everywhere, spread)]
    # 24 layers of 4 experts with two matrices of 16384 x 1024 in 4 bytes, no longer added up.
    assert added[0] - added[1] == pytest.approx(24 * 4 * 2 * 16384 * 1024 * 4, rel=0.02)
    sent = next(each for each in spread.collectives if each.family == "all_to_all")
    # There and back, forward and backward: 4 experts with room for 128 tokens of 1024 x 4 bytes.
    assert (sent.number, sent.bytes) == (4 * 24, 4 * 128 * 1024 * 4)


# Switch-XL-4 has 24 layers of 4 experts with two matrices of 16384 x 1024: 0.805e9 weights are a fourth of them, and of 5.268e9 in all
# 2.046e9 are no experts'.
EXPERTS, SHARED = 24 * 2 * 16384 * 1024, 2_046_390_272
SWITCH = {"mode": "training", "batch": 16, "seq": 512, "dtype": "fp32", "optimizer": "adamw-fused"}


@pytest.mark.parametrize(
    ("how", "copies"),
    [({"fsdp": 4}, 1), ({"fsdp": 8}, 2), ({"dp": 4, "zero": 1}, 1), ({"dp": 8, "zero": 2}, 2), ({"dp": 2, "fsdp": 4}, 1)],
)
def test_experts_are_sharded_by_the_gpus_that_hold_the_same_ones(how, copies):
    # Two fp32 states, 8 bytes a weight: with --fsdp 8 --ep 4 they are 8 x (2.046e9 / 8 + 0.805e9 / 2) = 5.27 GB, not 8 x 2.85e9 / 8 = 2.85.
    found = predict_step("Switch-XL-4", GPU, **SWITCH, **how, ep=4)
    ranks = how.get("fsdp") or how["dp"]
    shards = SHARED / ranks + EXPERTS / copies
    assert found.memory.optimizer_bytes == pytest.approx(8 * shards, rel=1e-6)
    # A fused update reads 4 numbers and writes 3 of 4 bytes for each weight of its shards.
    (update,) = (part for part in found.breakdown if part.phase == "optimizer")
    (whole,) = (part for part in predict_step("Switch-XL-4", GPU, **SWITCH, dp=4, ep=4).breakdown if part.phase == "optimizer")
    assert update.bound_s / whole.bound_s == pytest.approx(shards / (SHARED + EXPERTS), rel=1e-3)
    if how.get("zero") == 2:
        assert found.memory.gradients_bytes == pytest.approx(4 * shards, rel=1e-6)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("how", [{"tp": 8}, {"tp": 4, "pp": 2, "micro_batches": 2}])
@pytest.mark.parametrize("recompute", [False, "selective"])
def test_a_compiler_leaves_the_layers_and_their_messages_as_they_are(how, sequence_parallel, recompute):
    # Tokens that are divided are gathered before a product: a compiler that lost sight of them fused every third layer otherwise, so that
    # GPT3-2.7B had 10 layers of 32, and a third of its messages.
    eager, fused = (
        predict_step(GPT3, GPU, **GPT3_ASKED, **how, sequence_parallel=sequence_parallel, recompute=recompute, runtime=runtime)
        for runtime in ("eager", "compiled")
    )
    assert [(each.name, each.bytes, each.number) for each in fused.collectives] == [
        (each.name, each.bytes, each.number) for each in eager.collectives
    ]


@pytest.mark.parametrize("recompute", [False, "selective", "full"])
def test_a_compiled_layer_is_one_layer_however_tokens_are_divided(recompute):
    whole = model_graph(GPT3, **GPT3_ASKED | {"batch": 2}, recompute=recompute)
    for sequence_parallel in (False, True):
        divided = tensor_parallel(undivided(whole), 8, sequence_parallel=sequence_parallel)
        parts = layers_of(replace(divided, graph=compiled(divided.graph)))
        assert parts.number == layers(whole).number and all(parts.number - held <= 1 for held in parts.held.values())


@pytest.mark.parametrize("how", [{"fsdp": 4}, {"fsdp": 8}, {"dp": 4, "zero": 1}, {"dp": 8, "zero": 1}])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_gpus_that_shard_hold_the_whole_model_once_however_experts_are_spread(how, ep):
    found = predict_step("Switch-XL-4", GPU, **SWITCH, **how, ep=ep)
    assert found.num_gpus * found.memory.optimizer_bytes == pytest.approx(8 * (SHARED + 4 * EXPERTS), rel=1e-6)


def test_experts_are_gathered_and_scattered_by_the_gpus_that_hold_the_same_ones():
    alone, pairs = (predict_step("Switch-XL-4", GPU, **SWITCH, fsdp=ranks, ep=4) for ranks in (4, 8))
    assert {each.ranks for each in alone.collectives if each.family in ("all_gather", "reduce_scatter")} == {4}
    told = {(each.family, each.ranks): each.bytes * each.number for each in pairs.collectives if "sharded experts" in each.name}
    # Forward and backward 0.805e9 experts of 4 bytes between two GPUs, and their gradients once.
    assert told == {("all_gather", 2): 2 * 4 * EXPERTS, ("reduce_scatter", 2): 4 * EXPERTS}
    # Kept: an eighth of what all share and half of the experts; two of 24 layers, and what lies around them, are gathered at once.
    shared_layer = next(each.bytes for each in alone.collectives if each.family == "reduce_scatter")
    rest, expert_layer = 4 * SHARED - 24 * shared_layer, 4 * EXPERTS / 24
    assert pairs.memory.weights_bytes == pytest.approx(4 * (SHARED / 8 + EXPERTS / 2) + 2 * (shared_layer + expert_layer) + rest, rel=1e-6)
    assert alone.memory.weights_bytes == pytest.approx(4 * (SHARED / 4 + EXPERTS) + 2 * shared_layer + rest, rel=1e-6)


@pytest.mark.parametrize(("zero", "family"), [(0, "all_reduce"), (1, "reduce_scatter")])
def test_gradients_of_experts_are_added_by_the_gpus_that_hold_the_same_ones(zero, family):
    found = predict_step("Switch-XL-4", GPU, **SWITCH, dp=8, ep=4, zero=zero)
    told = {}
    for each in (each for each in found.collectives if each.family == family):
        told[each.ranks] = told.get(each.ranks, 0) + each.bytes * each.number
    assert told == {8: pytest.approx(4 * SHARED, rel=1e-6), 2: pytest.approx(4 * EXPERTS, rel=1e-6)}
    gathered = {each.ranks: each.bytes for each in found.collectives if each.family == "all_gather"}
    assert gathered == ({8: 4 * SHARED, 2: 4 * EXPERTS} if zero else {})


def test_micro_batches_add_the_gradients_of_a_gpus_own_shards():
    # Of four GPUs each has a fourth of all weights: of every expert, or every fourth expert whole.
    sharded, spread = (predict_step("Switch-XL-4", GPU, **SWITCH, fsdp=4, micro_batches=2, ep=ep) for ep in (1, 4))
    added = [sum(part.bound_s for part in found.breakdown if part.name == "accumulate_grad") for found in (sharded, spread)]
    assert added[1] == pytest.approx(added[0], rel=1e-3)


@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_ranks_of_experts_shards_and_replicas_are_all_ranks(tp, dp, fsdp, ep):
    if dp * fsdp % ep:
        ep = math.gcd(dp * fsdp, ep)
    layout = Layout(tp=tp, dp=dp, fsdp=fsdp, ep=ep)
    assert ep * layout.expert_fsdp * layout.expert_dp == dp * fsdp
    assert fsdp % layout.expert_fsdp == dp % layout.expert_dp == 0


def test_gpus_with_the_same_experts_lie_apart_in_a_node():
    # Every fourth GPU of 8 has the same experts; with tp = 2 every eighth: one in a node.
    assert members(Layout(dp=8, ep=4), "expert_dp", 8) == Members(2, 2)
    assert members(Layout(tp=2, fsdp=8, dp=2, ep=4), "expert_fsdp", 8) == Members(2, 1)
    assert members(Layout(tp=2, fsdp=8, dp=2, ep=4), "expert_dp", 8) == Members(2, 1)
    assert members(Layout(fsdp=2, dp=4, ep=4), "expert_fsdp", 8) == Members(1, 1)


@pytest.mark.parametrize(("model", "number"), [("GPT2-Large", 36), ("BERT-Large", 24), ("OPT-1.3B", 24), ("mosaicml/mpt-7b", 32)])
def test_layers_are_counted(model, number):
    graph = model_graph(model, mode="training", batch=2, seq=512, dtype="bf16" if "mpt" in model else "fp32")
    found = layers(graph)
    assert found.number == number
    assert sum(found.per_stage(5)) == number and max(found.per_stage(5)) - min(found.per_stage(5)) <= 1


# ---- the time line by hand ----------------------------------------------------------------------------------------


def work(front=1.0, layer=2.0, back=3.0, number=4) -> Work:
    return Work(front=Pass(front, 2 * front), layer=Pass(layer, 2 * layer), back=Pass(back, 2 * back), number=number)


def test_hidden_gathers_cost_the_first_one_alone():
    # The rest's weights 0.5, then before the layers 1.0 beside the first layer's gather of 0.25; nothing else waits.
    assert forward_pass(work(), Messages(gather_s=0.25, gather_rest_s=0.5), 4, first=True, last=True) == pytest.approx(
        0.5 + 1.0 + 4 * 2.0 + 3.0
    )


def test_slow_gathers_set_the_pace():
    # 0.5 for the rest, then four gathers of 10 one behind another, the last layer and what follows it.
    messages = Messages(gather_s=10.0, gather_rest_s=0.5)
    assert forward_pass(work(), messages, 4, first=True, last=True) == pytest.approx(0.5 + 4 * 10.0 + 2.0 + 3.0)


def test_gradients_hide_but_for_the_last():
    # Back 6, four layers of 4, front 2; a layer's sum of 1 hides behind the next, those of the front come last: 0.7.
    messages = Messages(reduce_s=1.0, reduce_rest_s=0.7)
    assert backward_pass(work(), messages, 4, first=True, last=True, reduces=True) == pytest.approx(6 + 4 * 4 + 2 + 0.7)
    assert backward_pass(work(), messages, 4, first=True, last=True, reduces=False) == pytest.approx(6 + 4 * 4 + 2)


def test_gradients_of_a_group_hide_behind_the_groups_behind_it():
    # 2 stages of 2 groups of a layer each, 2 micro-batches; a layer takes 4 backward, its gradients 7. Those of the second group begin when
    # its last micro-batch is through, and end 1 before the two of the first group do, at 8; the gradients of that are all that is left.
    held = Held(num_layers=2, reached=2, first=False, last=False, groups=2, in_turn=2)
    assert gradients_left_s(work(), Messages(reduce_s=7.0), held) == pytest.approx(7.0)
    # Slow ones follow one another on one link: 2 x 10 from the first's end on, 8 of them behind kernels.
    assert gradients_left_s(work(), Messages(reduce_s=10.0), held) == pytest.approx(2 * 10.0 - 8.0)
    # Without groups both layers have the last pass alone: the first sum hides behind the second layer's 4, then 3 + 7.
    assert gradients_left_s(work(), Messages(reduce_s=7.0), replace(held, groups=1)) == pytest.approx(2 * 7.0 - 4.0)
    # In the whole step, with stages, groups spare as much.
    plain, mixed = (
        whole_step(work(front=0.0, back=0.0), Messages(reduce_s=7.0), Layout(pp=2, micro_batches=2, dp=2, **how), parts(4))
        for how in ({}, {"schedule": "interleaved", "virtual_stages": 2})
    )
    busy, bubble = 2 * 2 * (2.0 + 4.0), 2 * (2.0 + 4.0)
    assert (plain, mixed) == (pytest.approx(busy + bubble + 10.0), pytest.approx(busy + bubble / 2 + 7.0))


def test_updated_weights_arrive_while_the_first_micro_batch_runs():
    # Before the layers 1, four layers of 2 each. Embeddings' weights take 0.5 and a layer's 1.5, in order: the first layer needs 0.5 + 1.5
    # and starts at 0.5 + 1.0, 0.5 too early; those behind it are there in time.
    held = Held(num_layers=4, reached=4, first=True, last=True)
    messages = Messages(updated_s=1.5, updated_rest_s=0.5)
    assert weights_left_s(work(), messages, [held]) == pytest.approx(0.5 + 0.5)
    # Slow ones set the pace: 0.5 + 4 x 5, then the last layer; without them it would start at 1 + 3 x 2.
    assert weights_left_s(work(), replace(messages, updated_s=5.0), [held]) == pytest.approx(20.5 - 7.0)
    # A stage that waits for its first micro-batch has them by then: the first stage alone says how long the step waits.
    assert weights_left_s(work(), messages, [held, replace(held, first=False)]) == pytest.approx(0.5 + 0.5)
    # Groups behind the first have as long as the micro-batches of those before them run.
    groups = replace(held, first=False, last=False, groups=2, in_turn=4)
    assert weights_left_s(work(), Messages(updated_s=4.0), [groups]) == pytest.approx(4.0 + (8.0 - 6.0))


@given(times, times, times, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.floats(0.0, 0.3))
def test_no_link_is_spared_and_none_is_busier_than_its_messages(layer, reduce, gather, stages, groups, rounds, taken):
    made = Work(front=Pass(0, 0), layer=Pass(layer, 2 * layer), back=Pass(0, 0), number=stages * groups)
    how = {"schedule": "interleaved", "virtual_stages": groups} if groups > 1 else {}
    layout = Layout(pp=stages, dp=2, zero=1, micro_batches=stages * rounds, **how)
    told = Messages(reduce_s=reduce, updated_s=gather, taken_fraction=taken)
    silent = whole_step(made, Messages(), layout, parts(stages * groups))
    spoken = whole_step(made, told, layout, parts(stages * groups))
    assert silent <= spoken <= silent + (1 + taken) * groups * (reduce + gather) + 1e-9
    assert spoken >= silent + min(reduce, gather)  # the last gradient and the first weight wait


@given(times, times, st.integers(1, 6), st.integers(1, 9))
def test_equal_stages_take_micro_batches_plus_stages_less_one(forward, backward, stages, micro):
    layout = Layout(pp=stages, micro_batches=micro)
    even = Work(front=Pass(0, 0), layer=Pass(forward, backward), back=Pass(0, 0), number=stages)
    assert whole_step(even, Messages(), layout, parts(stages)) == pytest.approx((micro + stages - 1) * (forward + backward))
    drawn = run_in_order(one_forward_one_backward(stages, micro), [(forward, backward)] * stages, 0.0)
    assert max(span.end_s for span in drawn) == pytest.approx((micro + stages - 1) * (forward + backward))


@settings(deadline=None)
@given(st.lists(st.tuples(times, times), min_size=1, max_size=5), st.integers(1, 6))
def test_no_schedule_runs_two_things_at_once_or_beats_its_busiest_stage(stages, micro):
    for schedule in (one_forward_one_backward, gpipe):
        drawn = run_in_order(schedule(len(stages), micro), stages, 0.01)
        assert max(span.end_s for span in drawn) >= max(micro * (forward + backward) for forward, backward in stages) - 1e-9
        for stage in range(len(stages)):
            mine = sorted((span.start_s, span.end_s) for span in drawn if span.stage == stage)
            assert len(mine) == 2 * micro
            assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(mine))


@given(times, st.integers(1, 4), st.integers(2, 8))
def test_interleaving_divides_the_bubble(layer, groups, stages):
    number, micro = stages * groups, 2 * stages
    made = Work(front=Pass(0, 0), layer=Pass(layer, 2 * layer), back=Pass(0, 0), number=number)
    plain = whole_step(made, Messages(), Layout(pp=stages, micro_batches=micro), parts(number))
    mixed = Layout(pp=stages, micro_batches=micro, schedule="interleaved", virtual_stages=groups)
    busy = micro * groups * 3 * layer
    assert whole_step(made, Messages(), mixed, parts(number)) - busy == pytest.approx((plain - busy) / groups)


def test_logits_are_the_last_stages_alone():
    # The first stage is the fullest, with four micro-batches in flight; the last has the logits, their wide copy and their gradient.
    asked = {"mode": "training", "dtype": "bf16", "batch": 16, "seq": 2048, "micro_batches": 8}
    whole, staged = (predict_step("mosaicml/mpt-1b", "h100-sxm", **asked, pp=stages).memory for stages in (1, 4))
    passing, in_layers = (memory.activations_bytes - memory.saved_bytes for memory in (whole, staged))
    assert 0 < in_layers < 0.3 * passing
