"""From tasks to time: placement on SMs, demand per pipeline, the bound, and the analytic time. Pure functions over arrays (L, V)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilecast.errors import SpecError
from tilecast.execution.arithmetic import ceil, maximum, minimum, sqrt, where
from tilecast.execution.clock import limited_fraction, stretch, tensor_width
from tilecast.execution.fitted import Constants, constants
from tilecast.execution.protocol import Protocol
from tilecast.execution.tasks import Floats, Numbers, TaskSet
from tilecast.hardware import GpuSpec

NARROWEST_WIDTH = 512.0  # 16-bit FLOP per clock per SM of the narrowest tensor cores
PORT_BYTES_PER_CLOCK = 128.0  # between an SM and L2: 64 each way
SHARPNESS = 30.0  # of the choice among variants: one that is 10 % slower weighs a twentieth; chosen, not fitted
PIPELINES = ("tensor", "vector", "special", "shared", "l2", "dram")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Tasks on SMs: the busiest SM's share, the waves, and how much of the last one is empty. Arrays (L,)."""

    num_tasks: Floats
    busiest_tasks: Floats
    waves: Floats
    tail_fraction: Floats  # of SM time that waits for the busiest SM


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything the analytic model says of L launches. Arrays (L,) but for `demand_s` and `busy_s`: pipeline -> (L,)."""

    bound_s: Floats
    analytic_s: Floats
    bound_by: np.ndarray  # pipeline that binds: names
    demand_s: Mapping[str, Floats]  # each pipeline's total demand at its peak, all SMs together
    busy_s: Mapping[str, Floats]  # the same on the busiest SM, at the sustained clock and reachable rates
    placement: Placement
    clock_hz: Floats
    launch_s: Floats
    variant: np.ndarray  # the tile or split that wins: names
    stages_s: Mapping[str, Floats] = field(default_factory=dict)  # how the winner's time adds up, in the order it does


class Once:
    """A function without arguments that is called at most once, when its value is first asked for."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Analysis]) -> None:
        self._make: Callable[[], Analysis] | None = make
        self._value: Analysis | None = None

    def __call__(self) -> Analysis:
        if self._value is None:
            assert self._make is not None
            self._value, self._make = self._make(), None  # what it was made of is no longer held
        return self._value


class Priced(NamedTuple):
    """The time, and what a correction looks at. Plain numbers for a lone launch, else arrays (L,)."""

    bound_s: Numbers
    analytic_s: Numbers
    busy_s: Mapping[str, Numbers]
    waves: Numbers
    tail_fraction: Numbers
    clock_hz: Numbers
    launch_s: Numbers
    dram_bytes: Numbers
    flop_s: Numbers  # the problem's FLOP at the highest rate: the part of the bound that doubles with every size
    analysis: Once  # the whole account, made when somebody reads it: many predictions are asked for their median alone


def analyse(tasks: TaskSet, gpu: GpuSpec, protocol: Protocol, using: Constants | None = None) -> Analysis:
    return price(tasks, gpu, protocol, using).analysis()


