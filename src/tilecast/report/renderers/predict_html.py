"""A prediction as a page: the answer, where the time goes, the roofline, how context and batch change it, memory, and what it rests on."""

from collections.abc import Mapping
from html import escape
from typing import Any

from tilecast import units
from tilecast.report.record import Grid, Report
from tilecast.report.renderers import page as pages
from tilecast.report.renderers.svg import Axis, Series, axis, chart
from tilecast.workloads.aggregate import basis_words

PHASES = {"prefill": "Prefill", "decode": "One decode step (mean)"}
MEMORY = {
    "weights_bytes": ("weights", 0),
    "kv_cache_bytes": ("KV cache", 1),
    "activations_bytes": ("activations", 2),
    "reserved_bytes": ("engine", 4),
}


def page(report: Report, why: Mapping[str, Any] | None = None) -> str:
    """The page of `report`, whose payload also holds `figures`."""
    found = report.payload
    figures = found["figures"]
    body = [
        f"<header><h1>{escape(report.answer)}</h1>{basis_line(found)}</header>",
        _tiles(found),
        "<h2>Where the time goes</h2>",
        f"<div class='pair'>{''.join(_phase(found, phase) for phase in PHASES)}</div>",
        "<h2>Plots</h2>",
        f"<div class='pair'>{roofline_card(figures['roofline'])}{_contexts(figures['contexts'])}"
        f"{_batches(figures['batches'])}{memory_card(found)}</div>",
    ]
    if why is not None:
        body += ["<h2>What would make it faster</h2>", _levers(why)]
    body += [
        "<h2>Every kernel</h2>",
        f"<details><summary>Launches, times, bounds, basis</summary>{pages.table(kernel_grid(found))}</details>",
    ]
    body += ["<h2>What it rests on</h2>", pages.made_by(report)]
    return pages.document(report.answer, "\n".join(body), found | ({"why": dict(why)} if why is not None else {}))


def interval_s(entry: Mapping[str, float]) -> str:
    return units.interval_s(entry["median"], entry["low"], entry["high"])


def seconds(value: float) -> str:
    return units.human("_s", value)


def basis_line(found: Mapping[str, Any]) -> str:
    room = "fits" if found["fits"] else "does not fit in memory"
    return f"<p class='soft'>basis: {escape(basis_words(found['basis_shares']))} of the time · {room}</p>"


def split(text: str) -> tuple[str, str]:
    """("19.4 ms", "16-24.8 ms") from "19.4 ms (16-24.8)"."""
    value, _, rest = text.partition(" (")
    return value, f"80 %: {rest.removesuffix(')')} {value.split()[-1]}"


def _tiles(found: Mapping[str, Any]) -> str:
    rate, memory = found["output_tokens_per_s"], found["memory"]
    low, high = (units.significant(rate[name]) for name in ("low", "high"))
    entries = [("first token", *split(interval_s(found["ttft_s"])))]
    if found["decode_steps"]:
        entries += [("decode step, median", *split(interval_s(found["decode_step_s"])))]
        entries += [("time per output token", *split(interval_s(found["tpot_s"])))]
    entries += [
        ("total", *split(interval_s(found["total_s"]))),
        ("throughput", f"{units.significant(rate['median'])} tokens/s", f"80 %: {low}-{high}"),
        ("memory a GPU", units.human("_bytes", memory["total_bytes"]), f"of {units.human('_bytes', memory['capacity_bytes'])}"),
    ]
    return pages.tiles(entries)


def _phase(found: Mapping[str, Any], phase: str) -> str:
    parts = [part for part in found["breakdown"] if part["phase"] == phase]
    whole = found["prefill_s"] if phase == "prefill" else found["tpot_s"]
    return parts_card(f"{PHASES[phase]}: {seconds(whole['median'])}", parts, _steps(found, phase))


def parts_card(title: str, parts: list[dict[str, Any]], steps: int) -> str:
    """Parts as bars, longest first, in the colours of what binds them; times are of one of so many steps."""
    if not parts:
        return ""
    longest = max(part["share_fraction"] for part in parts)
    rows = []
    for part in sorted(parts, key=lambda part: -part["share_fraction"]):
        time, share = seconds(part["median_s"] / steps), f"{100 * part['share_fraction']:.1f} %"
        launches = part["launches_per_step"]
        words = f"{part['name']}: {time} in {launches} launches, bound by {part['bound_by']}, basis {part['basis']}"
        value = f"{time}<span class='share soft'>{share}</span>"
        rows.append((part["name"], part["share_fraction"] / longest, pages.BOUND_COLOURS.get(part["bound_by"], 7), value, words))
    return pages.card(title, pages.bars(rows) + pages.bound_legend(sorted({part["bound_by"] for part in parts})))


