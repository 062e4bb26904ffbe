"""What a kernel is: a frozen record of launch parameters, one shape or a million, that can split itself into tasks for a GPU."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from tilecast.dtypes import QUANTISATIONS
from tilecast.errors import InvalidInput, UnknownName, shown
from tilecast.execution import Analysis, Once, Priced, TaskSet, price
from tilecast.execution import Protocol as Timing
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec

Doublings = tuple[tuple[str, ...], ...]  # sizes that double together: with each of them a launch may only take longer
KEPT = 0.97  # of the time, at the least, when a size doubles: the law of doubling (`predictors/law.py`)
LARGEST = 2**53  # above this a float64 no longer counts one by one
SHARED = ("num_heads", "num_kv_heads")


class Kernel(Protocol):
    """A family's launch parameters. Every size is a whole number, or an array with one entry per launch."""

    family: ClassVar[str]

    @property
    def dtype(self) -> str: ...

    def tasks(self, gpu: GpuSpec, protocol: Timing) -> TaskSet:
        """The launches' work, split as the kernel splits it on `gpu`. Raises InvalidInput or SpecError for what cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class Built:
    """What rows of a kernel say of sizes that libraries build kernels for, such as the width of a head."""

    known: frozenset[tuple[int, ...]]  # that rows have, of what a family is `known_by`
    changes: frozenset[int]  # from which on, doubled, another kernel runs

    def as_lists(self) -> list[list[Any]]:
        return [sorted(map(list, self.known)), sorted(self.changes)]

    @staticmethod
    def of_lists(known: list[list[int]], changes: list[int]) -> "Built":
        return Built(frozenset(map(tuple, known)), frozenset(changes))


def size_built_for(name: str, size: Callable[[str], Any], record: Any) -> Any:
    """What a kernel is built for where `name` doubles alone: query heads of one KV head, else that size itself."""
    shares = name in SHARED and set(SHARED) <= {entry.name for entry in fields(record)}
    return size("num_heads") // size("num_kv_heads") if shares else size(name)


def sizes(*, at_least: int = 1, **named: Any) -> dict[str, Floats]:
    """Named sizes as float columns (L, 1) of one common length, checked to be whole numbers in range."""
    if plain := _plain(named, at_least):
        return {name: np.array([[value]]) for name, value in plain.items()}
    columns: dict[str, Floats] = {}
    for name, raw in named.items():
        try:
            values = np.atleast_1d(np.asarray(raw))
        except ValueError:  # lists of different lengths inside a list
            values = np.empty(0, dtype=object)
        if values.dtype == bool or values.dtype.kind not in "iuf" or values.ndim != 1:
            raise InvalidInput(_no_size(name, raw, values, at_least))
        if not len(values):
            raise InvalidInput(f"{name} = {shown(raw)} must hold at least one whole number")
        floats = values.astype(np.float64)
        bad = ~((floats == np.floor(floats)) & (floats >= at_least) & (floats <= LARGEST))  # nan is none of these
        if bad.any():
            row = int(np.argmax(bad))
            where = f" (launch {row})" if len(values) > 1 else ""
            limit = f"at most {LARGEST:,.0f}" if floats[row] > LARGEST else f"at least {at_least}"
            raise InvalidInput(f"{name} = {shown(values[row].item())}{where} must be a whole number of {limit}")
        columns[name] = floats[:, None]
    lengths = {len(values) for values in columns.values()} - {1}
    if len(lengths) > 1:
        told = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise InvalidInput(f"parameters have different numbers of launches: {told}")
    length = max(len(values) for values in columns.values())
    return {name: values if len(values) == length else np.full((length, 1), values[0, 0]) for name, values in columns.items()}


def _no_size(name: str, raw: Any, values: Any, at_least: int) -> str:
    """What is wrong with values that no array of numbers holds: one beyond 64 bits, else whatever they are."""
    entries = values.tolist() if values.ndim == 1 else []
    beyond = next((entry for entry in entries if type(entry) is int and abs(entry) > LARGEST), None)
    if beyond is None or not all(type(entry) in (int, float) for entry in entries):
        return f"{name} = {shown(entries[0] if len(entries) == 1 else raw)} must be a whole number, or a list of them"
    where = f" (launch {entries.index(beyond)})" if len(entries) > 1 else ""
    try:
        said = f"{beyond:.6g}"
    except OverflowError:  # no float is as large
        said = shown(beyond)
    limit = f"at most {LARGEST:,.0f}" if beyond > 0 else f"at least {at_least}"
    return f"{name} = {said}{where} must be a whole number of {limit}"


def launch_sizes(*, at_least: int = 1, **named: Any) -> dict[str, Any]:
    """As `sizes`, but plain floats for a lone launch: the same formulas cost a tenth on them."""
    return _plain(named, at_least) or sizes(at_least=at_least, **named)


def _plain(named: dict[str, Any], at_least: int) -> dict[str, float] | None:
    """The sizes as floats where each is one whole number in range; anything else is for `sizes` to take apart, or to refuse."""
    floats: dict[str, float] = {}
    for name, value in named.items():
        if type(value) is not int or not at_least <= value <= LARGEST:
            return None
        floats[name] = float(value)
    return floats


def count(given: Any, name: str) -> int | None:
    """A number that holds for all launches, such as the parts of a split: a whole number of at least 1, or None."""
    if given is None:
        return None
    try:
        plain = index(given)
    except TypeError:
        plain = 0
    if isinstance(given, bool) or plain < 1:
        raise InvalidInput(f"{name} = {shown(given)} must be a whole number of at least 1")
    return plain


def above_zero(given: Any, name: str) -> float:
    """A rate or a factor that holds for all launches: a number above 0."""
    is_number = isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)
    if not is_number or not 0 < given < np.inf:
        raise InvalidInput(f"{name} = {shown(given)} must be a number above 0")
    return float(given)


def flag(given: Any, name: str) -> Any:
    """A parameter that is true or false: itself, or a column (L, 1) of them; 1 and 0 will do."""
    if isinstance(given, bool):
        return given
    try:
        values = np.asarray(given)
    except ValueError:
        values = np.empty(0, dtype=object)
    wrong = ~np.isin(values, (0, 1)) if values.dtype.kind in "biuf" else np.ones(values.shape, bool)
    if not values.size or wrong.any():
        raise InvalidInput(f"{name} = {shown(values[wrong].tolist()[0] if values.size else given)} must be true or false")
    return values.astype(bool).reshape(-1, 1)


# Families with one kernel: a name for it would be ignored.
NAMELESS = frozenset({
    "conv2d", "elementwise", "embedding", "flash_attention_1", "kv_cache_write", "layer_norm", "layer_norm_backward", "optimizer_update",
    "quantize", "sampling", "softmax", "softmax_backward",
})  # fmt: skip
MEASURED_IN = ("pytorch", "framework", "nccl", "oneccl")  # where kernels were measured besides the engines that `predict` knows
RELEASE = re.compile(r"\d+(\.\d+)*([.-]?(post|rc|dev)\d*)?$")
RAGGED = ("q_lens", "kv_lens", "tile")  # lists that are no list of launches


@cache
def engine_names() -> frozenset[str]:
    """Engines that `predict` knows, by their files (what prices a kernel comes before them), and where else kernels were measured."""
    folder = Path(__file__).parents[1] / "engines"
    return frozenset({*MEASURED_IN, *(path.stem for path in folder.glob("*.toml") if path.with_suffix(".py").exists())})


def checked_engine(name: str) -> str:
    """The engine's plain name: a kernel by itself is the same in all releases, sglang@0.5.14 for one."""
    if name in engine_names():
        return name
    plain, at, release = name.partition("@")
    if plain not in engine_names():
        raise UnknownName.among("engine", plain, engine_names())
    if at and not RELEASE.match(release):
        raise InvalidInput(f"engine {name}: {release!r} is no release, such as 0.5.14")
    return plain


