"""How each library walks through attention on each GPU: tiles, packing, splits, schedules, and the small kernels of its operator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tilecast.errors import UnknownName
from tilecast.execution.fitted import load
from tilecast.execution.tasks import Floats, ceil_div
from tilecast.hardware import GpuSpec
from tilecast.kernels.matrix_units import legacy_stretch, split_gain

IDENTITIES = ("flashinfer_fa2", "flashinfer_fa3", "fa2", "fa3", "fa4", "trtllm", "triton", "unfused")
XQA_PART_KEYS, XQA_ROUNDS = 128.0, 8.0  # TensorRT-LLM's XQA cuts no finer, and aims at so many tasks for every SM
FEWEST_XQA_PARTS = 0.25  # of the SMs: with fewer parts of all keys its engine takes the vector kernel
WIDEST_XQA_GROUP = 32  # TensorRT-LLM packs 2 to so many query heads; else each one walks the cache by itself, on vector units
FEWEST_ROWS = 64.0  # a tensor-memory instruction takes as long for fewer: its other operand crosses shared memory whole
POWERS = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)  # Triton's blocks
FLASH_DIMS = (64.0, 96.0, 128.0, 192.0, 256.0)  # head dimensions that FlashAttention is built for
FMHA_DIMS = (16.0, 32.0, 48.0, 64.0, 80.0, 96.0, 112.0, 128.0, 256.0)  # ... and TensorRT-LLM's kernels before Hopper; on it, powers of two
BULK_COPY_BYTES_PER_CLOCK = 64.0  # an SM's port to L2, which copy engines (TMA) fill
FEWEST_TENSOR_HEADS = 4.0  # query heads of a KV head from which FlashInfer decodes with its prefill kernel, on tensor cores
FLASHINFER_THREADS = 128  # of its decode's blocks, and of those that merge parts
PAGED_STARTS = 2.0  # of a FlashAttention decode: how keys are split and where their pages lie comes first
FILLED = 0.8  # of the SMs: with so many tasks FlashAttention does not split
MOST_FLASH_SPLITS = 128.0  # parts that FlashAttention's heuristics ever take
EXTEND_BLOCKS = {  # queries and keys in SGLang's Triton kernel for prefill, for heads of up to 128, of up to 256, and wider ones
    "sm_80": ((128, 128), (64, 64), (32, 64)),
    **dict.fromkeys(("sm_86", "sm_89", "sm_120", "sm_121"), ((64, 128), (64, 64), (32, 32))),
    "sm_90": ((128, 64), (128, 64), (32, 64)),
    **dict.fromkeys(("sm_100", "sm_103"), ((64, 64), (64, 64), (16, 64))),
}
ROWS_OF_WARPS = 64.0  # four warps of 16 rows, what mma.sync and wgmma take: Triton's warps repeat each other's work below
THREADS_PER_SM = {"sm_75": 1024, "sm_86": 1536, "sm_89": 1536, "sm_120": 1536, "sm_121": 1536}  # 2048 elsewhere
REGISTER_BYTES_PER_SM, ACCUMULATOR_BYTES = 262144.0, 4.0  # of every GPU that Triton runs on here; fp32
VECTOR_ELEMENTS = 8.0  # 16-bit ones of a thread's widest copy; Triton copies them singly where a stride is no multiple of 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """constants/attention.toml says what each one is."""

    exposed: float
    plain_loop: float
    task_clocks: float
    helper_clocks: float
    thread_copy_bytes_per_clock: float
    row_clocks: float
    edge_bytes_per_clock: float
    slow_start: float


@cache
def attention_constants() -> AttentionConstants:
    return load(AttentionConstants, "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """How one kernel walks: its tiles (L, 1), what it packs and splits, and what its schedule leaves exposed."""

    tile_q: Floats
    tile_kv: Floats
    packs: Any  # query heads that share a KV head fill one tile
    exposed: Floats | float  # share of the softmax that the tensor cores wait for
    copy_bytes_per_clock: Floats | float  # what an SM's loads of keys bring in
    widens: bool = False  # loads and converts narrow keys as slowly as 16-bit ones
    stops_to_copy: Any = False  # too few registers, or widened keys go back to shared memory for warp groups: copies overlap with nothing
    masks_skipped: bool = False  # finds out that a tile lies before the window by masking its scores
    resident: Floats | int = 1  # tasks an SM holds
    starts: Floats | float = 1.0  # start and end of a task over those of a common one
    first_start: Floats | float | None = None  # the same for the first task of an SM, where what it waits for came with the launch
    rereads: Any = False  # heads of a group come one after the other, each over all requests: keys that L2 has lost are read again
    edges: Floats | float = 1.0  # share of what queries and results cost on their way in and out
    least_chunk: float = 128.0  # keys of a part; no library splits finer
    in_order: bool = False  # tasks start as they are numbered, short ones of a request first, and not the longest first
    most_splits: Floats | float = np.inf
    own_parts: Floats | float = 0.0  # parts by a rule of its own, also of keys that a window hides; 0: as many as fill the machine
    merging_threads: int = 0  # of a block that merges the parts of a split KV one query and head after the other; 0: rows stream
    matrix_factor: Floats | float = 1.0  # matrix time over that of an ideal loop
    built_dims: tuple[float, ...] = ()  # head dimensions the kernel exists for; others are padded to them, or to multiples of 16
    widening_bytes: Floats | float = 0.0  # per cached element, where a narrow cache is first rewritten in 16 bits and read again
    is_simt: Any = False  # vector units do the matrix work
    num_helpers: Floats | float = 1.0  # small kernels of the operator, as training shapes show them
    mostly_reads: bool = True  # a long cache against few queries: DRAM does not turn around between reads and writes
    writes_cache: Floats | float = 1.0  # 0 for encoders: new keys and values are attended to where they are
    written_rows: Floats | float = 1.0  # head vectors that a token's key and value are, to the kernel that writes them
    copied_queries: Any = 0.0  # times that the operator rewrites what is as large as the queries


def threads_per_sm(gpu: GpuSpec) -> int:
    """That an SM holds at most."""
    return THREADS_PER_SM.get(gpu.target, 2048)


def mma_style(gpu: GpuSpec) -> str:
    """How tensor instructions are issued: by each warp for itself, by warp groups, or by one thread into tensor memory."""
    return {"sm_90": "wgmma", "sm_100": "tcgen05", "sm_103": "tcgen05"}.get(gpu.target, "sync")


def exposed_share(style: str, using: AttentionConstants) -> float:
    """Of the softmax. Tensor memory holds the scores of two tiles in turns, and the cores wait only while both are in theirs."""
    return using.exposed**2 if style == "tcgen05" else using.exposed


def newest_sglang(gpu: GpuSpec) -> str:
    """FlashInfer where nothing is made for the GPU, Triton on AMD's and before Turing; what runs on Intel's is like FlashInfer's loop."""
    if gpu.vendor == "amd" or gpu.arch in ("pascal", "volta"):
        return "triton"
    return {"wgmma": "fa3", "tcgen05": "trtllm"}.get(mma_style(gpu), "flashinfer_fa2")


