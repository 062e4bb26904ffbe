"""One sentence on what to do about a kernel, always with the figure it follows from; and sentences on the run as a whole.

The rules are tried in order: what the kernel's own sizes and layout explain, then the largest part of the gap, then the kernel as such.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilecast import units
from tilecast.diagnosis.kernel_names import COMMUNICATION

AT_CEILING = 1.1  # measured over ceiling, below which nothing is to be had
SLOW = 1.3  # measured over predicted, above which the kernel itself is to blame
BESIDE = 0.3  # of a kernel's time beside communication, from which on that is worth saying
HIDDEN = 0.9  # of a collective's time behind computation
TELLING_PART = 0.25  # of the gap to the bound
LEAST_IDLE, LEAST_EXPOSED, LEAST_WAIT = 0.05, 0.05, 0.02  # of the span, to be worth a sentence
LEAST_POINTWISE, LEAST_COPIES = 0.2, 0.01  # of GPU time
PACKED = {1: 16, 2: 8, 4: 4}  # element bytes -> elements of a 16-byte access


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a sentence may rest on; one call, seconds."""

    family: str
    library: str
    kernel: str
    measured_s: float
    predicted_s: float
    ceiling_s: float
    bound_s: float
    bound_by: str
    parts: Mapping[str, float] = field(default_factory=dict)  # of the gap between bound and measured
    sizes: Mapping[str, Any] = field(default_factory=dict)
    element_bytes: float = 2.0
    waves: float | None = None
    tail_fraction: float | None = None
    one_by_one: bool = False  # the kernel takes single elements
    strided: tuple[int, ...] | None = None  # the strides of an operand that is not contiguous
    is_amd: bool = False
    is_extrapolated: bool = False  # nobody measured such kernels on such a GPU
    beside_fraction: float = 0.0  # of its time, communication ran beside computation


def advise(facts: Facts) -> str:
    """What would help this kernel."""
    rules = (_at_ceiling, _unaligned, _scattered, _communication, _largest_part)
    sentence = next((said for rule in rules if (said := rule(facts))), None) or _another_kernel(facts)
    if facts.beside_fraction > BESIDE and facts.family not in COMMUNICATION and facts.measured_s > AT_CEILING * facts.ceiling_s:
        sentence += f" Communication runs beside it for {_percent(facts.beside_fraction)} of its time, which slows it."
    return sentence


def time(value: float) -> str:
    return units.human("_s", value)


def _times(value: float) -> str:
    return f"{units.significant(value, 2)} times"


def _at_ceiling(facts: Facts) -> str | None:
    if facts.measured_s > AT_CEILING * facts.ceiling_s:
        return None
    less = {
        "dram": "fewer bytes help: fuse it with its neighbours, or store narrower numbers",
        "l2": "fewer bytes help: fuse it with its neighbours, or store narrower numbers",
        "tensor": "less work helps: a narrower number format, or fewer tokens",
        "link": "a smaller message helps, or hiding it behind computation",
        "network": "a smaller message helps, or hiding it behind computation",
        "launch": "fewer launches help: fuse it, or replay a CUDA graph",
    }.get(facts.bound_by, "less work helps")
    return f"As fast as such kernels get ({time(facts.measured_s)} against a ceiling of {time(facts.ceiling_s)}): only {less}."


def unaligned(facts: Facts) -> dict[str, int]:
    """Sizes that keep rows from starting on 16 bytes."""
    step = PACKED.get(int(facts.element_bytes), 8)
    inner = {"gemm": ("n", "k"), "softmax": ("cols",), "layer_norm": ("cols",), "rms_norm": ("cols",)}.get(facts.family, ())
    return {name: int(facts.sizes[name]) for name in inner if isinstance(facts.sizes.get(name), int) and facts.sizes[name] % step}


def _unaligned(facts: Facts) -> str | None:
    """Such rows cannot be read 16 bytes at a time."""
    odd, step = unaligned(facts), PACKED.get(int(facts.element_bytes), 8)
    if not odd or facts.measured_s < SLOW * facts.predicted_s:
        return None
    name, value = max(odd.items(), key=lambda item: item[1])
    loss = _times(facts.measured_s / facts.predicted_s)
    return (
        f"{name} = {value:,} is no multiple of {step}, so rows cannot be read 16 bytes at a time, and it takes {loss} what aligned rows "
        f"take ({time(facts.predicted_s)}): pad to {-(-value // step) * step:,}."
    )


