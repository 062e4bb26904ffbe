"""Each reason for which a row is set aside, on rows worked by hand on an H100.

132 SMs x 4096 FLOP per clock x 1.98 GHz = 1070.5 TFLOP/s in bf16, twice that in fp8; DRAM 3.352 TB/s; L2 52.4 MB. A row may be 2 % faster.
"""

from typing import Any

import polars as pl
import pytest

from tilecast.datasets import quality
from tilecast.datasets.schema import conform

FROM = {"source": "toy", "licence": "CC0", "origin": "toy.csv"}
NO_TIME, ZERO_SHAPE, IMPOSSIBLE = "no time", "zero shape", "impossible: faster than physics allows"
DUPLICATE, OUTLIER = "duplicate: the same measurement twice", "outlier: far from its other versions"

GEMM = {"m": 8192, "n": 8192, "k": 8192, "batch": 1, "bias": False}
ATTENTION = {"batch": 1, "q_len": 8192, "kv_len": 8192, "num_heads": 32, "num_kv_heads": 32, "head_dim": 128, "causal": False}
MOE = {"num_tokens": 1, "hidden_size": 7168, "inter_size": 2048, "num_experts": 256, "topk": 8, "tp": 1, "ep": 1, "moe_pass": "both",
       "gated": True}  # fmt: skip
CONV = {"batch": 1, "in_channels": 64, "out_channels": 64, "height": 56, "width": 56, "kernel_size": 3, "stride": 1, "padding": 1}
SHAPE = {"gemm": GEMM, "attention_prefill": ATTENTION, "moe": MOE, "conv2d": CONV, "layer": {"op": "module", "batch": 1}}


def reasons(family: str, *rows: dict[str, Any]) -> list[str | None]:
    """Why each row was set aside; a row says what differs from an H100 that runs the family's shape above in bf16, cold, in 10 ms."""
    common = {"gpu": "h100-sxm", "dtype": "bf16", "timer": "profiler", "cache": "cold", "latency_s": 10e-3, **FROM, **SHAPE[family]}
    records = [{"origin_row": number, **common, **row} for number, row in enumerate(rows)]
    frame = conform(pl.DataFrame(records, infer_schema_length=None), family)
    judged = quality.judge(frame, family)
    assert judged.drop("set_aside").equals(frame.drop("set_aside")), "judging changes nothing but set_aside"
    return judged["set_aside"].to_list()


def reason(family: str, **row: Any) -> str | None:
    return reasons(family, row)[0]


def test_a_sound_row_has_no_reason() -> None:
    assert reason("gemm") is None


# ---- zero shape ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [{"m": 0}, {"k": 0}, {"n": -1}, {"batch": 0}])
def test_a_size_that_is_not_positive_is_a_zero_shape(size: dict[str, int]) -> None:
    assert reason("gemm", **size) == ZERO_SHAPE


def test_a_size_that_may_be_zero_or_is_not_stated_is_none() -> None:
    assert reason("conv2d", padding=0) is None
    assert reason("attention_prefill", kv_dtype="bf16", window=None) is None


# ---- no time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_s", [0.0, -1e-6, float("nan"), float("inf")])
def test_what_is_no_positive_number_of_seconds_is_no_time(latency_s: float) -> None:
    assert reason("gemm", latency_s=latency_s) == NO_TIME


# ---- impossible ----------------------------------------------------------------------------------------------------


def test_a_gemm_faster_than_every_sm_at_the_highest_clock_is_impossible() -> None:
    # 2 x 8192^3 = 1.0995e12 FLOP / 1070.5e12 = 1027 us; 2 % less is 1007 us
    assert reason("gemm", latency_s=1006e-6) == IMPOSSIBLE
    assert reason("gemm", latency_s=1008e-6) is None


def test_a_gemm_in_fp8_may_take_half_the_time() -> None:
    # 1027 us / 2 = 513.5 us; 2 % less is 503.3 us
    assert reason("gemm", latency_s=503e-6, dtype="fp8") == IMPOSSIBLE
    assert reason("gemm", latency_s=504e-6, dtype="fp8") is None


def test_fp32_is_held_against_its_own_rate_and_not_the_16_bit_one() -> None:
    # 132 x 256 x 1.98 GHz = 66.9 TFLOP/s: 16.43 ms; 2 % less is 16.10 ms
    assert reason("gemm", latency_s=16.0e-3, dtype="fp32") == IMPOSSIBLE
    assert reason("gemm", latency_s=16.2e-3, dtype="fp32") is None


