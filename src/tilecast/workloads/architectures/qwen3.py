"""Qwen 3, dense: no bias, an RMSNorm on every query and key head. Qwen3-VL without its images."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilecast.workloads.architectures.base import Architecture, dense, refuse, text_notes, text_part
from tilecast.workloads.model import ModelConfig

NAMES = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    text = text_part(table)
    refuse(text, NAMES[0], "use_sliding_window")
    config = dense(text, name, NAMES[0], qk_norm="head", qkv_bias=bool(text.get("attention_bias", False)))
    return replace(config, notes=text_notes(table))


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("head_dim", "num_key_value_heads"))