def price(tasks: TaskSet, gpu: GpuSpec, protocol: Protocol, using: Constants | None = None) -> Priced:
    """Price every variant and take the soft minimum, as a library's heuristic would.

    A lone launch is priced with plain numbers and rows of variants: the same lines, many times faster than on arrays of one entry.
    """
    rates = _rates(gpu, tasks.matrix_dtype, using)
    using = using or constants()
    num_launches = max(_rows(tasks.num_tasks), _rows(tasks.least_flop))
    if num_launches == 1:
        tasks = tasks.alone()
    num_launches = num_launches or 1
    mean_tasks = tasks.num_tasks / rates.num_sms
    busiest = ceil(mean_tasks) if tasks.busiest_tasks is None else maximum(tasks.busiest_tasks, mean_tasks)
    rounds = tasks.rounds
    if rounds is None:
        deals_whole_tasks = tasks.busiest_tasks is None and isinstance(tasks.resident, int) and tasks.resident == 1
        rounds = busiest if deals_whole_tasks else ceil(busiest / tasks.resident)

    work = _work_per_task(tasks, gpu, rates)
    boost_hz = gpu.boost_clock_hz
    busy = {name: busiest * (amount / (per_clock * boost_hz * rates.issued.get(name, 1.0))) for name, (amount, per_clock) in work.items()}
    stretched: Numbers = 1.0
    if rates.limited < 1.0 and rates.matrix_unit in busy and _used(tasks.matrix_flop):
        stretched = where(tasks.matrix_flop > 0, stretch(rates.limited, busy[rates.matrix_unit], using), 1.0)
        busy = {name: seconds * stretched for name, seconds in busy.items()}
    l2_per_s = (tasks.l2_bytes_per_clock_per_sm or rates.l2_bytes_per_clock) * boost_hz
    dram_per_s: Numbers = rates.dram_bytes_per_s * (tasks.dram_fraction or using.dram_fraction)
    if _used(tasks.l2_bytes):
        busy["l2"] = busiest * (tasks.l2_bytes / l2_per_s)
    else:  # few tasks cannot draw all of DRAM's bandwidth; where L2 traffic is counted per task it says so itself
        dram_per_s = minimum(dram_per_s, minimum(tasks.num_tasks, gpu.num_sms) * l2_per_s)
    pipelines_s = smooth_maximum(list(busy.values()))
    busy["dram"] = tasks.dram_bytes / dram_per_s

    exposed_s = busiest * (tasks.exposed_clocks * stretched / boost_hz) if _used(tasks.exposed_clocks) else 0.0
    memory_s = maximum(busy["dram"], tasks.operand_bytes / (rates.dram_bytes_per_s * using.l2_over_dram))
    running = smooth_maximum([pipelines_s + rounds * using.fill_s + (using.drain_s + exposed_s), memory_s])
    launch_s = rates.launch_s - tasks.hidden_s + (using.host_event_s if protocol.timer == "event" else 0.0)
    flop_s = tasks.least_flop / rates.highest_flop_per_s
    bound_s = _bound(tasks, gpu, flop_s)
    time_s = maximum(running + (tasks.fixed_s + launch_s), bound_s)
    chosen = _chooser(time_s, num_launches, len(tasks.variants))
    analytic_s = fastest_s = chosen(time_s)
    if len(tasks.variants) > 1:
        analytic_s = maximum(_soft_minimum(time_s, fastest_s, SHARPNESS), fastest_s)  # below it by rounding alone, and so below the bound

    waits_s: Numbers = 0.0
    if protocol.timer == "graph" and not gpu.replays_graphs:  # launched one behind the other: the host may be the slower of the two
        waits_s = maximum(0.0, chosen(tasks.host_calls) * using.host_event_s - analytic_s)
        analytic_s = analytic_s + waits_s
    launched_s = chosen(launch_s) + waits_s

    busy_chosen = {name: chosen(seconds) for name, seconds in busy.items()}
    mean_chosen, busiest_chosen, clock_hz = chosen(mean_tasks), chosen(busiest), boost_hz / chosen(stretched)
    waves, tail_fraction = mean_chosen / chosen(tasks.resident), 1.0 - mean_chosen / busiest_chosen

    def analysis() -> Analysis:
        def each(values: Numbers) -> Floats:
            return entries(chosen(values))

        def entries(found: Numbers) -> Floats:
            return np.asarray(found, np.float64) if isinstance(found, np.ndarray) else np.full(num_launches, found, np.float64)

        demand = {
            name: each(tasks.num_tasks * amount) / (per_clock * gpu.num_sms * gpu.highest_clock_hz)
            for name, (amount, per_clock) in work.items()
        }
        if "l2" in busy:  # SMs that share what they fetch take in more than L2 gives out
            demand["l2"] = each(tasks.num_tasks * tasks.l2_bytes / maximum(gpu.num_sms * l2_per_s, gpu.l2_bytes_per_s or 0.0))
        busy_each = {name: each(seconds) for name, seconds in busy.items()}
        return Analysis(
            bound_s=each(bound_s),
            analytic_s=entries(analytic_s),
            bound_by=_binding(busy_each, entries(launched_s)),
            demand_s={**demand, "dram": each(tasks.dram_bytes) / gpu.dram_bytes_per_s},
            busy_s=busy_each,
            placement=Placement(
                num_tasks=each(tasks.num_tasks),
                busiest_tasks=each(busiest),
                waves=entries(waves),
                tail_fraction=entries(tail_fraction),
            ),
            clock_hz=entries(clock_hz),
            launch_s=entries(launched_s),
            variant=_variant(tasks, chosen.best),
            stages_s={
                "pipelines of the busiest SM together": each(pipelines_s),
                "starts and end": each(rounds * using.fill_s + using.drain_s),
                "waits that nothing hides": each(exposed_s),
                "DRAM": busy_each["dram"],
                "SM and DRAM together": each(running),
                "further kernels": each(tasks.fixed_s),
                "launch": entries(launched_s),
                "cheapest variant": entries(fastest_s + waits_s),
            },
        )

    return Priced(
        bound_s=chosen(bound_s),
        analytic_s=analytic_s,
        busy_s=busy_chosen,
        waves=waves,
        tail_fraction=tail_fraction,
        clock_hz=clock_hz,
        launch_s=launched_s,
        dram_bytes=chosen(tasks.dram_bytes),
        flop_s=chosen(flop_s),
        analysis=Once(analysis),
    )


