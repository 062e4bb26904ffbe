"""Reads Kineto / PyTorch-profiler traces piece by piece: one event at a time is a Python object, what is kept of it are numbers in columns.

A file of any size needs the memory of its columns, some 60 bytes an event that is kept, and of the distinct names and shapes in it.
Stacks (`python_function`) and flow arrows are read past. Nothing of the trace's own metadata but the GPU, the ranks and two flags is kept:
such files carry environments, and those carry secrets.
"""

import codecs
import gzip
import json
import math
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tilecast.errors import InvalidInput, MissingData

CHUNK_BYTES = 1 << 22
MOST_BYTES_PER_VALUE = 1 << 26  # one event, or one entry of the metadata
SPACE = " \t\r\n"
BETWEEN_EVENTS = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=\{)")
LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")  # that a file may break off in; an empty rest is the start of each
GPU_KINDS = {"kernel": 0, "gpu_memcpy": 1, "memcpy": 1, "gpu_memset": 2, "memset": 2}
HOST_CALLS = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime", "mtia_runtime")
OPERATORS = ("cpu_op", "operator")
LAUNCHING = ("launch", "memcpy", "memset")  # in the names of the calls that start work on the GPU
KEEPS_SCALARS = ("attention", "attn", "mha", "fmha", "conv", "softmax", "norm", "sdpa", "rotary", "rope", "embedding")
COLLECTIVE = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype")
Progress = Callable[[int, int, int], None]  # bytes of the file read, bytes of the file, events so far


@dataclass(frozen=True, slots=True)
class Op:
    """One distinct operator call: its name, and the dims, types, strides and plain values of its arguments, as the trace has them."""

    name: str
    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    has_shapes: bool = False
    strides: tuple[Any, ...] = ()


@dataclass(slots=True)
class Columns:
    """Equal-length columns of numbers."""

    names: tuple[str, ...]
    data: "dict[str, array[Any]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data = {name.partition(":")[0]: array(name.partition(":")[2]) for name in self.names}

    def __getitem__(self, name: str) -> "array[Any]":
        return self.data[name]

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))


@dataclass(slots=True)
class Interned:
    """Values by number, each stored once."""

    numbers: dict[Any, int] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)

    def number(self, value: Any) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(slots=True)
class Trace:
    """What is kept of one file. Times are microseconds as the file has them; a missing number is -1."""

    path: str
    gpu_events: Columns = field(
        default_factory=lambda: Columns(
            ("name:i", "kind:b", "start:d", "dur:d", "device:q", "stream:q", "correlation:q", "external:q", "shape:i", "extra:i", "bytes:q",
             "in_graph:b")
        )
    )  # fmt: skip
    ops: Columns = field(default_factory=lambda: Columns(("external:q", "op:i", "start:d", "end:d", "thread:i")))
    calls: Columns = field(default_factory=lambda: Columns(("correlation:q", "external:q", "start:d", "end:d", "thread:i", "is_graph:b")))
    modules: Columns = field(default_factory=lambda: Columns(("module:i", "start:d", "end:d", "thread:i")))
    annotations: list[tuple[float, float, str]] = field(default_factory=list)  # start, end, name
    kernel_names: Interned = field(default_factory=Interned)
    op_values: Interned = field(default_factory=Interned)
    shapes: Interned = field(default_factory=Interned)  # (grid, block)
    extras: Interned = field(default_factory=Interned)  # of collectives
    module_names: Interned = field(default_factory=Interned)
    threads: Interned = field(default_factory=Interned)
    devices: dict[int, str] = field(default_factory=dict)  # number -> what the driver calls it
    rank: int | None = None
    world_size: int | None = None
    with_stack: bool = False
    num_events: int = 0
    num_dropped: int = 0  # GPU events whose times are not numbers, or negative
    truncated: str = ""  # why the file ends too early


def read_trace(path: str | Path, progress: Progress | None = None) -> Trace:
    """The trace in `path`, .json or .json.gz. A file that breaks off is read up to there, and `truncated` says so."""
    path = Path(path)
    trace = Trace(path=str(path))
    try:
        total = path.stat().st_size
        with path.open("rb") as raw:
            text = _Text(raw, path, total, progress, trace)
            _document(text, trace)
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except OSError as problem:
        raise MissingData(f"cannot read {path}: {problem.strerror or problem}") from None
    return trace


# ---- JSON, piece by piece ----------------------------------------------------------------------------------------


class _Truncated(Exception):
    """The file ends inside a value."""


