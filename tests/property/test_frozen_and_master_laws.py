"""Frozen weights and master weights on one GPU and on many: bytes held, bytes updated and bytes sent, worked by hand."""

import pytest

from tilecast.engines.distributed import Work, backward_pass, whole_step
from tilecast.engines.messages import Messages, Pass
from tilecast.engines.step import predict_step
from tilecast.errors import InvalidInput
from tilecast.workloads.divided import undivided
from tilecast.workloads.expert_parallel import expert_parallel
from tilecast.workloads.layout import Layout
from tilecast.workloads.opgraph import renamed
from tilecast.workloads.stages import Layers, layers
from tilecast.workloads.step_models import model_graph
from tilecast.workloads.tensor_parallel import tensor_parallel

MODEL, GPU = "mosaicml/mpt-1b", "a100-sxm-80gb"
ASKED = {"mode": "training", "batch": 64, "seq": 512, "dtype": "bf16"}
WIDTH, LAYERS, WORDS = 2048, 24, 50368
LAYER = 12 * WIDTH**2 + 13 * WIDTH  # elements: matrices, and biases with the weights of norms
REST = WORDS * WIDTH + 512 * WIDTH + 2 * WIDTH  # words, positions, the last norm
ALL = LAYERS * LAYER + REST


def told(found):
    return {(each.family, each.bytes): each.number for each in found.collectives}


# ---- master weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "weights", "gradients", "states"),
    [
        # The account of ZeRO: 2 bytes of weights, 2 of gradients, 12 of copy and moments; what is divided by 8 depends on the stage.
        ({"dp": 1, "micro_batches": 8}, 2.0, 2.0, 12.0),
        ({"dp": 8}, 2.0, 2.0, 12.0),
        ({"dp": 8, "zero": 1}, 2.0, 2.0, 12.0 / 8),
        ({"dp": 8, "zero": 2}, 2.0, 2.0 / 8, 12.0 / 8),
    ],
)
def test_sixteen_bytes_a_weight_less_what_is_shared(how, weights, gradients, states):
    memory = predict_step(MODEL, GPU, **ASKED, **how, optimizer="adamw-fused", master_weights=True).memory
    assert memory.weights_bytes == pytest.approx(weights * ALL)
    assert memory.gradients_bytes == pytest.approx(gradients * ALL)
    assert memory.optimizer_bytes == pytest.approx(states * ALL)


def test_sharded_master_weights_are_the_shard_of_all_and_what_is_gathered():
    memory = predict_step(MODEL, GPU, **ASKED, fsdp=8, optimizer="adamw-fused", master_weights=True).memory
    assert memory.weights_bytes == pytest.approx(2 * ALL / 8 + 2 * (2 * LAYER + REST))  # two layers ahead, and the rest
    assert memory.gradients_bytes == pytest.approx(2 * ALL / 8 + 2 * LAYER)
    assert memory.optimizer_bytes == pytest.approx(12 * ALL / 8)


def test_gradients_in_fp32_take_four_bytes_in_memory_and_on_the_link():
    narrow, wide = (
        predict_step(MODEL, GPU, **ASKED, dp=8, optimizer="adamw-fused", master_weights=True, fp32_gradients=choice)
        for choice in (False, True)
    )
    assert wide.memory.gradients_bytes == 2 * narrow.memory.gradients_bytes == 4 * ALL
    sent = [sum(each.bytes * each.number for each in found.collectives) for found in (narrow, wide)]
    assert sent == pytest.approx([2 * ALL, 4 * ALL], rel=1e-6)
    # Megatron's products add to 32 bits themselves. What is no product, tables of words and positions, biases and norms, is added to
    # what is there: 2 + 4 bytes read and 4 written.
    added = next(part for part in wide.breakdown if part.name == "accumulate_grad")
    assert added.bound_s == pytest.approx(10 * (REST + LAYERS * 13 * WIDTH) / 2.039e12, rel=0.01)
    assert not any(part.name == "accumulate_grad" for part in narrow.breakdown)


