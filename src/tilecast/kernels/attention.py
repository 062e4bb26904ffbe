"""Fused attention, prefill and decode: query tiles that walk over tiles of keys, a KV split that fills the machine, and the unfused chain.

Legend: L launches, R requests of a launch (equal ones are one entry with a count). Everything is counted per request in closed form, so
a long context or a large batch costs no more to predict than a short one.

A graph of an engine replays the whole attention operator, so with the timer `graph` its small kernels (KV-cache write, metadata) are
inside; the other timers mean the attention kernel alone.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tilecast.dtypes import DTYPES, quantisation
from tilecast.errors import InvalidInput, shown
from tilecast.execution import Protocol, TaskSet, constants
from tilecast.execution.analytic import matrix_rate
from tilecast.execution.cache import from_dram, hit_fraction, in_turn_fraction, least_from_dram
from tilecast.execution.schedule import chunk_that_fits, floor_sum, least_makespan
from tilecast.execution.tasks import Floats, ceil_div
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention_loops import (
    BULK_COPY_BYTES_PER_CLOCK,
    LOOPS,
    AttentionConstants,
    Loop,
    Setting,
    attention_constants,
    mma_style,
    newest_sglang,
    resolved,
    threads_per_sm,
)
from tilecast.kernels.base import Doublings, count, flag, sizes
from tilecast.kernels.matrix_units import split_gain
from tilecast.kernels.requests import Requests, asked_lengths, checked_lengths, has_prefix, lengths, over_requests, uniform

SOFTMAX_FLOP = 8.0  # vector work of one score beside its exponential: scale, maximum, sum, conversion, each a slot of two FLOP
MASK_FLOP = 24.0  # of a score whose key may lie before a window: positions, two comparisons, a choice, and the tile's own "is any left"
SIMT_FLOP = 8.0  # vector slots of a multiply-add on vector units: two loads, two conversions, the product, and a sum over lanes in three
NARROWING_BYTES = 3.0  # of an element: read in 16 bits, written in 8
DEFAULT_ENGINE = "sglang"
DOUBLINGS: Doublings = (("batch",), ("num_heads", "num_kv_heads"))
PREFILL_DOUBLINGS: Doublings = (("q_len", "kv_len"), ("q_len",), *DOUBLINGS, ("num_heads",))

# ---- what is asked -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One attention problem per launch; sizes are (L, 1). `kv_width` is what the cache holds of a token for one KV head, in elements."""

    requests: Requests
    num_heads: Floats
    num_kv_heads: Floats
    qk_dim: Floats
    v_dim: Floats
    kv_width: Floats
    new_width: Floats  # elements that a new token adds to the cache, all KV heads together
    causal: Floats  # 1 or 0
    window: Floats  # keys a query sees at most; inf: all
    q_bytes: float  # of an element of the queries
    out_bytes: float
    kv_bytes: Floats  # of an element of the cache, scales included
    compute: str  # dtype whose rate `matrix_flop` is told in
    rate_gain: Floats  # matrix rate of this launch over that of `compute`
    rewritten_width: Floats | float = 0.0  # elements of a new token that are narrowed for this launch, beside those of the cache


def _windows(raw: Any) -> Floats:
    """(L, 1); None, an empty cell or nan means no window."""
    if raw is None:
        return np.full((1, 1), np.inf)
    try:
        values = np.atleast_1d(np.array([np.inf if value is None else value for value in np.atleast_1d(np.asarray(raw, dtype=object))]))
        floats = values.astype(np.float64)
    except (TypeError, ValueError):
        floats = np.empty(0)
    if floats.ndim != 1 or not len(floats):
        raise InvalidInput(f"window = {shown(raw)} must be a whole number of at least 1, or nothing")
    floats = np.where(np.isnan(floats), np.inf, floats)
    if np.any(floats < 1) or np.any(np.isfinite(floats) & (floats != np.floor(floats))):
        low = f"{floats[floats < 1][0]:g}" if np.any(floats < 1) else shown(raw)
        raise InvalidInput(f"window = {low} must be a whole number of at least 1, or nothing")
    return np.asarray(floats[:, None])


