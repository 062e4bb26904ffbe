"""One forward pass or one training step of a PyTorch model, on one GPU or many: kernels, host, optimizer, memory."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tilecast import hardware
from tilecast.engines.distributed import MOST_SPANS, Exposed, Spread, parts_of, scaled, split, spread
from tilecast.engines.eager import Clocks, host_cost
from tilecast.engines.interval import NOTHING
from tilecast.engines.layout_bytes import memory_of, sizes_of, without
from tilecast.engines.messages import Box
from tilecast.engines.question import Question, agreed, as_run, given_graph, graph_of, inputs_of, refuse_master, size
from tilecast.engines.step_parts import (
    Keeps,
    Priced,
    Span,
    StepMemory,
    StepPart,
    StepPrediction,
    breakdown,
    dispatches,
    priced,
)
from tilecast.engines.updates import gradients_added, keeps_of, optimizer_parts, passing_bytes, rule_of, updates_of
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.collectives import node_of
from tilecast.learning.profiles import Profile
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import Price, weakest, with_profile
from tilecast.workloads.aten import matrix_flop
from tilecast.workloads.divided import Divided, undivided
from tilecast.workloads.expert_parallel import expert_parallel
from tilecast.workloads.layout import Layout
from tilecast.workloads.opgraph import OpGraph
from tilecast.workloads.recompute import RECOMPUTE, runs_again
from tilecast.workloads.stages import layers_of
from tilecast.workloads.step_models import DTYPES
from tilecast.workloads.tensor_parallel import tensor_parallel

__all__ = ["StepMemory", "StepPart", "StepPrediction", "predict_layouts", "predict_step"]

RUNTIMES = ("eager", "compiled", "compiled-2.1")  # the last: by PyTorch 2.1, which knew few patterns of attention
CONTEXT_BYTES = 600_000_000  # CUDA context, library handles and workspaces


def predict_step(
    model: Any,
    gpu: str | GpuSpec,
    *,
    mode: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    runtime: str = "eager",
    attention: str | None = None,
    dp: int = 1,
    fsdp: int = 1,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    micro_batches: int = 1,
    zero: int = 0,
    overlap_gather: bool = True,
    sequence_parallel: bool = False,
    schedule: str = "1f1b",
    virtual_stages: int = 1,
    recompute: bool | str = False,
    optimizer: str | None = "adamw",
    master_weights: bool = False,
    fp32_gradients: bool = False,
    node: str | NodeSpec | None = None,
    network_bytes_per_s: float | None = None,
    learned: bool = True,
    price: Price | None = None,
    profile: Profile | str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    draw: bool = False,
) -> StepPrediction:
    """How long one step takes. `model` is a bundled id, a config.json, a saved graph's file, or an OpGraph from `tilecast.trace`.

    `mode` is inference (the default) or training, `dtype` fp32 (the default), tf32, bf16, fp16 or amp, `batch` the global batch. A traced
    graph is what one GPU does of one micro-batch, and has its mode, format and sizes already: what is said of them here must agree.
    Without an optimizer nothing clears the gradients, so each is added to what is there; with one they are set to None, as PyTorch does by
    default, and only further micro-batches add. `master_weights`: the optimizer keeps an fp32 copy of weights of 16 bits, and its states in
    fp32; `fp32_gradients`: it also gets gradients added up, over micro-batches and GPUs, in fp32.
    `overlap_gather`: weights that a sharded optimizer (`zero`) updated are gathered during the next step's first pass, as Megatron's
    recipes do; otherwise behind the optimizer.
    `recompute` is True or "full" (every layer runs forward again) or "selective" (what lies between the products of attention does).
    `price` stands in for `predict_kernel`: other weights. `profile` is what `tilecast calibrate` made of measurements on this GPU, or its
    file; it moves kernels, not the host. `draw` keeps the time line for a trace.
    """
    layout = Layout(
        dp=dp, fsdp=fsdp, tp=tp, pp=pp, ep=ep, micro_batches=micro_batches, zero=zero, overlap_gather=overlap_gather,
        sequence_parallel=sequence_parallel, schedule=schedule, virtual_stages=virtual_stages,
    )  # fmt: skip
    layout.refuse_what_does_nothing(mode)
    (found,) = predict_layouts(
        model, gpu, [layout], mode=mode, batch=batch, seq=seq, dtype=dtype, runtime=runtime, attention=attention, recompute=recompute,
        optimizer=optimizer, master_weights=master_weights, fp32_gradients=fp32_gradients, node=node,
        network_bytes_per_s=network_bytes_per_s, learned=learned, price=price, profile=profile, overrides=overrides, draw=draw,
    )  # fmt: skip
    layout.refuse_what_does_nothing(found.inputs["mode"])
    return found


def predict_layouts(
    model: Any,
    gpu: str | GpuSpec,
    layouts: Iterable[Layout],
    *,
    mode: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    dtype: str | None = None,
    runtime: str = "eager",
    attention: str | None = None,
    recompute: bool | str = False,
    optimizer: str | None = "adamw",
    master_weights: bool = False,
    fp32_gradients: bool = False,
    node: str | NodeSpec | None = None,
    network_bytes_per_s: float | None = None,
    learned: bool = True,
    price: Price | None = None,
    profile: Profile | str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    draw: bool = False,
) -> list[StepPrediction]:
    """The same step under many layouts, each exactly what `predict_step` says of it; kernels that several share are priced once.

    An option that does nothing in one of them (a schedule without stages) is not refused: lists are made of all combinations.
    """
    spec = hardware.in_long_runs(hardware.gpu(gpu, overrides))
    if runtime not in RUNTIMES:
        raise InvalidInput(f"runtime = {runtime!r} must be one of {', '.join(RUNTIMES)}")
    if dtype not in (None, *DTYPES):
        raise InvalidInput(f"dtype = {dtype!r} must be one of {', '.join(DTYPES)}")
    graph = given_graph(model)
    if graph is not None:
        mode, dtype = agreed(graph, mode=mode, seq=seq, dtype=dtype, attention=attention)
    if recompute not in (False, True, *RECOMPUTE):
        raise InvalidInput(f"recompute = {recompute!r} must be one of {', '.join(RECOMPUTE)}")
    rule = rule_of(optimizer)
    price, measured = with_profile(price or partial(predict_kernel, learned=learned), profile, spec)
    asked = Question(
        model=graph or model, gpu=spec, mode=mode or "inference", batch=size("batch", batch), seq=size("seq", seq),
        dtype=dtype or "fp32", runtime=runtime, attention=attention,
        recompute="full" if recompute is True else recompute, optimizer=optimizer, master_weights=master_weights,
        fp32_gradients=fp32_gradients, price=price, profile=measured,
    )  # fmt: skip
    refuse_master(asked)
    if network_bytes_per_s is not None and not network_bytes_per_s > 0:
        raise InvalidInput(f"network_bytes_per_s = {network_bytes_per_s!r} must be above 0")
    if node is not None:
        node_of(spec, node)  # a box that nobody knows is refused, needed or not
    box: Box | None = None
    graphs: dict[object, Divided] = {}
    kernels: dict[object, Priced] = {}
    found = []
    for layout in layouts:
        if layout.is_alone:
            found.append(_alone(asked, layout, rule, draw))
            continue
        box = box or Box(gpu=spec, node=node_of(spec, node), price=asked.price, network_bytes_per_s=network_bytes_per_s)
        found.append(_together(asked, layout, rule, box, graphs, kernels, draw))
    return found


# ---- one GPU ------------------------------------------------------------------------------------------------------


def _alone(asked: Question, layout: Layout, rule: tuple[str | None, str], draw: bool) -> StepPrediction:
    graph = as_run(asked, graph_of(asked, layout))
    training = graph.mode == "training"
    micro = layout.micro_batches
    kind = rule[0] if training else None
    keeps = keeps_of(asked, kind, rule[1])
    accumulates = training and (kind is None or micro > 1 or keeps.wide_gradients)
    found = priced(graph, asked.gpu, asked.price, asked.matrix_dtype, updates_of(graph, kind, keeps, accumulates=accumulates))
    phases = {name: found.phase(name, 1 if name == "optimizer" else micro) for name in ("forward", "loss", "backward", "optimizer")}
    total = phases["forward"] + phases["loss"] + phases["backward"] + phases["optimizer"]
    times_run = {phase: 1.0 if phase == "optimizer" else float(micro) for phase in found.waits}
    return StepPrediction(
        graph=graph,
        gpu=asked.gpu,
        forward_s=phases["forward"] + phases["loss"],
        loss_s=phases["loss"],
        backward_s=phases["backward"],
        optimizer_s=phases["optimizer"],
        communication_s=NOTHING,
        host_wait_s=sum(wait_s * times_run[phase] for phase, wait_s in found.waits.items()),
        mfu=_model_flop(graph) * micro / (total.median * asked.gpu.matrix_rate(_peak_dtype(asked.dtype, asked.gpu))),
        memory=_memory(graph, asked.gpu, keeps, accumulates=accumulates),
        basis=found.basis,
        breakdown=breakdown(found, total.median, times_run),
        inputs=inputs_of(asked, layout, graph),
        notes=_notes(graph, hardware.power_note(asked.gpu)),
        spans=_kernel_spans(found) if draw else (),
    )


def _notes(graph: OpGraph, *more: str | None) -> tuple[str, ...]:
    return (*graph.notes, *filter(None, more))


def _kernel_spans(found: Priced) -> tuple[Span, ...]:
    """Host and GPU side by side, for a trace: each operator runs when it is launched and the one before is done. One micro-batch."""
    host_s, gpu_s, spans = 0.0, 0.0, list[Span]()
    for name, launch_s, kernel_s in _operators(found):
        launched_s = host_s + launch_s
        if kernel_s and len(spans) < MOST_SPANS:
            begun_s = max(launched_s, gpu_s)
            gpu_s = begun_s + kernel_s
            spans += [Span(0, "host", name, host_s, launched_s), Span(0, "stream", name, begun_s, gpu_s)]
        host_s = launched_s
    return tuple(spans)


def _operators(found: Priced) -> Iterator[tuple[str, float, float]]:
    """Name, seconds of the host and seconds of the GPU of everything that is launched, in order."""
    cost = host_cost()
    for node in found.graph.nodes():
        runs = bool(found.places[node])
        yield f"{node.op.removeprefix('aten.')} ({node.phase})", cost.op_s if runs else cost.view_s, found.node_s(node)
    for time in found.times[sum(len(places) for places in found.places.values()) :]:
        number = dispatches(time.call)
        for _ in range(number):
            yield f"{time.call.name} ({time.call.phase})", cost.op_s, float(time.median_s[0]) / number


# ---- many ---------------------------------------------------------------------------------------------------------


def _together(
    asked: Question, layout: Layout, rule: tuple[str | None, str], box: Box, graphs: dict[object, Divided], kernels: dict[object, Priced],
    draw: bool,
) -> StepPrediction:  # fmt: skip
    wide_weights = asked.dtype == "amp" and layout.fsdp > 1
    micro_batch = layout.micro_batch(asked.batch) if asked.batch is not None and not isinstance(asked.model, OpGraph) else None
    cut = micro_batch, layout.tp, layout.sequence_parallel, layout.ep, wide_weights
    if cut not in graphs:
        shared = expert_parallel(undivided(graph_of(asked, layout)), layout.ep)
        divided = tensor_parallel(shared, layout.tp, sequence_parallel=layout.sequence_parallel)
        graphs[cut] = replace(divided, graph=as_run(asked, divided.graph))
    divided = graphs[cut]
    graph = divided.graph
    training = graph.mode == "training"
    parts = layers_of(divided)
    if layout.pp * layout.virtual_stages > parts.number:
        groups = f"pp = {layout.pp} stages" + (f" of virtual_stages = {layout.virtual_stages} groups" if layout.virtual_stages > 1 else "")
        raise InvalidInput(f"{groups} are more than the {parts.number} layers of {graph.name}")
    kind = rule[0] if training else None
    keeps = keeps_of(asked, kind, rule[1])
    accumulates = training and (kind is None or layout.micro_batches > 1 or keeps.wide_gradients)
    size = sizes_of(divided, parts, layout, wide_weights=wide_weights, keeps=keeps)
    stage_reached = min(math.ceil(parts.number / layout.pp), parts.reached)
    most = size.held(stage_reached, True, by_replicas=layout.zero > 0)
    key = *cut, accumulates and layout.fsdp
    if key not in kernels:
        shards = ((without(graph.parameters, divided.experts), layout.fsdp), (divided.experts, layout.expert_fsdp)) if accumulates else ()
        added = tuple(call for weights, ways in shards for call in gradients_added(weights, graph, keeps, ways))
        kernels[key] = priced(graph, asked.gpu, asked.price, asked.matrix_dtype, added)
    found = kernels[key]
    done = spread(found, divided, layout, box, size, draw=draw)
    passes = replace(found, ends=_ends(found, layout, done.exposed_s))
    steps = optimizer_parts(asked, passes, keeps, kind, size.trained(stage_reached, True), most, "fp32" if wide_weights else None)
    update = steps.phase("optimizer") if steps else NOTHING
    optimizer_s = update.median
    total_s = done.compute_s + sum(done.exposed_s) + optimizer_s
    shares = {name: found.phase(name) for name in ("forward", "loss", "backward")}
    phases = split(done.compute_s, shares)
    waits = _waits(done.exposed_s, updates=steps is not None)
    told = {name: scaled(done.message_s, seconds) for name, seconds in waits.items()}
    flop = _model_flop(divided.whole) * layout.micro_batches * layout.replicas
    peak = asked.gpu.matrix_rate(_peak_dtype(asked.dtype, asked.gpu)) * layout.num_gpus
    lines = breakdown(steps, total_s, dict.fromkeys(steps.waits, 1.0)) if steps else ()
    return StepPrediction(
        graph=graph,
        gpu=asked.gpu,
        forward_s=phases["forward"] + phases["loss"] + told["forward"],
        loss_s=phases["loss"],
        backward_s=phases["backward"] + told["backward"],
        optimizer_s=update + told["optimizer"],
        communication_s=told["forward"] + told["backward"] + told["optimizer"],
        exposed_s=waits,
        host_wait_s=sum(found.waits.values()) * layout.micro_batches / layout.pp + (steps.waits["optimizer"] if steps else 0.0),
        mfu=flop / (total_s * peak),
        memory=memory_of(divided, layout, size, passing_bytes(graph, keeps, wide_weights), CONTEXT_BYTES, asked.gpu.dram_bytes),
        basis=weakest([found.basis, "analytic"] if done.collectives else [found.basis]),
        breakdown=parts_of(found, done, lines, layout, total_s),
        inputs=inputs_of(asked, layout, divided.whole) | {"node": box.node.id},
        notes=_notes(graph, hardware.foreign_note(box.node, asked.gpu), hardware.power_note(asked.gpu)),
        num_gpus=layout.num_gpus,
        collectives=done.collectives,
        spans=_with_optimizer(done, optimizer_s, str(asked.optimizer)) if draw else (),
    )


def _ends(found: Priced, layout: Layout, open_s: Exposed) -> Clocks:
    """Where host and GPU stand behind all passes of a stage: while the GPU waits for messages, the host launches on."""
    host_s, gpu_s = found.ends.host_s, found.ends.gpu_s
    busy_s = gpu_s - sum(found.waits.values())
    further = max(0.0, layout.micro_batches / layout.pp - 1.0)  # in each of these it falls behind the host by as much as it has more to do
    return Clocks(host_s, gpu_s + further * max(0.0, busy_s - host_s) + open_s.forward + open_s.backward)


def _waits(open_s: Exposed, *, updates: bool) -> dict[str, float]:
    """Exposed messages by phase; without an optimizer the gather that would follow it ends the backward pass."""
    behind = ("optimizer" if updates else "backward", open_s.after)
    return {name: seconds + (behind[1] if name == behind[0] else 0.0) for name, seconds in
            (("forward", open_s.forward), ("backward", open_s.backward), ("optimizer", 0.0))}  # fmt: skip


def _with_optimizer(done: Spread, optimizer_s: float, name: str) -> tuple[Span, ...]:
    """The time line of a step to its end: all stages have their gradients, update their weights, and gather those of the others."""
    end_s = max((span.end_s for span in done.spans), default=0.0)
    updated_s = end_s + optimizer_s
    more = []
    for stage in sorted({span.stage for span in done.spans}):
        more += [Span(stage, "stream", f"{name} (optimizer)", end_s, updated_s)] if optimizer_s else []
        more += (
            [Span(stage, "collectives", "gather updated weights", updated_s, updated_s + done.exposed_s.after)]
            if done.exposed_s.after
            else []
        )
    return (*done.spans, *more)


# ---- what a step is measured by -----------------------------------------------------------------------------------


def _model_flop(graph: OpGraph) -> float:
    """FLOP of matrix products, what runs again left out."""
    return sum(matrix_flop(node) * times for node, times in graph.counted().items() if not runs_again(node))


def _peak_dtype(dtype: str, gpu: GpuSpec) -> str:
    wanted = {"amp": "bf16"}.get(dtype, dtype)
    have = {**gpu.tensor_flop_per_clock_per_sm, **gpu.vector_flop_per_clock_per_sm}
    return wanted if wanted in have else "fp32"


def _memory(graph: OpGraph, gpu: GpuSpec, keeps: Keeps, *, accumulates: bool) -> StepMemory:
    live = graph.live_bytes()
    training = graph.mode == "training"
    largest_gradient = max((tensor.nbytes for tensor, _ in graph.parameters), default=0) if accumulates else 0

    def every(bytes_of: Callable[[str], int]) -> int:
        return sum(bytes_of(tensor.dtype) * tensor.numel * times for tensor, times in graph.parameters) if training else 0

    return StepMemory(
        weights_bytes=graph.weights_bytes,
        gradients_bytes=every(keeps.gradient_bytes),
        optimizer_bytes=every(keeps.state_bytes),
        activations_bytes=max(max(live["forward"], live["loss"], live["backward"]) + largest_gradient, every(keeps.passing_bytes)),
        saved_bytes=live["kept"] if training else 0,
        buffers_bytes=graph.buffers_bytes + graph.inputs_bytes,
        reserved_bytes=CONTEXT_BYTES,
        capacity_bytes=gpu.dram_bytes,
    )
