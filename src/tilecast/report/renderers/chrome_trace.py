"""A timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open: one prefill and the first decode steps.

Durations are the predicted ones, in microseconds as the format asks. What a layer launches is listed layer by layer; kernels that only
some layers have take the first layers that are left, in the order of the breakdown.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tilecast.engines.breakdown import HOST, Part
from tilecast.engines.predict import Prediction, predict
from tilecast.engines.step_parts import StepPrediction
from tilecast.report.record import versions

DECODE_STEPS = 3
TRACKS = {"steps": 1, "layers": 2, "host": 3, "stream": 4, "collectives": 5}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
MICROSECONDS = 1e6


def text(found: Prediction, asked: Mapping[str, Any], command: str = "") -> str:
    """The trace of `found`, which `predict(**asked)` made, as JSON."""
    return json.dumps(trace(found, asked, command), ensure_ascii=False)


def trace(found: Prediction, asked: Mapping[str, Any], command: str = "") -> dict[str, Any]:
    start = _first_steps(found, asked)
    steps = [("prefill", "prefill", 1), *((f"decode step {step + 1}", "decode", start.decode_steps) for step in range(start.decode_steps))]
    events, now_s = list[dict[str, Any]](), 0.0
    for name, phase, num_steps in steps:
        parts = [part for part in start.breakdown if part.phase == phase]
        made, now_s = _step(name, parts, num_steps, found.model.num_layers, now_s)
        events += made
    about = {"model": found.model.name, "gpu": found.gpu.id, "tp": found.tp, "engine": found.engine, "command": command}
    return {"traceEvents": [*_names(found), *events], "displayTimeUnit": "ms", "otherData": about | versions()}


def step_text(found: StepPrediction, command: str = "") -> str:
    """The time line of a training step as JSON: a process for one GPU of every stage, with its kernels and its collectives."""
    tracks = {track: number for number, track in enumerate(dict.fromkeys(span.track for span in found.spans), 1)}
    stages = sorted({span.stage for span in found.spans})
    names = []
    for stage in stages:
        of = f", stage {stage}" if len(stages) > 1 else ""
        names.append({"name": "process_name", "ph": "M", "pid": stage, "args": {"name": f"{found.gpu.id}{of}: {found.graph.name}"}})
        names += [
            {"name": "thread_name", "ph": "M", "pid": stage, "tid": number, "args": {"name": track}} for track, number in tracks.items()
        ]
    events = [
        {
            "name": span.name, "cat": span.track, "ph": "X", "ts": span.start_s * MICROSECONDS,
            "dur": (span.end_s - span.start_s) * MICROSECONDS, "pid": span.stage, "tid": tracks[span.track],
        }
        for span in found.spans
    ]  # fmt: skip
    about = {"model": found.graph.name, "gpu": found.gpu.id, "num_gpus": found.num_gpus, "command": command}
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": about | versions()}, ensure_ascii=False)


def _first_steps(found: Prediction, asked: Mapping[str, Any]) -> Prediction:
    """The same batch with as many output tokens as are shown."""
    if found.decode_steps <= DECODE_STEPS:
        return found
    others = {name: value for name, value in asked.items() if name not in ("batch", "isl", "osl", "requests") and value is not None}
    if asked.get("requests") is None:
        return predict(batch=asked["batch"], isl=asked["isl"], osl=DECODE_STEPS + 1, **others)
    return predict(requests=[(given, min(wanted, DECODE_STEPS + 1)) for given, wanted in asked["requests"]], **others)


def _step(name: str, parts: list[Part], num_steps: int, num_layers: int, start_s: float) -> tuple[list[dict[str, Any]], float]:
    """One forward pass from `start_s`: the host's part first, then kernel after kernel. Also when it ends."""
    events, now_s = list[dict[str, Any]](), start_s
    layer_started: tuple[int, float] | None = None
    for layer, part in _in_order(parts, num_layers):
        if layer_started is not None and layer != layer_started[0]:
            events.append(_slice(f"layer {layer_started[0]}", "layers", layer_started[1], now_s))
            layer_started = None
        if layer is not None and layer_started is None:
            layer_started = (layer, now_s)
        seconds = part.time.median / num_steps / part.launches_per_step
        events.append(_slice(part.name, _track(part), now_s, now_s + seconds, part))
        now_s += seconds
    if layer_started is not None:
        events.append(_slice(f"layer {layer_started[0]}", "layers", layer_started[1], now_s))
    events.append(_slice(name, "steps", start_s, now_s))
    return events, now_s


def _in_order(parts: list[Part], num_layers: int) -> Iterator[tuple[int | None, Part]]:
    """(layer, part) as they run; None: before or after the layers. The host comes first: it prepares the step."""
    yield from ((None, part) for part in parts if part.name == HOST)
    kernels = [part for part in parts if part.name != HOST]
    layered = [place for place, part in enumerate(kernels) if part.launches_per_step > 1]
    first, end = (layered[0], layered[-1] + 1) if layered else (len(kernels), len(kernels))
    yield from ((None, part) for part in kernels[:first])
    inside = kernels[first:end]
    offsets = _offsets(inside, num_layers)
    for layer in range(num_layers):
        for part in inside:
            yield from ((layer, part) for _ in range(_launches(part, layer, num_layers, offsets)))
    yield from ((None, part) for part in kernels[end:])


def _offsets(parts: list[Part], num_layers: int) -> dict[int, int]:
    """Launches of a step -> the first layer that has them: kinds of layers follow one another."""
    offsets, used = dict[int, int](), 0
    for part in parts:
        count = part.launches_per_step
        if count < num_layers and count not in offsets:
            offsets[count] = used if used + count <= num_layers else 0
            used = offsets[count] + count
    return offsets


def _launches(part: Part, layer: int, num_layers: int, offsets: Mapping[int, int]) -> int:
    count = part.launches_per_step
    if count < num_layers:
        return int(offsets[count] <= layer < offsets[count] + count)
    return (layer + 1) * count // num_layers - layer * count // num_layers


def _track(part: Part) -> str:
    return "host" if part.call is None else "collectives" if part.family in COLLECTIVES else "stream"


def _slice(name: str, track: str, start_s: float, end_s: float, part: Part | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": name, "cat": track, "ph": "X", "ts": start_s * MICROSECONDS, "dur": (end_s - start_s) * MICROSECONDS, "pid": 0,
        "tid": TRACKS[track],
    }  # fmt: skip
    if part is not None and part.call is not None:
        event["args"] = {
            "family": part.family, "identity": part.identity, "sizes": dict(part.sizes), "bound_by": part.bound_by,
            "efficiency": part.efficiency, "basis": part.basis,
        }  # fmt: skip
    return event


def _names(found: Prediction) -> list[dict[str, Any]]:
    of = f", one of {found.tp}" if found.tp > 1 else ""
    process = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"{found.gpu.id}{of}: {found.model.name}, {found.engine}"}}
    threads = [
        {"name": what, "ph": "M", "pid": 0, "tid": number, "args": {key: value}}
        for track, number in TRACKS.items()
        for what, key, value in (("thread_name", "name", track), ("thread_sort_index", "sort_index", number))
    ]
    return [process, *threads]
