"""Traces in, diagnosis out: reading, matching, pricing, ranking."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.diagnosis import write_trace
from tests.unit.command_line import Tilecast
from tests.unit.made_trace import ADD, BF16, GEMM, MM, NCCL, SUM, Made, plain
from tilecast.diagnosis import trace_reader
from tilecast.diagnosis.calls import matched, requests_of
from tilecast.diagnosis.ceiling import ceiling_of
from tilecast.diagnosis.diagnose import diagnose
from tilecast.diagnosis.kernel_names import own_rules, recognise, short
from tilecast.diagnosis.timeline import timeline
from tilecast.diagnosis.trace_reader import read_trace
from tilecast.errors import InvalidInput, MissingData, UnknownName
from tilecast.kernels.gemm import Gemm
from tilecast.learning import profiles
from tilecast.predictors import predict_kernel
from tilecast.predictors.calibrated import profile_from_rows

# ---- reading -------------------------------------------------------------------------------------------------------


def test_pieces_of_any_size_give_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plain().write(tmp_path / "t.json")
    whole = read_trace(path)
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr(trace_reader, "CHUNK_BYTES", size)
        again = read_trace(path)
        assert again.gpu_events.data == whole.gpu_events.data
        assert again.ops.data == whole.ops.data
        assert again.op_values.values == whole.op_values.values


def test_compressed_and_plain_files_read_alike(tmp_path: Path) -> None:
    one, other = plain().write(tmp_path / "t.json"), plain().write(tmp_path / "t.json.gz")
    assert read_trace(one).gpu_events.data == read_trace(other).gpu_events.data


def test_metadata_may_stand_on_either_side_and_a_list_of_events_will_do(tmp_path: Path) -> None:
    document = plain().document()
    late = {"traceEvents": document["traceEvents"], "deviceProperties": document["deviceProperties"], "x": 1.5, "with_stack": 1}
    (tmp_path / "late.json").write_text(json.dumps(late, indent=2))
    found = read_trace(tmp_path / "late.json")
    assert (found.devices, found.with_stack, len(found.gpu_events)) == ({0: "NVIDIA H100 80GB HBM3"}, True, 8)
    (tmp_path / "list.json").write_text(json.dumps(document["traceEvents"]))
    assert diagnose(tmp_path / "list.json", gpu="h100-sxm").num_kernels == 8


def test_a_trace_that_breaks_off_before_it_names_its_gpu_says_both(tmp_path: Path) -> None:
    document = plain().document()
    text = json.dumps({"traceEvents": document["traceEvents"], "deviceProperties": document["deviceProperties"]})
    (tmp_path / "t.json").write_text(text[: text.index('"deviceProperties"') - 10])
    with pytest.raises(InvalidInput, match=r"breaks off \(.*\) before it names its GPU: give --gpu ID"):
        diagnose(tmp_path / "t.json")


def test_words_of_older_profilers_are_understood(tmp_path: Path) -> None:
    made = plain()
    older = {"kernel": "Kernel", "cpu_op": "Operator", "cuda_runtime": "Runtime"}
    for event in made.events:
        event["cat"] = older[event["cat"]]
        event["args"] = {name.replace("External id", "external id"): value for name, value in event["args"].items()}
        del event["ph"]
    found = diagnose(made.write(tmp_path / "t.json"))
    assert (found.num_kernels, found.priced_fraction) == (8, 1.0)


def test_a_trace_that_breaks_off_is_read_up_to_there_and_marked_partial(tmp_path: Path, tilecast: Tilecast) -> None:
    text = json.dumps(plain().document())
    (tmp_path / "cut.json").write_text(text[: len(text) * 3 // 5])
    result = tilecast("diagnose", str(tmp_path / "cut.json"), "--json")
    assert result.code == 0
    assert result.json["partial"] is True
    assert 0 < result.json["num_kernels"] < 8
    assert "breaks off" in result.json["partial_because"][0]
    assert "partial result" in result.err

    packed = gzip.compress(json.dumps(plain(400).document()).encode())
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    found = diagnose(tmp_path / "cut.json.gz")
    assert found.partial_because and 0 < found.num_kernels < 800


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("hello", "starts with 'h'"),
        ('{"a": 1}', "no traceEvents"),
        ('{"deviceProperties": [], "traceEv', "no traceEvents before its events"),
        ('{"traceEvents": []}', "has no GPU events"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}', "has no GPU events (1 events)"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}, {"ph"',
            "breaks off before its first GPU event",
        ),
        ('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "not valid JSON"),
        ('{"traceEvents": 3}', "not valid JSON"),
        ('{"traceEvents": [{"ph": nope}]}', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, tilecast: Tilecast, text: str, sentence: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    result = tilecast("diagnose", str(path))
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_missing_files_and_empty_folders_are_missing_data(tmp_path: Path, tilecast: Tilecast) -> None:
    assert tilecast("diagnose", str(tmp_path / "none.json")).code == 3
    result = tilecast("diagnose", str(tmp_path))
    assert result.code == 3
    assert "no .json" in result.err


def test_memory_does_not_grow_with_the_stacks_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_reader, "CHUNK_BYTES", 1 << 16)
    peaks = []
    for size in (2_000_000, 8_000_000):
        write_trace(tmp_path / "large.json", size)
        tracemalloc.start()
        found = read_trace(tmp_path / "large.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert found.num_events > 30_000
    assert max(peaks) < 4_000_000  # the events kept are a tenth of the file, and numbers


def test_a_large_file_reports_its_progress_on_stderr(tmp_path: Path, tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilecast.cli import diagnose as command

    monkeypatch.setattr(command, "LARGE_BYTES", 0)
    monkeypatch.setattr(command, "EVERY_S", 0.0)
    result = tilecast("diagnose", plain().write(tmp_path / "t.json"), "--json")
    assert "% read" in result.err
    assert result.json["num_kernels"] == 8


# ---- bad values ----------------------------------------------------------------------------------------------------


def test_an_unknown_gpu_in_the_trace_asks_for_one(tmp_path: Path, tilecast: Tilecast) -> None:
    made = plain()
    made.device = "NVIDIA Quantum 9000"
    path = made.write(tmp_path / "t.json")
    result = tilecast("diagnose", path)
    assert result.code == 2
    assert "'NVIDIA Quantum 9000'" in result.err and "--gpu" in result.err
    assert diagnose(path, gpu="a100-sxm-80gb").gpu.id == "a100-sxm-80gb"
    made.metadata = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}, {"id": 1, "name": "Some display card"}]}
    made.device = None
    assert diagnose(made.write(tmp_path / "t.json")).gpu.id == "a100-sxm-80gb"  # the one that ran something
    made.metadata = {}
    with pytest.raises(InvalidInput, match="does not name its GPU"):
        diagnose(made.write(tmp_path / "t.json"))
    with pytest.raises(UnknownName):
        diagnose(path, gpu="h1000")


def test_a_trace_without_shapes_is_named_but_not_priced_and_partial(tmp_path: Path) -> None:
    made = Made()
    for place in range(3):
        made.call("aten::mm", None, GEMM, 100.0 * place, 40.0)
    found = diagnose(made.write(tmp_path / "t.json"))
    assert (found.named_fraction, found.priced_fraction) == (1.0, 0.0)
    assert "record_shapes" in found.partial_because[0]
    assert "record_shapes" in found.rows[0].unpriced_because


def test_zero_and_impossible_durations_are_told_and_left_out(tmp_path: Path) -> None:
    made = plain(2)
    made.call("aten::add", SUM, ADD.replace("add", "sub"), 400.0, 0.0)
    made.call("aten::add", SUM, ADD, 500.0, -3.0)
    made.call("aten::add", SUM, ADD, float("nan"), 3.0)
    found = diagnose(made.write(tmp_path / "t.json"))
    assert found.num_kernels == 5
    assert "2 GPU events with impossible times" in found.partial_because[0]
    assert "1 of 5 GPU events last 0 s, so their time is missing" in found.partial_because[1]
    assert next(row for row in found.rows if row.measured_s == 0).unpriced_because == "the trace gives it no duration"


def test_a_rare_kernel_below_the_profilers_resolution_leaves_a_result_whole(tmp_path: Path) -> None:
    made = plain(60)
    made.call("aten::add", SUM, ADD.replace("add", "sub"), 1e6, 0.0)
    found = diagnose(made.write(tmp_path / "t.json"))
    assert not found.partial_because
    assert any("1 GPU events last 0 s: below" in note for note in found.notes)


def test_skewed_clocks_are_told_and_idle_time_is_given_no_reason(tmp_path: Path) -> None:
    honest, skewed = plain(), plain()
    for event in skewed.events:
        if event["cat"] == "kernel":
            event["ts"] -= 20.0
    first, second = diagnose(honest.write(tmp_path / "a.json")), diagnose(skewed.write(tmp_path / "b.json"))
    assert first.timeline.waiting_for_host_s > 0
    assert second.timeline.waiting_for_host_s is None, "0 s would say that nothing was launched too late"
    assert second.to_dict()["timeline"]["waiting_for_host_fraction"] is None
    (idle,) = [sentence for sentence in second.findings if "is idle" in sentence]
    assert "the clocks of host and GPU differ" in idle and "launch" not in idle
    assert any("8 kernels start before" in note for note in second.notes)
    assert second.timeline.busy_s == pytest.approx(first.timeline.busy_s)


# ---- matching ------------------------------------------------------------------------------------------------------


def test_a_kernel_finds_its_operator_by_id_by_launch_and_by_time(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::linear", [[9, 9], [9, 9]], 0.0, 50.0, 1)
    for place in range(3):
        made.op("aten::mm", MM, 5.0 + 100.0 * place, 20.0, 2 + place)
    made.launch(10.0, 71)  # neither the launch nor the kernel has an id: the innermost operator around the launch
    made.kernel(GEMM, 30.0, 40.0, 71)
    made.launch(200.0, 72, 3)  # the launch has one
    made.kernel(GEMM, 230.0, 40.0, 72)
    made.kernel(GEMM, 330.0, 40.0, 73, 4)  # the kernel has one
    made.launch(400.0, 74)  # outside of every operator
    made.kernel(GEMM, 430.0, 40.0, 74)
    run = matched(read_trace(made.write(tmp_path / "t.json")), own_rules())
    found = {group.op.name if group.op else None: len(group.durations_s) for group in run.groups}
    assert found == {"aten::mm": 3, None: 1}


def test_an_operator_of_another_thread_is_not_taken(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::mm", MM, 0.0, 100.0, 1)
    made.event("cuda_runtime", "cudaLaunchKernel", 10.0, 2.0, tid=2, correlation=5)
    made.kernel(GEMM, 30.0, 40.0, 5)
    run = matched(read_trace(made.write(tmp_path / "t.json")), own_rules())
    assert run.groups[0].op is None


def test_modules_are_the_innermost_at_the_launch_and_lose_their_number(tmp_path: Path) -> None:
    made = plain(2)
    made.event("python_function", "nn.Module: Decoder_0", 0.0, 300.0)
    made.event("python_function", "nn.Module: Linear_3", 0.0, 20.0)
    made.event("python_function", "model.py(3): forward", 0.0, 20.0)
    rows = {row.op: row.module for row in diagnose(made.write(tmp_path / "t.json")).rows}
    assert rows == {"aten::mm": "Linear Decoder", "aten::add": "Decoder"}


def test_helpers_count_with_the_kernel_of_their_operator(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mm", MM, GEMM, 0.0, 40.0)
    made.kernel("Memset (Device)", 1.0, 2.0, 1, 1, category="gpu_memset", bytes=4)
    made.kernel("void cublasLt::splitKreduce_kernel<32, 16>", 50.0, 3.0, 1, 1, grid=[1, 1, 1], block=[32, 1, 1])
    (row,) = diagnose(made.write(tmp_path / "t.json")).rows
    assert (row.calls, row.kernel) == (1, GEMM)
    assert (row.measured_s, row.helper_s) == (pytest.approx(45e-6), pytest.approx(5e-6))


def test_kernels_of_a_graph_do_not_take_the_shapes_of_what_launched_it(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::mm", [[64, 64], [64, 64]], 0.0, 50.0, 1)
    made.launch(5.0, 9, 1, name="cudaGraphLaunch")
    made.kernel(GEMM, 30.0, 40.0, 9, 1, grid=[132, 1, 1], block=[128, 1, 1], **{"graph node id": 17})
    made.kernel(ADD, 80.0, 10.0, 9, 1, grid=[256, 1, 1], block=[128, 1, 1], **{"graph node id": 18})
    found = diagnose(made.write(tmp_path / "t.json"))
    assert found.num_graph_launches == 1
    assert found.graph_s == pytest.approx(50e-6)
    assert found.priced_fraction == 0.0
    assert "CUDA graph" in found.rows[0].unpriced_because


def test_a_replayed_kernel_takes_the_shapes_of_the_only_identical_launch(tmp_path: Path) -> None:
    def trace(*eager: list[list[int]], length: float = 40.0) -> Made:
        made = Made()
        for place, dims in enumerate(eager):
            made.call("aten::mm", dims, GEMM, 100.0 * place, 40.0, grid=[64, 1, 1])
        made.launch(5000.0, 99, name="cudaGraphLaunch")
        made.kernel(GEMM, 5030.0, length, 99, grid=[64, 1, 1], block=[128, 1, 1], **{"graph node id": 17})
        return made

    alike = diagnose(trace(MM).write(tmp_path / "t.json"))
    assert (alike.priced_fraction, len(alike.rows)) == (1.0, 1)
    assert alike.inferred_s == pytest.approx(40e-6)
    two = diagnose(trace(MM, [[256, 512], [512, 1024]]).write(tmp_path / "t.json"))  # the same kernel and grid for two shapes
    assert (two.inferred_s, two.priced_fraction) == (0.0, pytest.approx(2 / 3))
    longer = diagnose(trace(MM, length=60.0).write(tmp_path / "t.json"))  # no identical launch takes half as long again
    assert longer.inferred_s == 0.0


def test_a_kernel_between_the_same_neighbours_takes_their_operator(tmp_path: Path) -> None:
    def layers(recorded_from: int, swap: bool = False) -> Made:
        """Two products of one kernel and grid, of unlike shapes, told apart by what runs around them; the first layers are not recorded."""
        made = Made()
        for layer in range(8):
            silu = ADD.replace("CUDAFunctor_add", "silu_kernel")
            works = [("aten::mm", MM, GEMM), ("aten::add", SUM, ADD), ("aten::mm", [[256, 512], [512, 2048]], GEMM)]
            works += [("aten::add", SUM, ADD), ("aten::silu", [[256, 1024]], silu)]
            if swap and layer == 6:
                works = [works[2], works[1], works[0], *works[3:]]
            for place, (op, dims, kernel) in enumerate(works):
                made.call(op, dims, kernel, 300.0 * layer + 60.0 * place, 40.0)
                if layer < recorded_from:
                    made.events[-1]["args"] = {name: made.events[-1]["args"][name] for name in ("device", "stream", "grid", "block")}
        return made

    found = diagnose(layers(3).write(tmp_path / "t.json"))
    assert {(row.op, row.shapes): row.calls for row in found.rows if row.op == "aten::mm"} == {
        ("aten::mm", "256x1024 1024x1024"): 7, ("aten::mm", "256x512 512x2048"): 7,  # all but the first layer, which has no neighbours
    }  # fmt: skip
    # Once the same neighbourhood has held either operator, it tells nothing.
    found = diagnose(layers(3, swap=True).write(tmp_path / "t.json"))
    assert sum(row.calls for row in found.rows if row.op == "aten::mm") == 10


def test_a_graph_takes_its_shapes_from_an_eager_trace_of_the_same_work(tmp_path: Path, tilecast: Tilecast) -> None:
    replayed = Made()
    replayed.launch(5000.0, 99, name="cudaGraphLaunch")
    replayed.kernel(GEMM, 5030.0, 40.0, 99, grid=[132, 1, 1], block=[128, 1, 1], **{"graph node id": 17})
    replayed.kernel(ADD, 5080.0, 10.0, 99, grid=[99, 1, 1], block=[128, 1, 1], **{"graph node id": 18})  # on no such grid in the other
    graph, eager = replayed.write(tmp_path / "graph.json"), plain().write(tmp_path / "eager.json")
    assert diagnose(graph).priced_fraction == 0
    found = tilecast("diagnose", graph, "--shapes", eager, "--json").json
    assert (found["priced_fraction"], found["inferred_fraction"]) == (pytest.approx(0.8), pytest.approx(0.8))
    row = found["kernels"][0]
    assert (row["op"], row["calls"], row["inferred_calls"], row["in_graph"]) == ("aten::mm", 1, 1, True)
    assert found["num_kernels"] == 2  # of the trace, not of the one that lends its shapes


def test_engine_annotations_tell_the_requests_of_a_packed_batch(tmp_path: Path) -> None:
    found = requests_of("execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)_generation_0(sq0sk0sqsq0sqsk0)")
    assert found is not None and (found.num_context, found.tokens, found.kv_tokens, found.num_generation) == (15, 15360, 15360, 0)
    assert requests_of("ProfilerStep#3") is None
    dims = [[512, 8, 64], [512, 2, 64], [512, 2, 64], [512, 8, 64]]
    for note, batch in (("execute_context_1(512_262144)_generation_0(0)", 1), ("execute_context_2(512_131072)_generation_0(0)", 2)):
        made = Made()
        made.event("user_annotation", note, 0.0, 500.0)
        made.call("vllm::unified_attention_with_output", dims, "fmhaSm100aKernel_QkvBfloat16CausalVarSeq", 10.0, 30.0)
        (row,) = diagnose(made.write(tmp_path / "t.json"), gpu="b200-sxm").rows
        assert row.sizes is not None and (row.sizes["batch"], row.sizes["q_len"]) == (batch, 512 // batch)
    made.events[0]["name"] = "execute_context_2(512_200000)_generation_0(0)"  # unequal lengths: nobody knows which
    (row,) = diagnose(made.write(tmp_path / "t.json"), gpu="b200-sxm").rows
    assert row.unpriced_because == "the lengths of the requests are not in the trace"


# ---- time ----------------------------------------------------------------------------------------------------------


def test_the_timeline_worked_by_hand(tmp_path: Path) -> None:
    # compute 0-40 and 60-100, communication 30-70, nothing 100-120, compute 120-130: span 130, busy 110, idle 20,
    # communicating 40, of which 30-40 and 60-70 are overlapped.
    made = Made()
    made.kernel(GEMM, 1000.0, 40.0, 1)
    made.kernel(NCCL, 1030.0, 40.0, 2, stream=20)
    made.kernel(GEMM, 1060.0, 40.0, 3)
    made.launch(1110.0, 4)  # done at 1112, 12 us after the GPU ran dry
    made.kernel(GEMM, 1120.0, 10.0, 4)
    run = matched(read_trace(made.write(tmp_path / "t.json")), own_rules())
    times = timeline(run.activity, 0)
    microseconds = {name: getattr(times, name) * 1e6 for name in ("span_s", "busy_s", "idle_s", "communicating_s", "overlapped_s")}
    assert microseconds == pytest.approx({"span_s": 130, "busy_s": 110, "idle_s": 20, "communicating_s": 40, "overlapped_s": 20})
    assert times.exposed_s == pytest.approx(20e-6)
    assert times.waiting_for_host_s == pytest.approx(12e-6)


def test_time_beside_communication_is_told_of_both_sides(tmp_path: Path) -> None:
    # a product of 1000 us beside 400 us of communication, which hides behind it wholly
    made = Made()
    extra = {"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2, "dtype": "BFloat16"}
    made.call("aten::mm", MM, GEMM, 0.0, 1000.0)
    made.call("record_param_comms", [[4096]], NCCL, 100.0, 400.0, stream=20, **extra)
    rows = {row.op: row for row in diagnose(made.write(tmp_path / "t.json")).rows}
    assert rows["aten::mm"].beside_fraction == pytest.approx(0.4)
    assert "Communication runs beside it for 40 % of its time" in rows["aten::mm"].advice
    assert rows["record_param_comms"].beside_fraction == pytest.approx(1.0)
    assert rows["record_param_comms"].advice.startswith("100 % of it hides behind computation (400 us a call)")
    for event in made.events[3:]:
        event["ts"] += 2000.0  # the same, one after the other
    rows = {row.op: row for row in diagnose(made.write(tmp_path / "t.json")).rows}
    assert rows["aten::mm"].beside_fraction == 0
    assert "beside" not in rows["aten::mm"].advice


def test_recoverable_time_is_calls_times_measured_less_ceiling(tmp_path: Path) -> None:
    found = diagnose(plain(5).write(tmp_path / "t.json"))
    row = next(row for row in found.rows if row.op == "aten::mm")
    prediction = predict_kernel(Gemm(m=256, n=1024, k=1024, identity="cublas"), "h100-sxm")
    ceiling_s = float(ceiling_of(prediction).ceiling_s[0])
    assert row.predicted_s == pytest.approx(float(prediction.median_s[0]))
    assert row.ceiling_s == pytest.approx(ceiling_s)
    assert row.recoverable_s == pytest.approx(5 * (40e-6 - ceiling_s))
    assert found.rows[0] is row  # most to recover comes first
    assert found.recoverable_s == pytest.approx(sum(row.recoverable_s or 0 for row in found.rows))


def test_a_profile_moves_predictions_and_leaves_ceilings(tmp_path: Path, tilecast: Tilecast) -> None:
    trace = plain(5).write(tmp_path / "t.json")
    before = next(row for row in diagnose(trace).rows if row.op == "aten::mm")
    measured = {"family": "gemm", "dtype": "bf16", "identity": "cublas", "m": 256, "n": 1024, "k": 1024}
    assert before.predicted_s is not None
    profiles.write(profile_from_rows([measured | {"measured_s": 1.1 * before.predicted_s}], "h100-sxm"), tmp_path / "p.json")
    found = diagnose(trace, profile=tmp_path / "p.json")
    after = next(row for row in found.rows if row.op == "aten::mm")
    assert after.predicted_s is not None
    assert 1.01 * before.predicted_s < after.predicted_s < 1.1 * before.predicted_s
    assert (after.ceiling_s, after.recoverable_s) == (before.ceiling_s, before.recoverable_s)
    told = tilecast("diagnose", str(trace), "--profile", str(tmp_path / "p.json"), "--json")
    assert json.loads(told.out)["inputs"]["profile"]["gpu"] == "h100-sxm"
    other = tilecast("diagnose", str(trace), "--gpu", "a100-sxm-80gb", "--profile", str(tmp_path / "p.json"))
    assert other.code == 2 and "was measured on h100-sxm, not on a100-sxm-80gb" in other.err
    both = tilecast("diagnose", str(trace), "--profile", str(tmp_path / "p.json"), "--against", str(trace))
    assert both.code == 2 and "goes with one run" in both.err


def test_parts_of_the_gap_add_up_to_it(tmp_path: Path) -> None:
    for row in diagnose(plain().write(tmp_path / "t.json")).rows:
        assert row.bound_s is not None
        assert sum(seconds for _, seconds in row.parts) == pytest.approx(row.measured_s - row.bound_s, abs=1e-8)


def test_faster_than_dram_means_that_operands_were_in_cache_and_faster_than_that_a_wrong_gpu(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::add", [[4096, 1024], [4096, 1024], []], ADD, 0.0, 6.0)  # 25 MB in 6 us: 4.2 TB/s
    (row,) = diagnose(made.write(tmp_path / "t.json")).rows
    assert row.cache == "warm"
    made.call("aten::mm", [[8192, 8192], [8192, 8192]], GEMM, 100.0, 100.0)  # 11 PFLOP/s
    found = diagnose(made.write(tmp_path / "t.json"))
    assert any("right --gpu" in sentence for sentence in found.partial_because)


def test_operands_that_are_repeated_are_read_once(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mul", [[64, 1024], [64, 1024]], ADD, 0.0, 6.0, strides=[[1024, 1], [0, 1]])
    (row,) = diagnose(made.write(tmp_path / "t.json")).rows
    assert row.sizes is not None
    assert row.sizes["read_bytes"] == 2 * (64 * 1024 + 1024)


def test_a_mixture_of_experts_is_read_off_the_grid_of_its_kernels(tmp_path: Path) -> None:
    # 96 tokens, 32 experts, tile 8: top 2 has 192 rows: a block for each expert and (192 - 32) // 8 = 20 more make 52.
    made = Made()
    made.op("vllm::moe_forward", [[96, 1024], [96, 32], []], 0.0, 50.0, 1)
    name = "bmm_{}_MxE2m1MxE4m3_Fp32_t128x8x256u2_s3_{}_dynBatch_sm100f"
    made.kernel(name.format("MxE4m3", "swiGlu"), 10.0, 50.0, 1, 1, grid=[4, 52, 1], block=[1, 1, 1])
    made.kernel(name.format("Bfloat16", "tma"), 70.0, 30.0, 1, 1, grid=[8, 52, 1], block=[1, 1, 1])
    made.kernel("void moe::dev::routing::routingIndicesHistogramKernel<x>", 2.0, 4.0, 1, 1, grid=[4, 1, 1], block=[1, 1, 1])
    path = made.write(tmp_path / "t.json")
    (row,) = diagnose(path, gpu="b200-sxm").rows
    assert row.sizes is not None
    assert {name: row.sizes[name] for name in ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk")} == {
        "num_tokens": 96, "hidden_size": 1024, "inter_size": 256, "num_experts": 32, "topk": 2,
    }  # fmt: skip
    assert row.measured_s == pytest.approx(84e-6)
    assert "read off the grid" in row.notes[0]
    for event in made.events[1:3]:
        event["args"]["grid"][1] = 53  # no number of experts per token needs as many
    (row,) = diagnose(made.write(tmp_path / "t.json"), gpu="b200-sxm").rows
    assert not row.is_priced and "fit no number of experts" in row.unpriced_because


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "library", "family"),
    [
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "cuBLAS", "gemm"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "cuBLAS", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>", "cuBLAS", "gemm"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>>>", "CUTLASS", "gemm"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u>", "DeepGEMM", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN", "Tensile (hipBLASLt, rocBLAS)", "gemm"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", "FlashAttention", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>", "FlashAttention", "attention"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<x>", "FlashInfer", "attention"),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<x>", "FlashInfer", "attention"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_1", "AITER / CK", "attention"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", "TensorRT-LLM", "attention"),
        ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized>", "CUTLASS", "attention"),
        ("void ck_tile::kentry<1, ck_tile::FmhaFwdKernel<x>>", "AITER / CK", "attention"),
        ("void marlin_moe_wna16::Marlin<x>", "Marlin and others", "moe"),
        ("void quickreduce::allreduce_prototype_twoshot<x>", "custom all-reduce", "all_reduce"),
        ("fused_moe_kernel", "Triton (vLLM, SGLang)", "moe"),
        ("void tensorrt_llm::kernels::cutlass_kernels::MoeFCGemm<x>", "CUTLASS", "moe"),
        ("void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>", "MoE routing", "moe"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "NCCL", "send_recv"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "custom all-reduce", "all_reduce"),
        ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", "engine", "rms_norm"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E", "engine", "rms_norm"),
        ("void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel>", "engine", "silu_mul"),
        ("triton_poi_fused_add_mul_0", "Triton (torch.compile)", "fused pointwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x>", "ATen", "optimizer"),
        ("triton_per_fused_native_layer_norm_0", "Triton (torch.compile)", "fused pointwise"),
        ("triton_red_fused__softmax_3", "Triton (torch.compile)", "fused pointwise"),
        ("triton_tem_fused_mm_1", "Triton", "gemm"),
        ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80", "FlashAttention", "attention_backward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "FlashAttention", "attention_backward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "PyTorch SDPA", "attention"),
        ("_ZN7ck_tile6kentryILi2ENS_16FmhaBwdDQDKDVKernelI", "FlashAttention", "attention_backward"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "NCCL", "collective"),
        ("void selective_scan_fwd_kernel<x>", "state space", "state space"),
        ("void ck::kernel_moe_gemm_2lds<x>", "AITER / CK", "moe"),
        ("void vllm::silu_mul_fp8_quant_deep_gemm_kernel", "quantisation", "quantize"),
        ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized>", "FlashMLA and others", "mla"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>", "custom all-reduce", "all_reduce"),
        ("void r4d_gemm_w4a16_nt_m64_kernel<1, 1, false>", "another library", "gemm"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<x>", "ATen", "pooling and sampling"),
        (ADD, "ATen", "elementwise"),
        ("Memcpy DtoH (Device -> Pinned)", "driver", "host copy"),
    ],
)
def test_kernels_are_recognised_by_name(name: str, library: str, family: str) -> None:
    rule = recognise(name, own_rules())
    assert rule is not None
    assert (rule.library, rule.family) == (library, family)


def test_words_inside_other_words_name_nothing() -> None:
    assert recognise("mul_broadcast_2d_kernel", own_rules()) is None  # no cast


def test_short_names_keep_what_a_kernel_computes() -> None:
    assert short(ADD) == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    assert short("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E") == "add_rmsnorm_quant_kernel"
    assert short("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(int)") == "cunn_SoftMaxForward"
    assert short("Memcpy DtoD (Device -> Device)") == "Memcpy DtoD (Device -> Device)"


def test_unknown_kernels_are_listed_and_a_file_of_names_makes_them_known(tmp_path: Path, tilecast: Tilecast) -> None:
    made = plain(2)
    made.call("mylib::mix", MM, "my_private_thing<3>", 500.0, 25.0)
    path = made.write(tmp_path / "t.json")
    found = tilecast("diagnose", path, "--json").json
    (unknown,) = found["unknown"]
    assert (unknown["kernel"], unknown["op"], unknown["calls"]) == ("my_private_thing<3>", "mylib::mix", 1)
    assert unknown["total_s"] == pytest.approx(25e-6)
    assert unknown["share_fraction"] == pytest.approx(25e-6 / found["gpu_time_s"])
    assert found["named_fraction"] == pytest.approx(100 / 125)
    rules = tmp_path / "names.toml"
    rules.write_text("[[kernel]]\nname = 'my_private'\nlibrary = 'ours'\nfamily = 'gemm'\n")
    known = tilecast("diagnose", path, "--names", str(rules), "--json").json
    assert (known["unknown"], known["named_fraction"], known["priced_fraction"]) == ([], 1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = ", "not valid TOML"),
        ("", "no [[kernel]] rules"),
        ("[[kernel]]\nname = 'a'\nlibrary = 'b'", "lacks family"),
        ("[[kernel]]\nname = '('\nlibrary = 'b'\nfamily = 'c'", "no regular expression"),
        ("[[kernel]]\nname = 'a'\nlibrary = 'b'\nfamily = 'c'\ncolour = 'red'", "colour = 'red'"),
    ],
)
def test_a_bad_file_of_names_is_one_sentence(tmp_path: Path, tilecast: Tilecast, text: str, sentence: str) -> None:
    rules = tmp_path / "names.toml"
    rules.write_text(text)
    result = tilecast("diagnose", plain().write(tmp_path / "t.json"), "--names", str(rules))
    assert result.code == 2
    assert sentence in result.err


# ---- ranks ---------------------------------------------------------------------------------------------------------


def _rank(number: int, wait: float) -> Made:
    made = Made(metadata={"distributedInfo": {"rank": number, "world_size": 2}})
    extra = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": 2, "dtype": "BFloat16"}
    for layer in range(3):
        made.call("aten::mm", MM, GEMM, 200.0 * layer, 60.0 - wait)
        made.call("record_param_comms", [[1 << 20]], NCCL, 200.0 * layer + 62.0 - wait, 40.0 + wait, **extra)
    return made


def test_several_ranks_are_counted_together_and_told_apart(tmp_path: Path, tilecast: Tilecast) -> None:
    files = [_rank(number, wait).write(tmp_path / f"rank{number}.json") for number, wait in ((0, 0.0), (1, 30.0))]
    together, folder = (tilecast("diagnose", *asked, "--json").json for asked in (files, [str(tmp_path)]))
    assert together["ranks"] == folder["ranks"]
    assert [rank["rank"] for rank in together["ranks"]] == ["0", "1"]
    assert {row["op"]: row["calls"] for row in together["kernels"]} == {"aten::mm": 6, "record_param_comms": 6}
    reduce = next(row for row in together["kernels"] if row["op"] == "record_param_comms")
    assert (reduce["model"], reduce["sizes"]["num_gpus"], reduce["sizes"]["bytes"]) == ("all_reduce", 2, 2 << 20)
    assert any("for rank 0, which arrives last" in sentence for sentence in together["findings"])


def test_ranks_that_are_missing_or_there_twice_are_told(tmp_path: Path) -> None:
    one, same, other = (_rank(number, 0.0).write(tmp_path / f"{name}.json") for number, name in ((0, "a"), (0, "b"), (1, "c")))
    assert any("1 of 2 ranks is here" in note for note in diagnose(one).notes)
    assert any("a.json and b.json all say that they are rank 0" in note for note in diagnose(one, same).notes)
    assert not any("rank" in note for note in diagnose(one, other).notes)


def test_ranks_on_different_gpus_are_refused(tmp_path: Path) -> None:
    one, other = plain(), plain()
    other.device = "NVIDIA A100-SXM4-80GB"
    with pytest.raises(InvalidInput, match="different GPUs"):
        diagnose(one.write(tmp_path / "a.json"), other.write(tmp_path / "b.json"))


# ---- real traces ---------------------------------------------------------------------------------------------------

TRACES = Path(os.environ.get("TILECAST_DATA", "absent")) / "extra" / "kineto_traces"
NEEDED = {
    "h100_hf_owlv2-large-patch14": 0.85, "h100_hf_timesformer-base-k400": 0.85, "b200_vllm_gpt-oss-120b-like_tp8_eager": 0.85,
    "h100_hf_qwen1.5-0.5b-chat": 0.65, "mi300x_hf_qwen1.5-0.5b-chat": 0.60, "mi300x_sglang_qwen3-8b_prefill_decode": 0.60,
}  # fmt: skip


@pytest.mark.data
@pytest.mark.skipif(not TRACES.is_dir(), reason="$TILECAST_DATA/extra/kineto_traces is absent")
@pytest.mark.parametrize("name", NEEDED)
def test_real_traces_are_named_and_priced_as_far_as_their_shapes_go(name: str) -> None:
    found = diagnose(TRACES / f"{name}.json.gz")
    assert found.named_fraction >= 0.9
    assert (found.priced_s - found.inferred_s) / found.gpu_time_s >= NEEDED[name]  # by its own operators alone
    assert not found.partial_because
    assert np.isclose(sum(row.total_s for row in found.rows), found.gpu_time_s)
    assert all(row.advice for row in found.rows if row.is_priced)


def test_a_trace_needs_no_extra(tmp_path: Path) -> None:
    """The default install reads traces: nothing of polars, torch or matplotlib is imported."""
    import subprocess
    import sys

    path = plain().write(tmp_path / "t.json.gz")
    code = f"import sys; from tilecast.cli import main; main.run(['diagnose', {path!r}, '--json']); "
    code += "assert not {'polars', 'torch', 'matplotlib', 'pandas'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_unreadable_paths_say_so(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="no file"):
        read_trace(tmp_path / "none.json")


def test_types_of_a_product_follow_its_operands_and_its_kernel(tmp_path: Path) -> None:
    for types, kernel, expected in (
        ([BF16, BF16], GEMM, "bf16"),
        (["c10::Half", "c10::Half"], GEMM, "fp16"),
        (["float", "float"], "ampere_sgemm_128x64_tn", "fp32"),
        (["float", "float"], "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "tf32"),
    ):
        made = Made()
        made.call("aten::mm", MM, kernel, 0.0, 40.0, types=types)
        (row,) = diagnose(made.write(tmp_path / "t.json")).rows
        assert row.dtype == expected
