"""What a compiler makes of a graph: runs of pointwise operators, norms and reductions become one kernel each, as PyTorch's inductor does.

Operators that work on the same elements, or on the rows of them, are one kernel (`workloads/groups.py`): with the kernel that makes what
they read, else with the one before them, where nothing has run since. It reads what no operator inside made and writes what is still wanted
behind it. A kernel waits for the operator that reads it where nothing between them does (SwiGLU's SiLU, with the product of the up
projection), and an operator joins the kernel before other ones where it reads none of their results; who reads what is told by
`workloads/flow.py`. Reductions over rows (softmax, norms, losses and the gradients of all of these) fuse with what is before and behind
them, and so does a batch norm that has its statistics; a reduction over columns, such as the gradient of a bias, stands alone, unless it is
that of a norm's weight. Unfused attention of a forward pass becomes one kernel, as inductor's pattern matcher has it: since PyTorch 2.2
for BERT (its pull request 113004), later for GPT-2 (121866, 125562); before, its softmax fuses with what lies between the two products.
Constants and views cost nothing.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tilecast.workloads.aten import POINTWISE
from tilecast.workloads.flow import Uses, uses
from tilecast.workloads.groups import Group, Sources, is_fusible, is_half, name_of, over_columns, parted
from tilecast.workloads.kept import lean
from tilecast.workloads.opgraph import Node, OpGraph, TensorShape, folded, renamed

SCORES = ("aten._softmax", "aten._safe_softmax")
ATTENTION = "aten._scaled_dot_product_efficient_attention"
CONSTANTS = "arange full full_like zeros zeros_like ones ones_like scalar_tensor empty empty_like new_zeros new_full".split()
NUM_WAITING = 8  # groups


def is_constant(node: Node) -> bool:
    """Made inside the kernels that use it."""
    return not node.inputs and name_of(node) in CONSTANTS


@lru_cache(maxsize=32)
def compiled(graph: OpGraph, finds_attention: bool = True, mixes_orders: bool = True) -> OpGraph:
    """The graph as compiled kernels; library calls stay as they are."""
    nodes = list(graph.nodes())
    if graph.mode == "inference" and finds_attention:
        nodes = _with_attention(nodes)
    if graph.mode == "training":
        nodes = lean(nodes)
    nodes = [part for node in nodes for part in parted(node)]
    made: list[Node] = []
    for each in _grouped(nodes):
        made += each.kernels(mixes_orders) if isinstance(each, Group) else [each]
    return renamed(graph, segments=folded(made))


def _grouped(nodes: Sequence[Node]) -> list[Node | Group]:
    """Library calls and groups, in the order they run."""
    flow = uses(nodes)
    sources = _sources(nodes, flow)
    made: list[Node | Group] = []
    waiting: deque[Group] = deque(maxlen=NUM_WAITING)  # groups that may still grow, newest first
    halves: list[tuple[Node, Uses]] = []  # of LayerNorm's backward pass: columns, which go with the rows that follow
    for place, (node, used) in enumerate(zip(nodes, flow, strict=True)):
        if _costs_nothing(node):
            if node.frees:  # memory is let go of all the same
                made.append(replace(node, is_view=True, outputs=()))
            continue
        if is_half(node, nodes[place + 1 : place + 2]):
            halves.append((node, used))
            continue
        own, where = _joined(node, used, waiting) if is_fusible(node) else (None, "")
        if where == "columns":
            assert own is not None
            own.hang(node, used)
        else:
            if own is not None and where == "behind":
                made.remove(own)
                made.append(own)
                own.called.clear()
            elif own is None:
                own = Group(sources) if is_fusible(node) else None
                made.append(own or node)
                waiting.extendleft([own] if own else [])
            if own is not None:
                own.add(node, used)
        for other in waiting:
            if other is not own:
                other.passed(used)
        while halves and own is not None:
            own.hang(*halves.pop())
    return made


def _costs_nothing(node: Node) -> bool:
    return node.is_view or is_constant(node) or not node.outputs


def _sources(nodes: Sequence[Node], flow: Sequence[Uses]) -> Sources:
    allocated: dict[int, TensorShape] = {}
    called_with, constants = set[int](), set[int]()
    for node, used in zip(nodes, flow, strict=True):
        allocated |= dict(zip(used.made, node.outputs, strict=False))
        if is_constant(node):
            constants |= set(used.made)
        elif not is_fusible(node) and not node.is_view:
            called_with |= set(used.read)
    return Sources(allocated, called_with, constants)


def _joined(node: Node, used: Uses, waiting: Sequence[Group]) -> tuple[Group | None, str]:
    """The newest group that makes what it reads; else the newest one of all. And where it runs with it: a sum over columns, beside it."""
    if over_columns(node):
        own = next((group for group in waiting if group.holds(node, used)), None)
        return own, "columns" if own else ""
    for group in (*(group for group in waiting if group.is_read_by(node, used)), *list(waiting)[:1]):
        if where := group.joins(node, used):
            return group, where
    return None, ""


def _with_attention(nodes: Sequence[Node]) -> list[Node]:
    """Scores, softmax and mixing as one library call, with the copies that only they needed."""
    made: list[Node] = []
    place = 0
    while place < len(nodes):
        found = _attention_at(nodes, place)
        if found is None:
            made.append(nodes[place])
            place += 1
            continue
        call, end = found
        gone = list(nodes[place:end])
        while made and (made[-1].is_view or name_of(made[-1]) in ("clone", "mul", "expand")) and not _is_projection(made[-1], call):
            gone.append(made.pop())
        made.append(replace(call, frees=_freed_from_before(gone, call)))
        place = end
    return made


def _freed_from_before(gone: Sequence[Node], call: Node) -> tuple[TensorShape, ...]:
    """Queries, keys and values that operators let go which one call stands for, but for those they made themselves; its result stays."""
    query, key = call.inputs[:2]
    least = min(query.numel, key.numel) // query.shape[1]  # one head's; a mask stays for the next layer
    freed = [tensor for node in gone for tensor in node.frees if tensor.numel >= least]
    own = Counter((tensor.dtype, tensor.numel) for node in gone if not node.is_view for tensor in node.outputs)
    own[call.outputs[0].dtype, call.outputs[0].numel] -= 1
    left: list[TensorShape] = []
    for tensor in freed:
        what = tensor.dtype, tensor.numel
        if own[what] > 0:
            own[what] -= 1
        else:
            left.append(tensor)
    return tuple(left)


def _is_projection(node: Node, call: Node) -> bool:
    """Anything but a copy of queries, keys or values, or a view of them."""
    batch, heads, tokens, width = call.inputs[0].shape
    sizes = {batch * heads * tokens * width, batch * heads * call.inputs[1].shape[2] * width}
    return not any(tensor.numel in sizes for tensor in node.outputs)


def _attention_at(nodes: Sequence[Node], start: int) -> tuple[Node, int] | None:
    """bmm, pointwise operators, softmax, bmm from `start` on: the call that stands for them, and where they end."""
    if nodes[start].op != "aten.bmm" or nodes[start].phase != "forward":
        return None
    place, softmax = start + 1, None
    masks: list[TensorShape] = []
    scores = nodes[start].outputs[0]
    while place < len(nodes) and nodes[place].op != "aten.bmm":
        node = nodes[place]
        if node.op in SCORES:
            softmax = node
        elif not (node.is_view or name_of(node) in POINTWISE or not node.outputs):
            return None
        masks += [tensor for tensor in node.inputs if tensor.numel != scores.numel and tensor.numel > 1 and not node.is_view]
        place += 1
    if softmax is None or place == len(nodes):
        return None
    left, right, mixed = (nodes[start].inputs * 2)[0], (nodes[start].inputs * 2)[1], nodes[place].outputs[0]
    width = left.shape[-1]
    batch, heads = _batch_and_heads(softmax, left)
    query = TensorShape(left.dtype, (batch, heads, left.shape[-2], width))
    key = TensorShape(right.dtype, (batch, heads, right.shape[-1], width))
    result = TensorShape(mixed.dtype, (batch, heads, left.shape[-2], mixed.shape[-1]))
    end = place + 1
    while end < len(nodes) and (nodes[end].is_view or (name_of(nodes[end]) == "clone" and nodes[end].outputs[0].numel == mixed.numel)):
        end += 1
    plain = tuple(tensor for tensor in masks if math.prod(tensor.shape) <= scores.numel)
    return Node(ATTENTION, "forward", (query, key, key, *plain[:1]), (result,), (), (("is_causal", False),)), end


def _batch_and_heads(softmax: Node, left: TensorShape) -> tuple[int, int]:
    shape = softmax.outputs[0].shape
    return (shape[0], shape[1]) if len(shape) == 4 else (1, left.shape[0])
