"""A Report on a terminal: the answer first, then the tables, then the line that reproduces it."""

import os
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilecast import palette
from tilecast.report.record import Grid, Report, versions

NARROWEST = 32  # columns of a text that wraps
FILE_WIDTH = 200  # when stdout is a file or a pipe, no terminal limits the width


def show(report: Report) -> None:
    console = _console()
    console.print(Text(report.answer, style=palette.ANSWER))
    for grid in report.grids:
        console.print()
        _show_grid(console, grid)
    if report.closing:
        console.print()
        console.print(Text(report.closing, style=palette.ANSWER))
    made_by = " · ".join([*(f"{name} {version}" for name, version in versions().items()), report.command])
    console.print()
    console.print(Text(made_by, style=palette.QUIET))


def _console() -> Console:
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return Console(highlight=False)
    return Console(highlight=False, width=FILE_WIDTH)


def _show_grid(console: Console, grid: Grid) -> None:
    columns, hidden = _fitting(grid, console.width)
    if grid.title:
        console.print(Text(grid.title, style=palette.ANSWER))
    table = Table(box=None, pad_edge=False, header_style=palette.EMPHASIS)
    for position, name in enumerate(columns):
        is_number = name in grid.right
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number or position == 0, overflow="fold")
    places = [grid.columns.index(name) for name in columns]
    for row in grid.rows:
        table.add_row(*(Text(row[place]) for place in places))
    console.print(table)
    if hidden := [name for name in hidden if name]:
        console.print(Text(f"left out on {console.width} columns: {', '.join(hidden)} (--csv and --json have all)", style=palette.QUIET))


def _fitting(grid: Grid, width: int) -> tuple[list[str], list[str]]:
    """The columns that fit, and the spare ones that had to go."""
    widest = {name: max([len(name), *(len(row[place]) for row in grid.rows)]) for place, name in enumerate(grid.columns)}
    if grid.wraps:
        widest[grid.wraps] = min(widest[grid.wraps], NARROWEST)
    columns, hidden = list(grid.columns), list[str]()
    for name in reversed(grid.spare):
        if sum(widest[kept] + 2 for kept in columns) - 2 <= width:
            break
        columns.remove(name)
        hidden.append(name)
    return columns, [name for name in grid.columns if name in hidden]
