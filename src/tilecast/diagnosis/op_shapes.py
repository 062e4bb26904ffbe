"""What a call computes, as a Tilecast kernel: from its operator's shapes and types, and where those are silent from the launch itself.

Traces hold what operators take, not what they give, so results follow from each operator's meaning. What cannot be known raises `Unpriced`
with the reason: a call is priced or it is not, nothing is guessed. What is taken for granted is a note that goes into the report.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from tilecast.diagnosis.calls import CallGroup
from tilecast.diagnosis.op_rows import ROW_RULES, Launch, operator_name
from tilecast.diagnosis.op_sizes import (
    Tensor,
    Unpriced,
    element_bytes_of,
    format_of,
    listed,
    number,
    tensors,
)
from tilecast.kernels.attention import AttentionDecode, AttentionPrefill
from tilecast.kernels.attention_backward import AttentionBackward
from tilecast.kernels.collectives import AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, SendRecv
from tilecast.kernels.conv2d import Conv2d
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.kernels.moe import Moe

COLLECTIVES: dict[str, Any] = {
    "all_reduce": AllReduce, "all_gather": AllGather, "reduce_scatter": ReduceScatter, "broadcast": Broadcast, "send_recv": SendRecv,
    "all_to_all": AllToAll,
}  # fmt: skip


def launch_of(group: CallGroup, world_size: int | None = None) -> Launch:
    """The work of one call of `group`. Raises Unpriced."""
    if group.rule is None:
        raise Unpriced("the kernel's name is not in the table")
    family = group.rule.family
    if group.rule.communicates:
        return _collective(group, world_size)
    if family == "host copy":
        raise Unpriced("copies between host and GPU are not modelled")
    if family in ("copy", "memset") and group.num_bytes > 0:
        return Launch(MemoryPass(read_bytes=group.num_bytes if family == "copy" else 0, written_bytes=group.num_bytes))
    if group.op is None:
        raise Unpriced("in a CUDA graph, whose kernels carry no shapes" if group.in_graph else "its operator is not in the trace")
    if not group.op.has_shapes:
        raise Unpriced(f"{group.op.name} has no shapes in the trace (record_shapes=True)")
    rule = FAMILIES.get(family)
    if rule is None:
        raise Unpriced(f"no model of {family}")
    try:
        made = rule(group)
    except (IndexError, ValueError, KeyError, ZeroDivisionError, TypeError, OverflowError, StopIteration) as problem:
        raise Unpriced(f"the shapes of {group.op.name} are not as expected ({problem})") from None
    return made if isinstance(made, Launch) else Launch(made)


# ---- products ----------------------------------------------------------------------------------------------------


def _matrix_format(group: CallGroup, tensor: Tensor, other: Tensor | None = None) -> str:
    """The number format of a product: TF32 shows in the kernel's name alone."""
    held = format_of(tensor)
    if held == "fp32":
        return "tf32" if any(re.search(r"tf32|s1688gemm_(?!bf16|f16)|TF32|_SX_|_XS_", name) for name in group.kernels) else "fp32"
    if held not in ("fp64", "fp16", "bf16", "fp8", "int8"):
        raise Unpriced(f"products of {tensor.dtype} are not modelled")
    if other is not None and element_bytes_of(other) < element_bytes_of(tensor):
        raise Unpriced(f"products of {tensor.dtype} with packed weights of {other.dtype} are not modelled")
    return held


def _gemm(group: CallGroup) -> Any:
    name, given = operator_name(group), [tensor for tensor in tensors(group.op) if len(tensor.shape) >= 2]
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        given = [tensor for tensor in tensors(group.op)[1:] if len(tensor.shape) >= 2]
        return _product(group, given, bias=True)
    if name == "linear" and len(given) >= 2:
        left, weight = given[0], given[1]
        return Gemm(
            m=math.prod(left.shape[:-1]), n=weight.shape[0], k=left.shape[-1], bias=len(tensors(group.op)) > 2,
            dtype=_matrix_format(group, left, weight), identity=_identity(group),
        )  # fmt: skip
    if name in ("mm", "bmm", "matmul", "_int_mm", "_scaled_mm", "mv", "dot"):
        return _product(group, given if name not in ("mv", "dot") else [t for t in tensors(group.op) if t.shape])
    return _product_with_result(group, given)


