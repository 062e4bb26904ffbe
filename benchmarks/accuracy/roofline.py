"""What each row asks of its machine (FLOP, bytes) and what the machine offers by its data sheet: the roofline of every baseline."""

import numpy as np
import polars as pl

from benchmarks.accuracy.predictors import Seconds
from tilecast import hardware
from tilecast.datasets.schema import COLLECTIVES
from tilecast.datasets.work import work
from tilecast.dtypes import QUANTISATIONS
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec

MATRIX_FAMILIES = ("gemm", "attention_prefill", "attention_decode", "attention_mixed", "mla_prefill", "mla_decode", "moe", "conv2d")
FACTS = ("flop", "bytes", "flop_per_s", "bytes_per_s", "num_sms")


def facts(rows: pl.DataFrame, family: str) -> pl.DataFrame:
    """The columns FACTS of each row; a collective's bytes are those on its link, and `bytes_per_s` is the link's."""
    if family in COLLECTIVES:
        flop, moved = pl.lit(0.0), pl.col("bytes") * bus_factor(family)
    else:
        least = work(family)
        if least is None:
            raise InvalidInput(f"{family} rows are several kernels: no roofline is known")
        flop, moved = least.flop, least.bytes
    machine = rows.select("gpu", "dtype").unique(maintain_order=True).cast(pl.String)
    offers = [_offer(hardware.gpu(gpu), dtype, family) for gpu, dtype in machine.iter_rows()]
    table = machine.with_columns(pl.DataFrame(offers, schema=dict.fromkeys(FACTS[2:], pl.Float64), orient="row"))
    asked = rows.select(pl.col("gpu", "dtype").cast(pl.String), flop.cast(pl.Float64).alias("flop"), moved.cast(pl.Float64).alias("bytes"))
    return asked.join(table, on=["gpu", "dtype"], how="left", maintain_order="left").select(FACTS)


def roofline_s(rows: pl.DataFrame, family: str) -> Seconds:
    """max(FLOP / published rate, bytes / DRAM or link bandwidth): what a perfect kernel with cold caches needs."""
    each = facts(rows, family)
    seconds = each.select(pl.max_horizontal(pl.col("flop") / pl.col("flop_per_s"), pl.col("bytes") / pl.col("bytes_per_s")))
    return np.asarray(seconds.to_series().fill_null(np.nan).to_numpy(), dtype=np.float64)


def bus_factor(family: str) -> pl.Expr:
    """How often each byte of the message crosses one GPU's link, as nccl-tests counts it."""
    others = (pl.col("num_gpus") - 1) / pl.col("num_gpus")
    return {"all_reduce": 2 * others, "broadcast": pl.lit(1.0), "send_recv": pl.lit(1.0)}.get(family, others)


def _offer(gpu: GpuSpec, dtype: str, family: str) -> tuple[float, float, float]:
    if family in COLLECTIVES:
        return compute_rate(gpu, dtype, family), _link_rate(gpu), float(gpu.num_sms)
    return compute_rate(gpu, dtype, family), gpu.dram_bytes_per_s, float(gpu.num_sms)


def compute_rate(gpu: GpuSpec, dtype: str, family: str) -> float:
    """The published rate of the units a family runs on; a dtype without units of its own is converted to 16 bits first."""
    compute = QUANTISATIONS[dtype].compute.name
    if family not in MATRIX_FAMILIES:
        return gpu.vector_flop_per_s["fp32"]
    rates = {**gpu.vector_flop_per_s, **gpu.tensor_flop_per_s}
    return next(rates[name] for name in (compute, "bf16", "fp16", "fp32") if name in rates)


def _link_rate(gpu: GpuSpec) -> float:
    rate = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    return float("nan") if rate is None else rate
