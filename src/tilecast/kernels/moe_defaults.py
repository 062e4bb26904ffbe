"""What a fused Triton MoE kernel is launched with where an engine has no tuned file for the layer on that GPU: mostly it has none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

CONFIGURATION = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")
ENGINES = ("sglang", "vllm")
# Triton launches 4 warps with 3 stages where a configuration does not say.
WARPS, STAGES = 4, 3
LITTLE_SHARED_BYTES = 128 << 10  # of a block: with less, SGLang's FP8 default is another


def default_configurations(
    engine: str, num_tokens: Any, num_experts: Any, dtype: str, shared_bytes_per_block: int | None
) -> Mapping[str, Ints]:
    """The engine's own choice, parameter -> values for each launch. `num_experts` are those on the rank; SGLang looks at shared memory too.

    >>> default_configurations("sglang", [8, 4096], 128, "bf16", None)["block_m"].tolist()
    [16, 64]
    """
    tokens, experts = np.broadcast_arrays(np.asarray(num_tokens, np.float64), np.asarray(num_experts, np.float64))
    choice = _vllm(tokens, experts, dtype) if engine == "vllm" else _sglang(tokens <= experts, dtype, shared_bytes_per_block)
    return {name: np.broadcast_to(value, tokens.shape).astype(np.int64) for name, value in zip(CONFIGURATION, choice, strict=True)}


def _sglang(few: NDArray[np.bool_], dtype: str, shared_bytes_per_block: int | None) -> tuple[Any, ...]:
    if dtype == "fp8_block":  # a tile is as wide and as deep as a block with one scale
        return 64, 128, 128, 32, WARPS, STAGES
    if dtype not in ("fp8", "fp8_static"):
        few_tokens, many = (16, 32, 64, 1, WARPS, STAGES), (64, 64, 32, 8, WARPS, STAGES)
    elif shared_bytes_per_block is not None and shared_bytes_per_block < LITTLE_SHARED_BYTES:
        few_tokens, many = (32, 64, 256, 1, 4, 4), (64, 128, 256, 64, 4, 2)
    else:
        few_tokens, many = (64, 128, 128, 1, 4, 4), (128, 256, 128, 32, 8, 4)
    return tuple(np.where(few, one, other) for one, other in zip(few_tokens, many, strict=True))


def _vllm(tokens: NDArray[np.float64], experts: NDArray[np.float64], dtype: str) -> tuple[Any, ...]:
    if dtype == "fp8_block":
        return np.where(tokens <= 64, 16, 64), 128, 128, np.where(tokens <= 16, 1, 32), WARPS, STAGES
    return (
        np.select([tokens <= 32, tokens <= 96, tokens <= 512], [16, 32, 64], 128),
        np.where(tokens <= 64, 64, 128),
        np.where((tokens <= 64) | (dtype in ("fp8", "fp8_static")), 128, 64),
        np.where(tokens // np.maximum(experts, 1.0) > 128, 16, 1),
        np.where(tokens <= 128, 4, 8),
        np.where(tokens <= 32, 4, 3),
    )