def resolved(identity: str | None, gpu: GpuSpec, known: Sequence[str] = IDENTITIES, default: str | None = None) -> str:
    if identity is not None and identity not in known:
        raise UnknownName.among("attention identity", identity, known)
    return identity or default or newest_sglang(gpu)


def by_dim(head_dim: Floats, *bounds: tuple[float, float], otherwise: float) -> Floats:
    """The tile for the first bound that `head_dim` does not exceed."""
    tile = np.full_like(head_dim, otherwise)
    for bound, value in reversed(bounds):
        tile = np.where(head_dim <= bound, value, tile)
    return tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a library looks at when it picks its kernel. Arrays (L, 1)."""

    gpu: GpuSpec
    using: AttentionConstants
    compute: str  # dtype in which matrices are multiplied
    decode: bool
    style: str
    engine: str
    dim: Floats
    num_requests: Floats
    num_kv_heads: Floats
    group: Floats  # query heads of a KV head
    mean_packed: Floats  # rows of a request when its group is packed, on average
    one_query: Any  # per request: libraries send such a prefill to their decode kernel
    longest_kv: Floats
    has_cache: Floats  # 0 for encoders, which attend without one
    is_narrow: Any  # a cache of less than 16 bits
    is_quantised: Any  # ... and 16-bit queries: a kernel of its own narrows what is new
    has_window: Any

    @property
    def narrows_queries(self) -> Any:
        """1 where queries are narrow too: one small kernel more makes them so."""
        return np.where(self.is_narrow & ~self.is_quantised, 1.0, 0.0)

    @property
    def padded_values(self) -> Any:
        """SGLang's operator takes two small kernels longer with heads of 192, as if it padded narrower values."""
        return np.where((self.dim == 192) & (self.engine == "sglang"), 2.0, 0.0)

    @property
    def legacy(self) -> float:
        """Matrix time of mma.sync over that of the GPU's own instructions; vector units have but one kind."""
        return 1.0 if self.compute == "fp32" and split_gain(self.gpu) == 1.0 else legacy_stretch(self.gpu)

    @property
    def narrow_gain(self) -> float:
        """The fp8 matrix rate over the 16-bit one, at which kernels run that have no fp8 variant."""
        rates = self.gpu.tensor_flop_per_clock_per_sm
        return rates["fp8"] / rates["bf16"] if "fp8" in rates else 1.0

    @property
    def by_warps(self) -> dict[str, Any]:
        """Threads copy keys and issue their own matrix instructions."""
        return {
            "exposed": self.using.exposed,
            "copy_bytes_per_clock": self.using.thread_copy_bytes_per_clock,
            "widens": True,
            "mostly_reads": self.decode,
            "writes_cache": np.where(self.engine == "trtllm", 1.0, self.has_cache),
            "written_rows": np.where(self.is_narrow, 4.0, 2.0) if self.engine == "vllm" and self.style != "sync" else 1.0,
        }

    @property
    def native(self) -> dict[str, Any]:
        """As the GPU's own instructions let a kernel do it."""
        if self.style == "sync":
            return self.by_warps
        exposed = exposed_share(self.style, self.using)
        return self.by_warps | {"exposed": exposed, "copy_bytes_per_clock": BULK_COPY_BYTES_PER_CLOCK, "widens": False}


