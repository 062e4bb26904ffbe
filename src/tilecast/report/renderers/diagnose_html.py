"""A diagnosis as a page: how the time passes, what stands out, kernels by what they could save, what is not known, and another run.

Everything on it comes from the report's payload, which the page carries.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tilecast import units
from tilecast.report.record import Grid, Report
from tilecast.report.renderers import page as pages
from tilecast.report.renderers.svg import Series, axis, chart
from tilecast.units import signed_s

MOST_CARDS = 12
MOST_ROWS = 60
PASSING = (("computing alone", 0), ("overlapped", 2), ("communicating alone", 4), ("idle", 7))
PART_COLOURS = {
    "bound": 0, "padding": 6, "cache misses": 1, "clock and rates": 5, "wave tail": 3, "pipeline imbalance": 6, "occupancy": 4, "split": 2,
    "launch": 7, "beyond physics": 2, "this kernel": 3,
}  # fmt: skip


def page(report: Report) -> str:
    found = report.payload
    ranked = [row for row in found["kernels"] if row["is_priced"] and row["recoverable_s"]]
    body = [
        f"<header><h1>{escape(report.answer)}</h1>{_partial(found)}</header>",
        _tiles(found),
        _sentences(found["findings"]),
        "<h2>How the time passes</h2>",
        f"<div class='pair'>{_passing(found)}{_families(found)}</div>",
        _ranks(found),
        "<h2>Where time could be saved</h2>",
        f"<div class='pair'>{''.join(_kernel(place, row) for place, row in enumerate(ranked[:MOST_CARDS], 1))}</div>",
    ]
    if any(row["is_priced"] for row in found["kernels"]):
        errors = pages.card("How good the predictions were", pages.table(_errors(found)), "Every call weighs as its time.")
        body += ["<h2>Measured, ceiling, predicted</h2>", f"<div class='pair'>{_scatter(found)}{errors}</div>"]
    if "against" in found:
        body += ["<h2>Against the other run</h2>", _against(found["against"])]
    body += [
        "<h2>Every kernel</h2>",
        _details(f"The {min(len(found['kernels']), MOST_ROWS)} that matter most", pages.table(_every(found))),
        _details("Named, but not priced", pages.table(_unpriced(found))) if found["unpriced"] else "",
        _details("Unknown kernels", pages.table(_unknown(found))) if found["unknown"] else "",
        "<h2>What it rests on</h2>",
        pages.made_by(report),
    ]
    return pages.document(report.answer, "\n".join(part for part in body if part), found)


def seconds(value: float | None) -> str:
    return "-" if value is None else units.human("_s", value)


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _partial(found: Mapping[str, Any]) -> str:
    lines = [f"partial: {sentence}" for sentence in found["partial_because"]] + list(found["notes"])
    return "".join(f"<p class='soft'>{escape(line)}</p>" for line in lines)


def _waiting(waiting_s: float | None) -> str:
    return "for what is not known: clocks differ" if waiting_s is None else f"{seconds(waiting_s)} waiting for a launch"


def _tiles(found: Mapping[str, Any]) -> str:
    times = found["timeline"]
    return pages.tiles(
        [
            ("busy", percent(times["busy_fraction"]), f"{seconds(times['busy_s'])} of {seconds(times['span_s'])}"),
            ("idle", percent(times["idle_fraction"]), _waiting(times["waiting_for_host_s"])),
            ("communicating", percent(times["communicating_fraction"]), f"{seconds(times['overlapped_s'])} behind computation"),
            ("named", percent(found["named_fraction"]), f"of {seconds(found['gpu_time_s'])} GPU time"),
            ("priced", percent(found["priced_fraction"]), f"{percent(found['inferred_fraction'])} by an identical launch"),
            ("recoverable", seconds(found["recoverable_s"]), f"{percent(found['recoverable_fraction'])} of GPU time"),
        ]
    )


def _sentences(sentences: Sequence[str]) -> str:
    return "".join(f"<p class='closing'>{escape(sentence)}</p>" for sentence in sentences)


def _passing(found: Mapping[str, Any]) -> str:
    times = found["timeline"]
    span = times["span_s"] or 1.0
    values = (times["computing_s"] - times["overlapped_s"], times["overlapped_s"], times["exposed_s"], times["idle_s"])
    shown = (times["computing_s"], times["overlapped_s"], times["exposed_s"], times["idle_s"])
    pieces = "".join(
        f"<i class='c{colour}' style='width:{100 * value / span:.3f}%' title='{name}'></i>"
        for (name, colour), value in zip(PASSING, values, strict=True)
    )
    names = ("computing", "communicating meanwhile", "communicating alone", "idle")
    legend = "".join(
        f"<span><i class='dot c{colour}'></i>{name} {seconds(value)}</span>"
        for (_, colour), name, value in zip(PASSING, names, shown, strict=True)
    )
    return pages.card("One GPU, first kernel to last", f"<div class='stack'>{pieces}</div><p class='legend'>{legend}</p>")


def _families(found: Mapping[str, Any]) -> str:
    entries = found["families"]
    longest = max((entry["share_fraction"] for entry in entries), default=1.0) or 1.0
    rows = [
        (
            entry["family"], entry["share_fraction"] / longest, 0,
            f"{seconds(entry['total_s'])}<span class='share soft'>{percent(entry['share_fraction'])}</span>",
            f"{entry['calls']:,} calls, recoverable {seconds(entry['recoverable_s'])}",
        )
        for entry in entries[:14]
    ]  # fmt: skip
    return pages.card("What kernels do", pages.bars(rows))


def _ranks(found: Mapping[str, Any]) -> str:
    if len(found["ranks"]) < 2:
        return ""
    columns = ("rank", "device", "span", "busy", "idle", "communicating", "overlapped")
    rows = [
        (
            rank["rank"], str(rank["device"]), seconds(rank["span_s"]), percent(rank["busy_fraction"]), percent(rank["idle_fraction"]),
            seconds(rank["communicating_s"]), seconds(rank["overlapped_s"]),
        )
        for rank in found["ranks"]
    ]  # fmt: skip
    return "<h2>Ranks</h2>" + pages.table(Grid(columns=columns, rows=rows, right=frozenset(columns[2:])))


def _kernel(place: int, row: Mapping[str, Any]) -> str:
    """One kernel: what it is, four times, the gap as a bar, and the advice."""
    parts = [("bound", row["bound_s"])] + [(part["part"], part["seconds"]) for part in row["gap"]]
    whole = max(row["measured_s"], sum(value for _, value in parts if value > 0))
    pieces = "".join(
        f"<i class='c{PART_COLOURS.get(name, 7)}' style='width:{100 * max(value, 0.0) / whole:.2f}%' "
        f"title='{escape(name)}: {seconds(value)}'></i>"
        for name, value in parts
    )
    legend = "".join(
        f"<span><i class='dot c{PART_COLOURS.get(name, 7)}'></i>{escape(name)} {'-' if value < 0 else ''}{seconds(abs(value))}</span>"
        for name, value in parts
        if abs(value) > 0.02 * whole
    )
    times = (
        f"<b>{seconds(row['measured_s'])}</b> measured · {seconds(row['predicted_s'])} predicted · {seconds(row['ceiling_s'])} ceiling · "
        f"{seconds(row['bound_s'])} bound ({escape(row['bound_by'])})"
    )
    where = " · ".join(filter(None, (row["module"], row["types"], row["library"], row["kernel"])))
    title = f"{place}. {row['op'] or row['kernel']} {row['shapes']}"
    saved = f"{row['calls']:,} calls, {seconds(row['total_s'])} in all, {seconds(row['recoverable_s'])} recoverable"
    return (
        f"<section class='card'><h3>{_breakable(title)}</h3><p class='soft'>{escape(saved)}</p><p>{times}</p>"
        f"<div class='stack'>{pieces}</div><p class='legend'>{legend}</p><p>{escape(row['advice'])}</p>"
        f"<p class='soft'>{_breakable(where)}</p></section>"
    )


def _breakable(text: str) -> str:
    """Long names may break where a word of them ends."""
    return escape(text).replace("_", "_<wbr>").replace("::", "::<wbr>")


def _scatter(found: Mapping[str, Any]) -> str:
    rows = [row for row in found["kernels"] if row["is_priced"] and row["total_s"] > 0]
    ceilings, measured = [row["ceiling_s"] for row in rows], [row["measured_s"] for row in rows]
    x = axis("ceiling of one call", [*ceilings, *measured], seconds, log=True)
    y = axis("measured", [*ceilings, *measured], seconds, log=True)
    names = sorted({row["model"] for row in rows}, key=lambda name: -sum(row["total_s"] for row in rows if row["model"] == name))
    kept = names[:6]
    clouds = [
        Series(
            name=name if name in kept else "others", colour=colour, line=False,
            points=[
                (row["ceiling_s"], row["measured_s"], f"{row['op']} {row['shapes']}") for row in rows if _belongs(row["model"], name, kept)
            ],
        )
        for colour, name in enumerate([*kept, *(["others"] if len(names) > len(kept) else [])])
    ]  # fmt: skip
    diagonal = Series(name="at the ceiling", points=[(x.low, x.low, ""), (x.high, x.high, "")], colour=7, dots=False, dashed=True)
    drawn = chart(x, y, [diagonal, *(cloud for cloud in clouds if cloud.points)], title="Measured against ceiling")
    return pages.card("Measured against ceiling", drawn, "Above the line: time that better kernels would save.")


def _belongs(model: str, name: str, kept: Sequence[str]) -> bool:
    return model == name if name != "others" else model not in kept


# ---- another run -------------------------------------------------------------------------------------------------


def _against(found: Mapping[str, Any]) -> str:
    rows = [
        (
            part["name"], seconds(part["other"]["total_s"]), seconds(part["this"]["total_s"]), signed_s(part["difference_s"]),
            signed_s(part["by_calls_s"]), signed_s(part["by_speed_s"]),
        )
        for part in found["families"]
    ]  # fmt: skip
    rows += [("idle", "", "", signed_s(found["idle_s"]), "", ""), ("at the same time", "", "", signed_s(found["at_once_s"]), "", "")]
    rows.append(("span", seconds(found["other_span_s"]), seconds(found["this_span_s"]), signed_s(found["span_s"]), "", ""))
    columns = ("family", "other", "this", "difference", "by calls", "by speed")
    work = [
        (
            part["name"], f"{part['other']['calls']:,}", f"{part['this']['calls']:,}", signed_s(part["difference_s"]),
            _ratio(part["ratio"]), _ratio(part["predicted_ratio"]),
        )
        for part in found["work"][:MOST_ROWS]
    ]  # fmt: skip
    work_columns = ("work", "calls there", "here", "difference", "times as long", "predicted")
    return (
        "".join(f"<p>{escape(sentence)}</p>" for sentence in found["sentences"])
        + pages.table(Grid(columns=columns, rows=rows, right=frozenset(columns[1:])))
        + _details("By work", pages.table(Grid(columns=work_columns, rows=work, right=frozenset(work_columns[1:]))))
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# ---- tables ------------------------------------------------------------------------------------------------------


def _every(found: Mapping[str, Any]) -> Grid:
    rows = [
        (
            row["op"] or row["kernel"], row["shapes"], f"{row['calls']:,}", seconds(row["total_s"]), percent(row["share_fraction"]),
            seconds(row["measured_s"]), seconds(row["predicted_s"]), seconds(row["ceiling_s"]), seconds(row["bound_s"]), row["bound_by"],
            seconds(row["recoverable_s"]), row["basis"], row["ceiling_from"], "; ".join(row["notes"]), row["kernel"],
        )
        for row in found["kernels"][:MOST_ROWS]
    ]  # fmt: skip
    numbers = ("calls", "time", "share", "measured", "predicted", "ceiling", "bound")
    columns = ("operator", "shapes", *numbers, "bound by", "recoverable", "basis", "ceiling from", "taken for granted", "kernel")
    return Grid(columns=columns, rows=rows, right=frozenset({*numbers, "recoverable"}))


def _unpriced(found: Mapping[str, Any]) -> Grid:
    rows = [
        (entry["kernel"], entry["op"], f"{entry['calls']:,}", seconds(entry["total_s"]), percent(entry["share_fraction"]), entry["because"])
        for entry in found["unpriced"][:MOST_ROWS]
    ]
    columns = ("kernel", "operator", "calls", "time", "share", "because")
    return Grid(columns=columns, rows=rows, right=frozenset({"calls", "time", "share"}))


def _unknown(found: Mapping[str, Any]) -> Grid:
    rows = [(row["kernel"], f"{row['calls']:,}", seconds(row["total_s"])) for row in found["unknown"][:MOST_ROWS]]
    return Grid(columns=("kernel", "calls", "time"), rows=rows, right=frozenset({"calls", "time"}))


def _errors(found: Mapping[str, Any]) -> Grid:
    rows = [
        (family, seconds(entry["time_s"]), f"{entry['mean_error_percent']:.1f} %", f"{entry['bias_percent']:+.1f} %")
        for family, entry in found["errors"].items()
    ]
    columns = ("family", "time", "mean error", "bias")
    return Grid(columns=columns, rows=rows, right=frozenset(columns[1:]))
