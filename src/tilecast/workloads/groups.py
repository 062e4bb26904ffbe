"""A generated kernel in the making: which operators it takes, what it reads and writes, and the sums over columns that go with it.

Tensors have the numbers that `workloads/flow.py` gives them. A result that no library call reads is worked out where it is read, so a sum
over columns reads what its operands are made of. Such a sum is a kernel of its own, in two steps because its rows are divided; in PyTorch
2.13 it is part of the kernel that reduces the same rows, if they are many (inductor's mix-order reduction), which reads them once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilecast.workloads.aten import POINTWISE, REDUCTIONS
from tilecast.workloads.flow import Uses, key
from tilecast.workloads.opgraph import HALF_OF, Node, TensorShape

LAYER_NORM_BACKWARD = "native_layer_norm_backward"
LOSSES = ("nll_loss_forward", "nll_loss_backward")
NORMS = {  # over rows: FLOP and special-function operations on an element
    "native_layer_norm": (8.0, 0.0), "_softmax": (6.0, 1.0), "_safe_softmax": (6.0, 1.0), "_log_softmax": (6.0, 1.0),
    "_softmax_backward_data": (4.0, 0.0), "_log_softmax_backward_data": (5.0, 1.0), "embedding": (0.0, 0.0),
    LAYER_NORM_BACKWARD: (12.0, 0.0), "nll_loss_forward": (0.0, 0.0), "nll_loss_backward": (1.0, 0.0),
    "native_group_norm": (8.0, 0.0), "native_group_norm_backward": (12.0, 0.0),
}  # fmt: skip
TWICE = {"native_group_norm": 1, "native_group_norm_backward": 2}  # how many operands whose rows no SM holds: read for sums, then again
GIVEN_NORMS = dict.fromkeys(("_native_batch_norm_legit_no_training", "_batch_norm_no_update"), (4.0, 0.0))  # statistics given: pointwise
FUSED = "fused."
SECTOR_BYTES = 32  # of memory, that one entry of a row takes
# torch/_inductor/scheduler.py, MixOrderReduction.can_fuse: elements and rows at least, columns at most.
MIXED_ELEMENTS, MIXED_ROWS, MIXED_COLUMNS, MIXED_ROWS_PER_COLUMN = 5 * 2**20, 4096, 16 * 1024, 2


def name_of(node: Node) -> str:
    return node.op.removeprefix("aten.").rstrip("_") if node.op.startswith("aten.") else node.op


def domain(node: Node) -> int:
    """Elements that a kernel for it walks over. A lookup walks over what it makes, not over its table."""
    tensors = node.outputs if name_of(node) == "embedding" else (*node.inputs, *node.outputs)
    return max((tensor.numel for tensor in tensors), default=1)


def over_columns(node: Node) -> bool:
    """A reduction that leaves the last size as it is sums over rows of memory."""
    if name_of(node) not in (*REDUCTIONS, LAYER_NORM_BACKWARD) or not node.outputs or not node.inputs:
        return False
    made, read = node.outputs[0], max(node.inputs, key=lambda tensor: tensor.numel)
    return bool(made.shape and read.shape and made.shape[-1] == read.shape[-1] and made.numel < read.numel)


def is_fusible(node: Node) -> bool:
    """Inductor generates no code for complex numbers: such operators run as in eager mode."""
    name = name_of(node)
    if any(tensor.dtype in HALF_OF for tensor in (*node.inputs, *node.outputs)):
        return False
    return name in POINTWISE or name in NORMS or name in REDUCTIONS or name in GIVEN_NORMS


def parted(node: Node) -> tuple[Node, ...]:
    """LayerNorm's backward pass as its two reductions: gradients of weight and bias over columns, that of the input over rows."""
    if name_of(node) != LAYER_NORM_BACKWARD:
        return (node,)
    wide = tuple(tensor for tensor in node.outputs if tensor.numel == node.inputs[0].numel)
    narrow = tuple(tensor for tensor in node.outputs if tensor.numel < node.inputs[0].numel)
    if not wide or not narrow:
        return (node,)
    own = tuple(tensor for tensor in node.frees if tensor in narrow)
    others = tuple(tensor for tensor in node.frees if tensor not in narrow)
    return replace(node, outputs=narrow, frees=own), replace(node, outputs=wide, frees=others)


