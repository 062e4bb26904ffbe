"""What a power limit takes of a step that goes on and on: products alone run for less time than a board's regulator needs to notice.

Measured products of up to a millisecond were done before the clock fell, and are up to a fifth faster than the largest ones (H100 777 and
680 TFLOP/s in bf16, B200 1,616 and 1,403, L40S 242 and 188; A100, H20 and RTX PRO 6000 alike); on H200 and B200 those of 0.1 to 0.8 ms take
1.15 to 1.18 times as long when they are repeated until the board stands at its limit. Steps follow one another without a pause, so there
the clock falls until the mean power is the limit. Power is taken to go with the square of the clock (no clock was recorded); whatever is no
product draws less, and leaves the more.

Legend: C calls of a step.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.kernels.gemm import Gemm
from tilecast.workloads.aggregate import CallTime, Price, conditions

SETTLED_SIZE = 16384  # rows, columns and depth of a product that takes long enough for the clock to settle
ON_VECTOR_UNITS = ("fp32", "fp64")  # their power has an account of its own (`execution/clock.py`)
# Of the limit, drawn by what is no product: `python -m benchmarks.fit.settled` has decode attention at 0.66 of it on H200 and 0.52 on B200,
# prefill attention at 0.67 and 0.93, thin products that stream their weights at 0.82 and 0.71.
OTHERS_POWER = 0.7
HALVINGS = 20


def settled(times: Sequence[CallTime], gpu: GpuSpec, price: Price) -> tuple[CallTime, ...]:
    """The calls of a step with their times in a long run of such steps: products that ran above the settled rate are slower."""
    places = [
        place for place, time in enumerate(times) if isinstance(time.call.kernel, Gemm) and time.call.kernel.dtype not in ON_VECTOR_UNITS
    ]
    if not places or gpu.tdp_w is None:
        return tuple(times)
    rates = _settled_rates([times[place] for place in places], gpu, price)
    over_C = np.zeros(len(times))
    over_C[places] = [_flop_per_s(times[place]) / rates[times[place].call.kernel.dtype] for place in places]
    stretch_C = stretched(np.array([float(time.median_s[0]) for time in times]), over_C)
    return tuple(_slowed(time, factor) if factor > 1 else time for time, factor in zip(times, stretch_C.tolist(), strict=True))


def stretched(time_C: Floats, over_C: Floats) -> Floats:
    """By how much each call is slower when the mean power of them all is the limit; `over_C` is its rate over the settled one, 0 of what is
    no product."""

    def excess(share: float) -> float:
        """Energy above what the limit allows, if products gave up this share, in log, of what they run above the settled rate."""
        slower_C = np.maximum(over_C, 1.0) ** share
        kept_C = over_C / slower_C
        power_C = np.maximum(kept_C**2, OTHERS_POWER + (1 - OTHERS_POWER) * kept_C**2)  # above the settled rate the first
        return float(np.sum(time_C * slower_C * (power_C - 1)))

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return np.ones(len(time_C))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return np.asarray(np.maximum(over_C, 1.0) ** high)


def _settled_rates(products: Sequence[CallTime], gpu: GpuSpec, price: Price) -> dict[str, float]:
    """FLOP/s that a long product reaches, by number format."""
    rates: dict[str, float] = {}
    for time in products:
        dtype = time.call.kernel.dtype
        if dtype not in rates:
            long = Gemm(m=SETTLED_SIZE, n=SETTLED_SIZE, k=SETTLED_SIZE, dtype=dtype)
            rates[dtype] = 2.0 * SETTLED_SIZE**3 / float(price(long, gpu, **conditions(time.call)).median_s[0])
    return rates


def _flop_per_s(time: CallTime) -> float:
    product = time.call.kernel
    return float(2.0 * product.m * product.n * product.k * product.batch * time.call.count / time.median_s[0])


def _slowed(time: CallTime, factor: float) -> CallTime:
    return replace(time, median_s=factor * time.median_s, low_s=factor * time.low_s, high_s=factor * time.high_s)
