"""What an architecture is, how its file is found, and how the fields that configs share are read.

Every file of this folder that defines ARCHITECTURE is one; nothing else has to change when one is added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from tilecast.dtypes import dtype
from tilecast.errors import InvalidInput, UnknownName, shown
from tilecast.workloads.blocks import decoder_step
from tilecast.workloads.model import GroupedAttention, Layer, Mlp, ModelConfig
from tilecast.workloads.operations import Operation
from tilecast.workloads.quantisation import read_precision

FOLDER = Path(__file__).parent
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
FAMILY = "LlamaForCausalLM"  # an example to give
MOST = 1 << 40
MOST_LAYERS = 10_000
# Fields that give away what a model does -> how we call it. What an architecture does not read, it must not be asked to guess.
TRAITS = {
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
    "latent attention": ("kv_lora_rank",),
    "sparse attention": ("index_topk", "sparse_attention_config", "compress_ratios"),
    "state-space or linear-attention layers": (
        "mamba_num_heads", "ssm_state_size", "linear_num_key_heads", "linear_attn_config", "hybrid_override_pattern", "state_size",
        "attention_hidden_size", "conv_L_cache",
    ),
    "layers that differ one by one": ("block_configs",),
    "an encoder beside the decoder": ("num_decoder_layers", "encoder_layers", "is_encoder_decoder"),
}  # fmt: skip
OWN_TRAITS = ("experts", "latent attention")  # that some architecture here has
NEAREST = {
    ("experts", "latent attention"): "deepseek", ("latent attention",): "deepseek", ("experts",): "qwen3_moe", (): "llama",
}  # fmt: skip
WITH_EXPERTS = ("glm4_moe", "gpt_oss", "llama4", "minimax_m2", "mixtral", "qwen2_moe", "qwen3_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model family: the `architectures` values it answers to, how to read its config, and what a step of it does on one GPU."""

    names: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], ModelConfig]
    step: Callable[..., tuple[Operation, ...]] = decoder_step  # (config, shard, stage=None)
    needs: tuple[str, ...] = ()  # fields that its models differ in and that no other field tells: null will do, silence will not


@cache
def architectures() -> dict[str, Architecture]:
    """The `architectures` value of a config.json -> its architecture."""
    modules = (import_module(f"tilecast.workloads.architectures.{path.stem}") for path in sorted(FOLDER.glob("*.py")))
    found = [module.ARCHITECTURE for module in modules if hasattr(module, "ARCHITECTURE")]
    return {name: entry for entry in found for name in entry.names}


def architecture(name: str) -> Architecture:
    if name not in architectures():
        raise UnknownName(f"unknown architecture {name!r} in architectures; known: {', '.join(sorted(architectures()))}")
    return architectures()[name]


def read_config(table: Mapping[str, Any], name: str) -> ModelConfig:
    """The model that a parsed config.json describes; every problem is one sentence naming the field."""
    try:
        given = family_names(table)
        known = next((entry for entry in given if entry in architectures()), None)
        if known is None:
            raise UnknownName(_unknown(given[0], table))
        missing = [field for field in architectures()[known].needs if field not in {**table, **_inner(table)}]
        if missing:
            raise InvalidInput(f"{missing[0]} is missing; {known} models differ in it")
        return architectures()[known].read(table, name)
    except InvalidInput as problem:
        raise type(problem)(f"{name}: {problem}") from None


def _unknown(name: str, table: Mapping[str, Any]) -> str:
    """Which parts of an unknown model its fields give away, which of them no architecture here has, and which family is nearest."""
    found = _traits(table)
    lacking = [trait for trait in found if trait not in OWN_TRAITS]
    nearest = nearest_family(name, table)
    kind = "an encoder" if nearest == "bert" else "a dense decoder"
    what = f"it has {' and '.join(found)}, " if found else f"it looks like {kind}, "
    why = f"of which {' and '.join(lacking)} cannot be modelled yet" if lacking else "but whether anything else differs is not known"
    more = f"{len(architectures())} architectures are, see docs/models.md"
    return f"architecture {name!r} is not known: {what}{why}; the nearest family is {nearest} ({more})"


