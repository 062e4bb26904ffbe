"""Qwen 2 and 2.5: a bias on the query, key and value projections. MiMo-7B has the same layers."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, dense, refuse
from tilecast.workloads.model import ModelConfig

NAMES = ("Qwen2ForCausalLM", "MiMoForCausalLM")


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    refuse(table, NAMES[0], "use_sliding_window")
    return dense(table, name, NAMES[0], qkv_bias=True)


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("num_key_value_heads",))
