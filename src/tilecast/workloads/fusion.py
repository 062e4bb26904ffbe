"""What a compiler makes of a graph: runs of pointwise operators, norms and reductions become one kernel each, as PyTorch's inductor does.

A graph has no edges, so groups are runs in the order of the trace: operators between two library calls that work on the same elements, or
on the rows of them, are one kernel. It reads what no operator inside made and writes what is still wanted behind it. A kernel waits for the
operator that reads it where no library call between them does (SwiGLU's SiLU, with the product of the up projection), and an operator joins
the kernel before such calls where it reads none of their results; who reads what is told by shapes. Reductions over rows (softmax, norms)
fuse with what is before and behind them, and so does a batch norm that has its statistics; a reduction over columns, such as the gradient
of a bias, stands alone. Unfused attention of a forward pass becomes one kernel, as inductor's pattern matcher has it: since PyTorch 2.2 for
BERT (its pull request 113004), later for GPT-2 (121866, 125562); before, its softmax fuses with what lies between the two products.
Constants and views cost nothing.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilecast.workloads.aten import POINTWISE, REDUCTIONS
from tilecast.workloads.kept import lean
from tilecast.workloads.opgraph import HALF_OF, Node, OpGraph, TensorShape, folded, renamed

NORMS = {  # over rows: FLOP and special-function operations on an element
    "native_layer_norm": (8.0, 0.0), "_softmax": (6.0, 1.0), "_safe_softmax": (6.0, 1.0), "_log_softmax": (6.0, 1.0),
    "_softmax_backward_data": (4.0, 0.0), "_log_softmax_backward_data": (5.0, 1.0), "embedding": (0.0, 0.0),
}  # fmt: skip
GIVEN_NORMS = dict.fromkeys(("_native_batch_norm_legit_no_training", "_batch_norm_no_update"), (4.0, 0.0))  # statistics given: pointwise
SCORES = ("aten._softmax", "aten._safe_softmax")
ATTENTION = "aten._scaled_dot_product_efficient_attention"
CONSTANTS = "arange full full_like zeros zeros_like ones ones_like scalar_tensor empty empty_like new_zeros new_full".split()
FUSED = "fused."

Key = tuple[str, tuple[int, ...]]


def name_of(node: Node) -> str:
    return node.op.removeprefix("aten.").rstrip("_") if node.op.startswith("aten.") else node.op


def is_constant(node: Node) -> bool:
    """Made inside the kernels that use it."""
    return not node.inputs and name_of(node) in CONSTANTS


def over_columns(node: Node) -> bool:
    """A reduction that leaves the last size as it is sums over rows of memory."""
    if name_of(node) not in REDUCTIONS or not node.outputs or not node.inputs:
        return False
    made, read = node.outputs[0], max(node.inputs, key=lambda tensor: tensor.numel)
    return bool(made.shape and read.shape and made.shape[-1] == read.shape[-1] and made.numel < read.numel)


def is_fusible(node: Node) -> bool:
    """Inductor generates no code for complex numbers: such operators run as in eager mode."""
    name = name_of(node)
    if any(tensor.dtype in HALF_OF for tensor in (*node.inputs, *node.outputs)):
        return False
    return name in POINTWISE or name in NORMS or name in REDUCTIONS or name in GIVEN_NORMS


def keys(tensors: Iterable[TensorShape]) -> set[Key]:
    """What tells tensors apart where there are no edges."""
    return {(tensor.dtype, tensor.shape) for tensor in tensors}


def domain(node: Node) -> int:
    """Elements that a kernel for it walks over. A lookup walks over what it makes, not over its table."""
    tensors = node.outputs if name_of(node) == "embedding" else (*node.inputs, *node.outputs)
    return max((tensor.numel for tensor in tensors), default=1)


@dataclass(slots=True, eq=False)
class Group:
    """A kernel in the making."""

    nodes: list[Node] = field(default_factory=list)
    numel: int = 0
    rows: set[int] = field(default_factory=set)  # what reductions inside have left of it
    closed: bool = False
    known_as: set[Key] = field(default_factory=set)  # its results, and views of them
    called: set[Key] = field(default_factory=set)  # results of library calls behind it, and views of them
    is_called_with: bool = False  # one of those calls reads its results

    def takes(self, node: Node) -> bool:
        if not self.nodes:
            return True
        if self.closed or over_columns(node) or node.phase != self.nodes[-1].phase:
            return False
        size = domain(node)
        if size == self.numel or size in self.rows:
            return True
        # A smaller operand, such as the rows of a table of positions, is worked out where it is used.
        inlined = size < self.numel and self.numel % size == 0 and (name_of(node) in POINTWISE or name_of(node) == "embedding")
        grows = not self.rows and size % self.numel == 0 and any(tensor.numel == self.numel for tensor in node.inputs)
        return inlined or grows

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self.numel = max(self.numel, domain(node))
        self.rows |= {tensor.numel for tensor in node.outputs if tensor.numel < self.numel and name_of(node) in (*NORMS, *REDUCTIONS)}
        self.closed = over_columns(node)
        self.known_as |= keys(node.outputs)

    def passed(self, node: Node) -> None:
        """Something behind it that is no part of it: a view gives results another shape, a library call may read them."""
        read = keys(node.inputs)
        if node.is_view:
            self.known_as |= keys(node.outputs) if read & self.known_as else set()
            self.called |= keys(node.outputs) if read & self.called else set()
            return
        self.is_called_with = self.is_called_with or bool(read & self.known_as)
        self.called |= keys(node.outputs)

    def joins(self, node: Node) -> str:
        """Where an operator that reads it runs with it: at its `place`, `behind` the library calls since, or nowhere."""
        if not self.takes(node):
            return ""
        if not self.called:
            return "place"
        read = keys(node.inputs)
        if not read & self.known_as or (self.is_called_with and read & self.called):
            return ""
        return "behind" if read & self.called else "place"

    def made(self) -> Node:
        """One node: what it reads from memory, what it writes, and its work."""
        if len(self.nodes) == 1 and name_of(self.nodes[0]) in NORMS:
            return self.nodes[0]
        held: list[tuple[str, int]] = []  # made before, and in registers
        reads: list[TensorShape] = []
        written: list[TensorShape] = []
        flop = special = 0.0
        for node in self.nodes:
            waiting = list(held)
            for tensor in node.inputs:
                key = tensor.dtype, tensor.numel
                if key in waiting:
                    waiting.remove(key)
                else:
                    reads.append(_looked_up(node, tensor))
            before = len(written)
            written += node.outputs
            own = [(tensor.dtype, tensor.numel) for tensor in node.outputs]
            for tensor in node.frees:
                # Made by an operator before this one; else one of its own results that nobody wants; else it came from outside.
                if tensor in written[:before]:
                    written.remove(tensor)
                    before -= 1
                elif tensor in written[before:] and all(tensor.numel != read.numel for read in node.inputs):
                    written.remove(tensor)
                key = tensor.dtype, tensor.numel
                if key in held:  # and not its own result, which may have the size of what it frees
                    held.remove(key)
            held += own
            each = next((table[name_of(node)] for table in (NORMS, POINTWISE, GIVEN_NORMS) if name_of(node) in table), (1.0, 0.0))
            elements = max(tensor.numel for tensor in node.outputs) if name_of(node) in POINTWISE else domain(node)
            flop, special = flop + each[0] * elements, special + each[1] * elements
        frees = tuple(tensor for node in self.nodes for tensor in node.frees)
        inside = [tensor for node in self.nodes for tensor in node.outputs]
        for tensor in written:
            inside.remove(tensor)
        outside = list(frees)
        for tensor in inside:
            if tensor in outside:
                outside.remove(tensor)
        name = FUSED + "_".join(dict.fromkeys(name_of(node) for node in self.nodes))
        options = (("flop", round(flop)), ("special", round(special)))
        return Node(name, self.nodes[-1].phase, tuple(reads), tuple(written), tuple(outside), options)


def _looked_up(node: Node, tensor: TensorShape) -> TensorShape:
    """Of a table only the rows that are asked for are read."""
    if name_of(node) == "embedding" and tensor is node.inputs[0]:
        return replace(tensor, shape=node.outputs[0].shape, distinct=None)
    return tensor


@lru_cache(maxsize=32)
def compiled(graph: OpGraph, finds_attention: bool = True) -> OpGraph:
    """The graph as compiled kernels; library calls stay as they are."""
    nodes = list(graph.nodes())
    if graph.mode == "inference" and finds_attention:
        nodes = _with_attention(nodes)
    if graph.mode == "training":
        nodes = lean(nodes)
    made: list[Node | Group] = []
    group = Group()
    for node in nodes:
        if node.is_view or is_constant(node) or not node.outputs:
            group.passed(replace(node, is_view=True))
            if node.frees:  # memory is let go of all the same
                made.append(replace(node, is_view=True, outputs=()))
            continue
        if not is_fusible(node):
            group.passed(node)
            made.append(node)
            continue
        where = group.joins(node)
        if where == "behind":
            made.remove(group)
            group.called.clear()
        elif not where:
            group = Group()
        if not group.nodes or where == "behind":
            made.append(group)
        group.add(node)
    return renamed(graph, segments=folded([each.made() if isinstance(each, Group) else each for each in made]))


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
        while made and (made[-1].is_view or name_of(made[-1]) in ("clone", "mul", "expand")) and not _is_projection(made[-1], call):
            made.pop()
        made.append(call)
        place = end
    return made


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