def _traits(table: Mapping[str, Any]) -> list[str]:
    fields = {**table, **_inner(table)}
    return [trait for trait, names in TRAITS.items() if any(fields.get(field) not in (None, 0, False, []) for field in names)]


def nearest_family(name: str, table: Mapping[str, Any]) -> str:
    """The file of this folder that is likest to an architecture nobody knows."""
    return _nearest(name, [trait for trait in _traits(table) if trait in OWN_TRAITS])


def _nearest(name: str, has: Sequence[str]) -> str:
    """The family of such parts whose class names begin like this one; where none does, the plainest of them."""
    kin = {known: entry.read.__module__.rpartition(".")[2] for known, entry in architectures().items()}
    alike = {known: family for known, family in kin.items() if (family in WITH_EXPERTS) == ("experts" in has) and family != "deepseek"}
    in_common = {known: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(known, name, strict=False))) for known in alike}
    best = max(alike, key=lambda known: in_common[known])
    is_kin = "latent attention" not in has and in_common[best] >= 3
    return alike[best] if is_kin else NEAREST[tuple(has)]


# ---- reading a config --------------------------------------------------------------------------------------------


def family_names(table: Mapping[str, Any]) -> tuple[str, ...]:
    """The value of `architectures`: the classes that a checkpoint is made for, one as a rule."""
    given = table.get("architectures")
    if given is None or given in ([], ()):
        raise InvalidInput(f"architectures is missing; it names the model family, e.g. {FAMILY}")
    if not isinstance(given, list | tuple) or not all(isinstance(entry, str) for entry in given):
        raise InvalidInput(f"architectures = {shown(given)} must be a list of names, e.g. {[FAMILY]}")
    return tuple(given)


def size(table: Mapping[str, Any], field: str, default: int | None = None, *others: str) -> int:
    """A whole number of at least 1 that the config must hold under one of its names, unless there is a default."""
    field = next((name for name in (field, *others) if table.get(name) is not None), field)
    value = table.get(field)
    if value is None:
        if default is None:
            raise InvalidInput(f"{field} is missing")
        return default
    most = MOST_LAYERS if field in ("num_hidden_layers", "n_layer") else MOST
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        limits = f"of at least 1{f' and at most {most:,}' if isinstance(value, int) and value > most else ''}"
        raise InvalidInput(f"{field} = {shown(value)} must be a whole number {limits}")
    return value


def number(table: Mapping[str, Any], field: str, default: float) -> float:
    """A number that is not negative, such as a norm's epsilon."""
    value = table.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
        raise InvalidInput(f"{field} = {shown(value)} must be a number of at least 0")
    return float(value)


def flag(table: Mapping[str, Any], field: str, default: bool = False) -> bool:
    """True or false, and the default where the config leaves it out."""
    value = table.get(field)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{field} = {shown(value)} must be true or false")
    return default if value is None else value


def head_width(hidden: int, heads: int, *, called: tuple[str, str] = ("hidden_size", "num_attention_heads")) -> int:
    """Of heads that share the model's width, under the names that the config has for them."""
    if hidden % heads:
        raise InvalidInput(f"{called[0]} = {hidden} must be a multiple of {called[1]} = {heads}")
    return hidden // heads


def count(table: Mapping[str, Any], field: str) -> int:
    """A whole number that may be zero, and is where the config leaves it out."""
    return size(table, field) if table.get(field) else 0


def indices(table: Mapping[str, Any], field: str) -> tuple[int, ...]:
    """A list of whole numbers, such as layers or flags; empty where the config leaves it out."""
    given = table.get(field) or []
    if not isinstance(given, list | tuple) or not all(isinstance(entry, int) for entry in given):
        raise InvalidInput(f"{field} = {given!r} must be a list of whole numbers")
    return tuple(given)


