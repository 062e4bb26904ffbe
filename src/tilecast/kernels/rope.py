"""Rotary position embedding, in place on the query and key heads of each token."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import clip
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, access_bytes, element_bytes, streaming_tasks

THREADS = 512  # at most; one for every pair of elements


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rope:
    """`rows` tokens with `num_heads` query and `num_kv_heads` key heads of `head_dim`; sines and cosines come from a table."""

    family: ClassVar[str] = "rope"

    rows: Any
    num_heads: Any
    num_kv_heads: Any
    head_dim: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        elements = (size["num_heads"] + size["num_kv_heads"]) * size["head_dim"]
        row_bytes = elements * element_bytes(self.dtype)
        table_bytes = size["head_dim"] * element_bytes(self.dtype)  # one row of the table per token
        stream = Stream(
            blocks=size["rows"],
            read_bytes=row_bytes + table_bytes + 8.0,  # and the position
            written_bytes=row_bytes,
            flop=3.0 * elements,
            threads=clip(elements / 2, gpu.warp_size, THREADS),
            access_bytes=access_bytes(self.identity, self.dtype),
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (Rope,)
