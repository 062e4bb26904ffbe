"""A load as a page: the answer, where the time goes, what the number of users does, the roofline, memory, and what it rests on."""

from collections.abc import Mapping
from html import escape
from typing import Any

from tilecast import units
from tilecast.report.record import Grid, Report
from tilecast.report.renderers import page as pages
from tilecast.report.renderers import predict_html as static
from tilecast.report.renderers.svg import Series, axis, chart

PHASES = {"prefill": "Steps with prompts", "decode": "Decodes", "host": "Host"}


def page(report: Report, explained: Grid | None = None, why: Mapping[str, Any] | None = None) -> str:
    """The page of `report`, whose payload also holds `figures`; `explained` is the table of what `why` holds as values."""
    found = report.payload
    figures = found["figures"]
    closing = f"<p class='closing'>{escape(report.closing)}</p>" if report.closing else ""
    body = [
        f"<header><h1>{escape(report.answer)}</h1>{static.basis_line(found)}{closing}</header>",
        _tiles(found),
        "<h2>Where the time goes</h2>",
        "<p class='soft'>Busy time of GPU and host per request; requests share their steps.</p>",
        f"<div class='pair'>{''.join(_phase(found, phase) for phase in PHASES)}</div>",
        "<h2>Plots</h2>",
        f"<div class='pair'>{_users(found, figures['concurrencies'])}{static.roofline_card(figures['roofline'])}"
        f"{static.memory_card(found)}</div>",
        *(("<h2>What would make it faster</h2>", pages.table(explained)) if explained is not None else ()),
        "<h2>Every kernel</h2>",
        f"<details><summary>Launches, times per request, bounds, basis</summary>{pages.table(static.kernel_grid(found))}</details>",
        "<h2>What it rests on</h2>",
        pages.made_by(report),
    ]
    return pages.document(report.answer, "\n".join(body), found | ({"why": dict(why)} if why is not None else {}))


def _tiles(found: Mapping[str, Any]) -> str:
    serving, memory, decodes = found["serving"], found["memory"], found["decode_steps"] > 0

    def rate(name: str, words: str, unit: str) -> tuple[str, str, str]:
        low, median, high = (units.significant(serving[name][end]) for end in ("low", "median", "high"))
        return words, f"{median} {unit}", f"80 %: {low}-{high}"

    entries = [("first token, mean", *static.split(static.interval_s(found["ttft_s"])))]
    entries += [("time per token, mean", *static.split(static.interval_s(found["tpot_s"])))] if decodes else []
    entries += [
        ("latency, mean", *static.split(static.interval_s(found["total_s"]))),
        rate("output_tokens_per_s_per_gpu", "throughput a GPU", "tokens/s"),
        *([rate("output_tokens_per_s_per_user", "per user", "tokens/s")] if decodes else []),
        ("memory a GPU", units.human("_bytes", memory["total_bytes"]), f"of {units.human('_bytes', memory['capacity_bytes'])}"),
    ]
    return pages.tiles(entries)


def _phase(found: Mapping[str, Any], phase: str) -> str:
    parts = [part for part in found["breakdown"] if part["phase"] == phase and part["median_s"] > 0]
    return static.parts_card(f"{PHASES[phase]}: {static.seconds(sum(part['median_s'] for part in parts))}", parts, 1)


def _users(found: Mapping[str, Any], points: list[dict[str, Any]]) -> str:
    here = found["serving"]["concurrency"]
    best = max(points, key=lambda point: float(point["output_tokens_per_s_per_gpu"]["median"]))
    remark = f"Asked for: {here:,}. Most tokens per second of these: {best['concurrency']:,} users."
    first = _against(points, "ttft_s", "Time to first token against users", "time to first token, mean")
    token = _against(points, "tpot_s", "Time per token against users", "time per token, mean") if found["decode_steps"] else ""
    return static.throughput_card("concurrency", points, remark) + first + token


def _against(points: list[dict[str, Any]], name: str, title: str, label: str) -> str:
    users, times = [point["concurrency"] for point in points], [point[name] for point in points]
    x = axis("users with a request in flight", users, lambda value: f"{value:g}", log=True)
    y = axis(label, [end for time in times for end in (time["low"], time["high"])], static.seconds, log=True)
    line = Series(
        name="median and 80 % interval",
        points=[(users[k], time["median"], static.point_words("concurrency", points[k])) for k, time in enumerate(times)],
        band=[(users[k], time["low"], time["high"]) for k, time in enumerate(times)],
    )
    ends = " to ".join(f"{static.interval_s(times[k])} at {users[k]:,}" for k in (0, -1))
    return pages.card(title, chart(x, y, [line], title=title), f"From {ends}.")
