"""Fused attention of PyTorch models, whose keys and values lie in order: no cache is written, no pages are followed.

Physics alone: measured rows of attention are of serving engines, whose kernels read a paged cache, and what they teach of these makes
FlashAttention-2 on A100 faster (236 TFLOP/s, causal, heads of 128, 8,192 tokens) than its authors measured it (190 to 200; here 206).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention import PREFILL_DOUBLINGS, AttentionPrefill, attention_tasks
from tilecast.kernels.base import Doublings, sizes
from tilecast.kernels.requests import has_prefix

CUDNN = {"sm_90": ("fa3", 256), "sm_100": ("fa4", 128), "sm_103": ("fa4", 128)}  # the loop nearest to cuDNN's, and its widest heads
HEAD_STEP = 8  # elements: cuDNN's heads are multiples of it


def sdpa_identity(gpu: GpuSpec, dtype: str, head_dim: Any) -> str:
    """What scaled_dot_product_attention runs since PyTorch 2.11: cuDNN first on Hopper and data-centre Blackwell, else FlashAttention-2.

    fp32 goes to the memory-efficient kernel, whose loop is FlashAttention-2's.
    """
    loop, widest = CUDNN.get(gpu.target, ("fa2", 0))
    dims = sizes(head_dim=head_dim)["head_dim"]
    return loop if dtype in ("bf16", "fp16") and bool(np.all((dims <= widest) & (dims % HEAD_STEP == 0))) else "fa2"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionForward:
    """Softmax(Q K^T) V of `batch` texts; sizes as in attention_prefill. No identity: what PyTorch chooses."""

    family: ClassVar[str] = "attention_forward"
    doublings: ClassVar[Doublings] = PREFILL_DOUBLINGS
    guessed: ClassVar[str] = AttentionPrefill.guessed
    chosen_by_width: ClassVar[bool] = True  # which kernel PyTorch takes hangs on head_dim

    batch: Any = 1
    q_len: Any = None
    kv_len: Any = None
    num_heads: Any
    num_kv_heads: Any = None
    head_dim: Any = 128
    causal: Any = True
    dtype: str = "bf16"
    identity: str | None = None

    @property
    def guessed_from(self) -> Any:
        """How many keys there are at the least: those of the queries."""
        return np.where(self.causal, self.q_len, 1)

    @property
    def doubles_flop(self) -> bool:
        """Whether every size does: with other keys than those of the queries, more queries are hardly more work."""
        return not has_prefix(self.q_len, self.kv_len)

    def newest_identity(self, gpu: GpuSpec) -> str | None:
        return sdpa_identity(gpu, self.dtype, self.head_dim)

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        asked = {name: getattr(self, name) for name in "batch q_len kv_len num_heads num_kv_heads head_dim causal dtype".split()}
        kernel = AttentionPrefill(**asked, identity=self.identity or self.newest_identity(gpu))
        return attention_tasks(kernel, gpu, protocol, decode=False, has_cache=False)


KERNELS = (AttentionForward,)
