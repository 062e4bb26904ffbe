"""What is being done now, on stderr."""

import sys


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ingesting(what: str, done: int, total: int) -> None:
    """As the store reports: only the start of each table set is worth a line."""
    if done == 0:
        say(f"  reading {total} tables of {what} into the store")
