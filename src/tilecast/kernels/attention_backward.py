"""The backward pass of fused attention: five products where the forward pass has two, over the same tiles."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention_forward import AttentionForward, sdpa_identity

PRODUCTS = 2.5  # scores again, and one gradient each for scores, queries, keys and values, over two
SLOWER = 1.16  # per FLOP: FlashAttention-2 reaches 73 % of A100's peak forwards and 63 % backwards, its authors say
TRAFFIC = 2.0  # gradients beside values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBackward:
    """Gradients of queries, keys and values of `batch` texts; sizes and identity as in attention_forward."""

    family: ClassVar[str] = "attention_backward"

    batch: Any = 1
    q_len: Any = None
    kv_len: Any = None
    num_heads: Any
    num_kv_heads: Any = None
    head_dim: Any = 128
    causal: Any = True
    dtype: str = "bf16"
    identity: str | None = None

    def newest_identity(self, gpu: GpuSpec) -> str | None:
        return sdpa_identity(gpu, self.dtype, self.head_dim)

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        asked = {name: getattr(self, name) for name in "batch q_len kv_len num_heads num_kv_heads head_dim causal dtype identity".split()}
        return gradient_of(AttentionForward(**asked).tasks(gpu, protocol))


def gradient_of(forward: TaskSet) -> TaskSet:
    """The backward pass, from the tiles of the forward pass."""
    more = {
        name: (PRODUCTS if name == "least_flop" else SLOWER * PRODUCTS) * getattr(forward, name)
        for name in ("least_flop", "matrix_flop", "vector_flop", "exposed_clocks", "special_ops")
    }
    wider = {name: TRAFFIC * getattr(forward, name) for name in ("least_bytes", "l2_bytes", "dram_bytes")}
    return forward._replace(**more, **wider)


KERNELS = (AttentionBackward,)
