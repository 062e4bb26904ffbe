"""2-D convolution as an implicit GEMM: one output pixel is a row, one output channel a column, and the sum runs over the window.

Libraries may do with fewer multiplications (Winograd with a quarter of them in windows of 3 x 3; transforms in larger ones), so the bound
counts as many; in fp32 none, as measured rows may have multiplied in TF32.
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

WINOGRAD_SHARE = 36 / 144  # multiplications of F(4 x 4, 3 x 3) over those of the window itself


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conv2d:
    """`batch` images of `in_channels` x `height` x `width`, a square `kernel`, `stride` and `padding` the same on both sides.

    A window that is no square, dilated or of other than two dimensions has so many `taps`, and the result so many `pixels` an image."""

    family: ClassVar[str] = "conv2d"

    batch: Any
    in_channels: Any
    out_channels: Any
    height: Any
    width: Any
    kernel: Any
    stride: Any = 1
    padding: Any = 0
    taps: Any = None  # kernel x kernel unless given
    pixels: Any = None  # as kernel, stride and padding leave them unless given
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        names = ("batch", "in_channels", "out_channels", "height", "width", "kernel", "stride")
        size = sizes(**{name: getattr(self, name) for name in names})
        window = size["in_channels"] * (size["kernel"] ** 2 if self.taps is None else sizes(taps=self.taps)["taps"])
        pixels, window = np.broadcast_arrays(size["batch"] * self._pixels(size), window)
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
            least_flop=np.asarray(2.0 * pixels * size["out_channels"] * window * self._least_share(size["kernel"])),
            least_bytes=least_from_dram(total, gpu, protocol.cache),
            least_port_bytes=total,
            dram_bytes=from_dram(weights, image + result, gpu, protocol.cache),
        )

    def _pixels(self, size: dict[str, Any]) -> Any:
        """Of one image's result."""
        if self.pixels is not None:
            return sizes(pixels=self.pixels)["pixels"]
        padding = sizes(at_least=0, padding=self.padding)["padding"]
        height, width = (np.floor((size[side] + 2.0 * padding - size["kernel"]) / size["stride"]) + 1.0 for side in ("height", "width"))
        if (np.minimum(height, width) < 1).any():
            raise InvalidInput(f"kernel = {self.kernel} is larger than the padded image of {self.height} x {self.width}")
        return height * width

    def _least_share(self, kernel: Any) -> Any:
        """Of the window's multiplications, what no algorithm in use does without."""
        if self.dtype == "fp32" or self.taps is not None:
            return 0.0
        return np.where(kernel == 1, 1.0, np.where(kernel == 3, WINOGRAD_SHARE, 0.0))


KERNELS = (Conv2d,)
