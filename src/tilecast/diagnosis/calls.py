"""From the events of a trace to calls: which operator launched which kernels, with what shapes, in which module, and how long they took.

A call is what one operator ran on the GPU: its main kernel and the helpers around it. Equal calls (same operator and shapes, same kernels,
same launch shape) make a group. A kernel belongs to the operator whose External id it carries, else to the innermost one that was running
on the launching thread. Kernels replayed from a CUDA graph carry the operator that launched the graph, which says nothing about them:
they, and kernels whose operator was not recorded, get the operator of an identical launch elsewhere: the same kernel between the same
neighbours, or the only operator that launches it on the same grid, and as long.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecast.diagnosis.kernel_names import Rule, recognise
from tilecast.diagnosis.timeline import Activity, covered, merged
from tilecast.diagnosis.trace_reader import Columns, Op, Trace
from tilecast.execution.tasks import Floats

WHOLE_OPERATOR = ("moe",)  # families whose model counts all kernels of the operator
# Which of an operator's kernels is the main one.
PRIORITY = ("moe", "mla", "attention", "attention_backward", "conv2d", "conv2d_dgrad", "conv2d_wgrad", "gemm")
NEIGHBOURS = 5  # kernels on either side that make a neighbourhood
WEIGHT = 0x9E3779B97F4A7C15  # an odd number whose powers are spread over 64 bits
SAME_LENGTH = 0.2  # an identical launch takes as long, within this share
MICROSECOND = 1e-6
SKEW_US = 1.0  # by which a kernel may start before its launch and nobody wonders


@dataclass(frozen=True, slots=True)
class Requests:
    """What an engine's annotation says of a step: requests in their prompt, their new tokens, the sum of their squares, and cached ones."""

    num_context: int
    tokens: int
    squares: int
    kv_tokens: int | None
    num_generation: int


@dataclass(slots=True, kw_only=True)
class CallGroup:
    """Equal calls. Durations are seconds, one for each call; `helper_s` is the part of them that the helpers take, all calls together."""

    op: Op | None
    rule: Rule | None  # of the main kernel
    kernels: tuple[str, ...]  # the main kernel first
    grids: dict[str, tuple[int, ...]]  # kernel -> its grid
    collective: tuple[str, ...] | None
    num_bytes: int  # of a copy; -1: none
    requests: Requests | None
    context_op: Op | None  # without an operator of its own: that of the same kernel between the same neighbours
    in_graph: bool  # replayed from a graph, and no identical launch elsewhere
    durations_s: Floats
    helper_s: float = 0.0
    beside_s: float = 0.0  # part of the durations in which communication ran beside computation, or computation beside communication
    modules: Counter[str] = field(default_factory=Counter)
    num_inferred: int = 0  # of the calls
    inferred_s: float = 0.0  # part of the durations: launches whose operator is that of an identical one

    @property
    def total_s(self) -> float:
        return float(self.durations_s.sum())

    @property
    def family(self) -> str:
        return self.rule.family if self.rule is not None else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One rank's trace, matched."""

    path: str
    rank: int | None
    world_size: int | None
    groups: list[CallGroup]
    activity: Activity
    device_names: tuple[str, ...]
    num_gpu_events: int
    num_matched: int
    num_zero: int
    num_dropped: int
    num_graph_launches: int
    graph_s: float
    skew_s: float  # by how much the worst kernel starts before it was launched
    num_skewed: int
    with_stack: bool
    has_shapes: bool
    truncated: str
    contexts: Mapping[int, Op | None]  # neighbourhood of a kernel -> its operator; None: several


