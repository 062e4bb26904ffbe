"""InferSim's benchmarks: DeepGEMM, grouped GEMM, FA3, FlashInfer, MLA, sparse and linear attention on H20 and H800."""

from tilecast.datasets.sources.base import DataSource
from tilecast.datasets.sources.extra.source import ExtraSource

SOURCE: DataSource = ExtraSource(
    name="infersim",
    licence="Apache-2.0",
    home="https://github.com/alibaba/InferSim @ f2293da",
    tags=("infersim",),
    files=("attention_ops.parquet", "gemm_extra.parquet", "moe_extra.parquet"),
)
