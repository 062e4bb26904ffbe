"""Eager PyTorch: two clocks. The host launches operators one after another, the GPU runs them when both it and their launch are ready.

While kernels are long the host runs ahead and costs nothing; when they are short the GPU waits for every launch.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tomllib import loads

import numpy as np

from tilecast.execution.tasks import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """eager_host.toml says what each one is."""

    op_s: float
    view_s: float


@cache
def host_cost() -> HostCost:
    table = loads(Path(__file__).with_name("eager_host.toml").read_text(encoding="utf-8"))
    return HostCost(**{name: entry["value"] for name, entry in table.items()})


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where host and GPU stand, in seconds since the step began."""

    host_s: float = 0.0
    gpu_s: float = 0.0


def run(launch_s: Floats, kernel_s: Floats, start: Clocks) -> Clocks:
    """Operators in order, arrays (N,): each takes the host `launch_s`, and the GPU `kernel_s` from then on or when it is free.

    The GPU is done at the latest of: all kernels behind what it was doing; or all kernels from any one on, behind that one's launch.
    """
    if not len(launch_s):
        return start
    launched = start.host_s + np.cumsum(launch_s)
    left = np.cumsum(kernel_s[::-1])[::-1]  # GPU time from each operator on
    runs = kernel_s > 0
    waits = float((launched + left)[runs].max()) if runs.any() else 0.0
    return Clocks(float(launched[-1]), max(start.gpu_s + float(left[0]), waits))
