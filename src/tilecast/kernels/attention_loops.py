"""How each library walks through attention on each GPU: tiles, packing, splits, schedules, and the small kernels of its operator."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilecast.errors import UnknownName
from tilecast.execution.fitted import load
from tilecast.execution.tasks import Floats, ceil_div
from tilecast.hardware import GpuSpec

IDENTITIES = ("flashinfer_fa2", "flashinfer_fa3", "fa2", "fa3", "fa4", "trtllm", "triton", "unfused")
LEGACY_MMA = {"sm_90": 0.62, "sm_100": 0.25, "sm_103": 0.25}  # of the tensor peak, for kernels that issue mma.sync there
WIDEST_XQA_GROUP = 32  # TensorRT-LLM packs 2 to so many query heads; else each one walks the cache by itself, on vector units
BULK_COPY_BYTES_PER_CLOCK = 64.0  # an SM's port to L2, which copy engines (TMA) fill


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """constants/attention.toml says what each one is."""

    sync_exposed: float
    wgmma_exposed: float
    tcgen05_exposed: float
    plain_loop: float
    task_clocks: float
    helper_clocks: float
    stream_fraction: float
    thread_copy_bytes_per_clock: float


@cache
def attention_constants() -> AttentionConstants:
    return load(AttentionConstants, "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """How one kernel walks: its tiles (L, 1), what it packs and splits, and what its schedule leaves exposed."""

    tile_q: Floats
    tile_kv: Floats
    packs: Any  # query heads that share a KV head fill one tile
    exposed: float  # share of the softmax that the tensor cores wait for
    copy_bytes_per_clock: Floats | float  # what an SM's loads of keys bring in
    widens: bool = False  # loads and converts narrow keys as slowly as 16-bit ones
    trims_window: bool = True  # skips the keys before a window instead of masking them
    resident: Floats | int = 1  # tasks an SM holds
    most_splits: Floats | float = np.inf
    num_combines: float = 1.0  # kernels that merge the parts of a split KV
    matrix_factor: Floats | float = 1.0  # matrix time over that of an ideal loop
    pads_to_powers: bool = False  # head dimensions, to powers of two instead of multiples of 16
    widening_bytes: Floats | float = 0.0  # per cached element, where a narrow cache is first rewritten in 16 bits and read again
    is_simt: Any = False  # vector units do the matrix work
    num_helpers: Floats | float = 1.0
    mostly_reads: bool = True  # a long cache against few queries: DRAM does not turn around between reads and writes
    copies_queries: bool = False  # the operator rewrites the queries before it attends


def mma_style(gpu: GpuSpec) -> str:
    """How tensor instructions are issued: by each warp for itself, by warp groups, or by one thread into tensor memory."""
    return {"sm_90": "wgmma", "sm_100": "tcgen05", "sm_103": "tcgen05"}.get(gpu.target, "sync")


def newest_sglang(gpu: GpuSpec) -> str:
    return {"wgmma": "fa3", "tcgen05": "trtllm"}.get(mma_style(gpu), "flashinfer_fa2")


def resolved(identity: str | None, gpu: GpuSpec, known: Sequence[str] = IDENTITIES, default: str | None = None) -> str:
    if identity is not None and identity not in known:
        raise UnknownName.among("attention identity", identity, known)
    return identity or default or newest_sglang(gpu)


def by_dim(head_dim: Floats, *bounds: tuple[float, float], otherwise: float) -> Floats:
    """The tile for the first bound that `head_dim` does not exceed."""
    conditions, values = [head_dim <= bound for bound, _ in bounds], [np.full_like(head_dim, value) for _, value in bounds]
    return np.select(conditions, values, otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a library looks at when it picks its kernel. Arrays (L, 1)."""

    gpu: GpuSpec
    using: AttentionConstants
    decode: bool
    style: str
    dim: Floats
    group: Floats  # query heads of a KV head
    mean_packed: Floats  # rows of a request when its group is packed, on average
    one_query: Any  # per request: libraries send such a prefill to their decode kernel
    has_cache: Floats  # 0 for encoders, which attend without one
    is_narrow: Any  # a cache of less than 16 bits
    is_quantised: Any  # ... and 16-bit queries: a kernel of its own narrows what is new
    has_window: Any

    @property
    def legacy(self) -> float:
        """Matrix time of mma.sync over that of the GPU's own instructions."""
        return 1.0 / LEGACY_MMA.get(self.gpu.target, 1.0)

    @property
    def by_warps(self) -> dict[str, Any]:
        """Threads copy keys and issue their own matrix instructions."""
        return {
            "exposed": self.using.sync_exposed,
            "copy_bytes_per_clock": self.using.thread_copy_bytes_per_clock,
            "widens": True,
            "mostly_reads": self.decode,
        }

    @property
    def native(self) -> dict[str, Any]:
        """As the GPU's own instructions let a kernel do it."""
        if self.style == "sync":
            return self.by_warps
        exposed = self.using.wgmma_exposed if self.style == "wgmma" else self.using.tcgen05_exposed
        return {"exposed": exposed, "copy_bytes_per_clock": BULK_COPY_BYTES_PER_CLOCK, "mostly_reads": self.decode}


