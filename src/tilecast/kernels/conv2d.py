"""2-D convolution as an implicit GEMM: one output pixel is a row, one output channel a column, and the sum runs over the window.

Libraries may do with fewer multiplications (Winograd) or cheaper ones (TF32, unless it is off, as fp32 means here), so the bound counts
bytes only.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilecast.errors import InvalidInput
from tilecast.execution import Protocol, TaskSet
from tilecast.execution.cache import from_dram, least_from_dram
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import sizes
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.streaming import element_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conv2d:
    """`batch` images of `in_channels` x `height` x `width`, a square `kernel`, `stride` and `padding` the same on both sides."""

    family: ClassVar[str] = "conv2d"

    batch: Any
    in_channels: Any
    out_channels: Any
    height: Any
    width: Any
    kernel: Any
    stride: Any = 1
    padding: Any = 0
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        names = ("batch", "in_channels", "out_channels", "height", "width", "kernel", "stride")
        size = sizes(**{name: getattr(self, name) for name in names})
        padding = sizes(at_least=0, padding=self.padding)["padding"]
        out_height, out_width = (
            np.floor((size[side] + 2.0 * padding - size["kernel"]) / size["stride"]) + 1.0 for side in ("height", "width")
        )
        if (np.minimum(out_height, out_width) < 1).any():
            raise InvalidInput(f"kernel = {self.kernel} is larger than the padded image of {self.height} x {self.width}")
        pixels = size["batch"] * out_height * out_width
        window = size["in_channels"] * size["kernel"] ** 2
        product = Gemm(
            m=pixels[:, 0],
            n=np.broadcast_to(size["out_channels"], pixels.shape)[:, 0],
            k=np.broadcast_to(window, pixels.shape)[:, 0],
            dtype=self.dtype,
        ).tasks(gpu, protocol)
        element = element_bytes(self.dtype)
        image = size["batch"] * size["in_channels"] * size["height"] * size["width"] * element
        weights, result = size["out_channels"] * window * element, pixels * size["out_channels"] * element
        total = np.asarray(image + weights + result)
        return product._replace(
            least_flop=np.zeros_like(total),
            least_bytes=least_from_dram(total, gpu, protocol.cache),
            dram_bytes=from_dram(weights, image + result, gpu, protocol.cache),
        )


KERNELS = (Conv2d,)
