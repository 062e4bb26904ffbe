"""What engines run without a tuned file: the configuration a speed-up is counted from."""

from collections.abc import Mapping

from tilecast.errors import UnknownName
from tilecast.kernels.moe_defaults import ENGINES, default_configurations
from tilecast.tuning.space import PARAMETERS


def named(*values: int) -> dict[str, int]:
    return dict(zip(PARAMETERS.values(), values, strict=True))


def default_config(
    engine: str, num_tokens: int, num_experts: int, dtype: str, shared_bytes_per_block: int | None = None
) -> Mapping[str, int]:
    """The engine's own choice for a fused MoE kernel. `num_experts` are those on the rank; SGLang looks at shared memory too."""
    if engine not in ENGINES:
        raise UnknownName.among("engine", engine, ENGINES)
    values = default_configurations(engine, num_tokens, num_experts, dtype, shared_bytes_per_block)
    return {PARAMETERS[name]: int(value) for name, value in values.items()}


def gemm_default(engine: str) -> Mapping[str, int]:
    """A block-scaled FP8 GEMM without a tuned file, whatever its number of rows."""
    if engine not in ENGINES:
        raise UnknownName.among("engine", engine, ENGINES)
    return named(64, 128, 128, 32, 4, 3 if engine == "sglang" else 2)


def searched_default(num_tokens: int, num_experts: int) -> Mapping[str, int]:
    """What the published searches call SGLang's default: above, but in the space they searched."""
    return named(16, 32, 64, 1, 4, 3) if num_tokens <= num_experts else named(64, 64, 64, 16, 4, 3)
