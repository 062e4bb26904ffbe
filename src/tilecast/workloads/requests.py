"""A file of requests: one line each, with the columns input_tokens and output_tokens."""

import csv
from pathlib import Path

from tilecast.errors import InvalidInput, MissingData
from tilecast.workloads.graph import LONGEST

COLUMNS = ("input_tokens", "output_tokens")


def read_requests(path: str | Path) -> list[tuple[int, int]]:
    """(input, output) tokens of every request; a problem is one sentence with its line."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            header = [name.strip() for name in reader.fieldnames or []]
            if not header:
                raise InvalidInput(f"{path} is empty; it must start with the line input_tokens,output_tokens")
            if twice := [name for name in COLUMNS if header.count(name) > 1]:
                raise InvalidInput(f"{path} has the column {twice[0]} more than once")
            if missing := [name for name in COLUMNS if name not in header]:
                raise InvalidInput(f"{path} lacks the column {missing[0]}; it must start with the line input_tokens,output_tokens")
            reader.fieldnames = header
            requests = [_request(row, path, reader.line_num) for row in reader if any(str(value or "").strip() for value in row.values())]
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except OSError as problem:
        raise MissingData(f"cannot read {path}: {problem}") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InvalidInput(f"{path} is no CSV in UTF-8: {problem}") from None
    if not requests:
        raise InvalidInput(f"{path} holds no requests")
    return requests


def unused_columns(path: str | Path) -> list[str]:
    """Columns of a file that `read_requests` could read, and does not: arrival times, for one."""
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        return [name.strip() for name in next(csv.reader(file)) if name.strip() not in ("", *COLUMNS)]


def _request(row: dict[str, str | None], path: str | Path, line: int) -> tuple[int, int]:
    if any(extra := row.get(None) or []):  # type: ignore[call-overload]  # where DictReader keeps cells without a column
        raise InvalidInput(f"{path} line {line}: {', '.join(extra)} stands behind the last column")
    asked, given = (_tokens(row, name, path, line) for name in COLUMNS)
    return asked, given


def _tokens(row: dict[str, str | None], name: str, path: str | Path, line: int) -> int:
    text = (row[name] or "").strip()
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= LONGEST or len(text) > 12:
        raise InvalidInput(f"{path} line {line}: {name} = {text!r} must be a whole number from 1 to {LONGEST:,}")
    return int(text)
