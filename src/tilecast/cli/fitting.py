"""What is said of a model that does not fit: by how much, and which options would make it."""

from tilecast import units
from tilecast.workloads.memory import Memory

MOST_CHOICES = 3  # in a sentence


def choices(memory: Memory) -> list[str]:
    """Options as they are typed, e.g. "--tp 8 --pp 2"."""
    return [" ".join(f"--{name.replace('_', '-')} {value}" for name, value in choice.items()) for choice in memory.would_fit]


def misfit(memory: Memory) -> str:
    """The end of an answer's sentence; nothing where it fits."""
    if memory.fits:
        return ""
    would = f": {' or '.join(choices(memory)[:MOST_CHOICES])} would" if memory.would_fit else ", nor would more GPUs or a narrower format"
    return f"; it does not fit, by {units.human('_bytes', memory.missing_bytes)} a GPU{would}"


def other_choices(memory: Memory) -> str:
    """Those that the sentence left out, for a table."""
    more = choices(memory)[MOST_CHOICES:]
    return f"; also {' or '.join(more)} would" if more else ""
