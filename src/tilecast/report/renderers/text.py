"""A Report as JSON or CSV: data for the next program, SI values, nothing else on stdout."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tilecast.report.record import Report


def as_json(report: Report) -> str:
    return json.dumps(report.payload, indent=2, ensure_ascii=False, default=_plain)


def as_csv(report: Report) -> str:
    """One line per record; a column that only some records have is empty in the others."""
    records = [dict(flattened(record)) for record in report.records]
    columns = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def flattened(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat += flattened(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            flat.append((prefix + name, _listed(value)))
        else:
            flat.append((prefix + name, cell(value)))
    return flat


def _listed(values: Sequence[Any]) -> str:
    """Words and numbers one after the other; what has parts of its own as JSON."""
    if any(isinstance(value, Mapping | list | tuple) for value in values):
        return json.dumps(values, ensure_ascii=False, default=_plain)
    return "; ".join(str(cell(value)) for value in values)


def cell(value: Any) -> Any:
    """As `tilecast kernels` reads and writes cells: empty, true, false, lists as JSON."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
