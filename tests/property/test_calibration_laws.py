"""Laws of calibration: nothing measured changes nothing, one row pulls towards itself, order does not matter, one wild row does little."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilecast.kernels.gemm import Gemm
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.calibration import Sites, of_rows, posterior, shipped
from tilecast.predictors.calibrated import profile_from_rows, sites_of_prediction
from tilecast.predictors.kernel import predict_kernel

GPU = "l20"  # of no generation's first choice: its level is not known well
PRIOR = shipped()
factors = st.floats(0.75, 2.0)
tokens = st.sampled_from([1, 8, 64, 200, 512, 2048, 8192])


def gemm_sites(m: list[int], n: int = 4096, k: int = 4096, dtype: str = "bf16") -> Sites:
    return sites_of_prediction(predict_kernel(Gemm(m=np.array(m), n=n, k=k, dtype=dtype), GPU))


def row(m: int, factor: float, n: int = 4096, k: int = 4096) -> dict[str, Any]:
    median_s = float(predict_kernel(Gemm(m=m, n=n, k=k), GPU).median_s[0])
    return {"family": "gemm", "gpu": GPU, "dtype": "bf16", "m": m, "n": n, "k": k, "measured_s": factor * median_s}


def test_nothing_measured_leaves_the_prior():
    asked = gemm_sites([1, 512, 8192])
    mean, spread = posterior(of_rows(asked.where(slice(0, 0)), np.zeros(0)), PRIOR).shift(asked)
    assert mean.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(spread, asked.spread)


@settings(max_examples=25, deadline=None)
@given(tokens, st.floats(-0.6, 0.6).filter(lambda offset: abs(offset) > 0.01))
def test_one_row_moves_its_own_launch_towards_it_and_others_less(m: int, offset: float):
    measured = gemm_sites([m])
    one = posterior(of_rows(measured, np.array([offset])), PRIOR)
    (own,), (own_spread,) = one.shift(measured)
    assert 0 < own / offset < 1 and own_spread < measured.spread[0]
    other = gemm_sites([m], n=512, k=16384, dtype="fp32")
    (shift,), (spread,) = one.shift(other)
    assert 0 <= shift / offset < own / offset * other.spread[0] / measured.spread[0] + 1e-9 and spread <= other.spread[0]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(tokens, factors), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(measured: list[tuple[int, float]], random: Any):
    rows = [row(m, factor) for m, factor in measured]
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = profile_from_rows(rows, GPU), profile_from_rows(shuffled, GPU)
    assert one.id == other.id
    asked = Gemm(m=np.array([1, 300, 4096]), n=5120, k=5120)
    assert predict_kernel(asked, GPU, profile=one).median_s.tolist() == predict_kernel(asked, GPU, profile=other).median_s.tolist()


@settings(max_examples=15, deadline=None)
@given(st.floats(3.0, 20.0))
def test_one_wild_row_among_many_does_little(wild: float):
    good = [row(m, 1.2, n=n) for m in (1, 64, 512, 4096) for n in (2048, 4096, 8192)]
    asked = Gemm(m=700, n=4096, k=4096)

    def median_s(rows: list[dict[str, Any]]) -> float:
        return float(predict_kernel(asked, GPU, profile=profile_from_rows(rows, GPU)).median_s[0])

    calm = median_s(good)
    assert abs(np.log(median_s([*good, row(600, wild)]) / calm)) < 0.05
    assert abs(np.log(calm / float(predict_kernel(asked, GPU).median_s[0]) / 1.2)) < 0.08  # a sixth slower, as the rows say


SHAPES = {
    "gemm": {"m": np.array([1, 100, 4096]), "n": 4096, "k": 4096},
    "attention_prefill": {"batch": np.array([1, 2, 8]), "q_len": 1024, "kv_len": 1024, "num_heads": 32},
    "attention_decode": {"batch": np.array([1, 16, 64]), "kv_len": 2048, "num_heads": 32},
    "moe": {"num_tokens": np.array([1, 128, 4096]), "hidden_size": 2048, "inter_size": 768, "num_experts": 64, "topk": 4},
    "rms_norm": {"rows": np.array([1, 128, 4096]), "cols": 4096},
    "all_reduce": {"bytes": np.array([1024, 2**20, 2**28]), "num_gpus": 2},
}


@pytest.mark.parametrize("family", SHAPES)
@settings(max_examples=5, deadline=None)
@given(measured=st.lists(st.tuples(tokens, factors), min_size=1, max_size=5))
def test_the_laws_of_a_prediction_hold_with_a_profile(family: str, measured: list[tuple[int, float]]):
    profile = profile_from_rows([row(m, factor) for m, factor in measured], GPU)
    kernel = kernel_record(family)(**SHAPES[family])
    before, after = predict_kernel(kernel, GPU), predict_kernel(kernel, GPU, profile=profile)
    assert (after.bound_s <= after.low_s).all() and (after.low_s <= after.median_s).all() and (after.median_s <= after.high_s).all()
    assert (after.high_s / after.median_s <= before.high_s / before.median_s * (1 + 1e-9)).all()
    assert (after.basis == before.basis).all()
    if family == "all_reduce":
        assert after.median_s.tolist() == before.median_s.tolist()
