"""Tilecast forecasts how fast a GPU runs deep-learning work, before anyone owns the GPU.

>>> import tilecast
>>> tilecast.gpu("h100-sxm").dram_bytes_per_s
3352000000000.0
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> where it lives. Nothing is imported until it is asked for, so `import tilecast` costs next to nothing.
_EXPORTS = {
    "GpuSpec": "tilecast.hardware",
    "NodeSpec": "tilecast.hardware",
    "gpu": "tilecast.hardware",
    "gpus": "tilecast.hardware",
    "node": "tilecast.hardware",
    "nodes": "tilecast.hardware",
    "predict": "tilecast.engines.predict",
    "predict_kernel": "tilecast.predictors",
    "predict_load": "tilecast.serving.load",
    "TilecastError": "tilecast.errors",
}

if TYPE_CHECKING:
    from tilecast.engines.predict import predict
    from tilecast.errors import TilecastError
    from tilecast.hardware import GpuSpec, NodeSpec, gpu, gpus, node, nodes
    from tilecast.predictors import predict_kernel
    from tilecast.serving.load import predict_load

__all__ = [
    "GpuSpec",
    "NodeSpec",
    "TilecastError",
    "__version__",
    "gpu",
    "gpus",
    "node",
    "nodes",
    "predict",
    "predict_kernel",
    "predict_load",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'tilecast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_EXPORTS, "__version__"]
