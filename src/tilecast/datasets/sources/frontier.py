"""Frontier's profiles: layer operations, FlashInfer attention and MoE on A100, A800, H800 and RTX PRO 6000, by kernel time or events."""

from tilecast.datasets.sources.base import DataSource
from tilecast.datasets.sources.extra.source import ExtraSource

SOURCE: DataSource = ExtraSource(
    name="frontier",
    licence="MIT",
    home="https://github.com/NetX-lab/Frontier @ a4b22df",
    tags=("frontier",),
    files=("layer_ops.parquet", "attention_ops.parquet", "collectives.parquet", "moe_extra.parquet"),
)
