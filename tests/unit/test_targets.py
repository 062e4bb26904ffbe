"""Where a command is asked to write: what cannot be written is one sentence and exit 2 before the work, whichever command it is."""

import os
import tempfile
from pathlib import Path

import pytest

from tilecast.cli.files import target_file, target_folder
from tilecast.errors import InvalidInput
from tilecast.learning import profiles


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that takes no file, whoever asks: permissions do not stop root."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


@pytest.mark.parametrize(
    "line",
    [
        "kernels {rows} --out {folder}/out.csv",
        "calibrate {rows} --gpu h100-sxm --out {folder}/profile.json",
        "calibrate --plan 3 --gpu h100-sxm -o {folder}/measure.py",
        "tune moe --model Qwen/Qwen3-30B-A3B --gpu h100-sxm -o {folder}",
        "tune moe --model Qwen/Qwen3-30B-A3B --gpu h100-sxm -o {folder}/new",
        "fit gemm --out {folder}",
        "data export gemm --out {folder}/rows.csv",
        "data show gemm --plot {folder}/rows.png",
        "predict Qwen/Qwen3-0.6B --gpu h100-sxm --batch 1 --isl 8 --osl 2 --html {folder}/page.html",
        "step GPT2-Large --gpu h100-sxm --batch 1 --seq 64 --trace {folder}/trace.json",
        "kernel gemm --gpu h100-sxm --n 64 --k 64 --sweep m=1:8:x2 --plot {folder}/sweep.png",
    ],
)
def test_a_place_that_cannot_be_written_is_refused_alike_by_every_command(tilecast, full, tmp_path, line):
    if line.startswith(("data", "fit")):
        pytest.importorskip("polars")
    rows = tmp_path / "rows.csv"
    rows.write_text("family,gpu,m,n,k,measured_s\ngemm,h100-sxm,64,4096,4096,1e-5\n")
    refused = tilecast(*line.format(rows=rows, folder=tmp_path).split())
    assert refused.code == 2 and refused.err.endswith("cannot be written: read-only file system\n")
    assert refused.err.startswith(("tilecast: --out '", "tilecast: --html '", "tilecast: --trace '", "tilecast: --plot '"))
    assert list(tmp_path.iterdir()) == [rows]


def test_a_file_is_no_folder_and_a_folder_no_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for text, words in (
        (str(tmp_path), "is a folder, not a file"),
        ("", "must name a file"),
        (str(tmp_path / "no" / "x"), "there is no folder"),
    ):
        with pytest.raises(InvalidInput, match=words):
            target_file("--out", text)
    for text in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), str(tmp_path / "none")):
        with pytest.raises(InvalidInput, match="is no folder"):
            target_folder("--out", text)
    assert target_folder("--out", str(tmp_path / "none" / "below"), made=True) == tmp_path / "none" / "below"


@pytest.mark.parametrize("line", ["kernels {rows} --out {folder}/out.csv", "calibrate {rows} --gpu h100-sxm -o {folder}/profile.json"])
def test_a_disk_that_fills_up_while_writing_is_wrong_input_too(tilecast, tmp_path, monkeypatch, line):
    rows = tmp_path / "rows.csv"
    rows.write_text("family,gpu,m,n,k,measured_s\ngemm,h100-sxm,64,4096,4096,1e-5\n")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    refused = tilecast(*line.format(rows=rows, folder=tmp_path).split())
    assert refused.code == 2 and "cannot be written: no space left on device" in refused.err
    assert list(tmp_path.iterdir()) == [rows]
    profiles.read.cache_clear()


def test_an_ending_in_capitals_is_the_same_format(tilecast, tmp_path):
    pl = pytest.importorskip("polars")
    (tmp_path / "rows.CSV").write_text("family,gpu,m,n,k\ngemm,h100-sxm,64,4096,4096\n")
    assert tilecast("kernels", str(tmp_path / "rows.CSV"), "--out", str(tmp_path / "out.PARQUET")).code == 0
    assert pl.read_parquet(tmp_path / "out.PARQUET")["m"].to_list() == [64]


WRITING = [
    "kernels {rows} --out {out}.csv",
    "calibrate {rows} --gpu h100-sxm -o {out}.json",
    "predict Qwen/Qwen3-0.6B --gpu h100-sxm --batch 1 --isl 8 --osl 2 --html {out}.html",
    "step GPT2-Large --gpu h100-sxm --batch 1 --seq 64 --trace {out}.json",
]


def one_row(folder: Path) -> Path:
    rows = folder / "rows.csv"
    rows.write_text("family,gpu,m,n,k,measured_s\ngemm,h100-sxm,64,4096,4096,1e-5\n")
    return rows


@pytest.mark.parametrize("line", WRITING)
def test_behind_a_link_the_file_is_written_and_the_link_stays(tilecast, tmp_path, line):
    rows, out = one_row(tmp_path), tmp_path / "out"
    ending = "." + line.rpartition("{out}.")[2]
    link, real = out.with_suffix(ending), tmp_path / f"real{ending}"
    link.symlink_to(real)
    assert tilecast(*line.format(rows=rows, out=out).split()).code == 0
    assert link.is_symlink() and real.read_text()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes that have a name")
@pytest.mark.parametrize("line", WRITING)
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tilecast, tmp_path, line):
    rows, out = one_row(tmp_path), tmp_path / "out"
    pipe = out.with_suffix("." + line.rpartition("{out}.")[2])
    os.mkfifo(pipe)
    refused = tilecast(*line.format(rows=rows, out=out).split())
    assert refused.code == 2 and "is a device, a pipe or a socket: name a file" in refused.err
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "line",
    [
        "kernels {folder}/rows.csv --out {folder}/link.csv",
        "calibrate {folder}/rows.csv --gpu h100-sxm --out {folder}/rows.csv",
        "predict {folder}/config.json --gpu h100-sxm --batch 1 --isl 8 --osl 2 --trace {folder}/config.json",
        "predict {folder} --gpu h100-sxm --batch 1 --isl 8 --osl 2 --trace {folder}/config.json",
        "predict Qwen/Qwen3-0.6B --gpu h100-sxm --batch 1 --isl 8 --osl 2 --profile {folder}/config.json --trace {folder}/config.json",
        "step {folder}/config.json --gpu h100-sxm --batch 1 --seq 64 --trace {folder}/config.json",
    ],
)
def test_what_is_read_is_never_written_over(tilecast, tmp_path, line):
    one_row(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link.csv").symlink_to(tmp_path / "rows.csv")
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    refused = tilecast(*line.format(folder=tmp_path).split())
    assert refused.code == 2 and "is what is read" in refused.err
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before
