"""ModelConfig: what a transformer is made of, read from a Hugging Face config.json or from the bundled facts in `models/`.

A bundled file holds a model's few facts under the names config.json uses, so both are read by the same architecture.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilecast.errors import InvalidInput, MissingData, UnknownName

FOLDER = Path(__file__).with_name("models")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A dense decoder. Sizes are those of the whole model, before anything is shared out between GPUs."""

    name: str
    architecture: str  # the entry of `architectures`
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    qk_norm: bool = False
    qkv_bias: bool = False
    tied_embeddings: bool = False
    max_context: int | None = None  # None: the file does not say
    dtype: str = "bf16"

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model, the embedding and the head included."""
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        attention = self.hidden_size * (qkv + self.num_heads * self.head_dim) + (qkv if self.qkv_bias else 0)
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + norms
        tables = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + tables + self.hidden_size

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of one token, all layers and heads."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@cache
def model_ids() -> tuple[str, ...]:
    """The Hugging Face ids of the bundled models."""
    return tuple(sorted(_bundled()))


@cache
def _bundled() -> dict[str, Path]:
    """Id -> its file: `Qwen--Qwen3-32B.toml` is Qwen/Qwen3-32B."""
    return {path.stem.replace("--", "/", 1): path for path in FOLDER.glob("*.toml")}


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
    id = _bundled_id(str(model))
    if id is not None:
        return read_config(tomllib.loads(_bundled()[id].read_text(encoding="utf-8")), id)
    return read_config(_table(Path(model)), str(model))


def _bundled_id(name: str) -> str | None:
    """The bundled id meant by `name`: itself or one with the same facts; case, and the organisation, may be left out."""
    if name in _bundled():
        return name
    folded = name.strip().lower()
    return next((id for id, names in _names().items() if folded in names), None)


@cache
def _names() -> dict[str, frozenset[str]]:
    """Id -> every name it answers to, in lower case."""
    also = {id: tomllib.loads(path.read_text(encoding="utf-8")).get("also", []) for id, path in sorted(_bundled().items())}
    every = {id: [name.lower() for name in (id, *others)] for id, others in also.items()}
    return {id: frozenset([*names, *(name.partition("/")[2] for name in names)]) for id, names in every.items()}


def _table(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        if path.suffix == ".json":
            raise MissingData(f"no file {file}")
        if path.is_dir():
            raise MissingData(f"{path} holds no config.json")
        raise UnknownName.among("model", str(path), model_ids())
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise MissingData(f"cannot read {file}: {problem}") from None
    except json.JSONDecodeError as problem:
        raise InvalidInput(f"{file} is not valid JSON: {problem}") from None
    if not isinstance(table, dict):
        raise InvalidInput(f"{file} must hold a JSON object, as a config.json does")
    return table
