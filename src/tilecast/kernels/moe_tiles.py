"""How each implementation of experts goes about them, and the tiles it takes: given, an engine's default, its rule, or what suits."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilecast.dtypes import Quantisation, quantisation
from tilecast.errors import InvalidInput, UnknownName
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import sizes
from tilecast.kernels.moe_defaults import CONFIGURATION, ENGINES, default_configurations
from tilecast.kernels.moe_problem import Problem, ones

if TYPE_CHECKING:
    from tilecast.kernels.moe import Moe

K_STEP = 64  # a main loop's step along K where none is given
STAGES = 3  # steps in flight where none is given; all but the one computed on lie in shared memory
MARLIN_ROWS = (8, 16, 32, 48, 64)
MARLIN_FILLED = 0.9  # of a tile: with fewer tokens per expert it is tall enough
LEAST_GROUPED_ROWS, MOST_GROUPED_ROWS = 8.0, {"w4a16_mxfp4": 64.0, "nvfp4": 256.0, "w4a8_mxfp4_mxfp8": 256.0}  # 128 in other formats
RULED = ("sglang", "vllm", "trtllm")  # engines whose fused kernels choose their rows by the mean load
TALL_CUTLASS = ("nvfp4", "w4a8_mxfp4_mxfp8")  # no tile of fewer than 128 rows
# FlashInfer's CUTLASS kernels, which SGLang and vLLM call, run with the first of their candidates until somebody tunes them; the measured
# calls are untuned. TensorRT-LLM tunes the same kernels before it measures.
UNTUNED = ("sglang", "vllm")
FIRST_CANDIDATES = {  # the target's first digits and the bits of an activation -> rows, columns
    ("sm_9", 16): (128, 16), ("sm_9", 8): (128, 16),
    ("sm_10", 16): (128, 128), ("sm_10", 8): (128, 128), ("sm_100", 4): (128, 64), ("sm_103", 4): (128, 128),
    ("sm_12", 16): (32, 128), ("sm_12", 8): (16, 256), ("sm_12", 4): (128, 128),
}  # fmt: skip
CANDIDATE_BYTES = 128.0  # of a step along K
AMPERE_STAGES = 2.0  # of its kernels that copy as on Ampere; the others take as many as shared memory holds


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


# OpenAI's Triton kernels for weights of 4 bits (GPT-OSS): top-k, two kernels for a matrix of bits and two for the routing from it, and a
# reduction. TensorRT-LLM's operator activates in a kernel of its own and has a row for every pair, of other ranks too, as its rows show.
OPENAI_ROWS = (16, 32, 64, 128)
_OPENAI = Implementation(
    num_small_kernels=6, num_quantise_kernels=0, copies_tokens=False, fuses_activation=True, keeps_foreign_rows=False, multicasts=False,
    tile_rows=OPENAI_ROWS, tile_columns=(256,),
)  # fmt: skip
OPENAI = {"vllm": _OPENAI, "trtllm": replace(_OPENAI, fuses_activation=False, keeps_foreign_rows=True)}


def in_engine(how: Implementation, stored: Quantisation, engine: str | None, gpu: GpuSpec) -> Implementation:
    """How an engine's own kernel of that name goes about it: Triton's for weights of 4 bits is OpenAI's in vLLM and TensorRT-LLM."""
    is_openai = how is IMPLEMENTATIONS["triton"] and stored.weight.bits < 8 and gpu.vendor != "intel"
    return OPENAI.get(engine or "", how) if is_openai else how


def as_run(stored: Quantisation, how: Implementation, engine: str | None) -> Quantisation:
    """The format that the kernel reads: SGLang widens MXFP4 weights when it loads them, where Triton's plain kernel runs them."""
    widened = engine == "sglang" and how is IMPLEMENTATIONS["triton"] and stored.name == "w4a16_mxfp4"
    return quantisation("bf16") if widened else stored


