"""The rows of one upstream source in the mixed tables, told apart by a tag."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tilecast.datasets.schema import conform
from tilecast.datasets.sources.base import Table
from tilecast.datasets.sources.extra import attention_ops, collectives, gemm_extra, layer_ops, moe_extra, requests
from tilecast.datasets.sources.extra.base import FLAGS, GPUS, TAGS, TIMERS, RawTable, protocol
from tilecast.datasets.sources.folder import data_folder, files_fingerprint, read_table
from tilecast.errors import MissingData

RAW_TABLES: Mapping[str, RawTable] = {
    "layer_ops.parquet": layer_ops.TABLE,
    "attention_ops.parquet": attention_ops.TABLE,
    "collectives.parquet": collectives.TABLE,
    "gemm_extra.parquet": gemm_extra.TABLE,
    "moe_extra.parquet": moe_extra.TABLE,
    "serving_runs/requests.parquet": requests.TABLE,
}


@dataclass(slots=True)
class ExtraSource:
    """One upstream source of the mixed tables: the rows of its `tags` in its `files`."""

    name: str
    licence: str
    home: str
    tags: tuple[str, ...]
    files: tuple[str, ...]

    def locate(self) -> Path:
        return data_folder("extra")

    def fingerprint(self, root: Path) -> str:
        files = [*self.files, *([requests.RUNS] if "serving_runs/requests.parquet" in self.files else [])]
        for name in files:
            if not (root / name).is_file():
                raise MissingData(f"no file {root / name}")
        return files_fingerprint(root, files)

    def tables(self, root: Path) -> list[Table]:
        present: list[Table] = []
        for name in self.files:
            families = self._rows(root, name)["family"].unique().to_list()
            present += [Table(name, family) for family in sorted(families)]
        return present

    def read(self, root: Path, table: Table) -> pl.DataFrame:
        raw_table = RAW_TABLES[table.name]
        rows = self._rows(root, table.name).filter(pl.col("family") == table.family)
        columns = {**protocol(rows, raw_table), **raw_table.common, **raw_table.shapes[table.family]}
        try:
            frame = rows.select(expression.alias(name) for name, expression in columns.items())
            return conform(frame, table.family, source=self.name, licence=self.licence, origin=table.name)
        except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError, pl.exceptions.SchemaError) as problem:
            raise MissingData(f"{root / table.name} holds values that are no {table.family} rows: {str(problem).splitlines()[0]}") from None

    def _rows(self, root: Path, name: str) -> pl.DataFrame:
        """This source's raw rows of one file, each with the family it belongs to."""
        raw_table, where = RAW_TABLES[name], str(root / name)
        raw = raw_table.prepare(root, read_table(root, name, set(raw_table.columns)))
        _check_known(raw, "source", TAGS, where)
        rows = raw.filter(pl.col("source").is_in(self.tags))
        _check_known(rows, "gpu", GPUS, where)
        _check_known(rows, "method", TIMERS, where)
        if "flag" in rows.columns:
            _check_known(rows, "flag", FLAGS, where)
        rows = rows.with_columns(family=raw_table.family)
        if rows["family"].null_count():
            what = [column for column in ("op", "kernel", "phase", "backend") if column in rows.columns]
            strays = rows.filter(pl.col("family").is_null()).select(what).unique(maintain_order=True).row(0, named=True)
            raise MissingData(
                f"{where} has rows of {', '.join(f'{key} {value!r}' for key, value in strays.items())}, which no family is written for"
            )
        return rows


def _check_known(rows: pl.DataFrame, column: str, known: Iterable[str], where: str) -> None:
    strays = sorted(set(rows[column].unique().to_list()) - set(known), key=str)
    if strays:
        raise MissingData(f"{where} has the {column} {', '.join(map(repr, strays))}; known are {', '.join(known)}")
