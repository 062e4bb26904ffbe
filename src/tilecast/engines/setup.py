"""Setup: a model on an engine on its GPUs; what was asked of it, checked, and as a record tells it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast import hardware
from tilecast.dtypes import dtype, quantisation
from tilecast.engines.base import Engine, kernel_step, with_settings
from tilecast.engines.base import engine as engine_named
from tilecast.engines.fit import memory_of
from tilecast.errors import InvalidInput, SpecError, UnknownName
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.learning.profiles import Profile
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import Batch, Step, Tokens, chunked_prefill, prefill_tokens
from tilecast.workloads.memory import Memory
from tilecast.workloads.model import ModelConfig, model_config
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard, node_for, sharded
from tilecast.workloads.quantisation import requantised, served


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
    spec = hardware.in_long_runs(hardware.gpu(gpu, overrides))
    config = served(requantised(model_config(model), quant), {*spec.tensor_flop_per_s, *spec.vector_flop_per_s})
    runs = with_settings(engine_named(engine), engine_settings) if engine_settings else engine_named(engine)
    _check_dtypes(config, spec, kv_dtype)
    shard = sharded(config, tp, pp=pp, ep=ep, dp=dp_attention)  # first what the model allows, then what the box does
    box = node_for(spec, shard.tp, node, pp=shard.pp)
    shard = replace(shard, node=box if shard.num_gpus > 1 else None)
    config = _as_loaded(config, runs, shard, spec)
    operations = architecture(config.architecture).step(config, shard)
    held = kv_dtype or config.kv_dtype or config.dtype
    return Setup(config=config, gpu=spec, engine=runs, shard=shard, node=box, operations=operations, kv_dtype=held)


def _as_loaded(config: ModelConfig, engine: Engine, shard: Shard, gpu: GpuSpec) -> ModelConfig:
    """Experts in the format that the engine keeps them in: some of its kernels take no narrow weights of whole experts."""
    held = config.precision.experts
    if shard.ep == 1 or held is None or held not in engine.fact("widens_whole_experts") or engine.expert_format(gpu, held) != held:
        return config
    note = f"{engine.name} keeps whole experts of {held} in {config.dtype} on {gpu.id}: --ep {shard.ep} takes that much more memory"
    return replace(config, precision=replace(config.precision, experts=None), notes=(*config.notes, note))


def batch_of(batch: int | None, isl: int | None, osl: int | None, requests: Sequence[tuple[int, int]] | None) -> Batch:
    """Requests all alike, or each as given."""
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
    if kv_dtype is not None and _plain_name(kv_dtype) not in ("fp8", config.dtype):
        raise InvalidInput(f"kv_dtype = {kv_dtype} must be fp8 or the model's own {config.dtype}")


def _plain_name(name: str) -> str | None:
    """Of a number format under any of its names; None of one that nobody knows."""
    try:
        return dtype(name).name
    except UnknownName:
        return None


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


def warnings_of(found: Setup, batch: Batch, node: NodeSpec | None) -> tuple[str, ...]:
    """What is answered all the same, but should be known."""
    config, gpu, engine = found.config, found.gpu, found.engine
    told = [*config.notes, *gpu_notes(engine, gpu)]
    if config.max_context is not None and (longest := _longest(config, batch)) > config.max_context:
        told.append(f"{longest:,} tokens of context are beyond the {config.max_context:,} that {config.name} was made for")
    if node is not None and (foreign := hardware.foreign_note(node, gpu)):
        told.append(foreign)
    return tuple(told)


def gpu_notes(engine: Engine, gpu: GpuSpec) -> tuple[str, ...]:
    """What should be known of an engine on a GPU, whatever it serves there."""
    unfit = f"{engine.name} does not run on {gpu.arch} GPUs: {gpu.id} is priced as if it did"
    told = (unfit if gpu.arch in engine.fact("does_not_run_on") else None, hardware.power_note(gpu))
    return tuple(note for note in told if note)
