"""Qwen 1.5 and 2 with experts: a shared expert behind a gate of its own, and biases on the query, key and value projections."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, refuse, size
from tilecast.workloads.architectures.qwen3_moe import sparse_layers
from tilecast.workloads.model import Experts, Layer, Mlp, ModelConfig

NAME = "Qwen2MoeForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    refuse(table, NAME, "use_sliding_window")
    attention = attention_heads(table, qkv_bias=True)
    experts = Experts(
        num_experts=size(table, "num_experts"),
        topk=size(table, "num_experts_per_tok"),
        width=size(table, "moe_intermediate_size"),
        shared_width=size(table, "shared_expert_intermediate_size"),
        shared_gate=True,
    )
    plain = Mlp(width=size(table, "intermediate_size"))
    routed = sparse_layers(table, size(table, "num_hidden_layers"))
    return decoder(table, name, NAME, [Layer(attention=attention, mlp=experts if routes else plain) for routes in routed])


ARCHITECTURE = Architecture(names=(NAME,), read=read, needs=("num_key_value_heads",))
