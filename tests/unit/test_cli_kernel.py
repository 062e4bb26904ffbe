"""`tilecast kernel` and `tilecast kernels`, as their users type them."""

import csv
import json

import pytest

from tilecast import predict_kernel
from tilecast.cli.main import run
from tilecast.errors import InvalidInput, UnknownName
from tilecast.kernels.base import flag
from tilecast.kernels.gemm import Gemm

GEMM = ["kernel", "gemm", "--gpu", "h100-sxm", "--m", "512", "--n", "4096", "--k", "4096"]


def test_a_kernel_answers_in_one_sentence_first(capsys):
    assert run(GEMM) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("gemm m=512 n=4096 k=4096 takes ")
    assert "on h100-sxm, bound by" in first


def test_json_has_exactly_the_contracts_fields_and_they_agree(capsys):
    assert run([*GEMM, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    times = "median_s low_s high_s bound_s analytic_s".split()
    assert {"schema", *times, *"bound_by efficiency basis demand waves tile identity protocol inputs versions".split()} <= set(answer)
    assert answer["schema"] == "tilecast.kernel/1"
    assert answer["bound_s"] <= answer["low_s"] <= answer["median_s"] <= answer["high_s"]
    assert answer["efficiency"] == pytest.approx(answer["bound_s"] / answer["median_s"])
    assert answer["protocol"] == {"timer": "profiler", "cache": "cold"}
    assert set(answer["demand"]) <= {"tensor", "vector", "special", "shared", "l2", "dram"}


def test_explain_shows_the_stages_and_the_result_it_explains(capsys):
    assert run([*GEMM, "--explain"]) == 0
    shown = capsys.readouterr().out
    for stage in ("tasks", "clock", "busy: tensor", "dram", "launch", "analytic"):
        assert stage in shown


def test_why_ranks_the_levers_and_memory_helps_a_memory_bound_kernel(capsys):
    assert run(["kernel", "gemm", "--gpu", "h100-sxm", "--m", "1", "--n", "28672", "--k", "8192", "--why"]) == 0
    lines = capsys.readouterr().out.splitlines()
    dram = next(line for line in lines if line.startswith("DRAM bandwidth"))
    clock = next(line for line in lines if line.startswith("power limit"))
    assert float(dram.split("%")[0].split()[-1]) > float(clock.split("%")[0].split()[-1])


def test_a_sweep_shows_the_wave_saw_tooth(capsys):
    fixed = ["--tile", "128x128", "--split", "1", "--sweep", "m=128:4096:128", "--json"]
    assert run(["kernel", "gemm", "--gpu", "h100-sxm", "--m", "1", "--n", "1408", "--k", "4096", *fixed]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    times = [point["analytic_s"] for point in points]
    # 11 tiles across: 12 rows of tiles fill 132 SMs exactly, the 13th starts a second wave
    assert times[11] == pytest.approx(times[10], rel=0.2)
    assert times[12] > 1.4 * times[11]


def test_what_if_hardware_changes_the_answer(capsys):
    run([*GEMM, "--json"])
    before = json.loads(capsys.readouterr().out)["median_s"]
    run([*GEMM, "--set", "dram_bytes_per_s=1e12", "--json"])
    after = json.loads(capsys.readouterr().out)
    assert after["median_s"] > before
    assert after["inputs"]["set"] == ["dram_bytes_per_s=1e12"]


def test_as_python_is_the_equivalent_call(capsys):
    run([*GEMM, "--as-python"])
    code = capsys.readouterr().out
    run([*GEMM, "--json"])
    answer = json.loads(capsys.readouterr().out)
    *imports, call = code.strip().splitlines()
    scope: dict = {}
    exec("\n".join([*imports, f"result = {call}"]), scope)
    assert scope["result"].median_s[0] == pytest.approx(answer["median_s"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--m", "0"], "m = 0 must be a whole number of at least 1"),
        (["--m", "-5"], "m = -5 must be a whole number"),
        (["--m", "1.5"], "--m '1.5' must be a whole number"),
        (["--dtype", "fp9"], "unknown dtype 'fp9'"),
        (["--tile", "9999x9999"], "needs"),
        (["--tile", "big"], "must read ROWSxCOLUMNS"),
        (["--timer", "stopwatch"], "timer = 'stopwatch' must be one of"),
        (["--cache", "hot"], "cache = 'hot' must be one of"),
        (["--sweep", "m=8:1:x2"], "--sweep 'm=8:1:x2' must read"),
        (["--sweep", "z=1:8:x2"], "has no parameter 'z'"),
        (["--gpu", "h100-sxn"], "did you mean"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, arguments, complaint):
    assert run([*GEMM, *arguments]) == 2
    out, err = capsys.readouterr()
    assert complaint in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_missing_parameter_is_named(capsys):
    assert run(["kernel", "gemm", "--gpu", "h100-sxm", "--m", "512"]) == 2
    assert "--n" in capsys.readouterr().err


def test_an_unknown_family_gets_the_nearest(capsys):
    assert run(["kernel", "gem", "--gpu", "h100-sxm"]) == 2
    assert "did you mean gemm" in capsys.readouterr().err


def test_a_dtype_the_gpu_lacks_is_refused_with_what_it_has(capsys):
    assert run(["kernel", "gemm", "--gpu", "a100-sxm-80gb", "--m", "8", "--n", "512", "--k", "512", "--dtype", "nvfp4"]) == 2
    assert "has no nvfp4" in capsys.readouterr().err


class TestBulk:
    header = "family,gpu,dtype,identity,timer,cache,m,n,k,rows,cols,residual"

    def file(self, folder, *lines, name="in.csv"):
        path = folder / name
        path.write_text("\n".join([self.header, *lines]) + "\n")
        return path

    def answers(self, path):
        with path.open() as file:
            return list(csv.DictReader(file))

    def test_rows_keep_their_order_and_equal_single_answers(self, tmp_path, capsys):
        source = self.file(
            tmp_path,
            "gemm,h100-sxm,bf16,,,,512,4096,4096,,,",
            "rms_norm,a100-sxm-80gb,bf16,,,,,,,1024,4096,true",
            "gemm,l40s,fp8,,graph,rotated,16,4096,4096,,,",
            "gemm,h100-sxm,bf16,,,,1024,4096,4096,,,",
        )
        target = tmp_path / "out.csv"
        assert run(["kernels", str(source), "--out", str(target)]) == 0
        rows = self.answers(target)
        assert [row["family"] for row in rows] == ["gemm", "rms_norm", "gemm", "gemm"]
        assert [row["m"] for row in rows] == ["512", "", "16", "1024"]
        capsys.readouterr()
        run([*GEMM, "--json"])
        assert float(rows[0]["median_s"]) == pytest.approx(json.loads(capsys.readouterr().out)["median_s"])
        for row in rows:
            assert float(row["bound_s"]) <= float(row["low_s"]) <= float(row["median_s"]) <= float(row["high_s"])
        assert {row["basis"] for row in rows} <= {"analytic", "interpolated"}

    def test_one_bad_row_is_named_and_nothing_is_written(self, tmp_path, capsys):
        source = self.file(tmp_path, "gemm,h100-sxm,bf16,,,,512,4096,4096,,,", "gemm,h100-sxm,bf16,,,,0,4096,4096,,,")
        target = tmp_path / "out.csv"
        assert run(["kernels", str(source), "--out", str(target)]) == 2
        assert "row 2: m = 0" in capsys.readouterr().err
        assert not target.exists()
        assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]

    def test_keep_going_leaves_the_bad_row_empty(self, tmp_path, capsys):
        source = self.file(tmp_path, "gemm,h100-sxm,bf16,,,,512,4096,4096,,,", "gemm,h100-sxm,bf16,,,,0,4096,4096,,,")
        target = tmp_path / "out.csv"
        assert run(["kernels", str(source), "--out", str(target), "--keep-going"]) == 0
        rows = self.answers(target)
        assert float(rows[0]["median_s"]) > 0
        assert rows[1]["median_s"] == ""

    def test_parquet_in_and_out(self, tmp_path):
        pl = pytest.importorskip("polars")
        source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
        frame = pl.DataFrame(
            {"family": ["gemm", "gemm"], "gpu": ["h100-sxm"] * 2, "dtype": ["bf16"] * 2, "m": [8, 16], "n": [4096] * 2, "k": [4096] * 2}
        )
        frame.write_parquet(source)
        assert run(["kernels", str(source), "--out", str(target)]) == 0
        assert pl.read_parquet(target)["median_s"].is_between(1e-6, 1e-4).all()

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ("gemm,nope-9000,bf16,,,,512,4096,4096,,,", "row 1: unknown GPU 'nope-9000'"),
            ("gem,h100-sxm,bf16,,,,512,4096,4096,,,", "row 1: unknown family 'gem'"),
            ("gemm,h100-sxm,bf16,,,,512,4096,,,,", "row 1: gemm lacks 'k'"),
            ("gemm,h100-sxm,bf16,,,,12.5,4096,4096,,,", "row 1: m = 12.5"),
            (",h100-sxm,bf16,,,,512,4096,4096,,,", "row 1: family is empty"),
            ("gemm,h100-sxm,bf16,,,,512,4096", "row 1 has 8 cells, the header 12"),
        ],
    )
    def test_what_is_wrong_with_a_row_is_said(self, tmp_path, capsys, line, complaint):
        assert run(["kernels", str(self.file(tmp_path, line)), "--out", str(tmp_path / "out.csv")]) == 2
        assert complaint in capsys.readouterr().err

    def test_a_missing_file_is_exit_code_3(self, tmp_path, capsys):
        assert run(["kernels", str(tmp_path / "none.csv"), "--out", str(tmp_path / "out.csv")]) == 3
        assert "no file" in capsys.readouterr().err


def test_a_flag_is_true_or_false_and_nothing_else() -> None:
    assert flag([True, False], "residual").tolist() == [[True], [False]] and flag(1, "residual").tolist() == [[True]]
    for given in ("no", "true", 2, [0, 3], None):
        with pytest.raises(InvalidInput, match="must be true or false"):
            flag(given, "residual")


def test_an_unknown_kernel_of_gemm_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"cutlas.*cutlass"):
        predict_kernel(Gemm(m=1, n=64, k=64, identity="cutlas"), "h100-sxm")


def test_json_has_what_why_and_explain_say(capsys):
    assert run([*GEMM, "--why", "--explain", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    levers = {lever["fact"]: lever for lever in answer["why"]}
    assert levers["dram_bytes_per_s"]["saved_fraction"] >= 0.0 and len(answer["explain"]) > 5


@pytest.mark.parametrize(
    ("sweep", "words"), [("m=1:100000000:1", "more than 100,000 points"), ("m=1:100:x1", "must read NAME=FROM:TO:STEP")]
)
def test_a_sweep_is_never_cut_short_in_silence(sweep: str, words: str, capsys) -> None:
    assert run([*GEMM, "--sweep", sweep]) == 2
    assert words in capsys.readouterr().err


def test_why_says_what_another_tile_and_a_larger_batch_would_give(capsys) -> None:
    assert run(["kernel", "gemm", "--gpu", "h100-sxm", "--m", "1", "--n", "4096", "--k", "4096", "--why", "--json"]) == 0
    choices = {one["choice"]: one for one in json.loads(capsys.readouterr().out)["why_choices"]}
    assert choices["m"]["value"] == "2" and choices["m"]["saved_fraction"] > 0.3  # the weights are read once for both rows
    assert "x" in choices["tile"]["value"]


def test_occupancy_says_how_many_tasks_an_sm_holds(capsys) -> None:
    assert run(["kernel", "attention_prefill", "--gpu", "l40s", "--q-len", "2048", "--num-heads", "8", "--identity", "fa2"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("occupancy"))
    assert row.split()[1] == "1"  # paged, on a part with little shared memory
