"""Mixture of experts: two grouped GEMM passes over the tokens each expert got, and the small kernels that route, activate and reduce.

An expert's tokens are padded to whole tiles, so the number of tasks follows the histogram of tokens per expert, not their sum; only experts
with tokens read their weights. Under expert parallelism the busiest rank is priced. Shapes: L launches, V tiles, E experts, D draws.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilecast.dtypes import Quantisation, quantisation
from tilecast.errors import InvalidInput, UnknownName, shown
from tilecast.execution import Constants, Protocol, TaskSet, constants
from tilecast.execution.analytic import l2_bytes_per_clock
from tilecast.execution.cache import hit_fraction, in_turn_fraction, least_from_dram
from tilecast.execution.fitted import load
from tilecast.execution.tasks import Floats, ceil_div
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import flag, sizes
from tilecast.kernels.expert_loads import MOST_EXPERTS, busiest_rank
from tilecast.kernels.matrix_units import legacy_stretch
from tilecast.kernels.moe_defaults import CONFIGURATION, ENGINES, default_configurations

FUSED_TARGETS = ("sm_100", "sm_103")  # where engines have a fused grouped kernel
PASSES = ("w13", "w2", "both")
K_STEP = 64  # a main loop's step along K where none is given
STAGES = 3  # steps in flight where none is given; all but the one computed on lie in shared memory
WIDENING_FLOP = 8.0  # vector work per weight stored narrower than the 16 bits it is computed with: unpack, convert, scale, put back
MARLIN_INTEGER_FLOP = 5.0  # the same where an instruction unpacks or scales two integers at once, as Marlin's do
MARLIN_ROWS = (8, 16, 32, 48, 64)
MARLIN_FILLED = 0.9  # of a tile: with fewer tokens per expert it is tall enough
LEAST_GROUPED_ROWS, MOST_GROUPED_ROWS = 8.0, {"w4a16_mxfp4": 64.0, "nvfp4": 256.0, "w4a8_mxfp4_mxfp8": 256.0}  # 128 in other formats
RULED = ("sglang", "vllm", "trtllm")  # engines whose fused kernels choose their rows by the mean load
TALL_CUTLASS = ("nvfp4", "w4a8_mxfp4_mxfp8")  # no tile of fewer than 128 rows
PADS_SCALES = ("nvfp4", "fp8_block")  # scales of every expert are laid out in blocks of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConstants:
    """constants/moe.toml says what each one is."""

    small_kernel_s: float
    step_clocks: float
    route_cycles: float
    quantise_share: float


@cache
def moe_constants() -> MoeConstants:
    return load(MoeConstants, "moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """How one identity goes about it, beside its two grouped GEMMs."""

    num_small_kernels: int  # routing, sorting, scatter, activation, reduction
    num_quantise_kernels: int  # where activations are held in fewer than 16 bits
    copies_tokens: bool  # a kernel writes each expert's rows next to each other first
    fuses_activation: bool  # the first GEMM writes the activated half only
    keeps_foreign_rows: bool  # intermediate results have a row for every token and expert, also those of other ranks
    multicasts: bool  # neighbouring tasks share what they fetch from L2
    tile_rows: tuple[int, ...]
    tile_columns: tuple[int, ...]
    issues_mma_sync: bool = False  # whatever else the GPU has
    steps_per_expert: int = 0  # that wait for memory one after the other, before an expert's product has its pointers and strides


IMPLEMENTATIONS = {
    "triton": Implementation(
        num_small_kernels=4, num_quantise_kernels=2, copies_tokens=False, fuses_activation=False, keeps_foreign_rows=True, multicasts=False,
        tile_rows=(16, 32, 64), tile_columns=(64,),
    ),
    "grouped": Implementation(
        num_small_kernels=2, num_quantise_kernels=1, copies_tokens=False, fuses_activation=True, keeps_foreign_rows=False, multicasts=True,
        tile_rows=(16, 32, 64, 128), tile_columns=(128, 256),
    ),
    "cutlass": Implementation(
        num_small_kernels=3, num_quantise_kernels=1, copies_tokens=True, fuses_activation=False, keeps_foreign_rows=False, multicasts=True,
        tile_rows=(16, 64, 128), tile_columns=(64, 128, 256), steps_per_expert=1,
    ),
    "deepgemm": Implementation(
        num_small_kernels=3, num_quantise_kernels=1, copies_tokens=True, fuses_activation=False, keeps_foreign_rows=False, multicasts=True,
        tile_rows=(64, 128), tile_columns=(64, 128), steps_per_expert=1,
    ),
    # vLLM's and SGLang's kernel for weights of 4 bits beside activations of 16.
    "marlin": Implementation(
        num_small_kernels=4, num_quantise_kernels=0, copies_tokens=False, fuses_activation=False, keeps_foreign_rows=True, multicasts=False,
        tile_rows=(16, 32, 48, 64), tile_columns=(128, 256), issues_mma_sync=True,
    ),
    # Triton's with the tile that suits the launch, as a tuned configuration gives it, instead of SGLang's default.
    "tuned": Implementation(
        num_small_kernels=4, num_quantise_kernels=2, copies_tokens=False, fuses_activation=False, keeps_foreign_rows=True, multicasts=False,
        tile_rows=(16, 32, 64, 128), tile_columns=(64, 128, 256),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moe:
    """One rank's MoE layer. `inter_size` is one expert's, before tensor parallelism; w13 is twice as wide unless not `gated`.

    `distribution`: balanced, power_law_A (loads drawn from x^-A) or tokens per expert, a list or {expert: tokens}, also as JSON text; one,
    or one per launch.
    """

    family: ClassVar[str] = "moe"

    num_tokens: Any
    hidden_size: Any
    inter_size: Any
    num_experts: Any
    topk: Any
    tp: Any = 1
    ep: Any = 1
    distribution: Any = "balanced"
    moe_pass: Any = "both"
    gated: Any = True
    block_m: Any = None
    block_n: Any = None
    block_k: Any = None
    group_m: Any = None
    num_warps: Any = None
    num_stages: Any = None
    dtype: str = "bf16"
    identity: str | None = None
    engine: str | None = None  # whose configuration a Triton kernel runs with where none is given; None: as if tuned

    def __post_init__(self) -> None:
        if not isinstance(self.distribution, str):
            object.__setattr__(self, "distribution", _written(self.distribution))

    def newest_identity(self, gpu: GpuSpec) -> str | None:
        """What the newest SGLang would run; data-centre Blackwell has kernels without a name of their own."""
        if gpu.target in FUSED_TARGETS:
            return None
        return "marlin" if self.dtype == "int4_wo" else "triton"

    def well_made(self, gpu: GpuSpec) -> "Moe":
        """The same work in tiles that suit it: what was configured, or is an engine's default, says nothing of how fast it can be."""
        identity = self.identity or self.newest_identity(gpu)
        unset: dict[str, Any] = dict.fromkeys((*CONFIGURATION, "engine"))
        return replace(self, **unset, identity="tuned" if identity == "triton" else self.identity)

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        problem = problem_of(self)
        how = _implementation(self.identity or self.newest_identity(gpu) or "grouped")
        stored = quantisation(self.dtype)
        held = _as_run(stored, how, self.engine)
        tile = _tiles(self, problem, how, gpu, held)
        return _task_set(problem, tile, how, held, stored, gpu, protocol)


