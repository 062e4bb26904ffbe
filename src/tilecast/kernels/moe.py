"""Mixture of experts: two grouped GEMM passes over the tokens each expert got, and the small kernels that route, activate and reduce.

An expert's tokens are padded to whole tiles, so the number of tasks follows the histogram of tokens per expert, not their sum; only experts
with tokens read their weights. Under expert parallelism the busiest rank is priced. Shapes: L launches, V tiles, E experts, D draws.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilecast.dtypes import Quantisation, quantisation
from tilecast.execution import Constants, Protocol, TaskSet, constants
from tilecast.execution.analytic import l2_bytes_per_clock
from tilecast.execution.cache import hit_fraction, in_turn_fraction, least_from_dram
from tilecast.execution.fitted import load
from tilecast.execution.tasks import Floats, ceil_div
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import Doublings
from tilecast.kernels.expert_loads import busiest_rank
from tilecast.kernels.matrix_units import legacy_stretch
from tilecast.kernels.moe_defaults import CONFIGURATION
from tilecast.kernels.moe_problem import Problem, problem_of, written
from tilecast.kernels.moe_tiles import IMPLEMENTATIONS, Implementation, Tile, as_run, implementation, in_engine, shared_bytes, tiles_of

FUSED_TARGETS = ("sm_100", "sm_103")  # where engines have a fused grouped kernel
WIDENING_FLOP = 8.0  # vector work per weight stored narrower than the 16 bits it is computed with: unpack, convert, scale, put back
MARLIN_INTEGER_FLOP = 5.0  # the same where an instruction unpacks or scales two integers at once, as Marlin's do
# Engine, kernel and format whose ranks multiply the pairs of all others too, whatever the number of ranks: so their rows say.
DO_FOREIGN_PAIRS = (("trtllm", "triton", "fp8_block"), ("sglang", "marlin", "w4a16_mxfp4"))
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moe:
    """One rank's MoE layer. `inter_size` is one expert's, before tensor parallelism; w13 is twice as wide unless not `gated`.

    `distribution`: balanced, power_law_A (loads drawn from x^-A) or tokens per expert, a list or {expert: tokens}, also as JSON text; one,
    or one per launch.
    """

    family: ClassVar[str] = "moe"
    doublings: ClassVar[Doublings] = (("num_tokens",), ("hidden_size",), ("inter_size",), ("topk",), ("num_experts",))
    known_by: ClassVar[tuple[str, ...]] = ("num_experts", "topk", "hidden_size", "inter_size")  # rows have those of some models
    doubles_flop: ClassVar[bool] = True  # every one of these does, but for the number of experts

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
    engine: str | None = None  # whose configuration a kernel runs with where none is given; None: as if tuned

    def __post_init__(self) -> None:
        if not isinstance(self.distribution, str):
            object.__setattr__(self, "distribution", written(self.distribution))

    @property
    def has_sizes(self) -> bool:
        """Whether its tokens are dealt out by a law, for any number of them, and not named expert by expert."""
        texts = [self.distribution] if isinstance(self.distribution, str) else self.distribution
        return not any(str(text).lstrip().startswith(("[", "{")) for text in texts)

    def may_double(self, name: str, is_learned: bool) -> Any:
        """Which launches have as much work at least when this doubles alone: a power law deals tokens out anew to more experts."""
        return np.ravel(self.distribution) == "balanced" if name == "num_experts" else np.ones(1, bool)

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
        stored = quantisation(self.dtype)
        how = in_engine(implementation(self.identity or self.newest_identity(gpu) or "grouped"), stored, self.engine, gpu)
        held = as_run(stored, how, self.engine)
        tile = tiles_of(self, problem, how, gpu, held)
        on_rank = rank_load(problem, tile.rows)
        if (self.engine, self.identity, self.dtype) in DO_FOREIGN_PAIRS:
            on_rank = with_foreign_pairs(on_rank, problem, tile.rows)
        return _task_set(problem, on_rank, tile, how, held, stored, gpu, protocol)


KERNELS = (Moe,)


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


def with_foreign_pairs(load: Load, problem: Problem, tile_rows: Floats) -> Load:
    """The same where pairs of other ranks' experts are multiplied too, with the weights of one expert of this rank."""
    foreign = np.maximum(problem.num_tokens * problem.topk - load.pairs, 0.0)
    return replace(load, pairs=load.pairs + foreign, row_tiles=load.row_tiles + ceil_div(foreign, tile_rows))


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
    problem: Problem, on_rank: Load, tile: Tile, how: Implementation, held: Quantisation, stored: Quantisation, gpu: GpuSpec,
    protocol: Protocol,
) -> TaskSet:  # fmt: skip
    using, fitted = constants(), moe_constants()
    widths = np.where(problem.runs_w13, problem.gate * problem.inter, 0.0), np.where(problem.runs_w2, problem.hidden, 0.0)
    depths = problem.hidden, problem.inter

    tiles_13, tiles_2 = (on_rank.row_tiles * ceil_div(width, tile.columns) for width in widths)
    k_13, k_2 = (ceil_div(depth, tile.k_step) * tile.k_step for depth in depths)
    num_tasks = tiles_13 + tiles_2
    mean_k = (tiles_13 * k_13 + tiles_2 * k_2) / num_tasks
    waves_13, waves_2 = np.ceil(tiles_13 / gpu.num_sms), np.ceil(tiles_2 / gpu.num_sms)
    resident = _resident(tile, held, gpu)

    widening_flop = tile.columns * mean_k * _widening_flop(how, held)
    widening_clocks = widening_flop / gpu.vector_flop_per_clock_per_sm["fp32"]
    waiting_clocks = mean_k / tile.k_step * fitted.step_clocks / resident
    # Marlin's warps widen before they multiply. Where bulk copies need no warps, these widen while loads are on their way.
    exposed_clocks = waiting_clocks
    if how.issues_mma_sync:
        exposed_clocks = waiting_clocks + widening_clocks
    elif gpu.multicasts:
        exposed_clocks = np.maximum(waiting_clocks - widening_clocks, 0.0)

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
        exposed_clocks=exposed_clocks,
        dram_bytes=(weight_bytes + moved.tokens_at_least) * (1 - found) + (moved.by_gemms - moved.tokens_at_least) * (1 - kept),
        busiest_tasks=(waves_13 * k_13 + waves_2 * k_2) / mean_k,
        rounds=np.ceil(waves_13 / resident) + np.ceil(waves_2 / resident),
        resident=resident,
        fixed_s=_small_kernels_s(problem, on_rank.active_experts, moved, kept, how, held, gpu, using, fitted),
        host_calls=np.where(problem.runs_w13 & problem.runs_w2, 2.0 + _num_small_kernels(how, held), 1.0),
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
    return np.asarray(np.clip(np.floor(shared / shared_bytes(tile, held)), 1.0, 4.0))


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