def is_half(node: Node, following: Sequence[Node]) -> bool:
    """The columns of what `parted` made, with the rows right behind."""
    return name_of(node) == LAYER_NORM_BACKWARD and over_columns(node) and any(node.inputs == each.inputs for each in following)


def is_mixed(node: Node) -> bool:
    """Whether a sum over columns is made by the kernel that reduces the same rows."""
    columns = node.outputs[0].numel
    rows = domain(node) // columns
    is_long = rows >= max(MIXED_ROWS, MIXED_ROWS_PER_COLUMN * columns)
    return is_long and rows * columns >= MIXED_ELEMENTS and columns <= MIXED_COLUMNS


@dataclass(frozen=True, slots=True)
class Sources:
    """What is known of tensors that kernels share."""

    allocated: dict[int, TensorShape]  # by number
    called_with: set[int]  # read by a library call: these are written
    constants: set[int]  # made wherever they are used


@dataclass(slots=True, eq=False)
class Group:
    """A kernel in the making."""

    sources: Sources
    nodes: list[Node] = field(default_factory=list)
    uses: list[Uses] = field(default_factory=list)
    numel: int = 0
    rows: set[int] = field(default_factory=set)  # what reductions inside have left of it
    reduces_rows: bool = False
    made: set[int] = field(default_factory=set)
    freed: list[tuple[int, TensorShape]] = field(default_factory=list)
    called: set[int] = field(default_factory=set)  # results of other kernels behind it
    is_called_with: bool = False  # one of those reads its results
    columns: list[tuple[Node, tuple[TensorShape, ...]]] = field(default_factory=list)  # sums over columns of it, and what each reads

    def takes(self, node: Node) -> bool:
        if not self.nodes:
            return True
        if over_columns(node) or node.phase != self.nodes[-1].phase:
            return False
        size = domain(node)
        if over_columns(self.nodes[0]):  # such as a bias' gradient, which is widened
            return size == self.nodes[0].outputs[0].numel and name_of(node) == "_to_copy"
        if size == self.numel or size in self.rows:
            return True
        # A smaller operand, such as the rows of a table of positions, is worked out where it is used.
        inlined = size < self.numel and self.numel % size == 0 and (name_of(node) in POINTWISE or name_of(node) == "embedding")
        grows = not self.rows and size % self.numel == 0 and any(tensor.numel == self.numel for tensor in node.inputs)
        return inlined or grows

    def joins(self, node: Node, used: Uses) -> str:
        """Where an operator runs with it: at its `place`, `behind` the other kernels since, or nowhere."""
        if not self.takes(node):
            return ""
        if not self.called:
            return "place"
        reads_others = bool(self.called & set(used.read))
        if not self.is_read_by(node, used) or (self.is_called_with and reads_others):
            return ""
        return "behind" if reads_others else "place"

    def is_read_by(self, node: Node, used: Uses) -> bool:
        """By number; where nobody has read it yet, by shape, as of several tensors of one shape the youngest may be taken for another."""
        if self.made & set(used.read):
            return True
        made = {key(self.sources.allocated[number]) for number in self.made}
        return not self.is_called_with and any(key(tensor) in made for tensor in node.inputs)

    def add(self, node: Node, used: Uses) -> None:
        self.nodes.append(node)
        self.uses.append(used)
        self.numel = max(self.numel, domain(node))
        name = name_of(node)
        if name in (*NORMS, *REDUCTIONS) and name != "embedding":
            left = node.inputs if name == LAYER_NORM_BACKWARD else node.outputs
            self.rows |= {
                tensor.numel for tensor in left if tensor.numel < self.numel and (tensor.shape or (0,))[-1] != node.inputs[0].shape[-1]
            }
            self.reduces_rows = True
        self.made |= set(used.made)
        self._free(node, used)

    def passed(self, used: Uses) -> None:
        """Another kernel behind it, which may read its results."""
        self.is_called_with = self.is_called_with or bool(self.made & set(used.read))
        self.called |= set(used.made)

    def holds(self, node: Node, used: Uses) -> bool:
        """Whether it makes the operands of a sum over columns, and for no library call."""
        read = self.made & set(used.read)
        return bool(read - self.sources.called_with) and self.nodes[-1].phase == node.phase and self.numel == domain(node)

    def hang(self, node: Node, used: Uses) -> None:
        self.columns.append((node, tuple(self.reads())))
        self.called |= set(used.made)
        self._free(node, used)

    def _free(self, node: Node, used: Uses) -> None:
        # One of its own results that it frees is a weight's gradient if it has the size of an operand; else nobody wants it.
        own = {
            number
            for number, tensor in zip(used.made, node.outputs, strict=False)
            if any(tensor.numel == each.numel for each in node.inputs)
        }
        self.freed += [(number, tensor) for number, tensor in zip(used.freed, node.frees, strict=True) if number not in own]

    def reads(self) -> list[TensorShape]:
        """From memory. What is seen in several views, or several times, is read once."""
        seen: dict[int, list[TensorShape]] = {}
        for node, used in zip(self.nodes, self.uses, strict=True):
            for tensor, number in zip(node.inputs, used.read, strict=True):
                read = looked_up(node, tensor)
                if read is not None and number not in self.made and number not in self.sources.constants:
                    seen.setdefault(number, []).append(read)
        found: list[TensorShape] = []
        for number, tensors in seen.items():
            whole = self.sources.allocated.get(number)
            found += [whole] if whole is not None and whole.nbytes < sum(tensor.nbytes for tensor in tensors) else tensors
        return found

    def kernels(self, mixes_orders: bool) -> list[Node]:
        """Sums over columns that are kernels of their own, then the kernel itself."""
        if len(self.nodes) == 1 and name_of(self.nodes[0]) in NORMS and not self.columns and name_of(self.nodes[0]) != LAYER_NORM_BACKWARD:
            return self.nodes[:1]
        gone = {number for number, _ in self.freed}
        written = [
            tensor
            for node, used in zip(self.nodes, self.uses, strict=True)
            for tensor, number in zip(node.outputs, used.made, strict=False)
            if number not in gone
        ]
        frees = [tensor for number, tensor in self.freed if number not in self.made and number not in self.sources.constants]
        own = [
            (number, tensor)
            for node, used in zip(self.nodes, self.uses, strict=True)
            for number, tensor in zip(used.freed, node.frees, strict=True)
        ]
        frees += [tensor for number, tensor in own if number in self.made and number not in gone]
        mixed = [node for node, _ in self.columns if mixes_orders and self.reduces_rows and is_mixed(node)]
        apart = [(node, reads) for node, reads in self.columns if node not in mixed]
        phase = self.nodes[-1].phase
        made = [_fused((node,), phase, reads, node.outputs, (), 2) for node, reads in apart]
        for node in (node for node, _ in self.columns):
            frees += [tensor for tensor in node.frees if tensor in node.outputs]
        written += [tensor for node in mixed for tensor in node.outputs]
        if written:
            passes = 2 if mixed or any(name_of(node) == "nll_loss_forward" for node in self.nodes) else 1
            again = [tensor for node in self.nodes for tensor in node.inputs[: TWICE.get(name_of(node), 0)]]
            made.append(_fused((*self.nodes, *mixed), phase, [*self.reads(), *again], written, frees, passes))
        elif made:
            made[-1] = replace(made[-1], frees=tuple(frees))
        return made


