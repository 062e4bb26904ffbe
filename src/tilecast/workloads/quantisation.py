"""How a checkpoint is quantised: from the quantization_config of its config.json, or from the name a user gives.

Embedding, head, router and norms stay in the model's own dtype, as every engine keeps them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from tilecast.errors import InvalidInput, UnknownName, shown
from tilecast.workloads.model import ModelConfig, Precision

# What a user may ask for -> the quantisation of linear layers and experts; None: the model's own dtype, which is then the one named.
NAMES = {
    "bf16": None, "fp16": None, "fp8": "fp8", "fp8_block": "fp8_block", "int8": "int8", "int4": "int4_wo", "nvfp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
}  # fmt: skip
BLOCK = [128, 128]  # weights that share a scale, in all measurements and kernels that we know
# A module of each kind of weight in a middle layer, under the names checkpoints use.
MODULES = {
    "qkv": ("self_attn.q_proj", "self_attn.qkv_proj", "self_attn.q_b_proj"),
    "o": ("self_attn.o_proj",),
    "mlp": ("mlp.gate_proj", "mlp.gate_up_proj", "mlp.down_proj"),
    "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "mlp.experts"),
    "shared": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "mlp.shared_experts"),
}


def asked_precision(name: str) -> Precision:
    """All linear layers and experts in the format a user named."""
    if name not in NAMES:
        raise UnknownName.among("quant", name, NAMES)
    held = NAMES[name]
    return Precision(qkv=held, o=held, mlp=held, experts=held, shared=held)


def requantised(config: ModelConfig, quant: str | None) -> ModelConfig:
    if quant is None:
        return config
    precision = asked_precision(quant)
    return replace(config, precision=precision, dtype=config.dtype if NAMES[quant] else quant)


def served(config: ModelConfig, formats: Iterable[str]) -> ModelConfig:
    """As engines load it on a GPU that computes in `formats`: a checkpoint in 32 bits is cast to 16, whatever its config.json says."""
    if config.dtype != "fp32":
        return config
    dtype = "bf16" if "bf16" in formats else "fp16"
    return replace(config, dtype=dtype, notes=(*config.notes, f"the checkpoint is in fp32; engines cast it to {dtype}, as is predicted"))


def read_precision(table: Mapping[str, Any], num_layers: int) -> tuple[Precision, str | None]:
    """Precision and the KV cache's dtype from a config's quantization_config; nothing there: the model's own dtype."""
    given = table.get("quantization_config")
    if not given:
        return Precision(), None
    if not isinstance(given, Mapping):
        raise InvalidInput(f"quantization_config = {given!r} must be a table")
    if "formats" in given:  # our own short form, in the bundle
        return Precision(**given["formats"]), given.get("kv_dtype")
    held = _held(str(given.get("quant_method") or "modelopt").lower(), given)
    ignored = [*_names(given, "modules_to_not_convert"), *_names(given, "ignore"), *_names(given, "exclude_modules")]
    kept = {kind: _is_ignored(modules, ignored, num_layers) for kind, modules in MODULES.items()}
    return Precision(**{kind: None if kept[kind] else held for kind in MODULES}), _kv_dtype(given)


def _names(given: Mapping[str, Any], field: str) -> Sequence[str]:
    names = given.get(field) or ()
    return [str(name) for name in names] if isinstance(names, Iterable) and not isinstance(names, str) else [str(names)]


def _held(method: str, given: Mapping[str, Any]) -> str:
    """The name in dtypes.QUANTISATIONS of what `quant_method` says."""
    if method == "fp8":
        if given.get("weight_block_size"):
            return _in_blocks("weight_block_size", given["weight_block_size"])
        return "fp8_static" if given.get("activation_scheme") == "static" else "fp8"
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round"):
        bits = given.get("bits") or given.get("w_bit") or 4
        if bits not in (4, 8):
            raise InvalidInput(f"quantization_config: {method} with {bits!r} bits is not supported; 4 and 8 are")
        return "int4_wo" if bits == 4 else "int8_wo"
    if method == "mxfp4":
        return "w4a16_mxfp4"
    if method == "compressed-tensors":
        return _compressed(given)
    algorithm = str(given.get("quant_algo") or method).upper()
    known = {"FP8": "fp8_static", "NVFP4": "nvfp4", "W4A16_AWQ": "int4_wo", "W8A8_SQ": "int8", "FP8_PB_WO": "fp8_block"}
    if algorithm in known:
        return known[algorithm]
    if algorithm == "MIXED_PRECISION":
        said = "quantization_config: quant_algo = MIXED_PRECISION (a format for every layer) is not supported"
        raise InvalidInput(f"{said}; take quantization_config out and pass --quant")
    raise InvalidInput(
        f"quantization_config: quant_method = {method!r} is not supported; known: fp8, compressed-tensors, awq, gptq, modelopt, mxfp4"
    )


def _table(given: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A table inside another; empty where it is left out."""
    inner = given.get(field) or {}
    if not isinstance(inner, Mapping):
        raise InvalidInput(f"quantization_config: {field} = {inner!r} must be a table")
    return inner


def _in_blocks(field: str, size: Any) -> str:
    if size not in (BLOCK, tuple(BLOCK), "128x128"):
        raise InvalidInput(f"quantization_config: {field} = {shown(size)} is not supported; {BLOCK} is")
    return "fp8_block"


def _compressed(given: Mapping[str, Any]) -> str:
    groups = _table(given, "config_groups")
    group = _table(groups, next(iter(groups))) if groups else {}
    weights, activations = _table(group, "weights"), _table(group, "input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    if bits == 4:
        return "nvfp4" if kind == "float" and activations else "int4_wo"
    if bits == 8 and kind == "float":
        if weights.get("strategy") == "block":
            return _in_blocks("block_structure", weights.get("block_structure") or BLOCK)
        return "fp8" if activations.get("dynamic", True) else "fp8_static"
    if bits == 8:
        return "int8" if activations else "int8_wo"
    raise InvalidInput(f"quantization_config: compressed-tensors with num_bits = {bits!r} is not supported; 4 and 8 are")


def _is_ignored(modules: Sequence[str], patterns: Sequence[str], num_layers: int) -> bool:
    paths = [f"model.layers.{num_layers // 2}.{module}" for module in modules]
    return any(_matches(pattern, path) for pattern in patterns for path in paths)


def _matches(pattern: str, path: str) -> bool:
    """A regular expression behind `re:`, a shell pattern, or a module's path; each may also name what contains the module."""
    path = path.removeprefix("model.")
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], f"model.{path}") is not None
        except re.error as problem:
            raise InvalidInput(f"quantization_config: {pattern!r} is no regular expression: {problem}") from None
    pattern = re.sub(r"^(model\.language_model\.|language_model\.model\.|language_model\.|model\.)", "", pattern)
    if "*" in pattern:
        return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")
    return path == pattern or path.startswith(f"{pattern}.") or pattern in path.split(".")


def _kv_dtype(given: Mapping[str, Any]) -> str | None:
    scheme = given.get("kv_cache_scheme")
    says_fp8 = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    return "fp8" if says_fp8 or str(given.get("kv_cache_quant_algo")).upper() == "FP8" else None
