"""The layer of a model that is tuned: its experts, as one rank holds them."""

import json
from pathlib import Path

import numpy as np

from tilecast.errors import InvalidInput, MissingData
from tilecast.tuning.engine_files import file_dtype
from tilecast.tuning.search import Layer
from tilecast.workloads.model import Experts, model_config
from tilecast.workloads.parallelism import sharded

MOST_FUSED = 256  # routed experts: Kimi K2 has 384, and runs its shared one apart


def layer_of(
    model: str, tp: int, ep: int, dtype: str | None, histogram: str | None, fuse: bool | None = None, engine: str = "sglang"
) -> tuple[Layer, str]:
    """The experts of a model, as one rank holds them, and what is to be said of that.

    `fuse`: a shared expert runs as one more of the routed; None: as the engine does it.
    """
    config = model_config(model)
    experts = next((layer.mlp for layer in config.layers if isinstance(layer.mlp, Experts)), None)
    if experts is None:
        raise InvalidInput(f"{config.name} has no experts: there is no MoE kernel to tune")
    shard = sharded(config, tp, ep=ep)
    held = dtype or config.precision.experts or config.dtype
    file_dtype(held)
    num_fused = _num_fused(config.name, experts, ep, fuse, engine)
    note = ""
    if num_fused and fuse is None:
        number = experts.num_experts + 1
        note = f"SGLang runs the shared expert of {config.name} as number {number}; --no-fuse-shared for a file without it"
    layer = Layer(
        kernel="moe", num_experts=experts.num_experts, topk=experts.topk, hidden_size=config.hidden_size, inter_size=experts.width,
        tp=shard.expert_tp, ep=ep, dtype=held, histogram=histogram_of(histogram),
        num_fused=num_fused,
    )  # fmt: skip
    return layer, note


def _num_fused(name: str, experts: Experts, ep: int, fuse: bool | None, engine: str) -> int:
    """SGLang runs the one shared expert of DeepSeek V3 and GLM 4.5 as one more of the routed, unless these are dealt to groups."""
    fits = experts.shared_width == experts.width and not experts.shared_gate
    if fuse and not fits:
        raise InvalidInput(f"--fuse-shared: {name} has no shared expert that is as wide as the others and without a gate of its own")
    if fuse is not None:
        return int(fuse)
    return int(engine == "sglang" and ep == 1 and fits and experts.correction_bias and experts.num_experts <= MOST_FUSED)


def histogram_of(file: str | None) -> tuple[float, ...] | None:
    if file is None:
        return None
    path = Path(file)
    if not path.is_file():
        raise MissingData(f"no file {path}")
    try:
        values = np.array(json.loads(path.read_text(encoding="utf-8")), dtype=np.float64)
    except (ValueError, TypeError, UnicodeDecodeError):
        values = np.empty(0)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise InvalidInput(f"--histogram {file} must hold a JSON list of numbers, one for each expert, none below 0 and not all 0")
    return tuple(values.tolist())
