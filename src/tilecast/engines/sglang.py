"""SGLang: FlashInfer on most GPUs, FA3 for prefill on Hopper; custom all-reduce for short messages; decode in a CUDA graph.

Weights and the KV cache are read once per step and a step reads more than any L2 holds, so both are cold; activations were just written.
"""

from types import MappingProxyType

from tilecast.engines.base import Engine
from tilecast.hardware import GpuSpec, NodeSpec

LARGEST_CUSTOM = 8 * 2**20  # bytes; longer messages go through NCCL
CUSTOM_GROUPS = (2, 4, 6, 8)


def attention(gpu: GpuSpec, phase: str) -> str | None:
    """As the late-2025 releases choose it: paged decode through FlashInfer's FA2 kernels, also on Hopper."""
    if gpu.vendor != "nvidia":
        return "triton"
    if gpu.target in ("sm_100", "sm_103"):
        return "trtllm"
    return "fa3" if gpu.target == "sm_90" and phase == "prefill" else "flashinfer_fa2"


def all_reduce(node: NodeSpec, num_gpus: int, num_bytes: float) -> str:
    """The custom kernels need a link between all GPUs, or just a pair of them."""
    joined = node.topology in ("switch", "mesh") or num_gpus == 2
    return "custom" if joined and num_gpus in CUSTOM_GROUPS and num_bytes <= LARGEST_CUSTOM else "nccl"


ENGINE = Engine(
    name="sglang",
    attention=attention,
    all_reduce=all_reduce,
    cache=MappingProxyType({"gemm": "cold", "attention_decode": "cold", "embedding": "cold"}),
)
