"""ModelConfig: what a transformer is made of, read from a Hugging Face config.json or from the bundled facts in `models/`.

A bundled entry holds a model's few facts under the names config.json uses, so both are read by the same architecture.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilecast.errors import InvalidInput, MissingData, UnknownName, shown

FOLDER = Path(__file__).with_name("models")
BUNDLE = "bundled.json"
CONFIG, QUANTISATION = "config.json", "hf_quant_config.json"  # of a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Query heads that share key and value heads, in groups; one group per head is plain multi-head attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None  # keys a query sees at most; None: all
    qk_norm: str | None = None  # "head": every head by itself; "layer": all heads of a token together
    qk_norm_weights: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    rope: bool = True
    scales_queries: bool = False  # by a temperature that grows with the position
    sinks: bool = False  # a learned score per head that no key has
    causal: bool = True

    @property
    def cached_elements(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values are expanded from one short latent, which is all that the cache holds (MLA)."""

    num_heads: int
    q_lora_rank: int | None  # None: queries are projected at once
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    window: int | None = None

    @property
    def cached_elements(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    width: int
    gated: bool = True  # gate and up side by side; else one product and an activation
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts, with or without one that every token visits."""

    num_experts: int
    topk: int
    width: int  # of one expert
    shared_width: int = 0  # of all shared experts together
    shared_gate: bool = False
    bias: bool = False  # on the experts and the router
    correction_bias: bool = False  # one number per expert that only the choice looks at

    def __post_init__(self) -> None:
        if self.topk > self.num_experts:
            raise InvalidInput(f"num_experts_per_tok = {self.topk} exceeds the number of experts, {self.num_experts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    attention: GroupedAttention | LatentAttention
    mlp: Mlp | Experts
    sandwich: bool = False  # norms behind attention and MLP too, before their sum with the residual


def counted(layers: Iterable[Layer]) -> list[tuple[Layer, int]]:
    """Each kind of layer once, with how many of it there are, in the order they first run."""
    found: dict[int, tuple[Layer, int]] = {}  # by identity: readers make one object of equal layers, and hashing them all costs more
    for layer in layers:
        found[id(layer)] = (layer, found[id(layer)][1] + 1 if id(layer) in found else 1)
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The quantisation of each kind of weight, by its name in dtypes.QUANTISATIONS; None: the model's own dtype."""

    qkv: str | None = None
    o: str | None = None
    mlp: str | None = None
    experts: str | None = None
    shared: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        held = (self.qkv, self.o, self.mlp, self.experts, self.shared)
        return tuple(dict.fromkeys(name for name in held if name is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A transformer. Sizes are those of the whole model, before anything is shared out between GPUs."""

    name: str
    architecture: str  # the entry of `architectures`
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]  # in the order they run
    norm: str = "rms_norm"  # or layer_norm
    num_positions: int = 0  # rows of a learned table of positions
    num_types: int = 0  # rows of a table of token types
    embedding_width: int | None = None  # None: hidden_size
    scales_embedding: bool = False
    soft_cap: bool = False  # on the logits
    tied_embeddings: bool = False
    is_encoder: bool = False  # reads a text once, says nothing
    max_context: int | None = None  # None: the file does not say
    dtype: str = "bf16"
    precision: Precision = Precision()
    kv_dtype: str | None = None  # None: dtype
    notes: tuple[str, ...] = ()  # what of the file is not modelled and costs little

    def __hash__(self) -> int:
        """Enough to tell models apart in a cache; to hash every layer costs more than most that is cached."""
        return hash((self.name, self.hidden_size, len(self.layers), self.precision))

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model, the embedding and the head included."""
        from tilecast.workloads.architectures import architecture
        from tilecast.workloads.parallelism import Shard

        operations = architecture(self.architecture).step(self, Shard())
        return sum(operation.num_weights * operation.count for operation in operations)

    @property
    def kv_elements_per_token(self) -> int:
        """What the cache holds of one token, all layers and heads."""
        return sum(layer.attention.cached_elements for layer in self.layers)


@cache
def model_ids() -> tuple[str, ...]:
    """The Hugging Face ids of the bundled models that an architecture here reads."""
    from tilecast.workloads.architectures import architectures

    known = architectures()
    return tuple(sorted(id for id, table in _bundled().items() if any(name in known for name in table["architectures"])))


@cache
def _generated() -> dict[str, Mapping[str, Any]]:
    """Id -> its facts, as `python -m benchmarks.bundle_models` wrote them."""
    table: dict[str, Mapping[str, Any]] = json.loads((FOLDER / BUNDLE).read_text(encoding="utf-8"))
    return table


@cache
def _bundled() -> dict[str, Mapping[str, Any]]:
    """The generated ones, and a file for each model added by hand: `Qwen--Qwen3-32B.toml` is Qwen/Qwen3-32B."""
    by_hand = {path.stem.replace("--", "/", 1): tomllib.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.toml")}
    return _generated() | by_hand


def model_config(model: str | Path | Mapping[str, Any] | ModelConfig) -> ModelConfig:
    """A model from a bundled Hugging Face id, a config.json, its folder, or the parsed table itself.

    >>> model_config("Qwen/Qwen3-32B").num_layers
    64
    """
    from tilecast.workloads.architectures import read_config

    if isinstance(model, ModelConfig):
        return model
    if isinstance(model, Mapping):
        return read_config(model, str(model.get("_name_or_path") or "config"))
    if not isinstance(model, str | Path) or not str(model).strip():
        allowed = "a bundled Hugging Face id such as 'Qwen/Qwen3-32B', a config.json, its folder, or its table"
        raise InvalidInput(f"model = {model!r} must be {allowed}")
    return _bundled_config(str(model)) or read_config(_table(Path(model)), str(model))


@cache
def _bundled_config(name: str) -> ModelConfig | None:
    from tilecast.workloads.architectures import read_config

    if (found := _exact(name)) is not None:
        return read_config(found, name)
    id = _bundled_id(name)
    return read_config(_bundled()[id], id) if id is not None else None


def config_table(model: str) -> Mapping[str, Any]:
    """The facts behind a bundled id, or the parsed config.json of a file or folder."""
    if (found := _exact(model)) is not None:
        return found
    id = _bundled_id(model)
    return _bundled()[id] if id is not None else _table(Path(model))


def _exact(id: str) -> Mapping[str, Any] | None:
    """A bundled model by its very id, without reading all the others."""
    file = FOLDER / f"{id.replace('/', '--', 1)}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if id.count("/") == 1 and file.is_file() else _generated().get(id)


def _bundled_id(name: str) -> str | None:
    """The bundled id meant by `name`: itself or one with the same facts; case, and the organisation, may be left out."""
    folded = name.strip().lower()
    return next((id for id, names in _names().items() if folded in names), None)


@cache
def _names() -> dict[str, frozenset[str]]:
    """Id -> every name it answers to, in lower case."""
    every = {id: [name.lower() for name in (id, *table.get("also", []))] for id, table in sorted(_bundled().items())}
    return {id: frozenset([*names, *(name.rpartition("/")[2] for name in names)]) for id, names in every.items()}


def _table(path: Path) -> Mapping[str, Any]:
    try:
        file = path / CONFIG if path.is_dir() else path
        exists = file.exists()
    except OSError as problem:  # a name too long, a folder that is not ours
        raise InvalidInput(f"cannot read the model {shown(str(path))}: {(problem.strerror or str(problem)).lower()}") from None
    if not exists:
        if path.suffix == ".json":
            raise MissingData(f"no file {file}")
        if path.is_dir():
            raise MissingData(f"{path} holds no config.json")
        raise UnknownName.among("model", str(path), model_ids())
    table = _parsed(file)
    beside = next((other for other in _of_quantisation(file) if other.is_file()), None)
    if beside is None or table.get("quantization_config"):
        return table
    said = _parsed(beside).get("quantization") or {}
    if not isinstance(said, Mapping):
        raise InvalidInput(f"{beside}: quantization = {shown(said)} must be a table")
    return {**table, "quantization_config": {"quant_method": "modelopt", **said}}


def _of_quantisation(file: Path) -> list[Path]:
    """Where some checkpoints say how they are quantised: beside X_config.json in X_hf_quant_config.json, if many lie in one folder."""
    own = [file.with_name(f"{file.name.removesuffix(CONFIG)}{QUANTISATION}")] if file.name.endswith(CONFIG) else []
    return [*own, file.with_name(QUANTISATION)]


def _parsed(file: Path) -> Mapping[str, Any]:
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise MissingData(f"cannot read {file}: {problem}") from None
    except (json.JSONDecodeError, RecursionError) as problem:
        raise InvalidInput(f"{file} is not valid JSON: {problem}") from None
    if not isinstance(table, dict):
        raise InvalidInput(f"{file} must hold a JSON object, as a config.json does")
    return table
