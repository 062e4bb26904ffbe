"""vLLM (V1, 0.11 to 0.19): FlashAttention 2 or 3 for both phases, TensorRT-LLM's on data-centre Blackwell; Inductor fuses.

One step mixes prompts and decodes up to a token budget; a step of decodes alone replays a captured graph. What it fuses, its limits and its
host's cost stand in vllm.toml, with where that was read or fitted.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from tilecast.engines.base import Engine, Quantiser, Situation
from tilecast.engines.choices import BLACKWELL, QUANTISERS, custom_all_reduce, expert_format
from tilecast.hardware import GpuSpec

all_reduce = partial(custom_all_reduce, groups=(2, 4, 6, 8))


def attention(engine: Engine, gpu: GpuSpec, phase: str, sinks: bool = False) -> str | None:
    """One kernel for both phases. FA2 knows no sinks: such models get Triton where there is no FA3."""
    del engine, phase
    if gpu.vendor != "nvidia":
        return "triton"
    if gpu.target in BLACKWELL:
        return "trtllm"
    if gpu.target == "sm_90":
        return "fa3"
    return "triton" if sinks else "fa2"


def latent_attention(gpu: GpuSpec, phase: str) -> str | None:
    """Prefill expands keys and values for FlashAttention (FA2's loop where there is no FA3); decode stays on the latents."""
    if gpu.target in BLACKWELL:
        return "trtllm"
    if gpu.target == "sm_90":
        return "fa3" if phase == "prefill" else "flashmla"
    return "flashinfer" if phase == "prefill" else "triton"


def gemm(gpu: GpuSpec, held: str) -> str | None:
    """Labels of its own benchmark rows: cuBLAS in 16 bits, CUTLASS scaled products, DeepGEMM for blocks where it exists."""
    if held in ("fp8", "fp8_static", "nvfp4", "int8"):
        return "cutlass"
    if held == "fp8_block":
        return "deepgemm" if gpu.target in ("sm_90", *BLACKWELL) else "triton"
    return "cublas" if held in ("bf16", "fp16", "fp32") else None


def experts(engine: Engine, gpu: GpuSpec, held: str) -> str | None:
    """Marlin for weights alone in 4 bits, but for MXFP4 where others have it; FlashInfer's TensorRT-LLM kernels on data-centre Blackwell
    (nameless), else Triton; what runs fp8 with one scale on Hopper depends on the release."""
    if held == "int4_wo" or (held == "w4a16_mxfp4" and gpu.target not in ("sm_90", *BLACKWELL)):
        return "marlin"
    if gpu.target in BLACKWELL:
        return None
    return str(engine.fact("hopper_fp8_experts")) if held in ("fp8", "fp8_static") and gpu.target == "sm_90" else "triton"


def fused(engine: Engine, seen: Situation) -> Mapping[str, str]:
    """Inductor joins neighbours of one kernel's reach; collectives and fp4 scales are out of it."""
    config, shard, gpu = seen.config, seen.shard, seen.gpu
    into = {}
    if gpu.target in ("sm_90", *BLACKWELL) and shard.tp > 1 and shard.dp == 1 and shard.pp == 1:
        most = engine.fact("most_fused_norm_bytes")["sm_90" if gpu.target == "sm_90" else "sm_100"].get(str(shard.tp), 0)
        if 2 * seen.num_tokens * config.hidden_size <= most:
            into["norm_after_reduce"] = "all_reduce"
    if engine.fact("rope_inside_qk_norm") and any(getattr(layer.attention, "qk_norm", None) == "head" for layer in config.layers):
        into["rope"] = "q_norm"
    quantised = {name for name in config.precision.names if name in engine.fact("quantises_inside_norms")}
    if quantised:
        into |= dict.fromkeys(("qkv_proj_quantize", "gate_up_proj_quantize", "qkv_a_proj_quantize", "q_proj_quantize"), "norm")
        into |= {"q_b_proj_quantize": "q_a_norm", "down_proj_quantize": "silu_mul", "shared_down_proj_quantize": "shared_silu_mul"}
        into |= {"shared_gate_up_proj_quantize": "norm", "kv_b_proj_quantize": "kv_a_norm", "kv_a_proj_quantize": "norm"}
    if gpu.target in BLACKWELL and seen.kv_dtype == "fp8" and "fp8_static" in config.precision.names:
        into["o_proj_quantize"] = "attention"
    return into


def token_budget(engine: Engine, gpu: GpuSpec, offline: bool) -> int:
    """max_num_batched_tokens: by the GPU's memory and by who asks, unless it was set."""
    if "token_budget" in engine.settings:
        return int(engine.fact("token_budget"))
    return int(engine.fact("token_budget_by_use")[f"{'large' if _is_large(gpu) else 'small'}_{'offline' if offline else 'server'}"])


def most_running(engine: Engine, gpu: GpuSpec) -> int:
    """max_num_seqs: by the GPU's memory, unless it was set."""
    is_set = "most_running_requests" in engine.settings
    return int(engine.fact("most_running_requests" if is_set or _is_large(gpu) else "most_running_requests_small"))


def _is_large(gpu: GpuSpec) -> bool:
    """As get_batch_defaults asks."""
    return gpu.dram_bytes >= 70 * 2**30 and "a100" not in gpu.id


ENGINE = Engine(
    name="vllm",
    attention=attention,
    latent_attention=latent_attention,
    all_reduce=all_reduce,
    expert_format=expert_format,
    fused=fused,
    token_budget=token_budget,
    most_running=most_running,
    gemm=gemm,
    experts=experts,
    quantisers=MappingProxyType({**QUANTISERS, "fp8": Quantiser("per_token", "fp8")}),
)
