"""Predict a static batch on an engine: first token, decode step, total, throughput, memory, and where the time goes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilecast import hardware, units
from tilecast.dtypes import dtype, quantisation
from tilecast.engines.base import Engine, Host, kernel_step, with_settings
from tilecast.engines.base import engine as engine_named
from tilecast.engines.fit import memory_of, with_room
from tilecast.errors import InvalidInput, SpecError
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.learning.calibration import INTERVAL_SIGMAS
from tilecast.learning.profiles import Profile
from tilecast.markup import html_table
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import (
    BASES,
    CallTime,
    Price,
    StepTime,
    evaluated_steps,
    median_over_steps,
    price_steps,
    step_weights,
    weakest,
    with_profile,
)
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import Batch, KernelCall, Step, Tokens, chunked_prefill, decode_tokens, prefill_tokens
from tilecast.workloads.memory import Memory
from tilecast.workloads.model import ModelConfig, model_config
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard, node_for, sharded
from tilecast.workloads.quantisation import requantised, served

HOST = "host"
PIPELINE = "pipeline_wait"  # for other micro-batches
TOKENS_PER_S = "tokens/s"


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 80 % interval, in SI units."""

    median: float
    low: float
    high: float
    unit: str = field(default="s", kw_only=True)  # times are told in the unit that suits them

    def __add__(self, other: "Interval") -> "Interval":
        """Errors on one GPU go together: the bounds of a sum are the sums of the bounds."""
        return Interval(self.median + other.median, self.low + other.low, self.high + other.high, unit=self.unit)

    def per(self, number: float) -> "Interval":
        return Interval(self.median / number, self.low / number, self.high / number, unit=self.unit)

    def rate_of(self, tokens: float) -> "Interval":
        """Tokens a second, of `tokens` in this time: the longest time is the lowest rate, and no time is no rate."""
        if not self.median:
            return Interval(0.0, 0.0, 0.0, unit=TOKENS_PER_S)
        return Interval(tokens / self.median, tokens / self.high, tokens / self.low, unit=TOKENS_PER_S)

    def to_dict(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        if self.unit == "s":
            return units.interval_s(self.median, self.low, self.high)
        return f"{units.significant(self.median)} ({units.significant(self.low)}-{units.significant(self.high)}) {self.unit}"


NOTHING = Interval(0.0, 0.0, 0.0)
OPTIONS = ("kv_dtype", "op", "distribution", "moe_pass", "node")  # of kernels: names, where sizes are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line of the breakdown: all launches of a call in a phase, or the host's share of it."""

    phase: str
    name: str
    family: str
    identity: str | None
    sizes: Mapping[str, Any]  # in decode, those of the last step
    launches_per_step: int
    time: Interval  # over the whole phase
    share_fraction: float  # of its phase
    bound_by: str
    bound_s: float
    basis: str
    call: KernelCall | None = None  # None: the host's own

    @property
    def efficiency(self) -> float | None:
        """How near it is to its bound; the host has none."""
        return self.bound_s / self.time.median if self.call is not None and self.time.median else None

    def to_dict(self) -> dict[str, Any]:
        times = {"median_s": self.time.median, "low_s": self.time.low, "high_s": self.time.high}
        return {
            "phase": self.phase, "name": self.name, "family": self.family, "identity": self.identity, **asked_of(self.call),
            "sizes": dict(self.sizes),
            "launches_per_step": self.launches_per_step, **times, "bound_s": self.bound_s, "share_fraction": self.share_fraction,
            "bound_by": self.bound_by, "efficiency": self.efficiency, "basis": self.basis,
        }  # fmt: skip


def asked_of(call: KernelCall | None) -> dict[str, Any]:
    """What else a launch was priced with: with its sizes, `tilecast kernel` gives its time again. The host has none of it."""
    if call is None:
        return {"dtype": None, "cache": None, "engine": None, "options": {}, "beside": None}
    chosen = {name: getattr(call.kernel, name, None) for name in OPTIONS}
    options = {name: getattr(value, "id", value) for name, value in chosen.items() if value is not None}
    return {"dtype": call.kernel.dtype, "cache": call.cache, "engine": call.measured_in, "options": options, "beside": call.beside}


def record(found: Any, **more: Any) -> dict[str, Any]:
    """What every prediction of a model on an engine tells alike (tilecast.predict/1), with what one tells `more`."""
    timed = ("prefill_s", "decode_step_s", "total_s", "ttft_s", "tpot_s", "output_tokens_per_s")
    return {
        "schema": "tilecast.predict/1",
        **{name: getattr(found, name).to_dict() for name in timed},
        "decode_steps": found.decode_steps,
        "memory": found.memory.to_dict(),
        "fits": found.fits,
        "basis": found.basis,
        "basis_shares": found.basis_shares,
        **more,
        "breakdown": [part.to_dict() for part in found.breakdown],
        "inputs": dict(found.inputs),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A static batch, start to end. `decode_step_s` is the median over the steps, and zero when there are none."""

    model: ModelConfig
    gpu: GpuSpec
    engine: str
    tp: int
    node: str | None
    batch: Batch
    prefill_s: Interval
    decode_step_s: Interval
    decode_s: Interval  # all decode steps together
    decode_steps: int
    memory: Memory
    basis: str
    breakdown: tuple[Part, ...]
    inputs: Mapping[str, Any]
    steps: tuple[StepTime, ...]  # the kernels of the prefill and, where there is one, of the decode
    warnings: tuple[str, ...] = ()
    profile: Profile | None = None

    @property
    def num_gpus(self) -> int:
        return self.tp * int(self.inputs["pp"])

    @property
    def total_s(self) -> Interval:
        return self.prefill_s + self.decode_s

    @property
    def ttft_s(self) -> Interval:
        """All prompts are prefilled together, so every request waits for the whole prefill."""
        return self.prefill_s

    @property
    def tpot_s(self) -> Interval:
        """Mean time between two tokens of a request that runs to the end."""
        return self.decode_s.per(self.decode_steps) if self.decode_steps else NOTHING

    @property
    def output_tokens_per_s(self) -> Interval:
        return self.total_s.rate_of(sum(self.batch.output_tokens))

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def basis_shares(self) -> dict[str, float]:
        """The share of the total time that rests on each basis, strongest first; `basis` is the weakest of them."""
        shares = {basis: sum(part.time.median for part in self.breakdown if part.basis == basis) for basis in BASES}
        return {basis: seconds / self.total_s.median for basis, seconds in shares.items() if seconds}

    def to_dict(self) -> dict[str, Any]:
        """The contract's record (tilecast.predict/1), but for the versions."""
        return record(self)

    def _repr_html_(self) -> str:
        rows = [
            ("prefill (first token)", str(self.prefill_s)),
            ("decode step", str(self.decode_step_s) if self.decode_steps else "-"),
            ("total", str(self.total_s)),
            ("throughput", str(self.output_tokens_per_s)),
            ("memory per GPU", f"{units.human('_bytes', self.memory.total_bytes)} of {units.human('_bytes', self.memory.capacity_bytes)}"),
            ("basis", self.basis),
        ]
        return html_table(f"{self.model.name} on {self.tp} x {self.gpu.id}, {self.engine}", ("what", "value"), rows)


def predict(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    gpu: str | GpuSpec,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp_attention: int = 1,
    batch: int | None = None,
    isl: int | None = None,
    osl: int | None = None,
    requests: Sequence[tuple[int, int]] | None = None,
    engine: str = "sglang",
    engine_settings: Mapping[str, object] | None = None,
    node: str | None = None,
    quant: str | None = None,
    kv_dtype: str | None = None,
    allow_longer_context: bool = False,
    overrides: Mapping[str, object] | None = None,
    profile: Profile | str | Path | None = None,
    price: Price = predict_kernel,
) -> Prediction:
    """One static batch: `batch` requests of `isl` prompt and `osl` output tokens, or `requests` as (input, output) pairs.

    `tp` x `pp` GPUs take part; `ep` and `dp_attention` say how the `tp` of a stage share experts and attention. `quant` replaces the
    checkpoint's own format.
    `profile` is what `tilecast calibrate` made of measurements on this GPU, or its file.

    >>> prediction = predict("Qwen/Qwen3-8B", gpu="h100-sxm", batch=8, isl=1024, osl=64)
    >>> prediction.fits and prediction.prefill_s.median > prediction.decode_step_s.median > 0
    True
    """
    asked = _batch(batch, isl, osl, requests)
    found = set_up(
        model, gpu, tp=tp, pp=pp, ep=ep, dp_attention=dp_attention, engine=engine, engine_settings=engine_settings, node=node,
        quant=quant, kv_dtype=kv_dtype, overrides=overrides,
    )  # fmt: skip
    config, spec, runs, box, shard, held = found.config, found.gpu, found.engine, found.node, found.shard, found.kv_dtype
    check_context(config, asked, allow_longer_context)
    waves = runs.num_micro_batches(asked, shard, spec)
    wave = asked.on_rank(waves)
    price, measured = with_profile(price, profile, spec)

    prompts, passes, num_passes = found.prefill(asked, wave)
    points = evaluated_steps(wave.output_tokens)
    steps = decode_tokens(wave, points.tolist(), shard.dp) if len(points) else None
    waits_for_passes, waits_for_waves = shard.pp > 1 and num_passes > 1, steps is not None and waves > 1
    wanted = [(prompts, None), *([(prompts, shard.pp - 1)] if waits_for_passes else [])]
    if steps is not None:
        wanted += [(steps, None), *([(steps, shard.pp - 1)] if waits_for_waves else [])]
    times = iter(price_steps([found.step(tokens, stage) for tokens, stage in wanted], spec, price))
    prefill = next(times)
    once, waits = _in_stages(prefill, passes, num_passes, next(times)) if waits_for_passes else (passes, None)
    decode = next(times) if steps is not None else None
    last_stage = next(times, None)
    host_prefill, host_step = prefill_host(runs.host, config, prefill, passes), decode_host(runs, config, shard)
    if measured is not None:
        host_prefill, host_step = (_measured_host(measured, *each) for each in (("prefill", host_prefill), ("decode", host_step)))
    parts = _parts("prefill", prefill, once, host_prefill, waits)
    prefill_s = weighted_total(prefill, once) + host_prefill + (weighted_total(waits, once) if waits else NOTHING)
    decode_s = step_s = NOTHING
    if decode is not None:
        weights, waits = step_weights(points), None
        if last_stage is not None:
            waits = last_stage.times(waves - 1)
            if runs.fact("overlaps_decode_steps"):  # a group's next pass starts when it is back, or when the last stage has seen all groups
                waits = last_stage.times(waves).beyond(decode)
        host_s = host_step.per(1.0 / asked.num_decode_steps)
        decode_s = weighted_total(decode, weights) + host_s + (weighted_total(waits, weights) if waits else NOTHING)
        step_s = median_step(points, decode) + host_step + (median_step(points, waits) if waits else NOTHING)
        parts += _parts("decode", decode, weights, host_s, waits)
    fullest = memory_of(config, shard, runs, spec, asked, held)
    return Prediction(
        model=config,
        gpu=spec,
        engine=runs.label,
        tp=shard.tp,
        node=box.id if box else None,
        batch=asked,
        prefill_s=prefill_s,
        decode_step_s=step_s,
        decode_s=decode_s,
        decode_steps=asked.num_decode_steps,
        memory=with_room(fullest, config, shard, runs, spec, asked, held),
        basis=weakest([prefill.basis, *([decode.basis] if decode else [])]),
        breakdown=tuple(parts),
        inputs=inputs_of(
            found, {"tp": tp, "pp": pp, "ep": ep, "dp_attention": dp_attention}, box,
            {**({"batch": batch} if requests is None else {}), **said_of(isl, osl, requests)},
            quant=quant, overrides=overrides, engine_settings=engine_settings, profile=measured,
        ),
        steps=(prefill, decode) if decode else (prefill,),
        warnings=warnings_of(config, asked, spec, box),
        profile=measured,
    )  # fmt: skip


# ---- what was asked ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A model on an engine on its GPUs, before anyone has asked it for anything."""

    config: ModelConfig
    gpu: GpuSpec
    engine: Engine
    shard: Shard
    node: NodeSpec | None
    operations: tuple[Operation, ...]
    kv_dtype: str

    def step(self, tokens: Tokens, stage: int | None = None) -> Step:
        """The kernels of a whole pass, or of one pipeline stage of it."""
        does = self.operations if stage is None else architecture(self.config.architecture).step(self.config, self.shard, stage)
        return kernel_step(does, tokens, config=self.config, shard=self.shard, engine=self.engine, gpu=self.gpu, kv_dtype=self.kv_dtype)

    def prefill(self, batch: Batch, wave: Batch) -> tuple[Tokens, np.ndarray, int]:
        """The passes that prefill a static batch: distinct ones, how often each runs, and how many there are.

        An engine that chunks takes what its token budget allows in each pass; others take a group of requests whole.
        """
        if not self.engine.fact("chunks_static_batches"):
            return prefill_tokens(wave, self.shard.dp), np.ones(1), self.engine.num_micro_batches(batch, self.shard, self.gpu)
        budget = self.engine.token_budget(self.engine, self.gpu, True)
        tokens, counts = chunked_prefill(batch, budget * self.shard.dp, self.shard.dp)
        return tokens, counts, int(counts.sum())

    def memory(self, batch: Batch) -> Memory:
        return memory_of(self.config, self.shard, self.engine, self.gpu, batch, self.kv_dtype)


def set_up(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    gpu: str | GpuSpec,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp_attention: int = 1,
    engine: str = "sglang",
    engine_settings: Mapping[str, object] | None = None,
    node: str | None = None,
    quant: str | None = None,
    kv_dtype: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Setup:
    spec = hardware.gpu(gpu, overrides)
    config = served(requantised(model_config(model), quant), {*spec.tensor_flop_per_s, *spec.vector_flop_per_s})
    runs = with_settings(engine_named(engine), engine_settings) if engine_settings else engine_named(engine)
    _check_dtypes(config, spec, kv_dtype)
    shard = sharded(config, tp, pp=pp, ep=ep, dp=dp_attention)  # first what the model allows, then what the box does
    box = node_for(spec, shard.tp, node, pp=shard.pp)
    shard = replace(shard, node=box if shard.num_gpus > 1 else None)
    operations = architecture(config.architecture).step(config, shard)
    held = kv_dtype or config.kv_dtype or config.dtype
    return Setup(config=config, gpu=spec, engine=runs, shard=shard, node=box, operations=operations, kv_dtype=held)


def _batch(batch: int | None, isl: int | None, osl: int | None, requests: Sequence[tuple[int, int]] | None) -> Batch:
    sizes = {"batch": batch, "isl": isl, "osl": osl}
    if requests is not None:
        if any(value is not None for value in sizes.values()):
            raise InvalidInput("give batch, isl and osl, or requests, not both")
        return Batch.of_pairs(requests)
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise InvalidInput(f"{' and '.join(missing)} missing: give batch, isl and osl, or requests")
    assert batch is not None and isl is not None and osl is not None
    return Batch.uniform(batch, isl, osl)


def said_of(isl: int | None, osl: int | None, requests: Sequence[tuple[int, int]] | None) -> dict[str, Any]:
    """Lengths as they were asked for."""
    if requests is None:
        return {"isl": isl, "osl": osl}
    return {"requests": [[int(asked), int(given)] for asked, given in requests]}


def inputs_of(
    found: Setup, layout: Mapping[str, object], node: NodeSpec | None, sizes: Mapping[str, object], *, quant: str | None,
    overrides: Mapping[str, object] | None, engine_settings: Mapping[str, object] | None, profile: Profile | None,
) -> dict[str, Any]:  # fmt: skip
    """What was asked, as a record tells it; settings and a profile where there are any."""
    return {
        "model": found.config.name, "gpu": found.gpu.id, "engine": found.engine.label, **_plain(layout),
        "node": node.id if node else None, "quant": quant, "kv_dtype": found.kv_dtype, **_plain(sizes),
        "set": [f"{fact}={value}" for fact, value in (overrides or {}).items()],
        **({"engine_set": [f"{fact}={value}" for fact, value in engine_settings.items()]} if engine_settings else {}),
        **({"profile": profile.told()} if profile else {}),
    }  # fmt: skip


def _plain(given: Mapping[str, object]) -> dict[str, object]:
    """Integers of numpy as Python's, which JSON can say."""
    return {name: int(value) if isinstance(value, np.integer) else value for name, value in given.items()}


def _check_dtypes(config: ModelConfig, gpu: GpuSpec, kv_dtype: str | None) -> None:
    rates = {*gpu.tensor_flop_per_s, *gpu.vector_flop_per_s}
    for name in (config.dtype, *config.precision.names):
        computed = quantisation(name).compute.name
        if computed not in rates:
            what = "the dtype" if name == config.dtype else f"needed for {name}, the quantisation"
            half = "; --quant fp16 (quant='fp16') predicts it in that" if name == config.dtype == "bf16" and "fp16" in rates else ""
            raise SpecError(f"{gpu.id} does not compute in {computed}, {what} of {config.name}; it has {', '.join(sorted(rates))}{half}")
    if kv_dtype is not None and dtype(kv_dtype).name not in ("fp8", config.dtype):
        raise InvalidInput(f"kv_dtype = {kv_dtype} must be fp8 or the model's own {config.dtype}")


def check_context(config: ModelConfig, batch: Batch, allow_longer: bool) -> None:
    if config.is_encoder and max(batch.output_tokens) > 1:
        raise InvalidInput(f"osl = {max(batch.output_tokens)}: {config.name} is an encoder and says nothing; give osl = 1")
    longest = _longest(config, batch)
    if config.max_context is not None and longest > config.max_context and not allow_longer:
        raise InvalidInput(
            f"{longest:,} tokens of context are beyond the {config.max_context:,} of {config.name}; "
            "--allow-longer-context (allow_longer_context=True) predicts it all the same"
        )


def _longest(config: ModelConfig, batch: Batch) -> int:
    """Tokens that the model must have places for; an encoder adds none to what it reads."""
    return max(batch.input_tokens) if config.is_encoder else batch.longest_context


def warnings_of(config: ModelConfig, batch: Batch, gpu: GpuSpec, node: NodeSpec | None) -> tuple[str, ...]:
    """What is answered all the same, but should be known."""
    found = list(config.notes)
    if config.max_context is not None and (longest := _longest(config, batch)) > config.max_context:
        found.append(f"{longest:,} tokens of context are beyond the {config.max_context:,} that {config.name} was made for")
    if node is not None and (foreign := hardware.foreign_note(node, gpu)):
        found.append(foreign)
    return tuple(found)


# ---- sums --------------------------------------------------------------------------------------------------------


def decode_host(engine: Engine, config: ModelConfig, shard: Shard) -> Interval:
    """Between two steps; with stages, tokens come back from the last one before the first can go on."""
    host = engine.host
    step_s = max(host.decode_step_s, float(engine.fact("decode_step_with_stages_s"))) if shard.pp > 1 else host.decode_step_s
    return _spread(step_s + config.num_layers * host.decode_layer_s, host)


def prefill_host(host: Host, config: ModelConfig, prefill: StepTime, passes: np.ndarray) -> Interval:
    """The fixed part of each pass, and what launching its layers takes beyond the time the GPU is busy with them anyway."""
    launching = config.num_layers * host.prefill_layer_s
    return _spread(float(passes @ (host.prefill_step_s + np.maximum(0.0, launching - prefill.median_s))), host)


def _spread(seconds: float, host: Host) -> Interval:
    return Interval(seconds, seconds * (1.0 - host.spread_fraction), seconds * (1.0 + host.spread_fraction))


def _in_stages(whole: StepTime, passes: np.ndarray, num_passes: int, last_stage: StepTime) -> tuple[Floats, StepTime]:
    """Which pass goes through all stages while the others overlap, and how long the last stage takes for those others.

    A pass enters a stage when the one before has left it, so that with stages alike the longest passes all of them and every other
    adds one stage.
    """
    longest = np.zeros(len(passes))
    longest[np.argmax(whole.median_s)] = 1.0
    others = passes * (num_passes / passes.sum()) - longest
    waits = {name: float(others @ getattr(last_stage, name)) * longest for name in ("median_s", "low_s", "high_s")}
    return longest, StepTime(calls=(), basis=last_stage.basis, **waits)


def _measured_host(profile: Profile, phase: str, host: Interval) -> Interval:
    """The host's part as a measured run tells it; a profile of kernels alone leaves it."""
    factor, width = profile.host(phase, host_spread(host))
    median = host.median * factor
    return Interval(median, median * math.exp(-width), median * math.exp(width))


def host_spread(host: Interval) -> float:
    """The standard deviation of the logarithm of the host's part."""
    return math.log(host.high / host.median) / INTERVAL_SIGMAS if host.median else 0.0


def weighted_total(step: StepTime | CallTime, weights: Floats) -> Interval:
    return Interval(*(float(weights @ values) for values in (step.median_s, step.low_s, step.high_s)))


def median_step(points: np.ndarray, step: StepTime) -> Interval:
    return Interval(*(median_over_steps(points, values) for values in (step.median_s, step.low_s, step.high_s)))


def _parts(phase: str, step: StepTime, weights: Floats, host: Interval, waits: StepTime | None) -> list[Part]:
    wait = weighted_total(waits, weights) if waits else NOTHING
    whole = weighted_total(step, weights).median + host.median + wait.median
    others = [(HOST, host, "analytic")] + ([(PIPELINE, wait, waits.basis)] if waits else [])
    return [_part(time, weights, whole) for time in step.calls] + [
        Part(
            phase=phase, name=name, family=name, identity=None, sizes={}, launches_per_step=1, time=time,
            share_fraction=time.median / whole, bound_by=name, bound_s=0.0, basis=basis,
        )
        for name, time, basis in others
    ]  # fmt: skip


def _part(time: CallTime, weights: Floats, whole_s: float) -> Part:
    call, total = time.call, weighted_total(time, weights)
    return Part(
        phase=call.phase,
        name=call.name,
        family=call.kernel.family,
        identity=call.kernel.identity,
        sizes=sizes_of(call.kernel),
        launches_per_step=call.count,
        time=total,
        share_fraction=total.median / whole_s,
        bound_by=time.bound_by,
        bound_s=float(weights @ time.bound_s),
        basis=time.basis,
        call=call,
    )


@cache
def _parameters(kernel: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kernel))


def sizes_of(kernel: Any) -> dict[str, Any]:
    """The numbers of a kernel, those of its last step; a ragged batch by its number of requests and its longest context."""
    shown: dict[str, Any] = {}
    is_ragged = getattr(kernel, "q_lens", None) is not None
    for name in _parameters(kernel.__class__):
        value = getattr(kernel, name)
        if name == "q_lens" and value is not None:
            shown |= {"batch": len(value[-1]), "q_tokens": int(np.sum(value[-1]))}
        elif name == "kv_lens" and value is not None:
            shown |= {"kv_tokens": int(np.sum(value[-1])), "kv_longest": int(np.max(value[-1]))}
        elif isinstance(value, bool):
            shown[name] = value
        elif isinstance(value, int | np.ndarray) and not (is_ragged and name == "batch"):
            shown[name] = int(value[-1]) if isinstance(value, np.ndarray) else value
    return shown
