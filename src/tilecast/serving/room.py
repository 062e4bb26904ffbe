"""Room for requests: how many a cache holds at once, and the memory of a GPU that holds them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilecast.engines.fit import memory_of, would_fit
from tilecast.engines.setup import Setup
from tilecast.serving.asked import batch_of
from tilecast.serving.policy import Policy
from tilecast.serving.schedule import Lengths
from tilecast.workloads.memory import Memory, activations_bytes


def with_room(policy: Policy, tokens: int, requests: int) -> Policy:
    """The same with a cache for so many requests of so many tokens."""
    return replace(policy, cache_tokens=requests * -(-tokens // policy.block_size) * policy.block_size)


def no_room(found: Setup, tokens: int, users: int) -> str:
    """What is said where the weights leave less than one request needs. That is no matter of waiting: it does not fit, which the memory
    says, and times are given all the same, as of a static batch."""
    held = "it" if users == 1 else f"all {users:,} users"
    return f"{found.gpu.label} has no room for a request of {tokens:,} tokens beside the weights: times are as if its cache held {held}"


def most_at_once(policy: Policy, asked: Sequence[Lengths], users: int, groups: int) -> int:
    """Requests in the cache together at most."""
    mean = max(1.0, float(np.mean([policy.reserves(*pair) for pair in asked])))
    return max(1, min(users, policy.most_running * groups, groups * int(policy.cache_tokens // mean)))


def memory_under_load(found: Setup, policy: Policy, asked: Sequence[Lengths], num_held: int) -> Memory:
    """Of the fullest GPU of a worker whose caches hold so many requests together."""
    held = [asked[place % len(asked)] for place in range(num_held)]
    share = policy.reserved_output_fraction if num_held > 1 else 1.0
    running = batch_of([(prompt, max(1, int(share * output))) for prompt, output in held])
    memory = memory_of(found.config, found.shard, found.engine, found.gpu, running, found.kv_dtype)
    budget = min(policy.token_budget, sum(running.input_tokens))
    active = activations_bytes(found.config, found.shard, budget, budget * found.shard.dp, num_held)
    memory = replace(memory, activations_bytes=active)
    if num_held > 1:  # an engine never takes in more than its cache holds; one request must fit
        memory = replace(memory, kv_cache_bytes=memory.kv_cache_bytes - min(memory.kv_cache_bytes, memory.missing_bytes))
    if not memory.fits:
        choices = would_fit(found.config, found.shard, found.engine, found.gpu, running, found.kv_dtype)
        memory = replace(memory, would_fit=tuple(choices))
    return memory
