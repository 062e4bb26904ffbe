"""Policy: how an engine fills its steps, and how many requests its cache holds at once."""

from dataclasses import dataclass

from tilecast.engines.fit import stage_caches, stage_weights
from tilecast.engines.setup import Setup
from tilecast.workloads.graph import Batch
from tilecast.workloads.memory import activations_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a scheduler goes by; `mixes` and `chunks` are explained in the engines' files."""

    token_budget: int  # tokens of a step while prompts are waiting
    most_running: int
    mixes: bool  # prompts and decodes share a step; else prompts go first, alone
    chunks: bool  # a prompt that does not fit the budget is cut; else it waits
    cache_tokens: int  # what the KV cache holds
    block_size: int
    reserved_output_fraction: float  # of a request's output that must have room before it starts
    steps_missed: int  # between a request's arrival and the first step that can take it

    def reserves(self, input_tokens: int, output_tokens: int) -> int:
        """Tokens of cache that a request is counted with."""
        tokens = input_tokens + self.reserved_output_fraction * output_tokens
        return -(-int(tokens) // self.block_size) * self.block_size


def policy_of(found: Setup) -> Policy:
    """Of one scheduler: with data-parallel attention every rank has its own."""
    runs = found.engine
    return Policy(
        token_budget=runs.token_budget(runs, found.gpu, False),
        most_running=max(1, runs.most_running(runs, found.gpu) // found.shard.dp),
        mixes=bool(runs.fact("mixes_phases")),
        chunks=bool(runs.fact("chunks_prompts")),
        cache_tokens=cache_tokens(found),
        block_size=max(1, int(runs.fact("block_size"))),
        reserved_output_fraction=float(runs.fact("reserved_output_fraction")),
        steps_missed=int(runs.fact("steps_missed")),
    )


def cache_tokens(found: Setup) -> int:
    """Tokens that the cache of the fullest stage holds; none where the weights leave no room."""
    runs, gpu, budget = found.engine, found.gpu, found.engine.token_budget(found.engine, found.gpu, False)
    weights = stage_weights(found.config, found.shard)
    one = stage_caches(found.config, found.shard, runs, Batch((LONG,), (LONG,)), found.kv_dtype)
    active = activations_bytes(found.config, found.shard, budget, budget * found.shard.dp, min(256, budget))
    fraction, own = float(runs.fact("memory_fraction")), runs.host.reserved_bytes
    rooms = []
    for held, cache in zip(weights, one, strict=True):
        if runs.fact("memory_is_of_free"):
            room = fraction * (gpu.dram_bytes - held - active - own)
        else:
            room = fraction * gpu.dram_bytes - held - (active if runs.fact("chunks_static_batches") else 0.0)
        rooms.append(max(0.0, room) / (cache / (2 * LONG)) if cache else float(1 << 40))
    return int(min(rooms))


LONG = 1 << 16  # tokens: long enough that windows are full
