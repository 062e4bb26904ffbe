"""Predict a static batch on an engine: first token, decode step, total, throughput, memory, and where the time goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilecast import units
from tilecast.engines.breakdown import Part, parts_of
from tilecast.engines.fit import memory_of, with_room
from tilecast.engines.host import decode_host, measured_host, prefill_host
from tilecast.engines.interval import NOTHING, Interval, median_step, weighted_total
from tilecast.engines.setup import batch_of, check_context, inputs_of, said_of, set_up, warnings_of
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.learning.profiles import Profile
from tilecast.markup import html_table
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import BASES, Price, StepTime, evaluated_steps, price_steps, step_weights, weakest, with_profile
from tilecast.workloads.graph import Batch, decode_tokens
from tilecast.workloads.memory import Memory
from tilecast.workloads.model import ModelConfig


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
        "warnings": list(found.warnings),
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
    asked = batch_of(batch, isl, osl, requests)
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
    busy_s = median_step(points, decode).median if decode is not None else 0.0
    host_prefill, host_step = prefill_host(runs.host, config, prefill, passes), decode_host(runs, config, shard, spec, busy_s)
    if measured is not None:
        host_prefill, host_step = (measured_host(measured, *each) for each in (("prefill", host_prefill), ("decode", host_step)))
    parts = parts_of("prefill", prefill, once, host_prefill, waits)
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
        parts += parts_of("decode", decode, weights, host_s, waits)
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
        warnings=warnings_of(found, asked, box),
        profile=measured,
    )  # fmt: skip


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
