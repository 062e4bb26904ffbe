"""The local store: every source's rows in the schema, judged, one parquet file per source and family, made on first use.

A stored file carries the fingerprint of what it was made from (raw files, catalogue, this package's readers); when any of it changes, the
file is made anew. Predictions never read the store: it feeds fitting, benchmarks and the user's curiosity.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path

import polars as pl

from tilecast import hardware
from tilecast.datasets import quality
from tilecast.datasets.cache import cache_folder, replacing
from tilecast.datasets.schema import FAMILIES, SCHEMA_VERSION, schema
from tilecast.datasets.sources.base import DataSource, Table
from tilecast.errors import MissingData, UnknownName

SOURCE_FOLDER = Path(__file__).parent / "sources"
NOT_SOURCES = ("__init__", "base", "folder")

Progress = Callable[[str, int, int], None]  # (what, done, total)


@cache
def sources() -> dict[str, DataSource]:
    """Every data source: the files of `sources/` that define SOURCE."""
    names = sorted(path.stem for path in SOURCE_FOLDER.glob("*.py") if path.stem not in NOT_SOURCES)
    return {name: import_module(f"tilecast.datasets.sources.{name}").SOURCE for name in names}


def source(name: str) -> DataSource:
    if name not in sources():
        raise UnknownName.among("data source", name, sources())
    return sources()[name]


def available() -> dict[str, Path | MissingData]:
    """Each source's root, or why it is not here."""
    found: dict[str, Path | MissingData] = {}
    for name, entry in sources().items():
        try:
            found[name] = entry.locate()
        except MissingData as reason:
            found[name] = reason
    return found


def rows(family: str, names: Iterable[str] | None = None, *, usable: bool = True, progress: Progress | None = None) -> pl.DataFrame:
    """All rows of a family from the named sources (default: those that are here), without what quality set aside unless asked."""
    frames = [pl.read_parquet(path) for path in files(family, names, progress=progress)]
    joined = pl.concat(frames) if frames else pl.DataFrame(schema=schema(family))
    return quality.usable(joined) if usable else joined


def scan(family: str, names: Iterable[str] | None = None) -> pl.LazyFrame:
    """As `rows(usable=False)`, without loading."""
    paths = files(family, names)
    return pl.scan_parquet(paths) if paths else pl.LazyFrame(schema=schema(family))


def files(family: str, names: Iterable[str] | None = None, *, progress: Progress | None = None) -> list[Path]:
    """The stored files of a family, made now where they are missing or stale. Named sources must be here; by default any one will do."""
    if family not in FAMILIES:
        raise UnknownName.among("family", family, FAMILIES)
    if names is None:
        roots = {name: root for name, root in available().items() if isinstance(root, Path)}
        if not roots:
            raise MissingData("no measured data here: run 'tilecast data pull', or set $TILECAST_DATA (see docs/data.md)")
    else:
        roots = {name: source(name).locate() for name in names}
    made = (_stored(name, root, family, progress) for name, root in roots.items())
    return [path for path in made if path is not None]


def families(name: str) -> list[str]:
    """The families a source has rows of, in the schema's order."""
    present = {table.family for table in source(name).tables(source(name).locate())}
    return [family for family in FAMILIES if family in present]


def _stored(name: str, root: Path, family: str, progress: Progress | None) -> Path | None:
    entry = source(name)
    tables = [table for table in entry.tables(root) if table.family == family]
    if not tables:
        return None
    fingerprint = _fingerprint(entry.fingerprint(root))
    path = cache_folder() / "store" / name / f"{family}-{fingerprint}.parquet"
    if not _is_readable(path):
        frame = quality.judge(ingest(entry, root, tables, progress), family)
        with replacing(path) as temporary:
            frame.write_parquet(temporary, compression="zstd", compression_level=3)
        for stale in path.parent.glob(f"{family}-*.parquet"):
            if stale != path:
                stale.unlink(missing_ok=True)
    return path


def _is_readable(path: Path) -> bool:
    """Whether the file is there and whole; a damaged one is made anew."""
    try:
        pl.read_parquet_schema(path)
    except (OSError, pl.exceptions.PolarsError):
        return False
    return True


def ingest(entry: DataSource, root: Path, tables: list[Table], progress: Progress | None = None) -> pl.DataFrame:
    """The tables' rows (of one family) in the schema, unjudged."""
    frames = []
    for done, table in enumerate(tables):
        if progress:
            progress(f"{entry.name} {table.family}", done, len(tables))
        frames.append(entry.read(root, table))
    if progress:
        progress(f"{entry.name} {tables[0].family}", len(tables), len(tables))
    return pl.concat(frames, rechunk=False)


def _fingerprint(raw: str) -> str:
    parts = {"raw": raw, "schema": SCHEMA_VERSION, "catalogue": hardware.catalogue_hash(), "code": _code_hash()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


@cache
def _code_hash() -> str:
    """Of the readers and checks: a changed one makes what it wrote stale."""
    digest = hashlib.sha256()
    for path in sorted([*Path(__file__).parent.glob("*.py"), *SOURCE_FOLDER.rglob("*.py"), Path(__file__).parents[1] / "dtypes.py"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()
