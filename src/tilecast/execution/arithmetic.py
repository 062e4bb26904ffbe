"""What formulas need beyond + - x /, for plain numbers as well as arrays: on one number numpy costs ten times as much."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def maximum(first: Any, second: Any) -> Any:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.maximum(first, second)
    return first if first >= second else second


def minimum(first: Any, second: Any) -> Any:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.minimum(first, second)
    return first if first <= second else second


def argmax(parts: Sequence[Any]) -> Any:
    """Which of the parts is the largest."""
    return np.argmax(parts, axis=0) if isinstance(parts[0], np.ndarray) else parts.index(max(parts))


def entry(table: np.ndarray, place: Any) -> Any:
    """What stands at a place, or at each of many."""
    return table.take(place) if isinstance(place, np.ndarray) else table.item(place)


def clip(values: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(values, low), high)


def where(holds: Any, values: Any, otherwise: Any) -> Any:
    if isinstance(holds, np.ndarray):
        return np.where(holds, values, otherwise)
    return values if holds else otherwise


def ceil(values: Any) -> Any:
    return np.ceil(values) if isinstance(values, np.ndarray) else float(math.ceil(values))


def floor(values: Any) -> Any:
    return np.floor(values) if isinstance(values, np.ndarray) else float(math.floor(values))


def sqrt(values: Any) -> Any:
    return np.sqrt(values) if isinstance(values, np.ndarray) else math.sqrt(values)


def exp(values: Any) -> Any:
    return np.exp(values) if isinstance(values, np.ndarray) else math.exp(values)


def log2(values: Any) -> Any:
    return np.log2(values) if isinstance(values, np.ndarray) else math.log2(values)
