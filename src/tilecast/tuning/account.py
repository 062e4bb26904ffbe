"""What each configuration asks of the machine for one problem: waves, padding, occupancy, traffic and the analytic time, as columns.

Everything a ranking may look at is a ratio or a small count, so that what was learned on one GPU means the same on another.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.dtypes import Quantisation, quantisation
from tilecast.execution import Protocol
from tilecast.execution.cache import cache_bytes
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import priced
from tilecast.kernels.moe import Moe, rank_load
from tilecast.kernels.moe_problem import Problem, problem_of
from tilecast.tuning.space import Space, accumulators, shared_bytes

Floats = NDArray[np.float64]
WARM = Protocol(timer="profiler", cache="warm")  # how the searches that taught the ranking were timed
OTHER_REGISTERS = 48  # of a thread beside its accumulators: addresses, operands
LATENCY_S = 0.8e-6  # of DRAM under load: bytes that must be in flight follow from it


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """C configurations of one problem. Arrays (C,); `numbers` (C, F) are what a ranking looks at, named by FEATURES."""

    analytic_s: Floats
    bound_s: float
    waves: Floats
    tail: Floats  # share of SM time in the last wave that waits
    padding: Floats  # rows computed / rows asked for
    tasks: Floats
    resident: Floats  # blocks an SM holds
    l2_bytes: Floats  # read through L2
    dram_bytes: Floats  # with what groups of tiles share
    numbers: NDArray[np.float32]


FEATURES = (
    "log2 block_m", "log2 block_n", "log2 block_k", "log2 group_m", "num_warps", "num_stages",
    "log2 rows per expert over block_m", "log2 rows per expert", "padding", "padding n", "padding k", "k steps", "k steps per stage",
    "log2 tasks per SM", "log2 waves", "tail", "resident", "warps per SM", "accumulators", "shared fraction", "bytes in flight",
    "share tensor", "share l2", "share dram", "log time over best", "log time over best of block_m",
    "log2 effective group", "rows of experts in a group", "log wave bytes over L2", "log group traffic",
    "log2 tokens", "log2 experts", "topk", "log2 k", "log2 n", "log intensity", "log weights over L2",
)  # fmt: skip


def account(kernel: Moe, gpu: GpuSpec, space: Space) -> Account:
    """Every configuration of `space` for one launch of the MoE kernel (one pass of it)."""
    held = quantisation(kernel.dtype)
    problem = problem_of(kernel)
    configured: dict[str, Any] = dict(space.columns())
    found = priced(replace(kernel, **configured), gpu, WARM)
    block_m, block_n, block_k = (values.astype(np.float64) for values in (space.block_m, space.block_n, space.block_k))
    heights, of_height = np.unique(block_m, return_inverse=True)
    load = rank_load(problem, heights[None, :])
    row_tiles = np.broadcast_to(load.row_tiles, (1, len(heights)))[0][of_height]
    pairs, active = float(load.pairs[0, 0]), max(float(load.active_experts[0, 0]), 1.0)
    width, depth = _sides(problem)
    tiles_n, steps = np.ceil(width / block_n), np.ceil(depth / block_k)
    tasks = row_tiles * tiles_n
    resident, warps = _resident(space, held, gpu)
    waves = tasks / (gpu.num_sms * resident)
    tail = 1.0 - waves / np.ceil(waves)
    per_expert = pairs / active
    padding = row_tiles * block_m / pairs
    busy = {name: np.broadcast_to(found.busy_s.get(name, 0.0), len(space)) for name in ("tensor", "vector", "l2", "dram")}
    analytic_s = np.broadcast_to(np.asarray(found.analytic_s), len(space))
    bound_s = float(np.max(found.bound_s))

    in_flight = np.minimum(gpu.num_sms * resident, tasks)
    group = np.minimum(space.group_m, row_tiles)
    columns_in_wave = np.minimum(np.ceil(in_flight / group), tiles_n)
    groups_in_wave = np.maximum(in_flight / (group * tiles_n), 1.0)
    experts_in_group = np.clip(group * block_m / np.maximum(per_expert, block_m), 1.0, active)
    row_bytes, column_bytes = block_m * held.activation.bytes * depth, block_n * held.weight.bytes * depth
    wave_bytes = groups_in_wave * (group * row_bytes + columns_in_wave * column_bytes * experts_in_group)
    traffic = np.ceil(np.maximum(waves, 1.0)) * wave_bytes
    weight_bytes = active * width * depth * held.weight.bytes
    token_bytes = min(float(problem.num_tokens[0, 0]), pairs) * depth * held.activation.bytes
    least = weight_bytes + token_bytes
    l2_bytes = tasks * (block_m * held.activation.bytes + block_n * held.weight.bytes) * steps * block_k

    wanted = gpu.dram_bytes_per_s / gpu.num_sms * LATENCY_S
    flop = 2.0 * pairs * width * depth
    best_s = analytic_s.min()
    best_of_height = np.array([analytic_s[of_height == place].min() for place in range(len(heights))])[of_height]
    limit = gpu.shared_bytes_per_block or shared_bytes(space, held).max()
    columns = (
        np.log2(block_m), np.log2(block_n), np.log2(block_k), np.log2(space.group_m), space.num_warps, space.num_stages,
        np.log2(per_expert / block_m), np.log2(per_expert), padding, tiles_n * block_n / width, steps * block_k / depth, steps,
        steps / space.num_stages,
        np.log2(tasks / gpu.num_sms), np.log2(waves), tail, resident, warps, accumulators(space), shared_bytes(space, held) / limit,
        np.log2(resident * shared_bytes(space, held) / wanted),
        np.maximum(busy["tensor"], busy["vector"]) / analytic_s, busy["l2"] / analytic_s, busy["dram"] / analytic_s,
        np.log(analytic_s / best_s), np.log(analytic_s / best_of_height),
        np.log2(np.maximum(group, 1.0)), experts_in_group, np.log(wave_bytes / cache_bytes(gpu)), np.log(np.maximum(traffic / least, 1.0)),
        np.log2(problem.num_tokens[0, 0]), np.log2(problem.num_experts[0, 0]), problem.topk[0, 0], np.log2(depth), np.log2(width),
        np.log((flop / gpu.highest_matrix_rate(held.compute.name)) / (least / gpu.dram_bytes_per_s)),
        np.log(weight_bytes / cache_bytes(gpu)),
    )  # fmt: skip
    numbers = np.empty((len(FEATURES), len(space)), np.float32)
    for row, values in zip(numbers, columns, strict=True):
        row[:] = values
    return Account(
        analytic_s=analytic_s, bound_s=bound_s, waves=waves, tail=tail, padding=padding, tasks=tasks, resident=resident,
        l2_bytes=l2_bytes, dram_bytes=np.maximum(np.minimum(traffic, l2_bytes), least), numbers=numbers.T,
    )  # fmt: skip


def _sides(problem: Problem) -> tuple[float, float]:
    """Columns of the output and depth of the sum, of the one pass that is asked for."""
    gate, inter, hidden = float(problem.gate[0, 0]), float(problem.inter[0, 0]), float(problem.hidden[0, 0])
    return (gate * inter, hidden) if bool(np.ravel(problem.runs_w13)[0]) else (hidden, inter)


def _resident(space: Space, held: Quantisation, gpu: GpuSpec) -> tuple[Floats, Floats]:
    """Blocks an SM holds, by shared memory, registers and warps; and warps of all of them."""
    shared = (gpu.shared_bytes_per_sm or gpu.shared_bytes_per_block or 65536) / (shared_bytes(space, held) + 1024)
    registers = (gpu.register_bytes_per_sm or 262_144) / (
        4.0 * 32 * space.num_warps * np.minimum(accumulators(space) + OTHER_REGISTERS, 255)
    )
    by_warps = (gpu.max_warps_per_sm or 32) / space.num_warps
    resident = np.maximum(np.floor(np.minimum(np.minimum(shared, registers), by_warps)), 1.0)
    return resident, resident * space.num_warps
