"""Times the grouped MoE product itself, in Triton, on the GPU that is here.

The kernel does what the engines' fused MoE kernels do: tokens are sorted by expert and padded to whole tiles, a program multiplies one tile
of them with its expert's weights, and programs are ordered in groups of GROUP_SIZE_M rows of tiles. Block-scaled FP8 multiplies with
the scales of both sides as it sums. With TRITON_INTERPRET=1 it runs on the CPU, for its results only: times are then those of the
interpreter and are refused.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tilecast.errors import InvalidInput, MissingExtra
from tilecast.hardware import GpuSpec
from tilecast.kernels.moe import Moe, rank_load
from tilecast.kernels.moe_problem import problem_of

WARM_UPS, REPEATS = 3, 10
FLUSH_BYTES = 256 << 20  # written between launches, so that none finds its weights in L2
BLOCK = 128  # elements with one scale
FORMATS = ("bf16", "fp16", "fp8_block")


def _libraries() -> tuple[Any, Any]:
    try:
        return import_module("torch"), import_module("triton")
    except ImportError as problem:
        raise MissingExtra(f"measuring needs PyTorch and Triton ({problem}): pip install torch triton") from None


def grouped_kernel() -> Any:
    """The Triton kernel; imported when it is asked for, because Triton is not always here."""
    return import_module("tilecast.tuning.runners.grouped").grouped


def sorted_by_expert(loads: np.ndarray, block_m: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of (token, expert) pairs laid out expert by expert, each padded to whole tiles; and the expert of every tile.

    Row numbers of padding are the number of rows: past the end, so that nobody reads them.
    """
    total = int(loads.sum())
    starts = np.concatenate([[0], np.cumsum(loads)]).astype(np.int64)
    rows, experts = [], []
    for expert, load in enumerate(loads.astype(np.int64)):
        padded = -(-int(load) // block_m) * block_m
        part = np.full(padded, total, dtype=np.int64)
        part[:load] = np.arange(starts[expert], starts[expert] + load)
        rows.append(part)
        experts += [expert] * (padded // block_m)
    return np.concatenate(rows) if rows else np.zeros(0, np.int64), np.array(experts, dtype=np.int64)


class TritonRunner:
    """Median of several launches between two events, weights not in L2."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._torch, self._triton = _libraries()
        if os.environ.get("TRITON_INTERPRET") == "1":
            raise InvalidInput("TRITON_INTERPRET=1 runs kernels on the CPU: their times say nothing of a GPU")
        if not self._torch.cuda.is_available():
            raise InvalidInput("--measure triton needs a GPU; none is visible to PyTorch")
        here = self._torch.cuda.get_device_name()
        if here != gpu.device_string:
            raise InvalidInput(f"--measure triton: the GPU here is {here!r}, and {gpu.id} is {gpu.device_string!r}; ask --gpu {here!r}")
        self._kernel = grouped_kernel()
        self._last: tuple[Moe, Operands] | None = None

    def time_s(self, launch: Moe, config: Mapping[str, int]) -> float | None:
        torch = self._torch
        if self._last is None or self._last[0] is not launch:  # many configurations of one launch come in a row
            self._last = None
            self._last = (launch, operands(torch, launch, "cuda"))
        run = runs(torch, self._triton, self._kernel, self._last[1], config)
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        times = []
        try:
            for repeat in range(WARM_UPS + REPEATS):
                flush.zero_()
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                run()
                end.record()
                torch.cuda.synchronize()
                if repeat >= WARM_UPS:
                    times.append(start.elapsed_time(end) / 1e3)
        except Exception as problem:  # the compiler refuses some configurations: too much shared memory, too many registers
            if "OutOfResources" in type(problem).__name__ or "PassManager" in str(problem):
                return None
            raise
        return float(np.median(times))


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """What one launch multiplies, whatever its configuration: a row of `tokens` for each pair of a token and an expert."""

    loads: np.ndarray  # rows of each expert
    tokens: Any  # (pairs, depth)
    weights: Any  # (experts, width, depth)
    token_scales: Any  # (pairs, depth / BLOCK), or None
    weight_scales: Any  # (experts, width / BLOCK, depth / BLOCK), or None
    output: Any  # (pairs, width)


def operands(torch: Any, launch: Moe, device: str) -> Operands:
    """Drawn at random, scales too where the format has them."""
    if launch.dtype not in FORMATS:
        raise InvalidInput(f"--measure triton times {', '.join(FORMATS)}, not {launch.dtype}: measure in the engine, and give a .csv file")
    problem, loads = problem_of(launch), loads_of(launch)
    pairs = int(loads.sum())
    gate, inter, hidden = (int(values[0, 0]) for values in (problem.gate, problem.inter, problem.hidden))
    width, depth = (gate * inter, hidden) if launch.moe_pass == "w13" else (hidden, inter)
    wide = torch.float16 if device == "cpu" or launch.dtype == "fp16" else torch.bfloat16  # Triton's interpreter has no bf16
    is_scaled = launch.dtype == "fp8_block"
    dtype = torch.float8_e4m3fn if is_scaled else wide
    generator = torch.Generator(device=device).manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    blocks_n, blocks_k = -(-width // BLOCK), -(-depth // BLOCK)
    return Operands(
        loads=loads,
        tokens=drawn(pairs, depth).to(dtype),
        weights=torch.stack([drawn(width, depth).to(dtype) for _ in loads]),  # one at a time: fp32 of all would need four times the memory
        token_scales=drawn(pairs, blocks_k).exp() if is_scaled else None,
        weight_scales=drawn(len(loads), blocks_n, blocks_k).exp() if is_scaled else None,
        output=torch.zeros(pairs, width, device=device, dtype=wide),
    )


def runs(torch: Any, triton: Any, kernel: Any, of: Operands, config: Mapping[str, int]) -> Callable[[], None]:
    """A function that launches the kernel with one configuration."""
    pairs, depth = of.tokens.shape
    width = of.output.shape[1]
    rows, experts = (torch.from_numpy(values).to(of.tokens.device) for values in sorted_by_expert(of.loads, config["BLOCK_SIZE_M"]))
    grid = (len(experts) * triton.cdiv(width, config["BLOCK_SIZE_N"]),)
    is_scaled = of.token_scales is not None
    scales = (of.token_scales, of.weight_scales) if is_scaled else (of.tokens, of.weights)  # some pointers have to be given

    def run() -> None:
        kernel[grid](
            of.tokens, of.weights, of.output, *scales, rows, experts, pairs, width, depth, 1, BLOCK_M=config["BLOCK_SIZE_M"],
            BLOCK_N=config["BLOCK_SIZE_N"], BLOCK_K=config["BLOCK_SIZE_K"], GROUP_M=config["GROUP_SIZE_M"],
            SCALED=BLOCK if is_scaled else 0, num_warps=config["num_warps"], num_stages=config["num_stages"],
        )  # fmt: skip

    return run


def loads_of(launch: Moe) -> np.ndarray:
    """Tokens of each expert on the rank, as the distribution has them."""
    problem = problem_of(launch)
    experts, ep = int(problem.num_experts[0, 0]), int(problem.ep[0, 0])
    if str(launch.distribution).startswith("["):
        loads = np.array(json.loads(launch.distribution), dtype=np.int64).reshape(ep, experts // ep)
        return np.asarray(loads[loads.sum(axis=1).argmax()])
    pairs = int(rank_load(problem, np.array([[16.0]])).pairs[0, 0])
    on_rank = experts // ep
    return np.asarray(pairs // on_rank + (np.arange(on_rank) < pairs % on_rank), dtype=np.int64)
