"""Engine: which kernel does each operation, and what the host adds. Every file of this folder that defines ENGINE is one."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tilecast.dtypes import dtype
from tilecast.errors import InvalidInput, UnknownName
from tilecast.hardware import GpuSpec, NodeSpec
from tilecast.kernels.base import RELEASE
from tilecast.kernels.registry import kernel
from tilecast.workloads.graph import Batch, KernelCall, Step, Tokens
from tilecast.workloads.model import ModelConfig
from tilecast.workloads.operations import Operation
from tilecast.workloads.parallelism import Shard

FOLDER = Path(__file__).parent
ROWS = {"gemm": "m", "moe": "num_tokens"}  # the parameter that counts rows, where it is not called `rows`
SAME_PRODUCT = {"fp8_static": "fp8"}  # scales that are known beforehand change who makes the activations, not the product
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
SENT_BYTES = 1  # of an element on its way to an expert: 8 bits; results come back in the model's own format
NO_IDENTITY: Callable[..., None] = lambda *asked: None  # noqa: E731


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an engine's host costs; <engine>.toml says what each one is and where it comes from."""

    decode_step_s: float
    decode_layer_s: float
    prefill_step_s: float
    prefill_layer_s: float
    request_s: float
    first_token_s: float
    prompt_token_s: float
    spread_fraction: float
    reserved_bytes: float


# Between two uses of a layer's weights or its KV cache lies the rest of the model; other operands were just written.
READ_FROM_DRAM = MappingProxyType(dict.fromkeys(("gemm", "attention_decode", "mla_decode", "moe", "embedding"), "cold"))