def check_asked(kernel: Any, engine: Any) -> str:
    """Whether this is a kernel at all, and its names are names: sizes are for its own file to check. The engine's plain name, if any."""
    if isinstance(kernel, type) or not (hasattr(kernel, "tasks") or hasattr(kernel, "analyse")):
        raise InvalidInput(f"kernel = {shown(kernel)} must be a launch such as Gemm(m=512, n=4096, k=4096): see tilecast.kernels")
    if not isinstance(kernel.dtype, str):
        raise UnknownName.among("dtype", kernel.dtype, QUANTISATIONS)
    identity = getattr(kernel, "identity", None)
    if identity is not None and not isinstance(identity, str):
        raise InvalidInput(f"identity = {shown(identity)} of {kernel.family} must be a name, or None for what the engine would run")
    if identity and kernel.family in NAMELESS:
        raise InvalidInput(f"identity = {identity!r}: {kernel.family} has one kernel and no names for it; leave identity out")
    own = getattr(kernel, "engine", None)
    for name in (engine, own or engine):
        if not isinstance(name, str):
            raise InvalidInput(f"engine = {shown(name)} must be a name such as 'sglang'")
    if own and own not in engine_names():
        raise UnknownName.among("engine", own, engine_names())
    return checked_engine(engine) if engine else ""


