"""What several engines choose alike: kernels for short messages, formats of experts, and what narrows activations."""

from collections.abc import Collection
from types import MappingProxyType

from tilecast.engines.base import Quantiser
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import JOINED, LARGEST_CUSTOM_BYTES

BLACKWELL = ("sm_100", "sm_103")  # in data centres
QUANTISERS = MappingProxyType(
    {
        "fp8": Quantiser("per_tensor", "fp8"),
        "fp8_static": Quantiser("static_scaled_fp8", "fp8"),
        "fp8_block": Quantiser("per_block", "fp8"),
        "int8": Quantiser("per_token", "int8"),
        "nvfp4": Quantiser("per_block", "nvfp4"),
    }
)


def custom_all_reduce(node: NodeSpec, num_gpus: int, num_bytes: float, *, groups: Collection[int]) -> str:
    """An engine's own kernels, which need a link between all GPUs, or just a pair of them; NCCL for all they cannot do."""
    joined = node.topology in JOINED or num_gpus == 2
    return "custom" if joined and num_gpus in groups and num_bytes <= LARGEST_CUSTOM_BYTES else "nccl"


def expert_format(gpu: GpuSpec, held: str) -> str:
    """MXFP4 experts take 8-bit activations on Blackwell and 16-bit ones elsewhere."""
    return "w4a8_mxfp4_mxfp8" if held == "w4a16_mxfp4" and gpu.target in BLACKWELL else held
