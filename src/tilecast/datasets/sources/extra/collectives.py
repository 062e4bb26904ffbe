"""collectives.parquet: bytes are the buffer of one rank, in fp16."""

import polars as pl

from tilecast.datasets.sources.extra.base import OP, SOURCE, Columns, RawTable, first_of, seconds, words

COLLECTIVES = ("all_reduce", "all_gather", "send_recv")
COLLECTIVE: Columns = {
    # A rank's whole buffer: an all-gather's raw size is the part each rank brings.
    "bytes": pl.col("bytes") * pl.when(OP == "all_gather").then(pl.col("num_gpus")).otherwise(1),
    "num_gpus": pl.col("num_gpus"),
    "gpus_per_node": pl.col("gpus_per_node"),
    "node": pl.col("topology"),
}
NCCL_MEDIANS = pl.col("method") == "kineto_nccl_kernel_median"

TABLE = RawTable(
    columns=words("source gpu op topology num_gpus gpus_per_node bytes latency_us latency_std_us stat method superseded flag"),
    family=pl.when(OP.is_in(COLLECTIVES)).then(OP),
    common={
        "dtype": pl.lit("fp16"),
        "engine": pl.lit("nccl"),
        "identity": pl.lit("nccl"),
        "cache": first_of((NCCL_MEDIANS, "warm")),  # the same buffers again; how the others were run is not told
        "num_repeats": pl.when(NCCL_MEDIANS).then(3),
        "spread_s": seconds("latency_std_us"),
    },
    shapes=dict.fromkeys(COLLECTIVES, COLLECTIVE),
    known_bad=first_of(
        (
            (SOURCE == "vidur") & (pl.col("gpu") == "A100") & (OP == "send_recv") & pl.col("topology").str.starts_with("pairwise_nvlink"),
            "known bad: the same file stands under A100, A800 and H100",
        )
    ),
)
