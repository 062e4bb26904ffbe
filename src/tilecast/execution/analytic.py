"""From tasks to time: placement on SMs, demand per pipeline, the bound, and the analytic time. Pure functions over arrays (L, V)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilecast.errors import SpecError
from tilecast.execution.clock import sustained_fraction, tensor_width
from tilecast.execution.fitted import Constants, constants
from tilecast.execution.protocol import Protocol
from tilecast.execution.tasks import Floats, TaskSet
from tilecast.hardware import GpuSpec

NARROWEST_WIDTH = 512.0  # 16-bit FLOP per clock per SM of the narrowest tensor cores
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


def analyse(tasks: TaskSet, gpu: GpuSpec, protocol: Protocol, using: Constants | None = None) -> Analysis:
    """Price every variant and take the soft minimum, as a library's heuristic would."""
    using = using or constants()
    num_tasks = np.atleast_2d(tasks.num_tasks)
    shape = np.broadcast_shapes(num_tasks.shape, np.shape(tasks.least_flop), (1, len(tasks.variants)))
    busiest = np.ceil(num_tasks / gpu.num_sms) if tasks.busiest_tasks is None else np.maximum(tasks.busiest_tasks, num_tasks / gpu.num_sms)
    rounds = np.ceil(busiest / tasks.resident) if tasks.rounds is None else tasks.rounds

    clocks = _clocks_per_task(tasks, gpu)  # SM clocks at peak, for the pipelines that are used
    boost_hz = gpu.boost_clock_hz
    slowdown = _slowdown(tasks, gpu, clocks, busiest, using)
    l2_per_s = (tasks.l2_bytes_per_clock_per_sm or using.l2_bytes_per_clock_per_sm) * boost_hz
    reachable_hz = {name: boost_hz * issue_fraction(gpu, name == "tensor", using) * slowdown for name in ("tensor", "vector")}
    busy = {name: busiest * per_task / reachable_hz.get(name, boost_hz * slowdown) for name, per_task in clocks.items()}
    if np.any(np.asarray(tasks.l2_bytes) > 0):
        busy["l2"] = busiest * tasks.l2_bytes / l2_per_s
    dram_fraction = tasks.dram_fraction or using.dram_fraction
    dram_per_s = np.asarray(gpu.dram_bytes_per_s * dram_fraction)
    if "l2" not in busy:  # few tasks cannot draw all of DRAM's bandwidth; where L2 traffic is counted per task it says so itself
        dram_per_s = np.minimum(dram_per_s, np.minimum(num_tasks, gpu.num_sms) * l2_per_s)
    dram_s = np.asarray(tasks.dram_bytes / dram_per_s)

    pipelines_s = _smooth_maximum(list(busy.values()))
    edges_s = rounds * using.fill_s + using.drain_s
    exposed_s = busiest * tasks.exposed_clocks / (boost_hz * slowdown)
    running = _smooth_maximum([pipelines_s + edges_s + exposed_s, dram_s])
    launch_s = launch_seconds(gpu, using) + (using.host_event_s if protocol.timer == "event" else 0.0)
    bound_s = np.broadcast_to(_bound(tasks, gpu), shape[0])
    time_s = np.broadcast_to(np.maximum(running + (tasks.fixed_s + launch_s), bound_s[:, None]), shape)
    analytic_s, best = _soft_minimum(time_s, SHARPNESS)

    rows = np.arange(shape[0])

    def chosen(values: Floats | float) -> Floats:
        return np.asarray(np.broadcast_to(values, shape)[rows, best])

    busy_chosen = {name: chosen(values) for name, values in (busy | {"dram": dram_s}).items()}
    used = list(busy_chosen)
    binding = np.asarray(used)[np.argmax(np.stack([busy_chosen[name] for name in used]), axis=0)]
    mostly_launch = np.max(np.stack(list(busy_chosen.values())), axis=0) < launch_s
    demand = {name: chosen(num_tasks * per_task) / (gpu.num_sms * gpu.highest_clock_hz) for name, per_task in clocks.items()}
    if "l2" in busy:
        demand["l2"] = chosen(num_tasks * tasks.l2_bytes) / (gpu.l2_bytes_per_s or gpu.num_sms * l2_per_s)
    demand["dram"] = chosen(tasks.dram_bytes) / gpu.dram_bytes_per_s
    tasks_chosen, busiest_chosen = chosen(num_tasks), chosen(busiest)
    return Analysis(
        bound_s=np.asarray(bound_s),
        analytic_s=analytic_s,
        bound_by=np.where(mostly_launch, "launch", binding),
        demand_s=demand,
        busy_s=busy_chosen,
        placement=Placement(
            num_tasks=tasks_chosen,
            busiest_tasks=busiest_chosen,
            waves=tasks_chosen / (gpu.num_sms * chosen(tasks.resident)),
            tail_fraction=1.0 - tasks_chosen / gpu.num_sms / busiest_chosen,
        ),
        clock_hz=boost_hz * chosen(slowdown),
        launch_s=np.full(shape[0], launch_s),
        variant=np.asarray(tasks.variants)[best],
        stages_s={
            "pipelines of the busiest SM together": chosen(pipelines_s),
            "starts and end": chosen(edges_s),
            "waits that nothing hides": chosen(exposed_s),
            "DRAM": chosen(dram_s),
            "SM and DRAM together": chosen(running),
            "further kernels": chosen(tasks.fixed_s),
            "launch": np.full(shape[0], launch_s),
            "cheapest variant": chosen(time_s),
        },
    )


