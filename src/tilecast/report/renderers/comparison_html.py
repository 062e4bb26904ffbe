"""A comparison as a page: the winner, a bar for each GPU and group size, throughput against speed for one user, and every configuration."""

from collections.abc import Mapping
from html import escape
from typing import Any

from tilecast import units
from tilecast.engines.many import METRICS
from tilecast.explore.comparison import BEST_OF_EACH
from tilecast.report.record import Report
from tilecast.report.renderers import page as pages
from tilecast.report.renderers.svg import NUM_COLOURS, Series, axis, chart

MOST_BARS = 24
MOST_LINES = 8  # more than colours cannot be told apart


def page(report: Report) -> str:
    found = report.payload
    body = [
        f"<header><h1>{escape(report.answer)}</h1><p class='closing'>{escape(report.closing)}</p></header>",
        f"<div class='pair'>{_bars(found)}{_curves(found)}</div>",
    ]
    for grid in report.grids:
        if grid.title == BEST_OF_EACH.format(found["swept"]):  # the bars above say it
            continue
        body += [f"<h2>{escape(grid.title)}</h2>", pages.table(grid)]
    inputs, made = pages.facts("Inputs", found["inputs"]), pages.facts("Versions", found["versions"])
    again = f"<details><summary>Make it again</summary><pre>{escape(report.command)}</pre><pre>{escape(report.python)}</pre></details>"
    body += ["<h2>What it rests on</h2>", f"<div class='pair'>{inputs}{made}</div>{again}"]
    return pages.document(report.answer, "\n".join(body), found)


def _groups(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """GPU and group size, in words -> its configurations that fit, best first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in found["configurations"]:
        if entry["fits"]:
            layout = entry.get("layout") or f"tp {entry['tp']}"
            groups.setdefault(f"{entry['gpu']} {layout}", []).append(entry)
    return groups


def _bars(found: Mapping[str, Any]) -> str:
    metric = METRICS[found["by"]]
    best = {group: entries[0] for group, entries in list(_groups(found).items())[:MOST_BARS]}
    if not best:
        return ""
    swept, longest = found["swept"], max(entry[metric.name]["median"] for entry in best.values())
    rows = []
    for place, (group, entry) in enumerate(best.items()):
        value = entry[metric.name]
        told = units.human("_s", value["median"]) if metric.unit == "s" else units.significant(value["median"])
        low, high = (units.human("_s", value[end]) if metric.unit == "s" else units.significant(value[end]) for end in ("low", "high"))
        shown = f"{told} <span class='soft'>({low}-{high})</span>"
        rows.append((group, value["median"] / longest, place % NUM_COLOURS, shown, f"{swept} {entry[swept]}, basis {entry['basis']}"))
    unit = "" if metric.unit == "s" else f", {metric.unit}"
    return pages.card(f"{metric.words}{unit}", pages.bars(rows), f"{BEST_OF_EACH.format(swept)}, with its 80 % interval.")


def _place(entry: Mapping[str, Any]) -> tuple[float, float]:
    return entry["output_tokens_per_s_per_user"]["median"], entry["output_tokens_per_s_per_gpu"]["median"]


def _curves(found: Mapping[str, Any]) -> str:
    swept = found["swept"]
    groups = {
        group: sorted(entries, key=lambda entry: int(entry[swept]))
        for group, entries in list(_groups(found).items())[:MOST_LINES]
        if entries[0]["output_tokens_per_s_per_user"]["median"] > 0
    }
    if not groups:
        return ""
    every = [entry for entries in groups.values() for entry in entries]
    x = axis("tokens/s that one request sees", [_place(entry)[0] for entry in every], units.significant, log=True)
    y = axis("output tokens/s per GPU", [_place(entry)[1] for entry in every], units.significant, log=False)
    lines = [
        Series(
            name=group, colour=place % NUM_COLOURS,
            points=[(*_place(entry), f"{group} {swept} {entry[swept]}") for entry in entries],
        )
        for place, (group, entries) in enumerate(groups.items())
    ]  # fmt: skip
    more = len(_groups(found)) - len(groups)
    remark = f"A point is a {swept}; up and to the right is better." + (f" {more} more are in the table." if more > 0 else "")
    return pages.card("Throughput against speed for one user", chart(x, y, lines, title="Throughput against speed"), remark)
