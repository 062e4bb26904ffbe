"""Where measured times come from: recorded ones, and Triton's kernel as far as a CPU can run it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tilecast.errors import InvalidInput, MissingExtra
from tilecast.kernels.moe import Moe
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
    ],
)
def test_a_bad_file_of_times_is_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "times.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
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
        from tilecast.tuning.runners.base import runner_for

        with pytest.raises(MissingExtra, match="PyTorch and Triton"):
            runner_for("triton")
    else:
        pytest.skip("PyTorch and Triton are here")


INTERPRETED = """
import torch, triton, numpy as np
from tilecast.kernels.moe import Moe
from tilecast.tuning.runners import triton_kernel as runner
kernel = runner.grouped_kernel()
for name in ("w13", "w2"):
    launch = Moe(num_tokens=13, hidden_size=40, inter_size=24, num_experts=4, topk=2, moe_pass=name, identity="triton")
    for group in (1, 4):
        config = dict(BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=group, num_warps=4, num_stages=2)
        tokens, weights, output = runner.launcher(torch, triton, kernel, launch, config, "cpu")()
        expert = np.repeat(np.arange(4), runner.loads_of(launch))
        wanted = torch.stack([weights[e].float() @ tokens[row].float() for row, e in enumerate(expert)])
        assert torch.allclose(output.float(), wanted, atol=0.05, rtol=0.01), (output - wanted).abs().max()
"""


def test_the_triton_kernel_multiplies_each_row_with_its_experts_weights():
    pytest.importorskip("triton", reason="Triton is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