def _scattered(facts: Facts) -> str | None:
    if facts.strided is not None and facts.measured_s > SLOW * facts.ceiling_s:
        return (
            f"Its operand is not contiguous (strides {' '.join(map(str, facts.strided))}): {time(facts.measured_s)} where one pass over "
            f"the same bytes takes {time(facts.ceiling_s)}; keep the layout, or let the kernel before or after it do the transposition."
        )
    if facts.one_by_one and facts.measured_s > SLOW * facts.ceiling_s:
        return (
            f"It reads and writes one element at a time (broadcast, converted or strided operands): {time(facts.measured_s)} where one "
            f"pass over the same bytes takes {time(facts.ceiling_s)}; torch.compile makes it part of a wider kernel."
        )
    return None


def _communication(facts: Facts) -> str | None:
    if facts.family not in COMMUNICATION:
        return None
    if facts.beside_fraction > HIDDEN:
        hidden = _percent(facts.beside_fraction)
        return f"{hidden} of it hides behind computation ({time(facts.measured_s)} a call), so a faster one would save little."
    size = units.human("_bytes", float(facts.sizes.get("bytes", 0)))
    ranks = facts.sizes.get("num_gpus", "?")
    return (
        f"{size} among {ranks} GPUs take {time(facts.measured_s)}, {_times(facts.measured_s / facts.ceiling_s)} the "
        f"{time(facts.ceiling_s)} of the fastest algorithm: ranks that arrive late are waited for inside it, so "
        "compare ranks before blaming the link."
    )


def _largest_part(facts: Facts) -> str | None:
    """What most of the gap is made of, unless that is the kernel itself."""
    gap_s = facts.measured_s - facts.bound_s
    own = facts.measured_s - facts.predicted_s
    named = {name: seconds for name, seconds in facts.parts.items() if name in PARTS}  # clocks and rates are below the ceiling too
    if gap_s <= 0 or not named:
        return None
    name, seconds = max(named.items(), key=lambda item: item[1])
    if seconds < TELLING_PART * gap_s or own > seconds:
        return None
    figure = f"{time(seconds)} of {time(facts.measured_s)}"
    waves = f"{facts.waves:.2f} waves" if facts.waves is not None else "its waves"
    return PARTS[name].format(figure=figure, waves=waves)


PARTS = {
    "wave tail": "{figure} go to a last wave that does not fill the GPU ({waves}): batch more, or pick tiles that divide the sizes.",
    "padding": "{figure} is work on padding: sizes that are multiples of the tile avoid it.",
    "cache misses": "{figure} go to bytes that are read from DRAM more than once: a wider tile, or an order of tiles that shares operands.",
    "occupancy": "{figure} are starts, ends and waits that too few resident blocks hide: smaller tiles or fewer registers per thread.",
    "pipeline imbalance": "{figure} go to pipelines that wait for one another: deeper software pipelining or more warps.",
    "split": "{figure} go to reductions over split parts and further small kernels: a batch that needs no split avoids them.",
    "launch": "{figure} is the launch itself: fuse it with its neighbours, or replay a CUDA graph.",
}  # fmt: skip


def _another_kernel(facts: Facts) -> str:
    ratio = facts.measured_s / facts.ceiling_s
    known = " (extrapolated from other GPUs)" if facts.is_extrapolated else ""
    blame = (
        f"It takes {time(facts.measured_s)}, {_times(ratio)} the {time(facts.ceiling_s)} that well-made kernels need for this work{known}"
    )
    if facts.family == "moe":
        tuned = "`tilecast tune moe` for its tiles" if "Triton" in facts.library else f"another backend than {facts.library}"
        return f"{blame}: try {tuned}, and look at how evenly tokens fall on experts."
    if facts.family == "gemm" and facts.is_amd:
        return f"{blame}: let PyTorch's TunableOp or hipBLASLt's tuner pick another tile than {_tile(facts.kernel)}."
    if facts.family == "gemm":
        return f"{blame}: another tile or library may help (it ran {_tile(facts.kernel)})."
    if facts.family.startswith("attention"):
        return f"{blame}: try another attention backend than {facts.library}."
    if facts.library == "driver":
        return f"{blame}: write the result where it is needed in the first place, and the copy is gone."
    if facts.family == "conv2d":
        return f"{blame}: channels-last layout, or a plain matrix product where windows do not overlap."
    return f"{blame}: a fused or vectorised kernel would come nearer."


def _tile(kernel: str) -> str:
    match = re.search(r"MT\d+x\d+x\d+|tilesize\d+x\d+x\d+|_(\d+x\d+)_", kernel)
    return (match.group(1) or match.group(0)) if match else "its own choice"