def launch_seconds(gpu: GpuSpec, using: Constants) -> float:
    """From launch to the first instruction and from the last one to completion, on the device."""
    return using.launch_cycles / gpu.boost_clock_hz + using.launch_s


def matrix_rate(gpu: GpuSpec, dtype: str) -> tuple[float, bool]:
    """FLOP per clock per SM of a matrix product, and whether tensor cores do it."""
    if dtype in gpu.tensor_flop_per_clock_per_sm:
        return gpu.tensor_flop_per_clock_per_sm[dtype], True
    if dtype in gpu.vector_flop_per_clock_per_sm:
        return gpu.vector_flop_per_clock_per_sm[dtype], False
    known = sorted({*gpu.tensor_flop_per_clock_per_sm, *gpu.vector_flop_per_clock_per_sm})
    raise SpecError(f"{gpu.id} has no {dtype} matrix rate; it has {', '.join(known)}")


def issue_fraction(gpu: GpuSpec, on_tensor: bool, using: Constants) -> float:
    """Share of a unit's peak at its clock that a main loop issues: the wider the tensor core, the harder it is to feed."""
    library = using.amd_fraction if gpu.vendor == "amd" else 1.0
    if not on_tensor:
        return using.tensor_fraction * library
    doublings = math.log2(tensor_width(gpu) / NARROWEST_WIDTH)
    return float(
        using.tensor_fraction ** math.sqrt(doublings / 3.0) * library
    )  # the constant is that of 4096 FLOP per clock, Hopper's width


def _clocks_per_task(tasks: TaskSet, gpu: GpuSpec) -> dict[str, Floats]:
    clocks: dict[str, Floats] = {}
    if np.any(np.asarray(tasks.matrix_flop) > 0):
        rate, on_tensor = matrix_rate(gpu, tasks.matrix_dtype)
        clocks["tensor" if on_tensor else "vector"] = np.asarray(tasks.matrix_flop / rate)
    if np.any(np.asarray(tasks.vector_flop) > 0):
        clocks["vector"] = clocks.get("vector", 0.0) + np.asarray(tasks.vector_flop / gpu.vector_flop_per_clock_per_sm["fp32"])
    if np.any(np.asarray(tasks.special_ops) > 0):
        clocks["special"] = np.asarray(tasks.special_ops / (gpu.special_per_clock_per_sm or 16.0))
    if np.any(np.asarray(tasks.shared_bytes) > 0):
        clocks["shared"] = np.asarray(tasks.shared_bytes / (gpu.shared_bytes_per_clock_per_sm or 128.0))
    return clocks


def _slowdown(tasks: TaskSet, gpu: GpuSpec, clocks: dict[str, Floats], busiest: Floats, using: Constants) -> Floats:
    """Sustained over boost clock, from what the units that multiply matrices would draw."""
    if not np.any(np.asarray(tasks.matrix_flop) > 0):
        return np.ones((1, 1))
    rate, on_tensor = matrix_rate(gpu, tasks.matrix_dtype)
    issue_hz = gpu.boost_clock_hz * issue_fraction(gpu, on_tensor, using)
    busy_s = busiest * clocks["tensor" if on_tensor else "vector"] / issue_hz
    return sustained_fraction(gpu, tasks.matrix_dtype, on_tensor, gpu.num_sms * rate * issue_hz, busy_s, using)


def _bound(tasks: TaskSet, gpu: GpuSpec) -> Floats:
    """The largest pipeline demand for the asked cache state at the highest clock: nothing real is faster. (L,)"""
    flop = np.asarray(tasks.least_flop, dtype=np.float64).reshape(-1)
    traffic_s = np.asarray(tasks.least_bytes, dtype=np.float64).reshape(-1) / gpu.dram_bytes_per_s
    return np.asarray(np.maximum(flop / gpu.highest_matrix_rate(tasks.matrix_dtype), traffic_s) if np.any(flop > 0) else traffic_s)


def _smooth_maximum(parts: list[Floats]) -> Floats:
    """The fourth root of the sum of fourth powers: the maximum when one part dominates, 19 % above it when two are equal.

    Pipelines overlap well but compete for issue slots and memory; squares and square roots keep it cheap.
    """
    if len(parts) == 1:
        return parts[0]
    total = sum(np.square(np.square(part * 1e6)) for part in parts)  # microseconds, so that powers stay far from underflow
    return np.asarray(np.sqrt(np.sqrt(total)) * 1e-6)


def _soft_minimum(time_s: Floats, sharpness: float) -> tuple[Floats, np.ndarray]:
    """The average over variants, weighted towards the fastest, and the fastest itself."""
    best = np.argmin(time_s, axis=1)
    fastest = time_s[np.arange(len(best)), best]
    if time_s.shape[1] == 1:
        return np.asarray(fastest), best
    weight = np.exp(sharpness * (1.0 - time_s / fastest[:, None]))
    return np.asarray(np.einsum("lv,lv->l", weight, time_s) / weight.sum(axis=1)), best