def _steps(found: Mapping[str, Any], phase: str) -> int:
    """By how many steps to divide a phase's time; 1 for a prefill, and for a load, whose times are of a request."""
    return 1 if phase == "prefill" or "serving" in found else max(1, found["decode_steps"])


# ---- plots -------------------------------------------------------------------------------------------------------


def roofline_card(found: Mapping[str, Any]) -> str:
    kernels, bandwidth = found["kernels"], found["dram_bytes_per_s"]
    if not kernels:
        return ""
    intensities = [kernel["flop_per_byte"] for kernel in kernels]
    peak = max(found["peak_flop_per_s"].values())
    x = axis("FLOP per compulsory byte", [*intensities, peak / bandwidth], units.significant, log=True)
    y = axis("FLOP/s reached", [*(kernel["flop_per_s"] for kernel in kernels), peak], _flop_per_s, log=True)
    roofs = [_roof(name, rate, bandwidth, x, place) for place, (name, rate) in enumerate(found["peak_flop_per_s"].items())]
    clouds = [
        Series(
            name=phase, colour=colour, line=False,
            points=[(one["flop_per_byte"], one["flop_per_s"], _kernel_words(one)) for one in kernels if one["phase"] == phase],
            labels=_largest(kernels, phase),
        )
        for phase, colour in (("prefill", 0), ("decode", 1))
    ]  # fmt: skip
    told = f"Above the slope: operands still in L2. Roofs: DRAM at {units.human('_bytes_per_s', bandwidth)}, " + ", ".join(
        f"{name} at {units.human('_flop_per_s', rate)}" for name, rate in found["peak_flop_per_s"].items()
    )
    return pages.card(
        "Roofline of all kernels", chart(x, y, [*roofs, *(cloud for cloud in clouds if cloud.points)], title="Roofline"), told
    )


def _roof(name: str, rate: float, bandwidth: float, x: Axis, place: int) -> Series:
    ridge = rate / bandwidth
    points = [(x.low, x.low * bandwidth, ""), (ridge, rate, ""), (x.high, rate, "")]
    return Series(name=f"{name} roof", points=points, colour=(7, 3, 4)[place % 3], dots=False, dashed=True)


def _largest(kernels: list[dict[str, Any]], phase: str) -> list[str]:
    """Names of the two kernels that take most of the phase; more would cover one another."""
    mine = [kernel for kernel in kernels if kernel["phase"] == phase]
    named = sorted(mine, key=lambda kernel: -kernel["share_fraction"])[:2]
    return [kernel["name"] if kernel in named else "" for kernel in mine]


def _kernel_words(kernel: Mapping[str, Any]) -> str:
    return (
        f"{kernel['name']} ({kernel['phase']}): {units.human('_flop_per_s', kernel['flop_per_s'])} at "
        f"{units.significant(kernel['flop_per_byte'])} FLOP/B, {seconds(kernel['launch_s'])} a launch"
    )


def _contexts(points: list[dict[str, Any]]) -> str:
    times = [point["decode_step_s"] for point in points]
    x = axis("context of every request, tokens", [point["context_tokens"] for point in points], _count, log=True)
    y = axis("decode step", [time["high"] for time in times], seconds, log=False)

    def series(name: str, chosen: list[dict[str, Any]], colour: int, dashed: bool) -> Series:
        return Series(
            name=name, colour=colour, dashed=dashed,
            points=[(p["context_tokens"], p["decode_step_s"]["median"], _context_words(p)) for p in chosen],
            band=[(p["context_tokens"], p["decode_step_s"]["low"], p["decode_step_s"]["high"]) for p in chosen],
        )  # fmt: skip

    fitting = [point for point in points if point["fits"]]
    too_long = points[max(0, len(fitting) - 1) :] if len(fitting) < len(points) else []
    lines = [series("median and 80 % interval", fitting, 0, False)] if fitting else []
    lines += [series("does not fit in memory", too_long, 3, True)] if too_long else []
    told = f"From {_context_words(points[0])} to {_context_words(points[-1])}."
    return pages.card("Decode step against context", chart(x, y, lines, title="Decode step against context"), told)


def _batches(points: list[dict[str, Any]]) -> str:
    largest = f"Batch {points[-1]['batch']:,} is the largest that fits." if points[-1]["fits"] else "Not even one request fits."
    return throughput_card("batch", points, largest)


