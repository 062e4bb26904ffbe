"""Report: what a command has to say, as plain values. The console, JSON, CSV and notebooks are views of it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import tilecast
from tilecast.hardware import catalogue_hash
from tilecast.learning.manifests import artifacts_hash
from tilecast.markup import html_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of text. On a narrow terminal the column that `wraps` is broken into lines, and those in `spare` go, the last first."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    title: str = ""
    right: frozenset[str] = frozenset()  # columns of numbers
    spare: tuple[str, ...] = ()
    wraps: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer in one sentence, the tables behind it, and what it takes to make it again."""

    answer: str
    grids: Sequence[Grid] = ()
    closing: str = ""  # one more sentence, after the tables
    payload: Any = None  # what --json prints: SI values
    records: Sequence[Mapping[str, Any]] = ()  # what --csv prints: one flat record per line, SI values
    inputs: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""  # the equivalent call, what --as-python prints
    command: str = ""  # the line that makes this report again

    def _repr_html_(self) -> str:
        tables = "".join(html_table(grid.title, grid.columns, grid.rows) for grid in self.grids)
        return f"<p>{escape(self.answer)}</p>{tables}"


def versions() -> dict[str, str]:
    """What a result depends on besides its inputs: printed with every output, so that one line reproduces it."""
    predicted = sys.modules.get("tilecast.predictors.kernel")  # what nobody asked for was not looked at
    artifacts = " without ".join([artifacts_hash(), *sorted(predicted.unread if predicted else ())])
    return {"tilecast": tilecast.__version__, "catalogue": catalogue_hash(), "artifacts": artifacts}