class _Text:
    """The file as text, of which only the piece at hand is in memory."""

    def __init__(self, raw: IO[bytes], path: Path, total: int, progress: Progress | None, trace: Trace) -> None:
        start = raw.read(2)
        raw.seek(0)
        self.raw, self.path, self.total, self.progress, self.trace = raw, path, total, progress, trace
        self.source: Any = gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw
        self.decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.decoder = json.JSONDecoder(strict=False)
        self.buffer, self.place, self.is_done = "", 0, False

    def more(self) -> bool:
        """Append the next piece; False at the end of the file."""
        if self.is_done:
            return False
        try:
            piece = self.source.read1(CHUNK_BYTES)  # what there is: a whole read would lose what comes before a cut
        except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
            piece = b""
            self.trace.truncated = f"the compressed data end early ({problem})"
        self.is_done = not piece
        self.buffer = self.buffer[self.place :] + self.decode(piece, self.is_done)
        self.place = 0
        if self.progress is not None:
            self.progress(self.raw.tell(), self.total, self.trace.num_events)
        return bool(piece)

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self.place < len(self.buffer) and self.buffer[self.place] in SPACE:
                self.place += 1
            if self.place < len(self.buffer):
                return self.buffer[self.place]
            if not self.more():
                return ""

    def take(self, expected: str) -> None:
        found = self.peek()
        if found == "":
            raise _Truncated
        if found not in expected:
            raise InvalidInput(f"{self.path} is not valid JSON: {found!r} where one of {' '.join(expected)} belongs")
        self.place += 1

    def value(self) -> Any:
        """The next value, whole."""
        if not self.buffer.startswith("{", self.place):
            self.peek()
        while True:
            try:
                found, end = self.decoder.raw_decode(self.buffer, self.place)
            except RecursionError:
                raise InvalidInput(f"{self.path} is no trace: its values are nested too deeply") from None
            except json.JSONDecodeError as problem:
                rest = self.buffer[problem.pos :]  # reading on moves the buffer
                if len(self.buffer) - self.place <= MOST_BYTES_PER_VALUE and self.more():
                    continue
                if self.is_done and (problem.msg.startswith("Unterminated") or any(word.startswith(rest) for word in LITERALS)):
                    raise _Truncated from None
                raise InvalidInput(f"{self.path} is not valid JSON: {problem.msg.lower()} at {rest[:20]!r}") from None
            if end == len(self.buffer) and not self.is_done and not isinstance(found, dict | list | str):
                self.more()  # a number may go on
                continue
            self.place = end
            return found


def _document(text: _Text, trace: Trace) -> None:
    first = text.peek()
    if first not in ("{", "["):
        what = "is empty" if first == "" else f"starts with {first!r}"
        raise InvalidInput(f"{text.path} is no trace: it {what}; a Kineto trace is a JSON object with traceEvents")
    has_events = False
    try:
        if first == "[":  # Chrome's older form: the events alone
            has_events = True
            _events(text, trace)
            return
        text.take("{")
        while text.peek() != "}":
            key = text.value()
            text.take(":")
            if key == "traceEvents":
                has_events = True
                _events(text, trace)
            else:
                _metadata(str(key), text.value(), trace)
            if text.peek() != "}":
                text.take(",")
    except _Truncated:
        trace.truncated = trace.truncated or "the JSON ends in the middle"
    if not has_events:
        why = f" before its events: {trace.truncated}" if trace.truncated else ""
        raise InvalidInput(f"{text.path} is no Kineto trace: it has no traceEvents{why}")


def _events(text: _Text, trace: Trace) -> None:
    text.take("[")
    keep = _keeper(trace)
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        found = text.value()
        trace.num_events += 1
        if isinstance(found, dict) and found.get("ph", "X") == "X":
            keep(found)
        if between := BETWEEN_EVENTS.match(text.buffer, text.place):  # nearly always; the rest of the loop is for the edges of a piece
            text.place = between.end()
            continue
        if text.peek() == "]":
            break
        text.take(",")
        if text.peek() == "]":  # some writers leave a comma behind the last event
            break
    text.take("]")


def _metadata(key: str, value: Any, trace: Trace) -> None:
    if key == "deviceProperties" and isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict) and entry.get("name")]
        trace.devices = {_integer(entry.get("id", place)): str(entry["name"]) for place, entry in enumerate(named)}
    elif key == "distributedInfo" and isinstance(value, dict):
        rank, size = value.get("rank"), value.get("world_size")
        trace.rank = rank if isinstance(rank, int) else None
        trace.world_size = size if isinstance(size, int) else None
    elif key == "with_stack":
        trace.with_stack = bool(value)


# ---- what is kept of an event ------------------------------------------------------------------------------------


