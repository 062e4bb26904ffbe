"""`tilecast trust` and `tilecast fit` from outside: answers, refusals, and what is left on disk."""

import csv
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.command_line import Result, Tilecast
from tilecast.cli import main
from tilecast.kernels.gemm import Gemm
from tilecast.learning import correction as corrections
from tilecast.learning import recipes, tensors
from tilecast.learning.correction import Correction, load, read, write
from tilecast.learning.features import number_names
from tilecast.learning.training import Settings
from tilecast.learning.trees import empty, grove
from tilecast.predictors.kernel import predict_kernel

SCORES = {
    "interpolated": {"a100-sxm-80gb": 3.21, "l40s": 5.0},
    "unseen-gpu": {"a100-sxm-80gb": 12.0, "l40s": 20.0},
    "unseen-generation": {"a100-sxm-80gb": 14.0, "l40s": 25.0},
    "same-die": {"h100-sxm": 7.0, "h200-sxm": 9.0},
}


def refused(result: Result, code: int = 2) -> str:
    """The last sentence of a command that was refused; before it there may be progress."""
    assert result.code == code, result.err
    assert result.out == ""
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    assert all(line.startswith("tilecast: ") for line in lines)
    return lines[-1].removeprefix("tilecast: ")


def artifact(folder: Path, scores: dict[str, dict[str, float]]) -> None:
    """A GEMM correction that corrects nothing, with these scores in its manifest."""
    num_numbers = len(number_names("gemm"))
    manifest = {"scores": scores, "rows_per_gpu": {"a100-sxm-80gb": 1200, "l40s": 800}, "date": "2026-01-01", "num_rows": 2000}
    write(
        Correction(
            family="gemm", vocabulary={"dtype": ["bf16"]}, gpus=("a100-sxm-80gb", "l40s"), archs=("ada", "ampere"),
            measured={"a100-sxm-80gb": {"16-bit None": []}, "l40s": {"16-bit None": []}},
            level=np.zeros((2, 3), np.float32), low=np.full(num_numbers, -99, np.float32), high=np.full(num_numbers, 99, np.float32),
            shared=empty(), local=grove({}), carry=1.0, warm=frozenset(),
            as_timed=False, spread=grove({}), quantile=np.full(5, 0.1),
            manifest=manifest,
            digest="",
        ),
        folder,
    )  # fmt: skip


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that stands for the shipped artifacts; empty at first."""
    folder = tmp_path / "artifacts"
    folder.mkdir()
    monkeypatch.setattr(corrections, "FOLDER", folder)
    load.cache_clear()
    yield folder
    load.cache_clear()


# ---- trust ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trust gem --gpu l40s", "unknown family 'gem': did you mean gemm?"),
        ("trust gemm --gpu h100-sxn", "unknown GPU 'h100-sxn': did you mean h100-sxm"),
        ("trust gemm", "Missing option '--gpu'."),
        ("trust --gpu l40s", "Missing argument 'FAMILY'."),
        ("trust gemm --gpu l40s --json --csv", "--json, --csv and --as-python exclude one another"),
    ],
)
def test_trust_refuses_in_one_sentence(tilecast: Tilecast, shipped: Path, arguments: str, sentence: str) -> None:
    assert sentence in refused(tilecast(*shlex.split(arguments)))


@pytest.mark.parametrize("family", ["gemm", "rms_norm", "all_reduce"])
def test_trust_of_a_family_without_artifact_says_analytic(tilecast: Tilecast, shipped: Path, family: str) -> None:
    result = tilecast("trust", family, "--gpu", "l40s")
    assert result.code == 0
    why = "the weights of gemm are missing" if family == "gemm" else f"{family} has no learned correction"
    said = " ".join(result.out.split())
    assert said.startswith(why) and "predictions on l40s are physics alone (basis analytic)." in said
    found = tilecast("trust", family, "--gpu", "l40s", "--json").json
    assert (found["basis"], found["scores"]) == ("analytic", {})
    printed = tilecast("trust", family, "--gpu", "h100-sxm", "--as-python")
    assert printed.code == 0
    exec(printed.out, {})


def test_trust_of_a_measured_gpu_gives_its_error_on_held_out_shapes(tilecast: Tilecast, shipped: Path) -> None:
    artifact(shipped, SCORES)
    result = tilecast("trust", "gemm", "--gpu", "a100-sxm-80gb")
    assert (result.code, result.err) == (0, "")
    assert "On held-out shapes, gemm on a100-sxm-80gb is off by 3.2 % on average (1,200 measured rows: 16-bit unnamed)." in " ".join(
        result.out.split()
    )
    assert "tilecast trust gemm --gpu a100-sxm-80gb" in result.out
    found = tilecast("trust", "gemm", "--gpu", "a100-sxm-80gb", "--json").json
    assert found["scores"] == {"interpolated": 3.21, "unseen-gpu": 12.0, "unseen-generation": 14.0}
    assert (found["rows"], found["date"]) == (1200, "2026-01-01")
    table = list(csv.DictReader(io.StringIO(tilecast("trust", "gemm", "--gpu", "a100-sxm-80gb", "--csv").out)))
    assert [(row["basis"], float(row["mape"])) for row in table] == list(found["scores"].items())


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        ("a40", "a40 has no gemm rows (unseen-gpu): GPUs held out like it were off by 16.0 % on average (12 to 20 %)."),
        ("h20", "h20 has no gemm rows (unseen-generation): GPUs held out like it were off by 19.5 % on average (14 to 25 %)."),
        ("l40", "l40 has no gemm rows (unseen-gpu, l40s stands in): GPUs held out like it were off by 8.0 % on average (7 to 9 %)."),
    ],
)
def test_trust_of_an_unseen_gpu_tells_of_those_held_out_like_it(tilecast: Tilecast, shipped: Path, gpu: str, sentence: str) -> None:
    artifact(shipped, SCORES)
    result = tilecast("trust", "gemm", "--gpu", gpu)
    assert result.code == 0
    assert sentence in " ".join(result.out.split())


def test_trust_of_what_nothing_was_held_out_for_says_that_it_is_not_known(tilecast: Tilecast, shipped: Path) -> None:
    artifact(shipped, {"interpolated": {"l40s": 5.0}, "unseen-gpu": {}, "unseen-generation": {}, "same-die": {}})
    for gpu in ("a40", "h20", "a100-sxm-80gb"):
        result = tilecast("trust", "gemm", "--gpu", gpu)
        assert result.code == 0
        assert "its accuracy is not known." in " ".join(result.out.split())


def test_trust_of_a_damaged_artifact_says_what_to_do(tilecast: Tilecast, shipped: Path) -> None:
    artifact(shipped, SCORES)
    (shipped / "gemm.json").unlink()
    assert "run 'tilecast fit'" in refused(tilecast("trust", "gemm", "--gpu", "l40s"), 3)


@pytest.mark.filterwarnings("default")
def test_a_damaged_artifact_leaves_predictions_to_physics_with_one_sentence(tilecast: Tilecast, shipped: Path) -> None:
    artifact(shipped, SCORES)
    (shipped / "gemm.json").unlink()
    result = tilecast("kernel", "gemm", "--gpu", "l40s", "--m", "64", "--n", "64", "--k", "64", "--json")
    assert (result.code, result.json["basis"]) == (0, "analytic")
    assert result.err.count("\n") == 1 and "rest on physics alone" in result.err


# ---- fit -----------------------------------------------------------------------------------------------------------


def measured(path: Path, num_shapes: int = 120, gpus: tuple[str, ...] = ("h100-sxm", "l40s"), line: str = "") -> Path:
    """A user's own rows: 1.2 times the analytic time, with noise."""
    rng = np.random.default_rng(1)
    m, n, k = (2 ** rng.integers(5, 13, (3, num_shapes))) + rng.integers(0, 2, (3, num_shapes))
    lines = ["family,gpu,dtype,m,n,k,measured_s"]
    for gpu in gpus:
        seconds = predict_kernel(Gemm(m=m, n=n, k=k), gpu, learned=False).analytic_s * 1.2 * np.exp(0.05 * rng.standard_normal(num_shapes))
        lines += [f"gemm,{gpu},bf16,{a},{b},{c},{s}" for a, b, c, s in zip(m, n, k, seconds, strict=True)]
    path.write_text("\n".join([*lines, line]) + "\n")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("catboost", reason="fitting needs the extra 'train': pip install 'tilecast[train]'")
    monkeypatch.setattr(recipes, "QUICK", Settings(shared_trees=10, shared_depth=3, local_trees=10, local_depth=3, rows_per_slice=400))