KERNELS = (Moe,)


# ---- what is asked ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Checked sizes, columns (L, 1)."""

    num_tokens: Floats
    hidden: Floats
    inter: Floats  # of one expert on one rank
    num_experts: Floats
    topk: Floats
    ep: Floats
    distribution: NDArray[np.str_]  # (L,) or (1,)
    runs_w13: NDArray[np.bool_]
    runs_w2: NDArray[np.bool_]
    gate: Floats  # 2 where w13 holds gate and up, else 1


def problem_of(asked: Moe) -> Problem:
    texts = {"distribution": _texts(asked.distribution, "distribution"), "moe_pass": _texts(asked.moe_pass, "moe_pass")}
    gated = np.atleast_1d(flag(asked.gated, "gated")).reshape(-1)
    names = ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "tp", "ep")
    longest = max(len(gated), *(len(text) for text in texts.values()), *(np.size(getattr(asked, name)) for name in CONFIGURATION))
    size = sizes(**{name: getattr(asked, name) for name in names}, launches=_ones(longest))
    _require(size["num_experts"] <= MOST_EXPERTS, f"num_experts = {{num_experts}} must be at most {MOST_EXPERTS:,}", size)
    _require(size["topk"] <= size["num_experts"], "topk = {topk} exceeds num_experts = {num_experts}", size)
    _require(size["num_experts"] % size["ep"] == 0, "num_experts = {num_experts} must be a multiple of ep = {ep}", size)
    _require(size["inter_size"] % size["tp"] == 0, "inter_size = {inter_size} must be a multiple of tp = {tp}", size)
    for name in sorted(set(texts["moe_pass"].tolist())):
        if name not in PASSES:
            raise UnknownName.among("moe_pass", name, PASSES)
    passes = texts["moe_pass"][:, None]
    return Problem(
        num_tokens=size["num_tokens"],
        hidden=size["hidden_size"],
        inter=size["inter_size"] / size["tp"],
        num_experts=size["num_experts"],
        topk=size["topk"],
        ep=size["ep"],
        distribution=texts["distribution"],
        runs_w13=passes != "w2",
        runs_w2=passes != "w13",
        gate=np.where(gated, 2.0, 1.0)[:, None],
    )


