"""One forward pass or one training step of a PyTorch model on one GPU: kernels, host, optimizer and memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tilecast import hardware, units
from tilecast.engines.eager import Clocks, host_cost, run
from tilecast.engines.predict import NOTHING, Interval
from tilecast.errors import InvalidInput
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.kernels.optimizer_update import IMPLEMENTATIONS, KINDS, OptimizerUpdate
from tilecast.markup import html_table
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import BASES, CallTime, Price, joined, price_step, weakest
from tilecast.workloads.aten import launches, matrix_flop
from tilecast.workloads.graph import KernelCall, Step
from tilecast.workloads.opgraph import Node, OpGraph, load_graph
from tilecast.workloads.step_models import DTYPES, model_graph, positive

ENGINE = "pytorch"  # whose measurements are asked
PHASES = ("forward", "loss", "backward", "optimizer")
RUNTIMES = ("eager", "compiled")
CONTEXT_BYTES = 600_000_000  # CUDA context, library handles and workspaces
STATES = {"sgd": 0, "adam": 2, "adamw": 2}  # tensors an optimizer keeps beside each weight
HOST = "host"
LEAST_WAIT_S = 1e-9  # below is rounding


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
class StepPrediction:
    graph: OpGraph
    gpu: GpuSpec
    forward_s: Interval  # the loss included
    loss_s: Interval  # of that
    backward_s: Interval
    optimizer_s: Interval
    communication_s: Interval
    host_wait_s: float  # the GPU waits for launches
    mfu: float
    memory: StepMemory
    basis: str
    breakdown: tuple[StepPart, ...]
    inputs: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def step_s(self) -> Interval:
        return self.forward_s + self.backward_s + self.optimizer_s + self.communication_s

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
            "memory": self.memory.to_dict(), "fits": self.fits, "basis": self.basis, "basis_shares": self.basis_shares,
            "unmodelled": self.unmodelled, "breakdown": [part.to_dict() for part in self.breakdown], "notes": list(self.notes),
            "inputs": dict(self.inputs),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        rows = [
            (part.phase, part.name, units.human("_s", part.time.median), f"{100 * part.share_fraction:.1f} %") for part in self.breakdown
        ]
        return html_table(f"{self.graph.name} on {self.gpu.id}: {self.step_s}", ("phase", "operator", "time", "share"), rows)


def predict_step(
    model: Any,
    gpu: str | GpuSpec,
    *,
    mode: str = "inference",
    batch: int | None = None,
    seq: int | None = None,
    dtype: str = "fp32",
    runtime: str = "eager",
    attention: str | None = None,
    micro_batches: int = 1,
    recompute: bool = False,
    optimizer: str | None = "adamw",
    learned: bool = True,
    price: Price | None = None,
    overrides: Mapping[str, object] | None = None,
) -> StepPrediction:
    """How long one step takes. `model` is a bundled id, a config.json, a saved graph's file, or an OpGraph from `tilecast.trace`.

    `batch` is the global batch. Without an optimizer nothing clears the gradients, so each is added to what is there; with one they are
    set to None, as PyTorch does by default, and only further micro-batches add. `price` stands in for `predict_kernel`: other weights.
    """
    spec = hardware.gpu(gpu, overrides) if isinstance(gpu, str) else hardware.with_overrides(gpu, overrides or {})
    if runtime not in RUNTIMES:
        raise InvalidInput(f"runtime = {runtime!r} must be one of {', '.join(RUNTIMES)}")
    if runtime == "compiled":
        raise InvalidInput("runtime = 'compiled' is not supported yet: give 'eager'")
    kind, how = _optimizer(optimizer)
    positive("micro_batches", micro_batches)
    graph = _graph(model, mode, batch, seq, dtype, attention, micro_batches, recompute)
    training = graph.mode == "training"
    if micro_batches > 1 and not training:
        raise InvalidInput("micro_batches is for training: an inference pass has one")
    matrix_dtype = "tf32" if dtype == "tf32" and "tf32" in spec.tensor_flop_per_clock_per_sm else None
    extra = _updates(graph, kind if training else None, how, accumulates=training and (kind is None or micro_batches > 1))
    priced = price or partial(predict_kernel, learned=learned)
    return _priced(graph, spec, matrix_dtype, extra, priced, micro_batches, kind if training else None, {
        "model": graph.name, "gpu": spec.id, "mode": graph.mode, "batch": (graph.batch or 0) * micro_batches or batch, "seq": graph.seq,
        "dtype": dtype, "runtime": runtime, "attention": attention, "micro_batches": micro_batches, "recompute": graph.recompute,
        "optimizer": optimizer if training else None, "num_parameters": graph.num_parameters,
    })  # fmt: skip


def _graph(
    model: Any, mode: str, batch: int | None, seq: int | None, dtype: str, attention: str | None, micro: int, recompute: bool
) -> OpGraph:
    if dtype not in DTYPES:
        raise InvalidInput(f"dtype = {dtype!r} must be one of {', '.join(DTYPES)}")
    if isinstance(model, OpGraph):
        return model
    if str(model).endswith(".graph.json"):
        return load_graph(str(model))
    if batch is None or seq is None:
        raise InvalidInput("batch and seq are missing: a model needs both, only a traced graph has them already")
    positive("batch", batch)
    positive("seq", seq)
    if batch % micro:
        raise InvalidInput(f"batch = {batch} must be a multiple of micro_batches = {micro}")
    return model_graph(model, mode=mode, batch=batch // micro, seq=seq, dtype=dtype, attention=attention, recompute=recompute)


def _optimizer(name: str | None) -> tuple[str | None, str]:
    """adamw, or adamw-fused: the rule and how it is carried out."""
    if name is None:
        return None, "foreach"
    kind, _, how = name.lower().replace("_", "-").partition("-")
    how = how.replace("-", "_") or "foreach"
    if kind not in KINDS or how not in IMPLEMENTATIONS:
        ways = ", ".join(f"-{each.replace('_', '-')}" for each in IMPLEMENTATIONS)
        raise InvalidInput(f"optimizer = {name!r} must be one of {', '.join(KINDS)}, alone or with {ways}")
    return kind, how


def _updates(graph: OpGraph, kind: str | None, how: str, *, accumulates: bool) -> list[KernelCall]:
    """What follows the backward pass: gradients added to those that are there, and the optimizer."""
    calls: list[KernelCall] = []
    if accumulates:
        for tensor, times in graph.parameters:
            kernel = MemoryPass(read_bytes=2 * tensor.nbytes, written_bytes=max(1, tensor.nbytes), flop=tensor.numel)
            calls.append(KernelCall("accumulate_grad", "backward", kernel, times, "cold", ENGINE))
    if kind is not None:
        formats: dict[str, tuple[int, int]] = {}
        for tensor, times in graph.parameters:
            numel, number = formats.get(tensor.dtype, (0, 0))
            formats[tensor.dtype] = numel + tensor.numel * times, number + times
        for dtype, (numel, number) in formats.items():
            update = OptimizerUpdate(numel=numel, num_tensors=number, kind=kind, implementation=how, dtype=dtype)
            calls.append(KernelCall(f"{kind} {how}", "optimizer", update, 1, "cold", ENGINE))
    return calls


def _priced(
    graph: OpGraph, gpu: GpuSpec, matrix_dtype: str | None, extra: list[KernelCall], price: Price, micro_batches: int,
    kind: str | None, inputs: dict[str, Any],
) -> StepPrediction:  # fmt: skip
    calls: list[KernelCall] = []
    known: list[bool] = []
    places: dict[Node, tuple[int, ...]] = {}
    for node, times in graph.counted().items():
        found = launches(node, matrix_dtype)
        places[node] = tuple(range(len(calls), len(calls) + len(found)))
        for launch in found:
            calls.append(
                KernelCall(node.op.removeprefix("aten.").replace("_for_cpu", ""), node.phase, launch.kernel, times, "cold", ENGINE)
            )
            known.append(launch.is_known)
    calls += extra
    known += [True] * len(extra)
    if not calls:
        raise InvalidInput(f"{graph.name} runs no kernel: its graph has views alone")
    step = Step("prefill", tuple(calls))
    timed = price_step(step, gpu, price)
    waits = _timeline(graph, places, timed.calls, extra)

    per_phase: dict[str, Interval] = {}
    for phase in PHASES:
        inside = [place for place, call in enumerate(calls) if call.phase == phase]
        times_in = micro_batches if phase != "optimizer" else 1
        per_phase[phase] = _interval([timed.calls[place] for place in inside], waits[phase], times_in)
    forward = per_phase["forward"] + per_phase["loss"]
    total = forward + per_phase["backward"] + per_phase["optimizer"]
    flop = sum(matrix_flop(node) * times for node, times in graph.counted().items()) - _recomputed_flop(graph)
    peak = gpu.matrix_rate(_peak_dtype(inputs["dtype"], gpu))
    bases = [time.basis for time in timed.calls]
    return StepPrediction(
        graph=graph,
        gpu=gpu,
        forward_s=forward,
        loss_s=per_phase["loss"],
        backward_s=per_phase["backward"],
        optimizer_s=per_phase["optimizer"],
        communication_s=NOTHING,
        host_wait_s=sum(waits[phase] * (micro_batches if phase != "optimizer" else 1) for phase in PHASES),
        mfu=flop * micro_batches / (total.median * peak),
        memory=_memory(graph, gpu, kind, accumulates=any(call.name == "accumulate_grad" for call in extra)),
        basis=weakest(bases),
        breakdown=_breakdown(timed.calls, known, waits, total.median, micro_batches),
        inputs=inputs,
        notes=graph.notes,
    )


def _timeline(
    graph: OpGraph, places: dict[Node, tuple[int, ...]], times: tuple[CallTime, ...], extra: list[KernelCall]
) -> dict[str, float]:
    """How long the GPU waits for the host in each phase, running through the whole step in order."""
    cost = host_cost()
    alone = [float(time.median_s[0]) / time.call.count for time in times]
    launch: dict[str, list[Floats]] = {phase: [] for phase in PHASES}
    kernel: dict[str, list[Floats]] = {phase: [] for phase in PHASES}
    for segment in graph.segments:
        for phase in dict.fromkeys(node.phase for node in segment.nodes):
            nodes = [node for node in segment.nodes if node.phase == phase]
            launch[phase].append(np.tile([cost.op_s if places[node] else cost.view_s for node in nodes], segment.repeat))
            kernel[phase].append(np.tile([sum(alone[place] for place in places[node]) for node in nodes], segment.repeat))
    first_extra = len(times) - len(extra)
    for index, call in enumerate(extra):
        number = call.count if call.name == "accumulate_grad" else _dispatches(call.kernel)
        seconds = float(times[first_extra + index].median_s[0])
        launch[call.phase].append(np.full(number, cost.op_s))
        kernel[call.phase].append(np.full(number, seconds / number))
    waits: dict[str, float] = {}
    now = Clocks()
    for phase in PHASES:
        launch_s = np.concatenate(launch[phase]) if launch[phase] else np.zeros(0)
        kernel_s = np.concatenate(kernel[phase]) if kernel[phase] else np.zeros(0)
        after = run(launch_s, kernel_s, now)
        wait_s = after.gpu_s - now.gpu_s - float(kernel_s.sum())
        waits[phase] = wait_s if wait_s > LEAST_WAIT_S else 0.0
        now = after
    return waits


def _dispatches(update: OptimizerUpdate) -> int:
    """Calls into PyTorch that an optimizer makes: one per operation and, tensor by tensor, per tensor."""
    operations = 1 if update.implementation == "fused" else KINDS[update.kind].operations
    return int(operations * (update.num_tensors if update.implementation == "per_tensor" else 1))


def _interval(times: list[CallTime], wait_s: float, number: int) -> Interval:
    if not times:
        return NOTHING
    total = joined(Step("prefill", tuple(time.call for time in times)), tuple(times))
    return Interval(*(number * (float(value[0]) + wait_s) for value in (total.median_s, total.low_s, total.high_s)))


def _peak_dtype(dtype: str, gpu: GpuSpec) -> str:
    wanted = {"amp": "bf16"}.get(dtype, dtype)
    have = {**gpu.tensor_flop_per_clock_per_sm, **gpu.vector_flop_per_clock_per_sm}
    return wanted if wanted in have else "fp32"


def _recomputed_flop(graph: OpGraph) -> float:
    """Forward work that runs twice."""
    if not graph.recompute:
        return 0.0
    layers = max(
        (segment for segment in graph.segments if segment.nodes[0].phase == "forward"), key=lambda each: each.repeat * len(each.nodes)
    )
    return layers.repeat * sum(matrix_flop(replace(node, phase="backward")) for node in layers.nodes)


def _memory(graph: OpGraph, gpu: GpuSpec, kind: str | None, *, accumulates: bool) -> StepMemory:
    live = graph.live_bytes()
    training = graph.mode == "training"
    largest_gradient = max((tensor.nbytes for tensor, _ in graph.parameters), default=0) if accumulates else 0
    return StepMemory(
        weights_bytes=graph.weights_bytes,
        gradients_bytes=graph.weights_bytes if training else 0,
        optimizer_bytes=graph.weights_bytes * STATES[kind] if kind is not None else 0,
        activations_bytes=max(live["forward"], live["loss"], live["backward"]) + largest_gradient,
        saved_bytes=live["kept"] if training else 0,
        buffers_bytes=graph.buffers_bytes + graph.inputs_bytes,
        reserved_bytes=CONTEXT_BYTES,
        capacity_bytes=gpu.dram_bytes,
    )


def _breakdown(
    times: tuple[CallTime, ...], known: list[bool], waits: dict[str, float], total_s: float, micro_batches: int
) -> tuple[StepPart, ...]:
    """Operators of one name, family and phase together, the largest first within each phase."""
    groups: dict[tuple[str, str, str, bool], list[CallTime]] = {}
    for time, is_known in zip(times, known, strict=True):
        groups.setdefault((time.call.phase, time.call.name, time.call.kernel.family, is_known), []).append(time)
    parts = []
    for (phase, name, family, is_known), members in groups.items():
        number = micro_batches if phase != "optimizer" else 1
        spent = _interval(members, 0.0, number)
        longest = max(members, key=lambda each: float(each.median_s[0]))
        parts.append(
            StepPart(
                phase=phase, name=name, family=family, launches=number * sum(each.call.count for each in members), time=spent,
                share_fraction=spent.median / total_s, bound_s=number * sum(float(each.bound_s[0]) for each in members),
                bound_by=longest.bound_by, basis=weakest([each.basis for each in members]), modelled=is_known,
            )
        )  # fmt: skip
    for phase, wait_s in waits.items():
        if wait_s > 0:
            wait = Interval(wait_s, wait_s, wait_s)
            parts.append(
                StepPart(
                    phase=phase, name=HOST, family=HOST, launches=0, time=wait, share_fraction=wait_s / total_s, bound_s=0.0,
                    bound_by=HOST, basis="analytic", modelled=True,
                )
            )  # fmt: skip
    return tuple(sorted(parts, key=lambda part: (PHASES.index(part.phase), -part.time.median)))
