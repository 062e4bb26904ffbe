"""Gemma 2: windows in every other layer, norms before and behind both blocks, GeGLU, soft caps on scores and logits.

The cap on the scores is inside the attention kernel and costs it nothing here.
"""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, flag, size, windows
from tilecast.workloads.model import Layer, Mlp, ModelConfig

NAME = "Gemma2ForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    mlp = Mlp(width=size(table, "intermediate_size"), activation="gelu")
    layers = [
        Layer(attention=attention_heads(table, window=window), mlp=mlp, sandwich=True)
        for window in windows(table, size(table, "num_hidden_layers"), every=2)
    ]
    tied = flag(table, "tie_word_embeddings", default=True)
    capped = bool(table.get("final_logit_softcapping", 30.0))
    return decoder(table, name, NAME, layers, tied_embeddings=tied, scales_embedding=True, soft_cap=capped)


ARCHITECTURE = Architecture(names=(NAME,), read=read, needs=("head_dim", "num_key_value_heads", "sliding_window"))
