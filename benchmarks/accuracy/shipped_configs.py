"""The tuned files that vLLM and SGLang ship: do they take tiles of the same height as we do?

Files say neither hidden size nor top-k: those come from a bundled model with as many experts whose width the file's N divides. Two
independent tunings of one case agree on BLOCK_SIZE_M in 92 to 94 %, so more than that is not to be had.
"""

import polars as pl

from benchmarks.accuracy.peer_tables import Share, parquet, share
from benchmarks.accuracy.progress import say
from tilecast import hardware
from tilecast.errors import TilecastError
from tilecast.tuning.search import Layer, tune
from tilecast.workloads.model import Experts, model_config, model_ids

DTYPES = {"bf16/fp16": "bf16", "bf16": "bf16", "int8_w8a16": "int8_wo", "int8_w8a8": "int8_sq"}
MOST_FILES = 150  # drawn at random where there are more
LARGEST_TP = 16


def layers() -> dict[tuple[int, int], tuple[int, int, int]]:
    """(experts, width on one rank) -> (hidden size, top-k, tp) of the first bundled model that has them."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for name in model_ids():
        config = model_config(name)
        for layer in config.layers:
            if isinstance(layer.mlp, Experts):
                tp = 1
                while tp <= LARGEST_TP and layer.mlp.width % tp == 0:
                    found.setdefault((layer.mlp.num_experts, layer.mlp.width // tp), (config.hidden_size, layer.mlp.topk, tp))
                    tp *= 2
                break
    return found


def agreement() -> list[Share]:
    columns = "engine op device dtype file M E N block_shape BLOCK_SIZE_M"
    table = parquet("tuned_configs", "tuned_configs.parquet", columns).filter(
        (pl.col("op") == "fused_moe") & pl.col("device").str.starts_with("NVIDIA") & ~pl.col("file").str.contains("_down")
    )
    devices = {name.replace(" ", "_"): spec.id for spec in hardware.gpus() if (name := spec.device_string)}
    known = layers()
    files = table.select("engine", "device", "dtype", "file", "E", "N", "block_shape").unique(maintain_order=True)
    usable = [row for row in files.iter_rows(named=True) if row["device"] in devices and (row["E"], row["N"]) in known]
    chosen = pl.DataFrame(usable).sample(min(MOST_FILES, len(usable)), seed=0).to_dicts()
    same: list[tuple[str, bool, bool]] = []
    for number, row in enumerate(chosen):
        if number % 25 == 0:
            say(f"  shipped files: {number} of {len(chosen)}")
        dtype = "fp8_block" if row["block_shape"] else DTYPES.get(row["dtype"], "fp8" if "fp8" in row["dtype"] else "")
        part = table.filter(pl.all_horizontal(pl.col(name).eq_missing(pl.lit(row[name])) for name in ("engine", "file", "dtype")))
        heights = {int(count): height for count, height in part.select("M", "BLOCK_SIZE_M").drop_nulls().iter_rows() if count.isdigit()}
        if not dtype or not heights:
            continue
        hidden, topk, tp = known[row["E"], row["N"]]
        layer = Layer(kernel="moe", num_experts=row["E"], topk=topk, hidden_size=hidden, inter_size=row["N"] * tp, tp=tp, dtype=dtype)
        try:
            found = tune(layer, hardware.gpu(devices[row["device"]]), engine=row["engine"], tokens=sorted(heights))
        except TilecastError:
            continue
        for choice in found.choices:
            height, default = choice.config["BLOCK_SIZE_M"], choice.default["BLOCK_SIZE_M"]
            same.append((dtype, height == heights[choice.num_tokens], default == heights[choice.num_tokens]))
    shares = []
    for what, rows in (("", same), (", 16 bits", [entry for entry in same if entry[0] == "bf16"])):
        if rows:
            ours = 100 * sum(entry[1] for entry in rows) / len(rows)
            usual = 100 * sum(entry[2] for entry in rows) / len(rows)
            shares.append(share(f"BLOCK_SIZE_M of shipped files{what}", "Tilecast", ours, len(rows)))
            shares.append(share(f"BLOCK_SIZE_M of shipped files{what}", "engine's default", usual, len(rows)))
    return shares