def _flashinfer_fa2(of: Setting) -> Loop:
    large = np.where(of.dim < 256, 128.0, 64.0)
    on_tensor_cores = of.decode & (of.is_narrow | (of.group >= FEWEST_TENSOR_HEADS))
    on_vectors = of.decode & ~on_tensor_cores  # small blocks: many fit an SM, but for a group of one, which holds four keys a thread
    return Loop(
        tile_q=np.where(of.mean_packed > 64, large, np.where(of.mean_packed > 16, 64.0, 16.0)),
        tile_kv=by_dim(of.dim, (128, 64), otherwise=32) * np.where(of.is_quantised, 2.0, 1.0),
        packs=True,
        in_order=True,
        resident=np.where(on_vectors & (of.group > 1), threads_per_sm(of.gpu) / FLASHINFER_THREADS, 2.0),
        starts=np.where(on_tensor_cores, of.using.slow_start, 1.0),
        first_start=np.where(on_vectors, 0.0, 1.0),
        merging_threads=FLASHINFER_THREADS,
        edges=np.where(of.decode & of.is_narrow, 1.0, 0.0),  # else in wide words through shared memory, as rows show: nothing waits
        matrix_factor=of.legacy,
        num_helpers=of.has_cache + np.where(of.is_quantised, 2.0 if of.engine == "vllm" else 1.0, 0.0),
        **of.by_warps,
    )


def _fa2(of: Setting) -> Loop:
    """Paged caches always go to its split kernel (64 queries per tile), even where it does not split; encoders to the plain one, and what
    PyTorch calls over keys that lie one after the other: of a decode each tile of 128 then holds one query of one head."""
    is_paged = (of.has_cache > 0) & (of.engine != "pytorch")
    has_small_shared = (of.gpu.shared_bytes_per_sm or 0) < 150_000
    swaps = is_paged & of.one_query & ~of.has_window & (of.group > 1)  # heads of a group become rows; only then keys may be split
    copies = swaps & (of.num_requests > 1) & (of.num_kv_heads > 1)  # before and after; else the swap is a view
    plain_q = by_dim(of.dim, (192, 128), otherwise=64)
    plain_kv = by_dim(of.dim, (64, 128), (128, 32 if has_small_shared else 64), otherwise=64)
    return Loop(
        tile_q=np.where(is_paged, 64.0, plain_q),
        tile_kv=np.where(is_paged, by_dim(of.dim, (64, 256), (128, 128), otherwise=64), plain_kv),
        packs=swaps,
        rereads=of.decode & ~swaps,
        built_dims=FLASH_DIMS,
        in_order=True,
        resident=np.where(is_paged & has_small_shared, 1.0, 2.0),
        most_splits=np.where(swaps, MOST_FLASH_SPLITS, 1.0),
        starts=PAGED_STARTS if of.decode else 1.0,
        first_start=1.0,
        matrix_factor=of.legacy,
        num_helpers=of.has_cache * np.where(copies, 3.0, 1.0),
        copied_queries=np.where(copies, 2.0, 0.0),
        **of.by_warps,
    )


