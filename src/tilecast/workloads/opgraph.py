"""OpGraph: the operators of a forward pass or a training step, in the order they run, with the tensors they read, write and free.

A graph says nothing about kernels or GPUs. Runs of equal layers are folded: a segment holds its operators once and how often they repeat,
and unfolding gives back exactly the traced sequence. Saved as JSON (docs/training.md has the schema); a dimension may be text such as
"16*B*S", a product of a number, the batch B and the tokens S, so that one file serves every batch and length.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.errors import InvalidInput, MissingData

SCHEMA = "tilecast.opgraph/1"
PHASES = ("forward", "loss", "backward")
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "fp8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
HALF_OF = {"complex32": "fp16", "complex64": "fp32", "complex128": "fp64"}  # a complex number is two of these
LARGEST = 1 << 53
FLOATS = ("fp16", "bf16", "fp32")
MODES = ("inference", "training")
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")


@dataclass(frozen=True, slots=True)
class TensorShape:
    """`distinct` is the shape in memory where the tensor was expanded: a dimension of stride 0 counts once."""

    dtype: str
    shape: tuple[int, ...]
    distinct: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of memory that is read or written."""
        return math.prod(self.shape if self.distinct is None else self.distinct) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: `op` as PyTorch's dispatcher names it, such as aten.addmm."""

    op: str
    phase: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    frees: tuple[TensorShape, ...] = ()  # memory whose last use this is
    options: tuple[tuple[str, Any], ...] = ()  # what a time depends on besides shapes, such as a stride
    is_view: bool = False  # no kernel runs, nothing is allocated

    @property
    def operands(self) -> tuple[TensorShape, ...]:
        """Its inputs; a tensor that it takes twice, as a matrix times itself, is traced once and stands here twice."""
        return self.inputs * 2 if len(self.inputs) == 1 else self.inputs

    @property
    def allocated_bytes(self) -> int:
        return 0 if self.is_view else sum(tensor.nbytes for tensor in self.outputs)

    @property
    def freed_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.frees)