# ---- the run as a whole -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    span_s: float
    idle_s: float
    waiting_for_host_s: float | None
    longest_gap_s: float
    num_gaps: int
    communicating_s: float
    exposed_s: float
    with_stack: bool
    host_copy_s: float = 0.0
    pageable_copies: int = 0
    pointwise_s: float = 0.0
    pointwise_calls: int = 0
    gpu_s: float = 0.0
    rank_communicating_s: Mapping[str, float] = field(default_factory=dict)


def advise_run(facts: RunFacts) -> list[str]:
    """What the whole trace says, most telling first."""
    found = [rule(facts) for rule in (_idle, _exposed, _pointwise, _host_copies, _late_rank)]
    return [sentence for _, sentence in sorted(filter(None, found), key=lambda item: -item[0])]


Weighed = tuple[float, str] | None  # the seconds it is about, and the sentence


def _idle(facts: RunFacts) -> Weighed:
    if facts.idle_s <= LEAST_IDLE * facts.span_s:
        return None
    late, longest = facts.waiting_for_host_s, facts.longest_gap_s
    if late is None:
        why = (
            f"in {facts.num_gaps:,} gaps, the longest {time(longest)}; the clocks of host and GPU differ, so the trace cannot say what for"
        )
    elif longest > 0.5 * facts.idle_s:
        why = f"{time(longest)} of it in one gap: look at what the host did before the run proper"
    elif late > 0.5 * facts.idle_s:
        why = f"{time(late)} of it because the next kernel had not been launched: CUDA graphs, torch.compile or larger batches help"
    else:
        why = f"in {facts.num_gaps:,} gaps, most of them not for want of a launch: look for dependencies and synchronisation"
    stack = "; Python stacks were recorded, which slows the host: record without them before trusting this" if facts.with_stack else ""
    return facts.idle_s, f"The GPU is idle {time(facts.idle_s)}, {_percent(facts.idle_s / facts.span_s)} of the span, {why}{stack}."


def _exposed(facts: RunFacts) -> Weighed:
    if facts.exposed_s <= LEAST_EXPOSED * facts.span_s:
        return None
    hidden = facts.communicating_s - facts.exposed_s
    share = _percent(facts.exposed_s / facts.span_s)
    return facts.exposed_s, (
        f"Communication takes {time(facts.communicating_s)}: {time(hidden)} hide behind computation, {time(facts.exposed_s)} "
        f"({share} of the span) do not."
    )


def _pointwise(facts: RunFacts) -> Weighed:
    if not facts.gpu_s or facts.pointwise_s <= LEAST_POINTWISE * facts.gpu_s:
        return None
    return 0.5 * facts.pointwise_s, (
        f"{facts.pointwise_calls:,} pointwise, copy and reduction kernels take {time(facts.pointwise_s)}, "
        f"{_percent(facts.pointwise_s / facts.gpu_s)} of GPU time: each writes to DRAM what its neighbour reads again, which fusing them "
        "(torch.compile) spares."
    )


def _host_copies(facts: RunFacts) -> Weighed:
    if not facts.gpu_s or facts.host_copy_s <= LEAST_COPIES * facts.gpu_s:
        return None
    pageable = f", {facts.pageable_copies:,} of them from or to pageable memory: pin it" if facts.pageable_copies else ""
    return facts.host_copy_s, f"Copies between host and GPU take {time(facts.host_copy_s)}{pageable}."


def _late_rank(facts: RunFacts) -> Weighed:
    """Who communicates least came last: the others wait for it inside their collectives."""
    if len(facts.rank_communicating_s) < 2:
        return None
    (last, least), (_, most) = (choose(facts.rank_communicating_s.items(), key=lambda item: item[1]) for choose in (min, max))
    if most - least <= LEAST_WAIT * facts.span_s:
        return None
    return most - least, (
        f"Rank {last} communicates {time(least)}, others up to {time(most)}: they wait up to {time(most - least)} for rank {last}, which "
        "arrives last."
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def unfused_attention(measured_s: float, fused_s: float, share: float, scores_bytes: float, calls: int) -> str:
    size = units.human("_bytes", scores_bytes)
    return (
        f"Attention runs as separate products and softmax: {time(measured_s)} ({_percent(share)} of GPU time) in {calls:,} calls, each "
        f"writing and reading {size} of scores. A fused kernel is predicted to need {time(fused_s)} for all of it: use "
        "scaled_dot_product_attention or FlashAttention."
    )