@pytest.mark.parametrize(
    ("optimizer", "plain", "master"),
    [
        # AdamW fused: 4 tensors in, 3 out, 2 bytes each. Master: 3 x 4 + 2 in, 3 x 4 + 2 out.
        ("adamw-fused", 14, 28),
        # SGD fused: 2 in, 1 out; 4 + 2 in, 4 + 2 out.
        ("sgd-fused", 6, 12),
        # Operation by operation 20 passes; of 4 bytes, and gradients made wide (2 + 4), weights copied (4 + 2).
        ("adamw", 40, 80 + 12),
    ],
)
def test_an_update_moves_its_bytes(optimizer, plain, master):
    for choice, each in ((False, plain), (True, master)):
        found = predict_step(MODEL, GPU, **ASKED | {"batch": 8}, optimizer=optimizer, master_weights=choice)
        (part,) = (part for part in found.breakdown if part.phase == "optimizer" and part.family == "optimizer_update")
        assert part.bound_s == pytest.approx(each * ALL / 2.039e12, rel=0.01)
        assert found.optimizer_s.median > part.bound_s


def test_what_an_optimizer_needs_while_it_updates_counts_where_it_is_most():
    small = {"mode": "training", "batch": 1, "seq": 128, "dtype": "bf16"}
    fused, lists, master = (
        predict_step(MODEL, GPU, **small, **how).memory.activations_bytes
        for how in (
            {"optimizer": "adamw-fused"},
            {"optimizer": "adamw"},  # one list of intermediates as large as the weights
            {"optimizer": "adamw", "master_weights": True},  # in fp32, and gradients in fp32
        )
    )
    total = ALL - 384 * WIDTH  # positions of 128 tokens
    assert fused < lists == 2 * total and master == 8 * total


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "amp"}, "with dtype = amp they are fp32 already"),
        ({"mode": "inference"}, "is for training with an optimizer"),
        ({"optimizer": None}, "is for training with an optimizer"),
        ({"master_weights": False, "fp32_gradients": True}, "fp32_gradients needs master_weights"),
    ],
)
def test_master_weights_that_nobody_keeps_are_refused(changes, said):
    with pytest.raises(InvalidInput, match=said):
        predict_step(MODEL, GPU, **ASKED | {"master_weights": True} | changes)


# ---- frozen weights -----------------------------------------------------------------------------------------------


def only_vectors(batch=64, seq=512):
    """Biases and norms are trained, matrices and tables are not: 13 h in every layer and 2 h after them."""
    graph = model_graph(MODEL, mode="training", batch=batch, seq=seq, dtype="bf16")
    trained = tuple(entry for entry in graph.parameters if len(entry[0].shape) == 1)
    return renamed(graph, parameters=trained, frozen=tuple(entry for entry in graph.parameters if len(entry[0].shape) > 1))


VECTORS = LAYERS * 13 * WIDTH + 2 * WIDTH


def test_nothing_frozen_changes_nothing():
    graph = model_graph(MODEL, mode="training", batch=8, seq=512, dtype="bf16")
    assert graph.weights == graph.parameters and layers(graph).reached == LAYERS
    assert predict_step(graph, GPU, dp=8).step_s == predict_step(MODEL, GPU, **ASKED, dp=8).step_s


def test_replicas_add_trained_gradients_alone():
    found = predict_step(only_vectors(), GPU, dp=8)
    assert sum(each.bytes * each.number for each in found.collectives) == pytest.approx(2 * VECTORS, rel=1e-6)
    assert found.memory.weights_bytes == 2 * ALL
    assert found.memory.gradients_bytes == 2 * VECTORS
    assert found.memory.optimizer_bytes == 2 * 2 * VECTORS


def test_a_sharded_optimizer_divides_and_gathers_trained_weights_alone():
    found = predict_step(only_vectors(), GPU, dp=8, zero=2)
    assert told(found)["all_gather", 2 * VECTORS] == 1
    assert found.memory.weights_bytes == 2 * ALL
    assert found.memory.gradients_bytes == pytest.approx(2 * VECTORS / 8)
    assert found.memory.optimizer_bytes == pytest.approx(4 * VECTORS / 8)


