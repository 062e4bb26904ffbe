"""The graph of a named model: from a saved one where there is one, else traced (extra `torch`).

Saved graphs (`graphs/`, written by `python -m benchmarks.bundle_graphs`) hold products of batch and length in place of numbers, so one file
serves all sizes. A batch of one has its own: PyTorch then needs no copies where heads are taken apart. Graphs that are traced when they are
asked for do the same with the first two batches.
"""

import gzip
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tilecast import units
from tilecast.errors import InvalidInput, MissingExtra, UnknownName
from tilecast.workloads.architectures.base import family_names, size
from tilecast.workloads.aten import FLASH_2, TRITON_1
from tilecast.workloads.model import config_table, model_ids
from tilecast.workloads.opgraph import Node, OpGraph, Segment, graph_from, renamed, symbolic
from tilecast.workloads.recompute import recomputed

FOLDER = Path(__file__).with_name("graphs")
FACTS = Path(__file__).with_name("step_models.json")
DTYPES = ("fp32", "tf32", "bf16", "fp16", "amp")
MODES = ("inference", "training")
ATTENTION = ("eager", "sdpa", "flash")
LARGEST = 1 << 40
ENOUGH_TRACES = 2  # of different batches
TRITON_1_RAN_ON = ("pascal", "volta", "turing", "ampere")  # GPUs that MPT's trainer knew; on later ones and AMD's nobody runs it
FLASH_2_RUNS_ON = ("hopper",)  # where the package flash-attn and PyTorch differ: elsewhere both are FlashAttention-2, or it is not built
SHORTEST_SAVED = 64  # tokens: below, sizes such as an expert's room no longer follow one rule


def positive(name: str, value: Any) -> int:
    return units.whole(name, value, LARGEST)


