"""Batches of requests: how many query and key tokens each one has, equal ones as one entry with a count, ragged ones padded.

Legend: L launches, R requests of a launch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import InvalidInput, shown
from tilecast.execution.tasks import Floats
from tilecast.kernels.base import sizes

EXAMPLE = ", such as [128, 4096]"
NUMBERS = (int, float, np.integer, np.floating)

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]


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


def asked_lengths(q_len: Any, kv_len: Any, *, decode: bool) -> tuple[Any, Any]:
    """What was left open of equal requests: one new token where they decode, keys for the queries alone where they do not."""
    if decode and kv_len is None:
        raise InvalidInput("kv_len is missing: how many tokens the cache of a request holds, its new one included (or kv_lens, a list)")
    if q_len is None and not decode:
        raise InvalidInput("q_len is missing: give q_len and kv_len, or q_lens and kv_lens")
    return (1 if q_len is None else q_len), (q_len if kv_len is None else kv_len)


def has_prefix(q_len: Any, kv_len: Any) -> bool:
    """Whether any of equal requests has other keys than its queries'."""
    return kv_len is not None and bool(np.any(np.asarray(q_len) != np.asarray(kv_len)))


def ragged(q_lens: Any, kv_lens: Any) -> Requests:
    """One launch (a list of lengths) or many (a list of lists); JSON text stands for a list."""
    q, num_q = _padded("q_lens", q_lens)
    kv, num_kv = _padded("kv_lens", kv_lens)
    if num_q.shape != num_kv.shape:
        raise InvalidInput(f"q_lens has {len(num_q)} launches, kv_lens {len(num_kv)}: they must name the same requests")
    if np.any(num_q != num_kv):
        row = int(np.argmax(num_q != num_kv))
        raise InvalidInput(f"q_lens names {num_q[row]} requests, kv_lens {num_kv[row]}: they must name the same")
    count = (np.arange(q.shape[1]) < num_q[:, None]).astype(np.float64)
    return Requests(q=q, kv=kv, count=count)


def lengths(q_lens: Any, kv_lens: Any, q_len: Any, *, decode: bool) -> Requests:
    """A ragged batch of which one list may follow from what else is known: prompts without a cache have as many keys as queries, and
    requests that decode have `q_len` new tokens each, one unless given."""
    if decode and kv_lens is None:
        raise InvalidInput("kv_lens is missing: how many tokens the cache of each request of q_lens holds, its new ones included")
    if decode and q_lens is None:
        q_lens = [[1 if q_len is None else q_len] * len(entry) for entry in _lists("kv_lens", kv_lens)]
    if q_lens is None:
        raise InvalidInput("q_lens is missing: how many new tokens each request of kv_lens has")
    return ragged(q_lens, q_lens if kv_lens is None else kv_lens)


def evened(kernel: Any) -> tuple[Flags, dict[str, Integers]]:
    """Which launches of lists of lengths (L,) have requests that are all alike, and how many of which lengths these are."""
    found = lengths(kernel.q_lens, kernel.kv_lens, kernel.q_len, decode=kernel.family.endswith("_decode"))
    q, kv = (np.where(found.count > 0, each, each[:, :1]) for each in (found.q, found.kv))
    are_alike = ((q == q[:, :1]) & (kv == kv[:, :1])).all(axis=1)
    even = {"batch": found.count.sum(axis=1), "q_len": q[:, 0], "kv_len": kv[:, 0]}
    return are_alike, {name: each[are_alike].astype(np.int64) for name, each in even.items()}


def listed(kernel: Any, rows: Integers) -> dict[str, Any]:
    """The lists of lengths of some launches."""
    given = {name: getattr(kernel, name) for name in ("q_lens", "kv_lens")}
    lists = {name: _lists(name, value) for name, value in given.items() if value is not None}
    return {name: [entries[row] for row in rows] for name, entries in lists.items()}


def _padded(name: str, given: Any) -> tuple[Floats, np.ndarray]:
    """Lists of lengths as one array, ones where a launch has fewer requests than the longest, and how many each has."""
    lists = _lists(name, given)
    num = np.array([len(entry) for entry in lists], dtype=np.int64)
    if not len(num) or num.min() < 1:
        raise InvalidInput(f"{name} = {shown(given)} must hold at least one length for every launch")
    every = list(chain.from_iterable(lists))
    if odd := [entry for entry in every if not isinstance(entry, NUMBERS)]:
        wrong = "null" if odd[0] is None else shown(odd[0])
        raise InvalidInput(f"{name} = {shown(given)} holds {wrong}: every length must be a whole number of at least 1")
    given_sizes: dict[str, Any] = {name: np.asarray(every)}
    flat = sizes(**given_sizes)[name][:, 0]
    padded = np.ones((len(num), int(num.max())))
    padded[np.arange(padded.shape[1]) < num[:, None]] = flat
    return padded, num


def _lists(name: str, given: Any) -> Sequence[Sequence[int]]:
    if isinstance(given, str):
        given = _parsed(name, given)
    if isinstance(given, np.ndarray) and given.dtype.kind in "iuf":
        return given[None] if given.ndim == 1 else given  # type: ignore[return-value]
    entries = list(given) if isinstance(given, Sequence | np.ndarray) and not isinstance(given, bytes) else None
    if not entries:
        raise InvalidInput(f"{name} = {shown(given)} must be a list of lengths{EXAMPLE}")
    if all(isinstance(entry, str) for entry in entries):
        return [_parsed(name, entry) for entry in entries]
    are_lists = [isinstance(entry, Sequence | np.ndarray) and not isinstance(entry, str) for entry in entries]
    if any(are_lists) and not all(are_lists):
        raise InvalidInput(f"{name} = {shown(given)} mixes lengths and lists: give one list, or one list for each launch")
    return entries if are_lists[0] else [entries]


def _parsed(name: str, text: str) -> list[int]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, list):
        raise InvalidInput(f"{name} = {shown(text)} must be a JSON list of lengths{EXAMPLE}")
    return parsed


def checked_lengths(requests: Requests, causal: Any = True) -> None:
    """New tokens are keys too where attention is `causal` (one flag, or one a launch); where it is not, there may be any number of keys."""
    wrong = (requests.count > 0) & (requests.q > requests.kv) & (np.asarray(causal).reshape(-1, 1) > 0)
    if np.any(wrong):
        row, request = (int(axis[0]) for axis in np.nonzero(wrong))
        q, kv = requests.q[row, request], requests.kv[row, request]
        raise InvalidInput(f"q_len = {q:.0f} is longer than kv_len = {kv:.0f}: kv_len counts the new tokens too")