def cache_bytes_of(kv_dtype: Any, default: str) -> tuple[Floats, np.ndarray]:
    """Bytes of a cached element (L, 1) and the names of the dtypes (L,)."""
    given: Any = [kv_dtype] if kv_dtype is None or isinstance(kv_dtype, str) else np.atleast_1d(np.asarray(kv_dtype, dtype=object))
    if np.ndim(given) != 1 or not len(given):
        raise InvalidInput(f"kv_dtype = {shown(kv_dtype)} must be a dtype, or a list of them")
    names = [default if name is None else str(name) for name in given]
    table = {name: quantisation(name).activation.bytes for name in sorted(set(names))}
    return np.array([[table[name]] for name in names]), np.array(names)


# ---- counting, in closed form ------------------------------------------------------------------------------------


def visible_pairs(shape: Shape) -> Floats:
    """Query-key pairs of each request and head: a causal query sees the keys up to its own, at most `window` of them. (L, R)"""
    q, kv = shape.requests.q, shape.requests.kv
    limit = np.minimum(shape.window, kv)
    first = kv - q + 1  # keys the first query sees
    growing = np.clip(limit - first + 1, 0.0, q)  # queries that see fewer keys than the window
    causal = growing * first + growing * (growing - 1) / 2 + (q - growing) * limit
    return np.asarray(np.where(shape.causal > 0, causal, q * limit))


