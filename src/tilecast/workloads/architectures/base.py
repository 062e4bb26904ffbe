"""What an architecture is, how its file is found, and what all dense decoders share.

Every file of this folder that defines ARCHITECTURE is one; nothing else has to change when one is added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tilecast.dtypes import dtype
from tilecast.errors import InvalidInput, UnknownName
from tilecast.workloads.model import ModelConfig
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard

FOLDER = Path(__file__).parent
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
MOST = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model family: the `architectures` values it answers to, how to read its config, and what a step of it does on one GPU."""

    names: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], ModelConfig]
    step: Callable[[ModelConfig, Shard], tuple[Operation, ...]]


@cache
def architectures() -> dict[str, Architecture]:
    """The `architectures` value of a config.json -> its architecture."""
    modules = (import_module(f"tilecast.workloads.architectures.{path.stem}") for path in sorted(FOLDER.glob("*.py")))
    found = [module.ARCHITECTURE for module in modules if hasattr(module, "ARCHITECTURE")]
    return {name: entry for entry in found for name in entry.names}


def architecture(name: str) -> Architecture:
    if name not in architectures():
        known = ", ".join(sorted(architectures()))
        raise UnknownName(f"unknown architecture {name!r} in architectures; known: {known}{_nearest(name)}")
    return architectures()[name]


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # only a mistake should cost its import

    near = get_close_matches(name, architectures(), n=1, cutoff=0.5)
    return f" (nearest: {near[0]})" if near else ""


def read_config(table: Mapping[str, Any], name: str) -> ModelConfig:
    """The model that a parsed config.json describes; every problem is one sentence naming the field."""
    given = table.get("architectures")
    if not isinstance(given, list | tuple) or not given or not all(isinstance(entry, str) for entry in given):
        raise InvalidInput(f"{name}: architectures is missing; it names the model family, e.g. {sorted(architectures())[0]}")
    known = next((entry for entry in given if entry in architectures()), given[0])
    try:
        if table.get("quantization_config"):
            raise InvalidInput("quantization_config: quantised weights are not supported yet")
        return architecture(known).read(table, name)
    except InvalidInput as problem:
        raise type(problem)(f"{name}: {problem}") from None


# ---- reading a config --------------------------------------------------------------------------------------------