def _ones(num_launches: int) -> Any:
    """A size that makes the others as many; a plain number will do for one launch."""
    return 1 if num_launches == 1 else np.ones(num_launches)


def _written(given: Any) -> Any:
    """Histograms as the JSON text they stand for, one or a list of them; anything else as it is."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, Mapping):
        return json.dumps({str(expert): tokens for expert, tokens in given.items()}, default=_as_json)
    if not isinstance(given, list | tuple):
        return given
    if given and all(isinstance(entry, int | float | np.number) for entry in given):
        return json.dumps(given, default=_as_json)
    return [_written(entry) for entry in given]


def _as_json(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _texts(raw: Any, name: str) -> NDArray[np.str_]:
    try:
        texts = np.atleast_1d(np.asarray(raw))
    except ValueError:  # lists of different lengths inside a list
        texts = np.empty(0)
    if texts.dtype.kind not in "UO" or texts.ndim != 1 or not texts.size:
        raise InvalidInput(f"{name} = {shown(raw)} must be a text, or a list of them")
    return texts.astype(np.str_)


def _require(holds: NDArray[np.bool_], sentence: str, size: dict[str, Floats]) -> None:
    if not holds.all():
        row = int(np.argmin(holds[:, 0]))
        where = f" (launch {row})" if len(holds) > 1 else ""
        raise InvalidInput(sentence.format(**{name: f"{values[row, 0]:.0f}" for name, values in size.items()}) + where)


def _as_run(stored: Quantisation, how: Implementation, engine: str | None) -> Quantisation:
    """The format that the kernel reads: SGLang widens MXFP4 weights when it loads them, where Triton's plain kernel runs them."""
    widened = engine == "sglang" and how is IMPLEMENTATIONS["triton"] and stored.name == "w4a16_mxfp4"
    return quantisation("bf16") if widened else stored


def _implementation(name: str) -> Implementation:
    if name not in IMPLEMENTATIONS:
        raise UnknownName.among("identity", name, IMPLEMENTATIONS)
    return IMPLEMENTATIONS[name]


# ---- tiles -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Arrays (1, V) of candidates, or (L, 1) where every launch has its own."""

    rows: Floats
    columns: Floats
    k_step: Floats
    stages: Floats
    names: tuple[str, ...]
    own_name: NDArray[np.str_] | None = None  # (L,) where every launch has its own


