"""Comparing GPUs, group sizes and batches: who wins, how sure that is, what does not fit, and what is refused."""

import io
import json
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from tilecast.cli import predict_compare
from tilecast.cli.ranges import numbers
from tilecast.engines.interval import Interval
from tilecast.engines.many import METRICS
from tilecast.engines.predict import predict
from tilecast.errors import InvalidInput, UnknownName
from tilecast.explore.comparison import Comparison, compare

ASKED = {"batches": [1, 8, 64], "isl": 512, "osl": 32}


@pytest.fixture(scope="module")
def found():
    return compare("Qwen/Qwen3-32B", ["h100-sxm", "a100-sxm-80gb", "l4"], tps=[1, 2, 3], **ASKED)


def made(*entries, by="total_s"):
    """A comparison of (gpu, tp, batch, median, low, high) for `total_s`, by changing real outcomes."""
    base = compare("Qwen/Qwen3-8B", ["h100-sxm"], batches=[1], isl=16, osl=1).outcomes[0]
    outcomes = [
        replace(base, gpu=gpu, tp=tp, batch=batch, prefill_s=Interval(median, low, high)) for gpu, tp, batch, median, low, high in entries
    ]
    return Comparison(model="m", metric=METRICS[by], outcomes=tuple(outcomes))


# ---- the answer --------------------------------------------------------------------------------------------------


def test_every_configuration_is_what_predict_says(found):
    for outcome in found.outcomes[::4]:
        alone = predict("Qwen/Qwen3-32B", outcome.gpu, tp=outcome.tp, batch=outcome.batch, isl=512, osl=32)
        assert outcome.total_s.median == pytest.approx(alone.total_s.median)
        assert outcome.output_tokens_per_s_per_gpu.median == pytest.approx(alone.output_tokens_per_s.median / outcome.tp)


def test_the_winner_is_the_best_that_fits(found):
    rates = [(outcome.output_tokens_per_s_per_gpu.median, outcome.fits) for outcome in found.outcomes]
    fitting = [rate for rate, fits in rates if fits]
    assert fitting == sorted(fitting, reverse=True)
    assert found.winner.output_tokens_per_s_per_gpu.median == max(fitting)
    assert [fits for _, fits in rates] == sorted((fits for _, fits in rates), reverse=True)  # what does not fit comes last


def test_the_runner_up_is_another_gpu_or_group(found):
    assert (found.runner_up.gpu, found.runner_up.tp) != (found.winner.gpu, found.winner.tp)


def test_what_cannot_run_is_listed_with_its_reason(found):
    assert {(refusal.gpu, refusal.tp) for refusal in found.refusals} == {("h100-sxm", 3), ("a100-sxm-80gb", 3), ("l4", 3)}
    assert "does not divide" in found.refusals[0].reason


def test_what_does_not_fit_is_listed_and_cannot_win(found):
    assert any(outcome.gpu == "l4" and not outcome.fits for outcome in found.outcomes)
    assert found.winner.fits and found.runner_up.fits


def test_other_figures_make_another_winner():
    by_rate = compare("Qwen/Qwen3-8B", ["h100-sxm", "l4"], by="output_tokens_per_s", **ASKED)
    by_time = compare("Qwen/Qwen3-8B", ["h100-sxm", "l4"], by="ttft_s", **ASKED)
    assert (by_rate.winner.batch, by_time.winner.batch) == (64, 1)
    slower = compare("Qwen/Qwen3-8B", ["h100-sxm", "l4"], by="ttft_s", overrides={"num_sms": 20}, **ASKED)
    assert slower.winner.ttft_s.median > by_time.winner.ttft_s.median


def test_apart_is_said_when_intervals_are_apart():
    found = made(("h100-sxm", 1, 1, 1.0, 0.9, 1.1), ("l4", 1, 1, 2.0, 1.8, 2.3))
    assert found.intervals_overlap is False
    assert found.sentence == (
        "h100-sxm tp 1 batch 1 wins with 1 s, 2.00 times as fast as l4 tp 1 batch 1; "
        "the 80 % intervals (900 ms to 1.1 s and 1.8 s to 2.3 s) do not overlap."
    )


def test_overlap_of_two_gpus_leaves_the_order_open():
    found = made(("h100-sxm", 1, 1, 1.0, 0.9, 1.2), ("l4", 1, 1, 1.1, 1.0, 1.3))
    assert found.intervals_overlap is True
    assert "overlap (900 ms to 1.2 s and 1 s to 1.3 s), so it may be the other way round." in found.sentence


