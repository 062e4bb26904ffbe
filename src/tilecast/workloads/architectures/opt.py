"""OPT: learned positions, LayerNorm, biases everywhere, ReLU."""

from collections.abc import Mapping
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, flag, size
from tilecast.workloads.model import Layer, Mlp, ModelConfig

NAME = "OPTForCausalLM"
POSITION_OFFSET = 2  # its table of positions starts two rows early


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    if table.get("do_layer_norm_before") is False:
        raise InvalidInput(f"do_layer_norm_before = false is not supported for {NAME} yet")
    hidden, positions = size(table, "hidden_size"), size(table, "max_position_embeddings")
    width = size(table, "word_embed_proj_dim", hidden)
    mlp = Mlp(width=size(table, "ffn_dim"), gated=False, activation="relu", bias=True)
    layer = Layer(attention=attention_heads(table, qkv_bias=True, o_bias=True, rope=False), mlp=mlp)
    tied = flag(table, "tie_word_embeddings", default=True)
    more = {"norm": "layer_norm", "num_positions": positions + POSITION_OFFSET, "embedding_width": width, "tied_embeddings": tied}
    return decoder(table, name, NAME, [layer] * size(table, "num_hidden_layers"), **more)


ARCHITECTURE = Architecture(names=(NAME,), read=read)
