"""`tilecast predict` with several GPUs, group sizes, batches or concurrencies: one table, best first, and a sentence on who wins."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from tilecast import hardware, units
from tilecast.cli.output import say
from tilecast.cli.ranges import numbers
from tilecast.errors import InvalidInput
from tilecast.explore.comparison import (
    BEST_OF_EACH,
    DEFAULT,
    Comparison,
    Configuration,
    Progress,
    compare,
    metric_named,
    name_of,
    told,
    told_interval,
)
from tilecast.report import Grid, Report, versions

BAR_WIDTH = 30
MOST_SHOWN = 30
PATIENCE_S = 1.0  # before anything is said of progress


def arguments(
    gpu: str, by: str | None, given: dict[str, Any], concurrency: str | None, requests: list[tuple[int, int]] | None,
    overrides: dict[str, str], workers: list[str],
) -> dict[str, Any]:  # fmt: skip
    """What `compare` is asked, but for the model."""
    names = [name.strip() for name in gpu.split(",")]
    if not all(names):
        raise InvalidInput(f"--gpu {gpu} must be ids with commas between them, e.g. h100-sxm,a100-sxm-80gb")
    metric_named(by or DEFAULT)
    sizes: dict[str, Any] = {"gpus": names, "tps": numbers("--tp", given["tp"])}
    if concurrency is not None:
        sizes["concurrencies"] = numbers("--concurrency", concurrency)
    elif requests is None:
        sizes["batches"] = numbers("--batch", given["batch"])
    lengths = {"isl": given["isl"], "osl": given["osl"]} if requests is None else {"requests": requests}
    rest = {name: value for name, value in given.items() if name not in ("tp", "batch", "isl", "osl") and value not in (None, "sglang")}
    sizes |= {"disaggregated": workers} if workers else {}
    return sizes | lengths | rest | ({"overrides": overrides} if overrides else {}) | {"by": by or DEFAULT}


def compared(model: str, asked: dict[str, Any]) -> Comparison:
    for name in asked["gpus"]:
        if note := hardware.resolution_note(name):
            say(note)
        if asked.get("profile"):
            from tilecast.learning.profiles import opened

            opened(asked["profile"], hardware.gpu(name, asked.get("overrides")))  # one GPU calibrated beside others is no comparison
    each = len(asked.get("concurrencies") or asked.get("batches") or (1,)) * max(1, len(asked.get("disaggregated", ())))
    with reported(len(asked["gpus"]) * len(asked["tps"]) * each) as progress:
        found = compare(model, progress=progress, **asked)
    for warning in found.warnings:
        say(warning)
    return found


@contextmanager
def reported(total: int) -> Iterator[Progress]:
    """How far it is, on stderr, once it has taken a second: one line that renews itself, or on a file a line now and then."""
    started = last = time.monotonic()
    is_terminal, shown = sys.stderr.isatty(), False

    def progress(done: int, of: int) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if now - started < PATIENCE_S or done >= of or now - last < (0.1 if is_terminal else 5.0 if shown else 0.0):
            return
        last, shown = now, True
        text = f"tilecast: {done:,} of {of:,} configurations, {done / (now - started):,.0f} a second"
        print(f"\r\x1b[2K{text}" if is_terminal else text, end="" if is_terminal else "\n", file=sys.stderr, flush=True)

    try:
        yield progress
    finally:
        if is_terminal and shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
    if total > 1000:
        taken = time.monotonic() - started
        say(f"{total:,} configurations in {taken:.1f} s, {total / taken:,.0f} a second")


# ---- the report --------------------------------------------------------------------------------------------------


def report_of(model: str, asked: dict[str, Any], inputs: dict[str, Any], line: str, page: Path | None, as_python: bool) -> Report:
    """The report of what `asked` compares, and its page where one was asked for; `as_python`, the call alone."""
    call = python(model, asked)
    if as_python:
        return Report(answer="", python=call)
    found = compared(model, asked)
    report = comparison_report(found, {"model": found.model, **inputs}, line, call)
    if page is not None:
        from tilecast.cli.files import write_whole
        from tilecast.report.renderers import comparison_html

        write_whole("--html", page, comparison_html.page(report))
    return report


def comparison_report(found: Comparison, inputs: dict[str, Any], line: str, python: str) -> Report:
    payload = {**found.to_dict(), "inputs": inputs, "versions": versions()}
    grids = [_ranking(found), _groups(found), _too_large(found), _refused(found)]
    return Report(
        answer=_answer(found, inputs),
        grids=[grid for grid in grids if grid.rows],
        closing=found.sentence,
        payload=payload,
        records=payload["configurations"],
        inputs=inputs,
        python=python,
        command=line,
    )


def _answer(found: Comparison, inputs: dict[str, Any]) -> str:
    fitting = len(found.fitting)
    rest = [f"{len(found.outcomes) - fitting} do not fit"] if fitting < len(found.outcomes) else []
    rest += [f"{len(found.refusals)} cannot run it"] if found.refusals else []
    sizes = f"{inputs['isl']:,} input and {inputs['osl']:,} output tokens" if inputs.get("isl") else "a file of requests"
    best = f"best is {name_of(found.winner)}" if found.winner else "none fits"
    counted = f"{len(found.outcomes)} configuration{'s' if len(found.outcomes) > 1 else ''} of {found.model}"
    return f"{counted}, {sizes}{''.join(f', {text}' for text in rest)}; by {found.metric.words}, {best}."


def _ranking(found: Comparison) -> Grid:
    shown = found.fitting[:MOST_SHOWN]
    rows = [_row(found, outcome) for outcome in shown]
    if more := len(found.fitting) - len(shown):
        rows.append((f"{more:,} more in --json and --csv", "", "", "", "", "", "", "", "", "", ""))
    return Grid(
        title=f"Best first, by {found.metric.words}" + ("" if found.metric.unit == "s" else f" ({found.metric.unit})"),
        columns=("gpu", _split(found), found.swept, found.metric.name, "", "ttft", "tpot", "tokens/s/user", "tokens/s", "memory", "basis"),
        rows=rows,
        right=frozenset({"tp", found.swept, found.metric.name, "ttft", "tpot", "tokens/s/user", "tokens/s", "memory"}),
        spare=("ttft", "tpot", "", "tokens/s", "tokens/s/user", "memory", "basis"),
    )


def _row(found: Comparison, outcome: Configuration) -> tuple[str, ...]:
    user = outcome.output_tokens_per_s_per_user.median
    return (
        outcome.gpu, _group(outcome), str(outcome.size), told_interval(found.metric, found.metric.of(outcome)), _bar(found, outcome),
        units.human("_s", outcome.ttft_s.median), units.human("_s", outcome.tpot_s.median) if outcome.decode_steps else "-",
        units.significant(user) if user else "-", units.significant(outcome.output_tokens_per_s.median),
        units.human("_bytes", outcome.memory.total_bytes), outcome.basis,
    )  # fmt: skip


def _bar(found: Comparison, outcome: Configuration) -> str:
    longest = max(found.metric.of(other).median for other in found.fitting)
    return "█" * max(1, round(BAR_WIDTH * found.metric.of(outcome).median / longest)) if longest else ""


def _groups(found: Comparison) -> Grid:
    """One line per GPU and group size, its best batch or concurrency: only where the ranking does not say that already."""
    best: dict[tuple[str, str], Configuration] = {}
    for outcome in found.fitting:
        best.setdefault((outcome.gpu, outcome.layout), outcome)
    rows = [
        (outcome.gpu, _group(outcome), str(outcome.size), told(found.metric, found.metric.of(outcome).median), _bar(found, outcome))
        for outcome in best.values()
    ]
    return Grid(
        title=BEST_OF_EACH.format(found.swept), columns=("gpu", _split(found), found.swept, found.metric.name, ""),
        rows=rows if 1 < len(rows) < len(found.fitting) else [], right=frozenset({"tp", found.swept, found.metric.name}), spare=("",),
    )  # fmt: skip


def _split(found: Comparison) -> str:
    """What the column of GPUs' shares is called."""
    return "tp" if all(outcome.layout == f"tp {outcome.tp}" for outcome in found.outcomes) else "workers"


