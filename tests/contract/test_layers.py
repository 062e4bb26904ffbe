"""Imports point up the list: a part may use the parts before it, never those after."""

import ast
from pathlib import Path

import pytest

import tilecast

LAYERS = (
    "__init__ errors units dtypes palette markup hardware execution kernels datasets learning predictors workloads engines serving "
    "diagnosis tuning explore collect report cli web __main__"
).split()
ROOT = Path(tilecast.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part(path: Path) -> str:
    return Path(path.relative_to(ROOT).parts[0]).stem


def imported_parts(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("tilecast.")} - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up(path):
    below = {name for name in imported_parts(path) if LAYERS.index(name) > LAYERS.index(part(path))}
    assert not below, f"{path.relative_to(ROOT)} reaches down into {sorted(below)}"
