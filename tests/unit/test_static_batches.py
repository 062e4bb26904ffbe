"""Static batches on engines that chunk: passes worked by hand, and the groups of a pipeline."""

from functools import partial

import numpy as np
import pytest

from tilecast.engines.base import engine
from tilecast.engines.many import outcomes
from tilecast.engines.predict import predict
from tilecast.engines.setup import set_up
from tilecast.hardware import gpu
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import price_steps
from tilecast.workloads.graph import Batch, chunked_prefill

PHYSICS = partial(predict_kernel, learned=False)


def batch_on(name, batch, isl, osl=8, *, tp=4, pp=2, **more):
    return predict(
        "meta-llama/Llama-3.1-70B", "h100-sxm", engine=name, tp=tp, pp=pp, batch=batch, isl=isl, osl=osl, price=PHYSICS, **more
    )  # fmt: skip


def test_prompts_are_cut_at_the_budget():
    # Three prompts of 100 in passes of 150: 100 + 50, then the other 50 (which see 100 keys) + 100.
    tokens, counts = chunked_prefill(Batch.uniform(3, 100, 1), 150)
    assert [each.tolist() for each in tokens.q_lens] == [[100, 50], [50, 100]]
    assert [each.tolist() for each in tokens.kv_lens] == [[100, 50], [100, 100]]
    assert counts.tolist() == [1, 1]


def test_equal_passes_are_counted_and_many_stand_for_all():
    tokens, counts = chunked_prefill(Batch.uniform(64, 8192, 1), 8192)
    assert (len(tokens.q_lens), counts.tolist()) == (1, [64])
    tokens, counts = chunked_prefill(Batch.uniform(400, 1001, 1), 1000)
    assert len(tokens.q_lens) == 32
    assert counts.sum() == pytest.approx(-(-400 * 1001 // 1000))


def test_the_budget_goes_by_memory_and_use():
    vllm = engine("vllm")
    large, a100, small = gpu("h100-sxm"), gpu("a100-sxm-80gb"), gpu("rtx-4090")
    assert [vllm.token_budget(vllm, each, True) for each in (large, a100, small)] == [16384, 8192, 8192]
    assert [vllm.token_budget(vllm, each, False) for each in (large, a100, small)] == [8192, 2048, 2048]


def test_a_batch_that_fits_one_step_is_one_group_and_a_longer_one_fills_the_stages():
    found = set_up("meta-llama/Llama-3.1-70B", "h100-sxm", tp=4, pp=2, engine="vllm")
    groups = [found.engine.num_micro_batches(Batch.uniform(n, 1024, 8), found.shard, found.gpu) for n in (1, 16, 17, 256)]
    assert groups == [1, 1, 2, 2]  # 16 x 1024 = 16384 tokens, vLLM's offline budget


def test_groups_overlap_their_steps():
    # 64 requests of 1024 are two groups of 32: while one is in the second stage the other is in the first, so a step is a pass of 32.
    whole = {"engine_settings": {"max_num_batched_tokens": 1 << 20}}  # a budget for all of them: one group
    two, half, one = batch_on("vllm", 64, 1024), batch_on("vllm", 32, 1024, **whole), batch_on("vllm", 64, 1024, **whole)
    assert two.decode_step_s.median == pytest.approx(half.decode_step_s.median, rel=0.03)
    assert two.decode_step_s.median < one.decode_step_s.median


def test_a_pipelined_prefill_takes_a_pass_and_the_last_stage_of_the_others():
    # 8 passes of 16384 tokens through two stages: about 9 half passes in place of 16.
    piped, flat = batch_on("vllm", 128, 1024), batch_on("vllm", 128, 1024, pp=1, tp=8)
    one = batch_on("vllm", 16, 1024)
    assert piped.prefill_s.median == pytest.approx(one.prefill_s.median * 9 / 2, rel=0.05)
    assert flat.prefill_s.median < piped.prefill_s.median * 1.5


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize(("batch", "isl"), [(8, 2049), (12, 2048), (8, 4096), (24, 3000), (7, 1171)])
def test_unequal_passes_take_as_long_as_pass_by_pass_and_stage_by_stage(batch, isl, pp):
    found = set_up("meta-llama/Llama-3.1-70B", "h100-sxm", tp=8 // pp, pp=pp, engine="vllm")
    tokens, counts, _ = found.prefill(Batch.uniform(batch, isl, 8), Batch.uniform(batch, isl, 8))
    stages_s = [time.median_s for time in price_steps([found.step(tokens, stage) for stage in range(pp)], found.gpu, PHYSICS)]
    free_s = [0.0] * pp  # when each stage has done with the pass before
    for place in np.repeat(np.arange(len(counts)), np.rint(counts).astype(int)):
        ready_s = 0.0
        for stage in range(pp):
            ready_s = free_s[stage] = max(ready_s, free_s[stage]) + stages_s[stage][place]
    told = batch_on("vllm", batch, isl, tp=8 // pp, pp=pp)
    host_s = sum(part.time.median for part in told.breakdown if part.phase == "prefill" and part.name == "host")
    assert told.prefill_s.median - host_s == pytest.approx(free_s[-1], rel=0.03)


@pytest.mark.parametrize("pp", [2, 4])
def test_a_token_more_in_every_prompt_is_not_faster(pp):
    # 8 x 2048 tokens fill one pass of vLLM's offline budget; a token more makes a second pass of 8 tokens.
    full, more = (batch_on("vllm", 8, isl, tp=8 // pp, pp=pp).prefill_s.median for isl in (2048, 2049))
    assert full < more < 1.05 * full


@pytest.mark.parametrize("name", ["vllm", "trtllm"])
def test_a_chunked_prefill_is_the_sum_of_its_passes(name):
    one = batch_on(name, 8, 1024, tp=4, pp=1)
    four = batch_on(name, 64, 1024, tp=4, pp=1)
    budget = engine(name).token_budget(engine(name), gpu("h100-sxm"), True)
    assert four.prefill_s.median / one.prefill_s.median == pytest.approx(8, rel=0.05 if budget == 8192 else 0.12)


@pytest.mark.parametrize("name", ["sglang", "vllm", "trtllm"])
def test_many_batches_are_what_each_is_alone(name):
    cases = [(1, 128, 4), (40, 1024, 4), (64, 256, 1)]
    for case, found in zip(cases, outcomes("Qwen/Qwen3-8B", "h100-sxm", cases, engine=name, price=PHYSICS), strict=True):
        batch, isl, osl = case
        alone = predict("Qwen/Qwen3-8B", "h100-sxm", engine=name, batch=batch, isl=isl, osl=osl, price=PHYSICS)
        assert found.total_s.median == pytest.approx(alone.total_s.median, rel=1e-9)
        assert found.memory.total_bytes == alone.memory.total_bytes


def test_vllm_keeps_a_tenth_of_the_memory_and_trtllm_a_tenth_of_what_is_free():
    vllm, trtllm = (batch_on(name, 1, 128, tp=8, pp=1).memory for name in ("vllm", "trtllm"))
    assert vllm.reserved_bytes == pytest.approx(0.1 * vllm.capacity_bytes)
    free = trtllm.capacity_bytes - trtllm.weights_bytes - trtllm.activations_bytes - 3e9
    assert trtllm.reserved_bytes == pytest.approx(3e9 + 0.1 * free)
