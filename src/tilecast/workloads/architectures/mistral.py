"""Mistral: Llama's shape; its first version sees a window of 4096 tokens."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, optional, size, text_notes, text_part
from tilecast.workloads.model import Layer, Mlp, ModelConfig

NAMES = ("MistralForCausalLM", "Mistral3ForConditionalGeneration")


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    text = text_part(table)
    attention = attention_heads(text, window=optional(text, "sliding_window"))
    layer = Layer(attention=attention, mlp=Mlp(width=size(text, "intermediate_size")))
    return decoder(text, name, NAMES[0], [layer] * size(text, "num_hidden_layers"), notes=text_notes(table))


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("num_key_value_heads",))
