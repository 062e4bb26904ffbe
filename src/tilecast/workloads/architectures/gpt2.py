"""GPT-2, and GPT-3 in its shape: learned positions, LayerNorm, biases everywhere, GELU."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, flag, head_width, number_format, size
from tilecast.workloads.model import GroupedAttention, Layer, Mlp, ModelConfig

NAME = "GPT2LMHeadModel"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    hidden, heads = size(table, "n_embd", None, "hidden_size"), size(table, "n_head", None, "num_attention_heads")
    width = head_width(hidden, heads, called=("n_embd", "n_head"))
    positions = size(table, "n_positions", None, "max_position_embeddings")
    attention = GroupedAttention(num_heads=heads, num_kv_heads=heads, head_dim=width, qkv_bias=True, o_bias=True, rope=False)
    layer = Layer(attention=attention, mlp=Mlp(width=size(table, "n_inner", 4 * hidden), gated=False, activation="gelu", bias=True))
    return ModelConfig(
        name=name,
        architecture=NAME,
        hidden_size=hidden,
        vocab_size=size(table, "vocab_size"),
        layers=(layer,) * size(table, "n_layer", None, "num_hidden_layers"),
        norm="layer_norm",
        num_positions=positions,
        tied_embeddings=flag(table, "tie_word_embeddings", default=True),
        max_context=positions,
        dtype=number_format(table),
    )


ARCHITECTURE = Architecture(names=(NAME,), read=read)
