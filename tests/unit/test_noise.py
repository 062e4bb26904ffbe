"""The noise floor of campaigns worked by hand."""

from typing import Any

import polars as pl
import pytest

from tilecast.datasets.noise import noise_floor, repeat_pairs
from tilecast.datasets.schema import conform

FROM = {"dtype": "bf16", "timer": "graph", "cache": "warm", "source": "toy", "licence": "CC0", "origin": "toy.csv", "origin_row": 0}


def campaign(version: str, *microseconds: float, **columns: Any) -> list[dict[str, Any]]:
    """One GEMM for each time, m = 1, 2, 3 ..."""
    common = {**FROM, "gpu": "h100-sxm", "engine": "sglang", "engine_version": version, "n": 8, "k": 8, "batch": 1, **columns}
    return [{**common, "m": number + 1, "latency_s": time * 1e-6} for number, time in enumerate(microseconds)]


def frame(*campaigns: list[dict[str, Any]]) -> pl.DataFrame:
    return conform(pl.DataFrame([row for rows in campaigns for row in rows], infer_schema_length=None), "gemm")


# 90 shapes: the same three times, 30 times over. Ratios 1.01, 0.99, 1.02: differences 1, 1 and 2 %.
OLD = campaign("0.1", *[100, 200, 300] * 30)
NEW = campaign("0.2", *[101, 198, 306] * 30)


def test_two_campaigns_are_paired_shape_by_shape() -> None:
    (pair,) = repeat_pairs(frame(NEW, OLD), "gemm").to_dicts()
    assert (pair["engine_version"], pair["next_version"], pair["shapes"]) == ("0.1", "0.2", 90)
    assert pair["median_ratio"] == pytest.approx(1.01)
    assert pair["median_difference"] == pytest.approx(0.01)
    assert pair["mean_difference"] == pytest.approx(0.04 / 3)
    assert pair["p90_difference"] == pytest.approx(0.02)
    assert pair["is_repeat"]


def test_a_shape_that_only_one_campaign_has_is_no_pair() -> None:
    (pair,) = repeat_pairs(frame(OLD, campaign("0.2", 101)), "gemm").to_dicts()
    assert pair["shapes"] == 1


def test_repeats_inside_a_campaign_count_as_their_median() -> None:
    # 99, 100 and 180 us are one 100 us; 101 us is 1 % above it
    (pair,) = repeat_pairs(frame(*(campaign("0.1", time) for time in (99, 180, 100)), campaign("0.2", 101)), "gemm").to_dicts()
    assert pair["median_ratio"] == pytest.approx(1.01)


def test_campaigns_are_paired_in_the_order_of_their_versions() -> None:
    pairs = repeat_pairs(frame(campaign("0.5.14", 102), campaign("0.5.9", 100), campaign("0.5.10", 101)), "gemm")
    assert sorted(zip(pairs["engine_version"], pairs["next_version"], strict=True)) == [("0.5.10", "0.5.14"), ("0.5.9", "0.5.10")]


def test_one_campaign_has_no_noise() -> None:
    assert repeat_pairs(frame(OLD), "gemm").height == 0
    assert noise_floor(frame(OLD), "gemm").height == 0


@pytest.mark.parametrize("column", ["gpu", "engine", "identity", "dtype", "timer", "cache"])
def test_another_gpu_kernel_or_protocol_is_no_repeat(column: str) -> None:
    other = {"gpu": "a100-sxm-80gb", "engine": "vllm", "identity": "triton", "dtype": "fp16", "timer": "event", "cache": "cold"}[column]
    assert repeat_pairs(frame(OLD, campaign("0.2", *[101, 198, 306] * 30, **{column: other})), "gemm").height == 0


def test_a_changed_path_is_no_noise() -> None:
    # Half the time in the new version: the software changed. Differences of 1 and 2 % elsewhere stay.
    faster = [*campaign("0.1", *[100, 200] * 30, engine="vllm"), *campaign("0.2", *[50, 100] * 30, engine="vllm")]
    pairs = repeat_pairs(frame(OLD, NEW, faster), "gemm")
    assert {row["engine"]: row["is_repeat"] for row in pairs.to_dicts()} == {"sglang": True, "vllm": False}
    assert noise_floor(frame(OLD, NEW, faster), "gemm")["engine"].to_list() == ["sglang"]


def test_two_paths_that_cancel_out_are_no_noise() -> None:
    # 15 shapes lose a fifth, 15 gain one and one stays: the median ratio is 1, and the median difference 20 %.
    crossing = [*campaign("0.1", *[100] * 31), *campaign("0.2", *[80] * 15, 100, *[120] * 15)]
    (pair,) = repeat_pairs(frame(crossing), "gemm").to_dicts()
    assert (pair["median_ratio"], pair["median_difference"]) == (pytest.approx(1), pytest.approx(0.2))
    assert not pair["is_repeat"]


@pytest.mark.parametrize(("num_shapes", "is_repeat"), [(29, False), (30, True)])
def test_a_handful_of_shapes_is_no_campaign(num_shapes: int, is_repeat: bool) -> None:
    (pair,) = repeat_pairs(frame(campaign("0.1", *[100] * num_shapes), campaign("0.2", *[101] * num_shapes)), "gemm").to_dicts()
    assert pair["is_repeat"] == is_repeat


def test_the_floor_weighs_pairs_by_their_shapes() -> None:
    # bf16: 90 shapes, mean 4/3 %, median 1 %; fp16: 30 shapes, 1.5 %.
    # (90 x 4/3 + 30 x 1.5) / 120 = 1.375 %; (90 x 1 + 30 x 1.5) / 120 = 1.125 %
    half = [*campaign("0.1", *[200] * 30, dtype="fp16"), *campaign("0.2", *[203] * 30, dtype="fp16")]
    (floor,) = noise_floor(frame(OLD, NEW, half), "gemm").to_dicts()
    assert (floor["gpu"], floor["engine"], floor["shapes"]) == ("h100-sxm", "sglang", 120)
    assert floor["mean_difference"] == pytest.approx(0.01375)
    assert floor["median_difference"] == pytest.approx(0.01125)
