"""Llama 4: three of four layers attend within chunks of 8192 tokens, the fourth to everything without rope; experts with a shared one.

A chunk is modelled as a window of its length: exact up to one chunk, and up to twice the keys of a query early in its chunk beyond.
"""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, indices, optional, size, text_notes, text_part
from tilecast.workloads.model import Experts, Layer, Mlp, ModelConfig

NAMES = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
FULL_EVERY = 4  # layers, where no_rope_layers does not say


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    text = text_part(table)
    count, width = size(text, "num_hidden_layers"), size(text, "intermediate_size")
    chunk = optional(text, "attention_chunk_size")
    norms = {"qk_norm": "head" if text.get("use_qk_norm", True) else None, "qk_norm_weights": False}
    local = attention_heads(text, window=chunk, **norms)
    everything = attention_heads(text, rope=False, scales_queries=bool(text.get("attn_temperature_tuning", True)))
    given = indices(text, "no_rope_layers")
    has_rope = [bool(flag) for flag in given] if len(given) == count else [(index + 1) % FULL_EVERY != 0 for index in range(count)]
    experts = Experts(num_experts=size(text, "num_local_experts"), topk=size(text, "num_experts_per_tok"), width=width, shared_width=width)
    plain, step = Mlp(width=size(text, "intermediate_size_mlp", width)), size(text, "interleave_moe_layer_step", 1)
    layers = [
        Layer(attention=local if rotates else everything, mlp=experts if (index + 1) % step == 0 else plain)
        for index, rotates in enumerate(has_rope)
    ]
    return decoder(text, name, NAMES[0], layers, notes=text_notes(table))


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("num_key_value_heads",))
