"""How many GPUs share a training step.

Ranks are counted as Megatron does: tensor-parallel neighbours first, then shards, then replicas, pipeline stages last.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from tilecast.errors import InvalidInput

SCHEDULES = ("1f1b", "gpipe", "interleaved")
STAGES_OF_ZERO = (0, 1, 2)  # 3 is what fsdp does
MOST_GPUS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is spread: the product of dp, fsdp, tp and pp is the number of GPUs; experts are spread over data-parallel ranks."""

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    micro_batches: int = 1
    zero: int = 0  # what `dp` ranks divide: nothing, optimizer states, gradients too
    overlap_gather: bool = True  # weights that such ranks updated are gathered during the next step's first pass, as Megatron's recipes do
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1  # groups of layers that one GPU holds, with the schedule `interleaved`

    def __post_init__(self) -> None:
        for name in ("dp", "fsdp", "tp", "pp", "ep", "micro_batches", "virtual_stages"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
                raise InvalidInput(f"{name} = {value!r} must be a whole number from 1 to {MOST_GPUS:,}")
        if self.num_gpus > MOST_GPUS:
            raise InvalidInput(f"dp x fsdp x tp x pp = {self.num_gpus:,} GPUs is more than {MOST_GPUS:,}")
        if self.zero not in STAGES_OF_ZERO or isinstance(self.zero, bool):
            raise InvalidInput(f"zero = {self.zero!r} must be one of 0, 1, 2; stage 3 is fsdp")
        if self.schedule not in SCHEDULES:
            raise InvalidInput(f"schedule = {self.schedule!r} must be one of {', '.join(SCHEDULES)}")
        if self.replicas % self.ep:
            raise InvalidInput(f"ep = {self.ep} must divide the {self.replicas} data-parallel ranks (dp x fsdp)")
        if (self.virtual_stages > 1) != (self.schedule == "interleaved" and self.virtual_stages > 1):
            raise InvalidInput(f"virtual_stages = {self.virtual_stages} needs the schedule interleaved, not {self.schedule}")
        if self.schedule == "interleaved" and self.pp > 1 and self.micro_batches % self.pp:
            raise InvalidInput(f"micro_batches = {self.micro_batches} must be a multiple of pp = {self.pp} with the schedule interleaved")

    @property
    def replicas(self) -> int:
        """Ranks that work on different texts."""
        return self.dp * self.fsdp

    @property
    def expert_fsdp(self) -> int:
        """Ranks that shard an expert: those of `fsdp` that hold the same one."""
        return self.fsdp // math.gcd(self.fsdp, self.ep)

    @property
    def expert_dp(self) -> int:
        """Replicas of an expert, or of its shards."""
        return self.replicas // self.ep // self.expert_fsdp

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.tp * self.pp

    @property
    def is_alone(self) -> bool:
        return self.num_gpus == 1

    def refuse_what_does_nothing(self, mode: str | None = None) -> None:
        """Raises InvalidInput for the first option that has nothing to work on: somebody meant another layout."""
        zero, divides = f"zero = {self.zero}", self.zero > 0
        if divides and mode == "inference":
            raise InvalidInput(f"{zero} is for training: an inference pass has neither gradients nor optimizer states")
        if divides and self.fsdp > 1:
            raise InvalidInput(f"{zero} and fsdp = {self.fsdp} exclude one another: fsdp shards optimizer states and gradients too")
        if divides and self.dp == 1:
            raise InvalidInput(f"{zero} divides what dp ranks hold alike, and dp = 1")
        if not self.overlap_gather and not divides:
            raise InvalidInput("overlap_gather is for dp with zero = 1 or 2: otherwise every GPU updates all its weights")
        if self.sequence_parallel and self.tp == 1:
            raise InvalidInput("sequence_parallel divides by tokens what tp leaves whole, and tp = 1")
        if self.schedule != "1f1b" and self.pp == 1:
            raise InvalidInput(f"schedule = {self.schedule!r} is an order of pipeline stages, and pp = 1")
        if self.schedule == "interleaved" and self.virtual_stages == 1:
            raise InvalidInput("schedule = 'interleaved' needs virtual_stages of 2 or more: with one group a GPU it is 1f1b")

    def micro_batch(self, batch: int) -> int:
        """Texts that one GPU handles at once, of `batch` in the step."""
        parts = self.replicas * self.micro_batches
        if batch % parts:
            ways = " x ".join(f"{name} {getattr(self, name)}" for name in ("dp", "fsdp", "micro_batches") if getattr(self, name) > 1)
            raise InvalidInput(f"batch = {batch} must be a multiple of {parts} ({ways})")
        return batch // parts

    def to_dict(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)} | {"num_gpus": self.num_gpus}


@dataclass(frozen=True, slots=True)
class Members:
    """GPUs that talk to one another: how many, and how many of them stand in one node."""

    ranks: int
    per_node: int


def members(layout: Layout, group: str, gpus_per_node: int) -> Members:
    """The group of one rank: tp, fsdp, dp, pp, or `replicas` (fsdp and dp together); ep ranks lie next to one another in it.

    `expert_fsdp` and `expert_dp`: those of them that hold the same experts, every `ep`-th.
    """
    sizes = {"tp": layout.tp, "fsdp": layout.fsdp, "dp": layout.dp, "pp": layout.pp, "replicas": layout.replicas, "ep": layout.ep}
    strides = {"tp": 1, "fsdp": layout.tp, "replicas": layout.tp, "ep": layout.tp, "dp": layout.tp * layout.fsdp}
    strides["pp"] = layout.tp * layout.replicas
    sizes |= {"expert_fsdp": layout.expert_fsdp, "expert_dp": layout.expert_dp}
    strides |= {"expert_fsdp": layout.tp * layout.ep, "expert_dp": layout.tp * layout.ep * layout.expert_fsdp}
    room = max(1, gpus_per_node // strides[group])
    return Members(sizes[group], max(ways for ways in range(1, min(room, sizes[group]) + 1) if sizes[group] % ways == 0))