def _product(group: CallGroup, given: Sequence[Tensor], bias: bool = False) -> Any:
    left, right = given[0], given[1]
    *batches, m, k = left.shape if len(left.shape) > 1 else (1, *left.shape)
    n = right.shape[-1] if len(right.shape) > 1 else 1
    if right.shape[-2 if len(right.shape) > 1 else 0] != k:
        raise Unpriced(f"a product of {left.shape} and {right.shape} is none")
    return Gemm(m=m, n=n, k=k, batch=math.prod(batches), bias=bias, dtype=_matrix_format(group, left, right), identity=_identity(group))


def _product_with_result(group: CallGroup, given: Sequence[Tensor]) -> Any:
    """Custom operators put the result first, last or nowhere: sizes that fit together tell, and operands are no wider than the result."""
    flat = [(math.prod(tensor.shape[:-1]), tensor.shape[-1], tensor) for tensor in given if len(tensor.shape) in (2, 3)]
    found = []
    for place, (m, k, left) in enumerate(flat):
        for rows, columns, right in flat[place + 1 :]:
            n = columns if rows == k else rows if columns == k else None
            others = [(r, c) for r, c, tensor in flat if tensor is not left and tensor is not right]
            if n is not None and ((m, n) in others or len(flat) == 2):
                found.append((left.dtype != right.dtype, element_bytes_of(left), m, n, k, left, right))
    if not found:
        raise Unpriced(f"the sizes of the product are not in the shapes of {group.op.name if group.op else 'its operator'}")
    _, _, m, n, k, left, right = min(found, key=lambda entry: entry[:2])
    return Gemm(m=m, n=n, k=k, dtype=_matrix_format(group, left, right), identity=_identity(group))


def _identity(group: CallGroup) -> str | None:
    assert group.rule is not None
    return group.rule.identity


# Where operators have padding, stride, dilation and groups.
CONVOLUTIONS = {
    "cudnn_convolution": (2, 3, 4, 5), "miopen_convolution": (3, 4, 5, 6), "convolution": (4, 3, 5, 8), "_convolution": (4, 3, 5, 8),
}  # fmt: skip


def _convolution(group: CallGroup) -> Any:
    name, given = operator_name(group), tensors(group.op)
    image, weight = given[0], given[1]
    if name not in CONVOLUTIONS or len(image.shape) != 4:
        raise Unpriced(f"{name} of {len(image.shape)} dimensions is not modelled")
    padding, stride, dilation, groups = (listed(group.op, place) for place in CONVOLUTIONS[name])
    sides = set(weight.shape[2:])
    if not (len(sides) == 1 and len(set(padding)) == 1 and len(set(stride)) == 1 and set(dilation) <= {1} and groups == [1]):
        raise Unpriced("convolutions with groups, dilation or unequal sides are not modelled")
    batch, channels, height, width = image.shape
    return Conv2d(
        batch=batch, in_channels=channels, out_channels=weight.shape[0], height=height, width=width, kernel=sides.pop(), stride=stride[0],
        padding=padding[0], dtype=_matrix_format(group, image),
    )  # fmt: skip


def _gradients(group: CallGroup) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """Gradient, image and weight of a convolution's backward pass, its groups, and the pixels of the gradient."""
    gradient, image, weight = tensors(group.op)[:3]
    (groups,) = listed(group.op, 9)
    return gradient, image, weight, int(groups), math.prod(gradient.shape) // gradient.shape[1]


