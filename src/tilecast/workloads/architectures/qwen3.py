"""Qwen 3, dense: no bias, an RMSNorm on every query and key head."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, dense_config, dense_step
from tilecast.workloads.model import ModelConfig

NAME = "Qwen3ForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    return dense_config(table, name, architecture=NAME, qk_norm=True, qkv_bias=bool(table.get("attention_bias", False)))


ARCHITECTURE = Architecture(names=(NAME,), read=read, step=dense_step)
