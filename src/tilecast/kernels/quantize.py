"""Quantising activations: 16 bits in, the format named by `dtype` out, with scales that are known (static) or found per row or block."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import SLICE, Stream, element_bytes, operation, slices, streaming_tasks

SOURCE_BYTES = 2.0


class Scales(NamedTuple):
    """How the scales are found."""

    rereads: float  # of the input, once its largest element is known
    bytes_per_element: float = 0.0  # scales written


OPS = {"static_scaled_fp8": Scales(0.0), "per_tensor": Scales(1.0), "per_token": Scales(1.0), "per_block": Scales(0.0, 4.0 / 128)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantize:
    """`rows` rows of `cols` 16-bit activations to `dtype`."""

    family: ClassVar[str] = "quantize"

    rows: Any
    cols: Any
    op: str = "static_scaled_fp8"
    dtype: str = "fp8"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        scales: Scales = operation(self.op, OPS)
        stream = Stream(
            blocks=slices(size["rows"] * size["cols"]),
            read_bytes=SLICE * SOURCE_BYTES,
            written_bytes=SLICE * (element_bytes(self.dtype) + scales.bytes_per_element),
            flop=4.0 * SLICE,
            rereads=scales.rereads,
            launches=2.0 if self.op == "per_tensor" else 1.0,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (Quantize,)
