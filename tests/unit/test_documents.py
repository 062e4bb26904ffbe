"""What the README and the pages show of an answer is what the command prints: a page that lies is a bug.

`python -m benchmarks.gallery --texts` renews docs/predict.md and docs/serving.md; the other pages are short enough to be renewed by hand.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from tests.unit.command_line import Tilecast

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/calibration.md", "docs/predict.md", "docs/serving.md")
WIDTHS = ("150", "200")  # of the terminals the pages were taken from
CHANGES = re.compile(r"\b\d{4}-\d{2}-\d{2}\b|\b[0-9a-f]{8}\b")  # dates, and hashes of the weights, the catalogue and profiles


def shown(page: str) -> list[tuple[str, list[str]]]:
    """Commands of a page with the lines that it shows of their outputs, and of `cat FILE` with the file."""
    blocks = re.findall(r"```\n(\$ .*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    steps = [step for block in blocks for step in re.split(r"(?m)^\$ ", block)[1:]]
    return [(step.partition("\n")[0], [line for line in step.splitlines()[1:] if line.strip() not in ("", "...")]) for step in steps]


def folded(text: str) -> str:
    """Without what wrapping and padding change, and without what changes every day."""
    return CHANGES.sub("#", " ".join(text.split()))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str, tilecast: Tilecast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    steps = shown(page)
    assert len(steps) > 3
    for command, lines in steps:
        program, *arguments = shlex.split(command)
        if program == "cat":
            Path(arguments[0]).write_text("\n".join(lines) + "\n", encoding="utf-8")
            continue
        if arguments[0] == "data":
            continue  # counts what lies in the reader's own store
        printed = ""
        for width in WIDTHS if page == "README.md" else WIDTHS[:1]:
            monkeypatch.setenv("COLUMNS", width)
            answered = tilecast(*arguments)
            assert answered.code == 0, answered.err
            printed += folded(answered.out)
        for line in lines:
            assert folded(line) in printed, f"{page}: {command} no longer prints {line!r}"


def test_the_ten_lines_of_python_print_what_the_readme_says():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL).groups()  # type: ignore[union-attr]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {})
    assert folded(output.getvalue()) == folded(printed)
