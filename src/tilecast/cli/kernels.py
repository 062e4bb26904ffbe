"""`tilecast kernels IN --out OUT`: predict every row of a file; row order kept, format by extension."""

import csv
from collections import Counter
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any

import click
import numpy as np

from tilecast import hardware, units
from tilecast.cli.files import target_file, written_whole
from tilecast.cli.output import command_line, emit, output_options, profile_option, say
from tilecast.cli.parameters import LISTS, RATES, TEXTS, check_lengths, meant, plain_value
from tilecast.errors import InvalidInput, MissingData, MissingExtra, TilecastError
from tilecast.report import Report, versions
from tilecast.report.renderers.text import cell

ADDED = ("median_s", "low_s", "high_s", "bound_s", "analytic_s", "bound_by", "basis")
COMMON = ("family", "gpu", "dtype", "identity", "timer", "cache", "engine")
SINGLE = (*TEXTS, *LISTS, *RATES, "tile", "split")  # what a record has one of, for all its launches
FORMATS = (".csv", ".parquet")
# What `tilecast data export` and `tilecast calibrate` know besides: carried over without a word.
OF_MEASUREMENTS = (
    "engine_version", "kernel", "clock", "latency_s", "measured_s", "statistic", "num_repeats", "spread_s", "power_w", "source", "licence",
    "origin", "origin_row", "set_aside", "attributes", "active_experts",
)  # fmt: skip
MISSPELT = 0.8  # difflib's ratio: a column this much like a parameter is taken for one


@click.command(name="kernels")
@click.argument("source", metavar="IN")
@click.option("--out", "-o", "target", required=True, metavar="OUT", help="Where to write: .csv or .parquet.")
@click.option("--keep-going", is_flag=True, help="Leave bad rows empty instead of stopping at the first.")
@profile_option
@output_options
def command(source: str, target: str, keep_going: bool, profile: str | None, **output: bool) -> None:
    """Predict every row of IN: columns family, gpu, dtype, [identity, timer, cache, engine] and the parameters of the family.

    Other columns are carried over and named, unless they look like a misspelt parameter: those are refused.
    """
    if Path(source).suffix.lower() not in FORMATS:
        raise InvalidInput(f"{source!r} must end in {' or '.join(FORMATS)}")
    path = target_file("--out", target, FORMATS, reads=(source, profile))
    columns = read(Path(source))
    if unread := check_columns(columns):
        say(f"carried over unread: {', '.join(unread)}")
    more = f"{f', keep_going={keep_going}' if keep_going else ''}{f', profile={profile!r}' if profile else ''}"
    python = (
        "from pathlib import Path\nfrom tilecast.cli import kernels\n"
        f"columns = kernels.read(Path({source!r}))\npredicted, bad = kernels.predict_rows(columns{more})\n"
        f"kernels.write(Path({target!r}), columns | predicted)"
    )
    line = command_line("kernels", source, out=target, keep_going=keep_going, profile=profile)
    if output["as_python"]:
        emit(Report(answer="", python=python), **output)
        return
    predicted, bad = predict_rows(columns, keep_going=keep_going, profile=profile)
    named = zip(meanings(columns)["gpu"], predicted["median_s"], strict=True)
    for name in dict.fromkeys(name for name, seconds in named if seconds is not None):
        if note := hardware.resolution_note(name):
            say(note)
    write(path, columns | predicted)
    if foreign := foreign_cells(columns):
        say(f"carried over unread, as these kernels have no such parameter: {foreign}")
    for row, reason in bad[:10]:
        say(f"row {row + 1}: {reason}")
    num_rows = len(next(iter(columns.values())))
    answer = f"Predicted {num_rows - len(bad):,} of {num_rows:,} rows into {target}{f', with the profile {profile}' if profile else ''}."
    payload = {"rows": num_rows, "predicted": num_rows - len(bad), "bad": len(bad), "path": target, "versions": versions()}
    payload |= {"profile": _told(profile)} if profile else {}
    emit(Report(answer=answer, payload=payload, records=[payload], python=python, command=line), **output)


