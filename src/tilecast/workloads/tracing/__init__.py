"""From an nn.Module to an operator graph (extra `torch`): nothing here is imported unless a model is traced."""

from tilecast.workloads.tracing.trace import trace

__all__ = ["trace"]