@pytest.mark.parametrize(("high", "words"), [(1.3, "surer than that"), (1.15, "may be the other way round")])
def test_errors_on_one_gpu_go_together_and_the_sentence_says_so(high, words):
    found = made(("h100-sxm", 1, 1, 1.0, 0.9, 1.2), ("h100-sxm", 2, 1, 1.1, 1.0, high))
    assert found.holds_at_both_ends is (high > 1.2)
    assert "errors on one GPU go together" in found.sentence and words in found.sentence


def test_ranking_ten_thousand_takes_no_time():
    # What is asked of the ranking must not grow with the square of its length: ten thousand once took minutes.
    started = time.process_time()
    found = made(*(("h100-sxm", 1, batch, 1.0 + batch, batch, 2.0 + batch) for batch in range(1, 10_001)))
    predict_compare.comparison_report(found, {"isl": 16, "osl": 1}, "", "")
    assert time.process_time() - started < 10.0


def test_nothing_fits_is_an_answer():
    found = compare("meta-llama/Llama-3.1-70B", ["l4"], **ASKED)
    assert found.winner is None and found.ratio is None
    assert found.sentence.startswith("None of them fits: the nearest is l4 tp 1 batch 1, which needs ")


def test_all_refused_is_an_error():
    with pytest.raises(InvalidInput, match="tp = 3 does not divide"):
        compare("Qwen/Qwen3-32B", ["h100-sxm"], tps=[3], **ASKED)
    with pytest.raises(UnknownName, match="h1oo"):
        compare("Qwen/Qwen3-32B", ["h100-sxm", "h1oo"], **ASKED)


def test_sizes_may_be_arrays():
    asked = {"isl": 256, "osl": 16}
    given = compare("Qwen/Qwen3-8B", ["h100-sxm"], tps=np.array([1, 2]), batches=np.array([1, 2], dtype=np.int32), **asked)
    assert json.dumps(given.to_dict()) == json.dumps(compare("Qwen/Qwen3-8B", ["h100-sxm"], tps=[1, 2], batches=[1, 2], **asked).to_dict())


def test_requests_of_different_lengths_are_compared_too():
    found = compare("Qwen/Qwen3-8B", ["h100-sxm", "a40"], requests=[(100, 8), (900, 4)])
    alone = predict("Qwen/Qwen3-8B", "h100-sxm", requests=[(100, 8), (900, 4)])
    assert found.winner.output_tokens_per_s.median == pytest.approx(alone.output_tokens_per_s.median)
    assert (found.winner.isl, found.winner.batch) == (None, 2)


# ---- the command -------------------------------------------------------------------------------------------------

LINE = ("predict", "Qwen/Qwen3-8B", "--isl", "512", "--osl", "32")


def test_one_table_and_the_winner_at_the_end(tilecast, monkeypatch):
    monkeypatch.setattr(predict_compare, "PATIENCE_S", 600.0)  # no progress, however slow the machine is today
    shown = tilecast(*LINE, "--gpu", "h100-sxm,l4", "--tp", "1,2", "--batch", "1:16:x4")
    lines = shown.out.splitlines()
    assert shown.code == 0 and shown.err == ""
    assert lines[0].startswith("12 configurations of Qwen/Qwen3-8B, 512 input and 32 output tokens")
    assert "█" in shown.out
    paragraphs = shown.out.strip().split("\n\n")
    assert " wins with " in paragraphs[-2] and paragraphs[-1].startswith("tilecast 0.")


def test_the_json_has_every_figure_that_is_shown(tilecast):
    arguments = (*LINE, "--gpu", "h100-sxm,l4", "--tp", "1,2", "--batch", "1,16", "--by", "tpot_s")
    answer, text = tilecast(*arguments, "--json").json, tilecast(*arguments).out
    assert (answer["schema"], answer["by"], len(answer["configurations"])) == ("tilecast.comparison/1", "tpot_s", 8)
    assert set(answer) >= {"winner", "runner_up", "ratio", "intervals_overlap", "sentence", "inputs", "versions", "refused"}
    assert answer["sentence"] in " ".join(text.split())
    for entry in answer["configurations"]:
        assert set(METRICS) <= set(entry)
        assert str(Interval(**entry["tpot_s"])) in text


def test_csv_has_one_line_per_configuration(tilecast):
    assert len(tilecast(*LINE, "--gpu", "h100-sxm,l4", "--batch", "1,16", "--csv").out.splitlines()) == 5


