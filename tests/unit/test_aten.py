"""Which kernels an ATen operator runs: sizes by hand."""

import pytest

from tilecast import hardware
from tilecast.errors import InvalidInput
from tilecast.kernels.conv2d import Conv2d
from tilecast.predictors import predict_kernel
from tilecast.workloads.aten import POINTWISE, REDUCTIONS, RULES, launches, matrix_flop
from tilecast.workloads.opgraph import Node, TensorShape


def tensor(*shape, dtype="fp32", distinct=None):
    return TensorShape(dtype, shape, distinct)


def node(op, inputs, outputs, **more):
    return Node(f"aten.{op}", more.pop("phase", "forward"), tuple(inputs), tuple(outputs), **more)


def only(found):
    (launch,) = launches(found)
    return launch.kernel


def test_an_affine_product_is_a_gemm_with_a_bias():
    found = node("addmm", [tensor(3840), tensor(1024, 1280), tensor(1280, 3840)], [tensor(1024, 3840)])
    kernel = only(found)
    assert (kernel.m, kernel.n, kernel.k, kernel.batch, kernel.bias, kernel.dtype) == (1024, 3840, 1280, 1, True, "fp32")
    assert matrix_flop(found) == 2 * 1024 * 3840 * 1280


def test_tf32_replaces_fp32_in_products_alone():
    found = node("mm", [tensor(64, 32), tensor(32, 16)], [tensor(64, 16)])
    assert launches(found, "tf32")[0].kernel.dtype == "tf32"
    half = node("mm", [tensor(64, 32, dtype="bf16"), tensor(32, 16, dtype="bf16")], [tensor(64, 16, dtype="bf16")])
    assert launches(half, "tf32")[0].kernel.dtype == "bf16"


def test_a_batched_product_keeps_its_batch():
    kernel = only(node("bmm", [tensor(40, 1024, 64), tensor(40, 64, 512)], [tensor(40, 1024, 512)]))
    assert (kernel.batch, kernel.m, kernel.n, kernel.k) == (40, 1024, 512, 64)


def test_a_product_that_does_not_fit_is_refused():
    with pytest.raises(InvalidInput, match="inner sizes differ"):
        launches(node("mm", [tensor(4, 5), tensor(6, 7)], [tensor(4, 7)]))


@pytest.mark.parametrize("op", ["mm", "addmm", "convolution", "_softmax", "embedding", "_scaled_dot_product_flash_attention"])
def test_an_operator_without_its_shapes_is_one_sentence(op):
    with pytest.raises(InvalidInput, match=f"aten.{op} of .* lacks a shape or an option it needs"):
        launches(node(op, [tensor(4)], [tensor(4)], options=(("dim", 3),)))