@pytest.mark.usefixtures("few_trees")
def test_fit_writes_weights_and_manifest_and_says_how_good_they_are(tilecast: Tilecast, tmp_path: Path, out: Path) -> None:
    rows = measured(tmp_path / "mine.csv")
    result = tilecast("fit", "gemm", "--quick", "--sources", str(rows), "--out", str(out), "--json")
    assert result.code == 0, result.err
    assert sorted(entry.name for entry in out.iterdir()) == ["gemm.json", "gemm.safetensors"]
    assert "gemm: 240 rows on 2 GPUs" in result.err  # progress is no data
    bars = [line[line.index("[") + 1 : line.index("]")].count("#") for line in result.err.splitlines() if "fitting" in line]
    assert bars[0] == 0 and bars == sorted(set(bars)) and len(bars) == 6  # shapes, each GPU, each architecture, every row
    (record,) = result.json["families"]
    assert (record["family"], record["rows"], record["file"]) == ("gemm", "240", "gemm.safetensors")
    assert float(record["held-out shapes"].removesuffix(" %")) < 15
    found = read(out / "gemm.safetensors")
    assert found.gpus == ("h100-sxm", "l40s")
    assert found.manifest["rows_per_gpu"] == {"h100-sxm": 120, "l40s": 120}
    assert found.manifest["sources"] == [{"name": "user", "licence": "the user's own", "rows": 240, "home": ""}]
    assert found.manifest["settings"]["shared_trees"] == 10


