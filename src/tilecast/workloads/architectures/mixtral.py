"""Mixtral: Mistral's attention, eight experts and two for each token."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, optional, size
from tilecast.workloads.model import Experts, Layer, ModelConfig

NAME = "MixtralForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    experts = Experts(
        num_experts=size(table, "num_local_experts"), topk=size(table, "num_experts_per_tok"), width=size(table, "intermediate_size")
    )
    layer = Layer(attention=attention_heads(table, window=optional(table, "sliding_window")), mlp=experts)
    return decoder(table, name, NAME, [layer] * size(table, "num_hidden_layers"))


ARCHITECTURE = Architecture(names=(NAME,), read=read, needs=("num_key_value_heads",))
