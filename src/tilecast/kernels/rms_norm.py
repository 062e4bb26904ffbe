"""RMSNorm, alone or fused with the residual addition before it: one block per row, which reads its row again to scale it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import clip, where
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import flag, launch_sizes
from tilecast.kernels.streaming import VECTOR_BYTES, Stream, access_bytes, element_bytes, streaming_tasks

THREADS = 1024  # at most; one for every vector of eight elements


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RmsNorm:
    """`rows` rows of `cols`; with `residual`, x and the residual are read and both their sum and its norm are written."""

    family: ClassVar[str] = "rms_norm"

    rows: Any
    cols: Any
    residual: Any = False
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        tensors = where(flag(self.residual, "residual"), 2.0, 1.0)  # read, and as many written
        row_bytes = size["cols"] * element_bytes(self.dtype)
        stream = Stream(
            blocks=size["rows"],
            read_bytes=tensors * row_bytes,
            written_bytes=tensors * row_bytes,
            flop=(3.0 + tensors) * size["cols"],
            special_ops=1.0,
            threads=clip(size["cols"] / 8, gpu.warp_size, THREADS),
            access_bytes=where(tensors > 1, VECTOR_BYTES, access_bytes(self.identity, self.dtype)),  # the fused one was always wide
            shared_bytes=row_bytes,
            rereads=1.0 / tensors,  # only the sum, not both inputs
            reduces=True,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (RmsNorm,)
