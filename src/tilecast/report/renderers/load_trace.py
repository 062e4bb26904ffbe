"""A timeline of a load in Chrome's trace event format: a stretch of its steady state, as long as a typical request lives.

Steps, transfers and requests are those that the predicted times were read from. Every scheduler has a track of its own on which steps
follow one another; requests stand below one another as users do, and a counter says how many wait, are prefilled and decode. A long
stretch is cut: at most `MOST_STEPS` steps and `MOST_ROWS` users are drawn.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecast.execution.tasks import Floats
from tilecast.report.record import versions
from tilecast.serving.disaggregated import DisaggregatedPrediction
from tilecast.serving.handover import MEDIAN
from tilecast.serving.load import LoadPrediction

MOST_STEPS = 2_000
FEWEST_STEPS = 50
MOST_ROWS = 48
MICROSECONDS = 1e6
REQUESTS = "requests"
Track = tuple[str, str]  # process and thread, by their names


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    track: Track
    name: str
    start_s: float
    end_s: float
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """When every request (Q,) entered each of its phases: one array a phase in the order they pass, and when it ended."""

    names: tuple[str, ...]
    counters: tuple[str, ...]  # what a request in that phase counts as
    starts_s: tuple[Floats, ...]
    ends_s: Floats
    input_tokens: np.ndarray
    output_tokens: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    start_s: float
    end_s: float
    request: int  # the typical one, whose life it is or begins with


def text(found: LoadPrediction | DisaggregatedPrediction, command: str = "") -> str:
    """The trace of `found` as JSON."""
    return json.dumps(trace(found, command), ensure_ascii=False)


def trace(found: LoadPrediction | DisaggregatedPrediction, command: str = "") -> dict[str, Any]:
    stretch, steps, lives = _of_load(found) if isinstance(found, LoadPrediction) else _of_workers(found)
    rows, num_rows = _rows(lives, stretch)
    slices = [*steps, *rows]
    origin_s = min([stretch.start_s, *(each.start_s for each in slices)])
    tracks = list(dict.fromkeys(each.track for each in sorted(slices, key=lambda each: each.track[0] == REQUESTS)))
    pids = {process: number for number, process in enumerate(dict.fromkeys(track[0] for track in tracks))}
    tids = {track: number for number, track in enumerate(tracks, 1)}
    events = [_event(each, pids[each.track[0]], tids[each.track], origin_s) for each in slices]
    if REQUESTS in pids:
        events += _counts(lives, stretch, sorted({each.start_s for each in steps}), pids[REQUESTS], origin_s)
    about = {
        "model": found.model.name, "gpu": found.gpu.id, "engine": found.engine, "layout": found.layout, "concurrency": found.concurrency,
        "ttft_s": found.ttft_s.median, "tpot_s": found.tpot_s.median, "typical_request": stretch.request,
        "stretch_s": stretch.end_s - stretch.start_s, "users_shown": len({each.track for each in rows}), "users": num_rows,
        "command": command,
    }  # fmt: skip
    return {"traceEvents": [*_names(pids, tids), *events], "displayTimeUnit": "ms", "otherData": about | versions()}


# ---- what is drawn -----------------------------------------------------------------------------------------------


def _of_load(found: LoadPrediction) -> tuple[Stretch, list[Slice], Lives]:
    """One scheduler: all are alike."""
    plan, cost, counted = found.load.plan, found.load.cost, found.load.counted
    seconds = cost.step_s("median_s")
    clock = np.concatenate([[0.0], np.cumsum(seconds * plan.steps)])
    ends = np.concatenate([[0], np.cumsum(plan.steps)])
    arrival, taken, first, last = (np.interp(steps, ends, clock) for steps in (plan.arrival, plan.taken, plan.first, plan.last))
    begins = np.interp(np.arange(ends[-1] + 1), ends, clock)  # of every step, and the end of the last
    stretch = _stretch(begins, arrival, taken, last, _typical(found.load.ttft_s["median_s"], found.load.latency_s["median_s"], counted))
    of = f", one of {found.groups} schedulers" if found.groups > 1 else ""
    process = f"{found.engine} on {found.num_gpus} x {found.gpu.id}{of}"
    runs = np.repeat(np.arange(len(plan.steps)), plan.steps)
    low, high = np.searchsorted(begins, [stretch.start_s, stretch.end_s])
    slices: list[Slice] = []
    for step in range(int(low), int(high)):
        run, start, end = int(runs[step]), float(begins[step]), float(begins[step + 1])
        prompts, chunks, decodes = int(plan.prefill_tokens[run]), int(plan.chunks[run]), int(plan.decodes[run])
        if not prompts and not decodes:
            continue
        about = {
            "prefill_tokens": prompts, "chunks": chunks, "prompts_done": int(plan.prompts_done[run]), "decodes": decodes,
            "mean_context": float(plan.context[run]), "gpu_s": float(cost.gpu_s["median_s"][run]),
            "host_s": float(cost.host_s["median_s"][run]),
        }  # fmt: skip
        slices.append(Slice(track=(process, "steps"), name=_step_name(prompts, chunks, decodes), start_s=start, end_s=end, about=about))
        slices += _parts(found, run, process, start)
    lives = Lives(
        names=("waiting", "prefilling", "decoding"), counters=("waiting", "prefilling", "decoding"), starts_s=(arrival, taken, first),
        ends_s=last, input_tokens=plan.input_tokens, output_tokens=plan.output_tokens,
    )  # fmt: skip
    return stretch, slices, lives


def _parts(found: LoadPrediction, run: int, process: str, start_s: float) -> Iterator[Slice]:
    """A step's host time, then its kinds of kernels one after the other."""
    cost, now = found.load.cost, start_s
    host = float(cost.host_s["median_s"][run])
    yield Slice(track=(process, "host"), name="host", start_s=now, end_s=now + host)
    now += host
    for curve in cost.curves:
        seconds = float(curve.times["median_s"][curve.places[run]] @ curve.weights[run])
        if seconds > 0.0:
            yield Slice(track=(process, "kernels"), name=curve.name, start_s=now, end_s=now + seconds)
            now += seconds


