"""Which tensor an operator reads: a graph holds shapes and no edges, so tensors are followed by shape, by age and by who frees them.

An input is, of the tensors of its shape that are still held, one that this operator frees, else the youngest; views are other shapes of the
tensor they look at. An operator frees the youngest of those that it may read; but a pointwise one in a forward pass frees what no product
has read, if there is such a tensor, because products keep what they read for the gradients of their weights. What nothing made, such as a
weight, is a tensor of its own each time. Good for counting bytes, not for proofs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilecast.workloads.opgraph import PRODUCTS, Node, TensorShape

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Uses:
    """Numbers of the tensors that one operator reads, makes and frees; those that nothing made are negative."""

    read: tuple[int, ...]
    made: tuple[int, ...]
    freed: tuple[int, ...]


@dataclass(slots=True)
class _Memory:
    """What is held after some operators."""

    shapes: dict[Key, list[int]] = field(default_factory=dict)  # who may be seen in this shape, oldest first
    allocated: dict[Key, list[int]] = field(default_factory=dict)  # who was made in this shape
    held: set[int] = field(default_factory=set)
    multiplied: set[int] = field(default_factory=set)  # read by a product or by attention
    num_made: int = 0
    num_outside: int = 0

    def youngest(
        self, tensor: TensorShape, where: dict[Key, list[int]], among: Iterable[int] | None = None, but: Sequence[int] = ()
    ) -> int:
        """Number of the youngest tensor that is held in this shape; 0 for none."""
        ages = where.get(key(tensor), [])
        while ages and ages[-1] not in self.held:
            ages.pop()
        return next((one for one in reversed(ages) if one in self.held and one not in but and (among is None or one in among)), 0)

    def outside(self) -> int:
        self.num_outside += 1
        return -self.num_outside

    def make(self, tensor: TensorShape) -> int:
        self.num_made += 1
        for where in (self.shapes, self.allocated):
            where.setdefault(key(tensor), []).append(self.num_made)
        self.held.add(self.num_made)
        return self.num_made


def key(tensor: TensorShape) -> Key:
    return tensor.dtype, tensor.shape


def uses(nodes: Sequence[Node]) -> list[Uses]:
    """Of every operator, in order."""
    memory = _Memory()
    return [_uses(node, memory) for node in nodes]


def _uses(node: Node, memory: _Memory) -> Uses:
    seen = {one for tensor in node.inputs for one in memory.shapes.get(key(tensor), ())}
    multiplies = node.op in PRODUCTS or "attention" in node.op
    freed: list[int] = []
    for tensor in node.frees:
        rather = (
            memory.youngest(tensor, memory.allocated, seen - memory.multiplied, freed) if node.phase == "forward" and not multiplies else 0
        )
        freed.append(rather or memory.youngest(tensor, memory.allocated, seen, freed))
    read: list[int] = []
    for tensor in node.inputs:
        own = memory.youngest(tensor, memory.shapes, freed, read) or memory.youngest(tensor, memory.shapes, None, read)
        read.append(own or memory.outside())
    memory.multiplied.update(read if multiplies else ())
    made: tuple[int, ...] = ()
    if node.is_view:
        source = read[0] if read else 0
        for tensor in node.outputs if source > 0 else ():
            memory.shapes.setdefault(key(tensor), []).append(source)
    else:
        made = tuple(memory.make(tensor) for tensor in node.outputs)
    for place, tensor in enumerate(node.frees):  # one of its own results that nobody wants, or something it did not read
        freed[place] = freed[place] or memory.youngest(tensor, memory.allocated, None, freed)
    memory.held.difference_update(freed)
    return Uses(tuple(read), made, tuple(freed))
