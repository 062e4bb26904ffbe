"""Looking up the rows of an embedding table, one for each token."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import clip, minimum
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks

THREADS = 256  # at most; one for every vector of eight elements


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """`rows` tokens of width `cols` from a table of `vocab_size` rows; more tokens than that read some row twice, from cache."""

    family: ClassVar[str] = "embedding"

    rows: Any
    cols: Any
    vocab_size: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols, vocab_size=self.vocab_size)
        row_bytes = size["cols"] * element_bytes(self.dtype)
        distinct = minimum(size["rows"], size["vocab_size"])
        stream = Stream(
            blocks=size["rows"],
            read_bytes=8.0,  # the token
            written_bytes=row_bytes,
            flop=0.0,
            threads=clip(size["cols"] / 8, gpu.warp_size, THREADS),
            shared_bytes=distinct * row_bytes,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (Embedding,)
