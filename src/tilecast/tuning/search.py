"""Search the whole space for each number of tokens: rank, shortlist, and say what the best gains over the engine's default.

A layer is two passes of one kernel. Where an engine reads one configuration for both, passes count by their share of the analytic time;
where it reads two, they only have to agree on the tile's height, because tokens are sorted into tiles once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.dtypes import quantisation
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.kernels.expert_loads import loads_like
from tilecast.kernels.moe import Moe
from tilecast.learning.ranking import Ranking, path_of, read
from tilecast.tuning.account import Account, account
from tilecast.tuning.defaults import default_config, gemm_default
from tilecast.tuning.space import CHOICES, PARAMETERS, Space, feasible

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
SHORTLIST = 8
PER_CHANNEL_DTYPES = ("fp8", "fp8_static", "int8_sq")
LEARNED_DTYPES = ("bf16", "fp16")
MOST_APART = 0.45  # log of the ratio of ridge points: H200 is 0.36 from H800, H20 is about 2
BLOCK = 128  # a side of a block with one scale

Config = Mapping[str, int]
Timer = Callable[[Moe, Config], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one rank holds of an MoE layer, or a single matrix (`num_experts` 1, not gated)."""

    kernel: str  # "moe" or "gemm"
    num_experts: int  # of the whole layer
    topk: int
    hidden_size: int
    inter_size: int  # of one expert, before it is cut
    tp: int = 1  # ranks an expert is cut across
    ep: int = 1  # ranks that experts are dealt to
    gated: bool = True
    dtype: str = "bf16"
    histogram: tuple[float, ...] | None = None  # how often each expert is chosen; None: all equally
    num_fused: int = 0  # shared experts, which every token visits, that run in the same kernel
    per_channel: bool = False  # 8-bit weights with a scale for each column, which SGLang says in the name of the file

    def __post_init__(self) -> None:
        for name in ("num_experts", "topk", "hidden_size", "inter_size", "tp", "ep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} = {value!r} must be a whole number of at least 1")
        if self.topk > self.num_experts:
            raise InvalidInput(f"topk = {self.topk} exceeds num_experts = {self.num_experts}")
        if self.num_experts % self.ep:
            raise InvalidInput(f"num_experts = {self.num_experts} must be a multiple of ep = {self.ep}")
        if self.inter_size % self.tp:
            raise InvalidInput(f"inter_size = {self.inter_size} must be a multiple of tp = {self.tp}")
        if self.histogram is not None and len(self.histogram) != self.num_experts:
            raise InvalidInput(f"the histogram lists {len(self.histogram)} experts; the layer has {self.num_experts}")
        if self.per_channel and (self.kernel != "moe" or self.dtype not in PER_CHANNEL_DTYPES):
            raise InvalidInput(f"scales per channel are of {', '.join(PER_CHANNEL_DTYPES)} experts, not of {self.dtype} in {self.kernel}")
        if self.num_fused and self.ep > 1:
            raise InvalidInput(f"a shared expert cannot be fused with experts that are dealt to ep = {self.ep} groups")

    @property
    def local_experts(self) -> int:
        return self.num_experts // self.ep + self.num_fused

    @property
    def local_inter(self) -> int:
        return self.inter_size // self.tp

    def launch(self, num_tokens: int, moe_pass: str) -> Moe:
        return Moe(
            num_tokens=num_tokens, hidden_size=self.hidden_size, inter_size=self.inter_size,
            num_experts=self.num_experts + self.num_fused, topk=self.topk + self.num_fused, tp=self.tp, ep=self.ep,
            distribution=self._distribution(num_tokens), moe_pass=moe_pass, gated=self.gated, dtype=self.dtype, identity="triton",
        )  # fmt: skip

    def _distribution(self, num_tokens: int) -> str:
        if self.histogram is None and not self.num_fused:
            return "balanced"
        routed = np.ones(self.num_experts) if self.histogram is None else np.array(self.histogram)
        loads = loads_like(routed, num_tokens, self.topk)
        return json.dumps([*loads.astype(int).tolist(), *[num_tokens] * self.num_fused])


