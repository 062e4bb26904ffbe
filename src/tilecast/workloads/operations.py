"""Operation: one thing a layer does on one GPU, before an engine has decided which kernel does it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

PER = {
    "token": "as many rows as the step has tokens",
    "request": "one row for each request: only its last token goes on to the head",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`family` names the kernel family; `sizes` are its parameters that do not depend on the batch, which gives the rows."""

    name: str
    family: str
    sizes: Mapping[str, object] = field(default_factory=dict)
    per: str = "token"
    rows_each: int = 1  # rows per token or request: heads, where a kernel works head by head
    num_weights: int = 0  # parameters this GPU holds for it, in elements
    count: int = 1  # times per step
