"""What a kernel is: a frozen record of launch parameters, one shape or a million, that can split itself into tasks for a GPU."""

from typing import Any, ClassVar, Protocol

import numpy as np

from tilecast.errors import InvalidInput
from tilecast.execution import Analysis, Once, Priced, TaskSet, price
from tilecast.execution import Protocol as Timing
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec

LARGEST = 2**53  # above this a float64 no longer counts one by one


class Kernel(Protocol):
    """A family's launch parameters. Every size is a whole number, or an array with one entry per launch."""

    family: ClassVar[str]

    @property
    def dtype(self) -> str: ...

    def tasks(self, gpu: GpuSpec, protocol: Timing) -> TaskSet:
        """The launches' work, split as the kernel splits it on `gpu`. Raises InvalidInput or SpecError for what cannot run."""
        ...


def sizes(*, at_least: int = 1, **named: Any) -> dict[str, Floats]:
    """Named sizes as float columns (L, 1) of one common length, checked to be whole numbers in range."""
    if plain := _plain(named, at_least):
        return {name: np.array([[value]]) for name, value in plain.items()}
    columns: dict[str, Floats] = {}
    for name, raw in named.items():
        values = np.atleast_1d(np.asarray(raw))
        if values.dtype == bool or values.dtype.kind not in "iuf" or values.ndim != 1:
            raise InvalidInput(f"{name} = {raw!r} must be a whole number, or a list of them")
        floats = values.astype(np.float64)
        bad = ~((floats == np.floor(floats)) & (floats >= at_least) & (floats <= LARGEST))  # nan is none of these
        if bad.any():
            row = int(np.argmax(bad))
            where = f" (launch {row})" if len(values) > 1 else ""
            raise InvalidInput(f"{name} = {values[row]}{where} must be a whole number of at least {at_least}")
        columns[name] = floats[:, None]
    lengths = {len(values) for values in columns.values()} - {1}
    if len(lengths) > 1:
        told = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise InvalidInput(f"parameters have different numbers of launches: {told}")
    length = max(len(values) for values in columns.values())
    return {name: values if len(values) == length else np.full((length, 1), values[0, 0]) for name, values in columns.items()}


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


def flag(given: Any, name: str) -> Any:
    """A parameter that is true or false: itself, or a column (L, 1) of them; 1 and 0 will do."""
    if isinstance(given, bool):
        return given
    values = np.asarray(given)
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise InvalidInput(f"{name} = {given!r} must be true or false")
    return values.astype(bool).reshape(-1, 1)


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
        analysis=Once(lambda: analysis),
    )
