"""Writing new keys and values into their slots of a paged cache."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import clip
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks

THREADS = 512  # at most; one for every element of a token's keys


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KvCacheWrite:
    """`rows` new tokens, each with a key and a value of `num_kv_heads` x `head_dim`."""

    family: ClassVar[str] = "kv_cache_write"

    rows: Any
    num_kv_heads: Any
    head_dim: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        keys = size["num_kv_heads"] * size["head_dim"]
        row_bytes = 2.0 * keys * element_bytes(self.dtype)
        stream = Stream(
            blocks=size["rows"],
            read_bytes=row_bytes + 8.0,  # and the slot
            written_bytes=row_bytes,
            flop=0.0,
            threads=clip(keys, gpu.warp_size, THREADS),
            access_bytes=element_bytes(self.dtype),
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (KvCacheWrite,)