def _tiles(asked: Moe, problem: Problem, how: Implementation, gpu: GpuSpec, held: Quantisation) -> Tile:
    given = {name: getattr(asked, name) for name in CONFIGURATION}
    is_fused_moe = how is IMPLEMENTATIONS["triton"] and held.weight.bits >= 8  # narrower weights have kernels of their own
    is_open = all(value is None for value in given.values())
    if is_open and is_fused_moe and asked.engine in ENGINES:
        return _untuned(asked.engine, problem, gpu, held)
    ruled = _ruled(problem, how, held, asked.engine) if is_open and asked.engine in RULED else None
    if ruled is not None:
        return _of_rows(ruled, how)
    fixed = sizes(**{name: value for name, value in given.items() if value is not None}, launches=_ones(len(problem.num_tokens)))
    del fixed["launches"]
    rows, columns = fixed.get("block_m"), fixed.get("block_n")
    heights = (max(how.tile_rows),) if how is IMPLEMENTATIONS["cutlass"] and held.name in TALL_CUTLASS else how.tile_rows
    pairs = [(m, n) for m in (heights if rows is None else (0,)) for n in (how.tile_columns if columns is None else (0,))]
    tile = Tile(
        rows=np.array([[m for m, _ in pairs]], dtype=np.float64) if rows is None else rows,
        columns=np.array([[n for _, n in pairs]], dtype=np.float64) if columns is None else columns,
        k_step=fixed.get("block_k", np.array([[float(K_STEP)]])),
        stages=fixed.get("num_stages", np.array([[float(STAGES)]])),
        names=tuple(f"{m or 'given '}x{n or ' given'}" for m, n in pairs),
    )
    if rows is not None or columns is not None:
        _check_shared_memory(tile, gpu, held)
        return tile
    return _that_fit(tile, gpu, held)


def _ruled(problem: Problem, how: Implementation, held: Quantisation, engine: str | None) -> Floats | None:
    """Rows (L, 1) of the tile where a kernel takes them from the mean load: all tokens over the experts of one rank, whatever they got.

    TensorRT-LLM's fused kernel takes the next power of two (calculate_tile_tokens_dim), FlashInfer's launcher of it the smallest of its
    candidates, half of that; Marlin's wrapper (fused_marlin_moe) the first tile that is less than nine tenths full.
    """
    mean = problem.num_tokens * problem.topk / (problem.num_experts / problem.ep)
    if how is IMPLEMENTATIONS["marlin"]:
        return np.select([mean < MARLIN_FILLED * rows for rows in MARLIN_ROWS], MARLIN_ROWS, MARLIN_ROWS[-1]).astype(np.float64)
    if how is not IMPLEMENTATIONS["grouped"]:
        return None
    next_power = 2.0 ** np.ceil(np.log2(np.maximum(mean, 1.0)))
    chosen = np.clip(next_power, LEAST_GROUPED_ROWS, MOST_GROUPED_ROWS.get(held.name, 128.0))
    return np.asarray(chosen if engine == "trtllm" else np.maximum(chosen / 2.0, LEAST_GROUPED_ROWS))


def _of_rows(rows: Floats, how: Implementation) -> Tile:
    """Candidates of these rows, whatever columns suit them."""
    columns = np.array([how.tile_columns], dtype=np.float64)
    height = f"{rows.item():.0f}" if rows.size == 1 else "by load "
    names = tuple(f"{height}x{width:.0f}" for width in how.tile_columns)
    return Tile(rows=rows, columns=columns, k_step=np.array([[float(K_STEP)]]), stages=np.array([[float(STAGES)]]), names=names)


def _that_fit(tile: Tile, gpu: GpuSpec, held: Quantisation) -> Tile:
    """Candidates that shared memory has room for, for all launches; all of them where it has room for none."""
    fits = np.all(_shared_bytes(tile, held) <= (gpu.shared_bytes_per_block or np.inf), axis=0)
    if fits.all() or not fits.any():
        return tile
    names = tuple(tile.names[place] for place in np.flatnonzero(fits))
    return replace(tile, rows=tile.rows[:, fits], columns=tile.columns[:, fits], names=names)


def _untuned(engine: str, problem: Problem, gpu: GpuSpec, held: Quantisation) -> Tile:
    """The engine's default for each launch."""
    on_rank = problem.num_experts / problem.ep
    chosen = default_configurations(engine, problem.num_tokens, on_rank, held.name, gpu.shared_bytes_per_block)
    rows, columns, k_step, stages = (chosen[name].astype(np.float64) for name in ("block_m", "block_n", "block_k", "num_stages"))
    own_name = np.array([f"{m:.0f}x{n:.0f}" for m, n in zip(rows[:, 0], columns[:, 0], strict=True)])
    return Tile(rows=rows, columns=columns, k_step=k_step, stages=stages, names=("default",), own_name=own_name)