class Quantiser(NamedTuple):
    """The kernel that narrows activations before a product."""

    op: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What an engine looks at when it decides which kernels to fuse."""

    config: ModelConfig
    shard: Shard
    gpu: GpuSpec
    phase: str
    num_tokens: int  # the most of any step
    kv_dtype: str


def _as_its_file_says(engine: "Engine", gpu: GpuSpec) -> int:
    del gpu
    return int(engine.fact("most_running_requests"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine runs a model: its choices are functions of the GPU, the box and the sizes, so that a new GPU needs no table."""

    name: str
    attention: "Callable[[Engine, GpuSpec, str, bool], str | None]"  # (GPU, phase, has sinks) -> identity of the attention kernel
    latent_attention: Callable[[GpuSpec, str], str | None]
    all_reduce: Callable[[NodeSpec, int, float], str]  # (box, GPUs, bytes) -> identity
    expert_format: Callable[[GpuSpec, str], str]  # (GPU, quantisation of the weights) -> that of the product
    fused: "Callable[[Engine, Situation], Mapping[str, str]]"  # an operation, its role or its quantiser -> the kernel that does it too
    token_budget: "Callable[[Engine, GpuSpec, bool], int]"  # (GPU, is offline) -> tokens of a step while prompts are waiting
    quantisers: Mapping[str, Quantiser]  # quantisation -> what makes its activations
    most_running: "Callable[[Engine, GpuSpec], int]" = _as_its_file_says  # requests of one step
    gemm: Callable[[GpuSpec, str], str | None] = NO_IDENTITY  # (GPU, quantisation) -> identity
    experts: "Callable[[Engine, GpuSpec, str], str | None]" = NO_IDENTITY
    cache: Mapping[str, str] = field(default_factory=lambda: READ_FROM_DRAM)  # family -> what L2 holds of operands; warm where not named
    release: str = ""  # as asked for; the one that its file speaks of where nothing is said
    settings: Mapping[str, Any] = field(default_factory=dict)  # facts and host constants that a release or somebody set otherwise

    @property
    def label(self) -> str:
        return f"{self.name}@{self.release}" if self.release else self.name

    @property
    def host(self) -> Host:
        own = {name: value for name, value in self.settings.items() if name in HOST_NAMES}
        return replace(_host(self.name), **own) if own else _host(self.name)

    def fact(self, name: str) -> Any:
        """What <engine>.toml says of it under `facts`, with its source and why, or what a user set in its place."""
        return self.settings[name] if name in self.settings else _facts(self.name)[name]["value"]

    def drops_keys_outside_window(self, config: ModelConfig) -> bool:
        return config.architecture in self.fact("drops_keys_outside_window")

    def num_micro_batches(self, batch: Batch, shard: Shard, gpu: GpuSpec) -> int:
        """Groups of a static batch that pass through the stages one behind the other; a group is what one step takes in."""
        if shard.pp == 1:
            return 1
        steps = -(-batch.num_requests // max(1, self.most_running(self, gpu) // shard.pp))
        if self.fact("chunks_static_batches"):
            steps = max(steps, -(-sum(batch.input_tokens) // self.token_budget(self, gpu, True)))
        return min(shard.pp, int(steps), batch.num_requests)

    def padded(self, num_requests: np.ndarray) -> np.ndarray:
        """Requests of a captured decode step: graphs exist for some sizes, and the next larger one runs."""
        sizes = _captured(self.name)
        place = np.searchsorted(sizes, num_requests)
        return np.where(place < len(sizes), sizes[np.minimum(place, len(sizes) - 1)], num_requests)

    @property
    def most_captured(self) -> int:
        return int(_captured(self.name)[-1])


HOST_NAMES = frozenset(entry.name for entry in fields(Host))


def with_settings(found: Engine, settings: Mapping[str, object]) -> Engine:
    """`found` with numbers of its file set otherwise, by their name there or by the engine's own flag for them."""
    if not isinstance(settings, Mapping):
        raise InvalidInput(f"engine_settings = {settings!r} must name settings and their values, such as {{'block_size': 16}}")
    facts = _facts(found.name)
    names = {entry["flag"]: name for name, entry in facts.items() if "flag" in entry}
    numbers = {name for name, entry in facts.items() if isinstance(entry["value"], int | float)}
    allowed = sorted(HOST_NAMES | numbers | set(names))
    changed: dict[str, Any] = dict(found.settings)
    for asked, raw in settings.items():
        if asked not in allowed:
            raise UnknownName.among(f"setting of {found.name}", asked, allowed)
        name = names.get(asked, asked)
        before = facts[name]["value"] if name in facts else float(getattr(found.host, name))
        try:
            value = float(str(raw))
        except ValueError:
            value = float("nan")
        least = 1 if isinstance(before, int) and before > 1 else 0
        most = 1.0 if name.endswith("_fraction") else float("inf")
        if not least <= value <= most or value == float("inf") or (isinstance(before, int) and value != int(value)):
            kind = "a whole number" if isinstance(before, int) else "a number"
            limits = f"from {least} to 1" if most == 1.0 else f"of at least {least}"
            raise InvalidInput(f"{asked} = {raw} must be {kind} {limits}")
        changed[name] = int(value) if isinstance(before, int) else value
    return replace(found, settings=changed)


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = _table(name)["facts"]
    return facts


@cache
def _captured(name: str) -> np.ndarray:
    """Batch sizes that have a graph: numbers, and runs of them as first:last:step."""
    sizes: list[int] = []
    for entry in _facts(name)["captured_batches"]["value"]:
        first, last, step = (int(part) for part in entry.split(":")) if isinstance(entry, str) else (entry, entry, 1)
        sizes += range(first, last + 1, step)
    return np.array(sizes)


@cache
def _host(name: str) -> Host:
    table = {key: entry for key, entry in _table(name).items() if key not in ("facts", "since")}
    assert {entry.name for entry in fields(Host)} == set(table), f"{name}.toml and Host disagree"
    return Host(**{key: float(entry["value"]) for key, entry in table.items()})


@cache
def engines() -> dict[str, Engine]:
    modules = (import_module(f"tilecast.engines.{path.stem}") for path in sorted(FOLDER.glob("*.py")) if path.with_suffix(".toml").exists())
    return {module.ENGINE.name: module.ENGINE for module in modules}


def engine(name: str) -> Engine:
    """An engine by its name, or as one of its releases is: sglang@0.5.14."""
    plain, at, release = name.partition("@") if isinstance(name, str) else (name, "", "")
    if plain not in engines():
        raise UnknownName.among("engine", plain, list(engines()))
    found = engines()[plain]
    return replace(found, release=release, settings=_changed_by(plain, release)) if at else found


def _changed_by(name: str, release: str) -> dict[str, Any]:
    """Facts that are otherwise in this release than in those that the engine's file speaks of: its tables `since`, oldest first."""
    if not RELEASE.match(release):
        raise InvalidInput(f"engine {name}@{release}: {release!r} is no release, such as 0.5.14")
    changes: dict[str, Any] = _table(name).get("since", {})
    known = sorted((_numbers(first), entry["facts"]) for first, entry in changes.items())
    return {fact: value for first, facts in known if first <= _numbers(release) for fact, value in facts.items()}


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


# ---- from operations to kernels ----------------------------------------------------------------------------------


def kernel_step(
    operations: Sequence[Operation], tokens: Tokens, *, config: ModelConfig, shard: Shard, engine: Engine, gpu: GpuSpec, kv_dtype: str
) -> Step:
    """The kernels that do `operations` on `tokens`, in the order in which they run."""
    rows = tokens.rows
    if tokens.phase == "decode":
        rows = {per: engine.padded(count) for per, count in rows.items()}
    most = int(tokens.num_tokens.max())
    seen = Situation(config=config, shard=shard, gpu=gpu, phase=tokens.phase, num_tokens=most, kv_dtype=kv_dtype)
    fused = engine.fused(engine, seen)
    calls = []

    beside = engine.fact("runs_beside_in_decode") if tokens.phase == "decode" else {}

    def launch(name: str, family: str, held: str, count: int, **parameters: Any) -> None:
        built = kernel(family)(dtype=held, **parameters)
        calls.append(KernelCall(name, tokens.phase, built, count, engine.cache.get(family, "warm"), asked(family, held), beside.get(name)))

    def asked(family: str, held: str) -> str:
        """The engine whose measurements of a kernel speak for this one's."""
        fact = "products_measured_in" if family == "gemm" else "experts_measured_in" if family == "moe" and shard.ep == 1 else None
        own: str = engine.name
        return own if fact is None else engine.fact(fact).get(held, own)

    # Where every rank has whole experts, a token may be sent to those that it chose instead of to all ranks.
    sent = bool(engine.fact("experts_all_to_all")) and shard.dp > 1 and shard.ep == shard.tp
    num_sent = sum(operation.count for operation in operations if operation.family == "moe") if sent else 0

    def exchange(name: str, count: int, item_bytes: int, topk: int) -> None:
        num_bytes = _plain(rows["token"] * config.hidden_size * topk * item_bytes)
        launch(name, "all_to_all", config.dtype, count, bytes=num_bytes, num_gpus=shard.tp, node=shard.node)

    for operation in _apart(operations, seen, fused, num_sent):
        count = rows[operation.per] * operation.rows_each
        family, held, sizes = _chosen(operation, count, tokens, engine, seen, fused)
        if family == "gemm" and held in engine.quantisers and f"{operation.name}_quantize" not in fused:
            how = engine.quantisers[held]
            launch(f"{operation.name}_quantize", "quantize", how.dtype, operation.count, op=how.op, rows=sizes["m"], cols=sizes["k"])
        if family in ROWS:
            held = SAME_PRODUCT.get(held, held)
        if num_sent and family == "moe":
            exchange("experts_dispatch", operation.count, SENT_BYTES, sizes["topk"])
        if family == "attention_decode" and sizes["identity"] in engine.fact("copies_heads_for") and _heads_move(sizes, rows["token"]):
            numel = _plain(rows["token"] * sizes["num_heads"] * sizes["head_dim"])
            launch(f"{operation.name}_copies", "elementwise", config.dtype, 2 * operation.count, op="copy", numel=numel)
        launch(operation.name, family, held, operation.count, **sizes)
        if num_sent and family == "moe":
            exchange("experts_combine", operation.count, round(dtype(config.dtype).bytes), sizes["topk"])
        if family == "sampling" and engine.fact("sort_bytes_per_logit"):
            moved = float(engine.fact("sort_bytes_per_logit")) / (2 * dtype(config.dtype).bytes)  # a copy reads and writes each element
            launch(
                "logit_sort",
                "elementwise",
                config.dtype,
                operation.count,
                op="copy",
                numel=_plain((count * sizes["cols"] * moved).astype(int)),
            )
    return Step(tokens.phase, tuple(calls), len(tokens.q_lens))


def _apart(operations: Sequence[Operation], seen: Situation, fused: Mapping[str, str], num_sent: int) -> Iterator[Operation]:
    """Operations of a phase that are launches of their own; `num_sent` layers send tokens to their experts instead of gathering them."""
    for operation in operations:
        if operation.name in fused or operation.role in fused or operation.phase not in (None, seen.phase):
            continue
        if not num_sent:
            yield operation
        elif operation.name == "experts_all_reduce":
            continue
        elif operation.name == "hidden_gather":
            if operation.count != num_sent:
                yield replace(operation, count=operation.count - num_sent)
        elif operation.role == "shared_expert" or operation.name in ("router", "expert_topk"):
            yield _of_own_tokens(operation, seen.shard)
        else:
            yield operation


def _chosen(
    operation: Operation, count: np.ndarray, tokens: Tokens, engine: Engine, seen: Situation, fused: Mapping[str, str]
) -> tuple[str, str, dict[str, Any]]:
    """The kernel that an engine takes for an operation on `count` rows: its family, the format of what it holds, and its parameters."""
    config, shard, gpu, phase = seen.config, seen.shard, seen.gpu, seen.phase
    family, sizes, held = operation.family, dict[str, Any](operation.sizes), operation.held or config.dtype
    if family == "attention":
        family, sinks = f"attention_{phase}", sizes.pop("sinks", False)
        sizes |= _lengths(tokens) | {"identity": engine.attention(engine, gpu, phase, sinks), "kv_dtype": seen.kv_dtype}
    elif family == "mla":
        family = f"mla_{phase}"
        sizes |= _lengths(tokens) | {"identity": engine.latent_attention(gpu, phase), "kv_dtype": seen.kv_dtype}
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
        sizes["identity"] = engine.experts(engine, gpu, held)
        if "shared_expert" in fused:
            sizes |= {"num_experts": sizes["num_experts"] + 1, "topk": sizes["topk"] + 1}
    if family == "gemm":
        sizes["identity"] = engine.gemm(gpu, held)
    return family, held, sizes


def _of_own_tokens(operation: Operation, shard: Shard) -> Operation:
    """The operation on this rank's own tokens, with the shared expert unsharded."""
    if operation.per == "token":  # it is so already
        return operation
    split = "k" if operation.name.endswith("down_proj") else "n" if operation.name.endswith("up_proj") else "cols"
    whole = operation.family == "gemm" and operation.name.startswith("shared_") and operation.name != "shared_gate"
    whole = whole or operation.family == "silu_mul"
    sizes: dict[str, Any] = dict(operation.sizes)
    return replace(operation, per="token", sizes=sizes | ({split: sizes[split] * shard.tp} if whole else {}))


def _heads_move(sizes: Mapping[str, Any], requests: np.ndarray) -> bool:
    """Whether making rows of a group's heads moves them: for one request or one KV head it is a view, and windows stay as they are."""
    return bool(sizes["num_heads"] > sizes["num_kv_heads"] > 1 and not sizes.get("window") and np.max(requests) > 1)


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
