"""One file per model family: config.json in, ModelConfig and the operations of a step out."""

from tilecast.workloads.architectures.base import Architecture, architecture, architectures, read_config

__all__ = ["Architecture", "architecture", "architectures", "read_config"]
