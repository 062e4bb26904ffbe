"""Where pulled and ingested files live. They are written under a temporary name and then renamed, so a cut leaves no half file."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilecast.errors import MissingData

VARIABLE = "TILECAST_CACHE"
TEMPORARY = ".partial-"


def cache_folder() -> Path:
    """$TILECAST_CACHE, or the platform's own place for caches."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "tilecast"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tilecast"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilecast"


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise before starting what the disk cannot hold."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise MissingData(f"{what} needs {needed_bytes / 1e6:.0f} MB in {existing}, which has {free_bytes / 1e6:.0f} MB free")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes `path`'s place only when the block ends well."""
    temporary = _folder_for(path) / f"{TEMPORARY}{os.getpid()}-{path.name}"
    try:
        yield temporary
        temporary.replace(path)
    except OSError as problem:
        raise MissingData(f"cannot write {path}: {problem.strerror or problem}") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A temporary folder inside `parent`; leftovers of an earlier interrupted run are removed first."""
    folder = _folder_for(parent / "x")
    for leftover in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _folder_for(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise MissingData(f"cannot make the folder {path.parent}: {problem.strerror or problem}") from None
    return path.parent
