"""The graph of a config.json: the family's module is built without weights and traced."""

from collections.abc import Mapping
from typing import Any

import torch

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import nearest_family, text_notes
from tilecast.workloads.opgraph import OpGraph, renamed
from tilecast.workloads.tracing.losses import FusedTokenLoss, TokenLoss
from tilecast.workloads.tracing.modules.base import Asked, families
from tilecast.workloads.tracing.trace import trace

FORMATS = {"fp32": torch.float32, "tf32": torch.float32, "amp": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def traced_model(
    id: str, config: Mapping[str, Any], *, mode: str, batch: int, seq: int, dtype: str, attention: str, recompute: bool = False
) -> OpGraph:
    given = config.get("architectures")
    if not isinstance(given, list | tuple) or not given:
        raise InvalidInput(f"{id}: architectures is missing; it names the model family, e.g. {sorted(families())[0]}")
    family = next((families()[name] for name in given if name in families()), None)
    if family is None:
        known, nearest = ", ".join(sorted(families())), nearest_family(str(given[0]), config)
        raise InvalidInput(
            f"{id}: no module for {given[0]!r}; the nearest family is {nearest}; known: {known}; "
            "any nn.Module can be traced with tilecast.trace"
        )
    asked = Asked(mode=mode, attention=attention, batch=batch, seq=seq)
    try:
        with torch.device("meta"):
            module = family.build(config, asked).to(FORMATS[dtype])
            inputs = family.inputs(asked)
    except InvalidInput as problem:
        raise type(problem)(f"{id}: {problem}") from None
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