def implementation(name: str) -> Implementation:
    if name not in IMPLEMENTATIONS:
        raise UnknownName.among("identity", name, IMPLEMENTATIONS)
    return IMPLEMENTATIONS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Arrays (1, V) of candidates, or (L, 1) where every launch has its own."""

    rows: Floats
    columns: Floats
    k_step: Floats
    stages: Floats
    names: tuple[str, ...]
    own_name: NDArray[np.str_] | None = None  # (L,) where every launch has its own, (L, V) where its candidates are its own


def tiles_of(asked: "Moe", problem: Problem, how: Implementation, gpu: GpuSpec, held: Quantisation) -> Tile:
    given = {name: getattr(asked, name) for name in CONFIGURATION}
    is_fused_moe = how is IMPLEMENTATIONS["triton"] and held.weight.bits >= 8  # narrower weights have kernels of their own
    is_open = all(value is None for value in given.values())
    if is_open and is_fused_moe and asked.engine in ENGINES:
        return _untuned(asked.engine, problem, gpu, held)
    first = _first_candidate(asked, how, gpu, held) if is_open else None
    if first is not None:
        return first
    ruled = _ruled(problem, how, held, asked.engine) if is_open and asked.engine in RULED else None
    if ruled is not None:
        return _of_rows(ruled, how)
    fixed = sizes(**{name: value for name, value in given.items() if value is not None}, launches=ones(len(problem.num_tokens)))
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
    candidates, half of that; OpenAI's kernels (opt_flags) the next power of two, of experts everywhere; Marlin's wrapper
    (fused_marlin_moe) the first tile that is less than nine tenths full.
    """
    mean = problem.num_tokens * problem.topk / (problem.num_experts / problem.ep)
    if how is IMPLEMENTATIONS["marlin"]:
        return np.select([mean < MARLIN_FILLED * rows for rows in MARLIN_ROWS], MARLIN_ROWS, MARLIN_ROWS[-1]).astype(np.float64)
    if how in OPENAI.values():  # experts of all ranks
        return np.asarray(np.clip(_next_power(mean / problem.ep), OPENAI_ROWS[0], OPENAI_ROWS[-1]))
    if how is not IMPLEMENTATIONS["grouped"]:
        return None
    next_power = _next_power(mean)
    chosen = np.clip(next_power, LEAST_GROUPED_ROWS, MOST_GROUPED_ROWS.get(held.name, 128.0))
    return np.asarray(chosen if engine == "trtllm" else np.maximum(chosen / 2.0, LEAST_GROUPED_ROWS))


def _next_power(count: Floats) -> Floats:
    return np.asarray(2.0 ** np.ceil(np.log2(np.maximum(count, 1.0))))


def _of_rows(rows: Floats, how: Implementation) -> Tile:
    """Candidates of these rows, whatever columns suit them."""
    columns = np.array([how.tile_columns], dtype=np.float64)
    heights, of_launch = np.unique(rows[:, 0], return_inverse=True)
    names = np.array([[f"{height:.0f}x{width}" for width in how.tile_columns] for height in heights])
    k_step, stages = np.array([[float(K_STEP)]]), np.array([[float(STAGES)]])
    return Tile(rows=rows, columns=columns, k_step=k_step, stages=stages, names=tuple(names[0].tolist()), own_name=names[of_launch])


def _first_candidate(asked: "Moe", how: Implementation, gpu: GpuSpec, held: Quantisation) -> Tile | None:
    """What FlashInfer's CUTLASS kernels run with untuned; None for all others, such as those for scales of blocks or narrower weights."""
    bits = held.activation.bits
    found = [size for (target, width), size in FIRST_CANDIDATES.items() if gpu.target.startswith(target) and width == bits]
    is_plain = held.weight.bits == bits and held.name != "fp8_block"
    if not found or not is_plain or how is not IMPLEMENTATIONS["cutlass"] or asked.engine not in UNTUNED:
        return None
    rows, columns = found[0]
    k_step = CANDIDATE_BYTES * 8.0 / bits
    step_bytes = (rows * held.activation.bytes + columns * held.weight.bytes) * k_step
    in_flight = 1.0 + (gpu.shared_bytes_per_block or 0) // step_bytes  # so one task fills an SM
    stages = in_flight if gpu.multicasts or bits < 8 else AMPERE_STAGES
    sides = [np.array([[float(side)]]) for side in (rows, columns, k_step, stages)]
    return Tile(rows=sides[0], columns=sides[1], k_step=sides[2], stages=sides[3], names=(f"{rows}x{columns}",))


def _that_fit(tile: Tile, gpu: GpuSpec, held: Quantisation) -> Tile:
    """Candidates that shared memory has room for, for all launches; all of them where it has room for none."""
    fits = np.all(shared_bytes(tile, held) <= (gpu.shared_bytes_per_block or np.inf), axis=0)
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


def shared_bytes(tile: Tile, held: Quantisation) -> Floats:
    step = tile.rows * held.activation.bytes + tile.columns * held.weight.bytes
    return np.asarray(step * tile.k_step * np.maximum(tile.stages - 1, 1))


def _check_shared_memory(tile: Tile, gpu: GpuSpec, held: Quantisation) -> None:
    needed = shared_bytes(tile, held)
    if gpu.shared_bytes_per_block is None or (needed <= gpu.shared_bytes_per_block).all():
        return
    row = np.unravel_index(int(np.argmax(needed)), needed.shape)
    m, n, k = (np.broadcast_to(side, needed.shape)[row] for side in (tile.rows, tile.columns, tile.k_step))
    raise InvalidInput(
        f"tile = {m:.0f}x{n:.0f}x{k:.0f} needs {needed[row]:,.0f} bytes of shared memory; {gpu.id} has {gpu.shared_bytes_per_block:,}"
    )
