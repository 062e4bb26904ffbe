"""Which kernels tell most about a GPU, and the script that times them.

The workload is a catalogue of launches of typical models, prefill and decode, weighted by their share of a step. Of the kernels that plain
PyTorch can run, the one that lowers the workload's expected variance most is taken, then the next given that one, and so on.
"""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.engines.base import engine, kernel_step
from tilecast.errors import InvalidInput, SpecError
from tilecast.hardware import GpuSpec
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.learning.calibration import ROW_NOISE, Floats, Prior, Sites, joined, shipped
from tilecast.predictors import predict_kernel
from tilecast.predictors.calibrated import sites_of_prediction
from tilecast.workloads.architectures import architecture
from tilecast.workloads.graph import Batch, decode_tokens, prefill_tokens
from tilecast.workloads.model import model_config
from tilecast.workloads.parallelism import sharded

MODELS = ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B")
BATCHES = ((1, 512), (1, 8192), (16, 1024), (64, 2048))  # requests, prompt tokens
EVEN_SHARE = 0.5  # of the weight, spread evenly over families: other workloads spend their time elsewhere
FP8_SHARE = 0.25  # of the weight of a GEMM, for the same one in FP8 where the GPU has it
NOT_SIZES = ("family", "gpu", "dtype", "identity", "timer", "cache")
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
LAYERS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (5120, 25600), (10240, 8192), (152064, 4096))  # n, k
HEADS = ((32, 8, 128), (64, 8, 128))  # heads, KV heads, head dimension
PROMPTS = ((1, 512), (1, 2048), (8, 1024), (1, 8192), (16, 2048))  # batch, tokens
CONTEXTS = ((1, 1024), (1, 16384), (16, 2048), (64, 1024), (64, 4096), (256, 1024))
STREAMS = ((16, 4096), (1024, 4096), (8192, 8192))
LARGEST_OUTPUT = 2**30  # elements of a product
TEMPLATE = Path(__file__).with_name("measure.py.txt")


@dataclass(frozen=True, slots=True)
class Planned:
    """One kernel to time: its row without a time, and how much of the workload's variance it and those before it explain."""

    row: Mapping[str, Any]
    median_s: float
    bound_by: str
    explained: float

    @property
    def sizes(self) -> str:
        return " ".join(f"{name}={str(value).lower()}" for name, value in self.row.items() if name not in NOT_SIZES)


def plan(gpu: GpuSpec, count: int) -> list[Planned]:
    """The `count` most telling kernels, the most telling one first."""
    candidates = [(row, priced) for row in _candidates(gpu) if (priced := _priced(row, gpu)) is not None]
    if len(candidates) < count:
        raise InvalidInput(f"{count} kernels are more than the {len(candidates)} that can be planned on {gpu.id}")
    asked, weight = workload(gpu)
    offered = joined([priced.site for _, priced in candidates])
    places = _of_every_family(greedy(asked, weight, offered, len(offered))[0], count, asked, offered)
    order, explained = greedy(asked, weight, offered.where(np.array(places)), count)
    chosen = [candidates[places[place]] for place in order]
    return [Planned(row, priced.median_s, priced.bound_by, share) for (row, priced), share in zip(chosen, explained, strict=True)]


def _of_every_family(ranked: list[int], count: int, asked: Sites, offered: Sites) -> list[int]:
    """The first `count`, with the best of every family of the workload in place of the last of families with several."""
    places = ranked[:count]
    for family in sorted({*asked.family.tolist()} & {*offered.family.tolist()}):
        mine = [str(offered.family[place]) for place in places]
        several = [place for place, name in zip(places, mine, strict=True) if mine.count(name) > 1]
        if family not in mine and several:
            places.remove(several[-1])
            places.append(next(place for place in ranked if offered.family[place] == family))
    return places


def greedy(asked: Sites, weight: Floats, offered: Sites, count: int, prior: Prior | None = None) -> tuple[list[int], list[float]]:
    """Places among `offered`, each the one that lowers the weighted variance of `asked` most given those before; the shares explained."""
    prior = shipped() if prior is None else prior
    cross = prior.correlation(asked, offered) * asked.spread[:, None] * offered.spread[None, :]
    among = prior.correlation(offered, offered) * offered.spread[:, None] * offered.spread[None, :]
    noise = prior.own(offered) * offered.spread**2 + ROW_NOISE**2
    whole = float(weight @ asked.spread**2)
    chosen: list[int] = []
    explained: list[float] = []
    for _ in range(count):
        gain = weight @ cross**2 / (np.diag(among) + noise)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        explained.append((explained[-1] if explained else 0.0) + float(gain[best]) / whole)
        seen = among[best, best] + noise[best]
        cross, among = cross - np.outer(cross[:, best], among[best]) / seen, among - np.outer(among[:, best], among[best]) / seen
    return chosen, explained