def test_a_dtype_the_gpu_has_no_unit_for_may_run_at_the_16_bit_rate() -> None:
    # nvfp4 on an H100 is converted first: 1027 us
    assert reason("gemm", latency_s=1006e-6, dtype="nvfp4") == IMPOSSIBLE
    assert reason("gemm", latency_s=1008e-6, dtype="nvfp4") is None


def test_what_must_come_from_dram_cannot_come_faster_than_dram_unless_it_fits_l2() -> None:
    # (4096 + 4096^2 + 4096) x 2 bytes = 33.57 MB / 3.352 TB/s = 10.015 us; 2 % less is 9.815 us. Warm, it all fits 52.4 MB of L2.
    thin = {"m": 1, "n": 4096, "k": 4096}
    assert reasons(
        "gemm",
        {**thin, "cache": "cold", "latency_s": 9.81e-6},
        {**thin, "cache": "cold", "latency_s": 9.82e-6},
        {**thin, "cache": "warm", "latency_s": 5.1e-6},
        {**thin, "cache": "rotated", "latency_s": 5.2e-6},
    ) == [IMPOSSIBLE, None, None, None]


def test_warm_buffers_that_exceed_l2_still_bring_the_rest_from_dram() -> None:
    # (8192 + 8192^2 + 8192) x 2 = 134.25 MB less 52.43 MB = 81.82 MB / 3.352 TB/s = 24.41 us; 2 % less is 23.92 us
    thin = {"m": 1, "n": 8192, "k": 8192, "cache": "warm"}
    assert reasons("gemm", {**thin, "latency_s": 23.9e-6}, {**thin, "latency_s": 24.0e-6}) == [IMPOSSIBLE, None]


def test_attention_over_an_fp8_cache_may_run_at_the_fp8_rate() -> None:
    # 4 x 8192^2 x 32 x 128 = 1.0995e12 FLOP: 1027 us in bf16, 513.5 us in fp8; 2 % less is 1007 and 503.3 us
    assert reasons(
        "attention_prefill",
        {"kv_dtype": "bf16", "latency_s": 600e-6},
        {"kv_dtype": "fp8", "latency_s": 600e-6},
        {"kv_dtype": "fp8", "latency_s": 503e-6},
    ) == [IMPOSSIBLE, None, IMPOSSIBLE]


def test_a_convolution_is_held_against_its_bytes_only() -> None:
    # fp32: 231 MFLOP would take 3.46 us at 66.9 TFLOP/s, but Winograd or TF32 need less.
    # (2 x 64 x 56^2 + 64 x 64 x 9) x 4 = 1.753 MB / 3.352 TB/s = 523 ns; 2 % less is 512.6 ns
    assert reason("conv2d", dtype="fp32", latency_s=0.515e-6) is None
    assert reason("conv2d", dtype="fp32", latency_s=0.510e-6) == IMPOSSIBLE


def test_a_mixture_of_experts_is_held_against_its_flop_only() -> None:
    # 8 experts of 7168 x 3 x 2048 weights are 705 MB, 210 us of DRAM, but routing may read fewer.
    # 2 x 8 x 7168 x 3 x 2048 = 704.6 MFLOP / 1070.5 TFLOP/s = 658 ns; 2 % less is 645 ns
    assert reason("moe", latency_s=0.650e-6) is None
    assert reason("moe", latency_s=0.640e-6) == IMPOSSIBLE


def test_several_kernels_have_no_least_time() -> None:
    assert reason("layer", latency_s=1e-12) is None


# ---- duplicates ----------------------------------------------------------------------------------------------------


def test_the_same_measurement_twice_is_a_duplicate_the_second_time() -> None:
    row = {"latency_s": 2.3456789e-3, "spread_s": 1e-6, "num_repeats": 5}
    assert reasons("gemm", row, row, row) == [None, DUPLICATE, DUPLICATE]


@pytest.mark.parametrize(
    "other",
    [{"latency_s": 2.3456788e-3}, {"spread_s": 2e-6}, {"num_repeats": 6}, {"engine_version": "2"}, {"cache": "warm"}, {"bias": True}],
)
def test_a_row_that_differs_in_anything_is_no_duplicate(other: dict[str, Any]) -> None:
    row = {"latency_s": 2.3456789e-3, "spread_s": 1e-6, "num_repeats": 5, "engine_version": "1"}
    assert reasons("gemm", row, row | other) == [None, None]


