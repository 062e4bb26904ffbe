"""Charts as SVG text that follows the page's colours, light or dark. No script: a point's figures are its tooltip."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 310
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 44
NUM_COLOURS = 8  # --c0 ... of page.py
Text = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points (x, y, tooltip) in one colour, joined by a line or not; `band` is (x, low, high)."""

    name: str
    points: Sequence[tuple[float, float, str]]
    colour: int = 0
    line: bool = True
    dots: bool = True
    dashed: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    labels: Sequence[str] = ()  # beside the points; empty: none


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    low: float
    high: float
    log: bool
    text: Text

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            return (math.log(max(value, self.low * 1e-6)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if not self.log:
            return _even(self.low, self.high)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        spread = math.log10(self.high / self.low)
        if spread < 0.7:
            return _even(self.low, self.high)
        steps = (1,) if spread > 2.5 else (1, 3) if spread > 1.5 else (1, 2, 5)
        every = math.ceil(spread / 6) if spread > 6 else 1
        return [s * 10.0**d for d in decades if d % every == 0 for s in steps if self.low * 0.999 <= s * 10.0**d <= self.high * 1.001]


def _even(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def axis(label: str, values: Sequence[float], text: Text, *, log: bool) -> Axis:
    low, high = min(values), max(values)
    if log:
        low, high = (low / 1.3, high * 1.3) if high > low else (low / 2, high * 2)
        return Axis(label, low, high, True, text)
    return Axis(label, 0.0, high * 1.06 or 1.0, False, text)


def chart(x: Axis, y: Axis, series: Sequence[Series], *, title: str) -> str:
    """A line or scatter chart with its axes, grid and legend."""

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x.place(value)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(y.place(value), -0.02), 1.02)

    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(title, quote=True)}'>"]
    for tick in x.ticks():
        place = across(tick)
        parts.append(f"<line class='grid' x1='{place:.1f}' x2='{place:.1f}' y1='{TOP}' y2='{HEIGHT - BOTTOM}'/>")
        parts.append(f"<text x='{place:.1f}' y='{HEIGHT - BOTTOM + 16}' text-anchor='middle'>{escape(x.text(tick))}</text>")
    for tick in y.ticks():
        place = up(tick)
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{place:.1f}' y2='{place:.1f}'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{place + 4:.1f}' text-anchor='end'>{escape(y.text(tick))}</text>")
    parts.append(f"<text x='{(LEFT + WIDTH - RIGHT) / 2}' y='{HEIGHT - 8}' text-anchor='middle' class='label'>{escape(x.label)}</text>")
    for one in series:
        parts += _drawn(one, across, up)
    parts.append("</svg>")
    legend = "".join(
        f"<span><i class='{'dash' if one.dashed else 'dot'} c{one.colour % NUM_COLOURS}'></i>{escape(one.name)}</span>"
        for one in series
        if one.name
    )
    return f"<p class='axis'>{escape(y.label)}</p>{''.join(parts)}<p class='legend'>{legend}</p>"


def _drawn(one: Series, across: Callable[[float], float], up: Callable[[float], float]) -> list[str]:
    colour = f"c{one.colour % NUM_COLOURS}"
    parts: list[str] = []
    if one.band:
        forth = " ".join(f"{across(x):.1f},{up(high):.1f}" for x, _, high in one.band)
        back = " ".join(f"{across(x):.1f},{up(low):.1f}" for x, low, _ in reversed(one.band))
        parts.append(f"<polygon class='band {colour}' points='{forth} {back}'/>")
    if one.line:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in one.points)
        parts.append(f"<polyline class='line {colour}{' dashed' if one.dashed else ''}' points='{path}'/>")
    if one.dots:
        for x, y, words in one.points:
            parts.append(f"<circle class='{colour}' cx='{across(x):.1f}' cy='{up(y):.1f}' r='4'><title>{escape(words)}</title></circle>")
    taken: list[tuple[float, float]] = []
    for (x, y, _), words in zip(one.points, one.labels, strict=False):
        place, height = across(x), up(y)
        if not words or any(abs(place - other) < 7 * len(words) and abs(height - above) < 13 for other, above in taken):
            continue  # a name that covers another helps nobody; the tooltip has it
        taken.append((place, height))
        anchor, shift = ("end", -7) if place > WIDTH * 0.75 else ("start", 7)
        lift = 18 if height < TOP + 30 else -6  # at the top there is a roof to keep clear of
        parts.append(f"<text class='mark' x='{place + shift:.1f}' y='{height + lift:.1f}' text-anchor='{anchor}'>{escape(words)}</text>")
    return parts
