"""The record of a predicted step, its lines, and how the operators of a graph are priced: what one GPU and many have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilecast import units
from tilecast.engines.eager import Clocks, host_cost, run
from tilecast.engines.interval import NOTHING, Interval
from tilecast.engines.settled import settled
from tilecast.errors import InvalidInput
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.kernels.optimizer_update import OptimizerUpdate
from tilecast.markup import html_table
from tilecast.workloads.aggregate import BASES, CallTime, Price, joined, price_step, weakest
from tilecast.workloads.aten import launches
from tilecast.workloads.graph import KernelCall, Step
from tilecast.workloads.opgraph import ITEM_BYTES, Node, OpGraph

ENGINE = "pytorch"  # whose measurements are asked
PHASES = ("forward", "loss", "backward", "optimizer", "communication")
UPDATED = ("forward", "backward", "optimizer")  # the phases that make a step: the loss is part of forward
HOST = "host"
BUBBLE = "pipeline bubble"
WIDE_BYTES = 4  # of fp32
LEAST_WAIT_S = 1e-9  # below is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeps:
    """What an optimizer keeps for a trained weight, and the format of its gradient; all in bytes of one weight."""

    states: int = 0  # tensors beside each weight
    how: str = "foreach"
    master: bool = False  # weights of 16 bits have a copy in fp32, and states in fp32 too
    wide_gradients: bool = False  # gradients of 16 bits are added up in fp32

    def has_master(self, dtype: str) -> bool:
        return self.master and ITEM_BYTES[dtype] < WIDE_BYTES

    def gradient_bytes(self, dtype: str) -> int:
        return max(ITEM_BYTES[dtype], WIDE_BYTES) if self.wide_gradients else ITEM_BYTES[dtype]

    def state_bytes(self, dtype: str) -> int:
        return WIDE_BYTES * (self.states + 1) if self.has_master(dtype) else ITEM_BYTES[dtype] * self.states

    def passing_bytes(self, dtype: str) -> int:
        """While it updates: a list of intermediates where all tensors go operation by operation, and gradients made wide."""
        wide = self.has_master(dtype)
        intermediates = (WIDE_BYTES if wide else ITEM_BYTES[dtype]) if self.how == "foreach" and self.states else 0
        return intermediates + (WIDE_BYTES if wide and self.how != "fused" and not self.wide_gradients else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes on the GPU at the fullest moment of the step."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  # everything else that is alive at once
    saved_bytes: int  # of these, what the forward pass keeps for the backward pass
    buffers_bytes: int
    reserved_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        parts = (
            self.weights_bytes,
            self.gradients_bytes,
            self.optimizer_bytes,
            self.activations_bytes,
            self.buffers_bytes,
            self.reserved_bytes,
        )
        return sum(parts)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    def to_dict(self) -> dict[str, int]:
        names = "weights gradients optimizer activations saved buffers reserved total capacity".split()
        return {f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names} | {
            "missing_bytes": max(0, self.total_bytes - self.capacity_bytes)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One line of the breakdown: all launches of one operator in one phase, or the time the GPU waits for the host."""

    phase: str
    name: str
    family: str
    launches: int
    time: Interval
    share_fraction: float  # of the step
    bound_s: float
    bound_by: str
    basis: str
    modelled: bool  # False: nothing is known of the operator but its bytes

    def to_dict(self) -> dict[str, Any]:
        return {
            "phase": self.phase, "name": self.name, "family": self.family, "launches": self.launches, "median_s": self.time.median,
            "low_s": self.time.low, "high_s": self.time.high, "bound_s": self.bound_s, "share_fraction": self.share_fraction,
            "bound_by": self.bound_by, "basis": self.basis, "modelled": self.modelled,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One kind of message that a GPU takes part in: how many of them a step has, their size, and their time whether hidden or not."""

    name: str
    family: str
    ranks: int
    per_node: int
    bytes: int
    number: int
    total_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "family": self.family, "ranks": self.ranks, "per_node": self.per_node, "bytes": self.bytes,
            "number": self.number, "total_s": self.total_s,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Something that runs for a while: on which GPU (one of each stage is shown), on which track, from when to when."""

    stage: int
    track: str  # host, stream or collectives
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    graph: OpGraph
    gpu: GpuSpec
    forward_s: Interval  # the loss included, and the messages that it waits for; so of the others
    loss_s: Interval  # of that
    backward_s: Interval
    optimizer_s: Interval
    communication_s: Interval  # of the three above
    host_wait_s: float  # the GPU waits for launches
    mfu: float
    memory: StepMemory
    basis: str
    breakdown: tuple[StepPart, ...]
    inputs: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    num_gpus: int = 1
    collectives: tuple[Collective, ...] = ()
    exposed_s: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(UPDATED, 0.0))  # communication by phase
    spans: tuple[Span, ...] = ()  # the time line, for a trace

    @property
    def step_s(self) -> Interval:
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def unmodelled(self) -> dict[str, float]:
        """Operators of which nothing is known but their bytes, with their share of the step."""
        found: dict[str, float] = {}
        for part in self.breakdown:
            if not part.modelled:
                found[part.name] = found.get(part.name, 0.0) + part.share_fraction
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))

    @property
    def basis_shares(self) -> dict[str, float]:
        shares: dict[str, float] = {}
        for part in self.breakdown:
            shares[part.basis] = shares.get(part.basis, 0.0) + part.share_fraction
        return {name: shares[name] for name in BASES if name in shares}

    def to_dict(self) -> dict[str, Any]:
        times = {name: getattr(self, name).to_dict() for name in ("forward_s", "backward_s", "optimizer_s", "communication_s", "step_s")}
        return {
            "schema": "tilecast.step/1", **times, "loss_s": self.loss_s.to_dict(), "host_wait_s": self.host_wait_s, "mfu": self.mfu,
            "exposed_s": dict(self.exposed_s), "num_gpus": self.num_gpus, "collectives": [each.to_dict() for each in self.collectives],
            "memory": self.memory.to_dict(), "fits": self.fits, "basis": self.basis, "basis_shares": self.basis_shares,
            "unmodelled": self.unmodelled, "breakdown": [part.to_dict() for part in self.breakdown], "notes": list(self.notes),
            "inputs": dict(self.inputs),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        rows = [
            (part.phase, part.name, units.human("_s", part.time.median), f"{100 * part.share_fraction:.1f} %") for part in self.breakdown
        ]
        return html_table(f"{self.graph.name} on {self.gpu.id}: {self.step_s}", ("phase", "operator", "time", "share"), rows)


# ---- operators priced ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The kernels of a graph, and of what follows it (`extra`), with their times; `waits`: how long the GPU waits for the host."""

    graph: OpGraph
    calls: tuple[KernelCall, ...]
    known: tuple[bool, ...]
    times: tuple[CallTime, ...]
    places: Mapping[Node, tuple[int, ...]]  # a node's kernels among the calls
    waits: Mapping[str, float]
    ends: Clocks  # where host and GPU stand behind it all
    _alone: list[float] = field(default_factory=list, repr=False, compare=False)
    _phases: dict[str, Interval] = field(default_factory=dict, repr=False, compare=False)
    _lines: list[StepPart] = field(default_factory=list, repr=False, compare=False)

    def phase(self, name: str, number: float = 1) -> Interval:
        """All kernels of a phase, `number` times over, with the waits among them."""
        if name not in self._phases:
            self._phases[name] = interval([time for time in self.times if time.call.phase == name], self.waits[name])
        return self._phases[name].per(1.0 / number)

    def lines(self) -> list[StepPart]:
        """Operators of one name, family and phase together, run once, without their share of a step."""
        if not self._lines:
            groups: dict[tuple[str, str, str, bool], list[CallTime]] = {}
            for time, is_known in zip(self.times, self.known, strict=True):
                groups.setdefault((time.call.phase, time.call.name, time.call.kernel.family, is_known), []).append(time)
            for (phase, name, family, is_known), members in groups.items():
                longest = max(members, key=lambda each: float(each.median_s[0]))
                self._lines.append(
                    StepPart(
                        phase=phase, name=name, family=family, launches=sum(each.call.count for each in members),
                        time=interval(members, 0.0), share_fraction=0.0, bound_s=sum(float(each.bound_s[0]) for each in members),
                        bound_by=longest.bound_by, basis=weakest([each.basis for each in members]), modelled=is_known,
                    )
                )  # fmt: skip
        return self._lines

    def node_s(self, node: Node) -> float:
        """One run of a node."""
        if not self._alone:
            self._alone.extend(float(time.median_s[0]) / time.call.count for time in self.times)
        return sum(self._alone[place] for place in self.places[node])

    @property
    def basis(self) -> str:
        return weakest([time.basis for time in self.times])


def priced(graph: OpGraph, gpu: GpuSpec, price: Price, matrix_dtype: str | None = None, extra: tuple[KernelCall, ...] = ()) -> Priced:
    calls: list[KernelCall] = []
    known: list[bool] = []
    places: dict[Node, tuple[int, ...]] = {}
    for node, number in graph.counted().items():
        found = launches(node, matrix_dtype)
        places[node] = tuple(range(len(calls), len(calls) + len(found)))
        for launch in found:
            calls.append(
                KernelCall(node.op.removeprefix("aten.").replace("_for_cpu", ""), node.phase, launch.kernel, number, "cold", ENGINE)
            )
            known.append(launch.is_known)
    calls += extra
    known += [True] * len(extra)
    if not calls:
        raise InvalidInput(f"{graph.name} runs no kernel: its graph has views alone")
    times = settled(price_step(Step("prefill", tuple(calls)), gpu, price).calls, gpu, price)
    waits, ends = _timeline(graph, places, times, extra)
    return Priced(graph=graph, calls=tuple(calls), known=tuple(known), times=times, places=places, waits=waits, ends=ends)


def priced_after(before: Priced, extra: tuple[KernelCall, ...], gpu: GpuSpec, price: Price) -> Priced:
    """What follows a graph, launched by a host that may be ahead of the GPU."""
    timed = price_step(Step("prefill", extra), gpu, price)
    launch, kernel = _launched(extra, timed.calls)
    waits, ends = _waits(launch, kernel, before.ends)
    return Priced(graph=before.graph, calls=extra, known=(True,) * len(extra), times=timed.calls, places={}, waits=waits, ends=ends)


OfPhases = dict[str, list[Floats]]


def _timeline(
    graph: OpGraph, places: dict[Node, tuple[int, ...]], times: tuple[CallTime, ...], extra: tuple[KernelCall, ...]
) -> tuple[dict[str, float], Clocks]:
    """How long the GPU waits for the host in each phase, running through the whole step in order."""
    cost = host_cost()
    alone = [float(time.median_s[0]) / time.call.count for time in times]
    launch: OfPhases = {phase: [] for phase in PHASES}
    kernel: OfPhases = {phase: [] for phase in PHASES}
    for segment in graph.segments:
        for phase in dict.fromkeys(node.phase for node in segment.nodes):
            nodes = [node for node in segment.nodes if node.phase == phase]
            launch[phase].append(np.tile([cost.op_s if places[node] else cost.view_s for node in nodes], segment.repeat))
            kernel[phase].append(np.tile([sum(alone[place] for place in places[node]) for node in nodes], segment.repeat))
    more_launch, more_kernel = _launched(extra, times[len(times) - len(extra) :])
    for phase in PHASES:
        launch[phase] += more_launch[phase]
        kernel[phase] += more_kernel[phase]
    return _waits(launch, kernel, Clocks())


def _launched(calls: tuple[KernelCall, ...], times: tuple[CallTime, ...]) -> tuple[OfPhases, OfPhases]:
    """Seconds of the host and of the GPU for each dispatch of calls that no operator of a graph makes, by phase."""
    cost = host_cost()
    launch: OfPhases = {phase: [] for phase in PHASES}
    kernel: OfPhases = {phase: [] for phase in PHASES}
    for call, time in zip(calls, times, strict=True):
        number = dispatches(call)
        launch[call.phase].append(np.full(number, cost.op_s))
        kernel[call.phase].append(np.full(number, float(time.median_s[0]) / number))
    return launch, kernel


def _waits(launch: OfPhases, kernel: OfPhases, now: Clocks) -> tuple[dict[str, float], Clocks]:
    """How long the GPU waits for the host in each phase, and where both stand then."""
    waits: dict[str, float] = {}
    for phase in PHASES:
        launch_s = np.concatenate(launch[phase]) if launch[phase] else np.zeros(0)
        kernel_s = np.concatenate(kernel[phase]) if kernel[phase] else np.zeros(0)
        after = run(launch_s, kernel_s, now)
        wait_s = after.gpu_s - now.gpu_s - float(kernel_s.sum())
        waits[phase] = wait_s if wait_s > LEAST_WAIT_S else 0.0
        now = after
    return waits, now


def dispatches(call: KernelCall) -> int:
    """Calls into PyTorch behind the backward pass: a gradient each; an optimizer's one per operation and, tensor by tensor, per tensor."""
    update = call.kernel
    if not isinstance(update, OptimizerUpdate):
        return call.count
    operations = 1 if update.implementation == "fused" else update.operations
    return int(operations * (update.num_tensors if update.implementation == "per_tensor" else 1))


def interval(times: list[CallTime], wait_s: float) -> Interval:
    if not times:
        return NOTHING
    total = joined(Step("prefill", tuple(time.call for time in times)), tuple(times))
    return Interval(*(float(value[0]) + wait_s for value in (total.median_s, total.low_s, total.high_s)))


def breakdown(found: Priced, total_s: float, times_run: Mapping[str, float]) -> tuple[StepPart, ...]:
    """The lines of a step; `times_run` says how often each phase runs, on average over GPUs."""
    parts = []
    for line in found.lines():
        number = times_run[line.phase]
        spent = line.time.per(1.0 / number)
        parts.append(
            replace(
                line, launches=round(number * line.launches), time=spent, share_fraction=spent.median / total_s,
                bound_s=number * line.bound_s,
            )
        )  # fmt: skip
    waits = [idle(phase, HOST, wait_s * times_run[phase], total_s) for phase, wait_s in found.waits.items() if wait_s > 0]
    return in_order([*parts, *waits])


def idle(phase: str, name: str, seconds: float, total_s: float) -> StepPart:
    """Time in which the GPU computes nothing."""
    return StepPart(
        phase=phase, name=name, family=name, launches=0, time=Interval(seconds, seconds, seconds), share_fraction=seconds / total_s,
        bound_s=0.0, bound_by=name, basis="analytic", modelled=True,
    )  # fmt: skip


def in_order(parts: list[StepPart]) -> tuple[StepPart, ...]:
    """Phase by phase, the longest first."""
    return tuple(sorted(parts, key=lambda part: (PHASES.index(part.phase), -part.time.median)))
