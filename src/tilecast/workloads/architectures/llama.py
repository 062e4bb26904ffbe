"""Llama 2 and 3: no bias, no QK-norm."""

from collections.abc import Mapping
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import Architecture, dense_config, dense_step
from tilecast.workloads.model import ModelConfig

NAME = "LlamaForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    for field in ("attention_bias", "mlp_bias"):
        if table.get(field):
            raise InvalidInput(f"{field} = true is not supported for {NAME} yet")
    return dense_config(table, name, architecture=NAME)


ARCHITECTURE = Architecture(names=(NAME,), read=read, step=dense_step)
