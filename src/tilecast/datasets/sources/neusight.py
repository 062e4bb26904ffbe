"""NeuSight's measurements: single FP32 PyTorch calls on twelve GPUs, and whole models with the operators they are made of.

Every time is CUDA (or HIP) events around one eager call, so it includes the host's launch gap (24-90 us on NVIDIA, 12-67 us on AMD).
Buffers are reused, TF32 is off. On AMD a linear call launches 2 to 9 kernels (copies and the product), and the time covers them all.
Of the per-operator labels only entries above 0 become rows: 0 stands for a node without such a pass.
"""

from collections.abc import Mapping

import polars as pl

from tilecast.datasets.sources.folder import ParquetFolder, RawFile, Rows, one_row_each

GPUS = {
    "A100-40GB-PCIe": "a100-pcie-40gb",
    "A100-40GB-SXM4": "a100-sxm-40gb",
    "A100-80GB-PCIe": "a100-pcie-80gb",
    "H100-80GB-SXM": "h100-sxm",
    "L4": "l4",
    "MI100": "mi100",
    "MI210": "mi210",
    "MI250": "mi250",
    "P100-16GB-PCIe": "p100-pcie-16gb",
    "P4": "p4",
    "T4": "t4",
    "V100-32GB-PCIe": "v100-pcie-32gb",
}
RAMPING = "known bad: clocks ramping while labelled"
ANOMALOUS = "known bad: anomalous label"

_EVENTS = {"engine": "pytorch", "timer": "event", "statistic": "mean of 5 fastest of 25", "num_repeats": 5}
_CALL = {**_EVENTS, "cache": "warm"}
_SECONDS = (pl.col("latency_ms") / 1e3).alias("latency_s")
_DTYPE = pl.col("dtype").replace_strict({"float32": "fp32", "float16": "fp16"})
_MODE = pl.col("mode").replace_strict({"inf": "inference", "train": "training"})


def _call(**shape: str | pl.Expr) -> Rows:
    """A row reader for a table of single calls: `shape` says where the family's sizes, and whatever else it knows, come from."""

    def rows(raw: pl.DataFrame, family: str) -> pl.DataFrame:
        return raw.select("gpu", "origin_row", _SECONDS, _DTYPE, kernel="kernel_name", engine_version="torch_version", **shape)

    return rows


def _gemm(**more: pl.Expr) -> Rows:
    """The raw N is summed over: bmm is [B, M, N] x [B, N, K], linear is N -> K features on M rows."""
    cublas = pl.when(pl.col("vendor") == "NVIDIA").then(pl.lit("cublas"))
    return _call(m="M", n="K", k="N", batch="B", identity=cublas, **more)


