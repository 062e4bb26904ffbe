"""Which kernel does an ATen operator: one table. Views cost nothing; what is not in it is a pass over its bytes, and is said so.

Shapes come from the graph, so nothing here knows PyTorch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.kernels.attention_backward import AttentionBackward
from tilecast.kernels.attention_forward import AttentionForward
from tilecast.kernels.conv2d import Conv2d
from tilecast.kernels.embedding import Embedding
from tilecast.kernels.flash_attention_1 import FlashAttention1
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.layer_norm import LayerNorm
from tilecast.kernels.layer_norm_backward import LayerNormBackward
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.kernels.rms_norm import RmsNorm
from tilecast.kernels.softmax import Softmax
from tilecast.kernels.softmax_backward import SoftmaxBackward
from tilecast.workloads.opgraph import HALF_OF, Node, TensorShape

FLOATS = ("fp16", "bf16", "fp32", "fp64")
# FLOP and special-function operations on one element of the result; a copy has neither.
POINTWISE: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        "clone copy _to_copy cat stack fill full full_like zeros zeros_like ones ones_like arange new_zeros new_ones new_full "
        "slice_backward select_backward constant_pad_nd roll flip triu tril repeat scalar_tensor masked_fill "
        "where expand_copy view_copy linspace pixel_shuffle pixel_unshuffle upsample_nearest2d upsample_nearest2d_backward "
        "reflection_pad1d reflection_pad2d replication_pad2d".split(),
        (0.0, 0.0),
    ),
    **dict.fromkeys(
        "add sub rsub mul neg abs relu threshold_backward maximum minimum clamp clamp_min clamp_max lt le gt ge eq ne logical_not "
        "logical_and logical_or bitwise_and bitwise_or bitwise_not sign hardtanh leaky_relu leaky_relu_backward native_dropout_backward "
        "addcmul lerp bernoulli remainder floor ceil round trunc isnan isinf bitwise_xor logical_xor hardswish hardsigmoid "
        "floor_divide".split(),
        (1.0, 0.0),
    ),
    "pow": (2.0, 0.0),  # the exponents of models are small whole numbers, which PyTorch multiplies out
    "div": (8.0, 1.0), "reciprocal": (8.0, 1.0), "rsqrt": (2.0, 1.0), "sqrt": (2.0, 1.0), "exp": (2.0, 1.0), "log": (2.0, 1.0),
    "sin": (8.0, 1.0), "cos": (8.0, 1.0), "tanh": (12.0, 2.0), "tanh_backward": (3.0, 0.0), "sigmoid": (4.0, 2.0),
    "sigmoid_backward": (3.0, 0.0), "silu": (4.0, 2.0), "silu_backward": (8.0, 2.0), "gelu": (30.0, 1.0), "gelu_backward": (40.0, 2.0),
    "softplus": (6.0, 2.0), "softplus_backward": (6.0, 2.0), "log_sigmoid_forward": (6.0, 2.0), "elu": (4.0, 1.0), "log1p": (4.0, 1.0),
    "expm1": (4.0, 1.0), "mish": (12.0, 3.0), "upsample_bilinear2d": (8.0, 0.0), "upsample_bilinear2d_backward": (8.0, 0.0),
    "avg_pool2d_backward": (1.0, 0.0), "_adaptive_avg_pool2d_backward": (1.0, 0.0), "max_pool2d_with_indices_backward": (1.0, 0.0),
    "polar": (16.0, 2.0), "complex": (0.0, 0.0), "conj_physical": (1.0, 0.0), "angle": (16.0, 1.0), "sgn": (10.0, 1.0),
    "erf": (25.0, 1.0), "native_dropout": (12.0, 0.0), "addcdiv": (10.0, 1.0),
}  # fmt: skip
REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "any",
    "all",
    "var_mean",
    "var",
    "argmax",
    "argmin",
    "norm",
    "linalg_vector_norm",
    "prod",
    "logsumexp",
    "cumsum",
    "avg_pool2d",
    "_adaptive_avg_pool2d",
    "max_pool2d_with_indices",
)
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")  # no kernel runs
SORT_PASSES = 4  # kernels of a radix sort
TRITON_1 = ("library", "triton_1")  # the option of an attention operator that FlashAttention 1 in Triton runs
FLASH_2 = ("library", "fa2")  # ... that FlashAttention-2 runs, whatever PyTorch would choose
LATENT = "tilecast.scaled_dot_product_latent"  # our own operator, always causal
EMBEDDING_SORTED = 3072  # tokens from which the gradient of an embedding is made by sorting


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of an operator."""

    kernel: Any
    is_known: bool = True  # False: nothing is known of the operator but its bytes