def test_as_python_is_the_same_comparison(tilecast):
    text = tilecast(*LINE, "--gpu", "h100-sxm,l4", "--batch", "1,16", "--as-python").out
    same = eval(text.splitlines()[1], {"compare": compare})
    assert same.sentence == tilecast(*LINE, "--gpu", "h100-sxm,l4", "--batch", "1,16", "--json").json["sentence"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "h100-sxm", "--batch", "8", "--by", "foo"), "--by 'foo' must be one of output_tokens_per_s_per_gpu, "),
        (("--gpu", "h100-sxm,h1oo", "--batch", "8"), "unknown GPU 'h1oo'"),
        (("--gpu", "h100-sxm,", "--batch", "8"), "--gpu h100-sxm, must be ids with commas"),
        (("--gpu", "h100-sxm", "--batch", "8:2"), "--batch 8:2 must read like"),
        (("--gpu", "h100-sxm", "--batch", "1:8:x1"), "--batch 1:8:x1 must read like"),
        (("--gpu", "h100-sxm", "--batch", "8,x"), "--batch 8,x must read like"),
        (("--gpu", "h100-sxm", "--batch", "eight"), "--batch eight must read like"),
        (("--gpu", "h100-sxm", "--tp", "1,two", "--batch", "8"), "--tp 1,two must read like"),
        (("--gpu", "h100-sxm", "--batch", "0,8"), "--batch 0,8: 0 must be at least 1"),
        (("--gpu", "h100-sxm", "--tp", "1,0", "--batch", "8"), "--tp 1,0: 0 must be at least 1"),
        (("--gpu", "h100-sxm", "--batch", "8", "--osl", "1", "--by", "tpot_s"), "--by tpot_s: one output token needs no decode step"),
        (("--gpu", "h100-sxm,l4", "--batch", "8", "--why"), "--why explains one configuration"),
        (("--gpu", "h100-sxm,l4", "--batch", "8", "--breakdown", "--trace", "x.json"), "--breakdown, --trace explains one"),
        (("--gpu", "h100-sxm,l4", "--batch", "8", "--html", "no/such/folder/x.html"), "there is no folder no/such/folder"),
    ],
)
def test_wrong_input_is_one_sentence(tilecast, arguments, message):
    shown = tilecast(*LINE, *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err and len(shown.err.splitlines()) == 1


def test_numbers_are_lists_and_ranges():
    assert numbers("--batch", "1:256:x2") == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert numbers("--batch", "8:24:8,3,8") == [8, 16, 24, 3]
    assert numbers("--batch", "1:4") == [1, 2, 4]
    assert numbers("--tp", "2") == [2]
    assert numbers("--batch", "1:100000:1")[-1] == 100_000


@pytest.mark.parametrize("text", ["1:8:xinf", "1:8:xnan", "1:8:x1", "1:8:0", "8:1:1", "0:8", "1:2:3:4", "1:", f"1:{10**400}:x2", "1e3", ""])
def test_a_range_that_reads_otherwise_is_refused_in_one_sentence_wherever_it_is_given(tilecast, text):
    with pytest.raises(InvalidInput, match="must read like 8, 1,2,4 or FROM:TO:STEP"):
        numbers("--batch", text)
    sizes = ["--gpu", "h100-sxm", "--n", "64", "--k", "64"]
    swept = tilecast("kernel", "gemm", *sizes, "--sweep", f"m={text}")
    assert (swept.code, swept.out) == (2, "")
    assert "must read NAME=FROM:TO:STEP" in swept.err and len(swept.err.splitlines()) == 1


def test_a_range_of_too_many_numbers_is_refused_and_not_cut_short():
    with pytest.raises(InvalidInput, match="1:1000000:1 has more than 100,000 numbers; take a larger step, or x2"):
        numbers("--batch", "1:1000000:1")
    with pytest.raises(InvalidInput, match="more than 100,000 numbers"):
        numbers("--batch", "1:60000:1,60001:120000:1")


def test_progress_comes_after_a_second_and_goes_to_stderr(monkeypatch):
    clock, err = iter([0.0, 0.5, 2.0, 3.0, 8.0]), io.StringIO()
    monkeypatch.setattr(predict_compare.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", err)
    with predict_compare.reported(100) as progress:
        for done in (10, 40, 50, 90):
            progress(done, 100)
    assert err.getvalue().splitlines() == [
        "tilecast: 40 of 100 configurations, 20 a second",
        "tilecast: 90 of 100 configurations, 11 a second",
    ]


def test_the_page_shows_the_comparison(tilecast, tmp_path):
    path = tmp_path / "c.html"
    arguments = (*LINE, "--gpu", "h100-sxm,l4", "--batch", "1:16:x4")
    shown = tilecast(*arguments, "--html", str(path), "--json")
    page = path.read_text(encoding="utf-8")
    assert json.loads(page.split("id='tilecast'>")[1].split("</script>")[0]) == shown.json
    assert shown.json["sentence"] in page and "<svg" in page
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.html"]