def gemm_layer(n: int, k: int) -> Layer:
    """A dense product as a layer of one expert that every row visits."""
    return Layer(kernel="gemm", num_experts=1, topk=1, hidden_size=k, inter_size=n, gated=False, dtype="fp8_block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Time of the default over time of the choice, with its 80 % interval."""

    median: float
    low: float
    high: float
    basis: str  # as for predictions; "measured" where both were timed, "measured-first-pass" where times of the second are missing

    def told(self) -> dict[str, Any]:
        return {"median": self.median, "low": self.low, "high": self.high, "basis": self.basis}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """What to run for one number of tokens."""

    num_tokens: int
    config: Config
    down_config: Config | None  # of the second pass, where the engine reads one of its own
    default: Config
    gain: Gain | None  # None: the default does not fit this GPU
    shortlist: tuple[Config, ...]  # worth measuring, the choice first
    down_shortlist: tuple[Config, ...]  # of the second pass, where it has a configuration of its own; every height of `shortlist` is there
    predicted_s: float  # analytic, all passes
    default_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    layer: Layer
    gpu: GpuSpec
    engine: str
    space: Space
    choices: tuple[Choice, ...]
    num_priced: int  # configurations x passes x token counts


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """One pass of one problem: the account of every configuration, and its logit of being good."""

    account: Account
    logit: NDArray[np.float64]


def shipped_ranking() -> Ranking:
    return read(path_of("moe"))


def space_for(layer: Layer, gpu: GpuSpec, choices: Mapping[str, Sequence[int]] = CHOICES) -> Space:
    if gpu.vendor != "nvidia":
        raise InvalidInput(
            f"{gpu.id}: configurations are tuned for NVIDIA GPUs; {gpu.vendor} kernels have parameters that are not modelled"
        )
    return feasible(gpu, quantisation(layer.dtype), choices, k_step=BLOCK if layer.dtype == "fp8_block" else None)


def tune(
    layer: Layer,
    gpu: GpuSpec,
    *,
    engine: str = "sglang",
    tokens: Sequence[int] = TOKENS,
    shortlist: int = SHORTLIST,
    choices: Mapping[str, Sequence[int]] = CHOICES,
    ranking: Ranking | None = None,
    time_s: Timer | None = None,
) -> Tuned:
    """The best configuration for each number of tokens; with `time_s`, shortlists are timed and the fastest is chosen."""
    _check_tokens(tokens)
    if shortlist < 1:
        raise InvalidInput(f"shortlist = {shortlist} must be at least 1")
    ranking = ranking or shipped_ranking()
    space = space_for(layer, gpu, choices)
    found = tuple(_choice(layer, gpu, engine, num_tokens, shortlist, space, ranking, time_s) for num_tokens in tokens)
    return Tuned(
        layer=layer, gpu=gpu, engine=engine, space=space, choices=found, num_priced=len(space) * len(passes_of(layer)) * len(tokens)
    )


def _check_tokens(tokens: Sequence[int]) -> None:
    if not tokens or len(set(tokens)) != len(tokens) or any(count < 1 for count in tokens):
        raise InvalidInput(f"tokens = {','.join(map(str, tokens)) or 'none'} must be different whole numbers of at least 1")


def passes_of(layer: Layer) -> tuple[str, ...]:
    return ("w13",) if layer.kernel == "gemm" else ("w13", "w2")


def ranked(launch: Moe, gpu: GpuSpec, space: Space, ranking: Ranking) -> Ranked:
    found = account(launch, gpu, space)
    return Ranked(found, ranking.logit(found.numbers, stand_in(gpu, ranking.gpus), space.rows()))


def stand_in(gpu: GpuSpec, searched: Sequence[str]) -> str:
    """Whose trees speak for `gpu`: its own, or those of a searched GPU of the same die and nearly the same FLOP per byte."""
    if gpu.id in searched:
        return gpu.id
    kin = {other.id: _apart(gpu, other) for other in map(hardware.gpu, searched) if other.die == gpu.die}
    nearest = min(kin, key=lambda name: kin[name], default=gpu.id)
    return nearest if kin.get(nearest, MOST_APART) < MOST_APART else gpu.id


def _apart(one: GpuSpec, other: GpuSpec) -> float:
    """|log| of the ratio of their ridge points."""
    ridges = [spec.highest_matrix_rate("bf16") / spec.dram_bytes_per_s for spec in (one, other)]
    return abs(float(np.log(ridges[0] / ridges[1])))


def _choice(
    layer: Layer, gpu: GpuSpec, engine: str, num_tokens: int, size: int, space: Space, ranking: Ranking,
    time_s: Timer | None,
) -> Choice:  # fmt: skip
    launches = [layer.launch(num_tokens, name) for name in passes_of(layer)]
    passes = [ranked(launch, gpu, space, ranking) for launch in launches]
    time = np.array([part.account.analytic_s[np.argmax(part.logit)] for part in passes])
    weight = time / time.sum()
    joint = sum(share * part.logit for share, part in zip(weight, passes, strict=True))
    is_split = engine == "sglang" and len(passes) > 1
    first, second = _two_passes(passes, weight, space) if is_split else (int(np.argmax(joint)), None)
    leading = passes[0].logit if is_split else np.asarray(joint)
    order = shortlist_of(leading, space, size, distinct=stand_in(gpu, ranking.gpus) not in ranking.gpus, first=first)
    shortlist = tuple(space.config(row) for row in order)
    down = [] if second is None else second_shortlist(passes[1].logit, space, size, heights=space.block_m[order], first=second)
    default = _default(layer, gpu, engine, num_tokens)
    place = space.find(default)
    gain = _gain(passes, weight, place, gpu, layer, ranking) if place is not None else None
    predicted = [part.account.analytic_s[row] for part, row in zip(passes, (first, first if second is None else second), strict=False)]
    choice = Choice(
        num_tokens=num_tokens, config=space.config(first), down_config=None if second is None else space.config(second), default=default,
        gain=gain, shortlist=shortlist, down_shortlist=tuple(space.config(row) for row in down), predicted_s=float(sum(predicted)),
        default_s=None if place is None else float(sum(part.account.analytic_s[place] for part in passes)),
    )  # fmt: skip
    return choice if time_s is None else measured(choice, launches, time_s)


def _default(layer: Layer, gpu: GpuSpec, engine: str, num_tokens: int) -> Config:
    if layer.kernel == "gemm":
        return gemm_default(engine)
    return default_config(engine, num_tokens, layer.local_experts, layer.dtype, gpu.shared_bytes_per_block)


def _two_passes(passes: Sequence[Ranked], weight: NDArray[np.float64], space: Space) -> tuple[int, int]:
    """The best of each pass, of those heights that are best for both together."""
    best: tuple[float, int, int] | None = None
    for height in np.unique(space.block_m):
        rows = np.flatnonzero(space.block_m == height)
        up, down = (int(rows[np.argmax(part.logit[rows])]) for part in passes)
        score = float(weight[0] * passes[0].logit[up] + weight[1] * passes[1].logit[down])
        if best is None or score > best[0]:
            best = (score, up, down)
    assert best is not None
    return best[1], best[2]


def shortlist_of(logit: NDArray[np.float64], space: Space, size: int, *, distinct: bool, first: int | None = None) -> list[int]:
    """The likeliest configurations, best first. `distinct`: no two that differ in the group alone, so that a wrong tile costs one place."""
    order: list[int] = np.argsort(-logit, kind="stable").tolist()
    if first is not None:
        order.remove(first)
        order.insert(0, first)
    if not distinct:
        return order[:size]
    seen: set[tuple[int, ...]] = set()
    kept: list[int] = []
    for row in order:
        tile = tuple(int(values[row]) for name, values in space.columns().items() if name != "group_m")
        if tile not in seen:
            seen.add(tile)
            kept.append(row)
        if len(kept) == size:
            break
    return kept


def second_shortlist(logit: NDArray[np.float64], space: Space, size: int, *, heights: NDArray[np.int64], first: int) -> list[int]:
    """Of the second pass, the likeliest of every height that the first may end up with, then the likeliest of them all."""
    order = [int(row) for row in np.argsort(-logit, kind="stable") if space.block_m[row] in heights]
    best = [next(row for row in order if space.block_m[row] == height) for height in dict.fromkeys(heights.tolist())]
    chosen = list(dict.fromkeys([first, *best, *order]))
    return chosen[: max(size, len({first, *best}))]


def basis_of(layer: Layer, gpu: GpuSpec, ranking: Ranking) -> str:
    """Searches were of 16-bit MoE: another format or a dense product is further away than another GPU."""
    if layer.kernel != "moe" or layer.dtype not in LEARNED_DTYPES:
        return "extrapolated-shape"
    return ranking.basis(gpu.id)


def _gain(passes: Sequence[Ranked], weight: NDArray[np.float64], place: int, gpu: GpuSpec, layer: Layer, ranking: Ranking) -> Gain:
    name = stand_in(gpu, ranking.gpus)
    each = [float(ranking.log_gain(part.account.numbers[place : place + 1], name)[0]) for part in passes]
    log_gain = float(np.dot(weight, each))
    basis = basis_of(layer, gpu, ranking)
    width = ranking.width.get(basis, ranking.width["unseen-gpu"])
    return Gain(median=float(np.exp(log_gain)), low=float(np.exp(log_gain - width)), high=float(np.exp(log_gain + width)), basis=basis)


def measured(choice: Choice, launches: Sequence[Moe], time_s: Timer) -> Choice:
    """The fastest by measurement of the shortlist and the default; configurations that do not run are left out."""
    if choice.down_config is not None:
        return _measured_apart(choice, launches, time_s)
    timed = _timed(launches, choice.shortlist, time_s)
    if not timed:
        raise _unmeasured(choice)
    best, best_s = _timed(launches, [*choice.shortlist, choice.default], time_s)[0]
    gain = _measured_gain(_total(launches, choice.default, time_s), best_s, "measured", choice.gain)
    return replace(choice, config=best, gain=gain, shortlist=tuple(config for config, _ in timed))


def _measured_apart(choice: Choice, launches: Sequence[Moe], time_s: Timer) -> Choice:
    """Each pass with its own shortlist; the pair of one height that takes least together wins, or the default.

    Recorded times may be of the first pass alone: then it decides, and the likeliest second pass of its height goes with it.
    """
    up, down = (
        _timed([launch], configs, time_s) for launch, configs in zip(launches, (choice.shortlist, choice.down_shortlist), strict=True)
    )
    if not up:
        raise _unmeasured(choice)
    if down:
        pairs = [(one_s + other_s, one, other) for one, one_s in up for other, other_s in down if _height(one) == _height(other)]
        if not pairs:
            raise InvalidInput(f"no two configurations of one BLOCK_SIZE_M were measured for both passes of {choice.num_tokens} tokens")
        basis, default_s = "measured", _total(launches, choice.default, time_s)
        pairs += [(default_s, choice.default, choice.default)] if default_s is not None else []
        total_s, first, second = min(pairs, key=lambda pair: pair[0])
    else:
        first, total_s = up[0]
        second = next(config for config in choice.down_shortlist if _height(config) == _height(first))
        basis, default_s = "measured-first-pass", _total(launches[:1], choice.default, time_s)
        if default_s is not None and default_s < total_s:
            first, second, total_s = choice.default, choice.default, default_s
    return replace(
        choice, config=first, down_config=second, gain=_measured_gain(default_s, total_s, basis, choice.gain),
        shortlist=tuple(config for config, _ in up), down_shortlist=tuple(config for config, _ in down) or choice.down_shortlist,
    )  # fmt: skip


def _height(config: Config) -> int:
    return config[PARAMETERS["block_m"]]


def _unmeasured(choice: Choice) -> InvalidInput:
    return InvalidInput(f"none of the {len(choice.shortlist)} configurations for {choice.num_tokens} tokens could be measured")


def _timed(launches: Sequence[Moe], configs: Sequence[Config], time_s: Timer) -> list[tuple[Config, float]]:
    """Those that run, the fastest first."""
    found = [(config, total) for config in configs if (total := _total(launches, config, time_s)) is not None]
    return sorted(found, key=lambda entry: entry[1])


def _measured_gain(default_s: float | None, best_s: float, basis: str, predicted: Gain | None) -> Gain | None:
    """The predicted one stays where the default was not timed."""
    if default_s is None:
        return predicted
    return Gain(median=default_s / best_s, low=default_s / best_s, high=default_s / best_s, basis=basis)


def _total(launches: Sequence[Moe], config: Config, time_s: Timer) -> float | None:
    times = [time_s(launch, config) for launch in launches]
    known = [one for one in times if one is not None]
    return float(sum(known)) if len(known) == len(times) else None