def _flashinfer_fa2(of: Setting) -> Loop:
    large = np.where(of.dim < 256, 128.0, 64.0)
    return Loop(
        tile_q=np.where(of.mean_packed > 64, large, np.where(of.mean_packed > 16, 64.0, 16.0)),
        tile_kv=by_dim(of.dim, (128, 64), otherwise=32) * np.where(of.is_quantised, 2.0, 1.0),
        packs=True,
        resident=2,
        matrix_factor=of.legacy,
        num_helpers=of.has_cache + np.where(of.is_quantised, 1.0, 0.0),
        **of.by_warps,
    )


def _fa2(of: Setting) -> Loop:
    has_small_shared = (of.gpu.shared_bytes_per_sm or 0) < 150_000
    prefill_q = by_dim(of.dim, (64, 128), (128, 64 if has_small_shared else 128), otherwise=64)
    return Loop(
        tile_q=np.where(of.one_query, 64.0, prefill_q),
        tile_kv=np.where(of.one_query, by_dim(of.dim, (64, 256), (128, 128), otherwise=64), by_dim(of.dim, (64, 128), otherwise=64)),
        packs=of.one_query & ~of.has_window,
        resident=np.where(of.one_query & has_small_shared, 1.0, 2.0),
        most_splits=np.where(of.one_query, np.inf, 1.0),
        matrix_factor=of.legacy,
        num_helpers=2.0 * of.has_cache,
        **of.by_warps,
    )


def _fa3(of: Setting) -> Loop:
    return Loop(
        tile_q=by_dim(of.dim, (64, 192), otherwise=128),
        tile_kv=by_dim(of.dim, (128, 128), (192, 112), (256, 80), otherwise=64),
        packs=True,
        num_helpers=(2.0 + np.where(of.is_quantised, 1.0, 0.0)) * of.has_cache,
        **of.native,
    )


def _trtllm(of: Setting) -> Loop:
    """Its generated kernels on data-centre Blackwell; elsewhere FMHA for prefill and XQA for decode."""
    return _trtllm_prefill(of) if not of.decode and of.style != "tcgen05" else _trtllm_decode_or_blackwell(of)


def _trtllm_prefill(of: Setting) -> Loop:
    """64 queries per tile; on Hopper each of two warp groups has its own, with long key tiles."""
    is_old = of.style == "sync"
    return Loop(
        tile_q=np.full_like(of.dim, 64.0),
        tile_kv=np.full_like(of.dim, 32.0) if is_old else by_dim(of.dim, (64, 256), (128, 128), otherwise=64),
        packs=False,
        resident=2,
        most_splits=1.0,
        matrix_factor=of.using.plain_loop if is_old else 1.0,
        num_helpers=np.where(of.is_narrow, 4.0, 3.0),
        copies_queries=True,
        **of.native,
    )


def _trtllm_decode_or_blackwell(of: Setting) -> Loop:
    is_new, is_old = of.style == "tcgen05", of.style == "sync"
    is_alone = of.one_query & (not is_new) & ((of.group > WIDEST_XQA_GROUP) | (of.group == 1))
    step = 8.0 if is_new else 16.0
    loads = of.native
    if of.style == "wgmma":  # only fp8 caches get a kernel of Hopper's own kind
        loads |= {"copy_bytes_per_clock": np.where(of.is_narrow, BULK_COPY_BYTES_PER_CLOCK, of.using.thread_copy_bytes_per_clock)}
    decode_helpers = np.where(of.is_narrow & (of.style == "wgmma"), 1.0, 2.0)
    return Loop(
        tile_q=np.where(of.one_query, np.where(is_alone, 1.0, ceil_div(of.group, step) * step), 128.0),
        tile_kv=by_dim(of.dim, (128, 128), otherwise=64),
        packs=of.one_query & ~is_alone,
        resident=np.where(is_alone | is_old, 2.0, 1.0),
        most_splits=np.where(~of.one_query | (of.is_narrow & is_old & ~is_alone), 1.0, np.inf),  # XQA never splits fp8 caches before Hopper
        num_combines=1.0 if is_new else 2.0,
        is_simt=is_alone,
        num_helpers=decode_helpers if of.decode else np.where(of.is_narrow, 3.5, 2.5),
        copies_queries=True,
        **loads,
    )


def _triton(of: Setting) -> Loop:
    return Loop(
        tile_q=np.where(of.one_query, 16.0, by_dim(of.dim, (128, 128), otherwise=64)),
        tile_kv=by_dim(of.dim, (256, 64), otherwise=32),
        packs=of.one_query,
        resident=2,
        most_splits=np.where(of.one_query, 8.0, 1.0),
        pads_to_powers=True,
        trims_window=of.decode,
        matrix_factor=of.legacy * of.using.plain_loop,
        num_helpers=of.has_cache + np.where(of.is_quantised, 1.0, 0.0),
        **of.by_warps,
    )


LOOPS = {
    "flashinfer_fa2": _flashinfer_fa2,
    "flashinfer_fa3": _fa3,
    "fa2": _fa2,
    "fa3": _fa3,
    "fa4": _fa3,
    "trtllm": _trtllm,
    "triton": _triton,
}
