"""MiniMax M2: experts in every layer, and RMSNorms over all query heads and all key heads of a token together."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, refuse, size
from tilecast.workloads.model import Experts, Layer, ModelConfig

NAME = "MiniMaxM2ForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    refuse(table, NAME, "attn_window_size", "shared_intermediate_size")
    experts = Experts(
        num_experts=size(table, "num_local_experts"),
        topk=size(table, "num_experts_per_tok"),
        width=size(table, "intermediate_size"),
        correction_bias=bool(table.get("use_routing_bias", True)),
    )
    norms = "layer" if table.get("use_qk_norm", True) else None
    layer = Layer(attention=attention_heads(table, qk_norm=norms), mlp=experts)
    return decoder(table, name, NAME, [layer] * size(table, "num_hidden_layers"))


ARCHITECTURE = Architecture(names=(NAME,), read=read, needs=("head_dim", "num_key_value_heads"))
