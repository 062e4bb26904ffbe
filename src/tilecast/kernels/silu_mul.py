"""The gated activation silu(gate) x up, gate and up side by side in one row."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import clip
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, access_bytes, element_bytes, streaming_tasks

THREADS = 1024  # at most; one for every vector of eight elements


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiluMul:
    """`rows` rows; `cols` is the width of the output, half that of the input."""

    family: ClassVar[str] = "silu_mul"

    rows: Any
    cols: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        row_bytes = size["cols"] * element_bytes(self.dtype)
        stream = Stream(
            blocks=size["rows"],
            read_bytes=2.0 * row_bytes,
            written_bytes=row_bytes,
            flop=6.0 * size["cols"],
            special_ops=2.0 * size["cols"],  # exp and reciprocal
            threads=clip(size["cols"] / 8, gpu.warp_size, THREADS),
            access_bytes=access_bytes(self.identity, self.dtype),
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (SiluMul,)
