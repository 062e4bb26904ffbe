"""Engine: which kernel does each operation, and what the host adds. Every file of this folder that defines ENGINE is one."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.dtypes import dtype
from tilecast.errors import InvalidInput, UnknownName
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.registry import kernel
from tilecast.workloads.graph import KernelCall, Step, Tokens
from tilecast.workloads.model import ModelConfig
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard

FOLDER = Path(__file__).parent
PLANNED = ("vllm", "trtllm")
ROWS = {"gemm": "m"}  # the parameter that counts rows, where it is not called `rows`
COLLECTIVES = ("all_reduce", "all_gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an engine's host costs; <engine>.toml says what each one is and where it comes from."""

    decode_step_s: float
    decode_layer_s: float
    prefill_step_s: float
    prefill_layer_s: float
    spread_fraction: float
    reserved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine runs a model: its choices are functions of the GPU, the box and the sizes, so that a new GPU needs no table."""

    name: str
    attention: Callable[[GpuSpec, str], str | None]  # (GPU, phase) -> identity of the attention kernel
    all_reduce: Callable[[NodeSpec, int, float], str]  # (box, GPUs, bytes) -> identity
    cache: Mapping[str, str]  # kernel family -> what L2 holds of its operands; warm where not named

    @property
    def host(self) -> Host:
        return _host(self.name)


@cache
def _host(name: str) -> Host:
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    assert {entry.name for entry in fields(Host)} == set(table), f"{name}.toml and Host disagree"
    return Host(**{key: float(entry["value"]) for key, entry in table.items()})


@cache
def engines() -> dict[str, Engine]:
    modules = (import_module(f"tilecast.engines.{path.stem}") for path in sorted(FOLDER.glob("*.py")) if path.with_suffix(".toml").exists())
    return {module.ENGINE.name: module.ENGINE for module in modules}


def engine(name: str) -> Engine:
    if name in engines():
        return engines()[name]
    if name in PLANNED:
        raise InvalidInput(f"engine {name} is not supported yet; known: {', '.join(engines())}")
    raise UnknownName.among("engine", name, [*engines(), *PLANNED])


# ---- from operations to kernels ----------------------------------------------------------------------------------


def kernel_step(
    operations: Iterable[Operation], tokens: Tokens, *, config: ModelConfig, shard: Shard, engine: Engine, gpu: GpuSpec, kv_dtype: str
) -> Step:
    """The kernels that do `operations` on `tokens`, in the order in which they run."""
    rows = {"token": tokens.num_tokens, "request": tokens.num_requests}
    calls = []
    for operation in operations:
        family, parameters = operation.family, dict[str, Any](operation.sizes)
        count = rows[operation.per] * operation.rows_each
        if family == "attention":
            family = f"attention_{tokens.phase}"
            parameters |= _lengths(tokens) | {"identity": engine.attention(gpu, tokens.phase), "kv_dtype": kv_dtype}
        elif family in COLLECTIVES:
            parameters = _message(parameters, count, config, shard)
            if family == "all_reduce" and shard.node is not None:
                parameters["identity"] = engine.all_reduce(shard.node, shard.tp, float(np.max(parameters["bytes"])))
        else:
            parameters[ROWS.get(family, "rows")] = _plain(count)
        built = kernel(family)(dtype=config.dtype, **parameters)
        calls.append(KernelCall(operation.name, tokens.phase, built, operation.count, engine.cache.get(family, "warm")))
    return Step(tokens.phase, tuple(calls), len(tokens.q_lens))


def _lengths(tokens: Tokens) -> dict[str, Any]:
    """Lengths of an attention launch: a few numbers when all requests are equal, else a list for each step."""
    if tokens.is_uniform:
        q_len, kv_len = (np.array([int(lengths[0]) for lengths in each]) for each in (tokens.q_lens, tokens.kv_lens))
        return {"batch": _plain(tokens.num_requests), "q_len": _plain(q_len), "kv_len": _plain(kv_len)}
    return {"q_lens": tokens.q_lens, "kv_lens": tokens.kv_lens}


def _message(sizes: dict[str, Any], rows: np.ndarray, config: ModelConfig, shard: Shard) -> dict[str, Any]:
    return {"bytes": _plain(rows * round(sizes["cols"] * dtype(config.dtype).bytes)), "num_gpus": shard.tp, "node": shard.node}


def _plain(values: np.ndarray) -> Any:
    """One number where all steps have the same."""
    return int(values[0]) if (values == values[0]).all() else values