def _group(outcome: Configuration) -> str:
    return outcome.layout.removeprefix("tp ")


def _too_large(found: Comparison) -> Grid:
    def group(outcome: Configuration) -> tuple[str, int, str]:
        return outcome.gpu, outcome.tp, _group(outcome)

    rows = []
    for (gpu, _, split), members in groupby(sorted((one for one in found.outcomes if not one.fits), key=group), key=group):
        sizes = sorted(members, key=lambda outcome: outcome.size)
        first = sizes[0].memory
        needed, has = (units.human("_bytes", value) for value in (first.total_bytes, first.capacity_bytes))
        needs = f"{needed} of {has} at {found.swept} {sizes[0].size}"
        rows.append((gpu, split, _listed([outcome.size for outcome in sizes]), needs))
    return Grid(title="Does not fit", columns=("gpu", _split(found), found.swept, "needs, a GPU"), rows=rows, right=frozenset({"tp"}))


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) if len(values) <= 8 else f"{values[0]} to {values[-1]} ({len(values)} of them)"


def _refused(found: Comparison) -> Grid:
    rows = [(refusal.gpu, str(refusal.tp), refusal.reason) for refusal in found.refusals]
    return Grid(title="Cannot run it", columns=("gpu", "tp", "why"), rows=rows, right=frozenset({"tp"}))


def python(model: str, asked: dict[str, Any]) -> str:
    """The same comparison as a call."""
    rest = "".join(f", {name}={value!r}" for name, value in asked.items() if name != "gpus")
    return f"from tilecast.explore.comparison import compare\ncompare({model!r}, {asked['gpus']!r}{rest})"
