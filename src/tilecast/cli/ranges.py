"""Lists and ranges of numbers on the command line, and whether they make a question a comparison. Imports nothing that takes time."""

from tilecast.errors import InvalidInput

MOST_NUMBERS = 100_000


def numbers(option: str, text: str) -> list[int]:
    """[1, 2, 4] from "1,2,4"; [1, 2, 4, ..., 256] from "1:256:x2"; every eighth from "8:64:8"."""
    found: list[int] = []
    for part in text.split(","):
        ends = part.strip().split(":")
        try:
            if len(ends) == 1:
                found.append(int(ends[0]))
                continue
            start, stop, step = int(ends[0]), int(ends[1]), ends[2] if len(ends) > 2 else "x2"
            factor, add = (float(step[1:]), 0) if step.startswith("x") else (1.0, int(step))
            if len(ends) > 3 or start < 1 or stop < start or (factor <= 1.0 and add < 1):
                raise ValueError
        except ValueError:
            raise InvalidInput(f"{option} {text} must read like 8, 1,2,4 or FROM:TO:STEP such as 1:256:x2 or 8:64:8") from None
        value = start
        while value <= stop and len(found) < MOST_NUMBERS:
            found.append(value)
            value = max(value + 1, round(value * factor)) if factor > 1.0 else value + add
    if len(found) > 1 and min(found) < 1:
        raise InvalidInput(f"{option} {text}: {min(found)} must be at least 1")
    return list(dict.fromkeys(found))


def is_comparison(gpu: str, tp: str, batch: str | None, by: str | None) -> bool:
    return by is not None or "," in gpu or any(mark in text for text in (tp, batch or "") for mark in ",:")
