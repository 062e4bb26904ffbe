"""The sustained clock: what the power limit leaves of the boost clock when the matrix units work long enough.

Whole-board energy per 16-bit tensor FLOP falls with the width of the tensor core, as boards at their limit show (H200 0.99 pJ, B200 0.71,
L40S about 1.7); narrower formats save a little less than their width. Vector FLOP cost more, in proportion to the process: an L4 at 72 W
sustains 42 % of its fp32 peak, a T4 at 70 W less than half. A kernel shorter than the regulator's window keeps the boost clock.
"""

from tilecast.dtypes import DTYPES
from tilecast.execution.fitted import Constants
from tilecast.execution.tasks import Numbers
from tilecast.hardware import GpuSpec

REFERENCE_WIDTH = 1024.0  # 16-bit FLOP per clock per SM
REFERENCE_NM = 4.0
NARROW_POWER = 0.83  # measured boards: fp8 takes 0.47-0.62 pJ where bf16 takes 0.71-0.99, nvfp4 0.19-0.28
# The process each architecture is made in; an architecture that is not listed is newer than these.
PROCESS_NM = {
    "pascal": 16.0, "volta": 12.0, "turing": 12.0, "ampere": 7.5, "ada": 4.0, "hopper": 4.0, "blackwell": 4.0, "blackwell-rtx": 4.0,
    "cdna1": 7.0, "cdna2": 6.0, "cdna3": 5.0, "cdna4": 4.0, "xe2": 5.0,
}  # fmt: skip


def tensor_width(gpu: GpuSpec) -> float:
    """16-bit FLOP per clock per SM."""
    rates = gpu.tensor_flop_per_clock_per_sm
    return rates.get("fp16") or rates.get("bf16") or REFERENCE_WIDTH


def energy_j_per_flop(gpu: GpuSpec, dtype: str, on_tensor: bool, using: Constants) -> float:
    """Board energy of one FLOP of `dtype` on this GPU's tensor cores or vector units."""
    bits = DTYPES[dtype].bits if dtype in DTYPES else 16
    if on_tensor:
        return float(
            using.energy_j_per_flop * (tensor_width(gpu) / REFERENCE_WIDTH) ** -using.energy_width_power * (bits / 16) ** NARROW_POWER
        )
    process = PROCESS_NM.get(gpu.arch, REFERENCE_NM) / REFERENCE_NM
    return float(using.vector_energy_j_per_flop * process * bits / 32)


def limited_fraction(gpu: GpuSpec, dtype: str, on_tensor: bool, flop_per_s: float, using: Constants) -> float:
    """Share of the boost clock that the power limit leaves for long to matrix work of `flop_per_s` (at boost)."""
    if gpu.tdp_w is None:
        return 1.0
    return min(1.0, gpu.tdp_w / energy_j_per_flop(gpu, dtype, on_tensor, using) / flop_per_s)


def stretch(limited: float, busy_s: Numbers, using: Constants) -> Numbers:
    """Boost over sustained clock for work that keeps the chip busy for `busy_s` at boost: 1 for a burst, 1 / limited when settled."""
    burst_s, settled = using.burst_s * limited, 1.0 / limited
    return settled - (settled - 1.0) * burst_s / (busy_s + burst_s)
