"""From a kernel and a GPU to a latency with an interval and a basis."""

from tilecast.predictors.kernel import KernelPrediction, predict_kernel

__all__ = ["KernelPrediction", "predict_kernel"]
