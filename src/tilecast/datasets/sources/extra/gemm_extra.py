"""gemm_extra.parquet: DeepGEMM, fp8 with a scale for each 128 x 128 block of weights."""

import polars as pl

from tilecast.datasets.sources.extra.base import FLUSHED, RawTable, first_of, words

TABLE = RawTable(
    columns=words("source gpu kernel M N K dtype latency_us stat method flag"),
    family=pl.when(pl.col("kernel") == "deepgemm_fp8_gemm_nt").then(pl.lit("gemm")),
    common={
        "dtype": pl.lit("fp8_block"),
        "identity": pl.lit("deepgemm"),
        "kernel": pl.col("kernel"),
        "cache": first_of((FLUSHED, "cold")),
    },
    shapes={"gemm": {"m": pl.col("M"), "n": pl.col("N"), "k": pl.col("K"), "batch": pl.lit(1), "bias": pl.lit(False)}},
)
