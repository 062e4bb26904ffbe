"""Other launches of a kernel: some of its list, with sizes doubled or halved."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.kernels.base import RAGGED

FOLLOWS = {"num_kv_heads": "num_heads", "kv_len": "q_len"}  # a size that was left open is another one

Integers = NDArray[np.int64]


def size_of(kernel: Any, name: str) -> Integers:
    """One for each launch, or one for all."""
    given = getattr(kernel, name)
    return np.ravel(getattr(kernel, FOLLOWS[name]) if given is None else given).astype(np.int64)


def scaled(kernel: Any, rows: Integers, powers: Mapping[str, Integers]) -> Any:
    """These of its launches (P,), each with sizes doubled so many times (P,), or halved."""
    sizes: dict[str, Integers] = {}
    for name, power in powers.items():
        every = size_of(kernel, name)
        size = every if len(every) == 1 else every[rows]
        sizes[name] = (
            size << power if (power >= 0).all() else np.where(power < 0, size >> np.maximum(-power, 0), size << np.maximum(power, 0))
        )
    return replace(kernel, **{**taken(kernel, rows), **sizes})


def taken(kernel: Any, rows: Any) -> dict[str, Any]:
    """Of what differs between launches, the entries of these."""
    given = {entry.name: getattr(kernel, entry.name) for entry in fields(kernel) if entry.name not in RAGGED}
    lists = {name: np.asarray(value) for name, value in given.items() if np.ndim(value) > 0 and len(value) > 1}
    return {name: values[rows] for name, values in lists.items()}