@lru_cache(maxsize=65_536)
def launches(node: Node, matrix_dtype: str | None = None) -> tuple[Launch, ...]:
    """The kernels eager PyTorch runs for a node. `matrix_dtype` replaces fp32 in matrix products: tf32."""
    if node.is_view or not any(tensor.nbytes for tensor in node.outputs):
        return ()
    if node.op.startswith("fused."):  # workloads/groups.py
        work = dict(node.options)
        return (Launch(replace(_pass(node, 0.0, 0.0, passes=work.get("passes", 1)), flop=work["flop"], special_ops=work["special"])),)
    name = node.op.removeprefix("aten.").rstrip("_") if node.op.startswith("aten.") else node.op
    if name in ALLOCATIONS:
        return ()
    if name in RULES:
        try:
            return tuple(Launch(kernel) for kernel in RULES[name](node, matrix_dtype))
        except (LookupError, ValueError, TypeError, ZeroDivisionError):
            shapes = ", ".join(str(tensor.shape) for tensor in node.inputs) or "nothing"
            raise InvalidInput(f"{node.op} of {shapes} with the options {dict(node.options)} lacks a shape or an option it needs") from None
    if name in POINTWISE:
        flop, special = POINTWISE[name]
        return (Launch(_pass(node, flop, special)),)
    if name in REDUCTIONS:
        return (Launch(_pass(node, 1.0, 0.0, elements=sum(tensor.numel for tensor in node.inputs))),)
    return (Launch(_pass(node, 1.0, 0.0), is_known=False),)


def matrix_flop(node: Node) -> float:
    """FLOP of the matrix products in a node, as torch.utils.flop_counter counts them: a causal mask spares nothing.

    But for two: scores that fused attention works out again in its backward pass are recomputation, and left out; a product of complex
    numbers is four real ones.
    """
    total = 0.0
    for place, launch in enumerate(launches(node)):
        kernel = launch.kernel
        if isinstance(kernel, Gemm):
            total += 2.0 * kernel.batch * kernel.m * kernel.n * kernel.k
        elif node.op == "aten.convolution":  # every channel by itself is no product, and counts
            total += 2.0 * node.outputs[0].numel * math.prod(node.inputs[1].shape[1:])
        elif node.op == "aten.convolution_backward" and place < sum(dict(node.options)["output_mask"][:2]):  # the bias' is a sum
            total += 2.0 * node.inputs[0].numel * math.prod(node.inputs[2].shape[1:])
        elif isinstance(kernel, AttentionForward | AttentionBackward | FlashAttention1):
            backward = isinstance(kernel, AttentionBackward) or getattr(kernel, "backward", False)
            values = (node.inputs if backward else node.outputs)[0].shape[-1]  # as wide as keys, but in latent attention
            times = 4.0 if backward else 2.0  # each of the two products has two gradients
            total += times * kernel.batch * kernel.num_heads * kernel.q_len * kernel.kv_len * (kernel.head_dim + values)
    return total


# ---- rules -------------------------------------------------------------------------------------------------------


def _pass(node: Node, flop: float, special: float, *, elements: int | None = None, read: int | None = None, passes: int = 1) -> MemoryPass:
    made = sum(tensor.numel for tensor in node.outputs) if elements is None else elements
    return MemoryPass(
        read_bytes=sum(tensor.nbytes for tensor in node.inputs) if read is None else read,
        written_bytes=max(1, sum(tensor.nbytes for tensor in node.outputs)),
        flop=round(flop * made),
        special_ops=round(special * made),
        passes=passes,
    )


def _format(tensor: TensorShape, matrix_dtype: str | None) -> str:
    name = HALF_OF.get(tensor.dtype, tensor.dtype)
    if name not in FLOATS:
        return "fp32"  # whole numbers are multiplied by the same units
    return matrix_dtype if matrix_dtype is not None and name == "fp32" else name


def _product(left: TensorShape, right: TensorShape, matrix_dtype: str | None, bias: bool) -> tuple[Any, ...]:
    *batches, m, k = left.shape
    n = right.shape[-1]
    if right.shape[-2] != k:
        raise InvalidInput(f"a product of {left.shape} and {right.shape} is none: the inner sizes differ")
    if left.dtype in HALF_OF:  # four real products
        n, k = 2 * n, 2 * k
    return (Gemm(m=m, n=n, k=k, batch=math.prod(batches), bias=bias, dtype=_format(left, matrix_dtype)),)