def test_fsdp_gathers_all_weights_and_scatters_trained_gradients():
    found = predict_step(only_vectors(), GPU, fsdp=8, micro_batches=2)
    sizes = told(found)
    assert sizes["all_gather", 2 * LAYER] == 2 * LAYERS * 2
    assert sizes["all_gather", 2 * REST] == 2
    assert sizes["reduce_scatter", 2 * 13 * WIDTH] == LAYERS * 2
    assert sizes["reduce_scatter", 2 * 2 * WIDTH] == 2
    assert found.memory.weights_bytes == pytest.approx(2 * ALL / 8 + 2 * (2 * LAYER + REST))
    assert found.memory.gradients_bytes == pytest.approx(2 * VECTORS / 8 + 2 * 13 * WIDTH)
    assert found.memory.optimizer_bytes == pytest.approx(4 * VECTORS / 8)


def test_tensor_parallel_divides_frozen_weights_like_trained_ones():
    whole = model_graph(MODEL, mode="training", batch=64, seq=512, dtype="bf16")
    plain, frozen = (tensor_parallel(undivided(graph), 8) for graph in (whole, only_vectors()))
    assert frozen.graph.weights_bytes == plain.graph.weights_bytes
    assert (frozen.sums, frozen.reduced_bytes) == (plain.sums, plain.reduced_bytes)
    # Divided: biases of 3 h and 4 h; whole: two norms of 2 h and two biases of h that follow a sum.
    assert frozen.graph.num_trained == LAYERS * (7 * WIDTH // 8 + 6 * WIDTH) + 2 * WIDTH


def test_stages_hold_frozen_weights_and_update_their_own():
    plain = predict_step(MODEL, GPU, **ASKED, pp=4, micro_batches=8)
    frozen = predict_step(only_vectors(batch=8), GPU, pp=4, micro_batches=8)
    assert frozen.memory.weights_bytes == plain.memory.weights_bytes == 2 * (6 * LAYER + REST)
    assert frozen.memory.gradients_bytes == 2 * (6 * 13 * WIDTH + 2 * WIDTH)
    assert told(frozen) == told(plain)


def test_frozen_experts_are_spread_and_never_added_up():
    whole = model_graph("Switch-XL-4", mode="training", batch=2, seq=512, dtype="fp32")
    part = expert_parallel(undivided(whole), 4)
    experts = {(16384, 1024), (1024, 16384)}
    stays = tuple(entry for entry in whole.parameters if entry[0].shape in experts)
    graph = renamed(whole, frozen=stays, parameters=tuple(entry for entry in whole.parameters if entry not in stays))
    frozen = expert_parallel(undivided(graph), 4)
    assert frozen.graph.num_parameters == part.graph.num_parameters
    assert frozen.expert_numel == 0
    everywhere, spread = (predict_step(graph, GPU, dp=4, ep=ep) for ep in (1, 4))
    added = [sum(each.bytes * each.number for each in step.collectives if each.family == "all_reduce") for step in (everywhere, spread)]
    assert added[0] == pytest.approx(4 * graph.num_trained, rel=1e-6) and added[1] == pytest.approx(added[0], rel=1e-6)


def test_the_backward_pass_ends_at_the_first_trained_layer():
    # Head 6, then the last two of four layers at 4; replicas add those two (1 each, one hidden) and the rest, 0.7, behind them.
    made = Work(front=Pass(1.0, 0.0), layer=Pass(2.0, 4.0), back=Pass(3.0, 6.0), number=4)
    messages = Messages(reduce_s=1.0, reduce_rest_s=0.7)
    assert backward_pass(made, messages, 4, first=True, last=True, reduces=True, reached=2) == pytest.approx(6 + 2 * 4 + 1 + 0.7)
    assert backward_pass(made, messages, 2, first=True, last=False, reduces=True, reached=0) == 0.0


def test_stages_without_anything_to_train_only_run_forward():
    # Two stages of two layers, three micro-batches, the first stage frozen: 2 x 2 to get there, then 3 x 2 x (2 + 4) on the second.
    made = Work(front=Pass(0.0, 0.0), layer=Pass(2.0, 4.0), back=Pass(0.0, 0.0), number=4)
    half = Layers(number=4, forward=frozenset(), backward=frozenset(), places={}, unreached=2)
    assert half.reached_per_stage(2) == (0, 2) and half.reached_per_stage(4) == (0, 0, 1, 1)
    assert whole_step(made, Messages(), Layout(pp=2, micro_batches=3), half) == pytest.approx(4 + 3 * 12)
