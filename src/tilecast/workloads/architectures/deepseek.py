"""DeepSeek V2, V3, R1 and Kimi K2: latent attention, many small experts with shared ones, and dense layers first.

The layer that predicts a second token (num_nextn_predict_layers) is neither run nor counted.
"""

from collections.abc import Mapping
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import Architecture, count, decoder, optional, refuse, size, text_notes, text_part
from tilecast.workloads.model import Experts, LatentAttention, Layer, Mlp, ModelConfig

NAMES = ("DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM", "KimiK25ForConditionalGeneration")


def read(table: Mapping[str, Any], name: str) -> ModelConfig:
    text = text_part(table)
    said = str(table["architectures"][0])
    refuse(text, said, "index_topk", "attention_bias")
    if text.get("qk_nope_head_dim") in (None, 0):
        raise InvalidInput("qk_nope_head_dim is missing")
    if said != NAMES[1] and "q_lora_rank" not in text:  # V2-Lite alone has none
        raise InvalidInput(f"q_lora_rank is missing; {said} models differ in it")
    attention = LatentAttention(
        num_heads=size(text, "num_attention_heads"),
        q_lora_rank=optional(text, "q_lora_rank"),
        kv_lora_rank=size(text, "kv_lora_rank"),
        qk_nope_head_dim=size(text, "qk_nope_head_dim"),
        qk_rope_head_dim=size(text, "qk_rope_head_dim"),
        v_head_dim=size(text, "v_head_dim"),
    )
    width = size(text, "moe_intermediate_size")
    experts = Experts(
        num_experts=size(text, "n_routed_experts"),
        topk=size(text, "num_experts_per_tok"),
        width=width,
        shared_width=width * count(text, "n_shared_experts"),
        correction_bias=text.get("topk_method") == "noaux_tc",
    )
    plain = Mlp(width=size(text, "intermediate_size"))
    first, every = count(text, "first_k_dense_replace"), size(text, "moe_layer_freq", 1)
    layers = [
        Layer(attention=attention, mlp=experts if index >= first and index % every == 0 else plain)
        for index in range(size(text, "num_hidden_layers"))
    ]
    return decoder(text, name, said, layers, notes=text_notes(table))


ARCHITECTURE = Architecture(names=NAMES, read=read, needs=("n_shared_experts", "first_k_dense_replace"))