@cache
def facts() -> dict[str, Mapping[str, Any]]:
    table: dict[str, Mapping[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return table


def step_model_ids() -> tuple[str, ...]:
    return tuple(facts())


def resolved(model: str | Path | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and config of a model: one of ours, a bundled Hugging Face id, a config.json or its folder, or the parsed table."""
    if isinstance(model, Mapping):
        return str(model.get("_name_or_path") or "config"), model
    folded = str(model).strip().lower()
    for id, table in facts().items():
        names = {id.lower(), id.lower().rpartition("/")[2], *table.get("also", ())}
        if folded in names or folded.replace("_", "-") in names:
            return id, table
    try:
        return str(model), config_table(str(model))
    except UnknownName:
        raise UnknownName.among("model", str(model), (*step_model_ids(), *model_ids())) from None


def model_graph(
    model: str | Path | Mapping[str, Any],
    *,
    mode: str,
    batch: int,
    seq: int,
    dtype: str,
    attention: str | None = None,
    recompute: bool | str = False,
    arch: str = TRITON_1_RAN_ON[-1],
) -> OpGraph:
    """The operators of `batch` texts of `seq` tokens; `attention` is eager unless the family is made for flash kernels.

    `arch` is the GPU's: it says which kernel `flash` is.
    """
    for name, value, allowed in (("mode", mode, MODES), ("dtype", dtype, DTYPES), ("attention", attention, (None, *ATTENTION))):
        if value not in allowed:
            raise InvalidInput(f"{name} = {value!r} must be one of {', '.join(str(each) for each in allowed if each)}")
    batch, seq = positive("batch", batch), positive("seq", seq)
    if recompute and mode == "inference":
        raise InvalidInput("recompute is for training: an inference pass has no backward")
    id, config = resolved(model)
    try:
        is_mpt = any("mpt" in name.lower() for name in family_names(config))
        positions = size(config, "n_positions", 0, "max_position_embeddings")
    except InvalidInput as problem:
        raise InvalidInput(f"{id}: {problem}") from None
    chosen = attention or ("flash" if is_mpt else "eager")
    if positions and seq > positions:
        raise InvalidInput(f"seq = {seq:,} is beyond the {positions:,} positions of {id}")
    saved = saved_graph(id, mode, batch, seq, dtype, chosen)
    if saved is None:
        saved = _traced(id, json.dumps(dict(config), sort_keys=True), mode, batch, seq, dtype, chosen)
    if chosen == "flash":
        saved = _with_its_flash(saved, is_mpt, arch)
    if recompute:
        what = recompute if isinstance(recompute, str) else "full"
        # MPT's trainer ran PyTorch 1.13 and 2.0.
        return renamed(saved, segments=recomputed(saved.segments, what, stops_early=not is_mpt), recompute=True)
    return saved


def _with_its_flash(graph: OpGraph, is_mpt: bool, arch: str) -> OpGraph:
    """`flash` is the package flash-attn, `sdpa` what PyTorch chooses. MPT's trainer ran FlashAttention as it is written in Triton (its
    `attn_impl: triton`) where that compiled."""
    library = TRITON_1 if is_mpt and arch in TRITON_1_RAN_ON else FLASH_2 if arch in FLASH_2_RUNS_ON else None
    if library is None:
        return graph

    def marked(node: Node) -> Node:
        return replace(node, options=(*node.options, library)) if "scaled_dot_product" in node.op else node

    return renamed(graph, segments=tuple(Segment(each.repeat, tuple(map(marked, each.nodes))) for each in graph.segments))


# ---- saved -------------------------------------------------------------------------------------------------------


def graph_file(id: str, mode: str, batch: int, dtype: str, attention: str) -> Path:
    """Where the saved graph of a model is, if there is one."""
    fused = "eager" if attention == "eager" else "fused"
    return FOLDER / f"{id.replace('/', '--')}.{mode}.{dtype}.{fused}.{'one' if batch == 1 else 'many'}.json.gz"


def saved_graph(id: str, mode: str, batch: int, seq: int, dtype: str, attention: str) -> OpGraph | None:
    """tf32 runs fp32's graph, fp16 that of bf16."""
    width = {"tf32": "fp32", "fp16": "bf16"}.get(dtype, dtype)
    file = graph_file(id, mode, batch, width, attention)
    if seq < SHORTEST_SAVED or not file.exists():
        return None
    return _evaluated(str(file), batch, seq, dtype == "fp16")


@lru_cache(maxsize=32)
def _evaluated(file: str, batch: int, seq: int, half: bool) -> OpGraph:
    table = _read(file)
    if half:
        table = {**table, "tensors": [["fp16" if dtype == "bf16" else dtype, *rest] for dtype, *rest in table["tensors"]]}
    return graph_from(table, file, B=batch, S=seq)


@lru_cache(maxsize=16)
def _read(file: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(gzip.decompress(Path(file).read_bytes()))
    return table


# ---- traced ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _traced(id: str, config_json: str, mode: str, batch: int, seq: int, dtype: str, attention: str) -> OpGraph:
    """Of a third batch and further ones from the traces of two: sizes are products of the batch, as in saved graphs."""
    try:
        import torch  # noqa: F401
    except ImportError:
        shorter = saved_graph(id, mode, batch, SHORTEST_SAVED, dtype, attention) is not None and seq < SHORTEST_SAVED
        why = f", {seq} tokens: the saved graph is for {SHORTEST_SAVED} and more" if shorter else ""
        raise MissingExtra.of("torch", f"tracing {id} ({mode}, {dtype}, {attention} attention{why})") from None
    from tilecast.workloads.tracing.bundled import traced_model

    traces = _traces(id, config_json, mode, seq, dtype, attention)
    if batch > 1 and batch not in traces and len(traces) == ENOUGH_TRACES:
        with suppress(InvalidInput):  # sizes, or operators, that follow no such rule
            return graph_from(_of_any_batch(id, config_json, mode, seq, dtype, attention), id, B=batch, S=seq)
    graph = traces.get(batch)
    if graph is None:
        graph = traced_model(id, json.loads(config_json), mode=mode, batch=batch, seq=seq, dtype=dtype, attention=attention)
    if batch > 1 and len(traces) < ENOUGH_TRACES:
        traces[batch] = graph
    return graph


@lru_cache(maxsize=16)
def _traces(id: str, config_json: str, mode: str, seq: int, dtype: str, attention: str) -> dict[int, OpGraph]:
    """By batch, at most two; a batch of one is told by no other."""
    return {}


@lru_cache(maxsize=16)
def _of_any_batch(id: str, config_json: str, mode: str, seq: int, dtype: str, attention: str) -> dict[str, Any]:
    traces = _traces(id, config_json, mode, seq, dtype, attention)
    return symbolic({(batch, seq): graph for batch, graph in traces.items()})
