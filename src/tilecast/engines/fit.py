"""Does it fit: what the fullest GPU holds, the largest batch and context that still would, and what else would fit when it does not."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilecast.dtypes import quantisation
from tilecast.engines.base import Engine
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import LONGEST, Batch
from tilecast.workloads.memory import Memory, activations_bytes, kv_cache_bytes, weights_bytes
from tilecast.workloads.model import Layer, ModelConfig, counted
from tilecast.workloads.parallelism import Shard, node_for, sharded
from tilecast.workloads.quantisation import NAMES, requantised

MOST_REQUESTS = 1 << 20
GROWTH = (1, 2, 4, 8, 16, 32, 64)
NARROWER = ("fp8", "nvfp4", "int4")  # in this order, where the GPU computes in them


def memory_of(config: ModelConfig, shard: Shard, engine: Engine, gpu: GpuSpec, batch: Batch, kv_dtype: str) -> Memory:
    """Of the pipeline stage that holds the most."""
    rank = batch.on_rank(shard.dp)
    weights, caches = stage_weights(config, shard), stage_caches(config, shard, engine, rank, kv_dtype)
    fullest = max(range(shard.pp), key=lambda stage: weights[stage] + caches[stage])
    most = most_tokens(engine, gpu)
    own, every = min(sum(rank.input_tokens), most), min(sum(batch.input_tokens), most * shard.dp)
    active = activations_bytes(config, shard, own, every, batch.num_requests)
    return Memory(
        weights_bytes=weights[fullest],
        kv_cache_bytes=caches[fullest],
        activations_bytes=active,
        reserved_bytes=round(reserved_bytes(engine, gpu, weights[fullest], active)),
        capacity_bytes=gpu.dram_bytes,
    )


def most_tokens(engine: Engine, gpu: GpuSpec) -> int:
    """Of one step: an engine that chunks prompts never holds the activations of more."""
    return engine.token_budget(engine, gpu, True) if engine.fact("chunks_static_batches") else LONGEST


def reserved_bytes(engine: Engine, gpu: GpuSpec, weights: float, active: float) -> float:
    """What the engine keeps from the cache: a share of the memory, or of what weights and activations leave (TensorRT-LLM).

    Of SGLang's share nothing goes to weights and cache, but activations live in it.
    """
    own, left_out = engine.host.reserved_bytes, 1.0 - float(engine.fact("memory_fraction"))
    if engine.fact("memory_is_of_free"):
        return own + left_out * max(0.0, gpu.dram_bytes - weights - active - own)
    return max(own, left_out * gpu.dram_bytes - (0.0 if engine.fact("chunks_static_batches") else active))


def stage_weights(config: ModelConfig, shard: Shard) -> list[int]:
    step = architecture(config.architecture).step
    return [weights_bytes(config, step(config, shard, stage if shard.pp > 1 else None)) for stage in range(shard.pp)]


def stage_caches(config: ModelConfig, shard: Shard, engine: Engine, rank: Batch, kv_dtype: str) -> list[int]:
    return [_cache(config, shard, engine, rank, kv_dtype, kinds) for kinds in _stage_kinds(config, shard)]


def _stage_kinds(config: ModelConfig, shard: Shard) -> list[list[tuple[Layer, int]]]:
    return [counted(shard.stage(config.layers, stage)) for stage in range(shard.pp)]


def _cache(config: ModelConfig, shard: Shard, engine: Engine, rank: Batch, kv_dtype: str, kinds: list[tuple[Layer, int]]) -> int:
    drops = engine.drops_keys_outside_window(config)
    return 0 if config.is_encoder else kv_cache_bytes(kinds, shard, rank, kv_dtype, drops_outside_window=drops)


def with_room(found: Memory, config: ModelConfig, shard: Shard, engine: Engine, gpu: GpuSpec, batch: Batch, kv_dtype: str) -> Memory:
    """`found` with the largest batch and context beside it, where all requests are equal, and what would fit where it does not."""
    room: dict[str, Any] = {}
    if len(set(batch.input_tokens)) == len(set(batch.output_tokens)) == 1:
        isl, osl, requests = batch.input_tokens[0], batch.output_tokens[0], batch.num_requests
        weights, stages = stage_weights(config, shard), _stage_kinds(config, shard)
        most = most_tokens(engine, gpu)
        short = replace(config, layers=tuple(layer for layer, _ in counted(config.layers)))  # the widest block is the same

        def fits(num_requests: int, prompt: int, caches: list[int]) -> bool:
            on_rank = -(-num_requests // shard.dp)
            kept, held = max((held + on_rank * cache, held) for held, cache in zip(weights, caches, strict=True))
            own, every = min(on_rank * prompt, most), min(num_requests * prompt, most * shard.dp)
            active = activations_bytes(short, shard, own, every, num_requests)
            return kept + active + round(reserved_bytes(engine, gpu, held, active)) <= found.capacity_bytes

        def caches_of(prompt: int) -> list[int]:
            return [_cache(config, shard, engine, Batch((prompt,), (osl,)), kv_dtype, kinds) for kinds in stages]

        one, limit = caches_of(isl), (config.max_context or LONGEST) - osl
        room["largest_batch"] = _largest(lambda number: fits(number, isl, one), MOST_REQUESTS)
        longest = _largest(lambda prompt: fits(requests, prompt, caches_of(prompt)), limit)
        room["largest_context"] = longest + osl if longest else 0
    if not found.fits:
        one_change = (*would_fit(config, shard, engine, gpu, batch, kv_dtype), *_smaller(room, batch))
        room["would_fit"] = one_change or tuple(_fewer_on_more(config, shard, engine, gpu, batch, kv_dtype))
    return replace(found, **room)


def _smaller(room: Mapping[str, Any], batch: Batch) -> Iterator[dict[str, Any]]:
    """Fewer such requests, or where not even one has room, shorter prompts."""
    if room.get("largest_batch"):
        yield {"batch": room["largest_batch"]}
    elif room.get("largest_context"):
        yield {"isl": room["largest_context"] - batch.output_tokens[0]}


def _fewer_on_more(
    config: ModelConfig, shard: Shard, engine: Engine, gpu: GpuSpec, batch: Batch, kv_dtype: str
) -> Iterator[dict[str, Any]]:
    """Where no single change will do: as many of requests all alike as the first larger group holds that holds any."""
    (isl, osl), *others = set(zip(batch.input_tokens, batch.output_tokens, strict=True))

    def held(other: Shard) -> int:
        return _largest(
            lambda number: memory_of(config, other, engine, gpu, Batch.uniform(number, isl, osl), kv_dtype).fits, batch.num_requests
        )

    for other in _larger(config, shard, gpu) if not others else ():
        if most := held(other):
            yield {**_changes(shard, other), "batch": most}
            return


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest whole number up to `most` for which a claim holds that never starts to hold again; 0: none."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def would_fit(config: ModelConfig, shard: Shard, engine: Engine, gpu: GpuSpec, batch: Batch, kv_dtype: str) -> Iterator[dict[str, Any]]:
    """More GPUs in the same format, a narrower cache, then narrower formats where they save GPUs: what a user would try next."""

    def fits(changed: ModelConfig, other: Shard, held: str = kv_dtype) -> bool:
        return memory_of(changed, other, engine, gpu, batch, held).fits

    def fewest(changed: ModelConfig) -> Shard | None:
        return next((other for other in _larger(changed, shard, gpu) if fits(changed, other)), None)

    found, least = fewest(config), math.inf
    if found is not None:
        least = found.num_gpus
        yield _changes(shard, found)
    if kv_dtype != "fp8" and not config.is_encoder and fits(config, shard, "fp8"):
        yield {"kv_dtype": "fp8"}
    for quant in NARROWER:
        held = NAMES[quant]
        if held is not None and quantisation(held).compute.name not in gpu.tensor_flop_per_s:
            continue
        found = fewest(requantised(config, quant))
        if found is not None and found.num_gpus < least:
            least = found.num_gpus
            yield {**_changes(shard, found), "quant": quant}


def _changes(shard: Shard, other: Shard) -> dict[str, Any]:
    return {name: getattr(other, name) for name in ("tp", "pp", "ep") if getattr(other, name) != getattr(shard, name)}


def _larger(config: ModelConfig, shard: Shard, gpu: GpuSpec) -> Iterator[Shard]:
    """The group itself, then larger ones that the model and the box allow, and at last the largest of them in several stages.

    Experts go whole to more ranks where they cannot be cut further.
    """
    box, largest = shard.node.id if shard.node else None, shard
    for factor in GROWTH:
        if (other := _allowed(config, shard, gpu, shard.tp * factor, shard.pp, box)) is not None:
            largest = other
            yield other
    for factor in GROWTH[1:]:
        if (other := _allowed(config, shard, gpu, largest.tp, shard.pp * factor, box)) is not None:
            yield other


def _allowed(config: ModelConfig, shard: Shard, gpu: GpuSpec, tp: int, pp: int, box: str | None) -> Shard | None:
    for ep in dict.fromkeys((shard.ep, tp)):
        try:
            return sharded(config, tp, node_for(gpu, tp, box, pp=pp), pp=pp, ep=ep, dp=shard.dp)
        except InvalidInput:
            continue
    return None