def workload(gpu: GpuSpec) -> tuple[Sites, Floats]:
    """Launches of typical models, and their weight: shares of the time, every step counting the same, and an even part to each family."""
    parts: list[Sites] = []
    weights: list[float] = []
    dtype = usual_dtype(gpu)
    for name in MODELS:
        config = replace(model_config(name), dtype=dtype)
        shard = sharded(config, 1)
        operations = architecture(config.architecture).step(config, shard)
        for batch, prompt in BATCHES:
            asked = Batch.uniform(batch, prompt, 2)
            for tokens in (prefill_tokens(asked), decode_tokens(asked, [0])):
                step = kernel_step(operations, tokens, config=config, shard=shard, engine=engine("sglang"), gpu=gpu, kv_dtype=dtype)
                priced = [_site(call.kernel, gpu, call.cache) for call in step.calls]
                seconds = np.array([call.count * each.median_s for call, each in zip(step.calls, priced, strict=True)])
                parts += [each.site for each in priced]
                weights += (seconds / seconds.sum()).tolist()
    if "fp8" in gpu.tensor_flop_per_s:
        for n, k in LAYERS:
            parts.append(_site(kernel_record("gemm")(m=np.array(TOKENS), n=n, k=k, dtype="fp8"), gpu, "cold").site)
            weights += [FP8_SHARE * sum(weights) / len(LAYERS) / len(TOKENS)] * len(TOKENS)
    found, by_time = joined(parts), np.array(weights)
    by_time /= by_time.sum()
    families, places = np.unique(found.family, return_inverse=True)
    in_family = np.bincount(places, by_time)
    evenly = by_time / in_family[places] / len(families)
    return found, (1.0 - EVEN_SHARE) * by_time + EVEN_SHARE * evenly


def usual_dtype(gpu: GpuSpec) -> str:
    return next((name for name in ("bf16", "fp16") if name in gpu.tensor_flop_per_s), "fp32")


def _candidates(gpu: GpuSpec) -> Iterator[dict[str, Any]]:
    """Rows that plain PyTorch can time, in the formats the GPU has."""
    dtype = usual_dtype(gpu)
    start = {"family": "", "gpu": gpu.id, "dtype": dtype, "timer": "profiler", "cache": "cold"}
    for format in (dtype, *(["fp8"] if "fp8" in gpu.tensor_flop_per_s else [])):
        identity = {"fp8": "scaled_mm"}.get(format, "cublas")
        sizes = ({"m": m, "n": n, "k": k} for m in TOKENS for n, k in LAYERS if format != "fp8" or m % 16 == 0)
        yield from ({**start, "family": "gemm", "dtype": format, "identity": identity, **size} for size in sizes)
    for heads, kv_heads, dimension in HEADS:
        shape = {"identity": "fa2", "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dimension}
        if dtype == "fp32":
            break  # flash kernels are 16-bit
        for batch, tokens in PROMPTS:
            yield {**start, **shape, "family": "attention_prefill", "batch": batch, "q_len": tokens, "kv_len": tokens, "causal": True}
        for batch, context in CONTEXTS:
            yield {**start, **shape, "family": "attention_decode", "batch": batch, "q_len": 1, "kv_len": context}
    for rows, cols in STREAMS:
        yield from ({**start, "family": family, "rows": rows, "cols": cols} for family in ("rms_norm", "layer_norm", "softmax"))
        yield from ({**start, "family": "elementwise", "op": op, "numel": rows * cols} for op in ("add", "gelu"))


@dataclass(frozen=True, slots=True)
class _Site:
    site: Sites
    median_s: float
    bound_by: str


def _site(built: Any, gpu: GpuSpec, cache: str) -> _Site:
    predicted = predict_kernel(built, gpu, cache=cache)
    return _Site(sites_of_prediction(predicted), float(predicted.median_s[0]), str(predicted.analysis.bound_by[0]))


def _priced(row: dict[str, Any], gpu: GpuSpec) -> _Site | None:
    """None where the GPU cannot run the row, or PyTorch could not hold it."""
    record = kernel_record(row["family"])
    known = {entry.name for entry in fields(record)}
    if row["family"] == "gemm" and row["m"] * row["n"] > LARGEST_OUTPUT:
        return None
    try:
        return _site(record(**{name: value for name, value in row.items() if name in known}), gpu, "cold")
    except (InvalidInput, SpecError):
        return None


# ---- the script --------------------------------------------------------------------------------------------------


def script(gpu: GpuSpec, chosen: Sequence[Planned], asked: str | None = None) -> str:
    """measure.py: the template with the rows in it; its last words name the GPU as it was `asked` for, a file perhaps."""
    text = TEMPLATE.read_text(encoding="utf-8")
    rows = ",\n".join(f"    {json.dumps(dict(each.row))}" for each in chosen)
    filled = {
        'GPU = "@GPU@"': f"GPU = {gpu.id!r}",
        'ASKED = "@ASKED@"': f"ASKED = {shlex.quote(asked or gpu.id)!r}",
        "L2_BYTES = 0  # @L2_BYTES@": f"L2_BYTES = {int(gpu.l2_bytes or 0)}",
        'ROWS = json.loads("[]")  # @ROWS@': f'ROWS = json.loads("""[\n{rows}\n]""")',
    }
    for line, value in filled.items():
        assert text.count(line) == 1, f"the template lacks {line}"
        text = text.replace(line, value)
    return text


def write_script(text: str, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except OSError as problem:
        raise InvalidInput(f"{str(path)!r} cannot be written: {(problem.strerror or str(problem)).lower()}") from None
    finally:
        temporary.unlink(missing_ok=True)