def _fa3(of: Setting) -> Loop:
    hopper_kv = by_dim(of.dim, (128, 128), (192, 112), (256, 80), otherwise=64)
    loads = of.native
    few = of.decode & (of.mean_packed <= ROWS_OF_WARPS) & (of.style != "tcgen05")  # for one warp group: no other hides its softmax
    loop = Loop(
        tile_q=np.where(few, ROWS_OF_WARPS, by_dim(of.dim, (64, 192), otherwise=128)),
        tile_kv=hopper_kv,
        packs=True,
        built_dims=FLASH_DIMS,
        num_helpers=1.0 + of.has_cache * ((of.engine == "vllm") | of.is_narrow) + of.padded_values,
        starts=PAGED_STARTS if of.decode else 1.0,
        copied_queries=np.where(of.is_quantised, 1.0, 0.0),
        **{**loads, "exposed": np.where(few, 1.0, loads["exposed"])},
    )
    return _fa3_by_warps(of, loop) if of.style == "sync" else loop


def _flashinfer_fa3(of: Setting) -> Loop:
    """FlashInfer's own Hopper kernel: its plan (scheduler.cuh, PrefillSM90Plan) deals out tiles of one query head, whole along the keys."""
    return replace(_fa3(of), packs=np.bool_(False), most_splits=1.0)


def _fa3_by_warps(of: Setting, hopper: Loop) -> Loop:
    """Before Hopper: 128 rows, however few are queries. Where one request leaves SMs idle and has more than four key tiles, the variant
    that can split runs, whatever the batch: its eight warps leave no room for a second task, with one stage, so nothing hides softmax."""
    rows = np.full_like(of.dim, 128.0)
    split_kv = by_dim(of.dim, (64, 80), (96, 48), (128, 112), otherwise=64)
    leaves_idle = ceil_div(of.mean_packed, rows) * of.num_kv_heads < FILLED * of.gpu.num_sms
    can_split = leaves_idle & (of.longest_kv > 4.0 * split_kv)
    is_alone = can_split & (of.dim > 96) | (of.dim > 128)
    return replace(
        hopper,
        tile_q=rows,
        in_order=True,
        tile_kv=np.where(can_split, split_kv, by_dim(of.dim, (64, 112), otherwise=64)),
        resident=np.where(is_alone, 1.0, 2.0),
        most_splits=np.where(can_split, MOST_FLASH_SPLITS, 1.0),
        exposed=np.where(is_alone, 1.0, of.using.exposed),
    )


def _fa4(of: Setting) -> Loop:
    """Two tiles of 128 queries in turns, where tensor memory holds their scores."""
    return (
        replace(_fa3(of), tile_q=np.full_like(of.dim, 256.0), starts=of.using.slow_start, num_helpers=of.has_cache, built_dims=())
        if of.style == "tcgen05"
        else _fa3(of)
    )


def _trtllm(of: Setting) -> Loop:
    """Its generated kernels on data-centre Blackwell; elsewhere FMHA for prefill and XQA for decode."""
    if of.decode:
        return _trtllm_decode(of)
    return _trtllm_generated(of) if of.style == "tcgen05" else _trtllm_prefill(of)


def _trtllm_helpers(of: Setting) -> Any:
    """TensorRT-LLM's own operator lays out queries, keys and values first; the others only write their cache."""
    if of.engine != "trtllm":
        return of.has_cache * (2.0 if of.engine == "vllm" else np.where(of.is_narrow, 3.0, 1.0))
    return 2.0 + of.has_cache + np.where(of.is_quantised & (of.style == "wgmma"), 1.0, 0.0)


