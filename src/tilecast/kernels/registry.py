"""The kernel families: every file of this folder that defines KERNELS is one, or several that share a shape."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tilecast.errors import UnknownName

FOLDER = Path(__file__).parent
NOT_KERNELS = ("__init__", "base", "contract", "registry")


@cache
def kernels() -> dict[str, Any]:
    """Family -> the record class of its launch parameters."""
    return {family: record for file in _files() for family, record in _defined_in(file).items()}


@cache
def kernel(family: str) -> Any:
    """The record class of one family: of the file with its name where there is one, and no other need be read."""
    defined = _defined_in(family) if family in _files() else {}
    if family not in defined and family not in kernels():
        raise UnknownName.among("family", family, kernels())
    return defined.get(family) or kernels()[family]


@cache
def _files() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_KERNELS))


@cache
def _defined_in(file: str) -> dict[str, Any]:
    return {record.family: record for record in getattr(import_module(f"tilecast.kernels.{file}"), "KERNELS", ())}
