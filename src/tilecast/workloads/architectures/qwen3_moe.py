"""Qwen 3 with experts: every layer, or every few, routes; no shared expert. Qwen3-VL-MoE without its images."""

from collections.abc import Mapping
from typing import Any

from tilecast.workloads.architectures.base import Architecture, attention_heads, decoder, indices, refuse, size, text_notes, text_part
from tilecast.workloads.model import Experts, Layer, Mlp, ModelConfig

NAMES = ("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration")


def sparse_layers(table: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Which layers route: all but `mlp_only_layers` and those between the steps of `decoder_sparse_step`."""
    dense, step = indices(table, "mlp_only_layers"), size(table, "decoder_sparse_step", 1)
    return [index not in dense and (index + 1) % step == 0 for index in range(num_layers)]


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    text = text_part(table)
    refuse(text, NAMES[0], "use_sliding_window")
    attention = attention_heads(text, qk_norm="head", qkv_bias=bool(text.get("attention_bias", False)))
    experts = Experts(
        num_experts=size(text, "num_experts", None, "num_local_experts"),
        topk=size(text, "num_experts_per_tok"),
        width=size(text, "moe_intermediate_size"),
    )
    routed = sparse_layers(text, size(text, "num_hidden_layers"))
    plain = Mlp(width=size(text, "intermediate_size", None if not all(routed) else experts.width))
    layers = [Layer(attention=attention, mlp=experts if routes else plain) for routes in routed]
    return decoder(text, name, NAMES[0], layers, notes=text_notes(table))


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("head_dim", "num_key_value_heads"))
