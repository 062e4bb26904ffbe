"""Dense and batched GEMM: one task per output tile, K whole or split; the tile is the cheapest of the architecture's candidates.

A library picks its tile by a heuristic over the tiles it was compiled for. We price a small set the same way, so a new GPU needs no table:
tall and wide tiles reuse operands best, small ones fill the machine, split-K fills it when even small tiles do not.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tilecast.dtypes import Quantisation, quantisation
from tilecast.errors import InvalidInput, UnknownName, shown
from tilecast.execution import Protocol, TaskSet, constants
from tilecast.execution.analytic import l2_bytes_per_clock, launch_seconds
from tilecast.execution.arithmetic import maximum, where
from tilecast.execution.cache import from_dram, hit_fraction, least_from_dram
from tilecast.execution.fitted import Constants
from tilecast.execution.tasks import Floats, Numbers, ceil_div
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import Doublings, count, flag, launch_sizes

# Output tiles (rows, columns) that libraries ship. Tensor cores take 16 rows at the least; SIMT kernels tile for registers.
TENSOR_TILES = ((16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (128, 256), (256, 128))
VECTOR_TILES = ((32, 32), (32, 128), (64, 64), (128, 64), (64, 128), (128, 128))
# Batched FP32 products run in one or a few kernels, whatever their shape, and never split K: so cuBLAS 12 ran 87,000 shapes on P4, P100,
# V100, T4 and A100. A head of 64 columns fills half of Ampere's only tile.
BATCHED_TILES = {
    **dict.fromkeys(("pascal",), ((64, 128),)),
    **dict.fromkeys(("volta",), ((64, 64), (32, 128), (128, 32))),
    **dict.fromkeys(("turing",), ((64, 64), (64, 128), (32, 128), (128, 32))),
    **dict.fromkeys(("ampere", "ada"), ((128, 128),)),
}
# Kernels that come with few tiles and never split K: a thin product leaves most of the machine idle.
OWN_TILES = {
    "scaled_mm": ((128, 128),),  # one tile for every shape
    "deepgemm": ((64, 64), (64, 128), (128, 128)),
    "cutlass": ((64, 64), (64, 128), (128, 128), (128, 256)),
}
FROM_CUBLAS = (None, "cublas")
IDENTITIES = ("cublas", "scaled_mm", "deepgemm", "triton", "cutlass")
NEWEST_SGLANG = {
    **dict.fromkeys(("fp64", "fp32", "tf32", "fp16", "bf16"), "cublas"),
    **dict.fromkeys(("fp8", "fp8_static", "nvfp4", "mxfp4", "int8"), "cutlass"),
    "fp8_block": "deepgemm",
}
DEEPGEMM_TARGETS = ("sm_90", "sm_100", "sm_103")  # what DeepGEMM is written for
K_STEP = {True: 64, False: 16}  # a main loop's step along K, on tensor cores or not
NEVER = 1e3  # times the work of a kernel that the library does not take
SPLIT, BATCHED = " split-K", " batched"  # kinds of kernel, as a variant's name ends
# TensorRT-LLM's fp8 call has one scale for the whole matrix and finds it first: kernels, and bytes read of an element. Its rows are 7 to
# 8 us longer than SGLang's of the same small product, whatever its sizes.
SCALE_KERNELS, SCALE_BYTES = 3.0, 4.0
LEAST_SPLIT_K = 256  # a split leaves at least this much of K to each part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gemm:
    """C[m, n] = A[m, k] B[k, n], `batch` times; k is summed. dtype names the quantisation; fp32 means TF32 off."""

    family: ClassVar[str] = "gemm"
    doublings: ClassVar[Doublings] = (("m",), ("n",), ("k",), ("batch",))
    guessed_from: ClassVar[int] = 1
    doubles_flop: ClassVar[bool] = True  # every size does
    physics_grows: ClassVar[bool] = True  # with every one, of launches of one kernel

    m: Any
    n: Any
    k: Any
    batch: Any = 1
    bias: Any = False
    dtype: str = "bf16"
    identity: str | None = None
    tile: tuple[int, int] | str | None = None  # fix the tile instead of choosing
    split: int | None = None
    engine: str | None = None  # whose call surrounds the product; None: SGLang's

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(m=self.m, n=self.n, k=self.k, batch=self.batch)
        m, n, k, batch = size["m"], size["n"], size["k"], size["batch"]
        runs = _library(gpu, self.dtype, self.identity, self._tile(), count(self.split, "split"), _any(batch > 1))
        num_tasks = output_tiles = ceil_div(m, runs.rows) * ceil_div(n, runs.columns) * batch
        split: Numbers = float(self.split or 1)
        fewest_tiles = output_tiles.item(output_tiles.argmin())
        if runs.may_split and 2 * fewest_tiles <= gpu.num_sms:  # else no tile leaves SMs for a second part
            room = np.minimum(np.floor(gpu.num_sms / output_tiles), k // LEAST_SPLIT_K)
            split = np.maximum(room * runs.splits, 1.0)
        fixed_s = self._quantise_s(size, gpu, protocol)
        if isinstance(split, np.ndarray) or split > 1.0:
            num_tasks = output_tiles * split
            sums_s = batch * m * n * 8.0 / runs.l2_bytes_per_s  # of one part: fp32, written and read again
            fixed_s = where(split > 1, fixed_s + runs.launch_s + split * sums_s, fixed_s)
        k_steps = ceil_div(k, split * runs.k_step)

        a_bytes, b_bytes = batch * m * k * runs.activation_bytes, batch * n * k * runs.weight_bytes
        c_bytes = (batch * m + flag(self.bias, "bias")) * n * runs.result_bytes
        others_bytes = a_bytes + c_bytes
        operand_bytes = b_bytes + others_bytes
        return TaskSet(
            matrix_dtype=runs.matrix_dtype,
            num_tasks=num_tasks,
            least_flop=2.0 * batch * m * n * k,
            least_bytes=least_from_dram(operand_bytes, gpu, protocol.cache),
            matrix_flop=runs.flop_per_step * k_steps if runs.effort is None else runs.flop_per_step * k_steps * runs.effort_of(batch),
            l2_bytes=runs.bytes_per_step * k_steps,
            dram_bytes=from_dram(b_bytes, others_bytes, gpu, protocol.cache),
            operand_bytes=operand_bytes,
            dram_fraction=runs.dram_fraction,
            hidden_s=where(batch > 1, 0.0, runs.hidden_s) if runs.hidden_s else 0.0,
            fixed_s=fixed_s,
            variants=runs.variants,
        )

    def _tile(self) -> tuple[int, int] | None:
        """The tile asked for, checked to be two sizes; whether it fits is for `_check_tile`."""
        if self.tile is None:
            return None
        given: Any = self.tile
        if isinstance(given, str) and all(side.isdigit() for side in given.lower().split("x")):
            given = [int(side) for side in given.lower().split("x")]
        if not isinstance(given, tuple | list) or len(given) != 2 or not all(isinstance(side, int | np.integer) for side in given):
            raise InvalidInput(f"tile = {shown(self.tile)} must be two whole numbers, such as (128, 64) or '128x64'")
        return int(given[0]), int(given[1])

    def newest_identity(self, gpu: GpuSpec) -> str | None:
        """What the newest SGLang would run."""
        newest = NEWEST_SGLANG.get(self.dtype)
        return "triton" if newest == "deepgemm" and gpu.target not in DEEPGEMM_TARGETS else newest

    def has_own_tiles(self, identity: str | None) -> bool:
        """Whether this kernel is not built in all the tiles of a library that may choose."""
        return identity in OWN_TILES

    @property
    def guessed(self) -> str | None:
        """Few GPUs have rows of batches. TensorRT-LLM's fp8 ones are another call than one product, which looks for its scale first."""
        return None if self.finds_scales else "batch"

    def may_double(self, name: str, is_learned: bool) -> Any:
        """Which launches are held to more of this alone: one product that rows teach is not to the guess that a batch of two is."""
        return np.ravel(self.batch) > 1 if name == "batch" and (is_learned or self.finds_scales) else np.ones(1, bool)

    @property
    def finds_scales(self) -> bool:
        return (self.engine, self.dtype) == ("trtllm", "fp8")

    def unnamed(self) -> Any:
        """Which launches no row tells the kernel of: batched products, but for those in fp32, which frameworks ran and say how."""
        if self.dtype == "fp32":
            return False
        return self.batch > 1 if isinstance(self.batch, int) else np.greater(self.batch, 1)

    def _quantise_s(self, size: dict[str, Any], gpu: GpuSpec, protocol: Protocol) -> Any:
        """16-bit activations made narrow first: a profiler times the product alone, a graph or an event the whole call."""
        held = quantisation(self.dtype).activation
        if protocol.timer == "profiler" or held.bits >= 16:
            return 0.0
        using = constants()
        elements = size["batch"] * size["m"] * size["k"]
        kernels, read_bytes = 1.0, 2.0
        if self.finds_scales:
            kernels, read_bytes = where(size["batch"] > 1, 1.0, SCALE_KERNELS), where(size["batch"] > 1, 2.0, SCALE_BYTES)
        traffic_bytes = elements * (read_bytes + held.bytes)
        l2_per_s = gpu.num_sms * l2_bytes_per_clock(gpu, using) * gpu.boost_clock_hz
        missed = 1.0 - hit_fraction(elements * (2.0 + held.bytes), gpu)
        dram_s = traffic_bytes * missed / (gpu.dram_data_bytes_per_s * using.dram_fraction)
        started_s = kernels * (launch_seconds(gpu, using) + using.fill_s + using.drain_s)
        return started_s + maximum(traffic_bytes / l2_per_s, dram_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Library:
    """What runs products of one format on one GPU: tiles side by side, rows (V,), each whole along K and, where allowed, also split."""

    rows: Floats
    columns: Floats
    splits: Floats  # 1 where K may be split
    flop_per_step: Floats  # of a tile, for one step along K
    bytes_per_step: Floats
    k_step: float
    matrix_dtype: str
    activation_bytes: float  # of an element
    weight_bytes: float
    result_bytes: float
    variants: tuple[str, ...]
    may_split: bool
    launch_s: float
    hidden_s: float  # of a launch, behind the kernel before it
    l2_bytes_per_s: float
    dram_fraction: float
    is_batched: NDArray[np.bool_]  # runs batches of products, and these alone
    effort: Floats | None  # clocks over those that the issue fraction implies; None: as it implies

    def effort_of(self, batch: Any) -> Any:
        return where((batch > 1) == self.is_batched, self.effort, NEVER)


@lru_cache(maxsize=512)
def _library(gpu: GpuSpec, dtype: str, identity: str | None, tile: tuple[int, int] | None, split: int | None, has_batches: bool) -> Library:
    if identity is not None and identity not in IDENTITIES:
        raise UnknownName.among("gemm identity", identity, IDENTITIES)
    held, using = quantisation(dtype), constants()
    on_tensor = held.compute.name in gpu.tensor_flop_per_clock_per_sm
    may_split, k_step = split is None and identity not in OWN_TILES, K_STEP[on_tensor]
    tiles = OWN_TILES.get(identity or "", TENSOR_TILES) if on_tensor else VECTOR_TILES
    batched = BATCHED_TILES.get(gpu.arch, ()) if has_batches and not on_tensor and tile is None else ()
    if tile is not None:
        _check_tile(tile, k_step, held, gpu)
        tiles = (tile,)
    kinds = ("", SPLIT) if may_split else ("",)
    every = [(*tile, kind) for tile in tiles for kind in kinds] + [(*tile, BATCHED) for tile in batched]
    rows, columns, splits = np.array([(*tile, kind == SPLIT) for *tile, kind in every], dtype=np.float64).T.copy()
    is_batched = np.array([kind == BATCHED for *_, kind in every])
    return Library(
        rows=rows,
        columns=columns,
        splits=splits,
        flop_per_step=2.0 * rows * columns * k_step,
        bytes_per_step=(rows * held.activation.bytes + columns * held.weight.bytes) * k_step,
        k_step=float(k_step),
        matrix_dtype=held.compute.name,
        activation_bytes=held.activation.bytes,
        weight_bytes=held.weight.bytes,
        result_bytes=max(2.0, min(4.0, held.activation.bytes)),
        variants=tuple(f"{rows}x{columns}{kind}" for rows, columns, kind in every),
        may_split=may_split,
        launch_s=launch_seconds(gpu, using),
        hidden_s=using.launch_s if gpu.starts_early and identity in FROM_CUBLAS and held.activation.bits >= 16 else 0.0,
        l2_bytes_per_s=gpu.num_sms * l2_bytes_per_clock(gpu, using) * gpu.boost_clock_hz,
        dram_fraction=_dram_fraction(gpu, using),
        is_batched=is_batched,
        effort=np.where(is_batched, _effort(rows, columns, using), 1.0) if batched else None,
    )


def _dram_fraction(gpu: GpuSpec, using: Constants) -> float:
    """Share of the nominal bandwidth that weights come at: graphics memory keeps up as with a plain stream, stacks do not.

    Training rows of 100 MB and more reach a median of 0.90 on RTX 4090 and RTX PRO 6000, 0.92 on RTX A6000; 0.82 on H100, 0.75 on B200.
    """
    return using.stream_fraction if gpu.dram_kind.startswith("GDDR") and gpu.dram_ecc != "inline" else using.dram_fraction


def _operands(rows: Any, columns: Any) -> Any:
    """Loads per product of an output tile."""
    return (rows + columns) / (rows * columns)


MOST_OPERANDS = max(_operands(*tile) for tiles in BATCHED_TILES.values() for tile in tiles)


def _effort(rows: Floats, columns: Floats, using: Constants) -> Floats:
    """Clocks of a batched kernel over those that the constant implies: it is that of the tile with most operands, wider ones do better.

    By this 128x128 issues 0.92 of the peak, 64x128 0.89, 64x64 0.85 and 32x128 0.82; training rows of long products reach a median of 0.89,
    0.89, 0.81 and 0.83, one in ten 0.91, 0.91, 0.85 and 0.87.
    """
    return np.asarray(using.tensor_fraction ** (1.0 - _operands(rows, columns) / MOST_OPERANDS))


def _any(flags: Any) -> bool:
    return bool(flags.any()) if isinstance(flags, np.ndarray) else bool(flags)


def _check_tile(tile: tuple[int, int], k_step: int, held: Quantisation, gpu: GpuSpec) -> None:
    rows, columns = tile
    if rows < 1 or columns < 1:
        raise InvalidInput(f"tile = {rows}x{columns} must be two whole numbers of at least 1")
    needed = (rows + columns) * k_step * held.activation.bytes
    if gpu.shared_bytes_per_block is not None and needed > gpu.shared_bytes_per_block:
        limit = f"{gpu.id} has {gpu.shared_bytes_per_block:,}"
        raise InvalidInput(f"tile = {rows}x{columns} needs {needed:,.0f} bytes of shared memory a block; {limit}")


KERNELS = (Gemm,)
