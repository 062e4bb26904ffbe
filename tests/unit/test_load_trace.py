"""The timeline of a load: valid events, the predicted times, and no two things at once on one worker."""

import json
from collections import defaultdict
from functools import cache, partial
from itertools import pairwise

import numpy as np
import pytest

from tests.unit.command_line import Tilecast
from tilecast.predictors import predict_kernel
from tilecast.report.renderers import load_trace
from tilecast.serving.disaggregated import predict_disaggregated
from tilecast.serving.load import predict_load

PHYSICS = partial(predict_kernel, learned=False)
ASKED = {"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm", "isl": 900, "osl": 40, "price": PHYSICS}
KINDS = ("vllm", "sglang", "1P1D", "2P2D")


@cache
def served(kind, users=12, **changed):
    if kind.endswith("D"):
        return predict_disaggregated(disaggregated=kind, concurrency=users, **(ASKED | changed))
    return predict_load(engine=kind, concurrency=users, **(ASKED | changed))


@cache
def drawn(kind, users=12, **changed):
    return json.loads(load_trace.text(served(kind, users, **changed), "the command"))


def tracks(found):
    """Slices by the names of their process and thread, in order of time."""
    named = {
        (event["pid"], event.get("tid"), event["name"]): event["args"]["name"]
        for event in found["traceEvents"]
        if event["ph"] == "M" and event["name"].endswith("_name")
    }
    slices = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            track = named[event["pid"], None, "process_name"], named[event["pid"], event["tid"], "thread_name"]
            slices[track].append(event)
    return {track: sorted(events, key=lambda event: event["ts"]) for track, events in slices.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_what_the_format_asks_for(kind):
    found = drawn(kind)
    assert found["displayTimeUnit"] == "ms" and found["otherData"]["command"] == "the command"
    for event in found["traceEvents"]:
        assert event["ph"] in "XMC" and isinstance(event["pid"], int) and event["name"]
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["tid"], int)
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_overlaps_on_one_track(kind):
    for track, events in tracks(drawn(kind)).items():
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3, track  # a nanosecond


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_steps_of_a_load_take_the_predicted_times_and_fill_the_stretch(kind):
    found, load = drawn(kind), served(kind).load
    by_name = {track[1]: events for track, events in tracks(found).items()}
    steps = by_name["steps"]
    seconds = load.cost.step_s("median_s")
    held = {(int(p), int(d)) for p, d in zip(load.plan.prefill_tokens, load.plan.decodes, strict=True)}
    for event in steps:
        about = event["args"]
        assert (about["prefill_tokens"], about["decodes"]) in held
        assert event["dur"] == pytest.approx(1e6 * (about["gpu_s"] + about["host_s"]), rel=1e-6)
        assert np.isclose(seconds, event["dur"] / 1e6, rtol=1e-6).any()
    whole = sum(event["dur"] for event in steps)
    assert whole == pytest.approx(1e6 * found["otherData"]["stretch_s"], rel=1e-9)
    assert whole == pytest.approx(sum(event["dur"] for name in ("host", "kernels") for event in by_name[name]), rel=1e-9)


def test_a_typical_request_lives_as_long_as_predicted():
    found, load = drawn("vllm"), served("vllm").load
    number = found["otherData"]["typical_request"]
    mine = [event for (process, _), events in tracks(found).items() if process == "requests" for event in events]
    mine = [event for event in mine if event["args"]["request"] == number]
    assert [event["name"] for event in mine][-2:] == ["prefilling", "decoding"]
    host = load.latency_s["median_s"][number - load.counted.start] - sum(event["dur"] for event in mine) / 1e6
    first = sum(event["dur"] for event in mine if event["name"] != "decoding") / 1e6
    assert load.ttft_s["median_s"][number - load.counted.start] == pytest.approx(first + host, rel=1e-6)
    assert mine[-1]["dur"] / 1e6 / 39 == pytest.approx(load.tpot_s["median_s"][number - load.counted.start], rel=1e-6)


