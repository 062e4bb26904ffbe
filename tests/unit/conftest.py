"""Fixtures of the unit tests."""

import pytest

from tests.unit.command_line import Result, Tilecast
from tilecast.cli import main


@pytest.fixture
def tilecast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tilecast:
    """Runs a command line in this process, which has not looked at any weights yet."""
    monkeypatch.setattr("tilecast.predictors.kernel.unread", set())
    for variable in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = main.run(list(arguments))
        return Result(code, *capsys.readouterr())

    return run