def _of_workers(found: DisaggregatedPrediction) -> tuple[Stretch, list[Slice], Lives]:
    handover, passage, spans = found.handover, found.handover.median, found.handover.spans
    begins = np.sort(
        np.array([span.start_s for span in spans.prompts] + [span.at_s(step) for span in spans.tokens for step in range(span.steps)])
    )
    begins = np.append(begins, passage.last_s.max())
    typical = _typical(handover.ttft_s[MEDIAN], handover.latency_s[MEDIAN], handover.counted)
    stretch = _stretch(begins, passage.arrival_s, passage.taken_s, passage.last_s, typical)

    def drawn(start_s: float, end_s: float) -> bool:
        return start_s < stretch.end_s and end_s > stretch.start_s

    slices: list[Slice] = []
    for prompt in spans.prompts:
        if drawn(prompt.start_s, prompt.end_s):
            about = {"prefill_tokens": prompt.tokens, "chunks": prompt.chunks, "requests": list(prompt.requests)}
            name, track = _step_name(prompt.tokens, prompt.chunks, 0), (_worker(found, "prefill", prompt.worker), "steps")
            slices.append(Slice(track=track, name=name, start_s=prompt.start_s, end_s=prompt.end_s, about=about))
    for sent in spans.sent:
        if drawn(sent.start_s, sent.end_s):
            tokens, of = int(passage.input_tokens[sent.request]), f" of rank {sent.rank}" if found.prefill.pool.ranks > 1 else ""
            about = {
                "request": sent.request, "to": _worker(found, "decode", sent.to_worker), "bytes": found.link.bytes.get(tokens),
                "over": found.link.kind,
            }  # fmt: skip
            track = (_worker(found, "prefill", sent.worker), f"KV transfer{of}")
            slices.append(Slice(track=track, name=f"KV of {tokens:,} tokens", start_s=sent.start_s, end_s=sent.end_s, about=about))
    for run in spans.tokens:
        for step in range(run.steps) if drawn(run.start_s, run.at_s(run.steps)) else ():
            start, end = run.at_s(step), run.at_s(step + 1)
            if drawn(start, end):
                about = {"decodes": run.requests, "mean_context": run.keys + step}
                track = (_worker(found, "decode", run.worker), "steps")
                slices.append(Slice(track=track, name=_step_name(0, 0, run.requests), start_s=start, end_s=end, about=about))
    slices.sort(key=lambda each: (each.track[0].startswith("decode"), each.track))
    lives = Lives(
        names=("waiting for room to decode", "waiting for a prefill worker", "prefilling", "sending the KV cache", "decoding"),
        counters=("waiting", "waiting", "prefilling", "sending", "decoding"),
        starts_s=(passage.arrival_s, passage.placed_s, passage.taken_s, passage.prefilled_s, passage.there_s),
        ends_s=passage.last_s, input_tokens=passage.input_tokens, output_tokens=passage.output_tokens,
    )  # fmt: skip
    return stretch, slices, lives


def _worker(found: DisaggregatedPrediction, kind: str, number: int) -> str:
    workers = found.prefill if kind == "prefill" else found.decode
    ranks = f" in {workers.pool.ranks} ranks" if workers.pool.ranks > 1 else ""
    return f"{kind} worker {number + 1}, {workers.found.shard.num_gpus} x {found.gpu.id}{ranks}"


def _step_name(prefill_tokens: int, chunks: int, decodes: int) -> str:
    """What a step holds: "2,048 prompt tokens in 2 chunks + 31 decodes"."""
    cut = f" in {chunks} chunks" if chunks > 1 else ""
    held = [f"{prefill_tokens:,} prompt tokens{cut}"] if prefill_tokens else []
    return " + ".join([*held, *([f"{decodes:,} decode{'s' if decodes > 1 else ''}"] if decodes else [])])


