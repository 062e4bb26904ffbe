"""GLM 4.5, 4.6 and 4.7: grouped-query attention with biases, experts with a shared one, and dense layers first."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, count, decoder, size
from tilecast.workloads.model import Experts, Layer, Mlp, ModelConfig

NAME = "Glm4MoeForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    attention = attention_heads(
        table, qkv_bias=bool(table.get("attention_bias", False)), qk_norm="head" if table.get("use_qk_norm") else None
    )
    width = size(table, "moe_intermediate_size")
    experts = Experts(
        num_experts=size(table, "n_routed_experts"),
        topk=size(table, "num_experts_per_tok"),
        width=width,
        shared_width=width * count(table, "n_shared_experts"),
        correction_bias=True,
    )
    plain, first = Mlp(width=size(table, "intermediate_size")), count(table, "first_k_dense_replace")
    layers = size(table, "num_hidden_layers")
    return decoder(table, name, NAME, [Layer(attention=attention, mlp=plain if index < first else experts) for index in range(layers)])


ARCHITECTURE = Architecture(
    names=(NAME,), read=read, needs=("head_dim", "num_key_value_heads", "n_shared_experts", "first_k_dense_replace")
)