# ---- arrays (L, V), columns (L, 1), rows (V,) and plain numbers ----------------------------------------------------


def _rows(values: Numbers) -> int:
    """The launches L of an array (L, V); 0 of anything else."""
    return len(values) if isinstance(values, np.ndarray) and values.ndim == 2 else 0


def _used(work: Numbers) -> bool:
    """Whether any launch has such work; mostly the first entry tells."""
    return bool(work.item(0) or work.any()) if isinstance(work, np.ndarray) else bool(work)


class _Chosen:
    """Reads the fastest variant's value: a number for a lone launch, else an array (L,)."""

    __slots__ = ("best", "num_launches")

    def __init__(self, num_launches: int, best: np.ndarray) -> None:
        self.num_launches, self.best = num_launches, best

    def __call__(self, values: Numbers) -> Floats:
        if not isinstance(values, np.ndarray) or values.size == 1:
            return np.full(self.num_launches, values, np.float64)
        if values.ndim == 1 or len(values) == 1:
            return values.reshape(-1).take(self.best)
        return values[:, 0] if values.shape[1] == 1 else np.asarray(values[np.arange(self.num_launches), self.best])


class _ChosenAlone:
    __slots__ = ("best", "place")

    def __init__(self, place: int) -> None:
        self.place, self.best = place, [place]

    def __call__(self, values: Numbers) -> float:
        return values.item(self.place) if isinstance(values, np.ndarray) else values


def _variant(tasks: TaskSet, best: Any) -> np.ndarray:
    """What each launch's best variant is called."""
    if tasks.own_variant is None:
        return np.asarray(_texts(tasks.variants).take(best))
    return tasks.own_variant if tasks.own_variant.ndim == 1 else tasks.own_variant[np.arange(len(best)), best]


def _chooser(time_s: Any, num_launches: int, num_variants: int) -> Any:
    if num_launches == 1:
        return _ChosenAlone(int(time_s.argmin()) if isinstance(time_s, np.ndarray) else 0)
    return _Chosen(num_launches, time_s.argmin(axis=1) if num_variants > 1 else np.zeros(num_launches, np.int64))


@lru_cache(maxsize=256)
def _texts(texts: tuple[str, ...]) -> np.ndarray:
    return np.asarray(texts)


def _binding(busy_s: dict[str, Floats], launch_s: Floats) -> np.ndarray:
    """The pipeline that is busy longest, or the launch where none is busy for as long as that takes. (L,)"""
    parts_s = np.array(list(busy_s.values()))
    longest = parts_s.argmax(axis=0)
    return _texts((*busy_s, "launch")).take(np.where(parts_s.max(axis=0) < launch_s, len(parts_s), longest))


# ---- rates ---------------------------------------------------------------------------------------------------------


def launch_seconds(gpu: GpuSpec, using: Constants) -> float:
    """From launch to the first instruction and from the last one to completion, on the device."""
    return using.launch_cycles / gpu.boost_clock_hz + using.launch_s


def l2_bytes_per_clock(gpu: GpuSpec, using: Constants) -> float:
    """What a library's kernel takes in per SM: neighbours of a cluster share what they fetch, where the hardware can."""
    return using.multicast_bytes_per_clock_per_sm if gpu.multicasts else using.unicast_bytes_per_clock_per_sm


def matrix_rate(gpu: GpuSpec, dtype: str) -> tuple[float, bool]:
    """FLOP per clock per SM of a matrix product, and whether tensor cores do it."""
    if dtype in gpu.tensor_flop_per_clock_per_sm:
        return gpu.tensor_flop_per_clock_per_sm[dtype], True
    if dtype in gpu.vector_flop_per_clock_per_sm:
        return gpu.vector_flop_per_clock_per_sm[gpu.lanes(dtype)], False
    known = sorted({*gpu.tensor_flop_per_clock_per_sm, *gpu.vector_flop_per_clock_per_sm})
    raise SpecError(f"{gpu.id} has no {dtype} matrix rate; it has {', '.join(known)}")