def size(table: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A whole number of at least 1 that the config must hold, unless there is a default."""
    value = table.get(field)
    if value is None:
        if default is None:
            raise InvalidInput(f"{field} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidInput(f"{field} = {value!r} must be a whole number of at least 1")
    return value


def dense_config(table: Mapping[str, Any], name: str, *, architecture: str, qk_norm: bool = False, qkv_bias: bool = False) -> ModelConfig:
    """The fields that all decoders of Llama's shape share, under their Hugging Face names."""
    hidden, heads = size(table, "hidden_size"), size(table, "num_attention_heads")
    if table.get("head_dim") is None and hidden % heads:
        raise InvalidInput(f"head_dim is missing, and hidden_size = {hidden} is no multiple of num_attention_heads = {heads}")
    kv_heads = size(table, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise InvalidInput(f"num_attention_heads = {heads} must be a multiple of num_key_value_heads = {kv_heads}")
    if table.get("use_sliding_window"):
        raise InvalidInput("use_sliding_window = true is not supported yet")
    said = str(table.get("torch_dtype") or table.get("dtype") or "bfloat16")
    return ModelConfig(
        name=name,
        architecture=architecture,
        num_layers=size(table, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=size(table, "head_dim", hidden // heads),
        intermediate_size=size(table, "intermediate_size"),
        vocab_size=size(table, "vocab_size"),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        tied_embeddings=bool(table.get("tie_word_embeddings", False)),
        max_context=size(table, "max_position_embeddings", 0) or None,
        dtype=dtype(DTYPES.get(said.removeprefix("torch."), said)).name,
    )


# ---- what a dense decoder does -----------------------------------------------------------------------------------


def dense_step(config: ModelConfig, shard: Shard) -> tuple[Operation, ...]:
    """One forward pass of a pre-norm decoder with grouped-query attention and a gated MLP, on one GPU of the group."""
    hidden = config.hidden_size
    return (
        Operation(
            name="embedding", family="embedding", sizes={"cols": hidden, "vocab_size": shard.vocab_size},
            num_weights=shard.vocab_size * hidden,
        ),
        *reduced(shard, hidden, "embedding_all_reduce", 1),
        *attention_block(config, shard),
        *gated_mlp(config, shard),
        Operation(name="final_norm", family="rms_norm", sizes={"cols": hidden, "residual": True}, num_weights=hidden),
        *head(config, shard),
    )  # fmt: skip


def attention_block(config: ModelConfig, shard: Shard) -> tuple[Operation, ...]:
    hidden, dim, layers = config.hidden_size, config.head_dim, config.num_layers
    qkv = (shard.num_heads + 2 * shard.num_kv_heads) * dim
    norms: tuple[Operation, ...] = ()
    if config.qk_norm:
        norms = tuple(
            Operation(name=name, family="rms_norm", sizes={"cols": dim, "residual": False}, rows_each=heads, num_weights=dim, count=layers)
            for name, heads in (("q_norm", shard.num_heads), ("k_norm", shard.num_kv_heads))
        )
    heads = {"num_heads": shard.num_heads, "num_kv_heads": shard.num_kv_heads, "head_dim": dim}
    return (
        Operation(name="input_norm", family="rms_norm", sizes={"cols": hidden, "residual": True}, num_weights=hidden, count=layers),
        linear("qkv_proj", qkv, hidden, layers, bias=config.qkv_bias),
        *norms,
        Operation(name="rope", family="rope", sizes=heads, count=layers),
        Operation(
            name="kv_cache_write", family="kv_cache_write", sizes={"num_kv_heads": shard.num_kv_heads, "head_dim": dim}, count=layers
        ),
        Operation(name="attention", family="attention", sizes=heads, count=layers),
        linear("o_proj", hidden, shard.num_heads * dim, layers),
        *reduced(shard, hidden, "attention_all_reduce", layers),
    )


def gated_mlp(config: ModelConfig, shard: Shard) -> tuple[Operation, ...]:
    hidden, width, layers = config.hidden_size, shard.intermediate_size, config.num_layers
    return (
        Operation(
            name="post_attention_norm", family="rms_norm", sizes={"cols": hidden, "residual": True}, num_weights=hidden, count=layers
        ),
        linear("gate_up_proj", 2 * width, hidden, layers),
        Operation(name="silu_mul", family="silu_mul", sizes={"cols": width}, count=layers),
        linear("down_proj", hidden, width, layers),
        *reduced(shard, hidden, "mlp_all_reduce", layers),
    )


def head(config: ModelConfig, shard: Shard) -> tuple[Operation, ...]:
    """The head over this GPU's part of the vocabulary, the whole rows of logits gathered, and one token drawn from each."""
    own = 0 if config.tied_embeddings else None
    gathered = (
        (Operation(name="logits_all_gather", family="all_gather", sizes={"cols": shard.vocab_size * shard.tp}, per="request"),)
        if shard.tp > 1
        else ()
    )
    return (
        linear("lm_head", shard.vocab_size, config.hidden_size, 1, per="request", num_weights=own),
        *gathered,
        Operation(name="sampling", family="sampling", sizes={"cols": config.vocab_size}, per="request"),
    )


def linear(name: str, n: int, k: int, count: int, *, bias: bool = False, per: str = "token", num_weights: int | None = None) -> Operation:
    held = n * k + (n if bias else 0) if num_weights is None else num_weights
    return Operation(name=name, family="gemm", sizes={"n": n, "k": k, "bias": bias}, per=per, num_weights=held, count=count)


def reduced(shard: Shard, cols: int, name: str, count: int) -> tuple[Operation, ...]:
    """The sum over the group after a row-parallel product; nothing on a single GPU."""
    return (Operation(name=name, family="all_reduce", sizes={"cols": cols}, count=count),) if shard.tp > 1 else ()
