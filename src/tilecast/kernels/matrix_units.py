"""How kernels get at the tensor cores: by a GPU's own instructions, or by those of an older one."""

from tilecast.hardware import GpuSpec

# Of the tensor peak, for kernels that issue mma.sync: what microbenchmarks found on H100, and A100's 2048 of B200's 8192 FLOP per clock.
LEGACY_MMA = {"sm_90": 0.62, "sm_100": 0.25, "sm_103": 0.25}


def legacy_stretch(gpu: GpuSpec) -> float:
    """Matrix time of mma.sync over that of the GPU's own instructions."""
    return 1.0 / LEGACY_MMA.get(gpu.target, 1.0)


def split_gain(gpu: GpuSpec) -> float:
    """fp32 products of fused kernels over those of vector units: CUTLASS makes one of three in TF32 where tensor cores have it."""
    tf32 = gpu.tensor_flop_per_clock_per_sm.get("tf32", 0.0) if gpu.vendor == "nvidia" else 0.0
    return max(1.0, tf32 / 3.0 / gpu.vector_flop_per_clock_per_sm["fp32"])