@dataclass(frozen=True, slots=True)
class Segment:
    repeat: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    name: str
    mode: str  # inference or training
    segments: tuple[Segment, ...]
    parameters: tuple[tuple[TensorShape, int], ...]  # trainable tensors, and how many of each shape
    frozen: tuple[tuple[TensorShape, int], ...] = ()  # weights that a training step leaves as they are
    buffers_bytes: int = 0
    inputs_bytes: int = 0
    batch: int | None = None
    seq: int | None = None
    recompute: bool = False
    torch_version: str = ""
    notes: tuple[str, ...] = ()
    _counted: dict[Node, int] = field(default_factory=dict, repr=False, compare=False)
    _live: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def nodes(self) -> Iterator[Node]:
        """Every operator, layers unfolded."""
        for segment in self.segments:
            for _ in range(segment.repeat):
                yield from segment.nodes

    @property
    def num_nodes(self) -> int:
        return sum(segment.repeat * len(segment.nodes) for segment in self.segments)

    @property
    def weights(self) -> tuple[tuple[TensorShape, int], ...]:
        """All weights, trained or not, and how many of each shape."""
        if not self.frozen:
            return self.parameters
        every: dict[TensorShape, int] = {}
        for tensor, times in (*self.parameters, *self.frozen):
            every[tensor] = every.get(tensor, 0) + times
        return tuple(every.items())

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel * times for tensor, times in (*self.parameters, *self.frozen))

    @property
    def num_trained(self) -> int:
        return sum(tensor.numel * times for tensor, times in self.parameters)

    @property
    def trained_bytes(self) -> int:
        """Of weights that have gradients."""
        return sum(tensor.nbytes * times for tensor, times in self.parameters)

    @property
    def weights_bytes(self) -> int:
        return self.trained_bytes + sum(tensor.nbytes * times for tensor, times in self.frozen)

    @property
    def dtype(self) -> str:
        """The format it was traced in, as `tilecast step` names it: that of its products; amp where weights are wider than these."""
        multiplied, kept = dict[str, int](), dict[str, int]()
        for node, times in self.counted().items():
            if node.op in PRODUCTS and node.inputs and node.inputs[-1].dtype in FLOATS:
                multiplied[node.inputs[-1].dtype] = multiplied.get(node.inputs[-1].dtype, 0) + times * node.inputs[-1].numel
        for tensor, times in (*self.parameters, *self.frozen):
            if tensor.dtype in FLOATS:
                kept[tensor.dtype] = kept.get(tensor.dtype, 0) + times * tensor.numel
        widest, used = (max(sizes, key=lambda name: sizes[name], default="fp32") for sizes in (kept, multiplied or kept))
        return "amp" if widest == "fp32" and used != "fp32" else used

    def counted(self) -> dict[Node, int]:
        """Each distinct operator and how often it runs."""
        if not self._counted:
            for segment in self.segments:
                for node in segment.nodes:
                    self._counted[node] = self._counted.get(node, 0) + segment.repeat
        return self._counted

    def live_bytes(self) -> dict[str, int]:
        """Most memory held at once in each phase, weights left out; and what is held when the forward pass ends."""
        if self._live:
            return self._live
        live, peaks, kept = 0, dict.fromkeys(PHASES, 0), 0

        def run(nodes: Iterable[Node]) -> None:
            nonlocal live, kept
            for node in nodes:
                live += node.allocated_bytes
                peaks[node.phase] = max(peaks[node.phase], live)
                live -= node.freed_bytes
                if node.phase != "backward":
                    kept = live

        for segment in self.segments:
            for index in range(segment.repeat):
                before = live
                run(segment.nodes)
                gained = live - before
                left = segment.repeat - 1 - index
                if left > 1 and segment.nodes[0].phase == segment.nodes[-1].phase:  # every further repetition gains the same
                    live += gained * (left - 1)
                    kept = live if segment.nodes[-1].phase != "backward" else kept
                    run(segment.nodes)
                    break
        self._live.update(peaks, kept=kept)
        return self._live

    # ---- JSON ----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        table, tensors = _table((self,))
        return {**table, "tensors": [_tensor(shape) for (shape,) in tensors]}

    def save(self, path: str | Path) -> None:
        try:
            Path(path).write_text(json.dumps(self.to_dict(), separators=(",", ":")), encoding="utf-8")
        except OSError as problem:
            raise InvalidInput(f"cannot write {path}: {problem.strerror}") from None


