"""Engine: which kernel does each operation, and what the host adds. Every file of this folder that defines ENGINE is one."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilecast.dtypes import dtype
from tilecast.errors import InvalidInput, UnknownName
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.registry import kernel
from tilecast.workloads.graph import Batch, KernelCall, Step, Tokens
from tilecast.workloads.model import Experts, ModelConfig
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard

FOLDER = Path(__file__).parent
PLANNED = ("vllm", "trtllm")
ROWS = {"gemm": "m", "moe": "num_tokens"}  # the parameter that counts rows, where it is not called `rows`
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an engine's host costs; <engine>.toml says what each one is and where it comes from."""

    decode_step_s: float
    decode_layer_s: float
    prefill_step_s: float
    prefill_layer_s: float
    spread_fraction: float
    reserved_bytes: float


class Quantiser(NamedTuple):
    """The kernel that narrows activations before a product."""

    op: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine runs a model: its choices are functions of the GPU, the box and the sizes, so that a new GPU needs no table."""

    name: str
    attention: Callable[[GpuSpec, str, bool], str | None]  # (GPU, phase, has sinks) -> identity of the attention kernel
    latent_attention: Callable[[GpuSpec, str], str | None]
    all_reduce: Callable[[NodeSpec, int, float], str]  # (box, GPUs, bytes) -> identity
    expert_format: Callable[[GpuSpec, str], str]  # (GPU, quantisation of the weights) -> that of the product
    cache: Mapping[str, str]  # kernel family -> what L2 holds of its operands; warm where not named
    quantisers: Mapping[str, Quantiser]  # quantisation -> what makes its activations

    @property
    def host(self) -> Host:
        return _host(self.name)

    def fact(self, name: str) -> Any:
        """What <engine>.toml says of it under `facts`, with its source and why."""
        return _facts(self.name)[name]["value"]

    def drops_keys_outside_window(self, config: ModelConfig) -> bool:
        return config.architecture in self.fact("drops_keys_outside_window")

    def num_micro_batches(self, batch: Batch, shard: Shard) -> int:
        most = max(1, self.fact("most_running_requests") // shard.pp)
        return 1 if shard.pp == 1 else min(shard.pp, -(-batch.num_requests // most))

    def fuses_norm(self, config: ModelConfig, shard: Shard, gpu: GpuSpec, num_tokens: int) -> bool:
        return (
            config.architecture in self.fact("fuses_norm_into_all_reduce")
            and shard.tp > 1
            and shard.dp == 1
            and shard.hops_between_nodes == 0
            and gpu.target in ("sm_90", "sm_100", "sm_103")
            and gpu.id != "h20"
            and num_tokens <= self.fact("most_tokens_of_fused_norm")
        )

    def fuses_shared_expert(self, config: ModelConfig, shard: Shard) -> bool:
        mlp = config.layers[-1].mlp
        return (
            config.architecture in self.fact("fuses_shared_experts")
            and isinstance(mlp, Experts)
            and mlp.shared_width == mlp.width
            and (mlp.num_experts == 256 or not config.architecture.startswith("Deepseek"))
            and shard.ep == 1
            and config.precision.shared == config.precision.experts
        )


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = _table(name)["facts"]
    return facts


@cache
def _host(name: str) -> Host:
    table = {key: entry for key, entry in _table(name).items() if key != "facts"}
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
    rows = tokens.rows
    fused = set()
    if engine.fuses_norm(config, shard, gpu, int(tokens.num_tokens.max())):
        fused.add("norm_after_reduce")
    if engine.fuses_shared_expert(config, shard):
        fused.add("shared_expert")
    calls = []

    beside = engine.fact("runs_beside_in_decode") if tokens.phase == "decode" else {}

    def launch(name: str, family: str, held: str, count: int, **parameters: Any) -> None:
        built = kernel(family)(dtype=held, **parameters)
        asked = engine.fact("experts_measured_in").get(held, engine.name) if family == "moe" and shard.ep == 1 else engine.name
        calls.append(KernelCall(name, tokens.phase, built, count, engine.cache.get(family, "warm"), asked, beside.get(name)))

    for operation in operations:
        if operation.role in fused or operation.phase not in (None, tokens.phase):
            continue
        family, sizes, held = operation.family, dict[str, Any](operation.sizes), operation.held or config.dtype
        count = rows[operation.per] * operation.rows_each
        if family == "attention":
            family, sinks = f"attention_{tokens.phase}", sizes.pop("sinks", False)
            sizes |= _lengths(tokens) | {"identity": engine.attention(gpu, tokens.phase, sinks), "kv_dtype": kv_dtype}
        elif family == "mla":
            family = f"mla_{tokens.phase}"
            sizes |= _lengths(tokens) | {"identity": engine.latent_attention(gpu, tokens.phase), "kv_dtype": kv_dtype}
        elif family in COLLECTIVES:
            sizes = _message(family, sizes, count, config, shard)
            if family == "all_reduce" and shard.node is not None:
                sizes["identity"] = engine.all_reduce(shard.node, sizes["num_gpus"], float(np.max(sizes["bytes"])))
        elif family == "elementwise":
            sizes["numel"] = _plain(count * sizes.pop("cols"))
        else:
            sizes[ROWS.get(family, "rows")] = _plain(count)
        if family == "moe":
            held = engine.expert_format(gpu, held)
            if "shared_expert" in fused:
                sizes |= {"num_experts": sizes["num_experts"] + 1, "topk": sizes["topk"] + 1}
        if family == "gemm" and held in engine.quantisers:
            how = engine.quantisers[held]
            launch(f"{operation.name}_quantize", "quantize", how.dtype, operation.count, op=how.op, rows=sizes["m"], cols=sizes["k"])
        launch(operation.name, family, held, operation.count, **sizes)
    return Step(tokens.phase, tuple(calls), len(tokens.q_lens))


def _lengths(tokens: Tokens) -> dict[str, Any]:
    """Lengths of an attention launch: a few numbers when all requests are equal, else a list for each step."""
    if tokens.is_uniform:
        q_len, kv_len = (np.array([int(lengths[0]) for lengths in each]) for each in (tokens.q_lens, tokens.kv_lens))
        return {"batch": _plain(tokens.num_requests), "q_len": _plain(q_len), "kv_len": _plain(kv_len)}
    return {"q_lens": tokens.q_lens, "kv_lens": tokens.kv_lens}


def _message(family: str, sizes: dict[str, Any], rows: np.ndarray, config: ModelConfig, shard: Shard) -> dict[str, Any]:
    """A message of `cols` elements a row, between the ranks of a group, or from one stage to the next."""
    num_gpus = 2 if family == "send_recv" else sizes.get("num_gpus", shard.tp)
    where = {"gpus_per_node": sizes["gpus_per_node"]} if "gpus_per_node" in sizes else {}
    return {"bytes": _plain(rows * round(sizes["cols"] * dtype(config.dtype).bytes)), "num_gpus": num_gpus, "node": shard.node, **where}


def _plain(values: np.ndarray) -> Any:
    """One number where all steps have the same."""
    return int(values[0]) if (values == values[0]).all() else values
