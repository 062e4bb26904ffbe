"""Operators that stream rows or whole tensors, as Tilecast kernels: norms, softmax, activations, copies, reductions, optimizers."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilecast.diagnosis.calls import CallGroup
from tilecast.diagnosis.op_sizes import Tensor, Unpriced, broadcast, element_bytes_of, format_of, number, tensors, wholly, without_size
from tilecast.kernels.embedding import Embedding
from tilecast.kernels.kv_cache_write import KvCacheWrite
from tilecast.kernels.layer_norm import LayerNorm
from tilecast.kernels.layer_norm_backward import LayerNormBackward
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.kernels.quantize import Quantize
from tilecast.kernels.rms_norm import RmsNorm
from tilecast.kernels.rope import Rope
from tilecast.kernels.silu_mul import SiluMul
from tilecast.kernels.softmax import Softmax
from tilecast.kernels.softmax_backward import SoftmaxBackward
from tilecast.workloads.aten import POINTWISE, REDUCTIONS

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "logical_not", "logical_and", "logical_or", "isnan", "isinf")
WRITES_ONLY = ("fill", "zero", "zeros", "ones", "full", "arange", "normal", "uniform", "random", "bernoulli", "exponential")
# Pointwise operators whose result is not as large as what they take.
NOT_SAME_SIZE = frozenset(
    "arange empty empty_like expand_copy repeat slice_backward select_backward constant_pad_nd scalar_tensor stack cat".split()
)
SAME_SIZE = frozenset(POINTWISE) - NOT_SAME_SIZE | frozenset(
    "copy_from contiguous floor_divide remainder fmod softplus elu hardswish hardsigmoid mish log1p expm1 floor ceil round trunc isin "
    "bitwise_xor log2 exp2 square logical_xor nan_to_num atan2 hypot clip relu6 celu selu softshrink hardshrink dropout erfinv acos".split()
)
SECTOR_BYTES = 32  # DRAM gives no less


@dataclass(frozen=True, slots=True)
class Launch:
    """The kernel record of a call, and what was taken for granted."""

    kernel: Any
    notes: tuple[str, ...] = ()


def operator_name(group: CallGroup) -> str:
    """The operator without its namespace, overload and in-place mark."""
    assert group.op is not None
    return group.op.name.rpartition("::")[2].partition(".")[0].removesuffix("_").removesuffix("_out")


# ---- rows --------------------------------------------------------------------------------------------------------


def _rows(tensor: Tensor, columns: int | None = None) -> dict[str, Any]:
    width = columns or tensor.shape[-1]
    return {"rows": max(1, math.prod(tensor.shape) // width), "cols": width, "dtype": format_of(tensor)}


def _widest(group: CallGroup) -> Tensor:
    return max(tensors(group.op), key=lambda tensor: math.prod(tensor.shape))


def _rms_norm(group: CallGroup) -> Any:
    tensor = _widest(group)
    weight = [one.shape[0] for one in tensors(group.op) if len(one.shape) == 1]
    return RmsNorm(
        **_rows(tensor, weight[0] if weight and tensor.shape[-1] % weight[0] == 0 else None), residual="add" in operator_name(group)
    )


def _layer_norm(group: CallGroup) -> Any:
    tensor = tensors(group.op)[0]
    weight = [one for one in tensors(group.op)[1:] if one.shape and wholly(tensor.shape, one.shape)]
    return LayerNorm(**_rows(tensor, math.prod(weight[0].shape) if weight else None))


def _layer_norm_backward(group: CallGroup) -> Any:
    return LayerNormBackward(**_rows(tensors(group.op)[0]))


def _softmax(group: CallGroup) -> Any:
    tensor = tensors(group.op)[0]
    dim = number(group.op, 1, -1)
    return Softmax(**_rows(tensor, tensor.shape[dim]))


def _softmax_backward(group: CallGroup) -> Any:
    return SoftmaxBackward(**_rows(tensors(group.op)[0]))


def _silu_mul(group: CallGroup) -> Any:
    narrow, wide = sorted((tensor for tensor in tensors(group.op) if len(tensor.shape) >= 2), key=lambda tensor: tensor.shape[-1])[:2]
    if 2 * narrow.shape[-1] != wide.shape[-1]:
        raise Unpriced("gate and up do not lie side by side")
    return SiluMul(**_rows(narrow))


def _rope(group: CallGroup) -> Any:
    """Positions, queries and keys, then the size of a head or the table of sines whose width it is."""
    flat = [tensor for tensor in tensors(group.op) if len(tensor.shape) >= 2 and format_of(tensor) in ("bf16", "fp16", "fp32")]
    query, key = flat[0], flat[1]
    if len(query.shape) == 3:
        width, heads, kv_heads = query.shape[2], query.shape[1], key.shape[1]
    else:
        width = number(group.op, 3, 0) or flat[2].shape[-1]
        heads, kv_heads = query.shape[-1] // width, key.shape[-1] // width
    return Rope(rows=query.shape[0], num_heads=heads, num_kv_heads=kv_heads, head_dim=width, dtype=format_of(query))


def _kv_cache_write(group: CallGroup) -> Any:
    key = tensors(group.op)[0]
    heads, width = (key.shape[1], key.shape[2]) if len(key.shape) == 3 else (1, key.shape[1])
    return KvCacheWrite(rows=key.shape[0], num_kv_heads=heads, head_dim=width, dtype=format_of(key))


def _quantize(group: CallGroup) -> Any:
    given = [tensor for tensor in tensors(group.op) if len(tensor.shape) >= 2]
    source = next((tensor for tensor in given if format_of(tensor) in ("bf16", "fp16")), None)
    if source is None:
        raise Unpriced("the activations are not in 16 bits")
    name = operator_name(group)
    how = "per_block" if "group" in name or "block" in name else "per_token" if "token" in name else "static_scaled_fp8"
    rows = _rows(source)
    return Quantize(rows=rows["rows"], cols=rows["cols"], op=how if "static" in name or how != "static_scaled_fp8" else "per_tensor")


# ---- passes over memory --------------------------------------------------------------------------------------------


def _pointwise(group: CallGroup) -> Any:
    name, given = operator_name(group), tensors(group.op)
    if name in ("cat", "stack"):
        return _concatenate(group)
    if not given:
        raise without_size(group.op)
    flop, special = POINTWISE.get(name, (1.0, 0.0))
    if name in ("copy", "copy_from", "clone", "_to_copy", "contiguous"):
        target = given[0]
        source = given[1] if len(given) > 1 else given[0]
        return _pass(group, [source], broadcast([target]), element_bytes_of(target))
    if name in WRITES_ONLY:
        return _pass(group, [], broadcast(given[:1]), element_bytes_of(given[0]))
    if name in REDUCTIONS:
        return _reduction(group)
    if name not in SAME_SIZE and name not in COMPARISONS:
        raise Unpriced(f"what {group.op.name if group.op is not None else name} makes of its shapes is not modelled")
    shape = broadcast(given)
    operands = [tensor for tensor in given if tensor.shape]  # numbers are tensors without dimensions
    width = 1.0 if name in COMPARISONS else max((element_bytes_of(tensor) for tensor in operands or given), default=4.0)
    return _pass(group, operands, shape, width, flop, special)


def _pass(
    group: CallGroup, read: Sequence[Tensor], shape: tuple[int, ...], width: float, flop: float = 0.0, special: float = 0.0
) -> MemoryPass:
    made = max(1, math.prod(shape))
    return MemoryPass(
        read_bytes=round(sum(tensor.num_bytes for tensor in read)), written_bytes=max(1, round(made * width)), flop=round(flop * made),
        special_ops=round(special * made), **_access(group, width),
    )  # fmt: skip


_ONE_BY_ONE = re.compile(r"(?<!vectorized_)elementwise_kernel(_manual_unroll)?<|CatArrayBatchedCopy<")
FORMAT_OF_BYTES = {1.0: "fp8", 2.0: "bf16", 4.0: "fp32", 8.0: "fp64"}


def _access(group: CallGroup, width: float) -> dict[str, Any]:
    """ATen's kernels for operands that do not lie side by side (strided, broadcast, converted) take one element at a time."""
    is_scalar = _ONE_BY_ONE.search(group.kernels[0]) is not None and width in FORMAT_OF_BYTES
    return {"identity": "scalar", "dtype": FORMAT_OF_BYTES[width]} if is_scalar else {}


