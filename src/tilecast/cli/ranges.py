"""Lists and ranges of numbers on the command line, and whether they make a question a comparison. Imports nothing that takes time."""

import math

from tilecast.errors import InvalidInput

MOST_NUMBERS = 100_000
LARGEST = 2**53  # whole numbers beyond are not told apart


def numbers(option: str, text: str) -> list[int]:
    """[1, 2, 4] from "1,2,4"; [1, 2, 4, ..., 256] from "1:256:x2"; every eighth from "8:64:8"."""
    found: list[int] = []
    for part in text.split(","):
        try:
            found += span(part) if ":" in part else [int(part)]
        except ValueError:
            raise InvalidInput(f"{option} {text} must read like 8, 1,2,4 or FROM:TO:STEP such as 1:256:x2 or 8:64:8") from None
        if len(found) > MOST_NUMBERS:
            raise InvalidInput(f"{option} {text} has more than {MOST_NUMBERS:,} numbers; take a larger step, or x2")
    if len(found) > 1 and min(found) < 1:
        raise InvalidInput(f"{option} {text}: {min(found)} must be at least 1")
    return list(dict.fromkeys(found))


def span(text: str) -> list[int]:
    """[1, 2, 4, 8] from "1:8:x2" or "1:8", [8, 16, 24] from "8:24:8"; one more than MOST_NUMBERS at most, and a ValueError if it reads
    otherwise."""
    ends = text.strip().split(":")
    start, stop = map(int, ends[:2])
    step, *more = ends[2:] or ["x2"]
    factor, add = (float(step[1:]), 0) if step.startswith("x") else (1.0, int(step))
    if more or not 1 <= start <= stop <= LARGEST or not (1.0 < factor < math.inf or add > 0):
        raise ValueError(text)
    found, value = list[int](), start
    while value <= stop and len(found) <= MOST_NUMBERS:
        found.append(value)
        value = value + add if add else max(value + 1, round(value * factor))
    return found


def is_comparison(gpu: str, tp: str, batch: str | None, by: str | None) -> bool:
    return by is not None or "," in gpu or any(mark in text for text in (tp, batch or "") for mark in ",:")
