"""Peers' stored predictions, read from $TILECAST_DATA and joined to the very rows that were scored."""

import polars as pl

from tilecast.datasets.sources.folder import data_folder, read_table

NEUSIGHT_FILES = {"bmm": "bmm", "linear": "linear", "elementwise": "elementwise", "softmax": "softmax", "layernorm": "layernorm"}
PUBLISHED = {"neusight": "NeuSight", "habitat": "Habitat", "micro": "Li et al.", "roofline": "NeuSight's roofline"}


def pipeweave_fp8_gemm(rows: pl.DataFrame) -> pl.Series:
    """PipeWeave's own checkpoint on its FP8 GEMM rows, in seconds."""
    folder = data_folder("pipeweave")
    key = ["gpu", "M", "N", "K"]
    raw = read_table(folder, "gemm_fp8.parquet", set(key))
    stored = read_table(folder, "gemm_fp8_features.parquet", {*key, "pipeweave_pred_us"})
    joined = raw.join(stored.select(*key, pl.col("pipeweave_pred_us") / 1e6), on=key, how="left", validate="m:1", maintain_order="left")
    return _by_raw_row(rows, joined, "pipeweave_pred_us", "gemm_fp8.parquet")


def neusight_retrained(rows: pl.DataFrame, op: str) -> pl.Series:
    """NeuSight's code retrained on its own training rows, with the tile it looks up, on every NVIDIA test kernel, in seconds."""
    column = "pred_lookup_tile_ms"
    folder = data_folder("neusight")
    name = f"{NEUSIGHT_FILES[op]}.parquet"
    sizes = ["B", "M", "N", "K"] if op in ("bmm", "linear") else ["op", "B", "H"] if op == "elementwise" else ["B", "H"]
    key = ["gpu", *sizes, "latency_ms"]
    raw = read_table(folder, name, {*key, "split"}).filter(pl.col("split") == "test")
    stored = read_table(folder, "neusight_retrained_kernel_preds.parquet", {*key, "family", column}).filter(pl.col("family") == op)
    whole = [pl.col(size).cast(pl.Int64) for size in sizes if size != "op"]
    answers = stored.with_columns(whole).group_by(key).agg((pl.col(column).cast(pl.Float64) / 1e3).median())
    return _by_raw_row(rows, raw.join(answers, on=key, how="left", maintain_order="left"), column, name)


def published_kernels(rows: pl.DataFrame, op: str, predictor: str) -> pl.Series:
    """What a peer's published whole-model predictions say of single kernels that were also measured, in seconds; few rows have one."""
    folder = data_folder("neusight")
    name = f"{NEUSIGHT_FILES[op]}.parquet"
    raw = read_table(folder, name, {"gpu", "B", "M", "N", "K", "split"}).filter(pl.col("split") == "test")
    sizes = ["B", "M", "N", "K"] if op == "bmm" else ["M", "N", "K"]
    dims = pl.concat_str(pl.lit("("), pl.concat_str(sizes, separator=", "), pl.lit(")")).alias("dims")
    stored = read_table(folder, "published_kernel_overlap.parquet", {"gpu", "op_class", "dims", "predictor", "pred_fw_ms"})
    wanted = stored.filter((pl.col("op_class") == op) & (pl.col("predictor") == predictor))
    answers = wanted.group_by("gpu", "dims").agg((pl.col("pred_fw_ms") / 1e3).median())
    joined = raw.with_columns(dims).join(answers, on=["gpu", "dims"], how="left", maintain_order="left")
    return _by_raw_row(rows, joined, "pred_fw_ms", name)


def _by_raw_row(rows: pl.DataFrame, raw: pl.DataFrame, column: str, file: str) -> pl.Series:
    """`column` of the raw rows that `rows` (all from `file`) came from, in their order."""
    origins = rows["origin"].cast(pl.String).str.split("#").list.first().unique().to_list()
    assert origins in ([file], []), f"rows of {origins} asked of {file}"
    answers = raw.select(pl.col("origin_row").cast(pl.UInt32), column)
    return rows.select("origin_row").join(answers, on="origin_row", how="left", maintain_order="left")[column]
