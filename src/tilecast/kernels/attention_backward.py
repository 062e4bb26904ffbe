"""The backward pass of fused attention: five products where the forward pass has two, over the same tiles."""

from dataclasses import dataclass
from typing import ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention_forward import AttentionForward

PRODUCTS = 2.5  # scores again, and one gradient each for scores, queries, keys and values, over two
SLOWER = 1.16  # per FLOP: FlashAttention-2 reaches 73 % of A100's peak forwards and 63 % backwards, its authors say
TRAFFIC = 2.0  # gradients beside values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBackward(AttentionForward):
    """Gradients of queries, keys and values of `batch` texts; sizes and identity as in attention_forward."""

    family: ClassVar[str] = "attention_backward"

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        return gradient_of(AttentionForward.tasks(self, gpu, protocol))


def gradient_of(forward: TaskSet) -> TaskSet:
    """The backward pass, from the tiles of the forward pass."""
    more = {
        name: (PRODUCTS if name == "least_flop" else SLOWER * PRODUCTS) * getattr(forward, name)
        for name in ("least_flop", "matrix_flop", "vector_flop", "exposed_clocks", "special_ops")
    }
    wider = {name: TRAFFIC * getattr(forward, name) for name in ("least_bytes", "l2_bytes", "dram_bytes")}
    return forward._replace(**more, **wider)


KERNELS = (AttentionBackward,)