def check_columns(columns: dict[str, list[Any]]) -> list[str]:
    """The columns that mean nothing here; one that looks like a misspelt parameter is refused, as it would be a default in silence."""
    from difflib import get_close_matches

    from tilecast.kernels.registry import kernels

    _check_has(columns)
    parameters = _parameters()
    unread = [name for name in columns if name and name not in _known()]
    for name in unread:
        if near := get_close_matches(name, sorted({*COMMON, *parameters}), n=1, cutoff=MISSPELT):
            families = sorted({str(family) for family in columns.get("family", []) if str(family) in kernels()})
            own = [entry.name for family in families for entry in fields(kernels()[family])]
            allowed = ", ".join(dict.fromkeys([*COMMON, *own]))
            raise InvalidInput(f"unknown column {name!r}: did you mean {near[0]}? Allowed here are {allowed}")
    return unread


def foreign_cells(columns: dict[str, list[Any]]) -> str:
    """Filled cells that the family of their row does not have, and that so change nothing: "window of mla_decode (3 rows)"."""
    from tilecast.kernels.registry import kernels

    families = list(map(str, columns["family"]))
    own = {family: {entry.name for entry in fields(kernels()[family])} for family in {*families} & {*kernels()}}
    asked = [name for name in columns if name in _parameters() - {*COMMON, *OF_MEASUREMENTS}]
    found = Counter(
        (name, family)
        for name in asked
        for family, cell in zip(families, _meant(name, columns[name]), strict=True)
        if cell is not None and family in own and name not in own[family]
    )
    return ", ".join(f"{name} of {family} ({number:,} row{'s' if number > 1 else ''})" for (name, family), number in found.items())


def _parameters() -> set[str]:
    from tilecast.kernels.registry import kernels

    return {entry.name for record in kernels().values() for entry in fields(record)}


def _known() -> set[str]:
    return {*COMMON, *ADDED, *OF_MEASUREMENTS, *_parameters()}


def _check_has(columns: dict[str, list[Any]]) -> None:
    for name in ("family", "gpu"):
        if name not in columns:
            raise InvalidInput(f"the column {name!r} is missing; it has {', '.join(columns)}")


def predict_rows(
    columns: dict[str, list[Any]], *, keep_going: bool = False, profile: str | None = None
) -> tuple[dict[str, list[Any]], list[tuple[int, str]]]:
    """The added columns, in row order, and the rows that could not be predicted with the reason."""
    _check_has(columns)
    columns = meanings(columns)
    num_rows = len(columns["family"])
    added: dict[str, list[Any]] = {name: [None] * num_rows for name in ADDED}
    bad: list[tuple[int, str]] = []
    for rows in _groups(columns, num_rows).values():
        try:
            _predict_group(columns, rows, added, profile)
        except TilecastError:  # one of them is bad: find out which
            for row in rows:
                try:
                    _predict_group(columns, [row], added, profile)
                except TilecastError as problem:
                    if not keep_going:
                        raise type(problem)(f"row {row + 1}: {problem}") from None
                    bad.append((row, str(problem)))
    return added, sorted(bad)