def _concatenate(group: CallGroup) -> Any:
    assert group.op is not None
    pieces = [shape for shape in group.op.dims[0] if isinstance(shape, tuple) and shape]
    match = re.search(r"OpaqueType<(\d+)u?>", group.kernels[0])
    if not pieces or match is None:
        raise without_size(group.op)
    moved = sum(math.prod(shape) for shape in pieces) * int(match.group(1))
    return MemoryPass(read_bytes=moved, written_bytes=max(1, moved), **_access(group, float(match.group(1))))


def _reduction(group: CallGroup) -> Any:
    """What is read counts; what is left is small, and a row for each sum where the last dimension is summed."""
    tensor = _widest(group)
    elements = math.prod(tensor.shape)
    left = elements / tensor.shape[-1] * element_bytes_of(tensor)
    return MemoryPass(read_bytes=round(tensor.num_bytes), written_bytes=max(1, round(left)), flop=elements)


def _gather(group: CallGroup) -> Any:
    """Only rows that are picked are read; how many shows where the picks are a tensor of their own."""
    name, given = operator_name(group), tensors(group.op)
    picks = [tensor for tensor in given[1:] if tensor.dtype in ("long int", "int", "long")]
    if name in ("index_select", "embedding") and picks and len(given[0].shape) == 2:
        table = given[0]
        return Embedding(rows=math.prod(picks[0].shape), cols=table.shape[1], vocab_size=table.shape[0], dtype=format_of(table))
    if name == "gather" and picks:
        made = math.prod(picks[0].shape)
        width = element_bytes_of(given[0])
        return MemoryPass(read_bytes=round(made * width + picks[0].num_bytes), written_bytes=max(1, round(made * width)))
    raise without_size(group.op)


