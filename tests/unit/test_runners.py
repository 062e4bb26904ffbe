"""Where measured times come from: recorded ones, and Triton's kernel as far as a CPU can run it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tilecast import hardware
from tilecast.cli.tune import told
from tilecast.errors import InvalidInput, MissingExtra
from tilecast.kernels.moe import Moe
from tilecast.tuning.runners import triton_kernel
from tilecast.tuning.runners.base import runner_for
from tilecast.tuning.runners.replay import replay_of
from tilecast.tuning.runners.triton_kernel import loads_of, sorted_by_expert

HEADER = "num_tokens,BLOCK_SIZE_M,BLOCK_SIZE_N,BLOCK_SIZE_K,GROUP_SIZE_M,num_warps,num_stages,latency_s\n"
LAUNCH = Moe(num_tokens=8, hidden_size=64, inter_size=32, num_experts=4, topk=2, moe_pass="w13", identity="triton")


def test_recorded_times_are_served(tmp_path):
    file = tmp_path / "times.csv"
    file.write_text(HEADER + "8,16,32,64,1,4,3,1e-5\n")
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
    replay = replay_of(str(file))
    assert replay.time_s(LAUNCH, config) == 1e-5
    assert replay.time_s(LAUNCH, config | {"num_stages": 4}) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", "lacks the column 'num_tokens'"),
        (HEADER + "8,16,32,x,1,4,3,1e-5\n", "row 1"),
        (HEADER + "8,16,32,64,1,4,3,-1\n", "latency_s"),
        (HEADER.replace("\n", ",moe_pass\n") + "8,16,32,64,1,4,3,1e-5,up\n", "moe_pass = 'up' must be one of w13, w2"),
    ],
)
def test_a_bad_file_of_times_is_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "times.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
        replay_of(str(file))


def test_bytes_that_are_no_text_are_refused_in_one_sentence(tmp_path):
    file = tmp_path / "times.csv"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="is no CSV file of recorded times"):
        replay_of(str(file))


def test_the_command_takes_the_fastest_of_a_measured_shortlist(tmp_path, tilecast):
    asked = ("tune", "moe", "--gpu", "h800-sxm", "--model", "Qwen/Qwen3-30B-A3B", "--engine", "vllm", "--tokens", "64", "--shortlist", "3")
    guess = json.loads(tilecast(*asked, "--json").out)["choices"][0]
    lines = []
    for place, config in enumerate([*guess["shortlist"], guess["default"]]):
        line = f"64,{','.join(map(str, config.values()))},{(1.0, 3.0, 0.5, 2.0)[place] * 1e-4}"
        lines += [f"{line},{name}\n" for name in ("w13", "w2")]
    file = tmp_path / "times.csv"
    file.write_text(HEADER.replace("\n", ",moe_pass\n") + "".join(lines))
    found = json.loads(tilecast(*asked, "--measure", str(file), "--json").out)["choices"][0]
    assert found["config"] == guess["shortlist"][2]
    assert found["speedup"]["basis"] == "measured" and found["speedup"]["median"] == pytest.approx(4.0)


def test_the_shortlist_as_csv_is_the_file_that_measuring_takes(tmp_path, tilecast):
    asked = ("tune", "moe", "--gpu", "h800-sxm", "--model", "Qwen/Qwen3-30B-A3B", "--tokens", "64", "--shortlist", "3")
    header, *lines = tilecast(*asked, "--csv").out.splitlines()
    file = tmp_path / "times.csv"
    file.write_text("\n".join([header, *lines]))
    refused = tilecast(*asked, "--measure", str(file))
    assert refused.code == 2 and "could be measured" in refused.err, "no time is filled in"
    fastest = next(line for line in lines if ",w13,3," in line)
    file.write_text("\n".join([header, *(line + ("1e-4" if line == fastest else "2e-4") for line in lines)]))
    found = json.loads(tilecast(*asked, "--measure", str(file), "--json").out)["choices"][0]
    assert list(map(str, found["config"].values())) == fastest.split(",")[3:-1]
    assert found["speedup"]["median"] == pytest.approx(4 / 3) and found["speedup"]["basis"] == "measured"
    said = tilecast(*asked).out
    assert "Worth measuring" in said and "Worth measuring" not in tilecast(*asked[:-2]).out
    first, second, *_ = tilecast(*asked, "--measure", str(file), "--csv").out.splitlines()[1:]
    assert (first.rpartition(",")[2], second.rpartition(",")[2]) == ("0.0001", "0.0002"), "the fastest first, each with its time"
    assert "100 us" in tilecast(*asked, "--measure", str(file)).out


def test_measuring_without_a_file_is_on_the_gpu_that_is_here(tilecast):
    asked = ("tune", "moe", "--gpu", "h800-sxm", "--model", "Qwen/Qwen3-30B-A3B", "--tokens", "64", "--measure", "--shortlist", "3")
    assert "runner_for('triton', " in tilecast(*asked, "--as-python").out


class Event:
    """Every launch takes 2 ms."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def elapsed_time(self, other):
        return 2.0


