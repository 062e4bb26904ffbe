"""GPT-OSS: windows of 128 tokens in every other layer, attention sinks, biases everywhere, experts in MXFP4."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, size, windows
from tilecast.workloads.model import Experts, Layer, ModelConfig

NAME = "GptOssForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    experts = Experts(
        num_experts=size(table, "num_local_experts"),
        topk=size(table, "num_experts_per_tok", None, "experts_per_token"),
        width=size(table, "intermediate_size"),
        bias=True,
    )
    has_bias = bool(table.get("attention_bias", True))
    layers = [
        Layer(attention=attention_heads(table, window=window, sinks=True, qkv_bias=has_bias, o_bias=has_bias), mlp=experts)
        for window in windows(table, size(table, "num_hidden_layers"), every=2)
    ]
    return decoder(table, name, NAME, layers)


ARCHITECTURE = Architecture(names=(NAME,), read=read, needs=("head_dim", "num_key_value_heads", "sliding_window"))
