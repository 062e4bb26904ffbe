"""NeuSight's labels of single operators inside whole models: forward, backward and accumulation of each, on GPUs it did not train on.

What its script ran, part by part: the operator on the tensors of the traced model (all tokens are number one); its node of the backward
graph called by hand, so with gradients recorded, which makes dropout take its differentiable way of three kernels; and the accumulation of
every parameter's gradient by itself. A product of batched heads that are not contiguous copies them first. The node of a linear layer
transposes before each of its two products, and hands the bias's gradient on as it came: adding it up is the engine's, who is not there.
"""

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy.peer_tables import parquet
from tilecast import hardware
from tilecast.datasets.sources.neusight import GPUS
from tilecast.engines.eager import Clocks, host_cost, run
from tilecast.execution import constants
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.layer_norm import HOST_CALLS, LayerNorm
from tilecast.kernels.layer_norm_backward import LayerNormBackward
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.workloads.aggregate import Price

CLASSES = ("linear", "bmm", "layernorm", "mem")
NODE = "gpu model mode seq_len batch option node_idx op_class"
WORK = "ns_opname ns_fw_ops ns_bw_ops ns_acc_ops input_shapes input_contiguous"
SHORTEST_MS = 0.1  # below, the timer's own gap decides
ITEM = 4  # bytes of fp32
MASK = 1 / ITEM  # a byte for each element
# The lookup of PyTorch 2.1 divides 64-bit numbers twice for every element: V100 and A100-40GB, whose labels are not scored here, make 0.65
# to 0.7 elements a clock and SM, as if each took this many of the 16 slots for special functions.
LOOKUP_OPS = 24


def labels(gpus: tuple[str, ...]) -> pl.DataFrame:
    """Operators that take more than 0.1 ms and whose work NeuSight's graph names."""
    rows = parquet("neusight", "perop_labels.parquet", f"{NODE} {WORK} total_ms", GPUS)
    named = pl.col("ns_fw_ops").is_not_null() & pl.col("op_class").is_in(CLASSES) & (pl.col("total_ms") > SHORTEST_MS)
    return rows.filter(pl.col("gpu").is_in(gpus) & named & (pl.col("option") == ""))


def peer(rows: pl.DataFrame) -> pl.DataFrame:
    """What NeuSight stored for the same operators."""
    stored = parquet("neusight", "perop_predictions.parquet", f"{NODE} predictor pred_total_ms", GPUS)
    return rows.join(stored.filter(pl.col("predictor") == "neusight"), on=NODE.split(), how="inner", maintain_order="left")


def _product(sizes: tuple[int, ...], bias: bool = False) -> Gemm:
    *batch, m, k, n = sizes
    return Gemm(m=m, n=n, k=k, batch=batch[0] if batch else 1, bias=bias, dtype="fp32")


def _pass(read: float, written: float) -> MemoryPass:
    return MemoryPass(read_bytes=round(ITEM * read), written_bytes=max(1, round(ITEM * written)))


