"""Attention that was written as products and a softmax: found by its shapes, and set against one fused kernel."""

import math
from collections.abc import Sequence
from typing import Any

from tilecast.diagnosis.advice import unfused_attention
from tilecast.diagnosis.rows import Row
from tilecast.hardware import GpuSpec
from tilecast.kernels.attention import AttentionPrefill
from tilecast.predictors import predict_kernel

LEAST_SHARE = 0.05  # of GPU time, below which it is not worth a sentence


def unfused(rows: Sequence[Row], gpu: GpuSpec, total_s: float) -> str | None:
    """A sentence on the largest such attention; None where there is none worth naming."""
    best: tuple[float, str] | None = None
    for soft in (row for row in rows if row.model == "softmax" and row.sizes is not None):
        found = _around(soft, rows)
        if found is None:
            continue
        scores, values = found
        measured_s = soft.total_s + scores.total_s + values.total_s + _scalings(soft, rows)
        fused = AttentionPrefill(
            batch=_size(scores, "batch"), q_len=_size(scores, "m"), kv_len=_size(scores, "n"), num_heads=1, num_kv_heads=1,
            head_dim=_size(scores, "k"), causal=False, dtype=scores.dtype if scores.dtype in ("bf16", "fp16") else "bf16", identity="fa2",
        )  # fmt: skip
        fused_s = float(predict_kernel(fused, gpu).median_s[0]) * scores.calls
        share = measured_s / total_s
        elements = _size(soft, "rows") * _size(soft, "cols")
        if share >= LEAST_SHARE and (best is None or measured_s > best[0]):
            best = measured_s, unfused_attention(measured_s, fused_s, share, 2.0 * elements, soft.calls)
    return best[1] if best is not None else None


def _around(soft: Row, rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """The product that makes the scores, and the one that takes them."""
    count, width = _size(soft, "rows"), _size(soft, "cols")
    products = [row for row in rows if row.model == "gemm" and row.sizes is not None and row.calls == soft.calls]
    makes = [row for row in products if _size(row, "batch") * _size(row, "m") == count and _size(row, "n") == width]
    takes = [row for row in products if _size(row, "batch") * _size(row, "m") == count and _size(row, "k") == width]
    return next(((one, other) for one in makes for other in takes if one is not other and _size(one, "k") == _size(other, "n")), None)


def _scalings(soft: Row, rows: Sequence[Row]) -> float:
    """Pointwise passes over the same scores: scaling, masking."""
    elements = _size(soft, "rows") * _size(soft, "cols")
    return sum(row.total_s for row in rows if row.family == "elementwise" and elements == _largest(row.shapes))


def _largest(shapes: str) -> int:
    plain = (shape.split("x") for shape in shapes.split())
    return max((math.prod(map(int, sizes)) for sizes in plain if all(size.isdigit() for size in sizes)), default=0)


def _size(row: Row, name: str) -> int:
    value: Any = (row.sizes or {}).get(name, 1)
    return int(value)
