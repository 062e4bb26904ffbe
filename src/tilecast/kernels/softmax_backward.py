"""The backward pass of softmax: rows of gradient and result are read once, or twice where they are too wide for registers."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import where
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.softmax import IN_REGISTERS, WIDE_THREADS
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxBackward:
    """`rows` rows of `cols`."""

    family: ClassVar[str] = "softmax_backward"

    rows: Any
    cols: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        row_bytes = size["cols"] * element_bytes(self.dtype)
        wide = size["cols"] > IN_REGISTERS
        stream = Stream(
            blocks=size["rows"],
            read_bytes=2.0 * row_bytes,
            written_bytes=row_bytes,
            flop=5.0 * size["cols"],
            threads=where(wide, WIDE_THREADS, gpu.warp_size),
            rereads=where(wide, 1.0, 0.0),
            reduces=True,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (SoftmaxBackward,)