def looked_up(node: Node, tensor: TensorShape) -> TensorShape | None:
    """Of a table only the rows that are asked for are read, of log-probabilities one entry a row; their gradient needs none of them."""
    name = name_of(node)
    if name == "embedding" and tensor is node.inputs[0]:
        return replace(tensor, shape=node.outputs[0].shape, distinct=None)
    if name in LOSSES and tensor.numel == domain(node):
        return TensorShape("uint8", (tensor.shape[0], SECTOR_BYTES)) if name == "nll_loss_forward" else None
    return tensor


def _fused(
    nodes: Sequence[Node], phase: str, reads: Iterable[TensorShape], written: Iterable[TensorShape], frees: Iterable[TensorShape],
    passes: int,
) -> Node:  # fmt: skip
    flop = special = 0.0
    for node in nodes:
        each = next((table[name_of(node)] for table in (NORMS, POINTWISE, GIVEN_NORMS) if name_of(node) in table), (1.0, 0.0))
        elements = max(tensor.numel for tensor in node.outputs) if name_of(node) in POINTWISE else domain(node)
        flop, special = flop + each[0] * elements, special + each[1] * elements
    name = FUSED + "_".join(dict.fromkeys(name_of(node) for node in nodes))
    options = (("flop", round(flop)), ("special", round(special)), *((("passes", passes),) if passes > 1 else ()))
    return Node(name, phase, tuple(reads), tuple(written), tuple(frees), options)
