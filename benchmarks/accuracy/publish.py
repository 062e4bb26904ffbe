"""A result as files: JSON with everything, Markdown to read, and one README over all suites made from the JSON files found."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.accuracy.comparison import best, champion, mape_by, num_cases, same_rows
from benchmarks.accuracy.intervals import interval_shares
from benchmarks.accuracy.result import Result, by_slice, headline, worst
from tilecast.errors import SpecError

SCORES = ("mape", "median", "p90", "bias")
README_MARKERS = ("<!-- accuracy:begin -->", "<!-- accuracy:end -->")
ERROR_RULE = "Error of a row: |predicted - measured| / measured; a score is the mean over slices. All scores in percent."


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What produced a result."""

    version: str
    catalogue: str
    artifacts: str
    date: str
    command: str
    quick: bool


# ---- JSON --------------------------------------------------------------------------------------------------------


def document(result: Result, run: Run) -> dict[str, Any]:
    """The whole result as plain JSON values."""
    result = replace(result, shares=[*result.shares, *interval_shares(result)])
    table = headline(result)
    chosen = champion(table)
    return {
        "suite": result.suite,
        "question": result.question,
        "target": result.target,
        "tilecast": run.version,
        "catalogue": run.catalogue,
        "artifacts": run.artifacts,
        "date": run.date,
        "command": run.command,
        "quick": run.quick,
        "slices": list(result.slices),
        "headline": records(table),
        "same_rows": [{"rows_of": names, "headline": records(part)} for names, part in same_rows(result)],
        "by_slice": records(by_slice(result)),
        "worst": {"predictor": chosen, "cases": records(worst(result, chosen)) if chosen else []},
        "splits": [plain(split) for split in result.splits],
        "shares": [plain(share) for share in result.shares],
        "notes": list(result.notes),
    }


def records(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [plain(row) for row in frame.to_dicts()]


def plain(value: Any) -> Any:
    """JSON values alone; floats to six digits, what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def as_json(document: Mapping[str, Any]) -> str:
    """One line per record: small files whose differences can be read."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in value)
            lines.append(f"  {json.dumps(key)}: [\n{entries}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


# ---- Markdown ----------------------------------------------------------------------------------------------------


def percent(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 9999.5 else f"{value:.1e}"


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return percent(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).replace("|", "\\|")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded, so that it reads in a terminal too."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = ["| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in lines]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def frame_table(frame: pl.DataFrame) -> str:
    return markdown_table(frame.columns, ([cell(value) for value in row] for row in frame.iter_rows()))


def headline_table(table: pl.DataFrame) -> str:
    return frame_table(table.select("predictor", "kind", *SCORES, "slices", "rows", "failed").sort("mape", "predictor"))


def worst_table(result: Result, predictor: str) -> str:
    cases = worst(result, predictor).drop("predictor", "kind", "low", "high", strict=False)
    error = (100 * pl.col("error")).alias("error %")
    times = pl.col("measured", "predicted").map_elements(lambda value: f"{value:.4g}", pl.String)
    return frame_table(cases.with_columns(error, times).drop("error"))


def markdown(result: Result, run: Run, plots: Sequence[str] = ()) -> str:
    """The result as a page."""
    result = replace(result, shares=[*result.shares, *interval_shares(result)])
    table = headline(result)
    chosen = champion(table)
    subset = " (quick: a small fixed subset)" if run.quick else ""
    parts = [
        f"# {result.suite}",
        result.question,
        *([f"**To beat:** {result.target}"] if result.target else []),
        f"tilecast {run.version}, catalogue {run.catalogue}, artifacts {run.artifacts}, {run.date}: `{run.command}`{subset}",
        "## Scores",
        ERROR_RULE,
        headline_table(table),
    ]
    for names, part in same_rows(result):
        parts += [f"### On exactly the rows that {', '.join(names)} answered", headline_table(part)]
    if result.shares:
        parts += ["## Shares and correlations", _shares_table(result.shares)]
    parts += [f"![{name}]({name})" for name in plots]
    for columns in _breakdowns(result.slices):
        parts += [f"## Mean absolute error by {', '.join(columns).replace('_', ' ')}", frame_table(mape_by(result, *columns))]
    if chosen is not None:
        parts += [f"## Worst ten of {chosen}", worst_table(result, chosen)]
    if result.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in result.notes)]
    return "\n\n".join(parts) + "\n"


