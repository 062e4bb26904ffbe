"""Operations on every element of flat tensors: what they read and write decides their time, and for a few what they compute."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tilecast.errors import InvalidInput
from tilecast.execution import Protocol, TaskSet
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import sizes
from tilecast.kernels.streaming import SLICE, Stream, element_bytes, operation, slices, streaming_tasks


class Op(NamedTuple):
    """Tensors read, and the work on one element; every operation writes one tensor."""

    inputs: int
    flop: float = 1.0
    special_ops: float = 0.0


BINARY = {"add": Op(2), "sub": Op(2), "mul": Op(2), "div": Op(2, 8.0, 1.0), "pow": Op(2, 100.0, 2.0)}
UNARY = {
    "relu": Op(1), "gelu": Op(1, 30.0, 1.0), "tanh": Op(1, 12.0, 2.0), "exp": Op(1, 2.0, 1.0), "silu": Op(1, 4.0, 2.0), "copy": Op(1, 0.0),
}  # fmt: skip
WITH_SCALAR = {f"{name}u": op._replace(inputs=1) for name, op in BINARY.items()}  # one of the two is a number, not a tensor
OPS = BINARY | WITH_SCALAR | UNARY | {"add3": Op(3, 2.0), "residual_add": Op(2)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Elementwise:
    """`op` on tensors of `numel` elements; a trailing u (addu, powu) is a tensor with a number. `op` may be an array of names."""

    family: ClassVar[str] = "elementwise"

    op: Any
    numel: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        numel = sizes(numel=self.numel)["numel"]
        inputs, flop, special_ops = self._work(len(numel))
        size = element_bytes(self.dtype)
        stream = Stream(
            blocks=slices(numel),
            read_bytes=inputs * SLICE * size,
            written_bytes=SLICE * size,
            flop=flop * SLICE,
            special_ops=special_ops * SLICE,
        )
        return streaming_tasks(stream, gpu, protocol)

    def _work(self, launches: int) -> tuple[Floats, Floats, Floats]:
        names = np.atleast_1d(np.asarray(self.op, dtype=object))
        if len(names) not in (1, launches) and launches != 1:
            raise InvalidInput(f"parameters have different numbers of launches: op {len(names)}, numel {launches}")
        distinct = {name: operation(str(name), OPS) for name in set(names)}
        inputs, flop, special_ops = (np.array([[float(distinct[name][part])] for name in names]) for part in range(3))
        return inputs, flop, special_ops


KERNELS = (Elementwise,)
