"""The backward pass of LayerNorm: one kernel for the input's gradient, row by row, and one for those of weight and bias, column by column.

The second one is narrow: a block takes 32 columns and walks down all rows, so a hidden size of 1024 keeps 32 blocks busy, on any GPU.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.execution.arithmetic import ceil, maximum, minimum
from tilecast.execution.cache import hit_fraction
from tilecast.execution.fitted import constants
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks, vector_bytes_per_clock_per_sm

COLUMNS = 32.0  # of one block of the second kernel
THREADS = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerNormBackward:
    """`rows` rows of `cols`: gradients of the input, the weight and the bias."""

    family: ClassVar[str] = "layer_norm_backward"

    rows: Any
    cols: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        element = element_bytes(self.dtype)
        row_bytes = size["cols"] * element
        first = streaming_tasks(
            Stream(
                blocks=size["rows"],
                read_bytes=2.0 * row_bytes,
                written_bytes=row_bytes,
                flop=16.0 * size["cols"],
                threads=THREADS,
                shared_bytes=row_bytes,
                rereads=1.0,
                reduces=True,
                launches=2.0,
            ),
            gpu,
            protocol,
        )
        # The second kernel reads both inputs again, with as many SMs as there are blocks; what the first one left in L2 it finds there.
        traffic = 2.0 * size["rows"] * row_bytes
        missed = traffic * (1.0 - hit_fraction(3.0 * size["rows"] * row_bytes, gpu))
        busy_sms = minimum(ceil(size["cols"] / COLUMNS), float(gpu.num_sms))
        from_l2_s = traffic / (busy_sms * vector_bytes_per_clock_per_sm(gpu) * gpu.boost_clock_hz)
        from_dram_s = missed / (gpu.dram_data_bytes_per_s * constants().dram_fraction)
        return first._replace(fixed_s=first.fixed_s + maximum(from_l2_s, from_dram_s))


KERNELS = (LayerNormBackward,)