def matched(trace: Trace, rules: Sequence[Rule], elsewhere: Mapping[int, Op | None] | None = None) -> Run:
    """The calls of a trace, grouped. `elsewhere` are the contexts of another run of the same work."""
    events = trace.gpu_events
    count = len(events)
    names = [recognise(name, rules) for name in trace.kernel_names.values]
    call_of = _places(trace.calls["correlation"], events["correlation"])
    starts = np.array(events["start"], dtype=np.float64)
    durations = np.array(events["dur"], dtype=np.float64)
    is_graph = np.array(events["in_graph"], dtype=bool) | _taken(trace.calls["is_graph"], call_of, False).astype(bool)
    op_of = _operators(trace, call_of, is_graph)
    module_of = _modules(trace, call_of)
    launched = _taken(trace.calls["start"], call_of, np.nan)
    launch_done = _taken(trace.calls["end"], call_of, np.nan)
    early = launched - starts
    skewed = np.nan_to_num(early, nan=-1.0) > SKEW_US
    communicating = np.array([rule is not None and rule.communicates for rule in names], dtype=bool)
    communicates = communicating[np.array(events["name"], dtype=np.int64)] if count else np.zeros(0, bool)
    devices = np.array(events["device"])
    beside = _beside(starts, durations, devices, communicates)
    contexts: dict[int, Op | None] = {}
    guesses: dict[int, Op] = {}
    for keys in (_neighbourhoods(trace, starts, devices, with_grid) for with_grid in (True, False)):  # what tells more comes first
        contexts |= _contexts(trace, keys, op_of)
        guesses = _guesses(trace, names, keys, op_of, [contexts, elsewhere or {}]) | guesses
    groups = _groups(trace, names, op_of, module_of, launched, is_graph, durations, beside, guesses)
    first = float(starts.min()) if count else 0.0
    order = np.argsort(starts, kind="stable")
    return Run(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        groups=groups,
        activity=Activity(
            start_s=(starts[order] - first) * MICROSECOND,
            end_s=(starts[order] + durations[order] - first) * MICROSECOND,
            device=devices[order],
            communicates=communicates[order],
            launched_s=(launch_done[order] - first) * MICROSECOND,
        ),
        device_names=_device_names(trace),
        num_gpu_events=count,
        num_matched=int((op_of >= 0).sum()),
        num_zero=int((durations == 0).sum()),
        num_dropped=trace.num_dropped,
        num_graph_launches=int(np.array(trace.calls["is_graph"], dtype=np.int64).sum()) if len(trace.calls) else 0,
        graph_s=float(durations[is_graph].sum()) * MICROSECOND,
        skew_s=float(early[skewed].max()) * MICROSECOND if skewed.any() else 0.0,
        num_skewed=int(skewed.sum()),
        with_stack=trace.with_stack,
        has_shapes=any(op.has_shapes for op in trace.op_values.values),
        truncated=trace.truncated,
        contexts=contexts,
    )


def _device_names(trace: Trace) -> tuple[str, ...]:
    """Of the GPUs that ran something, where the trace says which is which; else of all it lists."""
    used = set(trace.gpu_events["device"])
    known = [trace.devices[number] for number in sorted(used & set(trace.devices))]
    return tuple(dict.fromkeys(known if used <= set(trace.devices) else trace.devices.values()))


# ---- matching ----------------------------------------------------------------------------------------------------


