"""Vidur's profiles: the operations of a decoder layer on A100, A40 and H100, collectives, and older files from its git history."""

from tilecast.datasets.sources.base import DataSource
from tilecast.datasets.sources.extra.source import ExtraSource

SOURCE: DataSource = ExtraSource(
    name="vidur",
    licence="MIT",
    home="https://github.com/microsoft/vidur @ 7d47513, and older files in its history",
    tags=("vidur", "vidur_history"),
    files=("layer_ops.parquet", "attention_ops.parquet", "collectives.parquet"),
)
