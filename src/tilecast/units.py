"""The only place that converts: text with a unit to SI values, and SI values to text a person reads.

Inside the package every quantity is in SI base units and its name ends in the unit: `_s`, `_bytes`, `_flop_per_s`, ...
A name's ending decides which units its text may carry: `dram_bytes_per_s` takes `4.8 TB/s`, never `4.8 GHz`.
"""

import math
import re
from numbers import Integral

from tilecast.errors import InvalidInput, shown

DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
SMALL = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3}


def _prefixed(base: str, *prefixes: dict[str, float]) -> dict[str, float]:
    return {prefix + base: factor for table in prefixes for prefix, factor in table.items()}


# Name ending -> the units its text may carry, each with its factor to SI. Longer endings are matched first.
UNITS: dict[str, dict[str, float]] = {
    "_flop_per_clock_per_sm": {"FLOP/clk/SM": 1.0},
    "_bytes_per_clock_per_sm": {"B/clk/SM": 1.0},
    "_per_clock_per_sm": {"/clk/SM": 1.0},
    "_bits_per_s": _prefixed("bit/s", DECIMAL) | _prefixed("b/s", DECIMAL),
    "_bytes_per_s": _prefixed("B/s", DECIMAL, BINARY),
    "_bytes_per_sm": _prefixed("B", DECIMAL, BINARY),
    "_bytes_per_block": _prefixed("B", DECIMAL, BINARY),
    "_flop_per_s": _prefixed("FLOP/s", DECIMAL) | _prefixed("FLOPS", DECIMAL) | _prefixed("OP/s", DECIMAL) | _prefixed("OPS", DECIMAL),
    "_bytes": _prefixed("B", DECIMAL, BINARY),
    "_bits": {"bit": 1.0},
    "_flop": _prefixed("FLOP", DECIMAL),
    "_fraction": {"%": 0.01},
    "_hz": _prefixed("Hz", DECIMAL),
    "_w": {"W": 1.0, "kW": 1e3, "mW": 1e-3},
    "_s": _prefixed("s", {"": 1.0}, SMALL),
}

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


def units_of(name: str) -> dict[str, float]:
    """The units that text for `name` may carry; empty for a plain number such as `num_sms`."""
    return next((units for ending, units in UNITS.items() if name.endswith(ending)), {})


def parse(name: str, text: str) -> float:
    """SI value of `text` for the field `name`; a bare number is already SI.

    >>> parse("dram_bytes_per_s", "4.8 TB/s")
    4800000000000.0
    >>> parse("latency_s", "293us")
    0.000293
    """
    units = units_of(name)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{name} = {text!r} is not a number{_allowed(units)}")
    number, unit = match.groups()
    if unit and unit not in units:
        raise InvalidInput(f"{name} = {text!r}: unknown unit {unit!r}{_allowed(units)}")
    factor = units[unit] if unit else 1.0
    digits = float(number.replace("_", ""))
    # 293 * 1e-6 is 0.000293 only when the small factor divides instead.
    value = digits / round(1 / factor) if 0 < factor < 1 else digits * factor
    if not math.isfinite(value):
        raise InvalidInput(f"{name} = {text!r} is not a finite number")
    return value


def whole(name: str, value: object, most: int | None = None) -> int:
    """A count as Python's own integer, whatever library it comes from: numpy's overflow in silence and are no JSON.

    >>> whole("batch", 32)
    32
    """
    number = value if type(value) is int else int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if number < 1 or (most is not None and number > most):
        allowed = "of at least 1" if most is None else f"from 1 to {most:,}"
        raise InvalidInput(f"{name} = {shown(value)} must be a whole number {allowed}")
    return number


def _allowed(units: dict[str, float]) -> str:
    if not units:
        return "; it takes a plain number"
    return f"; allowed: a plain SI number or one with {', '.join(sorted(units, key=lambda unit: (units[unit], unit)))}"


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent: 1980.0 is '1980', 0.04567 is '0.0457'."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = f"{value:.{decimals}f}"
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def scaled(value: float, base: str, steps: dict[str, float]) -> str:
    """`value` with the largest of `steps` that keeps it at 1 or more: scaled(3.35e12, "B/s", DECIMAL) is '3.35 TB/s'."""
    if value == 0:
        return f"0 {base}"
    prefix, factor = next(
        # 999.5 and up would print as 1000: the next step reads better.
        ((prefix, factor) for prefix, factor in sorted(steps.items(), key=lambda item: -item[1]) if abs(value) / factor >= 0.9995),
        min(steps.items(), key=lambda item: item[1]),
    )
    return f"{significant(value / factor)} {prefix}{base}"


def human(name: str, value: float) -> str:
    """`value` of the field `name` in the unit a person would say: human("tdp_w", 700) is '700 W'."""
    if name.endswith("_per_clock_per_sm"):
        return significant(value, 6)
    for ending, base in (("_flop_per_s", "FLOP/s"), ("_bytes_per_s", "B/s"), ("_bits_per_s", "bit/s"), ("_hz", "Hz"), ("_flop", "FLOP")):
        if name.endswith(ending):
            return scaled(value, base, DECIMAL)
    if name.endswith(("_bytes", "_bytes_per_sm", "_bytes_per_block")):
        return scaled(value, "B", {"": 1.0} | BINARY)
    if name.endswith("_fraction"):
        return f"{significant(100 * value)} %"
    if name.endswith("_w"):
        return f"{significant(value, 4)} W"
    if name.endswith("_s"):
        return scaled(value, "s", {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9})
    return significant(value, 6)


def signed_s(value_s: float) -> str:
    """A difference between two times: '+3 ms'."""
    return f"{'+' if value_s >= 0 else '-'}{human('_s', abs(value_s))}"


def interval_s(median_s: float, low_s: float, high_s: float) -> str:
    """A latency with its interval in one unit: '21 ms (19-24)'."""
    text = human("latency_s", median_s)
    unit = text.split()[1]
    factor = UNITS["_s"][unit]
    return f"{text} ({significant(low_s / factor)}-{significant(high_s / factor)})"