def meanings(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns as values of kernels' parameters. What is only carried over stays as it is; so does a measurement that is no number."""
    asked = {*COMMON, *_parameters()}
    found = {name: _meant(name, cells) if name in asked else cells for name, cells in columns.items()}
    if "measured_s" in found:
        found["measured_s"] = [_value(cell) if isinstance(cell, str) else cell for cell in found["measured_s"]]
    return found


def _meant(name: str, cells: list[Any]) -> list[Any]:
    kinds = set(map(type, cells))
    if kinds <= {int, bool, NoneType} and name not in LISTS:
        return cells
    texts = {text: meant(name, text) for text in {cell for cell in cells if type(cell) is str}}
    return [texts[cell] if type(cell) is str else meant(name, cell) for cell in cells]


def _told(profile: str) -> dict[str, Any]:
    from tilecast.learning.profiles import read as read_profile

    return read_profile(Path(profile).resolve()).told()


def _groups(columns: dict[str, list[Any]], num_rows: int) -> dict[tuple[Any, ...], list[int]]:
    """Rows that differ only in whole-number sizes, or in what is only carried over, go through the model together."""
    columns = {name: values for name, values in columns.items() if name in COMMON or name in _parameters()}
    texts = [name for name, values in columns.items() if any(isinstance(value, str | bool) for value in values)]
    keys = list(dict.fromkeys([*(name for name in (*COMMON, *SINGLE) if name in columns), *texts]))
    empty = [name for name in columns if name not in keys]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in range(num_rows):
        key = (*(columns[name][row] for name in keys), *(columns[name][row] is None for name in empty))
        groups.setdefault(key, []).append(row)
    return groups


def _predict_group(columns: dict[str, list[Any]], rows: list[int], added: dict[str, list[Any]], profile: str | None) -> None:
    from tilecast.kernels.registry import kernel
    from tilecast.predictors.kernel import predict_kernel

    first = {name: values[rows[0]] for name, values in columns.items()}
    if not first["family"]:
        raise InvalidInput("family is empty")
    if not first["gpu"]:
        raise InvalidInput("gpu is empty")
    record = kernel(first["family"])
    known = {entry.name for entry in fields(record)}
    arguments: dict[str, Any] = {}
    for name, value in first.items():
        if name in known and value is not None:
            is_one = name in SINGLE or isinstance(value, str | bool)
            arguments[name] = _single(name, value) if is_one else np.array([columns[name][row] for row in rows])
    if any(name in arguments for name in LISTS):
        for row in rows:
            check_lengths({name: columns[name][row] for name in arguments})
    try:
        built = record(**arguments)
    except TypeError as problem:
        missing = str(problem).partition("argument")[2].lstrip("s: ").strip()
        raise InvalidInput(f"{first['family']} lacks {missing}") from None
    timing = {name: first[name] for name in ("timer", "cache", "engine") if first.get(name)}
    prediction = predict_kernel(built, first["gpu"], **timing, profile=profile)
    values = {name: getattr(prediction, name) for name in ("median_s", "low_s", "high_s", "bound_s", "analytic_s", "basis")}
    values["bound_by"] = prediction.analysis.bound_by
    for name, array in values.items():
        spread = np.broadcast_to(array, len(rows)).tolist()
        for place, row in enumerate(rows):
            added[name][row] = spread[place]


def _single(name: str, value: Any) -> Any:
    return units.parse(name, value) if name in RATES and isinstance(value, str) else value


# ---- files -------------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, list[Any]]:
    """Columns of a CSV or parquet file as they are to be written again: `meanings` says what they ask for. In a CSV an empty cell is None,
    blank lines are none, and whole numbers and true / false are values; a name, and what is only carried over where a number would be
    written otherwise (007), stays the text it is."""
    if not path.is_file():
        raise MissingData(f"no file {path}")
    if path.suffix.lower() == ".parquet":
        pl = _polars()
        try:
            frame = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise MissingData(f"{path} is damaged or no parquet file: {str(problem).splitlines()[0]}") from None
        columns = {name: frame[name].to_list() for name in frame.columns}
    else:
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                table = [line for line in csv.reader(file) if len(line) > 1 or "".join(line).strip()]
        except OSError as problem:
            raise MissingData(f"cannot read {path}: {problem}") from None
        except (UnicodeDecodeError, csv.Error) as problem:
            raise InvalidInput(f"{path} is no CSV in UTF-8: {problem}") from None
        if not table:
            raise InvalidInput(f"{path} is empty")
        header, *lines = table
        ragged = next((place for place, line in enumerate(lines) if len(line) != len(header)), None)
        if ragged is not None:
            raise InvalidInput(f"{path}, row {ragged + 1} has {len(lines[ragged])} cells, the header {len(header)}")
        names = [name.strip() for name in header]
        if twice := next((name for name in names if name and names.count(name) > 1), None):
            raise InvalidInput(f"{path} has the column {twice!r} twice")
        numbers = {*_parameters(), "measured_s"} - {*COMMON, *TEXTS, *LISTS}
        columns = {name: [(_value if name in numbers else _carried)(line[place]) for line in lines] for place, name in enumerate(names)}
    if not columns or not next(iter(columns.values())):
        raise InvalidInput(f"{path} has no rows")
    return columns


def _value(text: str) -> Any:
    plain = text.strip()
    return plain_value(plain) if plain else None


def _carried(text: str) -> Any:
    found = _value(text)
    return found if found is None or str(cell(found)) == text else text


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    """All columns, under a temporary name first."""
    with written_whole("--out", path) as draft:
        if path.suffix.lower() == ".parquet":
            _polars().DataFrame(columns, strict=False).write_parquet(draft)
        else:
            with draft.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows(zip(*([cell(value) for value in values] for values in columns.values()), strict=True))


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise MissingExtra.of("data", "a parquet file") from None
    return polars
