"""From a model and a batch to the kernels of a step, and from their times to the step's."""

from tilecast.workloads.model import ModelConfig, model_config, model_ids

__all__ = ["ModelConfig", "model_config", "model_ids"]
