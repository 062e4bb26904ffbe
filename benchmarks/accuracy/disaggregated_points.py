"""Our own answer to a measured point of disaggregated serving: its workers, and the load that its benchmark put on them.

Only points that name their workers can be asked. Lengths and rounds are those of the aggregated points (serving_points.py); the servers'
limits are not public here, so engines run as they come, but for as many requests as there are users. Nothing is fitted on these points.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import polars as pl

from benchmarks.accuracy.serving_points import CHECKPOINTS, MOST_MEMORY, ROUNDS, requests
from tilecast.engines.predict import Setup, set_up
from tilecast.errors import TilecastError
from tilecast.kernels.collectives import node_of
from tilecast.predictors import predict_kernel
from tilecast.serving.costs import SIDES
from tilecast.serving.disaggregated import Handover, Workers, interval, link_between, run_disaggregated
from tilecast.serving.policy import policy_of

MOST_REQUESTS = 8192  # of a point that are followed: with more users than a tenth of these, fewer rounds, but two
KINDS = ("prefill", "decode")
SIZES = ("num_workers", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


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


@cache
def _set_up(model: str, gpu: str, tp: int, ep: int, dp: int, engine: str, quant: str | None, kv: str | None, chosen: str) -> Setup:
    return set_up(model, gpu, tp=tp, ep=ep, dp_attention=dp, engine=engine, quant=quant, kv_dtype=kv, engine_settings=json.loads(chosen))


def handover_of(row: Mapping[str, Any], price: Any = predict_kernel, **changed: object) -> Handover:
    """The whole benchmark of a point, the first burst included."""
    model, quant, kv = CHECKPOINTS[(row["architecture"], row["dtype"])]
    if kv is None and row["architecture"] == "deepseek-v3" and (row["engine"] == "trtllm" or row["gpu"] != "h200-sxm"):
        kv = "fp8"
    users = int(row["concurrency"])
    chosen = json.dumps({"most_running_requests": max(16, users), **changed}, sort_keys=True)
    workers = []
    for kind in KINDS:
        found = _set_up(model, row["gpu"], *split(row, kind), row["engine"], quant, kv, chosen)
        workers.append(Workers(number=int(row[f"{kind}_num_workers"]), found=found, policy=policy_of(found)))
    prefill, decode = workers
    if "memory_fraction" not in changed and decode.policy.cache_tokens * decode.pool.lanes < users * (row["isl"] + row["osl"]):
        return handover_of(row, price, **changed, memory_fraction=MOST_MEMORY)
    rounds = max(2, min(ROUNDS, MOST_REQUESTS // users))
    asked = requests(row, users)
    link = link_between(prefill, decode, asked, prefill.found.node or decode.found.node or node_of(prefill.found.gpu, None), price)
    ways = {side: link.of(side) for side in SIDES}
    return run_disaggregated(prefill, decode, users, asked, ways, price=price, num_requests=rounds * users)


def answer(row: Mapping[str, Any], price: Any = predict_kernel) -> dict[str, float | str | None]:
    """Mean TTFT and TPOT over the requests with their 80 % intervals, or why there are none."""
    if (row["architecture"], row["dtype"]) not in CHECKPOINTS:
        return {"ttft": None, "tpot": None, "why": f"{row['architecture']} in {row['dtype']} is not modelled"}
    try:
        found = handover_of(row, price)
    except TilecastError as problem:
        return {"ttft": None, "tpot": None, "why": str(problem)}
    means = {"ttft": interval(found.ttft_s), "tpot": interval(found.tpot_s)}
    ends = {f"{name}_{end}": getattr(mean, end) for name, mean in means.items() for end in ("low", "high")}
    return {name: mean.median for name, mean in means.items()} | ends | {"why": None}