def _num_small_kernels(how: Implementation, held: Quantisation) -> int:
    """Kernels beside the two GEMMs."""
    return how.num_small_kernels + (how.num_quantise_kernels if _quantises_apart(how, held) else 0)


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
    second_s = using.launch_cycles / gpu.boost_clock_hz + using.launch_s + using.drain_s
    dram_per_s = gpu.dram_data_bytes_per_s * using.dram_fraction
    l2_per_s = gpu.num_sms * l2_bytes_per_clock(gpu, using) * gpu.boost_clock_hz
    stream_s = moved.by_small_kernels * ((1 - kept) / dram_per_s + kept / l2_per_s)
    quantise_s = moved.quantised / (dram_per_s * (fitted.quantise_share if how.fuses_activation else 1.0))
    route_s = problem.num_tokens * problem.topk * fitted.route_cycles / (gpu.num_sms * gpu.boost_clock_hz)
    steps = how.steps_per_expert * (3 if held.name in PADS_SCALES else 1)  # pointers; and scales, where they begin and where they lie
    experts_s = active_experts * steps * fitted.step_clocks / gpu.boost_clock_hz
    spent = _num_small_kernels(how, held) * fitted.small_kernel_s + second_s + stream_s + quantise_s + route_s + experts_s
    return np.where(problem.runs_w13 & problem.runs_w2, spent, 0.0)
