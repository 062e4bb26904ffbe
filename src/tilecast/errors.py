"""
Everything this library raises on purpose:

TilecastError
├── InvalidInput        what the user gave is wrong: exit code 2
│   ├── UnknownName     no GPU, node, family, source or suite by that name; says which are nearest
│   └── SpecError       a hardware file or an override is malformed, contradictory, or lacks a fact that was asked for
└── Unavailable         the question is sensible, but something is not here: exit code 3
    ├── MissingData     no measured data where it was looked for, or it is damaged
    └── MissingExtra    an optional part of the package is not installed

Anything else that escapes is a bug.
"""

from collections.abc import Iterable

MOST_LISTED = 12
MOST_SHOWN = 60  # characters of what was given


def shown(value: object) -> str:
    """What was given, on one line, cut where it would fill a page."""
    text = " ".join(repr(value).split())
    if len(text) > MOST_SHOWN and isinstance(value, int) and abs(value) < 10**308:
        return f"{value:g}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


class TilecastError(Exception):
    """Root of the tree above; the command line prints these as one sentence, without a traceback."""

    exit_code = 1


class InvalidInput(TilecastError):
    exit_code = 2


class UnknownName(InvalidInput):
    """A name that is not in a list, with the nearest ones that are."""

    @classmethod
    def among(cls, what: str, name: object, known: Iterable[str]) -> "UnknownName":
        from difflib import get_close_matches  # 8 ms of import that only a mistake should cost

        known = sorted(known)
        folded = {entry.lower().replace("_", "-"): entry for entry in known}
        asked = name.lower().replace("_", "-") if isinstance(name, str) else ""
        inside = [entry for key, entry in folded.items() if asked and (asked in key or (len(key) > 2 and key in asked))]
        near = inside[:3] or [folded[key] for key in get_close_matches(asked, folded, n=3, cutoff=0.5)]
        few = ", ".join(known if len(known) <= MOST_LISTED else [*known[:MOST_LISTED], f"and {len(known) - MOST_LISTED} more"])
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {few}"
        return cls(f"unknown {what} {repr(name) if isinstance(name, str) else shown(name)}: {hint}")


class SpecError(InvalidInput): ...


class Unavailable(TilecastError):
    exit_code = 3


class MissingData(Unavailable): ...


class MissingExtra(Unavailable):
    @classmethod
    def of(cls, extra: str, needs: str) -> "MissingExtra":
        return cls(f"{needs} needs the extra {extra!r}: pip install 'tilecast[{extra}]'")