def stand_in_for_torch(monkeypatch, device_name):
    cuda = SimpleNamespace(
        is_available=lambda: device_name is not None, get_device_name=lambda: device_name, Event=Event, synchronize=lambda: None
    )
    torch = SimpleNamespace(cuda=cuda, int8=None, empty=lambda *_, **__: SimpleNamespace(zero_=lambda: None))
    monkeypatch.setattr(triton_kernel, "_libraries", lambda: (torch, None))
    monkeypatch.setattr(triton_kernel, "grouped_kernel", lambda: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


class OutOfResources(Exception):
    """As Triton's compiler calls it."""


def test_operands_are_drawn_once_for_all_configurations_of_a_launch(monkeypatch):
    stand_in_for_torch(monkeypatch, "NVIDIA H200")
    drawn, launched = [], []

    def runs(torch, triton, kernel, of, config):
        def run():
            if config["num_stages"] > 4:
                raise OutOfResources
            launched.append(config["num_stages"])

        return run

    monkeypatch.setattr(triton_kernel, "operands", lambda torch, launch, device: drawn.append(launch))
    monkeypatch.setattr(triton_kernel, "runs", runs)
    runner, other = runner_for("triton", hardware.gpu("h200-sxm")), replace(LAUNCH, num_tokens=16)
    times = [runner.time_s(launch, {"num_stages": stages}) for launch in (LAUNCH, other) for stages in (2, 3, 5)]
    assert times == [2e-3, 2e-3, None] * 2, "what the compiler refuses is left out"
    assert drawn == [LAUNCH, other]
    assert launched.count(2) == launched.count(3) == 2 * (triton_kernel.WARM_UPS + triton_kernel.REPEATS)


def test_times_are_taken_on_the_gpu_that_is_asked_for_or_not_at_all(monkeypatch):
    stand_in_for_torch(monkeypatch, "NVIDIA H200")
    runner_for("triton", hardware.gpu("h200-sxm"))
    with pytest.raises(InvalidInput, match="the GPU here is 'NVIDIA H200', and l40s is 'NVIDIA L40S'"):
        runner_for("triton", hardware.gpu("l40s"))
    stand_in_for_torch(monkeypatch, None)
    with pytest.raises(InvalidInput, match="needs a GPU"):
        runner_for("triton", hardware.gpu("h200-sxm"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(InvalidInput, match="say nothing of a GPU"):
        runner_for("triton", hardware.gpu("h200-sxm"))


def test_measuring_says_how_far_it_is_once_for_each_number_of_tokens(capsys):
    timed = told(lambda launch, config: 1.0, 2)
    other = replace(LAUNCH, num_tokens=16)
    assert [timed(launch, {}) for launch in (LAUNCH, LAUNCH, other)] == [1.0] * 3
    assert capsys.readouterr().err.splitlines() == ["tilecast: measuring 8 tokens, 1 of 2", "tilecast: measuring 16 tokens, 2 of 2"]


def test_a_format_that_the_kernel_does_not_have_is_refused_not_timed_as_another():
    launch = replace(LAUNCH, dtype="int4_wo")
    with pytest.raises(InvalidInput, match="not int4_wo"):
        triton_kernel.operands(None, launch, "cuda")


def test_rows_are_sorted_by_expert_and_padded_to_tiles():
    rows, experts = sorted_by_expert(np.array([3, 0, 5]), 4)
    assert rows.tolist() == [0, 1, 2, 8, 3, 4, 5, 6, 7, 8, 8, 8]
    assert experts.tolist() == [0, 2, 2]


def test_loads_follow_the_distribution():
    assert loads_of(LAUNCH).tolist() == [4, 4, 4, 4]
    skewed = Moe(num_tokens=8, hidden_size=64, inter_size=32, num_experts=4, topk=2, distribution="[8, 6, 2, 0]", ep=2, moe_pass="w13")
    assert loads_of(skewed).tolist() == [8, 6]


def test_measuring_without_triton_says_what_is_missing():
    try:
        import torch  # noqa: F401
        import triton  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match="PyTorch and Triton"):
            runner_for("triton", hardware.gpu("h200-sxm"))
    else:
        pytest.skip("PyTorch and Triton are here")


INTERPRETED = """
import torch, triton, numpy as np
from tilecast.kernels.moe import Moe
from tilecast.tuning.runners import triton_kernel as runner
kernel = runner.grouped_kernel()

def worth(values, scales):
    if scales is None:
        return values.float()
    for dim in range(1, values.dim()):
        scales = scales.repeat_interleave(128, dim).narrow(dim, 0, values.shape[dim])
    return values.float() * scales

def check(launch, **config):
    made = runner.operands(torch, launch, "cpu")
    runner.runs(torch, triton, kernel, made, config)()
    tokens, weights = worth(made.tokens, made.token_scales), worth(made.weights, made.weight_scales)
    expert = np.repeat(np.arange(len(weights)), runner.loads_of(launch))
    wanted = torch.stack([weights[e] @ tokens[row] for row, e in enumerate(expert)])
    assert wanted.abs().max() > 1
    assert torch.allclose(made.output.float(), wanted, atol=0.05, rtol=0.01), (made.output - wanted).abs().max()

for name in ("w13", "w2"):
    for group in (1, 4):
        launch = Moe(num_tokens=13, hidden_size=40, inter_size=24, num_experts=4, topk=2, moe_pass=name, identity="triton")
        check(launch, BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=group, num_warps=4, num_stages=2)
# Three blocks of scales along K and two along N, the last of each not whole; a step is half a block.
scaled = Moe(num_tokens=9, hidden_size=300, inter_size=150, num_experts=1, topk=1, moe_pass="w13", gated=False, dtype="fp8_block",
             identity="triton")
check(scaled, BLOCK_SIZE_M=16, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, GROUP_SIZE_M=1, num_warps=4, num_stages=2)
"""


def test_the_triton_kernel_multiplies_each_row_with_its_experts_weights():
    pytest.importorskip("triton", reason="Triton is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
