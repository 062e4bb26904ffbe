"""The sustained clock: what the power limit leaves of the boost clock when the matrix units work long enough.

Whole-board energy per 16-bit tensor FLOP falls with the width of the tensor core, as boards at their limit show (H200 0.99 pJ, B200 0.71,
L40S about 1.7); narrower formats save a little less than their width. Vector FLOP cost more, in proportion to the process, and the less
the lower the clock, for voltage falls with it: an L4 at 72 W sustains 42 % of its fp32 peak, an RTX 3090 at 350 W and an RTX 4090 at
450 W two thirds. A kernel shorter than the regulator's window keeps the boost clock.
"""

import math

from tilecast.dtypes import DTYPES
from tilecast.execution.fitted import Constants
from tilecast.execution.tasks import Numbers
from tilecast.hardware import GpuSpec, as_catalogued

REFERENCE_WIDTH = 1024.0  # 16-bit FLOP per clock per SM
REFERENCE_NM = 4.0
WIDE_SM = 256.0  # fp32 FLOP per clock of 128 lanes
BOARD_W = 15.0  # besides vector FLOP: what an L4 at 72 W, an RTX 3090 at 350 W and an RTX 4090 at 450 W have in common
NARROW_POWER = 0.83  # measured boards: fp8 takes 0.47-0.62 pJ where bf16 takes 0.71-0.99, nvfp4 0.19-0.28
# The process each architecture is made in; an architecture that is not listed is newer than these.
PROCESS_NM = {
    "pascal": 16.0, "volta": 12.0, "turing": 12.0, "ampere": 7.5, "ada": 4.0, "hopper": 4.0, "blackwell": 4.0, "blackwell-rtx": 4.0,
    "cdna1": 7.0, "cdna2": 6.0, "cdna3": 5.0, "cdna4": 4.0, "xe2": 5.0,
}  # fmt: skip
# Energy of a vector FLOP at boost over what the process says: GH100 boosts at the top of its voltage. Published times of cublasSgemm on
# an H100 SXM at 700 W: 48 TFLOP/s of 8,192 cubed, where a short one of 4,096 has 54.
BOOST_ENERGY = {"hopper": 1.5}
NARROW_SM_ENERGY = 0.7  # SMs of 64 lanes: dies that are wide and boost low, such as V100 and A100, whose boards hold their clock


def tensor_width(gpu: GpuSpec) -> float:
    """16-bit FLOP per clock per SM."""
    rates = gpu.tensor_flop_per_clock_per_sm
    return rates.get("fp16") or rates.get("bf16") or REFERENCE_WIDTH


def energy_j_per_flop(gpu: GpuSpec, dtype: str, on_tensor: bool, using: Constants) -> float:
    """Board energy of one FLOP of `dtype` on this GPU's tensor cores, or on its vector units at the boost clock."""
    bits = DTYPES[dtype].bits if dtype in DTYPES else 16
    if on_tensor:
        return float(
            using.energy_j_per_flop * (tensor_width(gpu) / REFERENCE_WIDTH) ** -using.energy_width_power * (bits / 16) ** NARROW_POWER
        )
    process = PROCESS_NM.get(gpu.arch, REFERENCE_NM) / REFERENCE_NM
    is_narrow = as_catalogued(gpu).vector_flop_per_clock_per_sm["fp32"] < WIDE_SM  # a what-if is no other die
    at_boost = NARROW_SM_ENERGY if is_narrow else BOOST_ENERGY.get(gpu.arch, 1.0)
    return float(using.vector_energy_j_per_flop * process * at_boost * bits / 32)


def limited_fraction(gpu: GpuSpec, dtype: str, on_tensor: bool, flop_per_s: float, using: Constants) -> float:
    """Share of the boost clock that the power limit leaves for long to matrix work of `flop_per_s` (at boost)."""
    if gpu.tdp_w is None:
        return 1.0
    needed_w = energy_j_per_flop(gpu, dtype, on_tensor, using) * flop_per_s
    if on_tensor:
        return min(1.0, gpu.tdp_w / needed_w)
    spare_w = max(gpu.tdp_w - BOARD_W, gpu.tdp_w / 2)  # of a module of a few watts most goes into work
    return min(1.0, math.sqrt(spare_w / needed_w))


def stretch(limited: float, busy_s: Numbers, using: Constants) -> Numbers:
    """Boost over sustained clock for work that keeps the chip busy for `busy_s` at boost: 1 for a burst, 1 / limited when settled."""
    burst_s, settled = using.burst_s * limited, 1.0 / limited
    return settled - (settled - 1.0) * burst_s / (busy_s + burst_s)