def _shared_bytes(tile: Tile, held: Quantisation) -> Floats:
    step = tile.rows * held.activation.bytes + tile.columns * held.weight.bytes
    return np.asarray(step * tile.k_step * np.maximum(tile.stages - 1, 1))


def _check_shared_memory(tile: Tile, gpu: GpuSpec, held: Quantisation) -> None:
    needed = _shared_bytes(tile, held)
    if gpu.shared_bytes_per_block is None or (needed <= gpu.shared_bytes_per_block).all():
        return
    row = np.unravel_index(int(np.argmax(needed)), needed.shape)
    m, n, k = (np.broadcast_to(side, needed.shape)[row] for side in (tile.rows, tile.columns, tile.k_step))
    raise InvalidInput(
        f"tile = {m:.0f}x{n:.0f}x{k:.0f} needs {needed[row]:,.0f} bytes of shared memory; {gpu.id} has {gpu.shared_bytes_per_block:,}"
    )


# ---- tokens per expert -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the experts of the busiest rank got; expectations where the distribution is random."""

    pairs: Floats  # (L, 1) of a token and an expert
    active_experts: Floats  # (L, 1) with at least one token
    row_tiles: Floats  # (L, V) tiles along the tokens, padding included


def rank_load(problem: Problem, tile_rows: Floats) -> Load:
    """Loads of the busiest rank, worked out once for each different histogram."""
    if len(problem.num_tokens) == 1:
        return _load_of(str(problem.distribution[0]), problem.num_tokens, problem.num_experts, problem.topk, problem.ep, tile_rows)
    keys = [problem.num_tokens, problem.num_experts, problem.topk, problem.ep, *([tile_rows] if len(tile_rows) > 1 else [])]
    kinds, kind = np.unique(problem.distribution, return_inverse=True)
    first, where = _distinct([np.broadcast_to(kind, len(problem.num_tokens)), *(key[:, 0] for key in keys)])
    tokens, experts, topk, ep = (key[first] for key in keys[:4])
    kind_of = np.broadcast_to(kind, len(problem.num_tokens))[first]
    rows = tile_rows[first] if len(tile_rows) > 1 else tile_rows
    pairs, active = np.empty((2, len(first), 1))
    row_tiles = np.empty((len(first), rows.shape[1]))
    shapes, group = np.unique(np.stack([kind_of, experts[:, 0], ep[:, 0]], axis=1), axis=0, return_inverse=True)
    for index, (code, _, _) in enumerate(shapes):
        some = np.flatnonzero(group.reshape(-1) == index)
        of_some = rows[some] if len(rows) > 1 else rows
        load = _load_of(str(kinds[int(code)]), tokens[some], experts[some], topk[some], ep[some], of_some)
        pairs[some], active[some], row_tiles[some] = load.pairs, load.active_experts, load.row_tiles
    return Load(pairs=pairs[where], active_experts=active[where], row_tiles=row_tiles[where])


def _load_of(distribution: str, tokens: Floats, experts: Floats, topk: Floats, ep: Floats, rows: Floats) -> Load:
    """Launches (L, 1) that share their distribution and their numbers of experts and ranks."""
    loads_LDE = busiest_rank(distribution, tokens[:, 0], int(experts[0, 0]), topk[:, 0], int(ep[0, 0]))
    draws = loads_LDE.shape[1]
    flat = loads_LDE.reshape(len(tokens), -1)
    return Load(
        pairs=flat.sum(axis=1, keepdims=True) / draws,
        active_experts=np.count_nonzero(flat > 0, axis=1, keepdims=True) / draws,
        row_tiles=_row_tiles(flat, rows) / draws,
    )


def _row_tiles(loads_LE: Floats, rows: Floats) -> Floats:
    """Tiles along the tokens (L, V): `rows` is one row of V candidates for all launches, or a column with each launch's own."""
    if len(rows) > 1:
        return np.asarray(np.ceil(loads_LE / rows).sum(axis=1, keepdims=True))
    heights = sorted(set(rows[0].tolist()))
    tiles = np.stack([np.ceil(loads_LE / height).sum(axis=1) for height in heights], axis=1)
    return tiles[:, [heights.index(height) for height in rows[0].tolist()]]


