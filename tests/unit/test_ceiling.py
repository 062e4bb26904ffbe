"""Ceilings: calibrated, monotone, never below the bound; and a gap whose parts add up."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from tilecast import hardware, predict_kernel
from tilecast.diagnosis.ceiling import MEANINGS, ceiling_of, gap
from tilecast.errors import InvalidInput, MissingData
from tilecast.execution import Protocol
from tilecast.kernels.base import priced
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.moe import Moe
from tilecast.kernels.softmax import Softmax
from tilecast.learning.ceiling_training import Levels, Residuals, levels_of, unseen_scores
from tilecast.learning.ceilings import QUANTILES, Ceiling, path_of, read, write
from tilecast.learning.features import COMMON, GROUPS, Launches
from tilecast.learning.trees import empty

GEMM = ("kernel", "gemm", "--gpu", "h100-sxm", "--m", "4096", "--n", "4096", "--k", "4096")
LAUNCHES = {
    "gemm": Gemm(m=np.array([1, 64, 500, 4096]), n=4096, k=7168),
    "moe": Moe(num_tokens=np.array([1, 64, 500, 4096]), hidden_size=2048, inter_size=768, num_experts=128, topk=8),
}


@pytest.mark.parametrize("gpu", ["h100-sxm", "l4", "rtx-pro-6000-server", "t4"])
@pytest.mark.parametrize("family", LAUNCHES)
def test_ceilings_rise_with_the_quantile_and_never_beat_the_bound(gpu, family):
    kernel = LAUNCHES[family] if gpu != "t4" else type(LAUNCHES[family])(**{**_fields(LAUNCHES[family]), "dtype": "fp16"})
    prediction = predict_kernel(kernel, gpu)
    times = np.array([ceiling_of(prediction, quantile).ceiling_s for quantile in (0.05, 0.5, 0.8, 0.9, 0.95, 0.99)])
    assert (np.diff(times, axis=0) <= 1e-18).all(), "a higher quantile of efficiency is a shorter time"
    assert (times >= prediction.bound_s).all()


def _fields(kernel):
    return {entry.name: getattr(kernel, entry.name) for entry in fields(kernel)}


def test_scores_of_a_ceiling_fall_with_the_quantile():
    for ceiling in read(path_of()).values():
        for basis, score in ceiling.score.items():
            assert len(score) == len(QUANTILES) and (np.diff(score) <= 1e-6).all(), (ceiling.family, basis)


def test_a_gpu_nobody_measured_is_said_to_be_unseen():
    first_pass = replace(LAUNCHES["moe"], moe_pass="w13")
    assert ceiling_of(predict_kernel(first_pass, "h800-sxm")).basis == "interpolated"
    assert ceiling_of(predict_kernel(first_pass, "l4")).basis == "unseen-gpu"
    assert ceiling_of(predict_kernel(LAUNCHES["moe"], "h800-sxm")).basis == "unseen-gpu", "both passes were measured on other GPUs alone"


@pytest.mark.parametrize("measured", [None, 400e-6])
def test_the_parts_of_a_gap_add_up(measured):
    for family, kernel in LAUNCHES.items():
        prediction = predict_kernel(kernel, "h100-sxm")
        for row in range(4):
            parts = gap(prediction, measured, row)
            last = measured if measured is not None else float(prediction.median_s[row])
            assert float(prediction.bound_s[row]) + sum(part.seconds for part in parts) == pytest.approx(last), family
            physics = [part for part in parts if part.name not in ("beyond physics", "this kernel")]
            assert all(part.seconds >= 0 for part in physics)
            assert all(part.meaning == MEANINGS[part.name] for part in parts)


def test_a_tail_shows_as_a_tail_and_padding_as_padding():
    def part(kernel, name):
        return next(one.seconds for one in gap(predict_kernel(kernel, "h100-sxm", learned=False)) if one.name == name)

    # 12 x 11 tiles are one on each of 132 SMs; 7 x 19 are one too many; 1 more row and column are 25 tiles more, mostly empty.
    full, one_more = (Gemm(m=128 * m, n=128 * n, k=8192, tile=(128, 128)) for m, n in ((12, 11), (7, 19)))
    padded = Gemm(m=128 * 12 + 1, n=128 * 11 + 1, k=8192, tile=(128, 128))
    assert part(padded, "padding") > part(full, "padding")
    assert part(one_more, "wave tail") > part(full, "wave tail")


def test_a_family_without_measurements_has_no_ceiling():
    with pytest.raises(MissingData, match="no ceiling of softmax is known"):
        ceiling_of(predict_kernel(Softmax(rows=128, cols=1024), "h100-sxm"))


def test_a_quantile_is_the_level_and_so_many_spreads_below_it():
    score = {"interpolated": np.linspace(2.0, -2.0, len(QUANTILES)), "unseen-gpu": np.linspace(4.0, -4.0, len(QUANTILES))}
    made = Ceiling(
        "gemm",
        ("h20 - -", "*"),
        {"dtype": ["bf16"]},
        np.array([[0.1] * len(GROUPS), [0.3] * len(GROUPS)]),
        empty(),
        empty(),
        score,
        between=0.03,
    )
    asked = Launches(np.zeros((2, len(COMMON)), np.float32), {}, np.zeros(2, np.int64))
    # P50 is the middle of the scores, 0: the level alone. P99 is two spreads (of the smallest kind, 0.01) below it.
    assert made.log_ratio(asked, "h20", 0.5) == pytest.approx([0.1, 0.1])
    assert made.log_ratio(asked, "h20", 0.99) == pytest.approx([0.08, 0.08])
    # Nobody measured the H100: its level is not known to 0.03 either.
    assert made.log_ratio(asked, "h100-sxm", 0.99) == pytest.approx([0.3 - 4 * np.hypot(0.01, 0.03)] * 2)


def rows_of_die(level, num_rows=200):
    """Residuals of one GPU: rows within 0.01 of its level, which the ceiling thought to be 0."""
    return Residuals(level + np.linspace(-0.01, 0.01, num_rows), np.full(num_rows, 0.01), np.full(num_rows, f"gpu {level}"))


def shares_below(dies, levels, num_seen, asked):
    """Of a die at level `asked`, the share of rows at or below P50, P80, P90 and P95 of efficiency."""
    score = unseen_scores(dies, levels, num_seen=num_seen)
    held = rows_of_die(asked)
    ceiling = np.interp((0.5, 0.8, 0.9, 0.95), QUANTILES, score) * np.hypot(0.01, levels.between)
    return [float((held.away >= time).mean()) for time in ceiling]


def test_levels_of_dies_are_the_median_of_how_far_off_they_were():
    # Offsets 0.05, 0.1, 0.1: the median of their sizes is 0.1, which half of normal numbers with a deviation of 0.148 stay within.
    dies = [rows_of_die(level) for level in (-0.05, 0.1, -0.1)]
    assert levels_of(dies).between == pytest.approx(0.1 / 0.6745, rel=0.02)
    assert levels_of(dies).num_dies == 3


def test_with_few_dies_the_next_one_may_lie_on_the_other_side():
    slow = [rows_of_die(level) for level in (0.08, 0.1, 0.12)]
    # All three were slower than thought; one that is faster by as much beats P80, as the first three would say, but not P95.
    shares = shares_below(slow, levels_of(slow), 3, -0.1)
    assert shares[0] == 0.0 and shares[3] == 1.0
    many = slow * 40
    assert shares_below(many, levels_of(many), 120, -0.1)[3] == 0.0, "of 120 dies none was ever faster than thought"


def test_rows_of_one_die_take_the_levels_of_others():
    twins = [rows_of_die(0.0), rows_of_die(0.002)]
    narrow, wide = (shares_below(twins, Levels(between=between, num_dies=14), 0, -0.14) for between in (0.01, 0.12))
    assert narrow[3] == 0.0, "what twins say of each other is nothing about a third GPU"
    assert wide[0] == 0.0 and wide[3] > 0.9


def test_one_die_says_less_than_many():
    # Levels around a common mean, each 1 from it: the next lies sqrt(1 + 1/14) from the mean of fourteen, sqrt(2) from a single one.
    fifteen = Levels(between=0.1, num_dies=15)
    assert fifteen.said_by(14).between == pytest.approx(0.1)
    assert fifteen.said_by(1).between == pytest.approx(0.1 * np.sqrt(2 / (15 / 14)))


@pytest.mark.parametrize("gpu", ["h100-sxm", "l40s", "t4"])
def test_the_ceiling_of_experts_is_of_tiles_that_suit_them_whatever_was_configured(gpu):
    asked = Moe(num_tokens=4096, hidden_size=2048, inter_size=768, num_experts=128, topk=8, dtype="fp16")
    narrow = replace(asked, block_m=16, block_n=32, identity="triton")
    one, other = (predict_kernel(kernel, gpu, learned=False) for kernel in (asked, narrow))
    assert other.median_s[0] > one.median_s[0], "the tile costs time"
    assert ceiling_of(one).ceiling_s == pytest.approx(ceiling_of(other).ceiling_s), "which is nothing about how fast such work can be"
    spec = hardware.gpu(gpu)
    assert priced(asked.well_made(spec), spec, one.protocol).analytic_s <= priced(asked, spec, one.protocol).analytic_s


def test_tiles_without_room_in_shared_memory_are_no_candidates():
    asked = Moe(num_tokens=4096, hidden_size=2048, inter_size=768, num_experts=128, topk=8, dtype="fp16")

    def names(gpu):
        spec = hardware.gpu(gpu)
        return asked.well_made(spec).tasks(spec, Protocol()).variants

    # (128 + 256) x 64 numbers of 2 bytes, twice: 98,304 bytes. A block of the T4 has 65,536, one of the H100 232,448.
    assert "128x256" in names("h100-sxm") and "128x256" not in names("t4")
    assert "128x128" in names("t4"), "65,536 bytes"


def test_an_impossible_quantile_is_refused():
    with pytest.raises(InvalidInput, match="quantile"):
        ceiling_of(predict_kernel(LAUNCHES["gemm"], "h100-sxm"), 1.5)


def test_damaged_ceilings_are_one_sentence(tmp_path):
    file = tmp_path / "ceiling.safetensors"
    file.write_bytes(b"nonsense")
    with pytest.raises(MissingData, match="damaged"):
        read(file)
    with pytest.raises(MissingData, match="no ceilings"):
        read(tmp_path / "absent.safetensors")


def test_the_shipped_ceilings_are_what_their_writer_writes(tmp_path):
    shipped = read(path_of())
    again = read(write(shipped, tmp_path))
    kernel, gpu = LAUNCHES["gemm"], hardware.gpu("a40")
    for quantile in (0.5, 0.9):
        one, other = (ceiling_of(predict_kernel(kernel, gpu), quantile, using=table["gemm"]).ceiling_s for table in (shipped, again))
        np.testing.assert_allclose(one, other, rtol=0.02)


# ---- the command -----------------------------------------------------------------------------------------------------------------------


def test_the_command_places_a_measurement(tilecast):
    found = json.loads(tilecast(*GEMM, "--ceiling", "--measured", "293us", "--json").out)
    assert found["measured_s"] == pytest.approx(293e-6)
    assert found["bound_s"] <= found["ceiling_s"] < found["measured_s"]
    assert found["recoverable_s"] == pytest.approx(found["measured_s"] - found["ceiling_s"])
    assert found["bound_s"] + sum(found["gap"].values()) == pytest.approx(found["measured_s"])
    said = tilecast(*GEMM, "--ceiling", "--measured", "293us").out
    assert all(word in said for word in ("measured", "predicted", "ceiling", "bound", "wave tail", "launch"))


def test_without_ceiling_the_json_is_what_it_was(tilecast):
    assert "ceiling_s" not in json.loads(tilecast(*GEMM, "--json").out)


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (("--ceiling", "--measured", "fast"), 2, "measured_s = 'fast'"),
        (("--ceiling", "--measured", "0us"), 2, "--measured '0us'"),
        (("--ceiling", "--measured", "5"), 2, "--measured 5 has no unit; give e.g. 5us"),
        (("--ceiling", "--measured", "0.5"), 2, "--measured 0.5 has no unit; give e.g. 0.5us"),
        (("--ceiling", "--measured", "5e-4"), 2, "--measured 5e-4 has no unit; give e.g. 5e-4s"),
        (("--ceiling", "--measured", "1us"), 2, "--measured 1 us is less than the bound, "),
        (("--measured", "293us"), 2, "goes with --ceiling"),
    ],
)
def test_bad_measurements_are_one_sentence(tilecast, more, code, sentence):
    result = tilecast(*GEMM, *more)
    assert result.code == code and sentence in result.err and result.err.count("\n") == 1