def _step(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    """Batch is global. The four-GPU runs were timed by another harness, which kept the 10 fastest of 50 and only the total."""
    parallel = pl.col("option").str.extract(r"^([dtp]p)4")
    degrees = {axis: pl.when(parallel == axis).then(4).otherwise(1) for axis in ("tp", "pp", "dp")}
    # 5.9 times the time of batch 1, and 1.7 times the sum of its own operators.
    anomalous = (pl.col("gpu") == "mi210") & (pl.col("model") == "gpt2_large") & (pl.col("mode") == "train") & (pl.col("batch") == 4)
    single = pl.col("n_gpus") == 1
    return one_row_each(raw, {"fw_ms": "forward", "bw_ms": "backward", "e2e_ms": "total"}, "metric", "latency_ms").select(
        *("gpu", "origin_row", _SECONDS, _DTYPE, "metric", "model", _MODE, "batch", "seq_len"),
        engine_version="torch_version",
        statistic=pl.when(single).then(pl.lit("mean of 5 fastest of 25")).otherwise(pl.lit("mean of 10 fastest of 50")),
        num_repeats=pl.when(single).then(5).otherwise(10),
        set_aside=pl.when(anomalous).then(pl.lit(ANOMALOUS)),
        num_gpus="n_gpus",
        option=pl.when(pl.col("option") != "").then(pl.col("option")),
        attributes=pl.struct("num_layer").struct.json_encode(),
        **degrees,
    )


def _layer(raw: pl.DataFrame, family: str) -> pl.DataFrame:
    """One row for each pass of each node of a traced one-layer model; `repeat` in the attributes makes it the full one."""
    # Taken before the clocks had come up: the operators add up to 1.2-1.5 times the whole model's time.
    ramping = (pl.col("gpu") == "a100-pcie-40gb") & pl.col("model").is_in(["bert_large", "gpt2_large"])
    target = pl.col("target").str.replace(r" at 0x[0-9a-f]+", "")  # an address of the process that traced the model
    phases = {"fw_ms": "forward", "bw_ms": "backward", "acc_ms": "accumulate"}
    return one_row_each(raw, phases, "phase", "latency_ms").select(
        *("gpu", "origin_row", _SECONDS, "phase", "model", "batch"),
        engine_version=pl.when(pl.col("vendor") == "NVIDIA").then(pl.lit("2.1.0")).otherwise(pl.lit("2.4.1")),
        kernel=target,
        clock=pl.when(ramping).then(pl.lit("ramping")),
        set_aside=pl.when(ramping).then(pl.lit(RAMPING)),
        op=pl.coalesce("ns_opname", target),
        q_len="seq_len",
        num_tokens=pl.col("batch") * pl.col("seq_len"),
        attributes=pl.struct(_MODE, "name", "op_class", "section", "repeat", "input_shapes", "output_shape").struct.json_encode(),
    )


_KERNEL = "dtype latency_ms split kernel_name torch_version"
_ROWS = _call(rows="B", cols="H")
# Boards of 70 to 75 W, swept until they throttled, as far as they were hot: two campaigns of one kernel are 1.25 times (T4) and four
# times (P4) apart. L4 has one campaign, as far below its peak.
_HOT = pl.when(pl.col("gpu").is_in(["l4", "p4", "t4"])).then(pl.lit("throttled"))

FILES: Mapping[str, RawFile] = {
    "bmm.parquet": RawFile(
        families=("gemm",), columns=f"{_KERNEL} vendor B M N K", rows=_gemm(clock=_HOT), constants={**_CALL, "bias": False}, by_split=True
    ),
    "linear.parquet": RawFile(
        families=("gemm",), columns=f"{_KERNEL} vendor B M N K", rows=_gemm(clock=_HOT), constants={**_CALL, "bias": True}, by_split=True
    ),
    "conv.parquet": RawFile(
        families=("conv2d",),
        columns=f"{_KERNEL} B in_ch out_ch ksize in_size stride padding",
        rows=_call(
            batch="B",
            in_channels="in_ch",
            out_channels="out_ch",
            height="in_size",
            width="in_size",
            kernel_size="ksize",
            stride="stride",
            padding="padding",
        ),
        constants=_CALL,
        by_split=True,
    ),
    "elementwise.parquet": RawFile(
        families=("elementwise",),
        columns=f"{_KERNEL} op B H",
        rows=_call(op="op", numel=pl.col("B") * pl.col("H")),
        constants=_CALL,
        by_split=True,
    ),
    "softmax.parquet": RawFile(families=("softmax",), columns=f"{_KERNEL} B H", rows=_ROWS, constants=_CALL, by_split=True),
    "layernorm.parquet": RawFile(families=("layer_norm",), columns=f"{_KERNEL} B H", rows=_ROWS, constants=_CALL, by_split=True),
    "e2e_labels.parquet": RawFile(
        families=("step",),
        columns="model mode seq_len batch option num_layer e2e_ms fw_ms bw_ms n_gpus dtype torch_version",
        rows=_step,
        constants={"engine": "pytorch", "timer": "event"},
    ),
    "perop_labels.parquet": RawFile(
        families=("layer",),
        columns="vendor model mode seq_len batch name target ns_opname op_class section repeat input_shapes output_shape "
        "fw_ms bw_ms acc_ms",
        rows=_layer,
        constants={**_CALL, "dtype": "fp32", "tp": 1},
    ),
}


class Neusight(ParquetFolder):
    name = "neusight"
    licence = "MIT"
    home = "https://github.com/sitar-lab/NeuSight @ 6945927"
    gpus = GPUS
    files = FILES


SOURCE = Neusight()