def kernels(row: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The kernels PyTorch runs for each part of an operator that is timed alone."""
    forward, backward, added = (ast.literal_eval(row[name] or "[]") for name in ("ns_fw_ops", "ns_bw_ops", "ns_acc_ops"))
    ways: tuple[list[Any], list[Any]]
    if row["op_class"] in ("linear", "bmm"):
        ways = [_product(sizes, bias=row["op_class"] == "linear") for _, sizes in forward], [_product(sizes) for _, sizes in backward]
        if row["op_class"] == "bmm":
            ways[0][:0] = copies(ast.literal_eval(row["input_shapes"]), ast.literal_eval(row["input_contiguous"]))
    elif row["op_class"] == "layernorm":
        rows, cols = forward[0][1]
        ways = [LayerNorm(rows=rows, cols=cols, dtype="fp32")], [LayerNormBackward(rows=rows, cols=cols, dtype="fp32")]
    else:
        ways = _moved(row["ns_opname"], forward[0][1], backward)
    yield ways[0]
    if row["mode"] == "train":
        yield ways[1]
        numbers = [sizes[-1] * sizes[0] for _, sizes in added]
        if row["op_class"] == "linear":  # the weight's alone
            numbers = [max(numbers)]
        yield from ([_pass(2 * number, number)] for number in numbers)


def copies(shapes: list[list[int]], contiguous: list[bool]) -> list[MemoryPass]:
    """Of operands whose two leading dimensions cannot become one: heads that lie between the tokens of several sequences."""
    apart = (shape for shape, is_whole in zip(shapes, contiguous, strict=True) if len(shape) == 4 and shape[0] > 1 and not is_whole)
    return [_pass(math.prod(shape), math.prod(shape)) for shape in apart]


def _moved(name: str, shapes: tuple[tuple[int, ...], ...], backward: list[Any]) -> tuple[list[Any], list[Any]]:
    sizes = [math.prod(shape) for shape in shapes]
    made = sizes[-1]
    if name == "EMBEDDING":
        table = math.prod(backward[0][1][0]) if backward else 0
        lookup = replace(_pass(2 * sizes[0] + shapes[-1][-1], made), special_ops=LOOKUP_OPS * made)  # one row of the table for all
        return [lookup], [_pass(0, table), _pass(2 * made, made)]  # zeros, then a gradient a token
    if name == "dropout":  # the result and a mask; backward the mask as numbers, these scaled, and the gradient times that
        return [_pass(made, (1 + MASK) * made)], [_pass(MASK * made, made), _pass(made, made), _pass(2 * made, made)]
    if name == "where":
        return [_pass(MASK * sizes[0] + sizes[1], made)], [_pass(MASK * sizes[0] + made, made)]
    return [_pass(sum(sizes[:-1]) or made, made)], [_pass(made, made)]


def ours(rows: pl.DataFrame, price: Price) -> pl.Series:
    """Predicted milliseconds: the parts of an operator, each what a timer around it shows."""
    known: dict[tuple[str, str, str, str], float] = {}

    def seconds(kernel: Any, gpu: str, cache: str, timer: str) -> float:
        key = gpu, repr(kernel), cache, timer
        if key not in known:
            known[key] = float(price(kernel, hardware.gpu(gpu), cache=cache, engine="pytorch", timer=timer).median_s[0])
        return known[key]

    return pl.Series(
        "predicted",
        [1e3 * sum(part_s(part, row["gpu"], seconds) for part in kernels(row)) for row in rows.to_dicts()],
    )


def part_s(part: list[Any], gpu: str, seconds: Callable[[Any, str, str, str], float]) -> float:
    """From one event to the next: the host dispatches kernel after kernel, the GPU follows. What passes hand on stays in L2 if it fits."""
    passed = sum(kernel.read_bytes + kernel.written_bytes for kernel in part if isinstance(kernel, MemoryPass))
    cache = "cold" if len(part) > 1 and passed > hardware.gpu(gpu).l2_bytes else "warm"
    event_s, op_s = constants().host_event_s, host_cost().op_s
    first_s = seconds(part[0], gpu, cache, "event") - event_s
    launch_s = np.array([event_s] + [op_s] * (len(part) - 1))
    if isinstance(part[0], LayerNorm):  # dispatched twice before its kernel starts
        first_s, launch_s[0] = seconds(part[0], gpu, cache, "profiler"), event_s + (HOST_CALLS - 1) * op_s
    if sum(isinstance(kernel, Gemm) for kernel in part) > 1:  # a node of the backward graph: each product reads a transposed view
        launch_s += host_cost().view_s
    kernel_s = np.array([first_s] + [seconds(kernel, gpu, cache, "profiler") for kernel in part[1:]])
    return run(launch_s, kernel_s, Clocks()).gpu_s
