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
    modules = (import_module(f"tilecast.kernels.{path.stem}") for path in sorted(FOLDER.glob("*.py")) if path.stem not in NOT_KERNELS)
    return {kernel.family: kernel for module in modules for kernel in getattr(module, "KERNELS", ())}


def kernel(family: str) -> Any:
    if family not in kernels():
        raise UnknownName.among("family", family, kernels())
    return kernels()[family]
