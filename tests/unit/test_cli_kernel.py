"""`tilecast kernel` and `tilecast kernels`, as their users type them."""

import csv
import json
from dataclasses import fields
from typing import Any

import pytest

from tilecast import predict_kernel
from tilecast.cli.kernels import _groups, check_columns
from tilecast.cli.main import run
from tilecast.cli.parameters import HELP
from tilecast.errors import InvalidInput, UnknownName
from tilecast.kernels.base import NAMELESS, flag
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.registry import kernels

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


def test_an_option_may_be_spelled_as_the_parameter_it_is(capsys):
    answers = []
    for spelled in (str, lambda option: option.replace("-", "_").replace("__", "--")):
        sizes = {"--batch": "4", "--kv-len": "512", "--num-heads": "32", "--num-kv-heads": "8"}
        asked = [word for name, value in sizes.items() for word in (spelled(name), value)]
        assert run(["kernel", "attention_decode", "--gpu", "a40", *asked, f"{spelled('--head-dim')}=64", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]


def test_explain_tells_what_the_law_of_doubling_leaves_of_what_was_learned(capsys):
    """TensorRT-LLM's call takes 14 us for 64 columns on L40S, and 5 us for twice the rows and columns."""
    assert run(["kernel", "gemm", "--gpu", "l40s", "--m", "4", "--n", "64", "--k", "3072", "--engine", "trtllm", "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "as learned" in printed and "no longer than a launch of twice the size" in printed
    assert run([*GEMM, "--explain"]) == 0
    assert "as learned" not in capsys.readouterr().out


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
    assert not any(word in "\n".join(lines) for word in ("link bandwidth", "network bandwidth"))  # it sends nothing
    assert float(dram.split("%")[0].split()[-1]) > float(clock.split("%")[0].split()[-1])


def test_a_size_that_is_swept_is_not_used_and_that_is_said(capsys):
    asked = ["kernel", "gemm", "--gpu", "h100-sxm", "--n", "64", "--k", "64", "--sweep", "m=1:8", "--csv"]
    assert run(asked) == 0
    alone = capsys.readouterr()
    assert run([*asked, "--m", "4096"]) == 0
    both = capsys.readouterr()
    assert (alone.err, both.err) == ("", "tilecast: --m 4096 is not used: --sweep m=1:8 says m\n") and alone.out == both.out


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
        (["--sweep", "z=1:8:x2"], "gemm has no parameter 'z'; its sizes are m, n, k, batch"),
        (["--sweep", "dtype=1:8:x2"], "dtype is no size of gemm; its sizes are m, n, k, batch"),
        (["--sweep", "m=1:8:x2", "--why"], "--why is of one launch: leave --sweep"),
        (["--plot", "x.png"], "--plot x.png draws a sweep: give --sweep too"),
        (["--sweep", "m=1:8:x2", "--plot", "x.gif"], "--plot 'x.gif' must end in .png"),
        (["--sweep", "m=1:8:x2", "--plot", "no/folder/x.png"], "there is no folder no/folder"),
        (["--m", "[1,2]"], "--m '[1,2]' must be a whole number; for several give --sweep m=FROM:TO:STEP"),
        (["--bias", "yes"], "--bias 'yes' must be true or false"),
        (["--split", "0"], "split = 0 must be a whole number of at least 1"),
        (["--engine", "foo"], "unknown engine 'foo': known: framework, nccl, oneccl, pytorch, sglang, trtllm, vllm"),
        (["--engine", "vlm"], "unknown engine 'vlm': did you mean vllm?"),
        (["--why", "--as-python"], "--as-python has no call for --why: leave one or the other out"),
        (["--json", "--csv"], "--json, --csv and --as-python exclude one another"),
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


# ---- collectives ---------------------------------------------------------------------------------------------------


def why_of(capsys, size: str, num_gpus: str = "8") -> tuple[dict, dict]:
    assert run(["kernel", "all_reduce", "--gpu", "h100-sxm", "--bytes", size, "--num-gpus", num_gpus, "--why", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    return answer, {lever["fact"]: lever for lever in answer["why"]}


def test_a_long_message_is_bound_by_the_link_and_a_short_one_by_latency(capsys) -> None:
    long, levers = why_of(capsys, "256e6")
    assert long["bound_by"] == "link"
    # The switch takes up to 473 GB/s, more than 0.694 x 1.1 x 450: of 1 - 1 / 1.1 all but what is not on the link, the ramp for one.
    assert levers["link_bytes_per_s"]["saved_fraction"] == pytest.approx(0.085, abs=2e-3)
    assert levers["latency_factor"]["saved_fraction"] < 0.01
    # 16 MB on 8 GPUs, with the constants of collectives.toml: (1 + 1/8) x 16 MB at 0.694 x 450 GB/s is 58 us on the link; two starts of
    # 10.2 us and nine hops of 1.16 us are 31 us
    middle, _ = why_of(capsys, "16000000")
    assert middle["bound_by"] == "link"
    short, levers = why_of(capsys, "1024")
    assert short["bound_by"] == "launch"
    assert levers["latency_factor"]["saved_fraction"] == pytest.approx(1 - 1 / 1.1, abs=1e-3)
    assert levers["link_bytes_per_s"]["saved_fraction"] < 1e-3
    assert levers["latency_factor"]["needed_factor"] == pytest.approx(1.2, rel=0.01)


def test_the_network_is_a_lever_beyond_one_node_alone(capsys) -> None:
    assert "network_bytes_per_s" not in why_of(capsys, "1e9")[1]
    assert "network_bytes_per_s" in why_of(capsys, "1e9", "16")[1]


def test_what_binds_a_collective_is_said_in_words(capsys) -> None:
    assert run(["kernel", "all_reduce", "--gpu", "h100-sxm", "--bytes", "1024", "--num-gpus", "8", "--why"]) == 0
    out = capsys.readouterr().out
    assert "bound by its start and hops, not by bytes" in out and "link bandwidth" in out and "latency, shorter" in out


def test_links_take_units(capsys) -> None:
    asked = ["kernel", "all_reduce", "--gpu", "h100-sxm", "--bytes", "1e9", "--num-gpus", "8", "--json"]
    run(asked)
    usual = json.loads(capsys.readouterr().out)["median_s"]
    assert run([*asked, "--link-bytes-per-s", "225GB/s"]) == 0
    assert json.loads(capsys.readouterr().out)["median_s"] > 1.7 * usual
    assert run([*asked, "--link-bytes-per-s", "225GHz"]) == 2
    assert "unknown unit 'GHz'" in capsys.readouterr().err


# ---- lengths of requests -------------------------------------------------------------------------------------------

DECODE = ["kernel", "attention_decode", "--gpu", "h100-sxm", "--num-heads", "32", "--num-kv-heads", "8"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "kv_len is missing"),
        (["--kv-lens", "[1,2,x]"], "--kv-lens '[1,2,x]' must be whole numbers of at least 1, such as [128,4096] or 128,4096"),
        (["--kv-lens", "[1,2"], "--kv-lens '[1,2' must be whole numbers"),
        (["--kv-lens", "[]"], "--kv-lens '[]' must be whole numbers"),
        (["--kv-lens", "0,3"], "--kv-lens '0,3' must be whole numbers of at least 1"),
        (["--kv-lens", "5,6", "--batch", "3"], "--kv-lens names 2 requests, --batch 3: leave --batch out"),
        (["--kv-lens", "5,6", "--kv-len", "7"], "--kv-len and --kv-lens say the same"),
        (["--q-lens", "1,1"], "kv_lens is missing"),
        (["--q-lens", "1", "--kv-lens", "5,6"], "q_lens names 1 requests, kv_lens 2"),
    ],
)
def test_lengths_are_asked_for_and_checked(capsys, arguments, complaint) -> None:
    assert run([*DECODE, *arguments]) == 2
    out, err = capsys.readouterr()
    assert complaint in err and err.count("\n") == 1 and out == ""


def test_a_list_may_go_without_brackets(capsys) -> None:
    answers = []
    for text in ("100,5000", "[100, 5000]"):
        assert run([*DECODE, "--kv-lens", text, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["median_s"])
    assert answers[0] == answers[1]


def test_help_says_what_parameters_mean(capsys) -> None:
    assert run([*DECODE[:2], "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "None" not in text and "as a list such as [128,4096] or 128,4096" in text and "Query heads. [required]" in text


def test_every_parameter_of_every_family_has_a_help() -> None:
    known = {entry.name for record in kernels().values() for entry in fields(record)} - {"engine"}
    assert known == set(HELP)


# ---- engine and Python ---------------------------------------------------------------------------------------------


def test_an_engine_means_the_same_on_the_line_and_in_a_file(tmp_path, capsys) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("family,gpu,engine,batch,kv_len,num_heads,num_kv_heads\nattention_decode,h100-sxm,vllm,4,4096,32,8\n")
    assert run(["kernels", str(source), "--out", str(target)]) == 0
    capsys.readouterr()
    with target.open() as file:
        in_file = float(next(csv.DictReader(file))["median_s"])
    assert run([*DECODE, "--batch", "4", "--kv-len", "4096", "--engine", "vllm", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["median_s"] == in_file and answer["inputs"]["engine"] == "vllm"
    assert run([*DECODE, "--batch", "4", "--kv-len", "4096", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["median_s"] != in_file


def made_by(code: str) -> object:
    *before, last = code.strip().splitlines()
    scope: dict = {}
    exec("\n".join([*before, f"result = {last}"]), scope)
    return scope["result"]


def test_a_sweep_needs_no_value_of_what_it_sweeps_and_as_python_sweeps_too(capsys) -> None:
    asked = ["kernel", "gemm", "--gpu", "h100-sxm", "--n", "4096", "--k", "4096", "--sweep", "m=1:64:x4"]
    assert run([*asked, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["m"] for point in points] == [1, 4, 16, 64]
    assert run([*asked, "--as-python"]) == 0
    made: Any = made_by(capsys.readouterr().out)
    assert made.median_s.tolist() == [point["median_s"] for point in points]


def test_as_python_has_the_ceiling_the_engine_and_what_was_set(capsys) -> None:
    asked = [*GEMM, "--engine", "vllm", "--set", "num_sms=120", "--ceiling", "--measured", "293us"]
    assert run([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert run([*asked, "--as-python"]) == 0
    reached, parts = made_by(capsys.readouterr().out)  # type: ignore[misc]
    assert float(reached.ceiling_s[0]) == answer["ceiling_s"]
    assert {part.name: part.seconds for part in parts} == answer["gap"]


class TestColumns:
    line = "gemm,h100-sxm,512,4096,4096"

    def asked(self, folder, header: str, line: str, *more: str) -> int:
        source = folder / "in.csv"
        source.write_text(f"{header}\n{line}\n")
        return run(["kernels", str(source), "--out", str(folder / "out.csv"), *more])

    def test_an_unknown_column_is_refused_with_what_is_allowed(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "family,gpu,m,n,k,bach", f"{self.line},4") == 2
        err = capsys.readouterr().err
        assert "unknown column 'bach': did you mean batch" in err and "identity, timer, cache, engine, m, n, k, batch, bias" in err
        assert err.count("\n") == 1
        assert not (tmp_path / "out.csv").exists()

    def test_other_columns_are_carried_over_and_named(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "id,family,gpu,m,n,k,measured_s,colour", f"a,{self.line},1e-4,red") == 0
        assert "carried over unread: id, colour\n" in capsys.readouterr().err
        with (tmp_path / "out.csv").open() as file:
            row = next(csv.DictReader(file))
        assert (row["id"], row["colour"], row["measured_s"]) == ("a", "red", "0.0001") and float(row["median_s"]) > 0

    def test_a_cell_that_its_family_does_not_have_is_said_once(self, tmp_path, capsys) -> None:
        lines = f"{self.line},,128\n{self.line},true,\n{self.line},,64\nrms_norm,h100-sxm,,,,,"
        assert self.asked(tmp_path, "family,gpu,m,n,k,bias,window", lines, "--keep-going") == 0
        assert "have no such parameter: window of gemm (2 rows)\n" in capsys.readouterr().err

    def test_what_is_wrong_in_a_csv_is_told_as_it_is_written(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "family,gpu,m,n,k,bias", f"{self.line},2") == 2
        assert "bias = 2 must be true or false" in capsys.readouterr().err
        (tmp_path / "in.csv").write_bytes(b"family,gpu\n\xff,h100-sxm\n")
        assert run(["kernels", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]) == 2
        assert "is no CSV in UTF-8" in capsys.readouterr().err

    def test_an_unknown_engine_is_refused(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "family,gpu,m,n,k,engine", f"{self.line},foo") == 2
        assert "row 1: unknown engine 'foo': known: framework" in capsys.readouterr().err

    def test_a_folder_that_is_not_there_is_said_before_the_work(self, tmp_path, capsys) -> None:
        source = tmp_path / "in.csv"
        source.write_text(f"family,gpu,m,n,k\n{self.line}\n")
        assert run(["kernels", str(source), "--out", str(tmp_path / "no" / "out.csv")]) == 2
        assert "there is no folder" in capsys.readouterr().err

    def test_what_export_writes_is_read(self) -> None:
        pytest.importorskip("polars")
        from tilecast.datasets.schema import COMMON, SHAPES

        for family in set(SHAPES) & set(kernels()) - {"conv2d"}:  # whose window is called kernel_size there
            assert not check_columns({name: [None] for name in (*COMMON, *SHAPES[family], "attributes")})

    def test_as_python_writes_the_same_file_and_the_command_writes_none(self, tmp_path, capsys) -> None:
        header = "family,gpu,m,n,k"
        assert self.asked(tmp_path, header, self.line) == 0
        wanted = (tmp_path / "out.csv").read_text()
        (tmp_path / "out.csv").unlink()
        capsys.readouterr()
        assert self.asked(tmp_path, header, self.line, "--as-python") == 0
        assert not (tmp_path / "out.csv").exists()
        exec(capsys.readouterr().out, {})
        assert (tmp_path / "out.csv").read_text() == wanted

    def test_two_outputs_are_refused_before_a_file_is_written(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "family,gpu,m,n,k", self.line, "--json", "--csv") == 2
        assert not (tmp_path / "out.csv").exists()

    def test_a_column_may_not_stand_twice(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "family,gpu,m,n,k,m", f"{self.line},4") == 2
        assert "has the column 'm' twice" in capsys.readouterr().err

    def test_a_number_for_a_name_is_said_as_it_stands(self, tmp_path, capsys) -> None:
        assert self.asked(tmp_path, "family,gpu,m,n,k,dtype", f"{self.line},8") == 2
        assert "row 1: unknown dtype 8: known: bf16" in capsys.readouterr().err

    def test_what_holds_for_a_whole_launch_may_differ_by_row(self, tmp_path, capsys) -> None:
        lines = f"{self.line},2,128x64\n{self.line},4,\n{self.line},,"
        assert self.asked(tmp_path, "family,gpu,m,n,k,split,tile", lines) == 0
        with (tmp_path / "out.csv").open() as file:
            times = [float(row["median_s"]) for row in csv.DictReader(file)]
        asked = (Gemm(m=512, n=4096, k=4096, split=2, tile=(128, 64)), Gemm(m=512, n=4096, k=4096, split=4), Gemm(m=512, n=4096, k=4096))
        assert times == pytest.approx([float(predict_kernel(kernel, "h100-sxm").median_s[0]) for kernel in asked], rel=1e-12)

    def test_links_of_collectives_may_differ_by_row(self, tmp_path) -> None:
        header, lines = (
            "family,gpu,bytes,num_gpus,link_bytes_per_s",
            "\n".join(f"all_reduce,h100-sxm,1e9,8,{rate}" for rate in ("", "225GB/s", 1e11)),
        )
        assert self.asked(tmp_path, header, lines) == 0
        with (tmp_path / "out.csv").open() as file:
            usual, half, slow = (float(row["median_s"]) for row in csv.DictReader(file))
        assert usual < half < slow


@pytest.mark.parametrize(
    "family, sizes, gpu, identity",
    [
        ("gemm", "--m 64 --n 4096 --k 4096", "h100-sxm", "cublas"),
        ("gemm", "--m 64 --n 4096 --k 4096 --dtype fp8_block", "h100-sxm", "deepgemm"),
        ("gemm", "--m 64 --n 4096 --k 4096 --batch 4", "h100-sxm", None),  # no row tells the kernel of a batched product
        ("gemm", "--m 64 --n 4096 --k 4096 --identity triton", "h100-sxm", "triton"),
        ("attention_decode", "--kv-len 4096 --num-heads 32", "h100-sxm", "fa3"),
        ("attention_decode", "--kv-len 4096 --num-heads 32", "b200-sxm", "trtllm"),
        ("attention_prefill", "--q-len 512 --num-heads 32", "l40s", "flashinfer_fa2"),
        ("moe", "--num-tokens 64 --hidden-size 2048 --inter-size 768 --num-experts 128 --topk 8", "h100-sxm", "triton"),
        ("all_reduce", "--bytes 1048576 --num-gpus 8", "h100-sxm", "nccl"),
        ("softmax", "--rows 64 --cols 4096", "h100-sxm", None),
    ],
)
def test_the_identity_of_an_answer_is_that_of_the_kernel_that_was_priced(tilecast, family, sizes, gpu, identity):
    asked = ["kernel", family, "--gpu", gpu, *sizes.split()]
    assert tilecast(*asked, "--json").json["identity"] == identity
    line = next((line for line in tilecast(*asked).out.splitlines() if line.startswith("identity")), None)
    assert (line is None) == (identity is None)
    assert line is None or line.split()[1] == identity


@pytest.mark.parametrize("family", sorted(NAMELESS))
def test_a_name_for_the_only_kernel_of_a_family_is_refused_and_not_offered(tilecast, family):
    record = kernels()[family]
    assert "identity" in {entry.name for entry in fields(record)}
    assert "--identity" not in tilecast("kernel", family, "--help").out
    sizes = {
        "rows": 8, "cols": 64, "op": {"elementwise": "add"}.get(family, "per_token"), "numel": 64, "batch": 2, "q_len": 64, "num_heads": 4,
        "num_kv_heads": 4, "head_dim": 64, "vocab_size": 64, "in_channels": 8, "out_channels": 8, "height": 8, "width": 8, "kernel": 3,
    }  # fmt: skip
    given = {name: value for name, value in sizes.items() if name in {entry.name for entry in fields(record)}}
    predict_kernel(record(**given), "h100-sxm")
    with pytest.raises(InvalidInput, match="has one kernel and no names for it"):
        predict_kernel(record(**given, identity="vector"), "h100-sxm")


def test_csv_has_true_and_false_as_kernels_reads_them_and_parts_of_parts_as_json(tilecast, tmp_path):
    (tmp_path / "requests.csv").write_text("input_tokens,output_tokens\n64,4\n16,2\n")
    asked = ["predict", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--requests", str(tmp_path / "requests.csv"), "--csv"]
    (line,) = csv.DictReader(tilecast(*asked).out.splitlines())
    assert line["fits"] == "true"
    assert json.loads(line["inputs.requests"]) == [[64, 4], [16, 2]]
    (line,) = csv.DictReader(tilecast(*GEMM, "--why", "--csv").out.splitlines())
    assert {lever["fact"] for lever in json.loads(line["why"])} >= {"num_sms", "dram_bytes_per_s"}
    assert {line["reduces_in_switch"] for line in csv.DictReader(tilecast("nodes", "--csv").out.splitlines())} == {"true", "false"}


def test_columns_that_are_only_carried_over_stay_as_they_were_written(tilecast, tmp_path):
    cells = ["007", "1.50", "1e3", "12", "0.5", " two ", "True", "true", "", "12e45678"]
    lines = ["family,gpu,rows,cols,sample", *(f"softmax,h100-sxm,64,64,{cell}" for cell in cells)]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    asked = tilecast("kernels", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv"))
    assert (asked.code, asked.err) == (0, "tilecast: carried over unread: sample\n")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["sample"] for row in csv.DictReader(file)] == cells


@pytest.mark.parametrize(
    "cells, words",
    [
        ('2,5,,"[1,2]","[3,4]"', "--q-len and --q-lens say the same"),
        ('3,,,"[1,2]","[3,4]"', "--q-lens names 2 requests, --batch 3"),
        (',,5,"[1,2]",', "give --kv-lens instead"),
    ],
)
def test_lengths_said_twice_are_refused_in_a_file_as_they_are_on_the_command_line(tilecast, tmp_path, cells, words):
    (tmp_path / "in.csv").write_text(f"family,gpu,num_heads,batch,q_len,kv_len,q_lens,kv_lens\nattention_prefill,h100-sxm,8,{cells}\n")
    refused = tilecast("kernels", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv"))
    assert refused.code == 2 and words in refused.err and refused.err.startswith("tilecast: row 1: ")
    assert not (tmp_path / "out.csv").exists()


def test_a_file_without_the_needed_columns_is_refused_in_one_sentence(tilecast, tmp_path):
    (tmp_path / "in.csv").write_text("family;gpu;m;n;k\ngemm;h100-sxm;64;64;64\n")
    refused = tilecast("kernels", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv"))
    assert (refused.code, refused.err) == (2, "tilecast: the column 'family' is missing; it has family;gpu;m;n;k\n")


def test_texts_that_are_only_carried_over_do_not_break_rows_apart():
    sizes = {"family": ["gemm"] * 3, "gpu": ["h100-sxm"] * 3, "m": [1, 2, 3], "n": [64] * 3, "k": [64] * 3}
    assert list(_groups(sizes | {"sample": ["a", "b", None], "measured_s": [1e-6, None, 2e-6]}, 3).values()) == [[0, 1, 2]]
    assert list(_groups(sizes | {"dtype": ["bf16", None, "bf16"]}, 3).values()) == [[0, 2], [1]]


def test_kernels_says_once_which_part_a_device_string_stands_for(tilecast, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("family,gpu,m,n,k\ngemm,H100,64,64,64\ngemm,H100,128,64,64\ngemm,l40s,64,64,64\ngemm,h1oo,64,64,64\n")
    shown = tilecast("kernels", str(source), "--out", str(out), "--keep-going")
    assert shown.code == 0
    assert [line for line in shown.err.splitlines() if "taken to be" in line] == [
        "tilecast: H100 taken to be h100-sxm (NVIDIA H100 SXM5 80 GB); other parts have their own ids"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "gemm --m 1 --n 512 --k 512", "attention_prefill --batch 1 --q-len 64 --num-heads 8",
        "mla_decode --batch 1 --kv-len 64 --num-heads 16",
        "moe --num-tokens 4 --hidden-size 1024 --inter-size 512 --num-experts 4 --topk 2", "all_reduce --bytes 1024 --num-gpus 8",
        "rms_norm --rows 8 --cols 64", "softmax --rows 8 --cols 64",
    ],
)  # fmt: skip
def test_an_empty_identity_is_the_default_as_an_empty_cell_is(tilecast, tmp_path, line):
    asked = ["kernel", *line.split(), "--gpu", "h100-sxm"]
    left_out, empty = tilecast(*asked, "--json"), tilecast(*asked, "--identity", "", "--json")
    assert left_out.code == 0 and left_out.out == empty.out
    family, *words = line.split()
    record = kernels()[family]
    given = {option.removeprefix("--").replace("-", "_"): int(value) for option, value in zip(words[::2], words[1::2], strict=True)}
    assert float(predict_kernel(record(**given, identity=""), "h100-sxm").median_s[0]) == left_out.json["median_s"]
    (tmp_path / "in.csv").write_text(f"family,gpu,identity,{','.join(given)}\n{family},h100-sxm,,{','.join(map(str, given.values()))}\n")
    assert tilecast("kernels", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")).code == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["median_s"]) == left_out.json["median_s"]


def test_a_required_size_that_is_left_empty_is_missing(tilecast):
    refused = tilecast("kernel", "gemm", "--gpu", "h100-sxm", "--m", "", "--n", "64", "--k", "64")
    assert refused.code == 2 and "gemm needs --m" in refused.err
