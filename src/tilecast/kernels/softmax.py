"""Softmax over rows: narrow rows stay in a warp's registers; wide ones are read three times, for maximum, sum and result."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import where
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks

IN_REGISTERS = 1024  # widest row that one warp holds
WIDE_THREADS = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Softmax:
    """`rows` rows of `cols`."""

    family: ClassVar[str] = "softmax"

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
            read_bytes=row_bytes,
            written_bytes=row_bytes,
            flop=5.0 * size["cols"],
            special_ops=where(wide, 2.0, 1.0) * size["cols"],  # the exponentials of a wide row are taken again for the result
            threads=where(wide, WIDE_THREADS, gpu.warp_size),
            rereads=where(wide, 2.0, 0.0),
            reduces=True,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (Softmax,)
