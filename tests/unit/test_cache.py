"""Where the cache is, and that a file appears in it whole or not at all."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilecast.datasets.cache import TEMPORARY, cache_folder, replacing, require_space, scratch
from tilecast.errors import MissingData


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("TILECAST_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_the_users_own_folder_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    monkeypatch.setenv("TILECAST_CACHE", str(home / "mine"))
    assert cache_folder() == home / "mine"


@pytest.mark.parametrize(
    ("platform", "folder"), [("linux", ".cache/tilecast"), ("darwin", "Library/Caches/tilecast"), ("win32", "AppData/Local/tilecast")]
)
def test_each_platform_has_its_own_place(home: Path, monkeypatch: pytest.MonkeyPatch, platform: str, folder: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == home / folder


def test_an_empty_variable_counts_as_not_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("TILECAST_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # the XDG specification: either not set or empty
    assert cache_folder() == home / ".cache" / "tilecast"


def test_the_space_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def disk_usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=1_000_000)

    monkeypatch.setattr("tilecast.datasets.cache.shutil.disk_usage", disk_usage)
    require_space(tmp_path / "not" / "yet", 1_000_000, "this")
    assert asked == [tmp_path]
    with pytest.raises(MissingData, match=r"^this needs 2 MB in .* which has 1 MB free$"):
        require_space(tmp_path / "not" / "yet", 1_500_001, "this")


def test_a_file_takes_its_place_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "file"
    with replacing(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("crash", [RuntimeError, KeyboardInterrupt])
def test_a_crash_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, crash: type[BaseException]) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(crash), replacing(target) as temporary:
        temporary.write_text("ha")
        raise crash
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_disk_that_fills_up_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"^cannot write .*file: No space left on device$"), replacing(tmp_path / "file"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with (
        pytest.raises(MissingData, match=r"^cannot make the folder .*a file/cache: Not a directory$"),
        replacing(tmp_path / "a file/cache/x"),
    ):
        pass


def test_a_scratch_folder_starts_without_leftovers_and_ends_without_itself(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    (tmp_path / f"{TEMPORARY}killed").mkdir()
    (tmp_path / f"{TEMPORARY}killed" / "half").touch()
    with scratch(tmp_path) as folder:
        assert sorted(tmp_path.iterdir()) == sorted([kept, folder])
    assert list(tmp_path.iterdir()) == [kept]