def test_a_timer_that_counts_whole_microseconds_repeats_itself_honestly() -> None:
    coarse = {"latency_s": 2345e-6, "spread_s": None}
    fine = {"latency_s": 2345.6e-6, "spread_s": None}
    same_spread = {"latency_s": 2346e-6, "spread_s": 1e-6}
    assert reasons("gemm", coarse, coarse) == [None, None]
    assert reasons("gemm", fine, fine) == [None, DUPLICATE]
    assert reasons("gemm", same_spread, same_spread) == [None, DUPLICATE]


# ---- outliers ------------------------------------------------------------------------------------------------------


def versions(*milliseconds: float) -> list[dict[str, Any]]:
    return [
        {"engine": "sglang", "engine_version": f"0.{number}", "kernel": "k", "latency_s": time / 1e3}
        for number, time in enumerate(milliseconds)
    ]


def test_one_of_three_versions_far_from_their_median_is_an_outlier() -> None:
    # The median of 10, 11 and 28 is 11: 28 / 11 = 2.55 > 2.5. Of 10, 11 and 27 it is 2.45.
    assert reasons("gemm", *versions(10, 11, 28)) == [None, None, OUTLIER]
    assert reasons("gemm", *versions(10, 11, 27)) == [None, None, None]
    # The median of 10, 11 and 3.9 is 10: 10 / 3.9 = 2.56. Of 10, 11 and 4.1 it is 2.44.
    assert reasons("gemm", *versions(10, 11, 3.9)) == [None, None, OUTLIER]
    assert reasons("gemm", *versions(10, 11, 4.1)) == [None, None, None]


def test_two_versions_cannot_tell_which_of_them_is_wrong() -> None:
    assert reasons("gemm", *versions(10, 100)) == [None, None]


def test_a_version_that_is_set_aside_already_has_no_vote() -> None:
    slow, slower, impossible = versions(10, 100, 0.001)
    assert reasons("gemm", slow, slower, impossible) == [None, None, IMPOSSIBLE]


def test_versions_of_another_kernel_or_gpu_have_no_vote() -> None:
    one, two, three = versions(10, 11, 100)
    assert reasons("gemm", one, two, three | {"kernel": "other"}) == [None, None, None]
    assert reasons("gemm", one, two, three | {"gpu": "a100-sxm-80gb"}) == [None, None, None]


def test_whole_modules_are_no_outliers_because_their_parts_change() -> None:
    assert reasons("layer", *versions(10, 11, 100)) == [None, None, None]


# ---- all together --------------------------------------------------------------------------------------------------


def test_a_row_keeps_the_first_reason_and_the_sources_own_words_above_all() -> None:
    assert reasons(
        "gemm",
        {"m": 0, "latency_s": 0.0},
        {"m": 0, "latency_s": 0.0, "set_aside": "known bad: an eager loop"},
        {"latency_s": 1e-6, "set_aside": "known bad: an eager loop"},
    ) == [ZERO_SHAPE, "known bad: an eager loop", "known bad: an eager loop"]


def test_rows_keep_their_order_and_their_number_and_usable_drops_the_rest() -> None:
    good, bad = {**FROM, "latency_s": 10.5e-3}, {**FROM, "latency_s": 0.0}
    common = {"gpu": "h100-sxm", "dtype": "bf16", "timer": "profiler", "cache": "cold", **GEMM}
    frame = conform(
        pl.DataFrame([{**common, **row, "origin_row": 9 - n, "m": n + 1} for n, row in enumerate([bad, good, bad, good])]), "gemm"
    )
    judged = quality.judge(frame, "gemm")
    assert judged["origin_row"].to_list() == [9, 8, 7, 6]
    assert quality.usable(judged)["origin_row"].to_list() == [8, 6]
    assert quality.summary(judged).rows() == [("toy", "gemm", NO_TIME, 2)]


def test_what_throttled_in_one_sweep_is_not_steady() -> None:
    common = {"gpu": "t4", "dtype": "fp32", "timer": "event", "cache": "warm", "latency_s": 1e-3, **FROM, **GEMM}
    clocks = [None, "throttled", "ramping"]
    frame = conform(pl.DataFrame([{**common, "origin_row": row, "clock": clock} for row, clock in enumerate(clocks)]), "gemm")
    assert frame.select(quality.is_steady())["clock"].to_list() == [True, False, True]
