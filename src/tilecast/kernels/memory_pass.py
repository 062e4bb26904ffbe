"""One pass over memory: an operator known by what it reads, writes and computes, whatever it is called.

What has no model of its own is priced like this, and so is every pointwise operator of a traced model: its operands differ in shape and
width, which the families with fixed operands cannot say.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import maximum
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import SLICE, Stream, access_bytes, streaming_tasks

BYTES_PER_BLOCK = 4.0 * SLICE  # of the wider side


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryPass:
    """`read_bytes` in, `written_bytes` out, in `passes` kernels; `flop` and `special_ops` are those of the whole launch.

    `dtype` counts where the kernel is `scalar`, and takes elements of it one by one.
    """

    family: ClassVar[str] = "memory_pass"

    written_bytes: Any
    read_bytes: Any = 0
    flop: Any = 0
    special_ops: Any = 0
    passes: Any = 1
    dtype: str = "fp32"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(written_bytes=self.written_bytes, passes=self.passes)
        more = launch_sizes(at_least=0, read_bytes=self.read_bytes, flop=self.flop, special_ops=self.special_ops)
        wider = maximum(size["written_bytes"], more["read_bytes"])
        blocks = maximum(wider / BYTES_PER_BLOCK, 1.0)
        stream = Stream(
            blocks=blocks,
            read_bytes=more["read_bytes"] / blocks,
            written_bytes=size["written_bytes"] / blocks,
            flop=more["flop"] / blocks,
            special_ops=more["special_ops"] / blocks,
            access_bytes=access_bytes(self.identity, self.dtype),
            launches=size["passes"],
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (MemoryPass,)