def throughput_card(swept: str, points: list[dict[str, Any]], remark: str) -> str:
    """What the GPUs give against what one user sees, over batches or concurrencies."""
    usable = [point for point in points if point["output_tokens_per_s_per_user"]["median"] > 0]
    if not usable:
        return ""
    places = [point["output_tokens_per_s_per_user"]["median"] for point in usable]
    rates = [point["output_tokens_per_s_per_gpu"] for point in usable]
    x = axis("tokens/s that one request sees", places, units.significant, log=True)
    y = axis("output tokens/s per GPU", [rate["high"] for rate in rates], units.significant, log=False)
    words = [point_words(swept, point) for point in usable]
    line = Series(
        name=f"a {swept} each, median and 80 % interval",
        colour=2,
        points=list(zip(places, (rate["median"] for rate in rates), words, strict=True)),
        band=[(place, rate["low"], rate["high"]) for place, rate in zip(places, rates, strict=True)],
        labels=[str(point[swept]) for point in usable],
    )
    title = f"Throughput against speed for one user, by {swept}"
    return pages.card(title, chart(x, y, [line], title="Latency against throughput"), remark)


def point_words(swept: str, point: Mapping[str, Any]) -> str:
    rate = point["output_tokens_per_s"]["median"]
    times = f"first token {seconds(point['ttft_s']['median'])}, {seconds(point['tpot_s']['median'])} a token"
    return f"{swept} {point[swept]}: {times}, {units.significant(rate)} tokens/s"


def _context_words(point: Mapping[str, Any]) -> str:
    return f"{interval_s(point['decode_step_s'])} at {point['context_tokens']:,} tokens"


def memory_card(found: Mapping[str, Any]) -> str:
    memory = found["memory"]
    whole = max(memory["capacity_bytes"], memory["total_bytes"])
    pieces, names = [], []
    for field, (name, colour) in MEMORY.items():
        size = units.human("_bytes", memory[field])
        pieces.append(f"<i class='c{colour}' style='width:{100 * memory[field] / whole:.2f}%' title='{name}: {size}'></i>")
        names.append(f"<span><i class='dot c{colour}'></i>{name} {size}</span>")
    used, capacity = (units.human("_bytes", memory[name]) for name in ("total_bytes", "capacity_bytes"))
    free = memory["capacity_bytes"] - memory["total_bytes"]
    told = f"{used} of {capacity} a GPU; " + (
        f"{units.human('_bytes', free)} are free." if free >= 0 else f"{units.human('_bytes', -free)} too much."
    )
    return pages.card(
        "Memory at the fullest moment", f"<div class='stack'>{''.join(pieces)}</div><p class='legend'>{''.join(names)}</p>", told
    )


# ---- tables ------------------------------------------------------------------------------------------------------


def _levers(why: Mapping[str, Any]) -> str:
    rows = [
        (
            lever["lever"], lever["change"], seconds(lever["total_s"]),
            *(f"{100 * lever[name]:.1f} %" for name in ("total_saved_fraction", "prefill_saved_fraction", "decode_saved_fraction")),
            f"{lever['needed_factor']:.2f}x" if lever["needed_factor"] is not None else "out of reach",
        )
        for lever in why["levers"]
    ]  # fmt: skip
    columns = ("lever", "change", "total", "saves", "of prefill", "of decode", "for 20 % faster")
    return pages.table(Grid(columns=columns, rows=rows, right=frozenset(columns[2:])))


def kernel_grid(found: Mapping[str, Any]) -> Grid:
    rows = []
    for part in found["breakdown"]:
        steps = _steps(found, part["phase"])
        sizes = " ".join(f"{name}={str(value).lower()}" for name, value in part["sizes"].items())
        efficiency = f"{100 * part['efficiency']:.0f} %" if part["efficiency"] else "-"
        time = (part[name] / steps for name in ("median_s", "low_s", "high_s"))
        rows.append(
            (
                part["phase"], part["name"], str(part["launches_per_step"]), units.interval_s(*time),
                f"{100 * part['share_fraction']:.1f} %", part["bound_by"], seconds(part["bound_s"] / steps), efficiency, part["basis"],
                " ".join(filter(None, (part["family"], part["identity"], sizes))),
            )
        )  # fmt: skip
    columns = ("phase", "part", "launches", "time", "share", "bound by", "bound", "efficiency", "basis", "kernel")
    return Grid(columns=columns, rows=rows, right=frozenset({"launches", "time", "share", "bound", "efficiency"}))


def _flop_per_s(value: float) -> str:
    return units.human("_flop_per_s", value).removesuffix("FLOP/s").replace(" ", "")


def _count(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