def _every_tensor(group: CallGroup) -> Any:
    """A fused kernel of a compiler: its arguments are all it touches, each once; the last one is what it makes."""
    given = tensors(group.op)
    if not given:
        raise without_size(group.op)
    *read, made = given
    note = "every argument read or written once"
    return Launch(MemoryPass(read_bytes=round(sum(one.num_bytes for one in read)), written_bytes=max(1, round(made.num_bytes))), (note,))


def _optimizer(group: CallGroup) -> Any:
    """Lists of tensors: all are read, and those that are changed written; their type shows in the kernel's name."""
    assert group.op is not None
    lists = [
        [shape for shape in dims if isinstance(shape, tuple)]
        for dims in group.op.dims
        if isinstance(dims, tuple) and dims and isinstance(dims[0], tuple)
    ]
    match = re.search(r"\b(float|double|c10::BFloat16|c10::Half)\b", group.kernels[0])
    if not lists or match is None:
        raise without_size(group.op)
    width = {"float": 4, "double": 8}.get(match.group(1), 2)
    sizes = [sum(math.prod(shape) for shape in one) * width for one in lists]
    written = sum(sizes) - sizes[1] if "fused_adam" in operator_name(group) and len(sizes) >= 4 else sizes[0]
    return MemoryPass(read_bytes=sum(sizes), written_bytes=max(1, written), flop=4 * sum(sizes) // width)


def _batch_norm(group: CallGroup) -> Any:
    """Statistics first, then the result: in training the image is read twice, and both gradient and image in the backward pass."""
    name, given = operator_name(group), tensors(group.op)
    image = given[0]
    backward = "backward" in name
    once = sum(tensor.num_bytes for tensor in given[:2]) if backward else image.num_bytes
    trains = backward or (group.op is not None and "True" in group.op.scalars) or "group" in name
    return MemoryPass(
        read_bytes=round(once * (2 if trains else 1)),
        written_bytes=max(1, round(image.num_bytes)),
        flop=(12 if backward else 8) * math.prod(image.shape),
    )


def _embedding_backward(group: CallGroup) -> Any:
    """Every token's gradient is added to its row of the table."""
    gradient, tokens = tensors(group.op)[:2]
    rows = number(group.op, 2, math.prod(tokens.shape))
    changed = min(rows, math.prod(tokens.shape)) * gradient.shape[-1] * element_bytes_of(gradient)
    return MemoryPass(
        read_bytes=round(gradient.num_bytes + changed + tokens.num_bytes),
        written_bytes=max(1, round(changed)),
        flop=math.prod(gradient.shape),
    )


def _loss(group: CallGroup) -> Any:
    """One logit of every row."""
    logits = next(tensor for tensor in tensors(group.op) if len(tensor.shape) == 2)
    rows = logits.shape[0]
    return MemoryPass(
        read_bytes=(SECTOR_BYTES + 8) * rows, written_bytes=SECTOR_BYTES * rows if "backward" in operator_name(group) else SECTOR_BYTES
    )


ROW_RULES: dict[str, Callable[[CallGroup], Any]] = {
    "rms_norm": _rms_norm, "layer_norm": _layer_norm, "layer_norm_backward": _layer_norm_backward, "softmax": _softmax,
    "softmax_backward": _softmax_backward, "silu_mul": _silu_mul, "rope": _rope, "kv_cache_write": _kv_cache_write, "quantize": _quantize,
    "elementwise": _pointwise, "concatenate": _concatenate, "reduction": _reduction, "gather": _gather, "copy": _pointwise,
    "fused pointwise": _every_tensor, "optimizer": _optimizer, "batch_norm": _batch_norm, "embedding_backward": _embedding_backward,
    "loss": _loss,
}  # fmt: skip
