"""How a time is taken: which timer, and what the caches hold when the kernel starts."""

from dataclasses import dataclass

from tilecast.errors import InvalidInput

TIMERS = {
    "profiler": "the kernel's own time",
    "graph": "replays of a CUDA graph, back to back; where there are none, eager calls back to back",
    "event": "events around one eager call: the host's launch is inside",
}
CACHES = {
    "cold": "every operand comes from DRAM",
    "warm": "the same buffers again: what fits L2 is there",
    "rotated": "a few copies of the weights in turn; activations warm",
}


@dataclass(frozen=True, slots=True)
class Protocol:
    timer: str = "profiler"
    cache: str = "cold"

    def __post_init__(self) -> None:
        for name, allowed in (("timer", TIMERS), ("cache", CACHES)):
            if getattr(self, name) not in tuple(allowed):
                raise InvalidInput(f"{name} = {getattr(self, name)!r} must be one of {', '.join(allowed)}")
