"""Which suites there are: the files of `suites/` that define SUITE. A file is imported only when its suite is asked for."""

import re
from importlib import import_module
from pathlib import Path

from benchmarks.accuracy.result import Suite
from tilecast.datasets import store
from tilecast.datasets.sources.folder import data_folder
from tilecast.errors import UnknownName

FOLDER = Path(__file__).parent / "suites"
DEFINES_SUITE = re.compile(r"^SUITE\b", re.MULTILINE)


def names(folder: Path = FOLDER) -> list[str]:
    """Suite names, by file name: `kernels_indist.py` is "kernels-indist"."""
    found = (path for path in sorted(folder.glob("*.py")) if DEFINES_SUITE.search(path.read_text(encoding="utf-8")))
    return [path.stem.replace("_", "-") for path in found]


def suite(name: str) -> Suite:
    if name not in names():
        raise UnknownName.among("suite", name, names())
    found: Suite = import_module(f"benchmarks.accuracy.suites.{name.replace('-', '_')}").SUITE
    return found


def require_data(suite: Suite) -> None:
    """Raise MissingData when a source or folder that the suite needs is not here."""
    for name in suite.needs:
        store.source(name).locate()
    for name in suite.folders:
        data_folder(name)
