"""NodeSpec: how many GPUs stand together, what connects them, and what leaves the box."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any

from tilecast import units
from tilecast.errors import InvalidInput, SpecError
from tilecast.hardware.spec import GpuSpec, Source
from tilecast.markup import html_table

TOPOLOGIES = {
    "switch": "every GPU reaches every other at its full link rate",
    "mesh": "every GPU has a link of its own to every other",
    "bridge": "cards are joined in pairs; other pairs talk over PCIe",
    "pcie": "no link of their own; all traffic crosses PCIe",
    "single": "one GPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One box, or one rack that is one link domain. Rates are per GPU and one direction."""

    id: str
    name: str
    gpu: str  # catalogue id of the GPU it holds
    num_gpus: int  # in one link domain: 8 in a DGX, 72 in an NVL72 rack
    topology: str
    link_kind: str
    link_bytes_per_s: float  # all links of one GPU together
    pair_bytes_per_s: float  # between one pair of linked GPUs
    reduces_in_switch: bool = False  # NVLink SHARP: the switch adds, so an all-reduce moves each byte once
    pcie_bytes_per_s: float | None = None
    reached_bytes_per_s: float | None = None  # by messages, of a GPU's links: where it was measured
    network_kind: str | None = None
    network_bytes_per_s: float | None = None  # to other nodes
    sources: Mapping[str, Source]

    def __hash__(self) -> int:
        """Enough to tell boxes apart in a cache; sources have no hash of their own."""
        return hash((self.id, self.num_gpus, self.link_bytes_per_s))

    def to_dict(self) -> dict[str, Any]:
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain["sources"] = {fact: str(source) for fact, source in self.sources.items()}
        return plain

    def _repr_html_(self) -> str:
        facts = {name: value for name, value in self.to_dict().items() if name not in ("sources", "id", "name") and value is not None}
        rows = [
            (fact, units.human(fact, value) if isinstance(value, float) else str(value), str(self.sources.get(fact, "")))
            for fact, value in facts.items()
        ]
        return html_table(f"{self.name} ({self.id})", ("fact", "value", "source"), rows)


def node_from(id: str, table: Mapping[str, Any]) -> NodeSpec:
    """A checked node from a parsed TOML table; every problem is one sentence naming the field and the value."""
    known = {entry.name: entry for entry in fields(NodeSpec)}
    for key in table:
        if key not in known or key == "id":
            raise SpecError(f"unknown field {key!r}; known: {', '.join(name for name in known if name != 'id')}")
    values: dict[str, Any] = {"id": id}
    for name, entry in known.items():
        if name == "sources" or (name not in table and (entry.default is not MISSING or name == "id")):
            continue
        if name not in table:
            raise SpecError(f"{name} is missing")
        values[name] = _checked(name, table[name])
    values["sources"] = MappingProxyType({fact: Source.parse(str(text)) for fact, text in table.get("sources", {}).items()})
    node = NodeSpec(**values)
    for fact in known:
        if fact not in ("id", "name", "sources") and getattr(node, fact) not in (None, False) and fact not in node.sources:
            raise SpecError(f"sources.{fact} is missing: every fact names where it comes from")
    if node.pair_bytes_per_s > node.link_bytes_per_s:
        raise SpecError(f"pair_bytes_per_s = {node.pair_bytes_per_s:g} is above link_bytes_per_s = {node.link_bytes_per_s:g}")
    return node


def _checked(name: str, raw: object) -> object:
    if name == "topology" and raw not in TOPOLOGIES:
        raise SpecError(f"topology = {raw!r} must be one of {', '.join(TOPOLOGIES)}")
    if name == "reduces_in_switch":
        if not isinstance(raw, bool):
            raise SpecError(f"{name} = {raw!r} must be true or false")
        return raw
    if name == "num_gpus":
        if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= 4096:
            raise SpecError(f"num_gpus = {raw!r} must be a whole number from 1 to 4096")
        return raw
    if not name.endswith("_bytes_per_s"):
        if not isinstance(raw, str) or not raw:
            raise SpecError(f"{name} = {raw!r} must be text")
        return raw
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise SpecError(f"{name} = {raw!r} is not a number")
    try:
        value = units.parse(name, raw) if isinstance(raw, str) else float(raw)
    except InvalidInput as problem:
        raise SpecError(str(problem)) from None
    if not 1e8 <= value <= 1e13:
        raise SpecError(f"{name} = {raw!r} is outside 100 MB/s to 10 TB/s")
    return value


def default_node_id(gpu: GpuSpec) -> str:
    """What answers call the box that `default_node` makes; asked for by that name it is made again."""
    return f"8x-{gpu.id}"


def default_node(gpu: GpuSpec) -> NodeSpec:
    """A box for a GPU without a named one: up to 8 cards on their own link, else on PCIe."""
    if gpu.link_bytes_per_s is not None and gpu.link_kind is not None:
        peers = gpu.link_peers or 7
        topology = "bridge" if peers == 1 else "mesh" if gpu.vendor == "amd" else "switch"
        rate, kind = gpu.link_bytes_per_s, gpu.link_kind
        pair = rate / peers if topology == "mesh" else rate
    elif gpu.pcie_bytes_per_s is not None:
        topology, rate, kind = "pcie", gpu.pcie_bytes_per_s, f"pcie{gpu.pcie_generation}"
        pair = rate
    else:
        raise SpecError(f"{gpu.id} has neither a link nor PCIe: it stands alone, and no node can be made of it")
    source = Source("derived", f"no node named: up to 8 x {gpu.id} on {kind}")
    return NodeSpec(
        id=default_node_id(gpu), name=f"8 x {gpu.name}", gpu=gpu.id, num_gpus=8, topology=topology, link_kind=kind, link_bytes_per_s=rate,
        pair_bytes_per_s=pair, pcie_bytes_per_s=gpu.pcie_bytes_per_s, sources={"link_bytes_per_s": source},
    )  # fmt: skip
