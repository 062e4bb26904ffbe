"""The graph of a config.json: the family's module is built without weights and traced."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import family_names, nearest_family, text_notes
from tilecast.workloads.opgraph import OpGraph, renamed
from tilecast.workloads.tracing.losses import FusedTokenLoss, TokenLoss
from tilecast.workloads.tracing.modules.base import Asked, Family, families
from tilecast.workloads.tracing.trace import trace

FORMATS = {"fp32": torch.float32, "tf32": torch.float32, "amp": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def traced_model(
    id: str, config: Mapping[str, Any], *, mode: str, batch: int, seq: int, dtype: str, attention: str, recompute: bool = False
) -> OpGraph:
    family, module, inputs = built(id, config, Asked(mode=mode, attention=attention, batch=batch, seq=seq), FORMATS[dtype])
    graph = trace(
        module,
        inputs,
        mode=mode,
        loss=(FusedTokenLoss() if family.fused_loss else TokenLoss()) if mode == "training" else None,
        recompute=recompute,
        autocast="bf16" if dtype == "amp" else None,
        name=id,
    )
    stored = ("weights have the format that is asked for, not that of the checkpoint",) if config.get("quantization_config") else ()
    return renamed(graph, batch=batch, seq=seq, notes=(*graph.notes, *text_notes(config), *stored))


def built(id: str, config: Mapping[str, Any], asked: Asked, dtype: torch.dtype) -> tuple[Family, nn.Module, tuple[Tensor, ...]]:
    """The family of a config, its module without weights, and what it takes; every problem is one sentence naming the field."""
    try:
        given = family_names(config)
        family = next((families()[name] for name in given if name in families()), None)
        if family is None:
            known, nearest = ", ".join(sorted(families())), nearest_family(given[0], config)
            raise InvalidInput(
                f"no module for {given[0]!r}; the nearest family is {nearest}; known: {known}; "
                "any nn.Module can be traced with tilecast.trace"
            )
        with torch.device("meta"):
            return family, family.build(config, asked).to(dtype), family.inputs(asked)
    except InvalidInput as problem:
        raise type(problem)(f"{id}: {problem}") from None
    except (RuntimeError, OverflowError):  # PyTorch's, of more elements than it counts
        field, value = max(((field, value) for field, value in config.items() if type(value) is int), key=lambda pair: pair[1])
        raise InvalidInput(f"{id}: {field} = {value:,} makes weights of more elements than a tensor can hold") from None