def _breakdowns(slices: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Each slice column alone, then the first two, three, ... of them."""
    alone = [(name,) for name in slices] if len(slices) > 1 else []
    return [*alone, *(slices[:count] for count in range(2 if alone else 1, len(slices) + 1))]


def _shares_table(shares: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(key for share in shares for key in share))
    return markdown_table(columns, ([_share_cell(share.get(column)) for column in columns] for share in shares))


def _share_cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else cell(value)


# ---- files -------------------------------------------------------------------------------------------------------


def write(result: Result, run: Run, folder: Path, plots: Sequence[str] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.suite}.json").write_text(as_json(document(result, run)), encoding="utf-8", newline="\n")
    (folder / f"{result.suite}.md").write_text(markdown(result, run, plots), encoding="utf-8", newline="\n")


def write_summary(folder: Path) -> None:
    """README.md over every suite whose JSON lies in `folder`."""
    rows = [_summary_row(entry) for entry in _documents(folder)]
    header = ("suite", "best baseline", "best peer", "tilecast", "target", "date")
    text = [
        "# Accuracy",
        "One row per suite; `python -m benchmarks.accuracy [SUITE...]` makes these files. " + ERROR_RULE,
        "What answers only part of a suite is marked with its number of rows; the suite's page has everybody on exactly those rows.",
        markdown_table(header, rows),
    ]
    (folder / "README.md").write_text("\n\n".join(text) + "\n", encoding="utf-8", newline="\n")


def write_readme(readme: Path, folder: Path) -> None:
    """The accuracy table between README's markers, made from the JSON files of `folder`; the rest of the page stays as it is."""
    before, begin, rest = readme.read_text(encoding="utf-8").partition(README_MARKERS[0])
    _, end, after = rest.partition(README_MARKERS[1])
    if not begin or not end:
        raise SpecError(f"{readme.name} lacks the markers {' and '.join(README_MARKERS)}")
    where = folder.relative_to(readme.parent).as_posix()
    rows = []
    for entry in _documents(folder):
        name, *scores, _, day = _summary_row(entry)
        rows.append([name.replace("](", f"]({where}/"), *scores, day])
    table = markdown_table(("suite", "best baseline", "best peer", "tilecast", "date"), rows)
    readme.write_text(f"{before}{begin}\n{table}\n\n{ERROR_RULE}\n{end}{after}", encoding="utf-8", newline="\n")


def _documents(folder: Path) -> list[dict[str, Any]]:
    """The accuracy results that lie in `folder`; other benchmarks write there too."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return [entry for entry in found if "headline" in entry]


def _summary_row(entry: Mapping[str, Any]) -> list[str]:
    table = pl.DataFrame(entry["headline"], infer_schema_length=None)
    name = f"[{entry['suite']}]({entry['suite']}.md)" + (" (quick)" if entry["quick"] else "")
    baseline, peer, ours = (_summary_cell(table, kind) for kind in ("baseline", "peer", "ours"))
    return [name, baseline, peer, ours + _on_the_peers_rows(entry, table), cell(entry["target"] or None), entry["date"]]


def _on_the_peers_rows(entry: Mapping[str, Any], table: pl.DataFrame) -> str:
    """Our score where the best peer has one, if that is not everywhere."""
    peer, ours = (best(table, kind) if table.height else None for kind in ("peer", "ours"))
    for same in entry["same_rows"]:
        if peer in same["rows_of"]:
            found = [row["mape"] for row in same["headline"] if row["predictor"] == ours and row["mape"] is not None]
            return f"; {percent(found[0])} on the peer's rows" if found else ""
    return ""


def _summary_cell(table: pl.DataFrame, kind: str) -> str:
    chosen = best(table, kind) if table.height else None
    if chosen is None:
        return "-"
    row = table.filter(pl.col("predictor") == chosen).to_dicts()[0]
    total = num_cases(table)
    covered = f" ({row['rows']:,} of {total:,} rows)" if row["rows"] < total else ""
    return f"{chosen} {percent(row['mape'])}{covered}"
