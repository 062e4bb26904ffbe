"""The sustained clock: what the power limit leaves of the boost clock when tensor cores work long enough.

Whole-board energy per 16-bit FLOP falls with the width of the tensor core, as measured boards at their limit show (H200 0.99 pJ, B200 0.71,
L40S about 1.7); narrower formats cost in proportion to their width. A kernel shorter than the regulator's window keeps the boost clock.
"""

import numpy as np

from tilecast.dtypes import DTYPES
from tilecast.execution.fitted import Constants
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec

REFERENCE_WIDTH = 1024.0  # FLOP per clock per SM


def energy_j_per_flop(gpu: GpuSpec, dtype: str, using: Constants) -> float:
    """Board energy of one FLOP of `dtype` on this GPU's matrix units."""
    width = gpu.tensor_flop_per_clock_per_sm.get("fp16") or gpu.tensor_flop_per_clock_per_sm.get("bf16") or REFERENCE_WIDTH
    sixteen_bit = using.energy_j_per_flop * (width / REFERENCE_WIDTH) ** -using.energy_width_power
    bits = 16 if dtype not in DTYPES else DTYPES[dtype].bits
    return float(sixteen_bit * bits / 16)


def sustained_fraction(gpu: GpuSpec, dtype: str, flop_per_s: float, busy_s: Floats, using: Constants) -> Floats:
    """Sustained over boost clock for matrix work at `flop_per_s` (at boost) that keeps the chip busy for `busy_s`."""
    if gpu.tdp_w is None or dtype not in gpu.tensor_flop_per_s:
        return np.ones_like(busy_s)
    limited = min(1.0, gpu.tdp_w / energy_j_per_flop(gpu, dtype, using) / flop_per_s)
    settled = busy_s / limited / (busy_s / limited + using.burst_s)
    return np.asarray(1.0 / (settled / limited + (1.0 - settled)))