def _keeper(trace: Trace) -> Callable[[Mapping[str, Any]], None]:
    def keep(event: Mapping[str, Any]) -> None:
        category = str(event.get("cat", "")).lower()
        if category == "python_function":
            name = str(event.get("name", ""))
            if name.startswith("nn.Module"):
                row = (trace.module_names.number(name.partition(": ")[2] or name), *_span(event), _thread(trace, event))
                _add(trace.modules, row)
        elif category in OPERATORS:
            arguments = _arguments(event)
            external = _integer(arguments.get("External id", arguments.get("external id")))
            _add(trace.ops, (external, trace.op_values.number(_op(event, arguments)), *_span(event), _thread(trace, event)))
        elif category in HOST_CALLS:
            name = str(event.get("name", "")).lower()
            if any(word in name for word in LAUNCHING):
                arguments = _arguments(event)
                external = _integer(arguments.get("External id", arguments.get("external id")))
                _add(
                    trace.calls,
                    (_integer(arguments.get("correlation")), external, *_span(event), _thread(trace, event), "graphlaunch" in name),
                )
        elif category in GPU_KINDS:
            _keep_gpu_event(trace, event, GPU_KINDS[category])
        elif category == "user_annotation":
            name = str(event.get("name", ""))
            if name.startswith(("execute_", "step[", "ProfilerStep")):
                trace.annotations.append((*_span(event), name))

    return keep


def _keep_gpu_event(trace: Trace, event: Mapping[str, Any], kind: int) -> None:
    arguments = _arguments(event)
    start, dur = _number(event.get("ts")), _number(event.get("dur"))
    if not (math.isfinite(start) and 0 <= dur < math.inf):  # nan is neither
        trace.num_dropped += 1
        return
    grid, block = (_frozen(arguments.get(name)) for name in ("grid", "block"))
    shape = trace.shapes.number((grid, block)) if grid else -1
    collective = tuple(str(arguments[name]) for name in COLLECTIVE) if all(name in arguments for name in COLLECTIVE) else None
    _add(
        trace.gpu_events,
        (
            trace.kernel_names.number(str(event.get("name", ""))), kind, start, dur, _integer(arguments.get("device", event.get("pid"))),
            _integer(arguments.get("stream", event.get("tid"))), _integer(arguments.get("correlation")),
            _integer(arguments.get("External id", arguments.get("external id"))), shape,
            trace.extras.number(collective) if collective else -1, _integer(arguments.get("bytes")),
            bool(arguments.get("graph node id") or arguments.get("graph id")),
        ),
    )  # fmt: skip


def _op(event: Mapping[str, Any], arguments: Mapping[str, Any]) -> Op:
    name = str(event.get("name", ""))
    dims = arguments.get("Input Dims", arguments.get("Input dims"))
    if not isinstance(dims, list):
        return Op(name)
    scalars = arguments.get("Concrete Inputs") if any(word in name.lower() for word in KEEPS_SCALARS) else None
    return Op(name, _frozen(dims), _texts(arguments.get("Input type")), _texts(scalars), True, _frozen(arguments.get("Input Strides")))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _frozen(value: Any) -> Any:
    """Lists of whole numbers, and lists of those, as tuples; what is neither is empty."""
    if not isinstance(value, list):
        return ()
    if all(type(one) is int and one >= 0 for one in value):
        return tuple(value)
    return tuple(_frozen(one) for one in value)


def _add(columns: Columns, row: tuple[Any, ...]) -> None:
    for column, value in zip(columns.data.values(), row, strict=True):
        column.append(value)


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    start = _number(event.get("ts"))
    return start, start + max(_number(event.get("dur", 0.0)), 0.0)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _integer(value: Any) -> int:
    """A whole number that fits a column, or -1; streams and ids are sometimes words."""
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        return -1
    try:
        number = int(value)
    except (TypeError, ValueError):
        return -1
    return number if abs(number) < 2**62 else number % 2**62


def _thread(trace: Trace, event: Mapping[str, Any]) -> int:
    return trace.threads.number((str(event.get("pid")), str(event.get("tid"))))


def trace_files(paths: tuple[str, ...]) -> list[Path]:
    """The files asked for; a folder stands for the traces in it, in the order of their names. None may be counted twice."""
    found = [path for given in paths for path in _files_of(Path(given))]
    seen: set[Path] = set()
    for path in found:
        if (real := path.resolve()) in seen:
            raise InvalidInput(f"{path} is given twice: every rank has a file of its own")
        seen.add(real)
    return found


def _files_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
    else:
        found = sorted(entry for entry in path.iterdir() if entry.name.endswith((".json", ".json.gz")))
        if not found:
            raise MissingData(f"the folder {path} has no .json or .json.gz files")
        yield from found
