"""One self-contained HTML page: no network, no script, readable in light and dark, on a desk and on a phone."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tilecast import palette
from tilecast.report.record import Grid, Report

LIGHT = (palette.BLUE, palette.ORANGE, palette.GREEN, palette.VERMILION, palette.PURPLE, palette.SKY, "#8A7A00", palette.GREY)
DARK = (palette.SKY, palette.ORANGE, "#2FC79D", "#FF7F3F", "#E39BC4", "#4C9BE0", palette.YELLOW, "#9CA3AF")
# What binds a kernel -> its colour, the same in every plot.
BOUND_COLOURS = {"tensor": 0, "vector": 5, "special": 6, "shared": 6, "dram": 1, "l2": 6, "link": 4, "network": 4, "launch": 7, "host": 3}


def _style() -> str:
    """The style sheet behind the palette's colours, so that they are stated once."""
    light, dark = ("".join(f"--c{place}:{colour};" for place, colour in enumerate(colours)) for colours in (LIGHT, DARK))
    sheet = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{sheet}"


def document(title: str, body: str, payload: Any) -> str:
    """The page, with the data behind it for the next program."""
    data = json.dumps(payload, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f"<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n{body}\n"
        f"<script type='application/json' id='tilecast'>{data}</script>\n</body>\n</html>\n"
    )


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """(name, value, remark) each in a box."""
    boxes = (
        f"<div class='tile'><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(remark)}</span></div>"
        for name, value, remark in entries
    )
    return f"<div class='tiles'>{''.join(boxes)}</div>"


def bars(rows: Sequence[tuple[str, float, int, str, str]]) -> str:
    """(name, fraction of the longest, colour, value, tooltip) each on a line."""
    lines = (
        f"<span>{escape(name).replace('_', '_<wbr>')}</span><span class='bar' title='{escape(words, quote=True)}'>"
        f"<i class='c{colour}' style='width:{100 * length:.2f}%'></i></span><span class='num'>{value}</span>"
        for name, length, colour, value, words in rows
    )
    return f"<div class='bars'>{''.join(lines)}</div>"


def bound_legend(names: Sequence[str]) -> str:
    entries = (f"<span><i class='dot c{BOUND_COLOURS.get(name, 7)}'></i>{escape(name)}</span>" for name in names)
    return f"<p class='legend'>bound by: {''.join(entries)}</p>"


def table(grid: Grid) -> str:
    def cell(tag: str, name: str, text: str) -> str:
        kind = " class='num'" if name in grid.right else " class='wide'" if len(text) > 40 else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    shown = [(place, name) for place, name in enumerate(grid.columns) if name]
    head = "".join(cell("th", name, name) for _, name in shown)
    body = "".join("<tr>" + "".join(cell("td", name, row[place]) for place, name in shown) + "</tr>" for row in grid.rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def card(title: str, content: str, remark: str = "") -> str:
    note = f"<p class='soft'>{escape(remark)}</p>" if remark else ""
    return f"<section class='card'><h3>{escape(title)}</h3>{note}{content}</section>"


def facts(title: str, entries: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(str(name))}</th><td class='wide'>{escape(_plain(value))}</td></tr>" for name, value in entries.items())
    return f"<section class='card'><h3>{escape(title)}</h3><div class='scroll'><table>{rows}</table></div></section>"


def made_by(report: Report) -> str:
    """What was asked of which versions, and how to ask again."""
    inputs, made = facts("Inputs", report.payload["inputs"]), facts("Versions", report.payload["versions"])
    again = f"<details><summary>Make it again</summary><pre>{escape(report.command)}</pre><pre>{escape(report.python)}</pre></details>"
    return f"<div class='pair'>{inputs}{made}</div>{again}"


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        few = ", ".join(map(str, value[:8]))
        return few + (f" and {len(value) - 8} more" if len(value) > 8 else "")
    return str(value)
