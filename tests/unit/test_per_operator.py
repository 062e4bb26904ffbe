"""Single operators as NeuSight timed them: kernels of each part by hand, and the two clocks between two events."""

import pytest

from benchmarks.accuracy.per_operator import copies, kernels, part_s
from tilecast.engines.eager import host_cost
from tilecast.execution import constants
from tilecast.kernels.memory_pass import MemoryPass

NUMBER = 1024 * 1024


def row(op_class, forward, backward=(), added=(), **more):
    given = {"ns_fw_ops": repr(list(forward)), "ns_bw_ops": repr(list(backward)), "ns_acc_ops": repr(list(added))}
    return {"op_class": op_class, "ns_opname": op_class, "mode": "train", "input_shapes": "[]", "input_contiguous": "[]", **given, **more}


def moved(part):
    return [(kernel.read_bytes / NUMBER, kernel.written_bytes / NUMBER) for kernel in part]


def test_dropout_called_by_hand_goes_back_in_three_kernels():
    # mask (1 byte) to numbers (4), these scaled, the gradient times that: 25 bytes an element, not 9
    forward, backward = kernels(row("mem", [["MEM", ((1024, 1024), (1024, 1024))]], ns_opname="dropout"))
    assert moved(forward) == [(4, 5)]
    assert moved(backward) == [(1, 4), (4, 4), (8, 4)]


def test_each_parameter_of_a_norm_is_added_alone_but_of_a_linear_layer_the_weight():
    _, _, *norm = kernels(row("layernorm", [["VECln", (512, 1024)]], added=[["VECadd", (1, 1024)]] * 2))
    assert [len(part) for part in norm] == [1, 1]
    products = [["Linear", (512, 1024, 1024)]]
    _, _, *linear = kernels(row("linear", products, products * 2, [["VECadd", (1024, 1024)], ["VECadd", (1, 1024)]]))
    assert [moved(part) for part in linear] == [[(8, 4)]]


def test_heads_of_several_sequences_are_copied_those_of_one_are_not():
    assert moved(copies([[2, 16, 1024, 32], [2, 16, 32, 1024]], [False, True])) == [(4, 4)]
    assert copies([[1, 16, 1024, 32], [16, 1024, 64]], [False, False]) == []


@pytest.mark.parametrize(("kernel_s", "expected"), [(1e-6, 1e-6), (1e-3, None)])
def test_short_kernels_of_a_part_wait_for_the_host_long_ones_for_each_other(kernel_s, expected):
    passed = [MemoryPass(read_bytes=4, written_bytes=4)] * 3
    event_s = constants().host_event_s

    def seconds(kernel, gpu, cache, timer):
        return kernel_s + (event_s if timer == "event" else 0.0)

    found = part_s(passed, "l4", seconds)
    assert found == pytest.approx(event_s + (2 * host_cost().op_s + expected if expected else 3 * kernel_s))


def test_the_node_of_a_linear_layer_is_two_products_each_behind_a_view():
    products = [["Linear", (512, 1024, 1024)]]
    _, backward, *_ = kernels(row("linear", products, products * 2, [["VECadd", (1024, 1024)]]))
    assert [kernel.family for kernel in backward] == ["gemm", "gemm"]
    event_s = constants().host_event_s
    found = part_s(backward, "l4", lambda kernel, gpu, cache, timer: 1e-6 + (event_s if timer == "event" else 0.0))
    assert found == pytest.approx(event_s + host_cost().op_s + 2 * host_cost().view_s + 1e-6)


def test_pytorch_leaves_the_sum_of_a_biass_gradient_to_its_engine():
    torch = pytest.importorskip("torch", reason="needs the extra torch: pip install 'tilecast[torch]'")
    made = torch.nn.Linear(8, 4)(torch.zeros(2, 8, requires_grad=True))
    assert [tuple(each.shape) for each in made.grad_fn(torch.ones(2, 4))] == [(2, 4), (2, 8), (8, 4)]  # bias, input, weight transposed
