"""The accuracy harness: scores worked by hand, its files, its command line, and one peer's published score."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy import comparison, publish, registry
from benchmarks.accuracy.baselines import NearestShape, PaddedRoofline, Regression, Roofline, nearest
from benchmarks.accuracy.ours import Learned
from benchmarks.accuracy.result import Result, Suite, by_slice, headline, worst
from benchmarks.accuracy.scoring import capped, scored
from benchmarks.speed import __main__ as speed
from tilecast import hardware
from tilecast.datasets import store
from tilecast.datasets.schema import conform
from tilecast.errors import MissingData
from tilecast.kernels.attention import AttentionDecode
from tilecast.learning.correction import load
from tilecast.predictors import predict_kernel

RUN = publish.Run(
    version="0", catalogue="c0ffee", artifacts="decade", date="2026-01-02", command="python -m benchmarks.accuracy toy", quick=False
)


def toy(quick: bool = False) -> Result:
    # Errors of ours: x +10 %, x -20 %, y +60 %; the peer answers the first row only, exactly.
    gpu, measured, shape = ["x", "x", "y"], [10.0, 10.0, 5.0], ["a", "b", "c"]
    frames = [
        pl.DataFrame(
            {"predictor": name, "kind": kind, "gpu": gpu, "shape": shape, "measured": measured, "predicted": predicted}, strict=False
        )
        for name, kind, predicted in (("ours", "ours", [11.0, 8.0, 8.0]), ("peer", "peer", [10.0, None, None]))
    ]
    return Result("toy", "How far off is a toy?", pl.concat(frames), slices=("gpu",), target="nothing", notes=["a note"])


def gemm_rows(*rows: tuple[str, int, int, int, float]) -> pl.DataFrame:
    gpu, m, n, k, latency_s = zip(*rows, strict=True)
    frame = pl.DataFrame({"gpu": gpu, "m": m, "n": n, "k": k, "latency_s": latency_s, "origin_row": range(len(rows))})
    return conform(
        frame, "gemm", dtype="bf16", timer="graph", cache="warm", source="toy", licence="none", origin="toy", batch=1, bias=False,
        engine="sglang", identity="cublas",
    )  # fmt: skip


def one_score(frame: pl.DataFrame, **where: str) -> dict[str, float]:
    found = frame.filter(*(pl.col(name) == value for name, value in where.items())).to_dicts()
    assert len(found) == 1
    return found[0]


# ---- scores ------------------------------------------------------------------------------------------------------


def test_a_slice_has_mean_median_and_signed_bias() -> None:
    x = one_score(by_slice(toy()), predictor="ours", gpu="x")
    assert x["mape"] == pytest.approx((10 + 20) / 2)
    assert x["median"] == pytest.approx(15)
    assert x["bias"] == pytest.approx((10 - 20) / 2)


def test_the_headline_is_the_mean_over_slices_not_over_rows() -> None:
    # x has a mean of 15 over two rows, y 60 over one: the slices' mean is 37.5, the rows' would be 30.
    ours = one_score(headline(toy()), predictor="ours")
    assert ours["mape"] == pytest.approx((15 + 60) / 2)
    assert ours["bias"] == pytest.approx((-5 + 60) / 2)
    assert (ours["slices"], ours["rows"], ours["failed"]) == (2, 3, 0)


def test_the_worst_case_comes_first_with_what_describes_it() -> None:
    assert worst(toy(), "ours", 2)["shape"].to_list() == ["c", "b"]


def test_a_peer_that_answers_some_rows_is_compared_on_exactly_those() -> None:
    assert comparison.partial(headline(toy())) == ["peer"]
    assert one_score(comparison.on_rows_of(toy(), "peer"), predictor="ours")["mape"] == pytest.approx(10)


def test_a_predictor_that_answers_little_is_not_called_the_best_while_others_answer_more() -> None:
    assert comparison.best(headline(toy())) == "ours"
    assert comparison.best(headline(toy()), "peer") == "peer"
    assert comparison.best(headline(toy()), "baseline") is None


# ---- files -------------------------------------------------------------------------------------------------------


def test_the_files_are_complete_and_the_same_every_time(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        publish.write(toy(), RUN, tmp_path / folder)
        (tmp_path / folder / "speed.json").write_text("{}")  # another benchmark's file is none of our business
        publish.write_summary(tmp_path / folder)
    names = ["README.md", "speed.json", "toy.json", "toy.md"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    written = json.loads((tmp_path / "one" / "toy.json").read_text())
    assert (written["catalogue"], written["artifacts"]) == ("c0ffee", "decade")
    assert written["quick"] is False and written["notes"] == ["a note"]
    assert [row["mape"] for row in written["headline"]] == [37.5, 0.0]
    assert written["worst"]["predictor"] == "ours" and written["worst"]["cases"][0]["shape"] == "c"
    page = (tmp_path / "one" / "toy.md").read_text()
    assert (
        page.startswith("# toy\n\nHow far off is a toy?")
        and "- a note" in page
        and "**To beat:** nothing" in page
        and "artifacts decade, 2026-01-02" in page
    )
    assert "peer 0.00 (1 of 3 rows)" in (tmp_path / "one" / "README.md").read_text()


def test_a_result_without_any_answer_still_makes_a_page(tmp_path: Path) -> None:
    silent = replace(toy(), predictions=toy().predictions.with_columns(pl.lit(None, pl.Float64).alias("predicted")))
    publish.write(silent, RUN, tmp_path)
    assert json.loads((tmp_path / "toy.json").read_text())["worst"] == {"predictor": None, "cases": []}


# ---- command -----------------------------------------------------------------------------------------------------


def test_an_unknown_suite_is_one_sentence_with_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["fp8-gem"]) == 2
    assert capsys.readouterr().err == "error: unknown suite 'fp8-gem': did you mean fp8-gemm?\n"


def test_a_file_of_suites_is_found_when_it_defines_one(tmp_path: Path) -> None:
    (tmp_path / "my_suite.py").write_text("SUITE = None\n")
    (tmp_path / "shared.py").write_text("from elsewhere import SUITE\n")
    assert registry.names(tmp_path) == ["my-suite"]


def test_suites_without_data_are_skipped_and_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(quick: bool) -> Result:
        raise MissingData("no rows here")

    bare = Suite("bare", "needs what is not here", missing)
    assert command.run_all([bare], tmp_path, quick=True) == 3
    assert "bare: skipped: no rows here" in capsys.readouterr().err
    assert command.run_all([bare, Suite("toy", "a toy", toy)], tmp_path, quick=True) == 0
    assert "| ours " in capsys.readouterr().out
    assert (tmp_path / "toy.json").is_file() and not (tmp_path / "bare.json").exists()


def test_a_quick_run_does_not_write_over_the_full_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(command, "run_all", lambda suites, folder, quick: asked.append(folder) or 0)
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    assert command.main(["fp8-gemm", "--quick"]) == 0 and command.main(["fp8-gemm"]) == 0
    assert asked == [tmp_path, command.RESULTS]


# ---- baselines ---------------------------------------------------------------------------------------------------


def test_a_roofline_is_the_larger_of_compute_and_memory_time() -> None:
    gpu = hardware.gpu("h100-sxm")
    rows = gemm_rows(("h100-sxm", 8192, 8192, 8192, 1.0), ("h100-sxm", 1, 8192, 8192, 1.0))
    compute_s = 2 * 8192**3 / gpu.tensor_flop_per_s["bf16"]  # 1.1e12 FLOP: 1.1 ms
    memory_s = 2 * (8192 + 8192**2 + 8192) / gpu.dram_bytes_per_s  # 134 MB: 40 us
    np.testing.assert_allclose(Roofline().predict(rows, "gemm"), [compute_s, memory_s])
    np.testing.assert_allclose(PaddedRoofline().predict(rows, "gemm"), [compute_s / 0.8 + 3e-6, memory_s / 0.8 + 3e-6])


def test_an_all_reduce_crosses_the_link_almost_twice() -> None:
    frame = pl.DataFrame({"gpu": ["h100-sxm"], "latency_s": [1.0], "bytes": [1 << 30], "num_gpus": [4], "origin_row": [0]})
    rows = conform(frame, "all_reduce", dtype="bf16", timer="profiler", source="toy", licence="none", origin="toy")
    link = hardware.gpu("h100-sxm").link_bytes_per_s
    assert link is not None
    np.testing.assert_allclose(Roofline().predict(rows, "all_reduce"), [(1 << 30) * 2 * 3 / 4 / link])


def test_the_nearest_shape_is_scaled_by_the_ratio_of_rooflines() -> None:
    # 4096^3 is one octave from 8192 x 4096 x 4096, the small shape many. Both are bound by compute: twice the work is twice the time.
    train = gemm_rows(("h100-sxm", 4096, 4096, 4096, 3e-4), ("h100-sxm", 64, 64, 64, 5e-6))
    asked = gemm_rows(("h100-sxm", 8192, 4096, 4096, 1.0))
    np.testing.assert_allclose(NearestShape().fit(train, "gemm").predict(asked, "gemm"), [6e-4])


def test_an_unmeasured_gpu_is_looked_up_on_the_gpu_with_the_nearest_roofline() -> None:
    # H200 has H100's rate and more bandwidth; A100 is far in both. The shape is bound by compute: H100's time carries over.
    train = gemm_rows(("a100-sxm-80gb", 8192, 8192, 8192, 9.0), ("h100-sxm", 8192, 8192, 8192, 2e-3))
    asked = gemm_rows(("h200-sxm", 8192, 8192, 8192, 1.0))
    np.testing.assert_allclose(NearestShape().fit(train, "gemm").predict(asked, "gemm"), [2e-3], rtol=1e-2)


def test_nothing_measured_is_no_answer() -> None:
    train = gemm_rows(("h100-sxm", 64, 64, 64, 5e-6)).with_columns(pl.lit("fp8").cast(pl.Categorical).alias("dtype"))
    asked = gemm_rows(("h100-sxm", 64, 64, 64, 5e-6))
    for predictor in (NearestShape(), Regression()):
        assert np.isnan(predictor.fit(train, "gemm").predict(asked, "gemm")).all()


def test_the_first_of_two_equally_near_points_is_taken() -> None:
    np.testing.assert_array_equal(nearest(np.array([[2.0], [9.0]]), np.array([[1.0], [3.0], [8.0]])), [0, 2])


def test_a_regression_finds_a_power_law() -> None:
    shapes = [(2**a, 2**b, 2**c) for a in range(6, 13) for b in range(6, 13) for c in range(6, 13)]
    law = [("h100-sxm", m, n, k, 1e-13 * m * n * k) for m, n, k in shapes]
    predicted = Regression().fit(gemm_rows(*law), "gemm").predict(gemm_rows(*law), "gemm")
    np.testing.assert_allclose(predicted, [row[-1] for row in law], rtol=0.05)


def test_a_suite_scores_what_the_package_predicts() -> None:
    """Single query heads under vLLM on A100 among them, slower than two of a KV head: another kernel, as rows show, where the law ends."""
    heads = [4, 8, 16, 32]
    frame = pl.DataFrame({"num_heads": heads, "latency_s": 1e-4, "origin_row": range(len(heads))})
    rows = conform(
        frame, "attention_decode", gpu="a100-sxm-80gb", dtype="bf16", identity="fa2", timer="graph", cache="warm", source="toy",
        licence="none", origin="toy", engine="vllm", batch=4, q_len=1, kv_len=4096, num_kv_heads=4, head_dim=128, kv_dtype="bf16",
    )  # fmt: skip
    scorer = Learned()
    scorer.correction = load("attention_decode")
    kernel = AttentionDecode(batch=4, kv_len=4096, num_heads=heads, num_kv_heads=4, head_dim=128, identity="fa2")
    expected = predict_kernel(kernel, "a100-sxm-80gb", timer="graph", cache="warm", engine="vllm")
    assert expected.median_s[0] > 2 * expected.median_s[1]
    assert scorer.predict(rows, "attention_decode") == pytest.approx(expected.median_s)
    low_s, high_s = scorer.interval(rows, "attention_decode")
    assert low_s == pytest.approx(expected.low_s)
    assert high_s == pytest.approx(expected.high_s)


def test_predictors_never_see_the_answer() -> None:
    class Peeking(Roofline):
        def predict(self, rows: pl.DataFrame, family: str) -> np.ndarray:
            return rows["latency_s"].to_numpy()

    rows = gemm_rows(("h100-sxm", 64, 64, 64, 5e-6))
    assert scored([Peeking()], rows, rows, "gemm", ["gpu"])["predicted"].to_list() == [None]


def test_a_capped_frame_keeps_order_and_is_the_same_every_time() -> None:
    frame = pl.DataFrame({"gpu": ["x"] * 50 + ["y"] * 3, "row": range(53)})
    once = capped(frame, ["gpu"], 5)
    assert once.equals(capped(frame, ["gpu"], 5)) and once["row"].is_sorted()
    assert once["gpu"].to_list() == ["x"] * 5 + ["y"] * 3


# ---- with data ---------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_pipeweaves_published_score_comes_out_and_the_roofline_is_worse(tmp_path: Path) -> None:
    try:
        store.source("pipeweave").locate()
    except MissingData as reason:
        pytest.skip(str(reason))
    assert command.main(["fp8-gemm", "--quick", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "fp8-gemm.json").read_text())
    score = {row["predictor"]: row["mape"] for row in written["headline"]}
    peer = {row["gpu"]: row["mape"] for row in written["by_slice"] if row["predictor"] == "PipeWeave"}
    assert score["PipeWeave"] == pytest.approx(3.24, abs=0.05)
    assert peer == pytest.approx({"h20": 1.81, "h800-sxm": 3.92, "h100-sxm": 4.01}, abs=0.05)
    assert score["roofline"] > score["PipeWeave"]


# ---- speed -------------------------------------------------------------------------------------------------------


def test_the_cold_command_stands_beside_numpy_and_the_peer(monkeypatch):
    asked = []
    monkeypatch.setattr(speed, "process_seconds", lambda *line, **_: asked.append(line) or 1.0)
    monkeypatch.setenv("AICONFIGURATOR_PYTHON", "peer/bin/python")
    assert [(found.reference, found.limit) for found in speed.cold_command()] == [
        ('python -c "import numpy"', 12.0), ("aiconfigurator cli estimate of the same", None),
    ]  # fmt: skip
    ours, _, peer = asked
    assert peer[0] == str(Path("peer/bin/aiconfigurator"))
    for name, theirs in (("tp", "tp-size"), ("batch", "batch-size"), ("isl", "isl"), ("osl", "osl")):  # the same question
        assert ours[ours.index(f"--{name}") + 1] == peer[peer.index(f"--{theirs}") + 1]


def test_many_configurations_are_timed_each():
    found = speed.many_configurations(16)
    assert (found.reference_seconds, found.limit) == (1 / 200, 1.0)
    assert found.note.startswith("16 of them")
