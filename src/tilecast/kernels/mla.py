"""Multi-head latent attention: absorbed, every query head against the latent cache itself, or over keys and values expanded before.

Decode is always absorbed. Prefill is so where an engine has one kernel for both (SGLang with FlashMLA or FA3 kernels, and with Triton).
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tilecast.dtypes import DTYPES, quantisation
from tilecast.execution import Protocol, TaskSet
from tilecast.execution.analytic import matrix_rate
from tilecast.execution.tasks import ceil_div
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention import Shape, attention_loop, cache_bytes_of, fused_tasks
from tilecast.kernels.attention_loops import (
    BULK_COPY_BYTES_PER_CLOCK,
    FLASH_DIMS,
    ROWS_OF_WARPS,
    AttentionConstants,
    Loop,
    attention_constants,
    by_dim,
    exposed_share,
    mma_style,
    resolved,
)
from tilecast.kernels.base import Doublings, count, sizes
from tilecast.kernels.requests import asked_lengths, checked_lengths, has_prefix, lengths, uniform

IDENTITIES = ("flashmla", "flashinfer", "trtllm", "triton")
EXPANDED = ("fa3", "triton_expanded")  # more of them for prefill: SGLang's with keys and values expanded, where no prefix is cached
ABSORBED_PREFILL = ("flashmla", "triton")
CAST_BYTES = 11.0  # per cached fp8 element where there is no fp8 kernel: read, scaled in 32 bits, written in 16, read again
PREFILL_LOOPS = {"flashinfer": "flashinfer_fa2", "trtllm": "trtllm", "fa3": "fa3", "triton_expanded": "triton"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Mla:
    """`batch` requests of q_len new tokens; kv_len counts them too. The latent sizes are DeepSeek-V3's unless given."""

    batch: Any = 1
    q_len: Any = None
    kv_len: Any = None
    num_heads: Any
    kv_lora_rank: Any = 512
    qk_nope_head_dim: Any = 128
    qk_rope_head_dim: Any = 64
    v_head_dim: Any = 128
    kv_dtype: Any = None  # None: that of the queries
    q_lens: Any = None  # of one ragged batch, with kv_lens, in place of batch, q_len and kv_len
    kv_lens: Any = None
    dtype: str = "bf16"
    identity: str | None = None
    split: int | None = None  # fix the parts of a split KV instead of choosing

    @property
    def has_sizes(self) -> bool:
        """Whether its requests are alike, and so have a size to double."""
        return self.q_lens is None and self.kv_lens is None

    def newest_identity(self, gpu: GpuSpec) -> str | None:
        """What the newest SGLang would run."""
        return newest_sglang_mla(gpu)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MlaPrefill(_Mla):
    """Keys and values were expanded from the latent before: an attention whose keys are wider than its values."""

    family: ClassVar[str] = "mla_prefill"
    doublings: ClassVar[Doublings] = (("q_len", "kv_len"), ("q_len",), ("batch",), ("num_heads",))
    guessed: ClassVar[str] = "kv_len"  # a prefix was never measured

    @property
    def guessed_from(self) -> Any:
        """How many keys there are at the least: those of the queries."""
        return self.q_len

    @property
    def doubles_flop(self) -> bool:
        """Whether every size does: more of the tokens new is hardly more work."""
        return not has_prefix(self.q_len, self.kv_len)

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        identity = resolved(self.identity, gpu, (*IDENTITIES, *EXPANDED), default=newest_sglang_mla(gpu))
        using = attention_constants()
        if identity in ABSORBED_PREFILL:
            return _absorbed(self, identity, gpu, protocol, using)
        shape = _shape(self, gpu, absorbed=False, runs_fp8=identity == "trtllm" and mma_style(gpu) != "wgmma" and gpu_has_fp8(gpu))
        loop = attention_loop(PREFILL_LOOPS[identity], shape, gpu, using, decode=False, engine="trtllm" if identity == "trtllm" else None)
        loop = replace(loop, copied_queries=0.0, built_dims=FLASH_DIMS)  # every library built these kernels for just its heads
        return fused_tasks(shape, loop, gpu, protocol, using, count(self.split, "split"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MlaDecode(_Mla):
    """All query heads of a token form one tile over a cache that is read once for keys and values."""

    family: ClassVar[str] = "mla_decode"
    doublings: ClassVar[Doublings] = (("kv_len",), ("batch",), ("num_heads",))
    built_for: ClassVar[tuple[str, ...]] = ("num_heads",)  # all of them are rows of one tile
    known_by: ClassVar[tuple[str, ...]] = ("num_heads",)
    guessed: ClassVar[str] = "q_len"  # several new tokens were never measured
    guessed_from: ClassVar[int] = 1
    doubles_flop: ClassVar[bool] = True  # every size does

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        identity = resolved(self.identity, gpu, IDENTITIES, default=newest_sglang_mla(gpu))
        return _absorbed(self, identity, gpu, protocol, attention_constants())


def _absorbed(kernel: _Mla, identity: str, gpu: GpuSpec, protocol: Protocol, using: AttentionConstants) -> TaskSet:
    shape = _shape(kernel, gpu, absorbed=True, runs_fp8=identity == "trtllm" and mma_style(gpu) != "wgmma")
    return fused_tasks(shape, _absorbed_loop(identity, shape, gpu, using), gpu, protocol, using, count(kernel.split, "split"))


def gpu_has_fp8(gpu: GpuSpec) -> bool:
    return "fp8" in gpu.tensor_flop_per_clock_per_sm


def newest_sglang_mla(gpu: GpuSpec) -> str:
    return {"wgmma": "flashmla", "tcgen05": "trtllm"}.get(mma_style(gpu), "flashinfer")


def _shape(kernel: _Mla, gpu: GpuSpec, *, absorbed: bool, runs_fp8: bool) -> Shape:
    decode = isinstance(kernel, MlaDecode)
    names = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    others = {name: getattr(kernel, name) for name in names}
    if kernel.q_lens is not None or kernel.kv_lens is not None:
        requests, size = lengths(kernel.q_lens, kernel.kv_lens, kernel.q_len, decode=decode), sizes(**others)
    else:
        q_len, kv_len = asked_lengths(kernel.q_len, kernel.kv_len, decode=decode)
        requests, size = uniform(kernel.batch, q_len, kv_len, **others)
    checked_lengths(requests)
    held = quantisation(kernel.dtype)
    compute = held.compute.name
    rate, _ = matrix_rate(gpu, compute)
    kv_bytes, kv_names = cache_bytes_of(kernel.kv_dtype, kernel.dtype)
    fp8_rate = gpu.tensor_flop_per_clock_per_sm.get("fp8", rate) if runs_fp8 and DTYPES[compute].bits == 16 else rate
    latent = size["kv_lora_rank"] + size["qk_rope_head_dim"]
    wide, narrow = (latent, size["kv_lora_rank"]) if absorbed else (size["qk_nope_head_dim"] + size["qk_rope_head_dim"], size["v_head_dim"])
    # Before data-centre Blackwell, TensorRT-LLM has an fp8 kernel for DeepSeek's own 128 heads only.
    has_fp8_kernel = (size["num_heads"] == 128) | (mma_style(gpu) == "tcgen05") | (not absorbed)
    narrows = (kv_bytes < 2.0) & gpu_has_fp8(gpu) & (not absorbed)
    rewritten = np.where(narrows, size["num_heads"] * (2.0 * wide + narrow), 0.0)  # expanded queries, keys and values
    return Shape(
        requests=requests,
        num_heads=size["num_heads"],
        num_kv_heads=np.ones_like(latent) if absorbed else size["num_heads"],
        qk_dim=wide,
        v_dim=narrow,
        kv_width=latent if absorbed else wide + narrow,
        new_width=latent,
        rewritten_width=rewritten,
        causal=np.ones((1, 1)),
        window=np.full((1, 1), np.inf),
        q_bytes=held.activation.bytes,
        out_bytes=max(2.0, min(4.0, held.activation.bytes)),
        kv_bytes=kv_bytes if absorbed or runs_fp8 else np.maximum(kv_bytes, held.activation.bytes),  # expanded in the queries' width
        compute=compute,
        rate_gain=np.where((kv_names[:, None] == "fp8") & has_fp8_kernel, fp8_rate / rate, 1.0),
    )


def _absorbed_loop(identity: str, shape: Shape, gpu: GpuSpec, using: AttentionConstants) -> Loop:
    style = mma_style(gpu)
    loads: dict[str, Any] = {
        "exposed": using.exposed,
        "copy_bytes_per_clock": using.thread_copy_bytes_per_clock,
        "widens": True,
    }
    if style != "sync" and identity != "triton":
        loads = {"exposed": exposed_share(style, using), "copy_bytes_per_clock": BULK_COPY_BYTES_PER_CLOCK}
    is_widened = (shape.kv_bytes < 2.0) & (style == "wgmma") & (identity == "flashmla")
    rows = ceil_div(shape.num_heads * np.max(shape.requests.q, axis=-1, keepdims=True), 16) * 16
    is_old_trtllm = identity == "trtllm" and style == "sync"  # one kernel for all head counts, which never splits the cache
    most_rows = {"tcgen05": 128.0, "wgmma": 64.0, "sync": 16.0}[style]
    return Loop(
        tile_q=np.full_like(rows, 64.0) if is_old_trtllm else np.minimum(rows, 16.0 if identity == "triton" else most_rows),
        tile_kv=by_dim(shape.qk_dim, (576, 32 if identity == "triton" else 64), otherwise=32),
        packs=True,
        most_splits=1.0 if is_old_trtllm else 8.0 if identity == "triton" else np.inf,
        matrix_factor=using.plain_loop * ROWS_OF_WARPS / 32.0 if identity == "triton" else 1.0,  # blocks of 32 rows for heads this wide
        num_helpers=np.where(is_widened, 4.0, 2.0),
        widening_bytes=np.where(is_widened, CAST_BYTES, 0.0),
        copied_queries=1.0,
        **loads,
    )


KERNELS = (MlaPrefill, MlaDecode)
