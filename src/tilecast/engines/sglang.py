"""SGLang: FlashInfer on most GPUs, FA3 for prefill on Hopper; custom all-reduce for short messages; decode in a CUDA graph.

Weights and the KV cache are read once per step and a step reads more than any L2 holds, so both are cold; activations were just written.
What it fuses and for which models stands in sglang.toml, with where that was read.
"""

from collections.abc import Mapping
from functools import partial

from tilecast.engines.base import Engine, Situation
from tilecast.engines.choices import BLACKWELL, QUANTISERS, custom_all_reduce, expert_format
from tilecast.hardware import GpuSpec
from tilecast.workloads.model import Experts

all_reduce = partial(custom_all_reduce, groups=(2, 4, 6, 8))


def attention(engine: Engine, gpu: GpuSpec, phase: str, sinks: bool = False) -> str | None:
    """As the late-2025 releases choose it: paged decode through FlashInfer's FA2 kernels, also on Hopper; FA3 since 0.5.10, on A100 too.

    FlashInfer's kernels know no sinks: such models get FA3 on Hopper for both phases, and Triton where there is no FA3.
    """
    if gpu.vendor != "nvidia":
        return "triton"
    if gpu.target in BLACKWELL:
        return "trtllm"
    if gpu.target == "sm_90":
        return "fa3" if phase == "prefill" or sinks else str(engine.fact("hopper_decode"))
    if sinks:
        return "triton"
    return str(engine.fact("ampere_attention")) if gpu.target == "sm_80" else "flashinfer_fa2"


def latent_attention(gpu: GpuSpec, phase: str) -> str | None:
    """FA3 on Hopper, TensorRT-LLM's on Blackwell, Triton elsewhere; a prefill without a prefix expands keys and values."""
    if gpu.target in BLACKWELL:
        return "trtllm"
    if gpu.target == "sm_90":
        return "fa3" if phase == "prefill" else "flashmla"
    return "triton_expanded" if phase == "prefill" else "triton"


def fused(engine: Engine, seen: Situation) -> Mapping[str, str]:
    config, shard, gpu = seen.config, seen.shard, seen.gpu
    into = {}
    if (
        config.architecture in engine.fact("fuses_norm_into_all_reduce")
        and shard.tp > 1
        and shard.dp == 1
        and shard.hops_between_nodes == 0
        and gpu.target in ("sm_90", *BLACKWELL)
        and gpu.id != "h20"
        and seen.num_tokens <= engine.fact("most_tokens_of_fused_norm")
    ):
        into["norm_after_reduce"] = "all_reduce"
    mlp = config.layers[-1].mlp
    if (
        config.architecture in engine.fact("fuses_shared_experts")
        and isinstance(mlp, Experts)
        and mlp.shared_width == mlp.width
        and (mlp.num_experts == 256 or not config.architecture.startswith("Deepseek"))
        and shard.ep == 1
        and config.precision.shared == config.precision.experts
    ):
        into["shared_expert"] = "experts"
    return into


def token_budget(engine: Engine, gpu: GpuSpec, offline: bool) -> int:
    """Of a chunked prefill; by the GPU's memory unless it was set."""
    if "token_budget" in engine.settings:
        return int(engine.fact("token_budget"))
    return next(int(tokens) for least, tokens in engine.fact("token_budget_by_memory") if gpu.dram_bytes >= least * 2**30)


ENGINE = Engine(
    name="sglang",
    attention=attention,
    latent_attention=latent_attention,
    all_reduce=all_reduce,
    expert_format=expert_format,
    fused=fused,
    token_budget=token_budget,
    quantisers=QUANTISERS,
)