def _distinct(columns: list[NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of the first of each different row, and which of them every row is."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        found, number = np.unique(values, return_inverse=True)
        if len(found) > 1:
            code = np.unique(code * len(found) + number.reshape(-1), return_inverse=True)[1].reshape(-1)
    _, first, where = np.unique(code, return_index=True, return_inverse=True)
    return first, where.reshape(-1)


# ---- work ------------------------------------------------------------------------------------------------------------------------------


def _task_set(
    problem: Problem, tile: Tile, how: Implementation, held: Quantisation, stored: Quantisation, gpu: GpuSpec, protocol: Protocol
) -> TaskSet:
    using, fitted = constants(), moe_constants()
    on_rank = rank_load(problem, tile.rows)
    widths = np.where(problem.runs_w13, problem.gate * problem.inter, 0.0), np.where(problem.runs_w2, problem.hidden, 0.0)
    depths = problem.hidden, problem.inter

    tiles_13, tiles_2 = (on_rank.row_tiles * ceil_div(width, tile.columns) for width in widths)
    k_13, k_2 = (ceil_div(depth, tile.k_step) * tile.k_step for depth in depths)
    num_tasks = tiles_13 + tiles_2
    mean_k = (tiles_13 * k_13 + tiles_2 * k_2) / num_tasks
    waves_13, waves_2 = np.ceil(tiles_13 / gpu.num_sms), np.ceil(tiles_2 / gpu.num_sms)
    resident = _resident(tile, held, gpu)

    widening_flop = tile.columns * mean_k * _widening_flop(how, held)
    widening_clocks = widening_flop / gpu.vector_flop_per_clock_per_sm["fp32"]  # by the warps that multiply, before they can

    matrix_elements = widths[0] * depths[0] + widths[1] * depths[1]
    weight_bytes = on_rank.active_experts * matrix_elements * held.weight.bytes
    moved = _traffic(problem, on_rank.pairs, how, held)
    least_bytes = weight_bytes * (stored.weight.bytes / held.weight.bytes) + moved.tokens_at_least + moved.result_at_least
    total = weight_bytes + moved.by_gemms + moved.by_small_kernels
    found = np.zeros_like(total) if protocol.cache == "cold" else in_turn_fraction(total, gpu)
    kept = hit_fraction(0.5 * (moved.by_gemms + moved.by_small_kernels), gpu)  # what one kernel leaves in L2 for the next
    return TaskSet(
        matrix_dtype=held.compute.name,
        num_tasks=num_tasks,
        least_flop=2.0 * on_rank.pairs * matrix_elements,
        least_bytes=least_from_dram(least_bytes, gpu, protocol.cache),
        matrix_flop=2.0 * tile.rows * tile.columns * mean_k * (legacy_stretch(gpu) if how.issues_mma_sync else 1.0),
        vector_flop=0.0 if how.issues_mma_sync else widening_flop,
        l2_bytes=(tile.rows * held.activation.bytes + tile.columns * held.weight.bytes) * mean_k,
        l2_bytes_per_clock_per_sm=None if how.multicasts else using.unicast_bytes_per_clock_per_sm,
        exposed_clocks=mean_k / tile.k_step * fitted.step_clocks / resident + (widening_clocks if how.issues_mma_sync else 0.0),
        dram_bytes=(weight_bytes + moved.tokens_at_least) * (1 - found) + (moved.by_gemms - moved.tokens_at_least) * (1 - kept),
        busiest_tasks=(waves_13 * k_13 + waves_2 * k_2) / mean_k,
        rounds=np.ceil(waves_13 / resident) + np.ceil(waves_2 / resident),
        resident=resident,
        fixed_s=_small_kernels_s(problem, on_rank.active_experts, moved, kept, how, held, gpu, using, fitted),
        variants=tile.names,
        own_variant=tile.own_name,
    )


def _widening_flop(how: Implementation, held: Quantisation) -> float:
    """Vector work per weight, where it is computed with in 16 bits and stored in fewer."""
    if not held.weight.bits < held.compute.bits == 16:
        return 0.0
    return MARLIN_INTEGER_FLOP if how is IMPLEMENTATIONS["marlin"] and held.name == "int4_wo" else WIDENING_FLOP


def _resident(tile: Tile, held: Quantisation, gpu: GpuSpec) -> Floats:
    """Tasks an SM holds at once, as shared memory allows, at most 4."""
    shared = gpu.shared_bytes_per_sm or gpu.shared_bytes_per_block or 65536
    return np.asarray(np.clip(np.floor(shared / _shared_bytes(tile, held)), 1.0, 4.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of activations, columns (L, 1)."""

    by_gemms: Floats
    by_small_kernels: Floats
    quantised: Floats  # read and written by quantisation kernels, beside by_small_kernels
    tokens_at_least: Floats
    result_at_least: Floats


def _traffic(problem: Problem, pairs: Floats, how: Implementation, held: Quantisation) -> Traffic:
    both = problem.runs_w13 & problem.runs_w2
    act, out = held.activation.bytes, 2.0
    tokens = np.minimum(problem.num_tokens, pairs)
    rows = problem.num_tokens * problem.topk if how.keeps_foreign_rows else pairs
    first_width = problem.inter * (1.0 if how.fuses_activation else problem.gate)
    token_bytes = np.where(problem.runs_w13, tokens * problem.hidden * act, pairs * problem.inter * act)
    result_bytes = np.where(problem.runs_w2, pairs * problem.hidden * out, pairs * problem.gate * problem.inter * out)
    first, activated, second = rows * first_width * out, rows * problem.inter * act, rows * problem.hidden * out
    small = problem.num_tokens * problem.hidden * out + second
    if not how.fuses_activation:
        small = small + first + activated
    if how.copies_tokens:
        small = small + (problem.num_tokens * out + pairs * act) * problem.hidden
    quantised = (problem.num_tokens * problem.hidden + rows * problem.inter) * (out + act)
    return Traffic(
        by_gemms=np.where(both, token_bytes + first + activated + second, token_bytes + result_bytes),
        by_small_kernels=np.where(both, small, 0.0),
        quantised=np.where(both & _quantises_apart(how, held), quantised, 0.0),
        tokens_at_least=token_bytes,
        result_at_least=np.where(both, tokens * problem.hidden * out, result_bytes),
    )


def _quantises_apart(how: Implementation, held: Quantisation) -> bool:
    """Whether kernels of their own quantise activations; a fused first GEMM does it itself unless scales span blocks of its output."""
    return held.activation.bytes < 2 and (not how.fuses_activation or held.name == "fp8_block")


def _small_kernels_s(
    problem: Problem,
    active_experts: Floats,
    moved: Traffic,
    kept: Floats,
    how: Implementation,
    held: Quantisation,
    gpu: GpuSpec,
    using: Constants,
    fitted: MoeConstants,
) -> Floats:
    """Kernels beside the first GEMM: their launches, their traffic through L2 or DRAM, the sorting of tokens by expert, and what every
    expert's product needs to be told."""
    num_launches = how.num_small_kernels + (how.num_quantise_kernels if _quantises_apart(how, held) else 0)
    second_s = using.launch_cycles / gpu.boost_clock_hz + using.launch_s + using.drain_s
    dram_per_s = gpu.dram_data_bytes_per_s * using.dram_fraction
    l2_per_s = gpu.num_sms * l2_bytes_per_clock(gpu, using) * gpu.boost_clock_hz
    stream_s = moved.by_small_kernels * ((1 - kept) / dram_per_s + kept / l2_per_s)
    quantise_s = moved.quantised / (dram_per_s * (fitted.quantise_share if how.fuses_activation else 1.0))
    route_s = problem.num_tokens * problem.topk * fitted.route_cycles / (gpu.num_sms * gpu.boost_clock_hz)
    steps = how.steps_per_expert * (3 if held.name in PADS_SCALES else 1)  # pointers; and scales, where they begin and where they lie
    experts_s = active_experts * steps * fitted.step_clocks / gpu.boost_clock_hz
    spent = num_launches * fitted.small_kernel_s + second_s + stream_s + quantise_s + route_s + experts_s
    return np.where(problem.runs_w13 & problem.runs_w2, spent, 0.0)
