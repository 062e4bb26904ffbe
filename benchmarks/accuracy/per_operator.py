"""NeuSight's labels of single operators inside whole models: forward, backward and accumulation of each, on GPUs it did not train on."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from benchmarks.accuracy.peer_tables import parquet
from tilecast import hardware
from tilecast.datasets.sources.neusight import GPUS
from tilecast.kernels.embedding import Embedding
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.layer_norm import LayerNorm
from tilecast.kernels.layer_norm_backward import LayerNormBackward
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.workloads.aggregate import Price

CLASSES = ("linear", "bmm", "layernorm", "mem")
NODE = "gpu model mode seq_len batch option node_idx op_class"
SHORTEST_MS = 0.1  # below, the timer's own gap decides
ITEM = 4  # bytes of fp32
VOCABULARY = 50_000  # rows of a table of words; which does not matter


def labels(gpus: tuple[str, ...]) -> pl.DataFrame:
    """Operators that take more than 0.1 ms and whose work NeuSight's graph names."""
    rows = parquet("neusight", "perop_labels.parquet", f"{NODE} ns_opname ns_fw_ops ns_bw_ops ns_acc_ops total_ms", GPUS)
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
    """The kernels PyTorch runs for an operator: forward, and in training backward and the accumulation of gradients, each timed alone."""
    forward, backward, added = (ast.literal_eval(row[name] or "[]") for name in ("ns_fw_ops", "ns_bw_ops", "ns_acc_ops"))
    ways: tuple[list[Any], list[Any]]
    if row["op_class"] in ("linear", "bmm"):
        ways = [_product(sizes, bias=row["op_class"] == "linear") for _, sizes in forward], [_product(sizes) for _, sizes in backward]
        if row["op_class"] == "linear":
            m, _, n = forward[0][1]
            ways[1].append(_pass(m * n, n))  # the gradient of the bias
    elif row["op_class"] == "layernorm":
        rows, cols = forward[0][1]
        ways = [LayerNorm(rows=rows, cols=cols, dtype="fp32")], [LayerNormBackward(rows=rows, cols=cols, dtype="fp32")]
    else:
        ways = _moved(row["ns_opname"], forward[0][1], backward)
    yield ways[0]
    if row["mode"] == "train":
        yield ways[1]
        yield [_pass(2 * sizes[-1] * sizes[0], sizes[-1] * sizes[0]) for _, sizes in added]


def _moved(name: str, shapes: tuple[tuple[int, ...], ...], backward: list[Any]) -> tuple[list[Any], list[Any]]:
    sizes = [_numel(shape) for shape in shapes]
    made = sizes[-1]
    if name == "EMBEDDING":
        table = _numel(backward[0][1][0]) if backward else 0
        rows = Embedding(rows=sizes[0], cols=shapes[-1][-1], vocab_size=VOCABULARY, dtype="fp32")
        return [rows], [_pass(0, table), _pass(2 * made, made)]  # zeros, then a gradient a token
    if name == "dropout":  # the result and a byte of mask; backward reads both
        return [_pass(made, 1.25 * made)], [_pass(1.25 * made, made)]
    return [_pass(sum(sizes[:-1]) or made, made)], [_pass(made, made)]


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def ours(rows: pl.DataFrame, price: Price) -> pl.Series:
    """Predicted milliseconds: kernels of a part one behind another, what a timer around a call adds, operands in L2 where they fit."""
    known: dict[tuple[str, str, str], float] = {}

    def seconds(kernel: Any, gpu: str, timer: str) -> float:
        key = gpu, repr(kernel), timer
        if key not in known:
            known[key] = float(price(kernel, hardware.gpu(gpu), cache="warm", engine="pytorch", timer=timer).median_s[0])
        return known[key]

    return pl.Series(
        "predicted",
        [
            1e3
            * sum(
                seconds(kernel, row["gpu"], "profiler" if place else "event") for part in kernels(row) for place, kernel in enumerate(part)
            )
            for row in rows.to_dicts()
        ],
    )