def test_a_transposed_convolution_spreads_every_pixel_of_its_image():
    # 2 x 16 x 16 pixels of 8 channels, each times 8 x (4 channels x 4 x 4): a quarter of what the 32 x 32 result would suggest.
    options = (("stride", (2, 2)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", True), ("groups", 1))
    image, weight, result = tensor(2, 8, 16, 16), tensor(8, 4, 4, 4), tensor(2, 4, 32, 32)
    forward = node("convolution", [image, weight], [result], options=options)
    assert matrix_flop(forward) == 2 * (2 * 16 * 16) * 8 * (4 * 4 * 4)
    asked = (*options, ("output_mask", (True, True, True)))
    backward = node("convolution_backward", [result, image, weight], [image, weight, tensor(4)], options=asked, phase="backward")
    assert matrix_flop(backward) == 2 * matrix_flop(forward)


def test_channels_that_are_convolved_alone_count_their_flop():
    options = (("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", False), ("groups", 8))
    found = node("convolution", [tensor(2, 8, 16, 16), tensor(8, 1, 3, 3)], [tensor(2, 8, 16, 16)], options=options)
    assert only(found).family == "memory_pass"
    assert matrix_flop(found) == 2 * (2 * 8 * 16 * 16) * 9


def test_memory_that_is_only_set_aside_takes_no_kernel():
    assert launches(node("empty_like", [tensor(4, 8)], [tensor(4, 8)])) == launches(node("new_empty", [tensor(4)], [tensor(4, 8)])) == ()


def test_views_and_empty_results_run_nothing():
    assert launches(node("view", [tensor(4, 8)], [tensor(32)], is_view=True)) == ()
    assert launches(node("mul", [tensor(0, 8)], [tensor(0, 8)])) == ()


def test_a_pointwise_operator_counts_each_operand_by_its_own_size():
    mask = tensor(2, 32, 128, 128, dtype="bool", distinct=(1, 1, 128, 128))
    kernel = only(node("where", [mask, tensor(2, 32, 128, 128), tensor()], [tensor(2, 32, 128, 128)]))
    assert kernel.read_bytes == 128 * 128 + 2 * 32 * 128 * 128 * 4 + 4
    assert kernel.written_bytes == 2 * 32 * 128 * 128 * 4


def test_dropout_writes_its_mask_too():
    kernel = only(node("native_dropout", [tensor(1024)], [tensor(1024), tensor(1024, dtype="bool")]))
    assert (kernel.read_bytes, kernel.written_bytes) == (4096, 4096 + 1024)


def test_layer_norm_finds_its_rows():
    inputs = [tensor(2, 512, 1024), tensor(1024), tensor(1024)]
    statistics = [tensor(2, 512, 1), tensor(2, 512, 1)]
    kernel = only(node("native_layer_norm", inputs, [tensor(2, 512, 1024), *statistics]))
    assert (kernel.family, kernel.rows, kernel.cols) == ("layer_norm", 1024, 1024)
    gradients = [tensor(2, 512, 1024), tensor(1024), tensor(1024)]
    backward = node(
        "native_layer_norm_backward", [tensor(2, 512, 1024), tensor(2, 512, 1024), *statistics, tensor(1024), tensor(1024)], gradients
    )
    assert (only(backward).family, only(backward).rows, only(backward).cols) == ("layer_norm_backward", 1024, 1024)


def test_softmax_backward_multiplies_gradient_and_result_first():
    rows = [tensor(40, 128, 256), tensor(40, 128, 256)]
    product, reduced = launches(node("_softmax_backward_data", rows, rows[:1], options=(("dim", -1),), phase="backward"))
    assert (product.kernel.family, reduced.kernel.family) == ("memory_pass", "softmax_backward")
    assert product.kernel.read_bytes == 2 * product.kernel.written_bytes == 2 * 40 * 128 * 256 * 4
    (alone,) = launches(node("_log_softmax_backward_data", rows, rows[:1], options=(("dim", -1),), phase="backward"))
    assert alone.kernel.family == "softmax_backward"


def test_the_gradient_of_an_embedding_clears_its_table_first():
    found = launches(node("embedding_dense_backward", [tensor(2, 512, 1024), tensor(2, 512, dtype="int64")], [tensor(30522, 1024)]))
    assert found[0].kernel.written_bytes == 30522 * 1024 * 4
    assert found[1].kernel.passes == 1
    many = launches(node("embedding_dense_backward", [tensor(8, 512, 1024), tensor(8, 512, dtype="int64")], [tensor(30522, 1024)]))
    assert many[1].kernel.passes > 1  # sorted


def test_a_convolution_is_one_and_its_gradient_two_products():
    options = (("stride", (2, 2)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", False), ("groups", 1))
    image, weight, result = tensor(8, 16, 32, 32), tensor(64, 16, 3, 3), tensor(8, 64, 16, 16)
    forward = node("convolution", [image, weight], [result], options=options)
    assert only(forward).family == "conv2d"
    assert matrix_flop(forward) == 2 * 8 * 64 * 16 * 16 * 16 * 9
    backward = node(
        "convolution_backward", [result, image, weight], [image, weight], options=(*options, ("output_mask", (True, True, False)))
    )
    assert matrix_flop(backward) == 2 * matrix_flop(forward)


CONVOLUTIONS = {  # image, weight, result, and what differs from a plain one
    "plain": ((8, 64, 64, 64), (64, 64, 3, 3), (8, 64, 64, 64), {}),
    "strided": ((8, 64, 64, 64), (64, 64, 3, 3), (8, 64, 32, 32), {"stride": (2, 2)}),
    "dilated": ((8, 64, 64, 64), (64, 64, 3, 3), (8, 64, 64, 64), {"padding": (2, 2), "dilation": (2, 2)}),
    "grouped": ((8, 64, 64, 64), (64, 8, 3, 3), (8, 64, 64, 64), {"groups": 8}),
    "depthwise": ((8, 64, 64, 64), (64, 1, 7, 7), (8, 64, 64, 64), {"padding": (3, 3), "groups": 64}),
    "a line": ((8, 64, 4096), (64, 64, 9), (8, 64, 4096), {"stride": (1,), "padding": (4,), "dilation": (1,)}),
    "a volume": (
        (2, 64, 16, 32, 32),
        (64, 64, 3, 3, 3),
        (2, 64, 16, 32, 32),
        {"stride": (1,) * 3, "padding": (1,) * 3, "dilation": (1,) * 3},
    ),
}


@pytest.mark.parametrize("what", CONVOLUTIONS)
def test_convolutions_read_their_tensors_and_not_their_windows(what: str):
    image, weight, result, changed = CONVOLUTIONS[what]
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "groups": 1} | changed
    tensors = [tensor(*shape, dtype="bf16") for shape in (image, weight, result)]
    forward = node("convolution", tensors[:2], tensors[2:], options=tuple(options.items()))
    asked = (*options.items(), ("output_mask", (True, True, False)))
    backward = node("convolution_backward", [tensors[2], *tensors[:2]], tensors[:2], options=asked, phase="backward")
    assert matrix_flop(backward) == 2 * matrix_flop(forward) > 0
    gpu, whole = hardware.gpu("h100-sxm"), sum(each.nbytes for each in tensors)
    for each in (forward, backward):
        for launch in launches(each):
            found = predict_kernel(launch.kernel, gpu, learned=False)
            assert found.analysis.demand_s["dram"][0] * gpu.dram_bytes_per_s <= 1.01 * whole
    once, twice = (
        sum(predict_kernel(launch.kernel, gpu, learned=False).median_s[0] for launch in launches(each)) for each in (forward, backward)
    )
    assert 1.3 * once < twice < 3.5 * once


@pytest.mark.parametrize(("name", "values"), [("taps", [9, 27]), ("pixels", [512, 1024]), ("in_channels", [32, 64]), ("padding", [0, 1])])
def test_convolutions_that_differ_in_one_size_are_their_members(name: str, values: list[int]):
    image = {"batch": 4, "in_channels": 64, "out_channels": 64, "height": 16, "width": 128, "kernel": 3}
    together = predict_kernel(Conv2d(**image | {name: values}), "h100-sxm").median_s
    alone = [float(predict_kernel(Conv2d(**image | {name: value}), "h100-sxm").median_s[0]) for value in values]
    assert together == pytest.approx(alone)


def test_attention_backward_is_two_and_a_half_forward():
    query = tensor(2, 16, 256, 64, dtype="bf16")
    forward = node(
        "_scaled_dot_product_flash_attention_for_cpu", [query, query, query], [query, tensor(2, 16, 256)], options=(("is_causal", True),)
    )
    backward = node(
        "_scaled_dot_product_flash_attention_for_cpu_backward", [query] * 5, [query] * 3, options=(("is_causal", True),), phase="backward"
    )
    assert only(forward).causal is True
    assert matrix_flop(forward) == 4 * 2 * 16 * 256 * 256 * 64
    assert matrix_flop(backward) == 2 * matrix_flop(forward)  # the kernel runs five products, of which one is the forward pass again


def test_what_is_not_in_the_table_is_its_bytes_and_says_so():
    (found,) = launches(Node("mylib.swirl", "forward", (tensor(1024),), (tensor(1024),)))
    assert not found.is_known
    assert (found.kernel.family, found.kernel.read_bytes, found.kernel.written_bytes) == ("memory_pass", 4096, 4096)


def test_no_operator_stands_in_the_table_twice():
    assert not (set(POINTWISE) & set(RULES)) and not (set(REDUCTIONS) & (set(POINTWISE) | set(RULES)))