def _mm(node: Node, matrix_dtype: str | None) -> tuple[Any, ...]:
    left, right = (node.inputs * 2)[:2]  # a matrix times itself is one input
    return _product(left, right, matrix_dtype, False)


def _addmm(node: Node, matrix_dtype: str | None) -> tuple[Any, ...]:
    return _product(node.inputs[-2], node.inputs[-1], matrix_dtype, True)


def _convolution(node: Node, matrix_dtype: str | None) -> tuple[Any, ...]:
    image, weight, result = node.inputs[0], node.inputs[1], node.outputs[0]
    options = dict(node.options)
    dtype = _format(image, matrix_dtype)
    groups, per_output = int(options["groups"]), math.prod(weight.shape[1:])
    if _is_plain(image, weight, options):
        return (_plain(image, weight, options, dtype),)
    if groups == image.shape[1] == weight.shape[0]:  # every channel by itself: no product of matrices
        return (_pass(node, 2.0 * per_output, 0.0),)
    if options["transposed"]:  # weights are (channels in, out per group, window): each pixel of the image spreads over a window
        return (Gemm(m=_pixels(image), n=per_output, k=max(1, weight.shape[0] // groups), batch=groups, dtype=dtype),)
    return (_gathered(image, result, weight, groups, dtype),)


def _is_plain(image: TensorShape, weight: TensorShape, options: dict[str, Any]) -> bool:
    """A square window over images, alike in both directions."""
    is_whole = len(image.shape) == 4 and int(options["groups"]) == 1 and not options["transposed"] and set(options["dilation"]) <= {1}
    return is_whole and all(len(set(sizes)) == 1 for sizes in (weight.shape[2:], options["stride"], options["padding"]))


def _plain(image: TensorShape, weight: TensorShape, options: dict[str, Any], dtype: str) -> Conv2d:
    batch, channels, height, width = image.shape
    return Conv2d(
        batch=batch, in_channels=channels, out_channels=weight.shape[0], height=height, width=width, kernel=weight.shape[2],
        stride=options["stride"][0], padding=options["padding"][0], dtype=dtype,
    )  # fmt: skip


def _gathered(image: TensorShape, result: TensorShape, weight: TensorShape, groups: int, dtype: str) -> Conv2d:
    """A convolution of any window and number of dimensions, by what it reads, makes and multiplies; groups as so many more images."""
    batch, channels, *sides = image.shape
    return Conv2d(
        batch=batch * groups, in_channels=max(1, channels // groups), out_channels=max(1, result.shape[1] // groups), height=1,
        width=math.prod(sides), kernel=1, taps=math.prod(weight.shape[2:]), pixels=math.prod(result.shape[2:]), dtype=dtype,
    )  # fmt: skip


def _pixels(image: TensorShape) -> int:
    return max(1, image.numel // image.shape[1])


def _convolution_backward(node: Node, matrix_dtype: str | None) -> tuple[Any, ...]:
    """The image's gradient, where it is asked for, and the weight's, each an implicit product like the forward one, whose operands are the
    tensors themselves; the bias' is a sum."""
    gradient, image, weight = node.inputs[0], node.inputs[1], node.inputs[2]
    options = dict(node.options)
    dtype, groups, window = _format(gradient, matrix_dtype), int(options["groups"]), math.prod(weight.shape[2:])
    asked = tuple(options["output_mask"])
    made: list[Any] = []
    if options["transposed"]:  # the same products with image and gradient changed about
        outputs, channels, pixels = max(1, weight.shape[0] // groups), weight.shape[1], _pixels(image)
        both = ((pixels, outputs, channels * window), (outputs, channels * window, pixels))
        made += [Gemm(m=m, n=n, k=k, batch=groups, dtype=dtype) for is_asked, (m, n, k) in zip(asked, both, strict=False) if is_asked]
    elif groups == image.shape[1] == weight.shape[0]:  # every channel by itself: gradient, and image or weights, read; the other written
        read, flop = gradient.nbytes + image.nbytes, 2.0 * window * gradient.numel
        passes = (gradient.nbytes + weight.nbytes, image.nbytes), (read, weight.nbytes)
        made += [
            MemoryPass(read_bytes=reads, written_bytes=writes, flop=flop)
            for is_asked, (reads, writes) in zip(asked, passes, strict=False)
            if is_asked
        ]
    else:
        is_plain = _is_plain(image, weight, options)
        same = _plain(image, weight, options, dtype) if is_plain else _gathered(image, gradient, weight, groups, dtype)
        turned = _gathered(gradient, image, weight, groups, dtype)  # of a window at every place, by as much work
        is_dense = _pixels(gradient) == _pixels(image)
        made += [turned if is_dense else same] * asked[0] + [same] * asked[1]
    return (*made, *([_bias_gradient(gradient)] if asked[2] else []))


def _bias_gradient(gradient: TensorShape) -> MemoryPass:
    return MemoryPass(read_bytes=gradient.nbytes, written_bytes=max(1, gradient.shape[1] * 4), flop=gradient.numel)


def _rows_and_columns(tensor: TensorShape, columns: int) -> dict[str, Any]:
    return {"rows": max(1, tensor.numel // columns), "cols": columns, "dtype": tensor.dtype}


def _softmax(node: Node, _: str | None) -> tuple[Any, ...]:
    tensor = node.outputs[0]
    return (Softmax(**_rows_and_columns(tensor, tensor.shape[int(dict(node.options).get("dim", -1))] if tensor.shape else 1)),)


def _log_softmax_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    tensor = node.inputs[0]
    return (SoftmaxBackward(**_rows_and_columns(tensor, tensor.shape[int(dict(node.options).get("dim", -1))])),)


def _softmax_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    """PyTorch multiplies gradient and result in a kernel of its own first."""
    tensor = node.inputs[0]
    product = MemoryPass(read_bytes=2 * tensor.nbytes, written_bytes=max(1, tensor.nbytes), flop=tensor.numel)
    return (product, *_log_softmax_backward(node, _))


def _layer_norm(node: Node, _: str | None) -> tuple[Any, ...]:
    return (LayerNorm(**_rows_and_columns(node.inputs[0], _normed(node))),)


def _layer_norm_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    return (LayerNormBackward(**_rows_and_columns(node.inputs[0], _normed(node))),)


def _normed(node: Node) -> int:
    """Columns of one row: as many as there are rows of statistics, else of the weight."""
    statistics = [tensor.numel for tensor in (*node.outputs, *node.inputs) if tensor.shape and tensor.shape[-1] == 1]
    rows = max(statistics, default=max(1, node.inputs[0].numel // node.inputs[0].shape[-1]))
    return max(1, node.inputs[0].numel // rows)


def _rms_norm(node: Node, _: str | None) -> tuple[Any, ...]:
    return (RmsNorm(**_rows_and_columns(node.inputs[0], node.inputs[0].shape[-1])),)


def _batch_norm(node: Node, _: str | None) -> tuple[Any, ...]:
    """Statistics first, then the result: the image is read twice."""
    return (_pass(node, 8.0, 0.0, read=2 * node.inputs[0].nbytes, passes=2),)


def _batch_norm_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    return (_pass(node, 12.0, 0.0, read=2 * (node.inputs[0].nbytes + node.inputs[1].nbytes), passes=2),)


def _embedding(node: Node, _: str | None) -> tuple[Any, ...]:
    table, tokens = node.inputs[0], node.inputs[1]
    return (Embedding(rows=max(1, tokens.numel), cols=table.shape[-1], vocab_size=table.shape[0], dtype=table.dtype),)


def _embedding_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    """A table of zeros, then every token's gradient is added to its row; many tokens are sorted first."""
    gradient, tokens = node.inputs[0], node.inputs[1]
    table = node.outputs[0]
    is_sorted = tokens.numel > EMBEDDING_SORTED
    moved = gradient.nbytes * (2 if is_sorted else 1)  # sorted ones are summed in parts
    return (
        MemoryPass(written_bytes=max(1, table.nbytes)),
        MemoryPass(
            read_bytes=moved + min(table.nbytes, gradient.nbytes) + tokens.nbytes,
            written_bytes=max(1, min(table.nbytes, gradient.nbytes)),
            flop=gradient.numel,
            passes=SORT_PASSES + 3 if is_sorted else 1,
        ),
    )


def _attention_sizes(query: TensorShape, key: TensorShape, node: Node) -> dict[str, Any]:
    batch, heads, tokens, width = query.shape
    return {
        "batch": batch, "q_len": tokens, "kv_len": key.shape[2], "num_heads": heads, "num_kv_heads": key.shape[1], "head_dim": width,
        "causal": bool(dict(node.options).get("is_causal", LATENT in node.op)), "dtype": query.dtype,
    }  # fmt: skip


def _attention(node: Node, _: str | None) -> tuple[Any, ...]:
    query, key = (node.inputs * 2)[:2]
    asked = _attention_sizes(query, key, node)
    if TRITON_1 in node.options:
        return (FlashAttention1(**asked),)
    return (AttentionForward(**asked, identity=_flash(node)),)


def _flash(node: Node) -> str | None:
    """The kernel that was asked for by name; None for PyTorch's choice."""
    return FLASH_2[1] if FLASH_2 in node.options else None


def _attention_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    asked = _attention_sizes(node.inputs[1], node.inputs[2], node)
    if TRITON_1 in node.options:
        return (FlashAttention1(**asked, backward=True),)
    return (AttentionBackward(**asked, identity=_flash(node)),)


def _nll_loss(node: Node, _: str | None) -> tuple[Any, ...]:
    """One logit of every row."""
    rows = node.inputs[0].shape[0] if node.inputs[0].shape else 1
    return (_pass(node, 0.0, 0.0, read=32 * rows),)


def _nll_loss_backward(node: Node, _: str | None) -> tuple[Any, ...]:
    """Zeros, then one entry of every row."""
    return (_pass(node, 0.0, 0.0, read=0), MemoryPass(read_bytes=8 * node.outputs[0].shape[0], written_bytes=32 * node.outputs[0].shape[0]))


def _fused_loss(node: Node, _: str | None) -> tuple[Any, ...]:
    """Every logit read once, forward and backward; the gradient is written in its place."""
    logits = max(node.inputs, key=lambda tensor: tensor.nbytes)
    return (_pass(node, 4.0, 1.0, elements=logits.numel),)


def _logged_loss(node: Node, _: str | None) -> tuple[Any, ...]:
    """Logits widened, and their log-softmax; of that one entry a row is read."""
    logits = max(node.inputs, key=lambda tensor: tensor.nbytes)
    wide = TensorShape("fp32", logits.shape)
    return (
        MemoryPass(read_bytes=logits.nbytes, written_bytes=max(1, wide.nbytes)),
        Softmax(**_rows_and_columns(wide, wide.shape[-1])),
        MemoryPass(read_bytes=32 * wide.shape[0], written_bytes=4),
    )


def _gather(node: Node, _: str | None) -> tuple[Any, ...]:
    """Only what is picked is read."""
    made = sum(tensor.nbytes for tensor in node.outputs)
    return (_pass(node, 0.0, 0.0, read=made + sum(tensor.nbytes for tensor in node.inputs[1:])),)


def _sorted(node: Node, _: str | None) -> tuple[Any, ...]:
    return (_pass(node, 4.0, 0.0, read=SORT_PASSES * node.inputs[0].nbytes, passes=SORT_PASSES),)


Rule = Callable[[Node, str | None], tuple[Any, ...]]
RULES: dict[str, Rule] = {
    "mm": _mm, "bmm": _mm, "addmm": _addmm, "baddbmm": _addmm,
    "convolution": _convolution, "convolution_backward": _convolution_backward,
    "_softmax": _softmax, "_log_softmax": _softmax, "_safe_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward, "_log_softmax_backward_data": _log_softmax_backward,
    "native_layer_norm": _layer_norm, "native_layer_norm_backward": _layer_norm_backward, "_fused_rms_norm": _rms_norm,
    "rms_norm": _rms_norm,
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
                     "_native_batch_norm_legit",
                     "native_group_norm", "_batch_norm_with_update_functional", "_batch_norm_no_update"), _batch_norm),
    **dict.fromkeys(("native_batch_norm_backward", "native_group_norm_backward", "batch_norm_backward"), _batch_norm_backward),
    "embedding": _embedding, "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", LATENT,
                     "flex_attention"), _attention),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward",
                     "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
                     f"{LATENT}_backward", "flex_attention_backward"), _attention_backward),
    **dict.fromkeys(("tilecast.fused_cross_entropy", "tilecast.fused_cross_entropy_backward"), _fused_loss),
    "tilecast.logged_cross_entropy": _logged_loss,
    "nll_loss_forward": _nll_loss, "nll_loss_backward": _nll_loss_backward,
    **dict.fromkeys(("index", "gather", "index_select"), _gather),
    **dict.fromkeys(("sort", "topk", "argsort", "unique"), _sorted),
}  # fmt: skip
