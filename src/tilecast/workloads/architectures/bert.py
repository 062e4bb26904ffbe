"""BERT: an encoder that reads a whole text at once; every token sees every other, and nothing is decoded."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, size
from tilecast.workloads.model import Layer, Mlp, ModelConfig

NAMES = ("BertForMaskedLM", "BertLMHeadModel", "BertModel", "BertForPreTraining")


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    attention = attention_heads(table, qkv_bias=True, o_bias=True, rope=False, causal=False)
    layer = Layer(attention=attention, mlp=Mlp(width=size(table, "intermediate_size"), gated=False, activation="gelu", bias=True))
    more = {
        "norm": "layer_norm", "num_positions": size(table, "max_position_embeddings"), "num_types": size(table, "type_vocab_size", 2),
        "is_encoder": True, "tied_embeddings": True,
    }  # fmt: skip
    return decoder(table, name, NAMES[0], [layer] * size(table, "num_hidden_layers"), **more)


ARCHITECTURE = Architecture(names=NAMES, read=read)
