"""Gemma 3: windows in five of six layers, QK-norm, norms before and behind both blocks, GeGLU; without its images.

Its files leave out what Hugging Face's class has as a default, so those defaults stand here.
"""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, size, text_notes, text_part, windows
from tilecast.workloads.model import Layer, Mlp, ModelConfig

NAMES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
DEFAULTS = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131072, "sliding_window_pattern": 6,
}  # fmt: skip


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    text = {**DEFAULTS, **text_part(table)}
    mlp = Mlp(width=size(text, "intermediate_size"), activation="gelu")
    layers = [
        Layer(attention=attention_heads(text, window=window, qk_norm="head"), mlp=mlp, sandwich=True)
        for window in windows(text, size(text, "num_hidden_layers"), every=size(text, "sliding_window_pattern"))
    ]
    tied = bool(text.get("tie_word_embeddings", True))
    return decoder(text, name, NAMES[0], layers, tied_embeddings=tied, scales_embedding=True, notes=text_notes(table))


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("head_dim", "num_key_value_heads", "sliding_window"))
