"""Operation: one thing a layer does on one GPU, before an engine has decided which kernel does it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`family` names the kernel family; `sizes` are its parameters that do not depend on the batch, which gives the rows."""

    name: str
    family: str
    sizes: Mapping[str, object] = field(default_factory=dict)
    per: str = "token"  # what gives a row: token or request of this GPU, every_token or every_request of all data-parallel ranks
    rows_each: int = 1  # rows per token or request: heads, where a kernel works head by head
    num_weights: int = 0  # parameters this GPU holds for it, in elements
    held: str | None = None  # quantisation of weights and product; None: the model's own dtype
    phase: str | None = None  # None: in both
    role: str | None = None  # what an engine may fuse away: "norm_after_reduce", "shared_expert"
    count: int = 1  # times per step


def merged(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Equal operations of different layers as one, where the first of them stood."""
    found: dict[object, Operation] = {}
    for operation in operations:
        sizes = tuple(sorted(operation.sizes.items()))
        key = (operation.name, operation.family, sizes, operation.per, operation.held, operation.phase, operation.role)
        same = found.get(key)
        found[key] = replace(same, count=same.count + operation.count) if same is not None else operation
    return tuple(found.values())