@pytest.mark.usefixtures("few_trees")
def test_what_was_fitted_is_what_predictions_and_trust_then_use(tilecast: Tilecast, tmp_path: Path, shipped: Path) -> None:
    rows = measured(tmp_path / "mine.csv")
    assert tilecast("fit", "gemm", "--quick", "--sources", str(rows), "--out", str(shipped)).code == 0
    load.cache_clear()
    found = predict_kernel(Gemm(m=512, n=1024, k=1024), "l40s")
    assert found.basis.tolist() == ["interpolated"]
    assert found.median_s / found.analytic_s == pytest.approx([1.2], rel=0.1)
    assert "on l40s is off by" in " ".join(tilecast("trust", "gemm", "--gpu", "l40s").out.split())


@pytest.mark.usefixtures("few_trees")
def test_fit_on_one_gpu_does_not_claim_to_know_others(tilecast: Tilecast, tmp_path: Path, out: Path) -> None:
    rows = measured(tmp_path / "mine.csv", 260, ("l40s",))
    result = tilecast("fit", "gemm", "--quick", "--sources", str(rows), "--out", str(out), "--json")
    assert result.code == 0, result.err
    (record,) = result.json["families"]
    assert record["unseen GPU"] == record["unseen generation"] == "not known"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("fit gem", "unknown learnable family 'gem': did you mean gemm?"),
        ("fit rms_norm", "unknown learnable family 'rms_norm'"),
        ("fit gemm gem", "unknown learnable family 'gem'"),
        ("fit gemm --out absent/folder", "--out 'absent/folder' is no folder"),
        ("fit gemm --trees 5", "No such option '--trees'"),
    ],
)
def test_fit_refuses_in_one_sentence(tilecast: Tilecast, arguments: str, sentence: str) -> None:
    assert sentence in refused(tilecast(*shlex.split(arguments)))


