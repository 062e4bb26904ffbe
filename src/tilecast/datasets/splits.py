"""Who may learn from what: splits by shape, by GPU (with and without same-die siblings) and by generation; seeded and reproducible.

A split decides by *shape*, so every row of one shape, over versions, engines and GPUs, falls on one side: the same shape under another
software version in the training set would be a leak. The decision is a hash of the shape and the seed, the same on every machine.
"""

import re
import zlib
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.datasets.schema import CONFIGURATION, SHAPES
from tilecast.errors import InvalidInput

# The newest version of each engine per system; A100 was last measured with older ones.
NEWEST = {"trtllm": "1.3.0rc20", "vllm": "0.24.0", "sglang": "0.5.14"}
NEWEST_ON = {"a100-sxm-80gb": {"sglang": "0.5.10", "vllm": "0.14.0", "trtllm": "1.0.0"}, "arc-b60": {"vllm": "0.26.0"}}


@dataclass(frozen=True, slots=True)
class Split:
    """A split as it is written into a result file: how it was made, and how many rows fell on each side."""

    kind: str
    held_out: str
    seed: int
    num_train: int
    num_test: int

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def by_shape(frame: pl.DataFrame, family: str, *, test_fraction: float = 0.2, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, Split]:
    """(train, test, what was done), no shape on both sides."""
    if not 0 < test_fraction < 1:
        raise InvalidInput(f"test_fraction = {test_fraction} must lie between 0 and 1")
    is_test = pl.Series(uniform(frame, family, seed) < test_fraction)
    return _divide(frame, is_test, Split("shape", f"{test_fraction:.0%} of shapes", seed, 0, 0))


def by_gpu(frame: pl.DataFrame, gpu: str, *, siblings: str = "in") -> tuple[pl.DataFrame, pl.DataFrame, Split]:
    """Hold one GPU out. `siblings` of the same die stay in the training set ("in": a new SKU) or leave it too ("out": an unseen GPU)."""
    if siblings not in ("in", "out"):
        raise InvalidInput(f"siblings = {siblings!r} must be 'in' or 'out'")
    held = hardware.gpu(gpu)
    name = pl.col("gpu").cast(pl.String)
    train = frame.filter(~name.is_in(same_die(held.id)) if siblings == "out" else name != held.id)
    test = frame.filter(name == held.id)
    return train, test, Split(f"gpu, siblings {siblings}", held.id, 0, train.height, test.height)


def by_generation(frame: pl.DataFrame, arch: str) -> tuple[pl.DataFrame, pl.DataFrame, Split]:
    """Hold every GPU of one architecture out."""
    members = [spec.id for spec in hardware.gpus() if spec.arch == arch]
    if not members:
        raise InvalidInput(
            f"no catalogued GPU has the architecture {arch!r}; known: {', '.join(sorted({s.arch for s in hardware.gpus()}))}"
        )
    return _divide(frame, frame["gpu"].cast(pl.String).is_in(members), Split("generation", arch, 0, 0, 0))


def twins(name: str) -> list[str]:
    """Other ids of one chip at the same SMs, clock, memory and power: only their links differ, and who measured them."""

    def rates(spec: hardware.GpuSpec) -> tuple[object, ...]:
        return spec.die, spec.num_sms, spec.boost_clock_hz, spec.dram_bytes_per_s, spec.l2_bytes, spec.tdp_w

    own = hardware.gpu(name)
    return [spec.id for spec in hardware.gpus() if spec.id != own.id and rates(spec) == rates(own)]


def same_die(gpu: str) -> list[str]:
    """The ids that share `gpu`'s die, itself included."""
    die = hardware.gpu(gpu).die
    return [spec.id for spec in hardware.gpus() if spec.die == die]


def newest(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of each engine's newest version on each system, which the kernel suites score."""
    gpu, engine, version = (pl.col(name).cast(pl.String) for name in ("gpu", "engine", "engine_version"))
    wanted = engine.replace_strict(NEWEST, default=None)
    for special, versions in NEWEST_ON.items():
        wanted = pl.when(gpu == special).then(engine.replace_strict(versions, default=None)).otherwise(wanted)
    return frame.filter(version == wanted)


def with_former_kernels(frame: pl.DataFrame) -> pl.DataFrame:
    """`newest`, and of kernels that an engine no longer runs on a system the rows of the last version that did."""
    kernel = ["gpu", "engine", "dtype", "identity"]
    now = newest(frame)
    former = frame.join(now.select(kernel).unique(), on=kernel, how="anti", nulls_equal=True)
    versions = former["engine_version"].cast(pl.String).unique().to_list()
    oldest_first = sorted(versions, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])
    order = {version: place for place, version in enumerate(oldest_first)}
    place = pl.col("engine_version").cast(pl.String).replace_strict(order, return_dtype=pl.Int64)
    return pl.concat([now, former.filter(place == place.max().over(kernel))])


def _divide(frame: pl.DataFrame, is_test: pl.Series, split: Split) -> tuple[pl.DataFrame, pl.DataFrame, Split]:
    train, test = frame.filter(~is_test), frame.filter(is_test)
    return train, test, Split(split.kind, split.held_out, split.seed, train.height, test.height)


def uniform(frame: pl.DataFrame, family: str, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) per row that depends on the shape and the seed alone (splitmix64 over the shape columns)."""
    state = np.full(frame.height, _mixed(np.uint64(seed + 1)), dtype=np.uint64)
    for name, kind in SHAPES[family].items():
        if name in CONFIGURATION:
            continue
        column = frame[name]
        if kind in (pl.Int64, pl.Boolean):  # a flag that is not told is the same shape as one that is off
            values = column.cast(pl.Int64).fill_null(0 if kind == pl.Boolean else -1).to_numpy().astype(np.uint64)
        else:
            texts = column.cast(pl.String).fill_null("")
            codes = {text: zlib.crc32(text.encode()) for text in texts.unique()}
            values = texts.replace_strict(codes, return_dtype=pl.Int64).to_numpy().astype(np.uint64)
        state = _mixed(state ^ _mixed(values))
    return np.asarray(state >> np.uint64(11), dtype=np.float64) / 2.0**53


def _mixed(values: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        mixed = np.asarray(values, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)
