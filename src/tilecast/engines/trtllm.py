"""TensorRT-LLM (PyTorch backend, 1.0 to 1.3): its own attention (FMHA, XQA) everywhere, all-reduce with the norm in it, CUTLASS experts.

Prompts and decodes share a step up to max_num_tokens, whole prompts only; a request starts when its whole length has room. What it fuses,
its limits and its host's cost stand in trtllm.toml, with where that was read.
"""

from collections.abc import Mapping
from functools import partial

from tilecast.engines.base import Engine, Situation
from tilecast.engines.choices import BLACKWELL, QUANTISERS, custom_all_reduce, expert_format
from tilecast.hardware import GpuSpec, NodeSpec

own_all_reduce = partial(custom_all_reduce, groups=(2, 4, 8))


def all_reduce(node: NodeSpec, num_gpus: int, num_bytes: float) -> str:
    """One step where that is faster than NCCL; on B300 its rows are NCCL's at every size."""
    return "nccl" if node.gpu == "b300-sxm" else own_all_reduce(node, num_gpus, num_bytes)


def attention(engine: Engine, gpu: GpuSpec, phase: str, sinks: bool = False) -> str | None:
    """FMHA for prompts, XQA for decodes, TRTLLM-gen on data-centre Blackwell: one library on every generation."""
    del engine, phase, sinks
    return "trtllm" if gpu.vendor == "nvidia" else "triton"


def latent_attention(gpu: GpuSpec, phase: str) -> str | None:
    del gpu, phase
    return "trtllm"


def gemm(gpu: GpuSpec, held: str) -> str | None:
    """Labels of its own benchmark rows: cuBLAS in 16 bits, DeepGEMM for blocks on data-centre Blackwell; its other kernels have no name."""
    if held == "fp8_block" and gpu.target in BLACKWELL:
        return "deepgemm"
    return "cublas" if held in ("bf16", "fp16", "fp32") else None


def experts(engine: Engine, gpu: GpuSpec, held: str) -> str | None:
    del engine
    if gpu.target in BLACKWELL:
        return {"fp8_block": "deepgemm", "bf16": "cutlass", "fp8": "cutlass", "fp8_static": "cutlass"}.get(held)
    return "cutlass"


def fused(engine: Engine, seen: Situation) -> Mapping[str, str]:
    config, shard = seen.config, seen.shard
    grouped = {getattr(layer.attention, "qk_norm", None) for layer in config.layers if hasattr(layer.attention, "qk_norm")}
    into = {"kv_cache_write": "attention"} if engine.fact("attention_rotates_and_writes") else {}
    if "head" in grouped and engine.fact("fuses_qk_norm_and_rope"):
        into |= {"q_norm": "rope", "k_norm": "rope"}  # fused_qk_norm_rope: one pass over queries and keys
    elif "head" not in grouped and into:
        into["rope"] = "attention"
    message = 2.0 * seen.num_tokens * config.hidden_size
    joins = shard.tp > 1 and shard.dp == 1 and shard.node is not None and all_reduce(shard.node, shard.tp, message) == "custom"
    if joins and engine.fact("fuses_norm_into_all_reduce"):
        into["norm_after_reduce"] = "all_reduce"
        into |= dict.fromkeys(("qkv_proj_quantize", "gate_up_proj_quantize", "qkv_a_proj_quantize"), "all_reduce")
    static = {name for name in config.precision.names if name in engine.fact("quantises_inside_activations")}
    if static:
        into |= {"down_proj_quantize": "silu_mul", "o_proj_quantize": "attention"}
    return into


def token_budget(engine: Engine, gpu: GpuSpec, offline: bool) -> int:
    """max_num_tokens, on every GPU."""
    del gpu, offline
    return int(engine.fact("token_budget"))


ENGINE = Engine(
    name="trtllm",
    attention=attention,
    latent_attention=latent_attention,
    all_reduce=all_reduce,
    expert_format=expert_format,
    fused=fused,
    token_budget=token_budget,
    gemm=gemm,
    experts=experts,
    quantisers=QUANTISERS,
)