def optional(table: Mapping[str, Any], field: str) -> int | None:
    return None if table.get(field) is None else size(table, field)


def text_part(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's fields of a config that also describes images or sound; what stands outside holds inside too."""
    inner = _inner(table)
    outside = {name: table[name] for name in ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings") if name in table}
    return {**outside, **{name: value for name, value in inner.items() if value is not None}} if inner else table


def _inner(table: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = table.get("text_config") or table.get("language_config") or {}
    return inner if isinstance(inner, Mapping) else {}


def text_notes(table: Mapping[str, Any]) -> tuple[str, ...]:
    """`multimodal` is the bundle's word for a config whose other parts were left out."""
    is_part = _inner(table) or table.get("multimodal")
    return ("only the language model is counted, not its image or sound encoder",) if is_part else ()


def number_format(table: Mapping[str, Any]) -> str:
    field = "torch_dtype" if table.get("torch_dtype") else "dtype"
    said = str(table.get(field) or "bfloat16")
    try:
        return dtype(DTYPES.get(said.removeprefix("torch."), said)).name
    except UnknownName as problem:
        raise InvalidInput(f"{field}: {problem}") from None


def attention_heads(table: Mapping[str, Any], **more: Any) -> GroupedAttention:
    """Grouped-query attention under its Hugging Face names."""
    hidden, heads = size(table, "hidden_size"), size(table, "num_attention_heads")
    if table.get("head_dim") is None and hidden % heads:
        raise InvalidInput(f"head_dim is missing, and hidden_size = {hidden} is no multiple of num_attention_heads = {heads}")
    kv_heads = size(table, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise InvalidInput(f"num_attention_heads = {heads} must be a multiple of num_key_value_heads = {kv_heads}")
    return GroupedAttention(num_heads=heads, num_kv_heads=kv_heads, head_dim=size(table, "head_dim", hidden // heads), **more)


def decoder(table: Mapping[str, Any], name: str, architecture: str, layers: Sequence[Layer], **more: Any) -> ModelConfig:
    """The fields that all decoders share, under their Hugging Face names."""
    precision, kv_dtype = read_precision(table, len(layers))
    same: dict[Layer, Layer] = {}
    shared: dict[str, Any] = {
        "tied_embeddings": flag(table, "tie_word_embeddings"),
        "max_context": size(table, "max_position_embeddings", 0) or None,
    }
    return ModelConfig(
        name=name,
        architecture=architecture,
        hidden_size=size(table, "hidden_size"),
        vocab_size=size(table, "vocab_size"),
        layers=tuple(same.setdefault(layer, layer) for layer in layers),
        dtype=number_format(table),
        precision=precision,
        kv_dtype=kv_dtype,
        **(shared | more),
    )


def dense(table: Mapping[str, Any], name: str, architecture: str, **attention: Any) -> ModelConfig:
    """A decoder whose layers are all alike, of Llama's shape."""
    layer = Layer(attention=attention_heads(table, **attention), mlp=Mlp(width=size(table, "intermediate_size")))
    return decoder(table, name, architecture, [layer] * size(table, "num_hidden_layers"))


def windows(table: Mapping[str, Any], num_layers: int, *, every: int | None = None) -> list[int | None]:
    """The sliding window of each layer, None where it sees everything: by `layer_types`, else full attention in each `every`th layer."""
    window = optional(table, "sliding_window")
    kinds = table.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list | tuple) or len(kinds) != num_layers:
            raise InvalidInput(f"layer_types must name {num_layers} layers, as num_hidden_layers says")
        return [window if kind == "sliding_attention" else None for kind in kinds]
    return [window if every is None or (index + 1) % every else None for index in range(num_layers)]


def refuse(table: Mapping[str, Any], architecture: str, *fields: str) -> None:
    """Fields that would change the work and are not modelled: said by name, never ignored."""
    for field in fields:
        if table.get(field):
            raise InvalidInput(f"{field} = {str(table[field]).lower()} is not supported for {architecture} yet")
