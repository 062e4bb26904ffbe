"""Phi 3 and 4: Llama's shape, with its projections fused in the checkpoint already, and a window in some sizes."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, optional, refuse, size
from tilecast.workloads.model import Layer, Mlp, ModelConfig

NAME = "Phi3ForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    refuse(table, NAME, "attention_bias", "mlp_bias")
    window = optional(table, "sliding_window")
    limit = size(table, "max_position_embeddings", 0)
    attention = attention_heads(table, window=window if window and (not limit or window < limit) else None)
    layer = Layer(attention=attention, mlp=Mlp(width=size(table, "intermediate_size")))
    return decoder(table, name, NAME, [layer] * size(table, "num_hidden_layers"))


ARCHITECTURE = Architecture(names=(NAME,), read=read)
