"""From PyTorch's graph to ours: every operator with its tensors, the pass it belongs to, and the memory it frees."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node as FxNode

from tilecast.errors import InvalidInput
from tilecast.workloads.opgraph import ITEM_BYTES, PRODUCTS, Node, TensorShape

DTYPES = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8",
    torch.complex32: "complex32", torch.complex64: "complex64", torch.complex128: "complex128",
}  # fmt: skip
# Views by another name: the schema promises no alias, but no kernel runs.
UNDECLARED_VIEWS = ("aten._unsafe_view", "aten._reshape_alias", "aten.alias", "aten.lift_fresh_copy", "aten.lift_fresh")
CONDITION = "cond"  # torch.cond
FLEX = {"flex_attention": (0, 1, 2), "flex_attention_backward": (5, 0, 1, 2)}  # places of its operands
# What a time depends on besides shapes -> the arguments' names in the schema.
OPTIONS = {
    "aten.convolution": ("stride", "padding", "dilation", "transposed", "groups"),
    "aten.convolution_backward": ("stride", "padding", "dilation", "transposed", "groups", "output_mask"),
    "aten._softmax": ("dim",), "aten._log_softmax": ("dim",), "aten._softmax_backward_data": ("dim",),
    "aten._log_softmax_backward_data": ("dim",),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("is_causal",),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": ("is_causal",),
    "aten._scaled_dot_product_flash_attention": ("is_causal",), "aten._scaled_dot_product_flash_attention_backward": ("is_causal",),
    "aten._scaled_dot_product_efficient_attention": ("is_causal",),
}  # fmt: skip


def nodes_of(graph: torch.fx.GraphModule, training: bool, num_copied: int) -> list[Node]:
    """The graph's operators in order, with the memory each one frees."""
    every = list(graph.graph.nodes)
    output = every[-1]
    inputs = [node for node in every if node.op == "placeholder"]
    first = len(inputs) - _num_tangents(inputs) - num_copied
    copies = {node for given in inputs[first : first + num_copied] if (node := _first_clone(given)) is not None}
    roots: dict[tuple[FxNode, int], tuple[FxNode, int]] = {}
    last: dict[tuple[FxNode, int], FxNode] = {}
    kept: list[FxNode] = []
    for node in every:
        if node.op != "call_function":
            continue
        if _is_part(node) and isinstance(node.args[0], FxNode):
            roots[node, 0] = roots.get((node.args[0], int(node.args[1])), (node.args[0], int(node.args[1])))  # type: ignore[arg-type]
            continue
        if name_of(node).startswith("aten._assert"):  # what a trace checks, and a run does not
            continue
        used = [roots.get((each, 0), (each, 0)) for each in node.all_input_nodes]
        kept.append(node)
        for root in used:
            last[root] = node
        if _is_view(node) or node in copies:
            if used:
                for index in range(_num_outputs(node)):
                    roots[node, index] = used[0]
        else:
            for index in range(_num_outputs(node)):
                last[node, index] = node  # a result nobody reads goes at once
    leaves = torch.utils._pytree.tree_leaves(output.args)
    results = leaves if not training else leaves[: len(leaves) - len(inputs) + _num_tangents(inputs)]
    for leaf in results:  # what the caller gets stays; gradients are counted with the weights
        last.pop(roots.get((leaf, 0), (leaf, 0)), None)
    frees: dict[FxNode, list[TensorShape]] = {}
    for (node, index), where in last.items():
        if node.op == "call_function" and (shape := _output(node, index)) is not None:
            frees.setdefault(where, []).append(shape)
    loss_from = _loss_starts(kept, results) if training else len(kept)
    made = []
    for place, node in enumerate(kept):
        if node in copies:
            continue
        backward = node.meta.get("partitioner_tag") == "is_backward"
        phase = "backward" if backward else ("loss" if place >= loss_from else "forward")
        if name_of(node) == CONDITION and (branch := _dearest_branch(node, graph)):
            inside = [replace(each, phase=phase) for each in branch]
            made += [*inside[:-1], replace(inside[-1], frees=(*inside[-1].frees, *frees.get(node, ())))]
            continue
        made.append(
            Node(
                op=name_of(node),
                phase=phase,
                inputs=tuple(shape_of(each.meta["val"]) for each in _operands(node) if isinstance(each.meta.get("val"), Tensor)),
                outputs=tuple(shape for index in range(_num_outputs(node)) if (shape := _output(node, index)) is not None),
                frees=tuple(frees.get(node, ())),
                options=_options(node),
                is_view=_is_view(node),
            )
        )
    return made