# ---- which stretch, and who is in it -----------------------------------------------------------------------------


def _typical(first_s: Floats, latency_s: Floats, counted: slice) -> int:
    """The request whose first token and latency are nearest to their medians."""
    off = sum(np.abs(values - np.median(values)) / max(float(np.median(values)), 1e-12) for values in (first_s, latency_s))
    return int(counted.start + np.argmin(off))


def _stretch(begins_s: Floats, arrival_s: Floats, taken_s: Floats, last_s: Floats, request: int) -> Stretch:
    """The request's life, cut where it holds too many steps: then a part of its waiting, and what comes after."""
    most = len(begins_s) - 1
    arrived, taken, ended = (int(each) for each in np.searchsorted(begins_s, [times[request] for times in (arrival_s, taken_s, last_s)]))
    begin = min(max(arrived, taken - MOST_STEPS // 4), max(0, most - 1))
    end = min(max(ended, begin + FEWEST_STEPS), begin + MOST_STEPS, most)
    return Stretch(start_s=float(begins_s[begin]), end_s=float(begins_s[end]), request=request)


def _rows(lives: Lives, stretch: Stretch) -> tuple[list[Slice], int]:
    """Requests of the stretch one below the other, and how many rows all of them take; a user's next follows in the same row."""
    arrival, last = lives.starts_s[0], lives.ends_s
    here = [
        int(number) for number in np.argsort(arrival, kind="stable") if arrival[number] < stretch.end_s and last[number] > stretch.start_s
    ]
    free_s, row_of = list[float](), dict[int, int]()
    for number in here:
        row = next((row for row, free in enumerate(free_s) if free <= arrival[number]), len(free_s))
        free_s[row : row + 1] = [float(last[number])]
        row_of[number] = row
    mine = row_of.get(stretch.request, 0)
    shown = {mine, *[row for row in range(len(free_s)) if row != mine][: MOST_ROWS - 1]}
    slices: list[Slice] = []
    for number in here:
        if row_of[number] not in shown:
            continue
        times = [*(float(starts[number]) for starts in lives.starts_s), float(last[number])]
        about = {"request": number, "input_tokens": int(lives.input_tokens[number]), "output_tokens": int(lives.output_tokens[number])}
        for name, start, end in zip(lives.names, times, times[1:], strict=False):
            low, high = max(start, stretch.start_s), min(end, stretch.end_s)
            if high > low:
                track = (REQUESTS, f"user {row_of[number] + 1}")
                slices.append(Slice(track=track, name=name, start_s=low, end_s=high, about=about | {"whole_s": end - start}))
    return sorted(slices, key=lambda each: int(each.track[1].split()[1])), len(free_s)


def _counts(lives: Lives, stretch: Stretch, at_s: Sequence[float], pid: int, origin_s: float) -> list[dict[str, Any]]:
    """How many requests are in each phase when a step starts."""
    times = np.array([each for each in at_s if stretch.start_s <= each < stretch.end_s])
    entered = [np.searchsorted(np.sort(each), times, side="right") for each in (*lives.starts_s, lives.ends_s)]
    inside: dict[str, np.ndarray] = {}
    for name, into, out in zip(lives.counters, entered, entered[1:], strict=False):
        inside[name] = inside.get(name, np.zeros(len(times), dtype=np.int64)) + into - out
    return [
        {
            "name": REQUESTS, "ph": "C", "pid": pid, "ts": (at - origin_s) * MICROSECONDS,
            "args": {name: int(numbers[place]) for name, numbers in inside.items()},
        }
        for place, at in enumerate(times.tolist())
    ]  # fmt: skip


# ---- the format --------------------------------------------------------------------------------------------------


def _event(each: Slice, pid: int, tid: int, origin_s: float) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": each.name, "cat": each.track[1].split()[0], "ph": "X", "ts": (each.start_s - origin_s) * MICROSECONDS,
        "dur": (each.end_s - each.start_s) * MICROSECONDS, "pid": pid, "tid": tid,
    }  # fmt: skip
    return event | ({"args": dict(each.about)} if each.about else {})


def _names(pids: Mapping[str, int], tids: Mapping[Track, int]) -> list[dict[str, Any]]:
    processes = [
        {"name": what, "ph": "M", "pid": pid, "args": {key: value}}
        for process, pid in pids.items()
        for what, key, value in (("process_name", "name", process), ("process_sort_index", "sort_index", pid))
    ]
    threads = [
        {"name": what, "ph": "M", "pid": pids[track[0]], "tid": tid, "args": {key: value}}
        for track, tid in tids.items()
        for what, key, value in (("thread_name", "name", track[1]), ("thread_sort_index", "sort_index", tid))
    ]
    return [*processes, *threads]
