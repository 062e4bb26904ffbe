"""FlashAttention 1 as written in Triton, which LLM trainers of 2022 and 2023 ran: the tiles and work of its successor, done more slowly.

How much more slowly its successor's authors published (FlashAttention-2, section 4.1, A100): 1.3 to 1.5 times in the forward pass, about
2 times in the backward pass. Its blocks have an SM to themselves, so nothing hides their softmax; with that our formula for the successor's
forward pass is 1.15 times what A100 measures of it, which is taken off. Its tiles of 64 queries are those of its successor's paged kernel.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention import AttentionPrefill
from tilecast.kernels.attention_backward import SLOWER, gradient_of

SLOWER_FORWARD = 1.2  # 1.4 over 1.15
SLOWER_BACKWARD = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlashAttention1:
    """`batch` texts, one pass; sizes as in attention_prefill. `backward`: gradients of queries, keys and values."""

    family: ClassVar[str] = "flash_attention_1"

    batch: Any = 1
    q_len: Any = None
    kv_len: Any = None
    num_heads: Any
    num_kv_heads: Any = None
    head_dim: Any = 128
    causal: Any = True
    backward: bool = False
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        asked = {name: getattr(self, name) for name in "batch q_len kv_len num_heads num_kv_heads head_dim causal dtype".split()}
        counted = AttentionPrefill(**asked, identity="fa2").tasks(gpu, protocol)
        counted = gradient_of(counted) if self.backward else counted
        times = SLOWER_BACKWARD / SLOWER if self.backward else SLOWER_FORWARD
        slower = {name: times * getattr(counted, name) for name in ("matrix_flop", "vector_flop", "special_ops")}
        return counted._replace(**slower, exposed_clocks=times * counted.exposed_clocks * counted.resident)


KERNELS = (FlashAttention1,)