def _places(keys: Any, asked: Any) -> np.ndarray:
    """For each of `asked`, the place of the last equal key; -1: there is none."""
    wanted = np.array(asked, dtype=np.int64)
    if not len(keys):
        return np.full(len(wanted), -1)
    values = np.array(keys, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    found = np.searchsorted(values[order], wanted, side="right") - 1
    place = order[np.maximum(found, 0)]
    return np.asarray(np.where((found >= 0) & (values[place] == wanted) & (wanted >= 0), place, -1))


def _taken(column: Any, places: np.ndarray, missing: Any) -> np.ndarray:
    if not len(column):
        return np.full(len(places), missing)
    return np.asarray(np.where(places >= 0, np.array(column)[np.maximum(places, 0)], missing))


def _operators(trace: Trace, call_of: np.ndarray, is_graph: np.ndarray) -> np.ndarray:
    """The place in `trace.ops` of each GPU event's operator; -1: none."""
    found = _places(trace.ops["external"], trace.gpu_events["external"])
    by_call = _places(trace.ops["external"], _taken(trace.calls["external"], call_of, -1).astype(np.int64))
    found = np.where(found >= 0, found, by_call)
    alone = np.flatnonzero((found < 0) & (call_of >= 0) & ~is_graph)
    if len(alone):
        found[alone] = _innermost(trace.ops, trace.calls, call_of[alone])
    found[is_graph] = -1
    return found


def _modules(trace: Trace, call_of: np.ndarray) -> np.ndarray:
    """The place in `trace.modules` of the innermost module that ran at each launch; -1: none."""
    found = np.full(len(call_of), -1)
    known = np.flatnonzero(call_of >= 0)
    if len(trace.modules) and len(known):
        found[known] = _innermost(trace.modules, trace.calls, call_of[known])
    return found


def _innermost(spans: Columns, calls: Columns, asked: np.ndarray) -> np.ndarray:
    """Of the nested `spans` of a call's thread, the innermost around the call's start; one walk over both, in the order of time."""
    span_start, span_end, span_thread = (np.array(spans[name]) for name in ("start", "end", "thread"))
    moment, thread = np.array(calls["start"])[asked], np.array(calls["thread"])[asked]
    result = np.full(len(asked), -1)
    for one in np.unique(thread):
        mine = np.flatnonzero(span_thread == one)
        mine = mine[np.lexsort((-span_end[mine], span_start[mine]))]
        wanted = np.flatnonzero(thread == one)
        wanted = wanted[np.argsort(moment[wanted], kind="stable")]
        upto = np.searchsorted(span_start[mine], moment[wanted], side="right")
        starts, ends = mine.tolist(), span_end[mine].tolist()
        stack: list[int] = []
        place = 0
        for number, until, when in zip(wanted.tolist(), upto.tolist(), moment[wanted].tolist(), strict=True):
            while place < until:
                while stack and ends[stack[-1]] < span_start[starts[place]]:
                    stack.pop()
                stack.append(place)
                place += 1
            while stack and ends[stack[-1]] < when:
                stack.pop()
            if stack:
                result[number] = starts[stack[-1]]
    return result


def _beside(starts: Floats, durations: Floats, devices: np.ndarray, communicates: np.ndarray) -> Floats:
    """Of each event, how long the other kind (communication, or all else) ran at the same time on its GPU."""
    found = np.zeros_like(starts)
    for device in np.unique(devices):
        for kind in (True, False):
            mine, others = (np.flatnonzero((devices == device) & (communicates == one)) for one in (kind, not kind))
            others = others[np.argsort(starts[others], kind="stable")]
            low, high = merged(starts[others], starts[others] + durations[others])
            found[mine] = covered(starts[mine], starts[mine] + durations[mine], low, high)
    return found


def _neighbourhoods(trace: Trace, starts: Floats, devices: np.ndarray, with_grid: bool) -> np.ndarray:
    """One number for each event: which kernels, and on which grids, run on its stream around it; 0 at the ends of a stream."""
    events = trace.gpu_events
    shapes = [*(shape[0] for shape in trace.shapes.values), None]  # the last one stands for -1
    pairs = list(zip(events["name"], events["shape"], strict=True))
    numbers = {pair: hash((trace.kernel_names.values[pair[0]], shapes[pair[1]] if with_grid else "")) for pair in set(pairs)}
    codes = np.array([numbers[pair] for pair in pairs], dtype=np.int64).astype(np.uint64)
    found = np.zeros(len(pairs), dtype=np.uint64)
    streams = np.array(events["stream"])
    width = 2 * NEIGHBOURS + 1
    weights = np.array([pow(WEIGHT, power, 2**64) for power in range(1, width + 1)], dtype=np.uint64)
    for device, stream in {*zip(devices.tolist(), streams.tolist(), strict=True)}:
        mine = np.flatnonzero((devices == device) & (streams == stream))
        mine = mine[np.argsort(starts[mine], kind="stable")]
        if len(mine) >= width:
            windows = np.lib.stride_tricks.sliding_window_view(codes[mine], width)
            found[mine[NEIGHBOURS : len(mine) - NEIGHBOURS]] = np.bitwise_or((windows * weights).sum(axis=1, dtype=np.uint64), np.uint64(1))
    return found


def _contexts(trace: Trace, keys: np.ndarray, op_of: np.ndarray) -> dict[int, Op | None]:
    """Of every neighbourhood in which a kernel has an operator with shapes: that operator, if it is always the same."""
    found: dict[int, Op | None] = {}
    for key, place in zip(keys.tolist(), op_of.tolist(), strict=True):
        if key and place >= 0:
            op = trace.op_values.values[trace.ops["op"][place]]
            if op.has_shapes:
                found[key] = op if found.get(key, op) == op else None
    return found


def _guesses(
    trace: Trace, names: Sequence[Rule | None], keys: np.ndarray, op_of: np.ndarray, known: Sequence[Mapping[int, Op | None]]
) -> dict[int, Op]:
    """Events without an operator whose neighbourhood tells one; helpers are left out, for they are part of another's call."""
    found: dict[int, Op] = {}
    for number in np.flatnonzero((op_of < 0) & (keys != 0)).tolist():
        rule = names[trace.gpu_events["name"][number]]
        if rule is not None and not rule.helper and not rule.communicates:
            op = next((one[int(keys[number])] for one in known if int(keys[number]) in one), None)
            if op is not None:
                found[number] = op
    return found


# ---- grouping ----------------------------------------------------------------------------------------------------


def _groups(
    trace: Trace, names: Sequence[Rule | None], op_of: np.ndarray, module_of: np.ndarray, launched: Floats, is_graph: np.ndarray,
    durations: Floats, beside: Floats, guesses: Mapping[int, Op],
) -> list[CallGroup]:  # fmt: skip
    """Calls put together by what they are."""
    events = trace.gpu_events
    members: dict[int, list[int]] = {}  # operator call -> its events
    alone: list[list[int]] = []
    for number, op in enumerate(op_of.tolist()):
        if op >= 0:
            members.setdefault(op, []).append(number)
        else:
            alone.append([number])
    annotations = _annotated(trace)
    gathered: dict[Any, tuple[list[float], list[float], list[float], Counter[str]]] = {}
    for parts in [part for whole in members.values() for part in _split(whole, trace, names, durations)] + alone:
        main = parts[0]
        op = int(op_of[main])
        rule = names[events["name"][main]]
        requests = _at(annotations, float(launched[main])) if rule is not None and rule.family in ("attention", "mla") else None
        kinds = [(events["name"][part], events["shape"][part]) for part in parts]
        distinct = (kinds[0], *sorted(set(kinds[1:]) - {kinds[0]}))
        op_number = trace.ops["op"][op] if op >= 0 else -1
        num_bytes = events["bytes"][main] if events["kind"][main] else -1
        key = (op_number, distinct, events["extra"][main], num_bytes, requests, bool(is_graph[main]), guesses.get(main))
        times, helpers, besides, modules = gathered.setdefault(key, ([], [], [], Counter()))
        times.append(sum(durations[part] for part in parts))
        helpers.append(sum(durations[part] for part in parts[1:]))
        besides.append(sum(beside[part] for part in parts))
        if module_of[main] >= 0:
            module = trace.module_names.values[trace.modules["module"][int(module_of[main])]]
            modules[re.sub(r"_\d+$", "", module)] += 1  # the profiler numbers the modules of a class
    return [_group(trace, names, key, *found) for key, found in gathered.items()]


def _split(whole: list[int], trace: Trace, names: Sequence[Rule | None], durations: Floats) -> list[list[int]]:
    """The events of one operator call as calls, each with its main kernel first."""
    if len(whole) == 1:
        return [whole]
    rules = {number: names[trace.gpu_events["name"][number]] for number in whole}

    def family(number: int) -> str:
        rule = rules[number]
        return rule.family if rule is not None else ""

    def is_helper(number: int) -> bool:
        rule = rules[number]
        return rule is not None and rule.helper

    mains = [number for number in whole if not is_helper(number)] or whole
    chief = min(
        {family(number) for number in mains},
        key=lambda name: (
            PRIORITY.index(name) if name in PRIORITY else len(PRIORITY),
            -sum(durations[n] for n in mains if family(n) == name),
        ),
    )
    taken = {chief, "quantize"} if chief in WHOLE_OPERATOR else {chief}
    own = [number for number in whole if family(number) in taken or is_helper(number)]
    own.sort(key=lambda number: (is_helper(number) or family(number) != chief, trace.gpu_events["start"][number]))
    rest: dict[str, list[int]] = {}
    for number in whole:
        if number not in own:
            rest.setdefault(family(number), []).append(number)
    return [own, *rest.values()]


def _group(
    trace: Trace,
    names: Sequence[Rule | None],
    key: Any,
    times: list[float],
    helpers: list[float],
    besides: list[float],
    modules: Counter[str],
) -> CallGroup:
    op, distinct, extra, num_bytes, requests, in_graph, context_op = key
    kernels = tuple(dict.fromkeys(trace.kernel_names.values[name] for name, _ in distinct))
    grids = {trace.kernel_names.values[name]: trace.shapes.values[shape][0] for name, shape in distinct if shape >= 0}
    return CallGroup(
        op=trace.op_values.values[op] if op >= 0 else None,
        rule=names[distinct[0][0]],
        kernels=kernels,
        grids=grids,
        collective=trace.extras.values[extra] if extra >= 0 else None,
        num_bytes=num_bytes,
        requests=requests,
        context_op=context_op,
        in_graph=in_graph,
        durations_s=np.array(times) * MICROSECOND,
        helper_s=sum(helpers) * MICROSECOND,
        beside_s=sum(besides) * MICROSECOND,
        modules=modules,
    )


def infer(groups: list[CallGroup], elsewhere: Sequence[CallGroup] = ()) -> list[CallGroup]:
    """Launches without an operator take that of an identical one, here or `elsewhere`, if they last as long."""
    by_grid: dict[Any, list[CallGroup]] = {}
    by_op: dict[Any, list[CallGroup]] = {}
    for group in (*groups, *elsewhere):
        if group.op is not None and group.op.has_shapes:
            by_op.setdefault((group.kernels[0], group.op), []).append(group)
            if group.grids:
                by_grid.setdefault(_launch(group), []).append(group)
    here = {id(group) for group in groups}
    kept = []
    for group in groups:
        alike: list[CallGroup] = []
        if group.op is None and group.collective is None:
            alike = by_op.get((group.kernels[0], group.context_op), []) or (by_grid.get(_launch(group), []) if group.grids else [])
        if len({one.op for one in alike}) != 1:
            kept.append(group)
            continue
        twin = max(alike, key=lambda one: (id(one) in here, len(one.durations_s)))
        usual, found = float(np.median(twin.durations_s)), float(np.median(group.durations_s))
        if abs(found - usual) > SAME_LENGTH * usual:
            kept.append(group)
        elif id(twin) in here:
            twin.durations_s = np.concatenate([twin.durations_s, group.durations_s])
            twin.beside_s += group.beside_s
            twin.num_inferred += len(group.durations_s)
            twin.inferred_s += group.total_s
        else:
            group.op, group.requests, group.modules = twin.op, twin.requests, twin.modules
            group.num_inferred, group.inferred_s = len(group.durations_s), group.total_s
            kept.append(group)
    return kept


def _launch(group: CallGroup) -> tuple[str, tuple[int, ...] | None]:
    return group.kernels[0], group.grids.get(group.kernels[0])


# ---- annotations of engines --------------------------------------------------------------------------------------

_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\((\d+)_(\d+)\)_generation_(\d+)")
_SUMS = re.compile(r"execute_(?:\d+_)?context_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk\d+\)_generation_(\d+)")


def requests_of(annotation: str) -> Requests | None:
    """What `execute_context_1(888_788544)_generation_0(0)` and its like say."""
    if match := _SUMS.match(annotation):
        context, tokens, kv_tokens, squares, generation = map(int, match.groups())
        return Requests(context, tokens, squares, kv_tokens, generation)
    if match := _VLLM.match(annotation):
        context, tokens, squares, generation = map(int, match.groups())
        return Requests(context, tokens, squares, None, generation)
    return None


def _annotated(trace: Trace) -> list[tuple[float, float, Requests]]:
    found = ((start, end, requests_of(name)) for start, end, name in trace.annotations)
    return [(start, end, requests) for start, end, requests in found if requests is not None]


def _at(annotations: list[tuple[float, float, Requests]], when: float) -> Requests | None:
    return next((requests for start, end, requests in annotations if start <= when <= end), None)
