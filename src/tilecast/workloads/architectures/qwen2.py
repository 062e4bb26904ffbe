"""Qwen 2 and 2.5: a bias on the query, key and value projections."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, dense_config, dense_step
from tilecast.workloads.model import ModelConfig

NAME = "Qwen2ForCausalLM"


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    return dense_config(table, name, architecture=NAME, qkv_bias=True)


ARCHITECTURE = Architecture(names=(NAME,), read=read, step=dense_step)
