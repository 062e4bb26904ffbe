"""Our own answer to a measured point of disaggregated serving: its workers, and the load that its benchmark put on them.

Only points that name their workers can be asked. Lengths and rounds are those of the aggregated points (serving_points.py). What servers
were told is published for most: InferenceX's .github/configs/nvidia-master.yaml names the recipe of every point (NVIDIA's srt-slurm), which
says how many requests a decode worker's rank may run (`BATCHES`). Elsewhere it is as many as there are users; all else is an engine as it
comes. Nothing is fitted on these points.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy.serving_points import CHECKPOINTS, MOST_MEMORY, ROUNDS, requests, server
from tilecast.engines.interval import Interval
from tilecast.errors import TilecastError
from tilecast.kernels.collectives import node_of
from tilecast.predictors import predict_kernel
from tilecast.serving.costs import SIDES
from tilecast.serving.handover import Handover, Sides, interval_of, run_disaggregated
from tilecast.serving.link import link_between
from tilecast.serving.policy import policy_of
from tilecast.serving.workers import Workers

# Requests of a point that are followed: with more users than a tenth of these fewer rounds, but three. The last one stands for all that
# would come after it.
MOST_REQUESTS, FEWEST_ROUNDS = 16_384, 3
KINDS = ("prefill", "decode")
RACKS = ("gb200", "gb300")
SIZES = ("num_workers", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
Shape = tuple[str, str, int, int, int, int]  # GPU, format, prompt and output tokens, decode workers, GPUs of each
# DeepSeek-R1 on TensorRT-LLM: requests that a rank of a decode worker may run (max_batch_size), by how many users there were. Points of
# InferenceMAX's first runs (gb200-sxm, nvfp4, attention not data-parallel) name their limits in the same file's earlier versions.
BATCHES: Mapping[Shape, Mapping[int, int]] = {
    ("b200-sxm", "nvfp4", 1024, 1024, 1, 8): {4096: 512},
    ("b200-sxm", "nvfp4", 1024, 1024, 2, 8): {2192: 128},
    ("b200-sxm", "nvfp4", 1024, 1024, 5, 8): dict.fromkeys((10, 15, 25, 45, 90, 180), 32),
    ("b200-sxm", "nvfp4", 1024, 1024, 6, 8): {450: 64},
    ("b200-sxm", "nvfp4", 8192, 1024, 5, 8): {**dict.fromkeys((10, 15, 25, 50, 100), 16), 370: 64},
    ("gb200", "nvfp4", 1024, 1024, 2, 4): {6144: 768},
    ("gb200", "nvfp4", 1024, 1024, 4, 8): {
        **dict.fromkeys((12, 24, 48, 96, 192), 32),
        **dict.fromkeys((4, 8, 16, 32, 64, 128, 256, 564), 128),
    },
    ("gb200", "nvfp4", 1024, 8192, 1, 32): {2048: 64, 4096: 128, 8192: 256},
    ("gb200", "nvfp4", 1024, 8192, 7, 8): {7: 1},
    ("gb200", "nvfp4", 1024, 8192, 15, 4): {60: 4, 135: 8},
    ("gb200", "nvfp4", 8192, 1024, 1, 16): {4096: 256},
    ("gb200", "nvfp4", 8192, 1024, 1, 32): {256: 16},
    ("gb200", "nvfp4", 8192, 1024, 3, 8): dict.fromkeys((3, 6, 12, 24, 48, 102), 32),
    ("gb200", "nvfp4", 8192, 1024, 4, 8): dict.fromkeys((12, 44, 76), 16),
    ("gb200", "fp8", 1024, 1024, 1, 8): {6144: 768},
    ("gb200", "fp8", 1024, 1024, 3, 8): {3: 1, 27: 8},
    ("gb200", "fp8", 1024, 8192, 2, 16): {8192: 256},
    ("gb200", "fp8", 1024, 8192, 4, 8): {4: 1, 36: 8},
    ("gb200", "fp8", 8192, 1024, 3, 8): {6: 1, 18: 4, 63: 16},
    ("gb300", "nvfp4", 1024, 1024, 1, 8): {8192: 1024},
    ("gb300", "nvfp4", 1024, 1024, 4, 8): dict.fromkeys((12, 48, 96, 192), 32),
    ("gb300", "nvfp4", 1024, 8192, 1, 32): {1024: 32, 4096: 128, 8192: 256},
    ("gb300", "nvfp4", 1024, 8192, 7, 8): {7: 1, 245: 32},
    ("gb300", "nvfp4", 1024, 8192, 15, 4): {60: 4},
    ("gb300", "nvfp4", 8192, 1024, 3, 4): {3228: 256},
    ("gb300", "nvfp4", 8192, 1024, 3, 8): {72: 16},
    ("gb300", "nvfp4", 8192, 1024, 4, 8): {12: 2},
    ("gb300", "nvfp4", 8192, 1024, 5, 4): dict.fromkeys((5, 15, 30), 4),
    ("gb300", "fp8", 1024, 1024, 2, 8): {12288: 768},
    ("gb300", "fp8", 1024, 1024, 4, 8): {4: 1, 24: 4, 84: 16},
    ("gb300", "fp8", 1024, 8192, 2, 16): {4096: 128, 8192: 256},
    ("gb300", "fp8", 1024, 8192, 4, 8): {4: 1, 36: 8},
    ("gb300", "fp8", 8192, 1024, 4, 8): {4: 1, 24: 4, 36: 8},
}


def points(rows: pl.DataFrame) -> pl.DataFrame:
    """One row a point that names its workers."""
    names = ("id", "gpu", "engine", "model", "dtype", "architecture", "model_class", "isl", "osl", "concurrency", "batch")
    wide = rows.unique("id", maintain_order=True).select(
        *names,
        *(
            pl.col("attributes").str.json_path_match(f"$.{kind}_{size}").cast(pl.Float64).alias(f"{kind}_{size}")
            for kind in KINDS
            for size in SIZES
        ),
    )
    return wide.filter(pl.col("prefill_num_workers") >= 1, pl.col("decode_num_workers") >= 1, pl.col("concurrency").is_not_null())


def split(row: Mapping[str, Any], kind: str) -> tuple[int, int, int]:
    """(tp, ep, dp_attention) of a worker."""
    tp, dp, moe_tp, moe_ep = (max(1, int(row[f"{kind}_{size}"] or 1)) for size in SIZES[1:])
    gpus = max(tp * dp, moe_tp * moe_ep)
    return gpus, moe_ep, gpus // tp


def most_running(row: Mapping[str, Any]) -> int:
    """Requests that a decode worker runs at once."""
    users, (gpus, _, ranks) = int(row["concurrency"]), split(row, "decode")
    if row["engine"] == "trtllm" and row["architecture"] == "deepseek-v3":
        shape = (row["gpu"], row["dtype"], int(row["isl"]), int(row["osl"]), int(row["decode_num_workers"]), gpus)
        batch = BATCHES.get(shape, {}).get(users)
        if batch is not None:
            return batch * ranks
    return max(16, users)


def sends_tokens(row: Mapping[str, Any], kind: str) -> bool:
    """To their experts alone: in the racks, SGLang's recipes from 8 ranks on (moe-a2a-backend deepep), TensorRT-LLM where there are more
    ranks than experts of a token."""
    _, ranks, _ = split(row, kind)
    return row["gpu"] in RACKS and ranks >= {"sglang": 8, "trtllm": 9}.get(row["engine"], 1 << 20)


def rounds_of(users: int) -> int:
    return max(FEWEST_ROUNDS, min(ROUNDS, MOST_REQUESTS // users))


def mean_over_rounds(values: Mapping[Sides, np.ndarray], users: int) -> Interval:
    """The mean of a benchmark of ten rounds: of those that were not followed each is like the last that was."""
    weights = np.ones(rounds_of(users) * users)
    weights[-users:] += ROUNDS - rounds_of(users)
    return interval_of({sides: float(np.average(each, weights=weights)) for sides, each in values.items()})


def handover_of(row: Mapping[str, Any], price: Any = predict_kernel, **changed: object) -> Handover:
    """The whole benchmark of a point, the first burst included."""
    model, quant, kv = CHECKPOINTS[(row["architecture"], row["dtype"])]
    if kv is None and row["architecture"] == "deepseek-v3" and (row["engine"] == "trtllm" or row["gpu"] != "h200-sxm"):
        kv = "fp8"
    users = int(row["concurrency"])
    workers = []
    for kind in KINDS:
        settings = {"most_running_requests": most_running(row), "experts_all_to_all": int(sends_tokens(row, kind)), **changed}
        chosen = json.dumps(settings, sort_keys=True)
        found = server(model, row["gpu"], *split(row, kind), row["engine"], quant, kv, chosen)
        workers.append(Workers(number=int(row[f"{kind}_num_workers"]), found=found, policy=policy_of(found)))
    prefill, decode = workers
    if "memory_fraction" not in changed and decode.policy.cache_tokens * decode.pool.lanes < users * (row["isl"] + row["osl"]):
        return handover_of(row, price, **changed, memory_fraction=MOST_MEMORY)
    asked = requests(row, users)
    link = link_between(prefill, decode, asked, prefill.found.node or decode.found.node or node_of(prefill.found.gpu, None), price)
    ways = {side: link.of(side) for side in SIDES}
    return run_disaggregated(prefill, decode, users, asked, ways, price=price, num_requests=rounds_of(users) * users)


def answer(row: Mapping[str, Any], price: Any = predict_kernel) -> dict[str, float | str | None]:
    """Mean TTFT and TPOT over the requests with their 80 % intervals, or why there are none."""
    if (row["architecture"], row["dtype"]) not in CHECKPOINTS:
        return {"ttft": None, "tpot": None, "why": f"{row['architecture']} in {row['dtype']} is not modelled"}
    try:
        found = handover_of(row, price)
    except TilecastError as problem:
        return {"ttft": None, "tpot": None, "why": str(problem)}
    means = {name: mean_over_rounds(seen, int(row["concurrency"])) for name, seen in (("ttft", found.ttft_s), ("tpot", found.tpot_s))}
    ends = {f"{name}_{end}": getattr(mean, end) for name, mean in means.items() for end in ("low", "high")}
    return {name: mean.median for name, mean in means.items()} | ends | {"why": None}