@pytest.mark.parametrize("kind", ["1P1D", "2P2D"])
def test_steps_of_workers_are_those_that_were_run(kind):
    found, handover = drawn(kind), served(kind).handover
    events = tracks(found)
    plan, cost = handover.prefill
    held = zip(plan.prefill_tokens.tolist(), plan.chunks.tolist(), strict=True)
    prompts = dict(zip(held, cost.step_s("median_s"), strict=True))
    assert sum(process.startswith("prefill worker") for process, thread in events if thread == "steps") == int(kind[0])
    assert sum(process.startswith("decode worker") for process, thread in events if thread == "steps") == int(kind[2])
    for (process, thread), each in events.items():
        for event in each:
            if process.startswith("prefill") and thread == "steps":
                priced = prompts[event["args"]["prefill_tokens"], event["args"]["chunks"]]
                assert event["dur"] == pytest.approx(1e6 * priced, rel=1e-6)
            if thread == "KV transfer":
                assert event["args"]["to"].startswith("decode worker")
    decode = np.concatenate([[e["dur"] for e in each] for (p, _), each in events.items() if p.startswith("decode")]) / 1e6
    assert decode.mean() == pytest.approx(served(kind).decode_step_s.median, rel=0.05)


def test_prompts_are_sent_when_done_and_decoded_when_there():
    events = tracks(drawn("1P1D"))
    lives = defaultdict(dict)
    for (process, _), each in events.items():
        for event in each:
            if process == "requests":
                lives[event["args"]["request"]][event["name"]] = event
    sent = {event["args"]["request"]: event for (_, thread), each in events.items() if thread == "KV transfer" for event in each}
    both = [number for number in sent if {"sending the KV cache", "decoding"} <= set(lives[number])]
    assert both
    for number in both:
        there = sent[number]["ts"] + sent[number]["dur"]
        assert there == pytest.approx(lives[number]["decoding"]["ts"], abs=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_counted_requests_are_all_users(kind):
    counts = [event["args"] for event in drawn(kind)["traceEvents"] if event["ph"] == "C"]
    assert counts and all(sum(each.values()) == 12 for each in counts)


@pytest.mark.parametrize(("kind", "users"), [("vllm", 400), ("2P2D", 400)])
def test_a_large_load_is_cut(kind, users):
    asked = {"isl": 64, "osl": 3000} if kind == "vllm" else {"isl": 64, "osl": 1500}
    found = drawn(kind, users, **asked)
    steps = sum(len(each) for (_, thread), each in tracks(found).items() if thread == "steps")
    assert steps <= load_trace.MOST_STEPS + 8
    assert found["otherData"]["users_shown"] <= load_trace.MOST_ROWS < found["otherData"]["users"] <= users
    assert len(json.dumps(found)) < 4e6


def test_one_token_each_is_drawn_too():
    for kind in ("sglang", "1P1D"):
        names = {event["name"] for event in drawn(kind, 3, osl=1)["traceEvents"] if event["ph"] == "X"}
        assert "prefilling" in names and "decoding" not in names


def test_ranks_of_one_worker_step_together_and_send_apart():
    asked = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "h200-sxm", "tp": 8, "ep": 8, "dp_attention": 8, "isl": 200, "osl": 12}
    found = predict_disaggregated(disaggregated="1P1D", concurrency=16, price=PHYSICS, **asked)
    names = set(tracks(load_trace.trace(found)))
    assert {thread for process, thread in names if process.startswith("decode")} == {"steps"}
    sending = {thread for process, thread in names if process.startswith("prefill")} - {"steps"}
    assert sending <= {f"KV transfer of rank {rank}" for rank in range(8)} and len(sending) > 1


def test_the_command_writes_it(tilecast: Tilecast, tmp_path):
    line = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--isl", "512", "--osl", "32", "--concurrency", "8")
    for more in ((), ("--disaggregated", "1P1D")):
        path = tmp_path / "load.json"
        shown = tilecast(*line, *more, "--trace", str(path))
        assert shown.code == 0 and "wrote" in shown.err
        assert json.loads(path.read_text(encoding="utf-8"))["otherData"]["concurrency"] == 8
    refused = tilecast(*line[:-1], "8,16", "--trace", str(tmp_path / "no.json"))
    assert refused.code == 2 and "--trace explains one configuration" in refused.err