def _dearest_branch(node: FxNode, graph: torch.fx.GraphModule) -> list[Node]:
    """Of torch.cond: the operators of the branch that multiplies most or, among equals, moves most."""
    branches = [nodes_of(getattr(graph, str(each.target)), False, 0) for each in node.args[1:3] if isinstance(each, FxNode)]

    def work(branch: list[Node]) -> tuple[int, int]:
        moved = sum(tensor.nbytes for each in branch if not each.is_view for tensor in (*each.inputs, *each.outputs))
        return sum(_multiplications(each) for each in branch), moved

    return max(branches, key=work)


def _multiplications(node: Node) -> int:
    """About as many as its matrix products have."""
    if node.op == "aten.convolution":
        return node.outputs[0].numel * math.prod(node.inputs[1].shape[1:])
    if node.op in PRODUCTS:
        return node.outputs[0].numel * node.operands[-1].shape[-2]
    return 2 * node.outputs[0].numel * node.operands[1].shape[-2] if "attention" in node.op else 0


def _operands(node: FxNode) -> list[FxNode]:
    """Tensors that it reads, each once. Of flex_attention queries, keys and values, which may be one tensor; backwards, behind the result's
    gradient, as other attention has it."""
    if name_of(node) in FLEX:
        places = FLEX[name_of(node)]
        return [each for place in places if isinstance(each := node.args[place], FxNode)]
    return node.all_input_nodes


def _first_clone(given: FxNode) -> FxNode | None:
    """The copy of an input that the tracer made; one that the module makes itself reads that copy."""
    return next((node for node in given.users if name_of(node) == "aten.clone"), None)


def _num_tangents(inputs: list[FxNode]) -> int:
    return sum(node.name.startswith("tangents") for node in inputs)


def _loss_starts(kept: list[FxNode], results: list[FxNode]) -> int:
    """The place behind the last operator that made an output of the model: all results but the first, which is the loss."""
    places = {node: index for index, node in enumerate(kept)}
    made = [len(kept)] if len(results) < 2 else []
    for node in results[1:]:
        while node.op == "call_function" and (_is_view(node) or _is_part(node)) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        made.append(places.get(node, -1) + 1)
    return max(made)


def name_of(node: FxNode) -> str:
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else str(getattr(node.target, "__name__", node.target))


def _is_part(node: FxNode) -> bool:
    """One of several results of an operator."""
    return getattr(node.target, "__name__", "") == "getitem"


def _is_view(node: FxNode) -> bool:
    return gives_views(node.target)


def gives_views(operator: Any) -> bool:
    if str(getattr(operator, "overloadpacket", "")) in UNDECLARED_VIEWS:
        return True
    schema = getattr(operator, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns)


def values_of(node: FxNode) -> tuple[Any, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _num_outputs(node: FxNode) -> int:
    return len(values_of(node))


def _output(node: FxNode, index: int) -> TensorShape | None:
    values = values_of(node)
    value = values[index] if index < len(values) else None
    return shape_of(value) if isinstance(value, Tensor) else None


def shape_of(tensor: Tensor) -> TensorShape:
    try:
        shape = tuple(int(size) for size in tensor.shape)
    except Exception:
        raise InvalidInput(f"a tensor of shape {tuple(tensor.shape)} has no size that a trace can know") from None
    name = DTYPES.get(tensor.dtype)
    if name is None:
        raise InvalidInput(f"dtype {tensor.dtype} is not supported; known: {', '.join(ITEM_BYTES)}")
    expanded = [size > 1 and stride == 0 for size, stride in zip(shape, tensor.stride(), strict=True)]
    distinct = tuple(1 if once else size for size, once in zip(shape, expanded, strict=True)) if any(expanded) else None
    return TensorShape(name, shape, distinct)


def _options(node: FxNode) -> tuple[tuple[str, Any], ...]:
    wanted = OPTIONS.get(name_of(node), ())
    if not wanted:
        return ()
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments if argument.has_default_value()}  # type: ignore[union-attr]
    given: Mapping[str, Any] = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    return tuple((name, tuple(given[name]) if isinstance(given[name], list | tuple) else given[name]) for name in wanted if name in given)


def tensors_in(value: Any) -> list[Tensor]:
    if hasattr(value, "to_tuple"):  # a Hugging Face output
        value = value.to_tuple()
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