def issue_fraction(gpu: GpuSpec, on_tensor: bool, using: Constants) -> float:
    """Share of a unit's peak at its clock that a main loop issues: the wider the tensor core, the harder it is to feed."""
    library = using.amd_fraction if gpu.vendor == "amd" else 1.0
    if not on_tensor:
        return using.tensor_fraction * library
    # The constant is that of 4096 FLOP per clock, Hopper's width. A part of half its die's rate lies between both widths, and where it is a
    # GeForce its clock between the rated and the highest.
    width, whole = tensor_width(gpu), 2.0 * NARROWEST_WIDTH
    doublings = math.log2(max(width, math.sqrt(width * whole)) / NARROWEST_WIDTH)
    share = using.tensor_fraction ** math.sqrt(doublings / 3.0)
    if width < whole:
        share = min(1.0, share * math.sqrt(gpu.highest_clock_hz / gpu.boost_clock_hz))
    return float(share * library)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What one GPU does with matrices of one dtype, whatever the launch."""

    num_sms: float
    launch_s: float
    issued: Mapping[str, float]  # pipeline -> share of its clocks with useful work in them, where not all
    matrix_unit: str  # pipeline that multiplies matrices
    flop_per_clock: float
    highest_flop_per_s: float
    limited: float  # share of the boost clock that the power limit leaves for long
    l2_bytes_per_clock: float  # per SM
    dram_bytes_per_s: float


@lru_cache(maxsize=512)
def _rates(gpu: GpuSpec, dtype: str, asked: Constants | None) -> _Rates:
    using = asked or constants()
    launch_s = launch_seconds(gpu, using)
    flop_per_clock, on_tensor = matrix_rate(gpu, dtype)
    issued = {"tensor": issue_fraction(gpu, True, using), "vector": issue_fraction(gpu, False, using)}
    unit = "tensor" if on_tensor else "vector"
    flop_per_s = gpu.num_sms * flop_per_clock * gpu.boost_clock_hz * issued[unit]
    limited = limited_fraction(gpu, dtype, on_tensor, flop_per_s, using)
    return _Rates(
        num_sms=float(gpu.num_sms),
        launch_s=launch_s,
        issued=issued,
        matrix_unit=unit,
        flop_per_clock=flop_per_clock,
        highest_flop_per_s=gpu.highest_matrix_rate(dtype),
        limited=limited,
        l2_bytes_per_clock=l2_bytes_per_clock(gpu, using),
        dram_bytes_per_s=gpu.dram_data_bytes_per_s,
    )


def _work_per_task(tasks: TaskSet, gpu: GpuSpec, rates: _Rates) -> dict[str, tuple[Numbers, float]]:
    """Of the pipelines on an SM that are used: what one task asks for, and what the pipeline does in a clock at its peak."""
    work: dict[str, tuple[Numbers, float]] = {}
    vector_per_clock = gpu.vector_flop_per_clock_per_sm["fp32"]
    if _used(tasks.matrix_flop):
        work[rates.matrix_unit] = tasks.matrix_flop, rates.flop_per_clock
    if _used(tasks.vector_flop):
        flop, per_clock = work.get("vector", (0.0, vector_per_clock))
        work["vector"] = tasks.vector_flop + flop * (vector_per_clock / per_clock), vector_per_clock
    if _used(tasks.special_ops):
        work["special"] = tasks.special_ops, gpu.special_per_clock_per_sm or 16.0
    if _used(tasks.shared_bytes):
        work["shared"] = tasks.shared_bytes, gpu.shared_bytes_per_clock_per_sm or 128.0
    return work


def _bound(tasks: TaskSet, gpu: GpuSpec, flop_s: Numbers) -> Numbers:
    """The least work of the problem, for the asked cache state, at the highest rates: nothing real is faster (decision 0011)."""
    bound_s: Numbers = maximum(tasks.least_bytes / gpu.dram_bytes_per_s, flop_s)
    if _used(tasks.least_port_bytes):
        bound_s = maximum(bound_s, tasks.least_port_bytes / (gpu.num_sms * PORT_BYTES_PER_CLOCK * gpu.highest_clock_hz))
    return bound_s


# ---- smooth choices ------------------------------------------------------------------------------------------------


def smooth_maximum(parts: list[Numbers]) -> Any:
    """The fourth root of the sum of fourth powers: the maximum when one part dominates, 19 % above it when two are equal.

    Pipelines overlap well but compete for issue slots and memory; squares and square roots keep it cheap.
    """
    if len(parts) < 2:
        return parts[0] if parts else 0.0
    first, second, *others = parts
    if not others and isinstance(first, np.ndarray) and first.ndim == 1:  # a lone launch: fewer calls on few numbers
        return np.sqrt(np.hypot(first * first, second * second))
    total: Any = None
    for part in parts:
        square = part * part
        total = square * square if total is None else total + square * square
    return sqrt(sqrt(total))


def _soft_minimum(time_s: Floats, fastest_s: Numbers, sharpness: float) -> Any:
    """The average over variants, weighted towards the fastest."""
    rate = -sharpness / fastest_s
    weight = np.exp(time_s * (rate[:, None] if isinstance(rate, np.ndarray) else rate))
    if time_s.ndim == 1:  # few numbers: adding them up one by one costs a third
        return float(weight.dot(time_s)) / sum(weight.tolist())
    average: Floats = np.vecdot(weight, time_s) / weight.sum(axis=-1)
    return average
