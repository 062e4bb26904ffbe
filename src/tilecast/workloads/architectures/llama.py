"""Llama 2, 3, 3.1 and 3.3: no bias, no QK-norm. Families that only renamed it read the same way."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, dense, refuse
from tilecast.workloads.model import ModelConfig

NAME = "LlamaForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    refuse(table, NAME, "attention_bias", "mlp_bias")
    return dense(table, name, NAME)


ARCHITECTURE = Architecture(names=(NAME,), read=read)
