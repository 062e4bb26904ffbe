"""What a data source is: raw files in, schema rows out. One file per source stands beside this one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from tilecast.errors import MissingData


@dataclass(frozen=True, slots=True)
class Table:
    """One raw file of a source and the family its rows belong to; `name` is what `origin` says of its rows."""

    name: str
    family: str


class DataSource(Protocol):
    """A reader of one public data set."""

    name: str
    licence: str
    home: str  # the public repository and commit, or package and version, that the rows come from

    def locate(self) -> Path:
        """The folder or file the raw tables are in. Raises MissingData with what to do about it."""
        ...

    def fingerprint(self, root: Path) -> str:
        """Changes when the raw files do."""
        ...

    def tables(self, root: Path) -> list[Table]:
        """What there is to read; a raw file with rows of several families is listed once for each."""
        ...

    def read(self, root: Path, table: Table) -> pl.DataFrame:
        """The table's rows in the schema (`schema.conform`), one per raw row that belongs to the family, `origin_row` counting raw rows."""
        ...


def read_columns(raw: pl.DataFrame, columns: set[str], where: str) -> pl.DataFrame:
    """`raw`, after checking that it has `columns`: a missing one is a damaged or newer file, and says so."""
    missing = sorted(columns - set(raw.columns))
    if missing:
        raise MissingData(
            f"{where} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; it has {', '.join(raw.columns)}"
        )
    return raw