def _image_gradient(group: CallGroup) -> Any:
    """A product over output channels and window for every pixel, on the side with fewer pixels."""
    gradient, image, weight, groups, pixels = _gradients(group)
    window, outputs, channels = math.prod(weight.shape[2:]), weight.shape[0] // groups, weight.shape[1]
    image_pixels = math.prod(image.shape) // image.shape[1]
    held = _matrix_format(group, gradient)
    if pixels < image_pixels:
        return Gemm(m=pixels, n=channels * window, k=outputs, batch=groups, dtype=held)
    return Gemm(m=image_pixels, n=channels, k=outputs * window, batch=groups, dtype=held)


def _weight_gradient(group: CallGroup) -> Any:
    gradient, _, weight, groups, pixels = _gradients(group)
    window, outputs, channels = math.prod(weight.shape[2:]), weight.shape[0] // groups, weight.shape[1]
    return Gemm(m=outputs, n=channels * window, k=pixels, batch=groups, dtype=_matrix_format(group, gradient))


# ---- attention ---------------------------------------------------------------------------------------------------

IDENTITIES = ("flashinfer_fa2", "flashinfer_fa3", "fa2", "fa3", "trtllm", "triton")


def _attention(group: CallGroup) -> Any:
    name, given = operator_name(group), tensors(group.op)
    if name in ("_flash_attention_forward", "_efficient_attention_forward", "_flash_attn_forward"):
        query, key = given[0], given[1]
        if len(query.shape) == 4:
            causal = _flag(group, {"_flash_attention_forward": 8, "_flash_attn_forward": 6}.get(name)) or number(group.op, 9, 0) in (1, 2)
            return _fused(group, query.shape[0], query.shape[1], key.shape[1], query.shape[2], key.shape[2], query.shape[3], query, causal)
    if name.startswith("_scaled_dot_product"):
        query, key = given[0], given[1]
        batch, heads, tokens, width = query.shape
        causal = _flag(group, 4 if name == "_scaled_dot_product_flash_attention" else 6)
        return _fused(group, batch, tokens, key.shape[2], heads, key.shape[1], width, query, causal)
    if len(given) >= 2 and len(given[0].shape) == 3:  # tokens of all requests, one behind the other
        return _packed(group, given)
    raise Unpriced(f"the lengths of the requests are not in the shapes of {group.op.name if group.op else name}")


