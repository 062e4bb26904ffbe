"""GPUs whose launches no graph replays: the host starts every kernel, in rows that were timed back to back and in an engine's steps."""

from functools import partial

import numpy as np
import pytest

from tilecast import hardware
from tilecast.engines.many import outcomes
from tilecast.engines.predict import predict
from tilecast.execution import Protocol, analyse, constants
from tilecast.kernels.attention import AttentionDecode
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.moe import Moe
from tilecast.predictors import predict_kernel

ARC = hardware.gpu("arc-b60")
CALL_S = constants().host_event_s
PHYSICS = partial(predict_kernel, learned=False)
DECODE = AttentionDecode(batch=1, kv_len=64, num_heads=8, num_kv_heads=2, head_dim=128, engine="vllm")
EXPERTS = Moe(num_tokens=1, hidden_size=512, inter_size=256, num_experts=8, topk=2)


def seconds(kernel, timer: str, gpu=ARC) -> float:
    protocol = Protocol(timer, "warm")
    return float(analyse(kernel.tasks(gpu, protocol), gpu, protocol).analytic_s[0])


@pytest.mark.parametrize(("kernel", "calls"), [(Gemm(m=1, n=64, k=64), 1), (DECODE, 2), (EXPERTS, 6)])
def test_a_small_launch_takes_as_long_as_the_host_needs_for_its_calls(kernel, calls: int) -> None:
    assert seconds(kernel, "graph") == pytest.approx(calls * CALL_S)
    assert seconds(kernel, "profiler") < calls * CALL_S
    assert seconds(kernel, "graph", hardware.gpu("l40s")) < calls * CALL_S  # where a graph replays them, the host is done before they start


def test_behind_a_long_launch_the_host_runs_ahead() -> None:
    long = Gemm(m=4096, n=8192, k=8192)
    assert seconds(long, "graph") == pytest.approx(seconds(long, "profiler"), rel=1e-3)


def test_launches_together_are_what_they_are_alone() -> None:
    sizes = np.array([1, 256, 4096, 65536])
    protocol = Protocol("graph", "rotated")
    together = analyse(Gemm(m=sizes, n=256, k=256).tasks(ARC, protocol), ARC, protocol)
    alone = [analyse(Gemm(m=int(m), n=256, k=256).tasks(ARC, protocol), ARC, protocol) for m in sizes]
    assert together.analytic_s == pytest.approx([each.analytic_s[0] for each in alone])
    assert together.launch_s == pytest.approx([each.launch_s[0] for each in alone])
    assert together.bound_by[0] == "launch" != together.bound_by[-1]  # and the account says so


def test_a_decode_step_takes_as_long_as_its_layers_take_to_launch() -> None:
    asked = {"batch": 1, "isl": 64, "osl": 4, "engine": "vllm", "price": PHYSICS, "overrides": {"dram_bytes_per_s": 1000e9}}
    small = predict("Qwen/Qwen3-0.6B", "arc-b60", **asked)
    layers = small.model.num_layers
    assert small.decode_step_s.median == pytest.approx(0.6e-3 + layers * 0.12e-3)
    large = predict("meta-llama/Llama-3.1-8B", "arc-b60", **asked)
    host = next(part for part in large.breakdown if part.phase == "decode" and part.name == "host")
    assert host.time.median == pytest.approx(0.6e-3 * large.decode_steps)  # its kernels are longer than their launches
    [one] = outcomes("Qwen/Qwen3-0.6B", "arc-b60", [(1, 64, 4)], tp=1, **{name: asked[name] for name in ("engine", "price", "overrides")})
    assert one.decode_step_s.median == pytest.approx(small.decode_step_s.median)
    assert one.decode_s.median == pytest.approx(small.decode_s.median)