def _trtllm_prefill(of: Setting) -> Loop:
    """64 queries per warp; on Hopper two warp groups have 64 each, with long key tiles. Before Hopper heads of 128 and 192 alone have fp8
    kernels: others run at the 16-bit rate, as rows show, the widest in a plainer loop still, and start slowly, after a kernel more."""
    is_old, using = of.style == "sync", of.using
    lacks_fp8 = is_old & (of.narrows_queries > 0) & ~np.isin(of.dim, (128.0, 192.0))
    without_fp8 = of.narrow_gain * np.where(of.dim > 192, using.plain_loop, 1.0)
    return Loop(
        tile_q=np.full_like(of.dim, 64.0 if is_old else 128.0),
        tile_kv=np.full_like(of.dim, 32.0) if is_old else by_dim(of.dim, (64, 256), (128, 128), otherwise=64),
        packs=False,
        in_order=True,
        resident=2 if is_old else 1,
        most_splits=1.0,
        built_dims=FMHA_DIMS if is_old else POWERS,
        matrix_factor=using.plain_loop * np.where(lacks_fp8, without_fp8, 1.0) if is_old else 1.0,
        starts=np.where(lacks_fp8, using.slow_start, 1.0),
        num_helpers=_trtllm_helpers(of) + (lacks_fp8 if is_old else of.narrows_queries),
        copied_queries=of.has_cache * (of.engine == "trtllm"),
        **of.native,
    )


def _trtllm_generated(of: Setting) -> Loop:
    """Two tiles of 128 queries of one head in turns; one where the head is too wide for two accumulators."""
    few = _trtllm_decode(of)
    decodes = of.one_query & (of.engine == "vllm")  # the others prefill one token as they do many
    is_unfit = ~decodes & (of.dim % 16 > 0)  # no generated kernel: the tiles and instructions of FMHA before Hopper
    return replace(
        few,
        tile_q=np.where(decodes, few.tile_q, np.where(is_unfit, 64.0, by_dim(of.dim, (192, 256), otherwise=128))),
        tile_kv=np.where(is_unfit, 32.0, few.tile_kv),
        matrix_factor=np.where(decodes, few.matrix_factor, np.where(is_unfit, of.legacy * of.using.plain_loop, 1.0)),
        packs=few.packs & decodes,
        is_simt=few.is_simt & decodes,
        most_splits=np.where(decodes, np.inf, 1.0),
        num_helpers=_trtllm_helpers(of),
        copied_queries=of.has_cache * ((of.engine == "trtllm") | of.is_narrow & (of.engine == "sglang")),
    )


def _trtllm_decode(of: Setting) -> Loop:
    """Groups too wide for its tiles fall back to one walk per query head, in its own engine on Blackwell too."""
    is_new, is_old = of.style == "tcgen05", of.style == "sync"
    is_wide = of.group > WIDEST_XQA_GROUP
    is_alone = (is_wide & (of.engine == "trtllm")) if is_new else is_wide | (of.group == 1) | _is_too_little_for_xqa(of)
    step = 8.0 if is_new else 16.0
    loads = of.native
    if of.style == "wgmma":  # only fp8 caches get a kernel of Hopper's own kind
        loads |= {"copy_bytes_per_clock": np.where(of.is_narrow, BULK_COPY_BYTES_PER_CLOCK, of.using.thread_copy_bytes_per_clock)}
    helpers: dict[str, Any] = {"trtllm": 2.0 if is_new else 1.0, "vllm": np.where(of.is_narrow, 2.0, 1.0)}
    rows = np.where(is_alone, 1.0, ceil_div(of.group, step) * step)
    return Loop(
        tile_q=rows,
        matrix_factor=np.maximum(1.0, FEWEST_ROWS / rows) if is_new else 1.0,
        tile_kv=by_dim(of.dim, (128, 128), otherwise=64),
        packs=~is_alone,
        resident=np.where(is_alone, 2.0, 1.0),
        most_splits=np.where(of.is_narrow & is_old & ~is_alone, 1.0, np.inf),  # XQA never splits fp8 caches before Hopper
        own_parts=np.where(is_new | is_alone | (of.is_narrow & (is_old | of.has_window)), 0.0, _xqa_parts(of)),
        starts=1.0 if is_new else np.where(is_alone | (of.is_narrow & (of.style == "wgmma")), 1.0, of.using.slow_start),
        least_chunk=128.0 if is_new else 256.0,
        is_simt=is_alone,
        num_helpers=helpers.get(of.engine, np.where(of.is_narrow, 4.0, 1.0)),
        copied_queries=float(of.engine == "trtllm"),
        **loads,
    )


