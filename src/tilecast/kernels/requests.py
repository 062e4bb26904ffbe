"""Batches of requests: how many query and key tokens each one has, equal ones as one entry with a count, ragged ones padded.

Legend: L launches, R requests of a launch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tilecast.errors import InvalidInput
from tilecast.execution.tasks import Floats
from tilecast.kernels.base import sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Query and key lengths (L, R); `count` says how many requests of a launch each entry stands for, 0 for padding."""

    q: Floats
    kv: Floats
    count: Floats

    def total(self, values: Floats) -> Floats:
        """Summed over the requests of each launch: (L, 1)."""
        return over_requests(self.count * values)


def over_requests(values: Floats) -> Floats:
    """The sum of each row, (L, 1); equal requests are one entry already."""
    return values if values.shape[-1] == 1 else np.asarray(values.sum(axis=-1, keepdims=True))


def uniform(batch: Any, q_len: Any, kv_len: Any, **others: Any) -> tuple[Requests, dict[str, Floats]]:
    """Launches of `batch` equal requests each, and the other sizes as columns of the same length."""
    size = sizes(batch=batch, q_len=q_len, kv_len=kv_len, **others)
    return Requests(q=size["q_len"], kv=size["kv_len"], count=size["batch"]), size


def ragged(q_lens: Any, kv_lens: Any) -> Requests:
    """One launch (a list of lengths) or many (a list of lists); JSON text stands for a list."""
    q, num_q = _padded("q_lens", q_lens)
    kv, num_kv = _padded("kv_lens", kv_lens)
    if num_q.shape != num_kv.shape or np.any(num_q != num_kv):
        raise InvalidInput("q_lens and kv_lens must name the same requests: their lengths differ")
    count = (np.arange(q.shape[1]) < num_q[:, None]).astype(np.float64)
    return Requests(q=q, kv=kv, count=count)


def _padded(name: str, given: Any) -> tuple[Floats, np.ndarray]:
    """Lists of lengths as one array, ones where a launch has fewer requests than the longest, and how many each has."""
    lists = _lists(name, given)
    num = np.array([len(entry) for entry in lists], dtype=np.int64)
    if not len(num) or num.min() < 1:
        raise InvalidInput(f"{name} must hold at least one request")
    given_sizes: dict[str, Any] = {name: np.asarray(list(chain.from_iterable(lists)))}
    flat = sizes(**given_sizes)[name][:, 0]
    padded = np.ones((len(num), int(num.max())))
    padded[np.arange(padded.shape[1]) < num[:, None]] = flat
    return padded, num


def _lists(name: str, given: Any) -> Sequence[Sequence[int]]:
    if isinstance(given, str):
        given = _parsed(name, given)
    if isinstance(given, np.ndarray) and given.dtype.kind in "iuf":
        return given[None] if given.ndim == 1 else given  # type: ignore[return-value]
    entries = list(given) if isinstance(given, Sequence | np.ndarray) else None
    if not entries:
        raise InvalidInput(f"{name} = {given!r} must be a list of lengths")
    if all(isinstance(entry, str) for entry in entries):
        return [_parsed(name, entry) for entry in entries]
    return entries if isinstance(entries[0], Sequence | np.ndarray) else [entries]


def _parsed(name: str, text: str) -> list[int]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, list):
        raise InvalidInput(f"{name} = {text!r} must be a JSON list of lengths")
    return parsed


def checked_lengths(requests: Requests) -> None:
    wrong = (requests.count > 0) & (requests.q > requests.kv)
    if np.any(wrong):
        row, request = (int(axis[0]) for axis in np.nonzero(wrong))
        q, kv = requests.q[row, request], requests.kv[row, request]
        raise InvalidInput(f"q_len = {q:.0f} is longer than kv_len = {kv:.0f}: kv_len counts the new tokens too")