def test_fit_into_a_file_is_refused(tilecast: Tilecast, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is no folder" in refused(tilecast("fit", "gemm", "--out", str(tmp_path / "file")))


@pytest.mark.parametrize(
    ("source", "code", "sentence"),
    [("absent.csv", 3, "no file"), ("aiconfigurater", 2, "unknown data source 'aiconfigurater': did you mean aiconfigurator?")],
)
def test_fit_from_an_unknown_source_is_refused(tilecast: Tilecast, out: Path, source: str, code: int, sentence: str) -> None:
    assert sentence in refused(tilecast("fit", "gemm", "--sources", source, "--out", str(out)), code)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("num_shapes", "line", "code", "sentence"),
    [
        (20, "", 3, "40 usable rows are too few to learn from"),
        (120, "gemm,l40s,bf16,1,2,3,-1", 2, "measured_s = -1.0 must lie between 1e-8 and 1000 seconds"),
        (120, "gemm,l40x,bf16,1,2,3,1e-5", 2, "unknown GPU 'l40x'"),
        (120, "gemm,l40s,bf16,one,2,3,1e-5", 2, "m = one must be a whole number"),
    ],
)
def test_a_fit_that_fails_writes_nothing(
    tilecast: Tilecast, tmp_path: Path, out: Path, num_shapes: int, line: str, code: int, sentence: str
) -> None:
    rows = measured(tmp_path / "mine.csv", num_shapes, line=line)
    assert sentence in refused(tilecast("fit", "gemm", "--quick", "--sources", str(rows), "--out", str(out)), code)
    assert list(out.iterdir()) == []


@pytest.mark.usefixtures("few_trees")
def test_a_full_disk_leaves_no_half_artifact(tilecast: Tilecast, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors, "write", full)
    monkeypatch.setattr(main, "_discard_output", lambda: None)  # the test's own stdout is no file
    rows = measured(tmp_path / "mine.csv")
    result = tilecast("fit", "gemm", "--quick", "--sources", str(rows), "--out", str(out))
    assert result.code == 1
    assert "No space left on device" in result.err.splitlines()[-1]
    assert list(out.iterdir()) == []


def test_fit_without_catboost_names_the_extra(tilecast: Tilecast, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "catboost", None)
    rows = measured(tmp_path / "mine.csv")
    sentence = refused(tilecast("fit", "gemm", "--quick", "--sources", str(rows), "--out", str(out)), 3)
    assert sentence == "fitting needs the extra 'train': pip install 'tilecast[train]'"
    assert list(out.iterdir()) == []


def test_fit_without_polars_names_the_extra(tilecast: Tilecast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    assert "pip install 'tilecast[data]'" in refused(tilecast("fit", "gemm"), 3)


def test_help_of_both_commands_needs_no_data(tilecast: Tilecast) -> None:
    for command in ("fit", "trust"):
        result = tilecast(command, "--help")
        assert (result.code, result.err) == (0, "")
        assert f"Usage: tilecast {command}" in result.out


def test_fit_as_python_is_the_calls_and_fits_nothing(tilecast: Tilecast, tmp_path: Path) -> None:
    shown = tilecast("fit", "gemm", "moe", "ceiling", "--quick", "--out", str(tmp_path), "--as-python")
    assert shown.code == 0 and list(tmp_path.iterdir()) == []
    assert "fit_family('gemm', (), folder, quick=True)" in shown.out and "ceilings.write(fit_families(()), folder)" in shown.out
    compile(shown.out, "printed", "exec")


def test_what_is_learned_besides_is_answered_for_like_a_family(tilecast: Tilecast, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilecast.cli.fit._fit_other", lambda name, names, target, say: target / f"{name}.safetensors")
    result = tilecast("fit", "ceiling", "moe-tuning", "--out", str(out), "--json")
    assert result.code == 0, result.err
    assert [(record["family"], record["file"]) for record in result.json["families"]] == [
        ("ceiling", "ceiling.safetensors"), ("moe-tuning", "moe-tuning.safetensors")
    ]  # fmt: skip


def test_searches_are_no_rows_of_a_source(tilecast: Tilecast, out: Path) -> None:
    assert "moe-tuning learns from searches" in refused(tilecast("fit", "moe-tuning", "--sources", "pipeweave", "--out", str(out)))


def test_trust_of_a_board_that_throttled_while_it_was_measured_says_so(tilecast: Tilecast) -> None:
    told = " ".join(tilecast("trust", "gemm", "--gpu", "l4").out.split())
    assert "it throttled during all of its 3,132 measured rows" in told and "(unseen-gpu)" in told