def _is_too_little_for_xqa(of: Setting) -> Any:
    """Its engine does not take it (mayHavePerfGain) where parts of all keys are fewer than a quarter of the SMs; over fp8, rows show, it
    always does."""
    parts = np.maximum(np.floor(of.longest_kv / XQA_PART_KEYS), 1.0)
    return ~np.asarray(of.is_narrow) & (parts * of.num_requests * of.num_kv_heads < FEWEST_XQA_PARTS * of.gpu.num_sms)


def _xqa_parts(of: Setting) -> Floats:
    """Its rule (computeMultiBlockCount): whole parts, but no more than merging is worth, while there is room for that many."""
    parts = np.floor(of.longest_kv / XQA_PART_KEYS)
    room = np.floor(XQA_ROUNDS * of.gpu.num_sms / (of.num_requests * of.num_kv_heads))
    return np.asarray(np.maximum(np.minimum(np.minimum(parts, np.round(np.sqrt(8.0 * parts))), room), 1.0))


def _triton(of: Setting) -> Loop:
    """SGLang's extend kernel takes 16 to 128 queries of one head; its encoder kernel squares; vLLM's packs a group into 16 rows."""
    is_encoder = of.has_cache == 0
    decodes: Any = of.one_query if of.engine == "vllm" else np.bool_(of.decode)  # SGLang prefills one token as it does many
    packs: Any = decodes
    if of.engine == "vllm":
        tile_q, tile_kv, packs = np.maximum(16.0, np.exp2(np.ceil(np.log2(of.group)))), np.full_like(of.dim, 32.0), np.bool_(True)
    else:
        narrow, wide, widest = EXTEND_BLOCKS.get(of.gpu.target, ((64, 64),) * 3)
        extend_q, extend_kv = (by_dim(of.dim, (128, narrow[side]), (256, wide[side]), otherwise=widest[side]) for side in (0, 1))
        side = 64.0 if of.gpu.target in ("sm_80", "sm_86", "sm_89") else 128.0
        tile_q = np.where(decodes, 16.0, np.where(is_encoder, side, extend_q))
        tile_kv = np.where(decodes, by_dim(of.dim, (256, 64), otherwise=32), np.where(is_encoder, side, extend_kv))
    masks = not of.decode and of.engine != "vllm"
    accumulators = tile_q * (np.exp2(np.ceil(np.log2(of.dim))) + tile_kv) * ACCUMULATOR_BYTES
    overflows = (of.style == "wgmma") & ~decodes & (2.0 * accumulators > REGISTER_BYTES_PER_SM)  # in pairs: nothing hides their copies
    few_rows = 1.0 if of.engine == "vllm" else np.clip(ROWS_OF_WARPS / tile_q, 1.0, 4.0)
    loads = of.by_warps
    loads["copy_bytes_per_clock"] = of.using.thread_copy_bytes_per_clock / np.where(of.dim % 16 > 0, VECTOR_ELEMENTS, 1.0)
    return Loop(
        tile_q=tile_q,
        tile_kv=tile_kv,
        packs=packs,
        in_order=True,
        resident=2,
        most_splits=np.where(decodes, 8.0, 1.0),
        built_dims=POWERS,
        masks_skipped=masks,
        stops_to_copy=overflows | of.is_narrow & ~decodes & (of.style == "wgmma"),
        matrix_factor=of.legacy * of.using.plain_loop * few_rows,
        num_helpers=of.has_cache + np.where(of.is_quantised, 1.0, 0.0) + of.padded_values + np.where(masks & of.has_window, 1.0, 0.0),
        **loads,
    )


LOOPS = {
    "flashinfer_fa2": _flashinfer_fa2,
    "flashinfer_fa3": _flashinfer_fa3,
    "fa2": _fa2,
    "fa3": _fa3,
    "fa4": _fa4,
    "trtllm": _trtllm,
    "triton": _triton,
}