def _table(graphs: Sequence[OpGraph]) -> tuple[dict[str, Any], list[tuple[TensorShape, ...]]]:
    """The JSON of graphs that differ in sizes alone, tensors left out; and these, each as it is in every graph."""
    tensors: dict[tuple[TensorShape, ...], int] = {}

    def places(shapes: Iterable[tuple[TensorShape, ...]]) -> list[int]:
        return [tensors.setdefault(each, len(tensors)) for each in shapes]

    def plain(nodes: tuple[Node, ...]) -> dict[str, Any]:
        node = nodes[0]
        if any((each.op, each.phase, each.options, each.is_view) != (node.op, node.phase, node.options, node.is_view) for each in nodes):
            raise ValueError(node.op)
        entry: dict[str, Any] = {"op": node.op, "phase": node.phase}
        entry |= {"in": places(together(each.inputs for each in nodes)), "out": places(together(each.outputs for each in nodes))}
        entry |= {"free": frees} if (frees := places(together(each.frees for each in nodes))) else {}
        entry |= {"options": dict(node.options)} if node.options else {}
        return entry | ({"view": True} if node.is_view else {})

    def together(columns: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        return zip(*columns, strict=True)

    def counted(kept: Iterable[Sequence[tuple[TensorShape, int]]]) -> list[list[int]]:
        return [[places([tuple(tensor for tensor, _ in each)])[0], each[0][1]] for each in together(kept)]

    segments = []
    for each in together(graph.segments for graph in graphs):
        if len({segment.repeat for segment in each}) > 1:
            raise ValueError("repeat")
        segments.append({"repeat": each[0].repeat, "nodes": [plain(nodes) for nodes in together(segment.nodes for segment in each)]})
    parameters, frozen = counted(graph.parameters for graph in graphs), counted(graph.frozen for graph in graphs)
    first = graphs[0]
    table = {
        "schema": SCHEMA, "name": first.name, "mode": first.mode, "batch": first.batch, "seq": first.seq, "recompute": first.recompute,
        "torch_version": first.torch_version, "notes": list(first.notes), "buffers_bytes": first.buffers_bytes,
        "inputs_bytes": first.inputs_bytes, "parameters": parameters, **({"frozen": frozen} if frozen else {}), "segments": segments,
        "tensors": [],
    }  # fmt: skip
    return table, list(tensors)


def _tensor(shape: TensorShape) -> list[Any]:
    return [shape.dtype, list(shape.shape), *([list(shape.distinct)] if shape.distinct is not None else [])]


def load_graph(path: str | Path) -> OpGraph:
    """A graph that `OpGraph.save` wrote."""
    if not isinstance(path, str | Path):
        raise InvalidInput(f"path = {path!r} must be the path of a file that OpGraph.save wrote")
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise MissingData(f"cannot read {path}: {problem.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as problem:
        raise InvalidInput(f"{path} is not valid JSON: {problem}") from None
    return graph_from(table, str(path))


def graph_from(table: Any, where: str = "graph", **sizes: int) -> OpGraph:
    """The graph of a parsed JSON; `sizes` (B, S) stand in for the letters in its dimensions."""
    if not isinstance(table, Mapping) or table.get("schema") != SCHEMA:
        raise InvalidInput(f"{where} holds no operator graph: its schema must be {SCHEMA!r}")
    try:
        tensors = [
            TensorShape(dtype, _dims(shape, where, sizes), _dims(distinct[0], where, sizes) if distinct else None)
            for dtype, shape, *distinct in table["tensors"]
        ]
        if unknown := {tensor.dtype for tensor in tensors} - set(ITEM_BYTES):
            raise InvalidInput(f"{where}: unknown dtype {sorted(unknown)[0]!r}; known: {', '.join(ITEM_BYTES)}")

        def node(entry: Mapping[str, Any]) -> Node:
            if entry["phase"] not in PHASES:
                raise InvalidInput(f"{where}: phase = {entry['phase']!r} must be one of {', '.join(PHASES)}")
            if missing := {"in", "out"} - set(entry):
                raise InvalidInput(f"{where}: {entry['op']} has no {sorted(missing)[0]!r}: the places of its tensors")
            shapes = {key: tuple(tensors[_place(place, where)] for place in entry.get(key, ())) for key in ("in", "out", "free")}
            options = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in entry.get("options", {}).items())
            hash(options)  # numbers, words and lists of them
            return Node(
                str(entry["op"]), entry["phase"], shapes["in"], shapes["out"], shapes["free"], options, bool(entry.get("view", False))
            )

        if table["mode"] not in MODES:
            raise InvalidInput(f"{where}: mode = {table['mode']!r} must be one of {', '.join(MODES)}")
        batch, seq = (sizes.get(letter, table[name]) for letter, name in (("B", "batch"), ("S", "seq")))
        return OpGraph(
            name=str(table["name"]),
            mode=table["mode"],
            batch=None if batch is None else _whole(batch, where),
            seq=None if seq is None else _whole(seq, where),
            segments=tuple(
                Segment(_whole(entry["repeat"], where), tuple(node(each) for each in entry["nodes"])) for entry in table["segments"]
            ),
            parameters=tuple((tensors[_place(place, where)], _whole(times, where)) for place, times in table["parameters"]),
            frozen=tuple((tensors[_place(place, where)], _whole(times, where)) for place, times in table.get("frozen", ())),
            buffers_bytes=_dims([table.get("buffers_bytes", 0)], where, sizes)[0],
            inputs_bytes=_dims([table.get("inputs_bytes", 0)], where, sizes)[0],
            recompute=bool(table.get("recompute", False)),
            torch_version=str(table.get("torch_version", "")),
            notes=tuple(table.get("notes", ())),
        )
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise InvalidInput(f"{where} is no complete operator graph: {type(problem).__name__} {problem}") from None


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise InvalidInput(f"{where}: {value!r} must be a whole number of at least 1")
    return value


def _place(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{where}: {value!r} must be a place in tensors, a whole number of at least 0")
    return value


def _dims(shape: Sequence[Any], where: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    found = []
    for entry in shape:
        value = (
            math.prod(int(factor) if factor.isdigit() else sizes[factor] for factor in entry.split("*"))
            if isinstance(entry, str)
            else entry
        )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            raise InvalidInput(f"{where}: a dimension of {entry!r} must be a whole number of at least 0")
        found.append(value)
    return tuple(found)


# ---- folding -----------------------------------------------------------------------------------------------------


def folded(nodes: Sequence[Node]) -> tuple[Segment, ...]:
    """Runs that repeat at once, such as equal layers, as segments. Exact: equal means equal in every field."""
    numbers: dict[Node, int] = {}
    ids = np.array([numbers.setdefault(node, len(numbers)) for node in nodes], dtype=np.int64)
    segments: list[Segment] = []
    _fold(ids, list(nodes), segments)
    return tuple(segments)


def _fold(ids: np.ndarray, nodes: list[Node], segments: list[Segment]) -> None:
    """The repetition that saves most first, then what stands before and after it."""
    if not nodes:
        return
    start, period, repeat = _longest_repetition(ids)
    if repeat < 2:
        segments.append(Segment(1, tuple(nodes)))
        return
    end = start + period * repeat
    _fold(ids[:start], nodes[:start], segments)
    segments.append(Segment(repeat, tuple(nodes[start : start + period])))
    _fold(ids[end:], nodes[end:], segments)


def _longest_repetition(ids: np.ndarray) -> tuple[int, int, int]:
    best, saved = (0, 0, 1), 0
    for period in range(1, len(ids) // 2 + 1):
        if len(ids) - period <= saved:
            break
        equal = ids[period:] == ids[:-period]
        breaks = np.flatnonzero(~equal)
        edges = np.concatenate([[-1], breaks, [len(equal)]])
        runs = np.diff(edges) - 1  # equal neighbours at this distance
        longest = int(runs.argmax())
        repeat = int(runs[longest]) // period + 1
        if repeat > 1 and (repeat - 1) * period > saved:
            best, saved = (int(edges[longest]) + 1, period, repeat), (repeat - 1) * period
    return best


# ---- one file for every batch and length -------------------------------------------------------------------------


def symbolic(at: Mapping[tuple[int, int], OpGraph]) -> dict[str, Any]:
    """One JSON for all (batch, tokens), from the same model traced at several: every dimension must be c * B^i * S^j at all of them."""
    points, graphs = list(at), list(at.values())
    try:
        table, tensors = _table(graphs)
        shapes = [
            [each[0].dtype, *([_monomial(sizes, points) for sizes in zip(*dims, strict=True)] for dims in _columns(each))]
            for each in tensors
        ]
    except ValueError:
        raise InvalidInput(f"{graphs[0].name}: its graph changes with the batch or the length, not only its sizes") from None
    more = {name: _monomial(tuple(getattr(graph, name) for graph in graphs), points) for name in ("buffers_bytes", "inputs_bytes")}
    return {**table, **more, "batch": None, "seq": None, "tensors": shapes}


def _columns(tensors: Sequence[TensorShape]) -> Iterator[tuple[Any, ...]]:
    """The shapes of one tensor at every point, and those in memory where it was expanded."""
    return zip(*(_tensor(each)[1:] for each in tensors), strict=True)


def _monomial(values: tuple[int, ...], points: list[tuple[int, int]]) -> int | str:
    if len(set(values)) == 1:
        return values[0]
    for power_b in range(3):
        for power_s in range(3):
            scale = [value / (b**power_b * s**power_s) for value, (b, s) in zip(values, points, strict=True)]
            if scale[0] == int(scale[0]) and len(set(scale)) == 1:
                factors = [*([str(int(scale[0]))] if scale[0] != 1 else []), *["B"] * power_b, *["S"] * power_s]
                return "*".join(factors)
    raise InvalidInput(f"a dimension is {values} at (batch, tokens) {points}: no product of them")


def renamed(graph: OpGraph, **changes: Any) -> OpGraph:
    """The same graph with other facts."""
    return replace(graph, _counted={}, _live={}, **changes)
