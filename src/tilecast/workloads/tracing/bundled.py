"""The graph of a config.json: the family's module is built without weights and traced."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures.base import family_names, nearest_family, text_notes
from tilecast.workloads.opgraph import OpGraph, renamed
from tilecast.workloads.tracing.modules.base import Asked
from tilecast.workloads.tracing.modules.family import Network, known_names, networks
from tilecast.workloads.tracing.trace import trace

FORMATS = {"fp32": torch.float32, "tf32": torch.float32, "amp": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEADLESS = "the model has no head: the loss of training is the mean of its output; name a class with a head in architectures for another"


def traced_model(
    id: str, config: Mapping[str, Any], *, mode: str, batch: int, seq: int, dtype: str, attention: str, recompute: bool = False
) -> OpGraph:
    network, module, inputs = built(id, config, Asked(mode=mode, attention=attention, batch=batch, seq=seq), FORMATS[dtype])
    graph = trace(
        module,
        inputs,
        mode=mode,
        loss=network.loss() if mode == "training" else None,
        recompute=recompute,
        autocast="bf16" if dtype == "amp" else None,
        name=id,
    )
    stored = ("weights have the format that is asked for, not that of the checkpoint",) if config.get("quantization_config") else ()
    headless = (HEADLESS,) if mode == "training" and not network.has_head else ()
    return renamed(graph, batch=batch, seq=seq, notes=(*graph.notes, *text_notes(config), *stored, *headless))


def built(id: str, config: Mapping[str, Any], asked: Asked, dtype: torch.dtype) -> tuple[Network, nn.Module, tuple[Tensor, ...]]:
    """What a config is, its module without weights, and what it takes; every problem is one sentence naming the field."""
    try:
        given = family_names(_of_mode(config, asked.mode))
        network = next((networks()[name] for name in given if name in networks()), None)
        if network is None:
            nearest = nearest_family(given[0], config)
            raise InvalidInput(
                f"no module for {given[0]!r}; the nearest family is {nearest}; known: {known_names(given[0])}; "
                "any nn.Module can be traced with tilecast.trace"
            )
        with torch.device("meta"):
            return network, network.build(config, asked).to(dtype), network.inputs(asked)
    except InvalidInput as problem:
        raise type(problem)(f"{id}: {problem}") from None
    except (RuntimeError, OverflowError):  # PyTorch's, of more elements than it counts
        field, value = max(((field, value) for field, value in config.items() if type(value) is int), key=lambda pair: pair[1])
        raise InvalidInput(f"{id}: {field} = {value:,} makes weights of more elements than a tensor can hold") from None


def _of_mode(config: Mapping[str, Any], mode: str) -> Mapping[str, Any]:
    """A model of ours may have another head in inference: measured runs of BERT-Large had."""
    other = config.get("architectures_in_inference") if mode == "inference" else None
    return config if other is None else {**config, "architectures": other}
