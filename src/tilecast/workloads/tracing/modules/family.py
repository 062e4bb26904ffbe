"""What a family's file offers, and how it is found: a value of `architectures` is a family's prefix and a kind of head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tilecast.workloads.tracing.modules.base import Asked, Body, token_inputs
from tilecast.workloads.tracing.modules.heads import NO_HEAD, Head

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`body(config, asked)` makes the layers, `inputs(asked)` what they take; `heads` stand on them, the best known first."""

    prefixes: tuple[str, ...]
    heads: Mapping[str, Head]  # the rest of the class name -> head
    body: Callable[[Mapping[str, Any], Asked], Body]
    inputs: Callable[[Asked], tuple[Tensor, ...]] = token_inputs
    read_as: Mapping[str, str] = field(default_factory=dict)  # prefix -> the name by which `workloads/architectures` reads its config


class Whole(nn.Module):
    """A body with its head."""

    def __init__(self, body: Body, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, *inputs: Tensor) -> Any:
        return self.head(self.body(*inputs), inputs[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One value of `architectures`."""

    family: Family
    prefix: str
    head: Head

    def build(self, config: Mapping[str, Any], asked: Asked) -> nn.Module:
        known = self.family.read_as.get(self.prefix)
        body = self.family.body({**config, "architectures": [known]} if known else config, asked)
        return Whole(body, self.head.build(config, body))

    def inputs(self, asked: Asked) -> tuple[Tensor, ...]:
        return self.family.inputs(asked)

    @property
    def has_head(self) -> bool:
        return self.head.loss is not NO_HEAD.loss

    def loss(self) -> nn.Module:
        """Of the module's output."""
        return self.head.loss()


@cache
def networks() -> dict[str, Network]:
    """The `architectures` value of a config.json -> what it means."""
    modules = [import_module(f"{__package__}.{path.stem}") for path in sorted(FOLDER.glob("*.py")) if path.stem != "__init__"]
    families = [family for module in modules for family in getattr(module, "FAMILIES", ())]
    return {
        prefix + ending: Network(family=family, prefix=prefix, head=head)
        for family in families
        for prefix in family.prefixes
        for ending, head in family.heads.items()
    }


def known_names(name: str) -> str:
    """The heads of a name's family where it is known, else the best known name of every family."""
    prefixes: dict[str, list[str]] = {}
    for known, network in networks().items():
        prefixes.setdefault(network.prefix, []).append(known)
    own = next((prefix for prefix in sorted(prefixes, key=len, reverse=True) if name.startswith((f"{prefix}For", f"{prefix}Model"))), None)
    if own is not None:
        return ", ".join(prefixes[own])
    return f"{', '.join(sorted(names[0] for names in prefixes.values()))}, and their other heads (docs/training.md)"
