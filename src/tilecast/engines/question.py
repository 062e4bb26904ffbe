"""Question: what is asked of a training step or a forward pass, checked, and the graph that it means."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.learning.profiles import Profile
from tilecast.workloads.aggregate import Price
from tilecast.workloads.divided import sized
from tilecast.workloads.fusion import compiled
from tilecast.workloads.layout import Layout
from tilecast.workloads.opgraph import OpGraph, load_graph, renamed
from tilecast.workloads.recompute import recomputed
from tilecast.workloads.step_models import model_graph, positive

NARROW = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every layout alike."""

    model: Any
    gpu: GpuSpec
    mode: str
    batch: int | None
    seq: int | None
    dtype: str
    runtime: str
    attention: str | None
    recompute: bool | str
    optimizer: str | None
    master_weights: bool
    fp32_gradients: bool
    price: Price
    profile: Profile | None

    @property
    def matrix_dtype(self) -> str | None:
        return "tf32" if self.dtype == "tf32" and "tf32" in self.gpu.tensor_flop_per_clock_per_sm else None


def inputs_of(asked: Question, layout: Layout, graph: OpGraph) -> dict[str, Any]:
    """What was asked, as a record tells it."""
    batch = (graph.batch or 0) * layout.micro_batches * layout.replicas or asked.batch
    spread_over = {name: value for name, value in layout.to_dict().items() if name not in ("micro_batches", "num_gpus")}
    return {
        "model": graph.name, "gpu": asked.gpu.id, "mode": graph.mode, "batch": batch, "seq": graph.seq, "dtype": asked.dtype,
        "runtime": asked.runtime, "attention": asked.attention, "micro_batches": layout.micro_batches,
        "recompute": asked.recompute or graph.recompute, "optimizer": asked.optimizer if graph.mode == "training" else None,
        "master_weights": asked.master_weights, "fp32_gradients": asked.fp32_gradients,
        "num_parameters": graph.num_parameters, **spread_over, **({"profile": asked.profile.told()} if asked.profile else {}),
    }  # fmt: skip


def size(name: str, value: int | None) -> int | None:
    """A size that may be left open, checked."""
    return None if value is None else positive(name, value)


def graph_of(asked: Question, layout: Layout) -> OpGraph:
    """What one replica does of one micro-batch."""
    model = asked.model
    if isinstance(model, OpGraph):
        graph = model
        if asked.batch is not None and (graph.batch is None or layout.micro_batch(asked.batch) != graph.batch):
            raise InvalidInput(f"batch = {asked.batch} does not fit {graph.name}: the graph was traced with {_batch_of(graph, layout)}")
        if asked.recompute and not graph.recompute:
            graph = renamed(graph, segments=recomputed(graph.segments, str(asked.recompute)), recompute=True)
    else:
        if asked.batch is None or asked.seq is None:
            raise InvalidInput("batch and seq are missing: a model needs both, only a traced graph has them already")
        shards_cast = asked.dtype == "amp" and layout.fsdp > 1  # weights are cast when they are gathered: layers compute in bf16
        graph = model_graph(
            model, mode=asked.mode, batch=layout.micro_batch(asked.batch), seq=asked.seq, dtype="bf16" if shards_cast else asked.dtype,
            attention=asked.attention, recompute=asked.recompute, arch=asked.gpu.arch,
        )  # fmt: skip
    if layout.micro_batches > 1 and graph.mode != "training" and layout.pp == 1:
        raise InvalidInput("micro_batches is for training: an inference pass has one")
    return graph


def _batch_of(graph: OpGraph, layout: Layout) -> str:
    """In words: that of the graph, and of all that run it."""
    parts = layout.replicas * layout.micro_batches
    if graph.batch is None:
        return "the sizes of its example inputs, which show no batch; leave it out"
    return f"{graph.batch} on each GPU and in each micro-batch, {graph.batch * parts} in all" if parts > 1 else str(graph.batch)


def given_graph(model: Any) -> OpGraph | None:
    """The graph that `model` is, or the file it names holds."""
    if hasattr(model, "named_parameters"):
        raise InvalidInput("model is a torch module: trace it first, tilecast.step(tilecast.trace(module, example_inputs), ...)")
    if not isinstance(model, OpGraph | str | Path | Mapping):
        raise InvalidInput(f"model is a {type(model).__name__} and must be an id, a config, a file or a traced graph")
    if isinstance(model, OpGraph):
        return sized(model)
    return sized(load_graph(str(model))) if isinstance(model, str | Path) and str(model).endswith(".graph.json") else None


def agreed(graph: OpGraph, *, mode: str | None, seq: int | None, dtype: str | None, attention: str | None) -> tuple[str, str]:
    """Mode and format of a traced graph; what was asked must not say otherwise."""
    own = graph.dtype
    allowed = (own, "tf32") if own == "fp32" else (own,)
    if mode not in (None, graph.mode):
        raise InvalidInput(f"mode = {mode!r} does not fit {graph.name}: it was traced for {graph.mode}; trace it again with mode={mode!r}")
    if dtype not in (None, *allowed):
        raise InvalidInput(f"dtype = {dtype!r} does not fit {graph.name}: it was traced in {own}; allowed: {', '.join(allowed)}")
    if seq not in (None, graph.seq):
        has = graph.seq or "the sizes of its example inputs, which show no tokens; leave it out"
        raise InvalidInput(f"seq = {seq} does not fit {graph.name}: the graph was traced with {has}")
    if attention is not None:
        raise InvalidInput(f"attention = {attention!r} does not fit {graph.name}: a traced graph has its attention already")
    return graph.mode, dtype or own


def as_run(asked: Question, graph: OpGraph) -> OpGraph:
    """The graph as its runtime launches it: operator by operator, or fused."""
    is_todays = asked.runtime == "compiled"
    return graph if asked.runtime == "eager" else compiled(graph, finds_attention=is_todays, mixes_orders=is_todays)


def refuse_master(asked: Question) -> None:
    """Master weights are an optimizer's, of weights that are narrower than fp32."""
    if asked.fp32_gradients and not asked.master_weights:
        raise InvalidInput("fp32_gradients needs master_weights: otherwise gradients have the format of the weights")
    if asked.master_weights and (asked.mode != "training" or asked.optimizer is None):
        raise InvalidInput("master_weights is for training with an optimizer: nothing else keeps them")
    if asked.master_weights and asked.dtype not in NARROW:
        raise InvalidInput(
            f"master_weights is for weights of 16 bits ({', '.join(NARROW)}): with dtype = {asked.dtype} they are fp32 already"
        )
