"""What rows say of the sizes that kernels are built for, and how far the law of doubling follows them."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from tilecast.datasets.schema import SHAPES
from tilecast.kernels.attention import AttentionDecode, AttentionPrefill
from tilecast.kernels.base import Built
from tilecast.kernels.mla import MlaDecode
from tilecast.kernels.moe import Moe
from tilecast.learning.built_sizes import built_sizes, doubled_pairs
from tilecast.predictors.built import halvings_to_rows, has_rows, same_kernel
from tilecast.predictors.law import LARGEST_FALL, MARGIN, Asked

STEPS = np.arange(5)


def built(known: set[int], changes: set[int]) -> Built:
    return Built(frozenset((size,) for size in known), frozenset(changes))


def widths(known: set[int], window: int = 0) -> Built:
    """Rows of heads so wide, all with this window or all with none."""
    return Built(frozenset((width, window) for width in known), frozenset())


def decode_rows(*launches: tuple[int, int, int, float], engine: str = "sglang") -> pl.DataFrame:
    """Query heads, KV heads, width of a head and seconds of each."""
    heads, shared, width, seconds = zip(*launches, strict=True)
    sizes = {"batch": 1, "q_len": 1, "kv_len": 1024, "causal": None, "window": None, "q_lens": None, "kv_lens": None}
    names = {"gpu": "l40s", "engine": engine, "dtype": "bf16", "identity": "triton", "kv_dtype": None, "timer": "graph", "cache": "warm"}
    lists = {"num_heads": heads, "num_kv_heads": shared, "head_dim": width, "latency_s": seconds}
    return pl.DataFrame(lists).with_columns(pl.lit(value).alias(name) for name, value in (sizes | names).items())


def test_a_step_at_which_rows_get_much_faster_is_another_kernel():
    # Single query heads take 100 us, two of a KV head 50, and from there on each doubling takes longer.
    rows = decode_rows((8, 8, 64, 1e-4), (16, 8, 64, 5e-5), (32, 8, 64, 6e-5), (64, 8, 64, 7e-5))
    found = built_sizes(rows, "attention_decode")
    key = "l40s sglang 16-bit triton 16-bit"
    assert found["num_heads"] == {key: built(set(), {1})}
    assert found["head_dim"] == {key: widths({64})}
    assert found["num_kv_heads"] == {key: built(set(), set())}


def test_rows_two_doublings_apart_tell_where_none_lie_between():
    rows = decode_rows((96, 1, 128, 1e-4), (96, 4, 128, 4e-5), (96, 8, 128, 5e-5))
    assert built_sizes(rows, "attention_decode")["num_kv_heads"]["l40s sglang 16-bit triton 16-bit"].changes == {96}


def test_a_fall_that_the_law_hardly_touches_is_no_other_kernel():
    rows = decode_rows((8, 8, 64, 1.000e-4), (16, 8, 64, 0.965e-4))  # lowered by half a percent
    assert built_sizes(rows, "attention_decode")["num_heads"]["l40s sglang 16-bit triton 16-bit"].changes == set()


def test_engines_are_told_apart():
    slow = decode_rows((8, 8, 64, 1e-4), (16, 8, 64, 5e-5), engine="vllm")
    fine = decode_rows((8, 8, 64, 1e-4), (16, 8, 64, 2e-4))
    found = built_sizes(pl.concat([slow, fine]), "attention_decode")["num_heads"]
    assert {key: sorted(said.changes) for key, said in found.items()} == {
        "l40s sglang 16-bit triton 16-bit": [],
        "l40s vllm 16-bit triton 16-bit": [1],
    }


def test_heads_that_were_measured_with_another_window_are_a_guess():
    rows = decode_rows((8, 8, 64, 1e-4)).with_columns(window=pl.lit(128))
    said = built_sizes(rows, "attention_decode")["head_dim"]["l40s sglang 16-bit triton 16-bit"]
    assert said == widths({64}, window=128)
    kernel = AttentionDecode(kv_len=1024, num_heads=8, head_dim=np.array([64, 128, 128]), window=[128, 128, None])
    assert has_rows(kernel, said).tolist() == [True, False, False]
    narrower, steps = halvings_to_rows(kernel, said, 3)  # that give way to the rows with their window
    assert (narrower.tolist(), steps["head_dim"].tolist()) == ([1], [1])
    assert has_rows(AttentionDecode(kv_len=1024, num_heads=8, head_dim=64), said).tolist() == [False]


def test_families_without_such_sizes_say_nothing():
    assert built_sizes(pl.DataFrame(), "gemm") == {}


def test_rows_say_which_experts_and_how_many_of_a_token_were_measured_together():
    names = {"gpu": "l40s", "engine": "sglang", "dtype": "bf16", "identity": "triton", "timer": "graph", "cache": "warm"}
    sizes = {"num_tokens": 64, "hidden_size": 2048, "inter_size": 768, "tp": 1, "ep": 1, "distribution": "balanced", "moe_pass": "both"}
    unset = dict.fromkeys(set(SHAPES["moe"]) - {*sizes, "num_experts", "topk"})
    rows = pl.DataFrame({"num_experts": [128, 128, 64], "topk": [8, 8, 6], "latency_s": [1e-4, 1.1e-4, 9e-5]})
    rows = rows.with_columns(pl.lit(value).alias(name) for name, value in (sizes | names | unset).items())
    (key, said), *others = built_sizes(rows, "moe")["num_experts"].items()
    assert (key.split()[:2], said, others) == (["l40s", "sglang"], models((128, 8), (64, 6)), [])


def test_pairs_lie_as_many_doublings_apart_as_asked():
    rows = decode_rows((8, 8, 64, 1.0), (16, 8, 64, 1.0), (32, 8, 64, 1.0))
    key = [name for name in rows.columns if name != "latency_s"]
    assert doubled_pairs(rows, key, ("num_heads",)).tolist() == [[0, 1], [1, 2]]
    assert doubled_pairs(rows, key, ("num_heads",), 2).tolist() == [[0, 2]]


def test_the_law_ends_where_another_kernel_runs():
    kernel = AttentionDecode(kv_len=64, num_heads=np.array([8, 32]), num_kv_heads=8)
    # 8 heads on 8 KV heads double twice, to four of each, and are another kernel beyond; those of 32 are that already.
    same = same_kernel(kernel, "num_heads", built(set(), {4}), STEPS)
    assert same.tolist() == [[True, True, True, False, False], [True, False, False, False, False]]
    assert same_kernel(kernel, "num_heads", None, STEPS).all()


def test_kv_heads_double_while_queries_share_them():
    kernel = AttentionPrefill(q_len=64, num_heads=np.array([8, 24, 7]), num_kv_heads=np.array([2, 1, 1]))
    assert same_kernel(kernel, "num_kv_heads", None, STEPS).sum(axis=1).tolist() == [3, 4, 1]
    # 24 queries of one KV head are 12 of two and then 6 of four: another kernel from 12 on ends it there.
    assert same_kernel(kernel, "num_kv_heads", built(set(), {12}), STEPS).sum(axis=1).tolist() == [3, 2, 1]


@pytest.mark.parametrize(("heads", "halved"), [(64, []), (256, [1, 2]), (512, [2, 3]), (96, []), (48, []), (512 * 3, [])])
def test_a_size_that_no_row_has_is_halved_to_those_that_rows_have(heads: int, halved: list[int]):
    kernel, said = MlaDecode(kv_len=64, num_heads=heads), built({16, 64, 128}, {16})
    _, steps = halvings_to_rows(kernel, said, 1)
    assert sorted(step for each in steps.values() for step in each.tolist()) == halved
    assert has_rows(kernel, said).tolist() == [heads == 64]


def test_no_size_is_halved_into_another_kernel():
    kernel = MlaDecode(kv_len=64, num_heads=np.array([32, 256, 4]))
    rows, steps = halvings_to_rows(kernel, built({1, 16, 128}, {16, 128}), 3)
    assert (rows.tolist(), steps["num_heads"].tolist()) == ([2], [2])


def experts(**given: Any) -> Moe:
    return Moe(**{"num_tokens": 64, "hidden_size": 2048, "inter_size": 768, **given})


def models(*sizes: tuple[int, int]) -> Built:
    """Rows of layers of 768 by 2,048 with these numbers of experts, and of those a token has."""
    return Built(frozenset((*numbers, 2048, 768) for numbers in sizes), frozenset())


def test_all_that_models_differ_in_is_halved_together():
    said = models((64, 6), (128, 8), (256, 8))
    kernel = experts(num_experts=np.array([256, 512, 128]), topk=np.array([16, 16, 12]), hidden_size=np.array([2048, 4096, 2048]))
    rows, steps = halvings_to_rows(kernel, said, 3)
    # 16 of 256 are 8 of 256 or of 128; 16 of 512, twice as wide, are those with experts halved once more; 12 of 128 are 6 of 64.
    assert sorted(zip(rows.tolist(), *(steps[name].tolist() for name in ("num_experts", "topk", "hidden_size")), strict=True)) == [
        (0, 0, 1, 0), (0, 1, 1, 0), (1, 1, 1, 1), (1, 2, 1, 1), (2, 1, 1, 0),
    ]  # fmt: skip
    assert has_rows(experts(num_experts=128, topk=np.array([8, 6])), said).tolist() == [True, False]
    assert has_rows(experts(num_experts=128, topk=8, inter_size=np.array([768, 1536])), said).tolist() == [True, False]


def test_experts_are_halved_while_every_rank_has_as_many_and_their_load_is_even():
    said = models((64, 8))
    kernel = experts(num_experts=256, topk=8, ep=np.array([1, 64, 128]))
    assert halvings_to_rows(kernel, said, 3)[0].tolist() == [0, 1]
    assert not len(halvings_to_rows(experts(num_experts=256, topk=8, distribution="power_law_1.2"), said, 1)[0])
    sliced = experts(num_experts=64, topk=8, inter_size=1536, tp=np.array([256, 512]))
    assert halvings_to_rows(sliced, said, 2)[0].tolist() == [0]


def test_physics_is_asked_as_far_as_what_was_learned_could_make_up_for():
    analytic_s, median_s = np.array([1.0, 1.0, 1.0]), np.array([1.0, 0.7, 40.0])
    far = Asked(physics=None, median_s=None, lowest=-0.5).most_lost(median_s, analytic_s)
    # A launch that is as slow as physics may be 0.5 slower than the fastest, and half a unit more where KV is split by rule.
    assert far == pytest.approx([0.5 + MARGIN, 0.5 + MARGIN + np.log(0.7), LARGEST_FALL])
    assert Asked(physics=None, median_s=None).most_lost(median_s, analytic_s).tolist() == [LARGEST_FALL] * 3
