"""Pulling the wheel: what pip is asked, what is kept, and what each way to fail leaves behind. No network: pip is replaced."""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilecast.datasets import wheel
from tilecast.datasets.cache import TEMPORARY
from tilecast.errors import MissingData

CONTENT = b"PK: what pip downloads in these tests"


class FakePip:
    """Stands for `subprocess.run`: counts its calls and does to the destination what the test wants."""

    def __init__(self, act: Callable[[Path], None], returncode: int = 0, stderr: str = "") -> None:
        self.act, self.returncode, self.stderr = act, returncode, stderr
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **options: Any) -> SimpleNamespace:
        self.commands.append(command)
        self.act(Path(command[command.index("--dest") + 1]))
        return SimpleNamespace(returncode=self.returncode, stderr=self.stderr)


def deliver(content: bytes = CONTENT) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / wheel.FILE_NAME).write_bytes(content)

    return act


def nothing(folder: Path) -> None:
    """pip fails before it writes."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a wheel that is CONTENT."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TILECAST_CACHE", str(folder))
    monkeypatch.setattr(wheel, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(wheel, "SIZE_BYTES", len(CONTENT))
    return folder


@pytest.fixture
def run_pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakePip], FakePip]:
    def use(pip: FakePip) -> FakePip:
        monkeypatch.setattr(wheel.subprocess, "run", pip)
        return pip

    return use


Use = Callable[[FakePip], FakePip]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def refusal() -> str:
    with pytest.raises(MissingData) as caught:
        wheel.pull()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_pull_leaves_the_wheel_and_nothing_else(cache: Path, run_pip: Use) -> None:
    pip = run_pip(FakePip(deliver()))
    assert wheel.pull() == (cache / wheel.FILE_NAME, True)
    assert left_in(cache) == [wheel.FILE_NAME]
    assert wheel.wheel_path().read_bytes() == CONTENT
    assert len(pip.commands) == 1


def test_pip_is_asked_to_download_one_exact_file_and_to_install_nothing(cache: Path, run_pip: Use) -> None:
    pip = run_pip(FakePip(deliver()))
    wheel.pull()
    command = pip.commands[0]
    assert command[1:4] == ["-m", "pip", "download"]
    assert command[-1] == "aiconfigurator-core==0.12.0"
    assert "--no-deps" in command
    assert "--only-binary=:all:" in command


def test_what_is_there_already_is_not_fetched_again(cache: Path, run_pip: Use) -> None:
    run_pip(FakePip(deliver()))
    wheel.pull()
    again = run_pip(FakePip(deliver()))
    assert wheel.pull() == (cache / wheel.FILE_NAME, False)
    assert again.commands == []


def test_a_wheel_with_another_hash_is_not_kept(cache: Path, run_pip: Use) -> None:
    other = b"PK: a wheel of the same name, tampered"
    run_pip(FakePip(deliver(other)))
    found, wanted = hashlib.sha256(other).hexdigest()[:12], hashlib.sha256(CONTENT).hexdigest()[:12]
    assert refusal() == f"aiconfigurator-core==0.12.0 has the hash {found}..., expected {wanted}...: not kept"
    assert left_in(cache) == []


def test_a_damaged_wheel_in_the_cache_is_replaced(cache: Path, run_pip: Use) -> None:
    cache.mkdir()
    (cache / wheel.FILE_NAME).write_bytes(CONTENT[:-1] + b"!")
    run_pip(FakePip(deliver()))
    assert wheel.pull() == (cache / wheel.FILE_NAME, True)
    assert wheel.wheel_path().read_bytes() == CONTENT


def test_what_pip_says_went_wrong_is_quoted(cache: Path, run_pip: Use) -> None:
    stderr = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found\n[notice] a new release of pip\n"
    run_pip(FakePip(nothing, returncode=1, stderr=stderr))
    assert refusal() == "pip could not download aiconfigurator-core==0.12.0: No matching distribution found"
    assert left_in(cache) == []


def test_a_silent_failure_of_pip_says_so(cache: Path, run_pip: Use) -> None:
    run_pip(FakePip(nothing, returncode=1))
    assert refusal().endswith(": pip gave no reason")


def test_a_pip_that_succeeds_without_the_file_is_a_failure(cache: Path, run_pip: Use) -> None:
    run_pip(FakePip(nothing, returncode=0))
    assert refusal().startswith("pip could not download aiconfigurator-core==0.12.0: ")
    assert left_in(cache) == []


def test_a_pip_that_cannot_run_is_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "python")

    monkeypatch.setattr(subprocess, "run", absent)
    assert refusal().startswith("cannot run pip: ")


def test_an_interrupted_pull_leaves_nothing_and_the_next_one_works(cache: Path, run_pip: Use) -> None:
    def cut(folder: Path) -> None:
        (folder / wheel.FILE_NAME).write_bytes(CONTENT[:5])
        raise KeyboardInterrupt

    run_pip(FakePip(cut))
    with pytest.raises(KeyboardInterrupt):
        wheel.pull()
    assert left_in(cache) == []
    run_pip(FakePip(deliver()))
    assert wheel.pull() == (cache / wheel.FILE_NAME, True)


def test_what_a_killed_pull_left_is_removed_by_the_next_one(cache: Path, run_pip: Use) -> None:
    killed = cache / f"{TEMPORARY}abc123"
    killed.mkdir(parents=True)
    (killed / wheel.FILE_NAME).write_bytes(CONTENT[:5])
    (cache / f"{TEMPORARY}99-{wheel.FILE_NAME}").write_bytes(CONTENT[:7])
    run_pip(FakePip(deliver()))
    wheel.pull()
    assert left_in(cache) == [wheel.FILE_NAME]


def test_a_full_disk_is_told_before_pip_runs(cache: Path, run_pip: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = run_pip(FakePip(deliver()))
    monkeypatch.setattr(wheel, "SIZE_BYTES", 81_715_575)  # twice that is 163 MB: the download and its copy
    monkeypatch.setattr("tilecast.datasets.cache.shutil.disk_usage", lambda path: SimpleNamespace(free=100_000_000))
    assert refusal() == f"pulling aiconfigurator-core needs 163 MB in {cache.parent}, which has 100 MB free"
    assert pip.commands == []
    assert left_in(cache) == []


def test_an_absent_wheel_says_how_to_get_it(cache: Path) -> None:
    with pytest.raises(MissingData, match=r"^the wheel aiconfigurator-core==0\.12\.0 is not in .*: run 'tilecast data pull' once$"):
        wheel.wheel_path()


def test_a_truncated_wheel_in_the_cache_is_called_damaged(cache: Path) -> None:
    cache.mkdir()
    (cache / wheel.FILE_NAME).write_bytes(CONTENT[:10])
    with pytest.raises(MissingData, match=rf"is damaged \(10 of {len(CONTENT)} bytes\): run 'tilecast data pull' again$"):
        wheel.wheel_path()
