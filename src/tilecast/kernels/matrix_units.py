"""How kernels get at the tensor cores: by a GPU's own instructions, or by those of an older one."""

from tilecast.hardware import GpuSpec

# Of the tensor peak, for kernels that issue mma.sync: what microbenchmarks found on H100, and A100's 2048 of B200's 8192 FLOP per clock.
LEGACY_MMA = {"sm_90": 0.62, "sm_100": 0.25, "sm_103": 0.25}


def legacy_stretch(gpu: GpuSpec) -> float:
    """Matrix time of mma.sync over that of the GPU's own instructions."""
    return 1.0 / LEGACY_MMA.get(gpu.target, 1.0)
