"""A benchmark that scores a few variants of the model on what was held out: its table, its page and its command line."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.accuracy.publish import markdown_table
from tilecast.errors import TilecastError

RESULTS = Path(__file__).parent / "results"
HELD_OUT = ("shapes", "generation")

Rows = list[dict[str, Any]]  # family, held_out, variant, mape


def page(title: str, doc: str, note: str, found: Rows) -> str:
    """One row for each family and what was held out, one column for each variant, in the order they were scored."""
    variants, families = (list(dict.fromkeys(row[name] for row in found)) for name in ("variant", "family"))
    scores = {(row["family"], row["held_out"], row["variant"]): f"{row['mape']:.1f}" for row in found}
    body = [[family, held_out, *(scores[family, held_out, name] for name in variants)] for family in families for held_out in HELD_OUT]
    what = f"Mean absolute error in percent, mean over (GPU, engine); {note}. {date.today()}"
    table = markdown_table(["family", "held out", *variants], body)
    return "\n\n".join([f"# {title}", doc.split("\n\n")[1].replace("\n", " "), what, table]) + "\n"


def command(
    name: str, doc: str, measure: Callable[[bool], Rows], written: Callable[[Rows, bool], str], given: Sequence[str] | None = None
) -> int:
    """`python -m benchmarks.NAME [--quick]`: print the page, and write it with its figures unless --quick."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rows; print, write nothing")
    options = parser.parse_args(given)
    try:
        found = measure(options.quick)
    except TilecastError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    text = written(found, options.quick)
    print(text)
    if not options.quick:
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
        (RESULTS / f"{name}.json").write_text(json.dumps({name: found, "date": str(date.today())}, indent=1) + "\n", encoding="utf-8")
    return 0
