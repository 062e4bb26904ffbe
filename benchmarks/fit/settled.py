"""What products alone do not tell of a step that goes on: python -m benchmarks.fit.settled prints two tables, it writes nothing.

The wheel's products were timed in bursts of milliseconds, `power_gemm` repeated each one until board power could be read. Where that is
the limit, how much longer does a product take than in a burst (16 bits, vLLM in both)? And which share of the limit do kernels draw that
are no such products (`engines/settled.py`)?
"""

import polars as pl

from benchmarks.accuracy.peer_tables import parquet
from tilecast.datasets import store

AT_LIMIT = 0.95  # of the power limit
MANY_ROWS, FEW_ROWS = 512, 16  # of a product that tensor cores bind, and of one that streams its weights
LONG_S = 3e-4
EDGES = (10.5, 11, 11.5, 12, 12.5, 13)  # log10 of FLOP
LIMIT = "power_w power_limit_w latency_s gpu"


def with_load(kernel: str, columns: str) -> pl.DataFrame:
    table = parquet("aiconfigurator", f"power_{kernel}.parquet", f"{columns} {LIMIT}")
    return table.with_columns((pl.col("power_w") / pl.col("power_limit_w")).alias("load"))


def products() -> pl.DataFrame:
    flop = 2.0 * pl.col("m").cast(pl.Float64) * pl.col("n") * pl.col("k")
    rows = with_load("gemm", "m n k gemm_dtype engine").filter((pl.col("gemm_dtype") == "bfloat16") & (pl.col("engine") == "vllm"))
    return rows.with_columns(flop.log10().alias("log_flop"))


def slower_at_the_limit(rows: pl.DataFrame) -> pl.DataFrame:
    """Median of repeated over burst, by GPU and size of the product."""
    key = ["gpu", "m", "n", "k"]
    wheel = store.rows("gemm", ["aiconfigurator"]).filter((pl.col("dtype").cast(pl.String) == "bf16") & (pl.col("batch") == 1))
    wheel = wheel.filter(pl.col("engine").cast(pl.String) == "vllm").with_columns(pl.col("gpu").cast(pl.String))
    burst = wheel.group_by(key).agg(pl.col("latency_s").median().alias("burst_s"))
    at_limit = rows.filter((pl.col("load") > AT_LIMIT) & (pl.col("m") >= MANY_ROWS) & pl.col("log_flop").is_between(EDGES[0], EDGES[-1]))
    both = at_limit.join(burst, on=key).with_columns((pl.col("latency_s") / pl.col("burst_s")).alias("slower"))
    sized = both.with_columns(pl.max_horizontal(pl.when(pl.col("log_flop") >= edge).then(edge) for edge in EDGES).alias("log10 FLOP from"))
    return (
        sized.group_by("gpu", "log10 FLOP from")
        .agg(pl.len().alias("rows"), pl.col("slower").median().round(3))
        .sort("gpu", "log10 FLOP from")
    )


def loads(rows: pl.DataFrame) -> pl.DataFrame:
    """Median share of the limit that other kernels draw."""
    kinds = {
        "thin products": rows.filter((pl.col("m") <= FEW_ROWS) & (pl.col("log_flop") < EDGES[0]) & (pl.col("latency_s") > LONG_S / 10)),
        "prefill attention": with_load("attention_prefill", "engine").filter(pl.col("latency_s") > LONG_S),
        "decode attention": with_load("attention_decode", "engine").filter(pl.col("latency_s") > LONG_S),
    }
    parts = [part.select(pl.lit(kind).alias("kernels"), "gpu", "load") for kind, part in kinds.items()]
    table = pl.concat(parts).group_by("kernels", "gpu").agg(pl.len().alias("rows"), pl.col("load").median().round(2))
    return table.sort("kernels", "gpu")


def main() -> None:
    rows = products()
    with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(slower_at_the_limit(rows))
        print(loads(rows))


if __name__ == "__main__":
    main()