def identity_on(kernel: Any, gpu: GpuSpec, launch: int = 0) -> str | None:
    """The name of what is priced: the one asked for or, left open, what the newest SGLang would run; None where kernels have no names."""
    if kernel.identity is not None or not hasattr(kernel, "newest_identity"):
        named: str | None = kernel.identity
        return named
    is_unnamed = np.ravel(kernel.unnamed()) if hasattr(kernel, "unnamed") else np.zeros(1, bool)
    newest: str | None = kernel.newest_identity(gpu)
    return None if is_unnamed[launch if is_unnamed.size > 1 else 0] else newest


def length_of(given: Any) -> int:
    """Of a list of launches; an array without a dimension is none."""
    return len(given) if getattr(given, "ndim", 1) else 0


def check_lists(given: Mapping[str, Any]) -> None:
    """Lists of launches are of one length, or of one entry; true and false vary along sizes that do."""
    lists = {name: value for name, value in given.items() if isinstance(value, list | tuple | range | np.ndarray) and name not in RAGGED}
    lengths = {name: len(value) for name, value in lists.items() if length_of(value) > 1 and np.ndim(value[:1]) == 1}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(
            f"parameters have different numbers of launches: {', '.join(f'{name} {size}' for name, size in lengths.items())}"
        )
    if lengths and all(isinstance(lists[name][0], bool | np.bool_) for name in lengths):
        name = next(iter(lengths))
        raise InvalidInput(f"{name} has {lengths[name]} values, but every size is one number: give a size as a list of {lengths[name]} too")


def execution_of(kernel: Any, gpu: GpuSpec, protocol: Timing) -> Analysis:
    """The analytic account of a kernel: from its tasks, or its own where it is no work on SMs (a collective)."""
    return priced(kernel, gpu, protocol).analysis()


def priced(kernel: Any, gpu: GpuSpec, protocol: Timing) -> Priced:
    """The time of a kernel and what a correction looks at; its account is made when asked for."""
    if not hasattr(kernel, "analyse"):
        return price(kernel.tasks(gpu, protocol), gpu, protocol)
    analysis: Analysis = kernel.analyse(gpu, protocol)
    return Priced(
        bound_s=analysis.bound_s,
        analytic_s=analysis.analytic_s,
        busy_s=analysis.busy_s,
        waves=analysis.placement.waves,
        tail_fraction=analysis.placement.tail_fraction,
        clock_hz=analysis.clock_hz,
        launch_s=analysis.launch_s,
        dram_bytes=0.0,
        flop_s=0.0,
        analysis=Once(lambda: analysis),
    )
