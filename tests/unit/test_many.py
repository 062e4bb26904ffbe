"""Many batches priced together are what each is by itself, and much cheaper."""

import pytest

from tilecast.engines import many
from tilecast.engines.many import METRICS, outcomes
from tilecast.engines.predict import predict
from tilecast.errors import InvalidInput
from tilecast.workloads.aggregate import MOST_POINTS

CASES = [(1, 128, 1), (1, 300, 2), (8, 2048, 256), (100, 500, 40), (256, 2048, 3), (8, 128, 256)]
TIMES = ("prefill_s", "decode_step_s", "total_s", "ttft_s", "tpot_s", "output_tokens_per_s")


@pytest.mark.parametrize(
    ("model", "gpu", "tp"), [("Qwen/Qwen3-32B", "h100-sxm", 2), ("Qwen/Qwen3-8B", "a40", 1), ("Qwen/Qwen2.5-14B", "mi300x", 4)]
)
def test_together_is_one_by_one(model, gpu, tp):
    # Prefills of these sizes lie on both sides of the longest message that custom all-reduce takes.
    for case, found in zip(CASES, outcomes(model, gpu, CASES, tp=tp), strict=True):
        alone = predict(model, gpu, tp=tp, batch=case[0], isl=case[1], osl=case[2])
        for name in TIMES:
            for part in ("median", "low", "high"):
                assert getattr(getattr(found, name), part) == pytest.approx(getattr(getattr(alone, name), part), rel=1e-9), (case, name)
        assert (found.basis, found.fits, found.memory.total_bytes) == (alone.basis, alone.fits, alone.memory.total_bytes)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen/Qwen3-8B", {"quant": "fp8"}),
        ("Qwen/Qwen3-30B-A3B", {"tp": 4, "ep": 4}),
        ("openai/gpt-oss-20b", {"tp": 2, "ep": 2}),
        ("Qwen/Qwen3-8B", {"allow_longer_context": True}),
    ],
    ids=str,
)  # fmt: skip
def test_formats_and_whole_experts_are_priced_together_too(model, options, monkeypatch):
    cases = [(1, 300, 2), (8, 50_000 if "allow_longer_context" in options else 2048, 64), (100, 500, 40)]
    alone = [predict(model, "h100-sxm", batch=batch, isl=isl, osl=osl, **options) for batch, isl, osl in cases]
    monkeypatch.setattr(many, "predict", None)  # one by one is for what cannot be
    for one, found in zip(alone, outcomes(model, "h100-sxm", cases, **options), strict=True):
        for name in TIMES:
            assert getattr(found, name).median == pytest.approx(getattr(one, name).median, rel=1e-9), name
        assert (found.basis, found.memory.total_bytes) == (one.basis, one.memory.total_bytes)


@pytest.mark.parametrize(
    ("model", "case", "message"),
    [
        ("Qwen/Qwen3-8B", (1, 50_000, 10), "50,010 tokens of context are beyond the 40,960"),
        ("google-bert/bert-base-uncased", (1, 100, 10), "is an encoder"),
    ],
)
def test_many_are_refused_as_one_is(model, case, message):
    with pytest.raises(InvalidInput, match=message):
        outcomes(model, "h100-sxm", [(1, 10, 1), case])


def test_options_reach_the_kernels():
    plain, narrow = (outcomes("Qwen/Qwen3-8B", "h100-sxm", [(64, 4000, 9)], kv_dtype=held)[0] for held in (None, "fp8"))
    faster = outcomes("Qwen/Qwen3-8B", "h100-sxm", [(64, 4000, 9)], overrides={"dram_bytes_per_s": 6e12})[0]
    assert narrow.decode_step_s.median < plain.decode_step_s.median > faster.decode_step_s.median


def test_equal_launches_are_priced_once():
    priced = []

    def counting(kernel, gpu, **options):
        from tilecast.predictors import predict_kernel

        found = predict_kernel(kernel, gpu, **options)
        priced.append((kernel.family, len(found.median_s)))
        return found

    outcomes("Qwen/Qwen3-8B", "h100-sxm", [(batch, 512, 65) for batch in range(1, 33)], price=counting)
    assert dict(priced)["attention_decode"] == 32 * min(64, MOST_POINTS)
    assert sum(rows for family, rows in priced if family == "gemm") <= 2 * 5 * 32  # five products, two phases


def test_rates_follow_from_times():
    found = outcomes("Qwen/Qwen3-8B", "h100-sxm", [(16, 512, 33)], tp=2)[0]
    assert found.output_tokens_per_s_per_gpu.median == pytest.approx(16 * 33 / found.total_s.median / 2)
    assert found.output_tokens_per_s_per_user.low == pytest.approx(1 / found.tpot_s.high)
    assert {name: metric.of(found) for name, metric in METRICS.items()}["total_s"] == found.total_s
