"""LLMServingSim's profiles: vLLM 0.19 layers and fused attention steps, Hugging Face layers from before, and runs served by vLLM."""

from tilecast.datasets.sources.base import DataSource
from tilecast.datasets.sources.extra.source import ExtraSource

SOURCE: DataSource = ExtraSource(
    name="llmservingsim",
    licence="MIT",
    home="https://github.com/casys-kaist/LLMServingSim @ 5daddb2, and 5f18d86 and older files in its history",
    tags=("llmservingsim", "llmservingsim_history", "llmservingsim_v0"),
    files=("layer_ops.parquet", "attention_ops.parquet", "moe_extra.parquet", "serving_runs/requests.parquet"),
)
