"""Raw tables in a folder of parquet files under $TILECAST_DATA: where they are, and how to read one safely."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tilecast.datasets.schema import conform
from tilecast.datasets.sources.base import Table, read_columns
from tilecast.errors import MissingData

VARIABLE = "TILECAST_DATA"
Rows = Callable[[pl.DataFrame, str], pl.DataFrame]  # raw rows, family -> that family's rows, in columns of the schema


def data_folder(name: str) -> Path:
    """The folder `name` under $TILECAST_DATA."""
    if not os.environ.get(VARIABLE):
        raise MissingData(f"${VARIABLE} is not set: point it at the folder that holds {name}/ (see docs/data.md)")
    folder = Path(os.environ[VARIABLE]) / name
    if not folder.is_dir():
        raise MissingData(f"no folder {name}/ under ${VARIABLE} = {os.environ[VARIABLE]}")
    return folder


def files_fingerprint(folder: Path, names: list[str]) -> str:
    """From the files' names, sizes and times: cheap enough to compute on every load."""
    digest = hashlib.sha256()
    for name in sorted(names):
        stat = (folder / name).stat()
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def read_table(folder: Path, name: str, columns: set[str]) -> pl.DataFrame:
    """The named columns of one parquet file, with `origin_row` counting its rows; damage is one clear sentence."""
    path = folder / name
    try:
        available = set(pl.read_parquet_schema(path))
        raw = pl.read_parquet(path, columns=sorted(columns & available))
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise MissingData(f"{path} is damaged or no parquet file: {str(problem).splitlines()[0]}") from None
    return read_columns(raw, columns, str(path)).with_row_index("origin_row")


def catalogue_ids(raw: pl.DataFrame, ids: Mapping[str, str], where: str) -> pl.DataFrame:
    """`raw` with the GPUs of its column `gpu` by catalogue id instead of by the source's own name."""
    unknown = sorted(map(str, set(raw["gpu"].unique()) - set(ids)))
    if unknown:
        raise MissingData(f"{where} has rows of {', '.join(unknown)}, and this reader knows only {', '.join(ids)}")
    return raw.with_columns(pl.col("gpu").replace_strict(dict(ids), return_dtype=pl.String))


def one_row_each(raw: pl.DataFrame, columns: Mapping[str, str], name: str, value: str) -> pl.DataFrame:
    """A row for each positive entry of `columns`, with the column's new name in `name` and the entry in `value`; null and 0 are no time."""
    index = [column for column in raw.columns if column not in columns]
    long = raw.rename(dict(columns)).unpivot(list(columns.values()), index=index, variable_name=name, value_name=value)
    return long.filter(pl.col(value) > 0).sort("origin_row", maintain_order=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """What a reader knows about one raw file."""

    families: tuple[str, ...]
    columns: str  # those the reader needs, separated by spaces; `gpu` is always one of them
    rows: Rows
    constants: Mapping[str, object] = field(default_factory=dict)  # what the schema asks and is the same for all rows
    by_split: bool = False  # one table for each value of the column `split`, so that `origin` keeps it: "bmm.parquet#train"


class ParquetFolder:
    """The part of a DataSource that sources made of parquet files share: a reader states its names and its files."""

    name: str
    licence: str
    home: str
    gpus: Mapping[str, str]  # the source's name -> catalogue id
    files: Mapping[str, RawFile]

    def locate(self) -> Path:
        return data_folder(self.name)

    def fingerprint(self, root: Path) -> str:
        return files_fingerprint(root, self._present(root))

    def tables(self, root: Path) -> list[Table]:
        return [
            Table(name, family) for file in self._present(root) for family in self.files[file].families for name in self._names(root, file)
        ]

    def read(self, root: Path, table: Table) -> pl.DataFrame:
        name, _, split = table.name.partition("#")
        file = self.files[name]
        raw = read_table(root, name, {"gpu", *file.columns.split()})
        known = catalogue_ids(raw, self.gpus, str(root / name))
        try:
            rows = file.rows(known.filter(pl.col("split") == split) if file.by_split else known, table.family)
            return conform(rows, table.family, source=self.name, licence=self.licence, origin=table.name, **file.constants)
        except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError, pl.exceptions.SchemaError) as problem:
            raise MissingData(f"{root / name} holds values that are no {table.family} rows: {str(problem).splitlines()[0]}") from None

    def _present(self, root: Path) -> list[str]:
        return [name for name in self.files if (root / name).is_file()]

    def _names(self, root: Path, file: str) -> list[str]:
        if not self.files[file].by_split:
            return [file]
        return [f"{file}#{split}" for split in read_table(root, file, {"split"})["split"].unique().sort()]
