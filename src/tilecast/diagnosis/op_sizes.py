"""The arguments of a traced operator as tensors: shapes, types and the bytes they really occupy."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilecast.diagnosis.trace_reader import Op

FORMATS = {
    "c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e5m2fnuz": "fp8", "signed char": "int8",
}  # fmt: skip
BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp64": 8.0, "fp8": 1.0, "int8": 1.0}
OTHER_BYTES = {"int": 4.0, "long int": 8.0, "long": 8.0, "bool": 1.0, "unsigned char": 1.0, "short": 2.0, "c10::complex<float>": 8.0}


class Unpriced(Exception):
    """Why a call has no prediction."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An argument; one that is repeated along a dimension (stride 0) is read once."""

    shape: tuple[int, ...]
    dtype: str  # as the trace has it
    strides: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> float:
        repeats = len(self.strides) == len(self.shape)
        own = (size for place, size in enumerate(self.shape) if not (repeats and self.strides[place] == 0))
        return math.prod(own) * element_bytes_of(self)


def tensors(op: Op | None) -> list[Tensor]:
    """The tensors among an operator's arguments, numbers left out; those of lists are not among them, for their types are not known."""
    if op is None:
        return []
    found = []
    for place, (dims, dtype) in enumerate(zip(op.dims, op.types, strict=False)):
        if dtype in FORMATS or dtype in OTHER_BYTES:
            if not isinstance(dims, tuple) or any(isinstance(size, tuple) for size in dims):
                continue
            strides = op.strides[place] if place < len(op.strides) and isinstance(op.strides[place], tuple) else ()
            found.append(Tensor(dims, dtype, strides))
    return found


def format_of(tensor: Tensor) -> str:
    """Tilecast's name of its number format; the trace's own for what is not a format of products."""
    return FORMATS.get(tensor.dtype, tensor.dtype)


def element_bytes_of(tensor: Tensor) -> float:
    return BYTES[FORMATS[tensor.dtype]] if tensor.dtype in FORMATS else OTHER_BYTES[tensor.dtype]


def broadcast(given: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape that tensors have together."""
    longest = max(len(tensor.shape) for tensor in given)
    padded = [(1,) * (longest - len(tensor.shape)) + tensor.shape for tensor in given]
    shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    if any(size not in (1, whole) for one in padded for size, whole in zip(one, shape, strict=True)):
        raise Unpriced(f"shapes {[tensor.shape for tensor in given]} do not go together")
    return shape


def wholly(shape: tuple[int, ...], part: tuple[int, ...]) -> bool:
    """Whether `part` is the end of `shape`."""
    return shape[len(shape) - len(part) :] == part


def without_size(op: Op | None) -> Unpriced:
    return Unpriced(f"the sizes are not in the shapes of {op.name if op is not None else 'its operator'}")


def number(op: Op | None, place: int, default: int) -> int:
    """The argument at `place` where it is a whole number."""
    text = op.scalars[place] if op is not None and place < len(op.scalars) else ""
    return int(text) if text.lstrip("-").isdigit() else default


def listed(op: Op | None, place: int) -> list[Any]:
    """The argument at `place` as a list of numbers."""
    text = op.scalars[place] if op is not None and place < len(op.scalars) else ""
    try:
        found = json.loads(text)
    except ValueError:
        raise Unpriced(f"argument {place} of {op.name if op is not None else 'its operator'} is not in the trace") from None
    return found if isinstance(found, list) else [found]
