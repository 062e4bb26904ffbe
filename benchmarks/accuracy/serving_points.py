"""Our own answer to a measured serving point: which model, split and server it was, and the load that its benchmark put on it.

Most points are InferenceMAX's, whose scripts are public: lengths drawn evenly from 0.8 to 1 of the nominal ones, ten requests a user, all
at once, and the server's limits set to the load. The others are taken to be fixed lengths in a steady state, on an engine as it comes.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from tilecast.engines.setup import Setup, set_up
from tilecast.errors import TilecastError
from tilecast.predictors import predict_kernel
from tilecast.serving.load import Load, run_load
from tilecast.serving.policy import policy_of

ROUNDS = 10  # requests of each user
SHORTEST = 0.8  # of the nominal lengths
# Of the other points neither is stated. Requests of a burst arrive one after the other, so an engine that takes prompts as they come
# lets its users drift apart; SGLang, which gathers them, did so only in the campaign with round lengths (its
# Llama-3.1-8B points on H200 show it).
# So many rounds are what the first burst weighs in the mean of these points.
OTHER_SPREAD, OTHER_ROUNDS = 0.1, 5
MOST_MEMORY = 0.97  # of a GPU's, for weights and cache together, where an engine's default would not hold a sweep's load
SORTED = 80  # bytes per logit; InferenceMAX asks for greedy sampling, other clients leave a vLLM server its top-k and top-p
SWEPT = ((1024, 1024), (1024, 8192), (8192, 1024))  # InferenceMAX's lengths
# The checkpoint that a point's model name and precision stand for, the format asked of it, and the KV cache's.
CHECKPOINTS: Mapping[tuple[str, str], tuple[str, str | None, str | None]] = {
    ("llama-70b", "fp8"): ("nvidia/Llama-3.1-70B-Instruct-FP8", None, None),
    ("llama-70b", "nvfp4"): ("meta-llama/Llama-3.1-70B", "nvfp4", "fp8"),
    ("llama-8b", "bf16"): ("meta-llama/Llama-3.1-8B", None, None),
    ("llama-8b", "fp8"): ("meta-llama/Llama-3.1-8B", "fp8", None),
    ("qwen3-32b", "bf16"): ("Qwen/Qwen3-32B", None, None),
    ("qwen3-32b", "fp8"): ("Qwen/Qwen3-32B", "fp8", None),
    ("qwen3-32b", "nvfp4"): ("Qwen/Qwen3-32B", "nvfp4", "fp8"),
    ("deepseek-v3", "fp8"): ("deepseek-ai/DeepSeek-R1", None, None),
    ("deepseek-v3", "nvfp4"): ("nvidia/DeepSeek-V3.1-NVFP4", None, None),
    ("minimax-m2", "fp8"): ("MiniMaxAI/MiniMax-M2.5", None, None),
    ("minimax-m2", "nvfp4"): ("nvidia/MiniMax-M2.5-NVFP4", None, None),
    ("qwen3-235b", "fp8"): ("Qwen/Qwen3-235B-A22B-FP8", None, None),
    ("kimi-k2", "int4_wo"): ("moonshotai/Kimi-K2.5", None, None),
    ("kimi-k2", "nvfp4"): ("nvidia/Kimi-K2.5-NVFP4", None, None),
    ("gpt-oss-120b", "nvfp4"): ("openai/gpt-oss-120b", None, None),
    ("gpt-oss-120b", "fp8"): ("openai/gpt-oss-120b", None, None),
}


def split(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """(tp, ep, dp_attention) of a point. Its name says the GPUs where it says anything: columns hold the product of two names for them."""
    tp, dp = int(row["tp"] or 1), int(row["attention_dp"] or 1)
    moe_tp, moe_ep = int(row["moe_tp"] or 1), int(row["moe_ep"] or 1)
    named = re.search(r"_tp(\d+)(?:_0)?_ep(\d+)(?:_0)?_", row["id"])
    if named:
        gpus = int(named[1])
        return gpus, int(named[2]), gpus if dp > 1 else 1
    if moe_tp == moe_ep > 1 and tp * dp == moe_tp * moe_ep and "epnone" not in row["id"]:
        return moe_tp, moe_ep, moe_tp if dp > 1 else 1
    if tp == dp > 1 and moe_ep == tp * dp:
        return tp, tp, tp
    gpus = max(tp * dp, moe_tp * moe_ep)
    return gpus, moe_ep, gpus // tp


def settings(row: Mapping[str, Any], users: int, dp: int) -> dict[str, object]:
    """What the benchmark's script set, where it is public."""
    if not is_swept(row):
        return {"sort_bytes_per_logit": SORTED} if row["engine"] == "vllm" else {}
    if row["engine"] == "vllm":
        return {"max_num_batched_tokens": 8192, "max_num_seqs": users}
    if row["engine"] == "sglang":
        blackwell = row["gpu"] in ("b200-sxm", "b300-sxm", "gb200")
        return {
            "chunked_prefill_size": 16384 if row["dtype"] == "nvfp4" else 32768,
            "max_running_requests": 512,
            **({"steps_missed": 30 if users >= 16 else 10} if blackwell else {}),
        }
    if row["architecture"] == "gpt-oss-120b":
        return {"max_num_tokens": 20000, "max_batch_size": 512}
    return {"max_num_tokens": -(-(users // dp + int(row["isl"]) + 64) // 64) * 64, "max_batch_size": max(1, users)}


def is_swept(row: Mapping[str, Any]) -> bool:
    return (row["isl"], row["osl"]) in SWEPT and "epnone" not in row["id"]


@cache
def server(model: str, gpu: str, tp: int, ep: int, dp: int, engine: str, quant: str | None, kv: str | None, chosen: str) -> Setup:
    return set_up(model, gpu, tp=tp, ep=ep, dp_attention=dp, engine=engine, quant=quant, kv_dtype=kv, engine_settings=json.loads(chosen))


def requests(row: Mapping[str, Any], users: int) -> list[tuple[int, int]]:
    isl, osl = int(row["isl"]), int(row["osl"])
    if not is_swept(row) and row["engine"] == "sglang" and isl % 1000:
        return [(isl, osl)]  # equal lengths, sent at once: prompts go first, so all users stay in step
    low, high, rounds = (SHORTEST, 1.0, ROUNDS) if is_swept(row) else (1.0 - OTHER_SPREAD, 1.0 + OTHER_SPREAD, OTHER_ROUNDS)
    drawn = np.random.default_rng(0).uniform(low, high, (users * rounds, 2))
    return [(max(1, int(isl * a)), max(1, int(osl * b))) for a, b in drawn]


def users_of(row: Mapping[str, Any]) -> int:
    """Of one server: where a dense model's `batch` is a part of the concurrency, the rest went to other servers beside it."""
    if row["model_class"] == "dense" and row["batch"]:
        return int(row["batch"])
    return int(row["concurrency"] or row["batch"] or 1)


def load_of(row: Mapping[str, Any], price: Any = predict_kernel, **changed: object) -> Load:
    """The whole benchmark of a point, the first burst included."""
    model, quant, kv = CHECKPOINTS[(row["architecture"], row["dtype"])]
    if row["engine"] == "sglang" and row["architecture"] == "llama-8b":
        quant = "fp8_block"
    tp, ep, dp = split(row)
    users = users_of(row)
    if kv is None and row["architecture"] == "deepseek-v3" and (row["engine"] == "trtllm" or row["gpu"] != "h200-sxm"):
        kv = "fp8"
    chosen = json.dumps({**settings(row, users, dp), **changed}, sort_keys=True)
    found = server(model, row["gpu"], tp, ep, dp, row["engine"], quant, kv, chosen)
    groups = min(found.shard.dp, users)
    each = -(-users // groups)
    policy = policy_of(found)
    if is_swept(row) and policy.cache_tokens < each * (row["isl"] + row["osl"]) and "memory_fraction" not in changed:
        return load_of(row, price, **changed, memory_fraction=MOST_MEMORY)
    return run_load(found, policy, each, requests(row, each), price=price, num_requests=each * (ROUNDS if is_swept(row) else OTHER_ROUNDS))


def answer(row: Mapping[str, Any], price: Any = predict_kernel, **changed: object) -> dict[str, float | str | None]:
    """Median TTFT and TPOT over the requests, or why there are none."""
    if (row["architecture"], row["dtype"]) not in CHECKPOINTS:
        return {"ttft": None, "tpot": None, "why": f"{row['architecture']} in {row['dtype']} is not modelled"}
    try:
        load = load_of(row, price, **changed)
    except TilecastError as problem:
        return {"ttft": None, "tpot": None, "why": str(problem)}
    return {
        "ttft": float(np.median(load.ttft_s["median_s"])), "tpot": float(np.median(load.tpot_s["median_s"])), "why": None,
        "ttft_mean": float(np.mean(load.ttft_s["median_s"])), "tpot_mean": float(np.mean(load.tpot_s["median_s"])),
    }  # fmt: skip


def points(rows: pl.DataFrame) -> pl.DataFrame:
    """One row a point, with what `split` and the others look at."""
    names = ("id", "gpu", "engine", "engine_version", "model", "dtype", "architecture", "model_class", "isl", "osl", "concurrency", "batch")
    return rows.unique("id", maintain_order=True).select(*names, "tp", "attention_dp", "moe_tp", "moe_ep")
