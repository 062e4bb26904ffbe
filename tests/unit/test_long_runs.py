"""Boards that do not keep up their power limit: who says so, and what is priced at it."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit import sustained
from tilecast import hardware
from tilecast.engines.predict import predict
from tilecast.engines.step import predict_step
from tilecast.errors import SpecError
from tilecast.kernels.gemm import Gemm
from tilecast.predictors import predict_kernel

HOT = "rtx-6000-ada"
LONG = Path(os.environ.get("TILECAST_DATA", "absent")) / "pipeweave" / "moe.parquet"
ASKED = {"batch": 8, "isl": 2048, "osl": 64}


def test_in_long_runs_a_board_has_the_power_it_keeps_up() -> None:
    hot = hardware.gpu(HOT)
    held = hardware.in_long_runs(hot)
    assert held.tdp_w == hot.sustained_w < hot.tdp_w
    assert hardware.as_catalogued(held) is hot
    assert hardware.in_long_runs(held) is held
    cool = hardware.gpu("h100-sxm")
    assert hardware.in_long_runs(cool) is cool


def test_a_power_limit_that_is_given_is_kept_up() -> None:
    for limit_w in (250, 300, 350):  # its own among them
        assert hardware.in_long_runs(hardware.gpu(HOT, {"tdp_w": limit_w})).tdp_w == limit_w
    assert hardware.in_long_runs(hardware.gpu(HOT, {"sustained_w": 300})).tdp_w == 300
    with pytest.raises(SpecError, match=r"sustained_w = 400 is above tdp_w = 300"):
        hardware.gpu(HOT, {"sustained_w": 400})


def test_a_hot_board_computes_slower_for_long_reads_as_fast_and_says_so() -> None:
    hot, cool = predict("Qwen/Qwen3-8B", HOT, **ASKED), predict("Qwen/Qwen3-8B", HOT, **ASKED, overrides={"sustained_w": 300})
    assert 1.1 < hot.prefill_s.median / cool.prefill_s.median < 300 / 245
    assert hot.decode_step_s.median == pytest.approx(cool.decode_step_s.median, rel=0.01)
    assert [text for text in hot.warnings if "245 W" in text]
    assert not [text for text in cool.warnings if " W " in text]
    asked = {"mode": "training", "batch": 8, "seq": 512}
    hot_step, cool_step = (predict_step("BERT-Large", HOT, **asked, overrides=overrides) for overrides in (None, {"sustained_w": 300}))
    assert hot_step.step_s.median > 1.05 * cool_step.step_s.median
    assert [text for text in hot_step.notes if "245 W" in text]


def test_one_launch_is_over_before_the_board_is_hot() -> None:
    product = Gemm(m=8192, n=8192, k=8192)
    assert predict_kernel(product, HOT).median_s == predict_kernel(product, HOT, overrides={"sustained_w": 300}).median_s


def test_a_board_that_was_shared_for_a_while_is_not_taken_for_a_hot_one() -> None:
    rng = np.random.default_rng(0)
    short = rng.normal(0.0, 0.02, 400)
    hot, shared = rng.normal(0.3, 0.02, 400), np.where(rng.random(400) < 0.6, 0.7, 0.0) + rng.normal(0.0, 0.02, 400)
    assert sustained.shares(short, hot) == pytest.approx(np.exp(-0.3), rel=0.02)
    assert sustained.sustained_w(HOT, sustained.shares(short, hot)) == 220  # 300 W x 0.74, to 5 W
    assert sustained.sustained_w(HOT, sustained.shares(short, shared)) is None


@pytest.mark.skipif(not LONG.is_file(), reason="$TILECAST_DATA/pipeweave is absent")
def test_gpu_files_say_what_their_long_launches_show() -> None:
    found = sustained.kept(sustained.launches())
    assert HOT in found
    for gpu, (_, share) in found.items():
        assert hardware.gpu(gpu).sustained_w == sustained.sustained_w(gpu, share), gpu
