"""The catalogue is the folder: one TOML per GPU in `gpus/`, one per node in `nodes/`. Names resolve here."""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tilecast.errors import InvalidInput, MissingData, SpecError, UnknownName
from tilecast.hardware.node_spec import NodeSpec, node_from
from tilecast.hardware.spec import GpuSpec, spec_from, with_overrides

Spec = TypeVar("Spec")

GPU_FOLDER = Path(__file__).parent / "gpus"
NODE_FOLDER = Path(__file__).parent / "nodes"
VENDOR_WORDS = ("nvidia", "amd", "intel", "tesla", "geforce", "instinct", "quadro", "data center gpu")


def gpu_ids() -> tuple[str, ...]:
    return _ids(GPU_FOLDER)


def node_ids() -> tuple[str, ...]:
    return _ids(NODE_FOLDER)


def gpus() -> Iterator[GpuSpec]:
    """Every GPU of the catalogue, in the order of their ids."""
    return map(_catalogued, gpu_ids())


def gpu(name: str | Path | GpuSpec, overrides: Mapping[str, object] | None = None) -> GpuSpec:
    """The GPU called `name`: an id, the vendor's device string, an alias in any case and spacing, or the path of a TOML file; or itself.

    >>> gpu("NVIDIA H100 80GB HBM3").id
    'h100-sxm'
    >>> gpu("h100-sxm", {"num_sms": 144}).tensor_flop_per_s["bf16"] / gpu("h100-sxm").tensor_flop_per_s["bf16"] * 132
    144.0
    """
    if not isinstance(name, str | Path | GpuSpec):
        raise InvalidInput(f"gpu = {name!r} must be the name of a GPU such as 'h100-sxm', the path of a TOML file, or a GpuSpec")
    spec = name if isinstance(name, GpuSpec) else _resolve(str(name))[0]
    return spec if overrides is None else with_overrides(spec, overrides)


def as_catalogued(spec: GpuSpec) -> GpuSpec:
    """The part of the catalogue that a what-if changed, with --set or in a file of its own, or the part itself."""
    origin = spec.base or (spec.id if spec.overrides else "")
    return gpu(origin) if origin and origin in gpu_ids() else spec


def in_long_runs(spec: GpuSpec) -> GpuSpec:
    """The part as it runs for seconds on end: held to the power it was measured to keep up, where that is less than its limit."""
    return spec if spec.sustained_w is None else with_overrides(spec, {"tdp_w": spec.sustained_w})


def power_note(spec: GpuSpec) -> str | None:
    """What to tell the user of a part that `in_long_runs` holds to less than its power limit; None where it does not."""
    usual = as_catalogued(spec)
    if usual.sustained_w is None or spec.tdp_w != usual.sustained_w:
        return None
    return (
        f"{spec.id} is priced at the {usual.sustained_w:g} W that it was measured to keep up, not its limit of {usual.tdp_w:g} W; "
        f"sustained_w={usual.tdp_w:g} prices one that stays cool"
    )


def resolution_note(name: str) -> str | None:
    """What to tell the user when a short name such as "H100" stands for several parts; None when the name is exact."""
    spec, is_bare = _resolve(name)
    return f"{name} taken to be {spec.id} ({spec.name}); other parts have their own ids" if is_bare else None


def foreign_note(node: NodeSpec, gpu: GpuSpec) -> str | None:
    """What to tell the user when GPUs are put into another GPU's box; None when it is theirs."""
    return None if node.gpu == gpu.id else f"{node.id} holds {node.gpu}, not {gpu.id}: only its links are used"


def node(name: str) -> NodeSpec:
    """The node called `name`: an id, or the path of a TOML file."""
    if not isinstance(name, str):
        raise InvalidInput(f"node = {name!r} must be the name of a node such as 'dgx-h100', or the path of a TOML file")
    if name.endswith(".toml"):
        return _from_file(Path(name), node_from)
    folded = name.strip().lower().replace("_", "-").replace(" ", "-")
    if folded not in node_ids():
        raise UnknownName.among("node", name, node_ids())
    return _from_file(NODE_FOLDER / f"{folded.replace('-', '_')}.toml", node_from)


def nodes() -> Iterator[NodeSpec]:
    """Every box and rack of the catalogue, in the order of their ids."""
    return map(node, node_ids())


@cache
def catalogue_hash() -> str:
    """Eight hex digits that change when any catalogued fact does; printed with every output."""
    digest = hashlib.sha256()
    for folder in (GPU_FOLDER, NODE_FOLDER):
        for path in sorted(folder.glob("*.toml")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:8]


def normalised(name: str) -> str:
    """A name without case, spaces, dashes and vendor words: 'NVIDIA A100-SXM4-80GB' is 'a100sxm480gb'."""
    folded = name.lower().replace("_", " ")
    for word in VENDOR_WORDS:
        folded = re.sub(rf"\b{word}\b", " ", folded)
    return re.sub(r"[^a-z0-9]", "", folded)


@cache
def _ids(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem.replace("_", "-") for path in folder.glob("*.toml")))


def _resolve(name: str) -> tuple[GpuSpec, bool]:
    """The spec, and whether the name was a bare one."""
    return (_from_file(Path(name), _gpu_from), False) if name.endswith(".toml") else _named(name)


@cache
def _named(name: str) -> tuple[GpuSpec, bool]:
    id = re.sub(r"[\s_]+", "-", name.strip().lower())
    if id in gpu_ids():
        return _catalogued(id), False
    key = normalised(name)
    if key in (found := _names()):
        return _catalogued(found[key][0]), found[key][1]
    raise UnknownName.among("GPU", name, gpu_ids())


@cache
def _names() -> dict[str, tuple[str, bool]]:
    """Every name that is not an id, normalised -> (id, is a bare name). Two GPUs may not share one."""
    table: dict[str, tuple[str, bool]] = {}
    for spec in gpus():
        for name, is_bare in (
            *((name, False) for name in (spec.id, spec.name, spec.device_string, *spec.aliases)),
            *((name, True) for name in spec.bare_names),
        ):
            owner, _ = table.setdefault(normalised(name), (spec.id, is_bare))
            if owner != spec.id:
                raise SpecError(f"the name {name!r} is claimed by both {owner} and {spec.id}")
    return table


@cache
def _catalogued(id: str) -> GpuSpec:
    return _from_file(GPU_FOLDER / f"{id.replace('-', '_')}.toml", spec_from)


def _gpu_from(id: str, table: Mapping[str, Any]) -> GpuSpec:
    """A user's own file may start from a catalogued GPU with `base = "h100-sxm"` and state only what differs."""
    if "base" not in table:
        return spec_from(id, table)
    changes: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            changes |= {f"{key}.{dtype}": rate for dtype, rate in value.items()}
        elif key not in ("base", "name"):
            changes[key] = value
    base = gpu(str(table["base"]), changes)
    return replace(base, id=id, name=str(table.get("name", f"{base.name}, changed")), base=base.base or base.id)


def _from_file(path: Path, build: Callable[[str, Mapping[str, Any]], Spec]) -> Spec:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise MissingData(f"cannot read {path}: {problem}") from None
    except tomllib.TOMLDecodeError as problem:
        raise SpecError(f"{path} is not valid TOML: {problem}") from None
    try:
        return build(path.stem.replace("_", "-"), table)
    except SpecError as problem:
        raise SpecError(f"{path.name}: {problem}") from None