def _packed(group: CallGroup, given: Sequence[Tensor]) -> Any:
    """(tokens, heads, width) of all requests together: what the engine's annotation or the longest length says decides on the requests."""
    query, key = given[0], given[1]
    tokens, heads, width = query.shape
    kv_heads = key.shape[-2]
    if "Sliding" in group.kernels[0]:
        raise Unpriced("the width of its sliding window is not in the trace")
    asked = group.requests
    causal = "causal" in group.kernels[0].lower() or _true_scalar(group)
    if asked is not None and asked.num_generation == 0 and asked.num_context * asked.squares == asked.tokens**2 == tokens**2:
        kv_tokens = asked.kv_tokens if asked.kv_tokens is not None else asked.tokens
        notes = () if asked.kv_tokens is not None else ("taken to have no cached prefix",)
        batch = asked.num_context
        return _fused(group, batch, tokens // batch, kv_tokens // batch, heads, kv_heads, width, query, causal, notes)
    starts = [tensor.shape[0] for tensor in given[2:] if len(tensor.shape) == 1 and tensor.dtype in ("int", "long int", "long")]
    longest = [int(value) for value in group.op.scalars if value.isdigit() and int(value) > 1] if group.op is not None else []
    if starts and longest and (starts[0] - 1) * longest[0] == tokens:  # every request is as long as the longest
        batch, kv_len = starts[0] - 1, longest[1] if len(longest) > 1 and longest[1] >= longest[0] else longest[0]
        return _fused(group, batch, longest[0], kv_len, heads, kv_heads, width, query, causal)
    raise Unpriced("the lengths of the requests are not in the trace")


def _fused(
    group: CallGroup, batch: int, q_len: int, kv_len: int, heads: int, kv_heads: int, width: int, query: Tensor, causal: bool,
    notes: tuple[str, ...] = (),
) -> Launch:  # fmt: skip
    held = format_of(query)
    if held not in ("bf16", "fp16", "fp32", "fp8"):
        raise Unpriced(f"attention over {query.dtype} is not modelled")
    identity = group.rule.identity if group.rule is not None and group.rule.identity in IDENTITIES else None
    sizes: dict[str, Any] = {
        "batch": batch, "kv_len": kv_len, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": width, "causal": causal,
        "dtype": "bf16" if held == "fp8" else held, "kv_dtype": "fp8" if held == "fp8" else None, "identity": identity,
    }  # fmt: skip
    if q_len == 1:
        return Launch(AttentionDecode(**sizes), notes)
    return Launch(AttentionPrefill(q_len=q_len, **sizes), notes)


def _flag(group: CallGroup, place: int | None) -> bool:
    assert group.op is not None
    return place is not None and place < len(group.op.scalars) and group.op.scalars[place] == "True"


def _true_scalar(group: CallGroup) -> bool:
    return group.op is not None and "True" in group.op.scalars


def _attention_backward(group: CallGroup) -> Any:
    name, given = operator_name(group), tensors(group.op)
    query, key = given[1], given[2]
    if len(query.shape) != 4:
        raise Unpriced("the lengths of the requests are not in the trace")
    heads_first = name.startswith("_scaled_dot_product")
    batch = query.shape[0]
    tokens, heads = (query.shape[2], query.shape[1]) if heads_first else (query.shape[1], query.shape[2])
    kv_tokens, kv_heads = (key.shape[2], key.shape[1]) if heads_first else (key.shape[1], key.shape[2])
    return AttentionBackward(
        batch=batch, q_len=tokens, kv_len=kv_tokens, num_heads=heads, num_kv_heads=kv_heads, head_dim=query.shape[3],
        causal=_true_scalar(group), dtype=_matrix_format(group, query),
    )  # fmt: skip


# ---- mixture of experts ------------------------------------------------------------------------------------------

_TRTLLM_GEN = re.compile(r"^bmm_\w+?_(\w+?)_Fp32_t(\d+)x(\d+)x(\d+)")
TRTLLM_FORMATS = {"MxE2m1MxE4m3": "w4a8_mxfp4_mxfp8", "E4m3E4m3": "fp8", "E2m1E2m1": "nvfp4", "MxE2m1Bfloat16": "w4a16_mxfp4"}


def _moe(group: CallGroup) -> Any:
    given = tensors(group.op)
    weights = [tensor for tensor in given if len(tensor.shape) == 3]
    flat = [tensor for tensor in given if len(tensor.shape) == 2]
    if len(weights) >= 2 and flat:  # tokens and both weights in the open, as SGLang's and vLLM's own operators have them
        w13, w2 = weights[0], weights[1]
        experts, wide, hidden = w13.shape
        routed = [tensor for tensor in flat if tensor.shape[1] <= 64 and tensor.shape[0] == flat[0].shape[0]]
        if w2.shape[0] == experts and w2.shape[1] == hidden and routed:
            return Moe(
                num_tokens=flat[0].shape[0], hidden_size=hidden, inter_size=w2.shape[2], num_experts=experts, topk=routed[0].shape[1],
                gated=wide == 2 * w2.shape[2], dtype=_matrix_format(group, flat[0], w13), identity=_identity(group),
            )  # fmt: skip
    if len(flat) >= 2 and any(_TRTLLM_GEN.match(kernel) for kernel in group.kernels):
        return _trtllm_moe(group, flat)
    raise Unpriced(f"the experts' sizes are not in the shapes of {group.op.name if group.op else 'its operator'}")


def _trtllm_moe(group: CallGroup, flat: Sequence[Tensor]) -> Any:
    """TensorRT-LLM's grouped kernels: weights are hidden, but tiles (in the name) times blocks (the grid) give the sizes that really run.

    Blocks along the output are its width over the tile. Blocks along the tokens are the most that any routing needs: one for each expert
    that can have a token, and one for every further whole tile; that is a step for each value of topk, so topk follows.
    """
    products = [(kernel, match) for kernel in group.kernels if (match := _TRTLLM_GEN.match(kernel)) and kernel in group.grids]
    first = [entry for entry in products if "swiGlu" in entry[0] or "geGlu" in entry[0].lower() or "act" in entry[0].lower()]
    if len(products) != 2 or len(first) != 1:
        raise Unpriced("the two passes of the experts cannot be told apart")
    (kernel, match), tokens, experts = first[0], flat[0].shape[0], flat[1].shape[1]
    held, tile_out, tile_tokens = TRTLLM_FORMATS.get(match.group(1)), int(match.group(2)), int(match.group(3))
    if held is None:
        raise Unpriced(f"experts in {match.group(1)} are not modelled")
    across, along = group.grids[kernel][0], group.grids[kernel][1]
    found = [topk for topk in range(1, min(experts, 65)) if _most_blocks(tokens * topk, experts, tile_tokens) == along]
    if len(found) != 1:
        raise Unpriced(f"{along} blocks along the tokens fit no number of experts per token")
    kernel_record = Moe(
        num_tokens=tokens, hidden_size=flat[0].shape[1], inter_size=across * tile_out // 2, num_experts=experts, topk=found[0], dtype=held
    )
    return Launch(kernel_record, (f"experts' width {across * tile_out // 2} and top {found[0]} read off the grid {across} x {along}",))


def _most_blocks(tokens: int, experts: int, tile: int) -> int:
    filled = min(tokens, experts)
    return filled + (tokens - filled) // tile


# ---- communication -----------------------------------------------------------------------------------------------


MESSAGE_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Float8_e4m3fn": 1}


def _family_of(called: str) -> str:
    """What the profiler calls a collective, for kernels whose name does not tell: `_allgather_base` is all_gather."""
    plain = called.lower().replace("_", "")
    found = next((family for family in COLLECTIVES if family.replace("_", "") in plain), None)
    if found is None:
        raise Unpriced(f"collectives called {called!r} are not modelled")
    return found


def _collective(group: CallGroup, world_size: int | None) -> Launch:
    assert group.rule is not None
    family, identity = group.rule.family, group.rule.identity
    if group.collective is not None:
        called, given, made, ranks, dtype = group.collective
        family = family if family in COLLECTIVES else _family_of(called)
        width = MESSAGE_BYTES.get(dtype)
        if width is None or int(ranks) < 2:
            raise Unpriced(f"a group of {ranks} with {dtype} messages is not modelled")
        elements = max(int(given), int(made)) if family in ("all_gather", "reduce_scatter") else int(given)
        return Launch(COLLECTIVES[family](bytes=max(1, elements * width), num_gpus=int(ranks), identity=identity))
    given_tensors = tensors(group.op) if group.op is not None and group.op.has_shapes else []
    if not given_tensors:
        raise Unpriced("the size of the message is not in the trace")
    if world_size is None or world_size < 2:
        raise Unpriced("the number of ranks is not in the trace")
    if family not in COLLECTIVES:
        raise Unpriced("which collective it is does not show")
    note = f"among all {world_size} ranks"
    return Launch(COLLECTIVES[family](bytes=round(given_tensors[0].num_bytes), num_gpus=world_size, identity=identity), (note,))


FAMILIES: dict[str, Callable[[CallGroup], Any]] = {
    "gemm": _gemm, "conv2d": _convolution, "conv2d_dgrad": _image_gradient, "conv2d_wgrad": _weight_gradient, "attention": _attention,
    "attention_backward": _attention_backward, "moe": _moe, **ROW_RULES,
}  # fmt: skip
