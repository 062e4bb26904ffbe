"""LayerNorm: one small block per row, which reads its row once for mean and variance and again to normalise it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks

THREADS = 128  # PyTorch's kernel: four warps, whatever the width
HOST_CALLS = 2  # eager PyTorch dispatches twice and allocates mean and deviation beside the output


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerNorm:
    """`rows` rows of `cols`, with a weight and a bias."""

    family: ClassVar[str] = "layer_norm"

    rows: Any
    cols: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        row_bytes = size["cols"] * element_bytes(self.dtype)
        stream = Stream(
            blocks=size["rows"],
            read_bytes=row_bytes,
            written_bytes=row_bytes,
            flop=12.0 * size["cols"],  # Welford's update costs most
            special_ops=size["cols"] + 1.0,  # and divides once per element
            threads=THREADS,
            shared_bytes=2.0 * row_bytes,
            rereads=1.0,
            reduces=True,
            host_calls=HOST_CALLS,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (LayerNorm,)