def visited_tiles(shape: Shape, loop: Loop, pack: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Per request and packed head (L, R): query tiles, key tiles that they visit together, and the most and the fewest of one of them.

    Row r of a packed tile is query floor(r / pack), so tile t ends with query floor(((t + 1) tile_q - 1) / pack) and sees the keys up to
    that one: the visits are sums of floors of linear functions of t.
    """
    q, kv = np.broadcast_arrays(shape.requests.q, shape.requests.kv)
    tile_q, tile_kv = loop.tile_q, loop.tile_kv
    num_tiles = ceil_div(q * pack, tile_q)
    all_keys = ceil_div(kv, tile_kv)
    ends = floor_sum(num_tiles - 1, tile_q, pack * (kv - q + tile_kv) + tile_q - 1, pack * tile_kv) + all_keys
    ends = np.where(shape.causal > 0, ends, num_tiles * all_keys)
    queries_of_tile = np.minimum(q, ceil_div(tile_q, pack))
    shortest = np.where(shape.causal > 0, ceil_div(np.minimum(kv - q + queries_of_tile, kv), tile_kv), all_keys)
    longest = all_keys
    if np.all(np.isinf(shape.window)):
        return num_tiles, ends, longest, shortest

    window = np.minimum(shape.window, kv)
    skipped = kv - q - window + 1  # keys before the first query's window; negative while the window is still filling
    from_tile = np.clip(np.ceil(-skipped * pack / tile_q), 0.0, num_tiles)
    start = pack * skipped + from_tile * tile_q
    starts = floor_sum(num_tiles - from_tile, tile_q, np.maximum(start, 0.0), pack * tile_kv)
    most = np.minimum(all_keys, np.floor((window + queries_of_tile - 2) / tile_kv) + 2)  # a window that starts inside a tile
    causal = np.maximum(ends - starts, num_tiles)
    visits = np.where(shape.causal > 0, causal, num_tiles * np.minimum(all_keys, ceil_div(window + queries_of_tile - 1, tile_kv)))
    longest = np.where(num_tiles > 1, np.minimum(np.maximum(most, visits / num_tiles), all_keys), visits)
    return num_tiles, visits, longest, np.minimum(shortest, np.maximum(1.0, np.floor(visits / num_tiles)))


# ---- tasks -------------------------------------------------------------------------------------------------------


def fused_tasks(shape: Shape, loop: Loop, gpu: GpuSpec, protocol: Protocol, using: AttentionConstants, split: int | None = None) -> TaskSet:
    """One task per query tile, packed head and part of the keys; `split` fixes the number of parts."""
    requests = shape.requests
    pack = np.where(loop.packs, shape.num_heads / shape.num_kv_heads, 1.0)
    num_units = shape.num_heads / pack
    num_tiles, visits, longest, shortest = visited_tiles(shape, loop, pack)
    tasks_unsplit = requests.count * num_tiles * num_units

    parts = _parts_of_keys(shape, loop, gpu, tasks_unsplit, longest) if split is None else np.minimum(longest, float(split))
    tasks = tasks_unsplit * parts
    num_tasks = over_requests(tasks)
    total_visits = requests.total(visits * num_units)
    longest_part = ceil_div(longest, parts)
    busiest = least_makespan(tasks, np.floor(shortest / parts), requests.count * visits * num_units, longest_part, gpu.num_sms)
    busiest = np.where(loop.in_order, np.maximum(busiest, _visits_in_order(requests, longest_part, total_visits, num_tasks, gpu)), busiest)
    mean_visits = total_visits / num_tasks
    longest_kv = np.max(np.where(requests.count > 0, requests.kv, 0.0), axis=-1, keepdims=True)
    loaded = np.minimum(busiest * loop.tile_kv, ceil_div(num_tasks, gpu.num_sms) * longest_kv)  # keys; a short cache does not fill a tile
    mean_keys = loaded / (busiest / mean_visits)

    masked: Floats | float = 0.0  # tiles of a task whose scores are made for nothing
    if loop.masks_skipped and np.any(np.isfinite(shape.window)):
        _, all_visits, _, _ = visited_tiles(replace(shape, window=np.full((1, 1), np.inf)), loop, pack)
        masked = requests.total((all_visits - visits) * num_units) / num_tasks
    scores = (mean_visits + masked) * loop.tile_q * loop.tile_kv
    is_masked = np.isfinite(shape.window) & loop.masks_skipped
    mask_clocks = np.where(is_masked, scores * MASK_FLOP / gpu.vector_flop_per_clock_per_sm["fp32"], 0.0)
    padded_qk = _padded_dim(shape.qk_dim, loop)
    padded_v = padded_qk if shape.v_dim is shape.qk_dim else _padded_dim(shape.v_dim, loop)
    padded_dims = padded_qk + padded_v * mean_visits / (mean_visits + masked)
    special = scores
    vector = scores * SOFTMAX_FLOP + 2.0 * mean_visits * loop.tile_q * shape.v_dim
    simt = np.where(loop.is_simt, scores * 2.0 * (shape.qk_dim + shape.v_dim) * SIMT_FLOP, 0.0)
    softmax_clocks = special / (gpu.special_per_clock_per_sm or 16.0) + vector / gpu.vector_flop_per_clock_per_sm["fp32"]

    rows = requests.total(requests.q) * shape.num_heads / over_requests(tasks_unsplit)  # of a tile, that are queries
    per_start = ceil_div(num_tasks, gpu.num_sms) / (busiest / mean_visits)  # whole tasks of the busiest SM, for what each does once
    edge_clocks = (
        loop.edges * per_start * rows * (shape.qk_dim * shape.q_bytes + shape.v_dim * shape.out_bytes) / using.edge_bytes_per_clock
    )

    kv_all, total_bytes, touched = _bytes(shape, loop, gpu)
    dram = touched if protocol.cache == "cold" else touched * (1.0 - in_turn_fraction(touched, gpu))
    pairs = requests.total(visible_pairs(shape)) * shape.num_heads

    is_cast = np.asarray(loop.widening_bytes) > 0  # once, by a kernel of its own; then every visit reads 16 bits
    moved_bytes = np.where(is_cast | loop.widens, np.maximum(shape.kv_bytes, 2.0), shape.kv_bytes)
    cast_bytes = np.where(is_cast, kv_all * shape.kv_width * (shape.kv_bytes + loop.widening_bytes - 2.0), 0.0)
    key_bytes = (mean_keys * shape.kv_width + masked * loop.tile_kv * shape.qk_dim) * moved_bytes + cast_bytes / num_tasks
    stop_clocks = np.where(loop.stops_to_copy, key_bytes / loop.copy_bytes_per_clock, 0.0)
    port_share = BULK_COPY_BYTES_PER_CLOCK / np.asarray(loop.copy_bytes_per_clock)  # bytes that the port could have moved meanwhile
    is_split = np.any(parts > 1, axis=-1, keepdims=True)
    later_rounds = ceil_div(num_tasks, gpu.num_sms * loop.resident) - 1.0
    started = loop.starts if loop.first_start is None else loop.first_start
    later_clocks = using.task_clocks * loop.starts * later_rounds / (busiest / mean_visits)  # while other SMs stream
    merge_s = np.where(is_split, _merge_s(shape, loop, gpu, using, parts, tasks, pack), 0.0)
    fixed_s = using.task_clocks / gpu.boost_clock_hz * started + merge_s
    num_helpers = np.asarray(loop.num_helpers + (np.asarray(shape.rewritten_width) > 0), np.float64)  # one narrows
    if protocol.timer == "graph":
        fixed_s = fixed_s + using.helper_clocks / gpu.boost_clock_hz * num_helpers
        fixed_s = fixed_s + _helpers_s(shape, loop, gpu, using, protocol, total_bytes)
    return TaskSet(
        matrix_dtype=shape.compute,
        num_tasks=num_tasks,
        least_flop=2.0 * pairs * (shape.qk_dim + shape.v_dim) / shape.rate_gain,
        least_bytes=least_from_dram(total_bytes, gpu, protocol.cache),
        matrix_flop=np.where(loop.is_simt, 0.0, 2.0 * scores * padded_dims * loop.matrix_factor / shape.rate_gain),
        vector_flop=vector + simt,
        special_ops=special,
        exposed_clocks=loop.exposed / loop.resident * softmax_clocks + edge_clocks + stop_clocks + mask_clocks + later_clocks,
        l2_bytes=(key_bytes + per_start * rows * shape.qk_dim * shape.q_bytes) * port_share,
        l2_bytes_per_clock_per_sm=BULK_COPY_BYTES_PER_CLOCK,
        dram_bytes=dram,
        dram_fraction=constants().stream_fraction if loop.mostly_reads else None,
        busiest_tasks=busiest / mean_visits,
        rounds=np.zeros((1, 1)),
        resident=loop.resident,
        fixed_s=fixed_s,
        host_calls=1.0 + num_helpers,
        variants=("split KV" if bool(np.all(is_split)) else "",),
    )


def _parts_of_keys(shape: Shape, loop: Loop, gpu: GpuSpec, tasks_unsplit: Floats, longest: Floats) -> Floats:
    """Parts that the keys of each request are cut into, by the library's own rule or so that the machine is full. (L, R)"""
    requests, least = shape.requests, ceil_div(loop.least_chunk, loop.tile_kv)
    chunk = chunk_that_fits(tasks_unsplit, longest, np.asarray(gpu.num_sms * loop.resident), least)
    in_sight = ceil_div(np.minimum(requests.kv, shape.window + requests.q - 1), least * loop.tile_kv)  # a window's edge is no part
    filling = np.minimum(np.minimum(ceil_div(longest, chunk), in_sight), loop.most_splits)
    return np.asarray(np.where(np.asarray(loop.own_parts) > 0, loop.own_parts, filling))


def _visits_in_order(requests: Requests, longest_part: Floats, total_visits: Floats, num_tasks: Floats, gpu: GpuSpec) -> Floats:
    """Of the busiest SM at most, by Graham's bound for lists: in order of numbers, a request's longest tasks come last. (L, 1)"""
    longest = np.max(np.where(requests.count > 0, longest_part, 0.0), axis=-1, keepdims=True)
    last_part = (1.0 - 1.0 / gpu.num_sms) * longest
    return np.asarray(np.minimum(total_visits / gpu.num_sms + last_part, ceil_div(num_tasks, gpu.num_sms) * longest))


def _bytes(shape: Shape, loop: Loop, gpu: GpuSpec) -> tuple[Floats, Floats, Floats]:
    """Keys in sight of all requests and KV heads; bytes of all operands; and bytes that the loop touches. (L, 1)"""
    requests = shape.requests
    kv_read = np.minimum(requests.kv, shape.window + requests.q - 1)
    q_all, kv_all = requests.total(requests.q) * shape.num_heads, requests.total(kv_read) * shape.num_kv_heads
    queries, results = q_all * shape.qk_dim * shape.q_bytes, q_all * shape.v_dim * shape.out_bytes
    cached = kv_all * shape.kv_width * shape.kv_bytes
    first_key = np.floor(np.maximum(requests.kv - kv_read, 0.0) / loop.tile_kv) * loop.tile_kv  # a window's first tile is loaded whole
    a_head = requests.total(requests.kv - first_key) * shape.kv_width * shape.kv_bytes  # one KV head of all requests
    again = np.where(loop.rereads, (shape.num_heads - shape.num_kv_heads) * a_head * (1.0 - hit_fraction(a_head, gpu)), 0.0)
    touched = queries + shape.num_kv_heads * a_head + again + results + kv_all * shape.kv_width * loop.widening_bytes
    return kv_all, queries + cached + results, touched


def _merge_s(
    shape: Shape, loop: Loop, gpu: GpuSpec, using: AttentionConstants, parts: Floats, tasks: Floats, pack: Floats
) -> Floats:  # fmt: skip
    """Of the kernel that merges the results of parts, of requests whose keys were split. (L, 1)"""
    requests = shape.requests
    parts_bytes = over_requests(np.where(parts > 1, tasks * np.minimum(requests.q * pack, loop.tile_q), 0.0))
    parts_bytes = parts_bytes * shape.v_dim * 8.0  # fp32, written and read again
    l2_per_s = gpu.num_sms * loop.copy_bytes_per_clock * gpu.boost_clock_hz
    merged_rows = over_requests(np.where(parts > 1, requests.count * requests.q, 0.0)) * shape.num_heads
    at_once = gpu.num_sms * threads_per_sm(gpu) / loop.merging_threads if loop.merging_threads else np.inf
    helper_s = using.helper_clocks / gpu.boost_clock_hz
    return np.asarray(helper_s * np.maximum(merged_rows / at_once, 1.0) + parts_bytes / l2_per_s)


def _helpers_s(shape: Shape, loop: Loop, gpu: GpuSpec, using: AttentionConstants, protocol: Protocol, total_bytes: Floats) -> Floats:
    """What the small kernels around attention take to move. (L, 1)"""
    moved = _helper_bytes(shape, loop)
    missed = moved if protocol.cache == "cold" else moved * (1.0 - hit_fraction(total_bytes + moved, gpu))
    rows_s = _helper_rows(shape, loop) * using.row_clocks / (gpu.num_sms * gpu.boost_clock_hz)
    return np.asarray(np.maximum(missed / (gpu.dram_data_bytes_per_s * constants().dram_fraction), rows_s))


def _padded_dim(dim: Floats, loop: Loop) -> Floats:
    """To the next width that the library is built for, or to whole instructions."""
    built = np.array((*loop.built_dims, np.inf))
    found = built.take(built.searchsorted(dim))
    return np.where(np.isinf(found), ceil_div(dim, 16) * 16, found)


def _helper_bytes(shape: Shape, loop: Loop) -> Floats:
    """What the operator moves beside attention: new keys and values into the cache, and the queries where it rewrites them."""
    new = shape.requests.total(shape.requests.q)
    cache_write = new * shape.new_width * (2.0 + shape.kv_bytes) * loop.writes_cache
    rewritten = new * shape.rewritten_width * NARROWING_BYTES
    return np.asarray(cache_write + rewritten + loop.copied_queries * new * shape.num_heads * shape.qk_dim * 4.0)


def _helper_rows(shape: Shape, loop: Loop) -> Floats:
    """Head vectors that the operator's small kernels handle one by one: new keys with their values, and the queries it rewrites."""
    heads = shape.new_width / shape.kv_width * loop.writes_cache * loop.written_rows + loop.copied_queries * shape.num_heads
    return np.asarray(shape.requests.total(shape.requests.q) * heads)


def unfused_tasks(shape: Shape, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
    """Scores to memory, softmax over them, scores times values: three kernels, nothing trimmed, four passes over the score matrix."""
    requests = shape.requests
    tile = 128.0
    tiles = requests.count * ceil_div(requests.q, tile) * ceil_div(requests.kv, tile) * shape.num_heads
    num_tasks = np.sum(tiles, axis=-1, keepdims=True)
    scores = requests.total(requests.q * requests.kv) * shape.num_heads
    q_all, kv_all = requests.total(requests.q) * shape.num_heads, requests.total(requests.kv) * shape.num_kv_heads
    operands = q_all * (shape.qk_dim * shape.q_bytes + shape.v_dim * shape.out_bytes) + kv_all * shape.kv_width * shape.kv_bytes
    passes = 4.0 * scores * max(2.0, shape.q_bytes)
    dram = from_dram(0.0, operands + passes / 4.0, gpu, protocol.cache)
    spilled = np.maximum(dram - operands, 0.0) * 3.0  # the score matrix again, for each further pass, when L2 does not hold it
    pairs = requests.total(visible_pairs(shape)) * shape.num_heads
    kernel_s = constants().launch_cycles / gpu.boost_clock_hz + constants().drain_s
    return TaskSet(
        matrix_dtype=shape.compute,
        num_tasks=num_tasks,
        least_flop=2.0 * pairs * (shape.qk_dim + shape.v_dim) / shape.rate_gain,
        least_bytes=least_from_dram(operands, gpu, protocol.cache),
        matrix_flop=2.0 * tile * tile * (shape.qk_dim + shape.v_dim) / shape.rate_gain,
        vector_flop=tile * tile * SOFTMAX_FLOP,
        special_ops=tile * tile,
        l2_bytes=2.0 * tile * (shape.qk_dim + shape.v_dim) * shape.q_bytes + 4.0 * tile * tile * max(2.0, shape.q_bytes),
        dram_bytes=dram + spilled,
        dram_fraction=constants().stream_fraction,
        fixed_s=2.0 * kernel_s,
        variants=("three kernels",),
    )


# ---- the records -------------------------------------------------------------------------------------------------


def attention_loop(
    identity: str,
    shape: Shape,
    gpu: GpuSpec,
    using: AttentionConstants,
    *,
    decode: bool,
    engine: str | None = None,
    has_cache: bool = True,
) -> Loop:
    """Tiles and schedule of one library on one GPU.

    FlashInfer's are documented; the others are recalled, or inferred from how measured training shapes step with their sizes.
    """
    requests, group = shape.requests, shape.num_heads / shape.num_kv_heads
    num_requests = requests.total(np.ones(1))
    is_narrow = shape.kv_bytes < 2.0
    setting = Setting(
        gpu=gpu,
        using=using,
        compute=shape.compute,
        decode=decode,
        style=mma_style(gpu),
        engine=engine or DEFAULT_ENGINE,
        dim=shape.qk_dim,
        num_requests=num_requests,
        num_kv_heads=shape.num_kv_heads,
        group=group,
        mean_packed=np.floor(requests.total(requests.q * group) / num_requests),
        one_query=decode | (np.max(requests.q, axis=-1, keepdims=True) == 1),
        longest_kv=np.max(np.where(requests.count > 0, requests.kv, 0.0), axis=-1, keepdims=True),
        has_cache=np.where((shape.causal > 0) & has_cache, 1.0, 0.0),
        is_narrow=is_narrow,
        is_quantised=is_narrow & (shape.q_bytes >= 2.0),
        has_window=np.isfinite(shape.window),
    )
    return LOOPS[identity](setting)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Attention:
    """Softmax(Q K^T) V of `batch` requests, or of one ragged batch `q_lens`, `kv_lens`. dtype is what the matrix products take."""

    batch: Any = 1
    q_len: Any = None
    kv_len: Any = None
    num_heads: Any
    num_kv_heads: Any = None  # None: as many as num_heads
    head_dim: Any = 128
    causal: Any = True
    window: Any = None
    kv_dtype: Any = None  # None: that of the queries
    q_lens: Any = None
    kv_lens: Any = None
    dtype: str = "bf16"
    identity: str | None = None
    engine: str | None = None  # whose operator surrounds the kernel, which variant of it runs; None: SGLang's
    split: int | None = None  # fix the parts of a split KV instead of choosing

    @property
    def has_sizes(self) -> bool:
        """Whether its requests are alike, and so have a size to double."""
        return self.q_lens is None and self.kv_lens is None

    def newest_identity(self, gpu: GpuSpec) -> str | None:
        """What the newest SGLang would run."""
        return newest_sglang(gpu)


def _shape(kernel: _Attention, gpu: GpuSpec, identity: str, *, decode: bool) -> Shape:
    num_kv_heads = kernel.num_heads if kernel.num_kv_heads is None else kernel.num_kv_heads
    others = {"num_heads": kernel.num_heads, "num_kv_heads": num_kv_heads, "head_dim": kernel.head_dim}
    if kernel.q_lens is not None or kernel.kv_lens is not None:
        requests = lengths(kernel.q_lens, kernel.kv_lens, kernel.q_len, decode=decode)
        size = sizes(**others)
        if len(size["num_heads"]) not in (1, len(requests.q)):
            raise InvalidInput(f"{len(requests.q)} ragged batches, but {len(size['num_heads'])} values of num_heads or head_dim")
    else:
        q_len, kv_len = asked_lengths(kernel.q_len, kernel.kv_len, decode=decode)
        requests, size = uniform(kernel.batch, q_len, kv_len, **others)
    causal = np.asarray(flag(kernel.causal, "causal"), dtype=np.float64).reshape(-1, 1)
    checked_lengths(requests, True if decode else causal)
    heads, kv_heads, dim = size["num_heads"], size["num_kv_heads"], size["head_dim"]
    if np.any(heads % kv_heads):
        row = int(np.argmax((heads % kv_heads) > 0))
        raise InvalidInput(f"num_heads = {heads[row, 0]:.0f} must be a multiple of num_kv_heads = {kv_heads[row, 0]:.0f}")
    held = quantisation(kernel.dtype)
    compute = held.compute.name
    rate, _ = matrix_rate(gpu, compute)
    kv_bytes, kv_names = cache_bytes_of(kernel.kv_dtype, kernel.dtype)
    runs_fp8 = (
        identity == "trtllm" and mma_style(gpu) != "sync" and "fp8" in gpu.tensor_flop_per_clock_per_sm and DTYPES[compute].bits == 16
    )
    gain = gpu.tensor_flop_per_clock_per_sm["fp8"] / rate if runs_fp8 else 1.0
    otherwise = split_gain(gpu) if compute == "fp32" and identity != "unfused" else 1.0  # PyTorch's memory-efficient kernel
    return Shape(
        requests=requests,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=dim,
        v_dim=dim,
        kv_width=2.0 * dim,
        new_width=2.0 * dim * kv_heads,
        causal=causal,
        window=_windows(kernel.window),
        q_bytes=held.activation.bytes,
        out_bytes=max(2.0, min(4.0, held.activation.bytes)),
        kv_bytes=kv_bytes,
        compute=compute,
        rate_gain=np.where(kv_names[:, None] == "fp8", gain, otherwise),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionPrefill(_Attention):
    """New tokens attend to themselves and to what the cache holds; kv_len counts both, and is q_len unless given.

    Where it is not causal, such as cross-attention, keys are those of another text, which may be shorter.
    """

    family: ClassVar[str] = "attention_prefill"
    doublings: ClassVar[Doublings] = (*PREFILL_DOUBLINGS, ("head_dim",), ("num_kv_heads",))
    built_for: ClassVar[tuple[str, ...]] = ("head_dim", "num_kv_heads")
    known_by: ClassVar[tuple[str, ...]] = ("head_dim",)
    known_beside: ClassVar[tuple[str, ...]] = ("window",)
    guessed: ClassVar[str] = "kv_len"  # a prefix was never measured

    @property
    def guessed_from(self) -> Any:
        """How many keys there are at the least: those of the queries."""
        return np.where(self.causal, self.q_len, 1)

    @property
    def doubles_flop(self) -> bool:
        """Whether every size does: more keys than a window holds are no more work, and more of the tokens new hardly more."""
        return self.window is None and not has_prefix(self.q_len, self.kv_len)

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        return attention_tasks(self, gpu, protocol, decode=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionDecode(_Attention):
    """One new token per request (or a few, q_len) attends to its cache of kv_len tokens, itself included."""

    family: ClassVar[str] = "attention_decode"
    doublings: ClassVar[Doublings] = (("kv_len",), *DOUBLINGS, ("num_heads",), ("head_dim",), ("num_kv_heads",))
    built_for: ClassVar[tuple[str, ...]] = ("head_dim", "num_heads", "num_kv_heads")
    known_by: ClassVar[tuple[str, ...]] = ("head_dim",)
    known_beside: ClassVar[tuple[str, ...]] = ("window",)
    guessed: ClassVar[str] = "q_len"  # several new tokens were never measured
    guessed_from: ClassVar[int] = 1

    @property
    def doubles_flop(self) -> bool:
        """Whether every size does: more keys than a window holds are no more work."""
        return self.window is None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        return attention_tasks(self, gpu, protocol, decode=True)


def attention_tasks(kernel: _Attention, gpu: GpuSpec, protocol: Protocol, *, decode: bool, has_cache: bool = True) -> TaskSet:
    """Causal attention is a decoder's, which has a cache, unless it is said to have none: a PyTorch model's."""
    identity = resolved(kernel.identity, gpu)
    shape = _shape(kernel, gpu, identity, decode=decode)
    if identity == "unfused":
        return unfused_tasks(shape, gpu, protocol)
    using = attention_constants()
    return fused_tasks(
        shape,
        attention_loop(identity, shape, gpu, using, decode=decode, engine=kernel.engine, has_cache=has_cache),
        gpu,
        protocol,
        using,
        count(kernel.split, "split"),
    )


KERNELS = (AttentionPrefill, AttentionDecode)
