"""The configurations a Triton kernel may be launched with on a GPU: all of them, but for those that do not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tilecast.dtypes import Quantisation
from tilecast.errors import InvalidInput, UnknownName
from tilecast.hardware import GpuSpec

Ints = NDArray[np.int64]

# What engines call each parameter in their files, and what the kernel record calls it.
PARAMETERS = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
CHOICES: Mapping[str, tuple[int, ...]] = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (32, 64, 128, 256),
    "group_m": (1, 4, 8, 16, 32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
# What Triton's product runs with: tiles from 16 a side, blocks of at most 1,024 threads.
LIMITS: Mapping[str, tuple[int, int]] = {
    "block_m": (16, 1024),
    "block_n": (16, 1024),
    "block_k": (16, 1024),
    "group_m": (1, 1024),
    "num_warps": (1, 32),
    "num_stages": (1, 16),
}
MOST_ACCUMULATORS = 128  # fp32 registers of a thread that hold its part of the tile: with more, the compiler spills
LEAST_SHARED_BYTES = 49_152  # what every GPU of the catalogue gives a block without asking


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """C configurations, a column each."""

    block_m: Ints
    block_n: Ints
    block_k: Ints
    group_m: Ints
    num_warps: Ints
    num_stages: Ints

    def __len__(self) -> int:
        return len(self.block_m)

    def columns(self) -> dict[str, Ints]:
        return {name: getattr(self, name) for name in PARAMETERS}

    def rows(self) -> Ints:
        """(C, parameters)."""
        return np.stack(list(self.columns().values()), axis=1)

    def where(self, chosen: NDArray[np.bool_] | Ints) -> "Space":
        return Space(*(values[chosen] for values in self.columns().values()))

    def config(self, row: int) -> dict[str, int]:
        """One configuration under the names that engines read."""
        return {PARAMETERS[name]: int(values[row]) for name, values in self.columns().items()}

    def find(self, config: Mapping[str, int]) -> int | None:
        """The row of a configuration given under engines' names; None where it is not among them."""
        same = np.ones(len(self), dtype=bool)
        for name, values in self.columns().items():
            same &= values == config[PARAMETERS[name]]
        return int(np.argmax(same)) if same.any() else None


def space_of(configs: Sequence[Mapping[str, int]]) -> Space:
    """Configurations under engines' names as a Space."""
    return Space(*(np.array([config[name] for config in configs], dtype=np.int64) for name in PARAMETERS.values()))


def whole(choices: Mapping[str, Sequence[int]] = CHOICES) -> Space:
    rows = np.array(list(product(*(choices[name] for name in PARAMETERS))), dtype=np.int64).reshape(-1, len(PARAMETERS))
    return Space(*rows.T)


def shared_bytes(space: Space, held: Quantisation) -> NDArray[np.float64]:
    """Of one block: the steps in flight but the one computed on, as `kernels/moe_tiles.py` counts them."""
    step = space.block_m * held.activation.bytes + space.block_n * held.weight.bytes
    return np.asarray(step * space.block_k * np.maximum(space.num_stages - 1, 1), dtype=np.float64)


def accumulators(space: Space) -> NDArray[np.float64]:
    """fp32 registers of one thread for its part of the tile."""
    return space.block_m * space.block_n / (32.0 * space.num_warps)


def feasible(gpu: GpuSpec, held: Quantisation, choices: Mapping[str, Sequence[int]] = CHOICES, *, k_step: int | None = None) -> Space:
    """What fits a block's shared memory and a thread's registers; `k_step`: where scales belong to blocks along K, steps that divide it."""
    everything = whole(choices)
    limit = gpu.shared_bytes_per_block or LEAST_SHARED_BYTES
    fits = (shared_bytes(everything, held) <= limit) & (accumulators(everything) <= MOST_ACCUMULATORS)
    if k_step is not None:
        fits &= k_step % everything.block_k == 0
    if not fits.any():
        least = f"{shared_bytes(everything, held).min():,.0f}" if len(everything) else "no"
        raise InvalidInput(
            f"none of the {len(everything)} configurations fits {gpu.id}: a block has {limit:,} bytes of shared memory, the smallest needs"
            f" {least}, and a thread may hold {MOST_ACCUMULATORS} accumulators"
        )
    return everything.where(fits)


def limited(limits: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """The choices of the space, some of them limited: ("block_n=64,128",)."""
    choices: dict[str, Sequence[int]] = dict(CHOICES)
    for limit in limits:
        name, _, values = limit.partition("=")
        if name not in choices:
            raise UnknownName.among("parameter", name, CHOICES)
        try:
            choices[name] = sorted({int(value) for value in values.split(",")})
        except ValueError:
            choices[name] = []
        if not choices[name] or any(value < 1 or (value & (value - 1) and name != "num_stages") for value in choices[name]):
            raise InvalidInput(f"--only {limit!r} must read NAME=VALUE,VALUE with powers of two, e.g. block_n=64,128")
        least, most = LIMITS[name]
        if choices[name][0] < least or choices[name][-1] > most:
            raise InvalidInput(f"--only {limit!r}: Triton takes {name} from {least} to {most}")
    return choices
