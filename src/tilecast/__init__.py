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
    "diagnose": "tilecast.diagnosis.diagnose",
    "gpu": "tilecast.hardware",
    "gpus": "tilecast.hardware",
    "node": "tilecast.hardware",
    "nodes": "tilecast.hardware",
    "predict": "tilecast.engines.predict",
    "predict_disaggregated": "tilecast.serving.disaggregated",
    "predict_kernel": "tilecast.predictors",
    "predict_load": "tilecast.serving.load",
    "step": "tilecast.engines.step",
    "trace": "tilecast.workloads.tracing",
    "load_graph": "tilecast.workloads.opgraph",
    "TilecastError": "tilecast.errors",
}

_RENAMED = {"step": "predict_step"}  # public name -> its name there, where they differ

if TYPE_CHECKING:
    from tilecast.diagnosis.diagnose import diagnose
    from tilecast.engines.predict import predict
    from tilecast.engines.step import predict_step as step
    from tilecast.errors import TilecastError
    from tilecast.hardware import GpuSpec, NodeSpec, gpu, gpus, node, nodes
    from tilecast.predictors import predict_kernel
    from tilecast.serving.disaggregated import predict_disaggregated
    from tilecast.serving.load import predict_load
    from tilecast.workloads.opgraph import load_graph
    from tilecast.workloads.tracing import trace

__all__ = [
    "GpuSpec",
    "NodeSpec",
    "TilecastError",
    "__version__",
    "diagnose",
    "gpu",
    "gpus",
    "load_graph",
    "node",
    "nodes",
    "predict",
    "predict_disaggregated",
    "predict_kernel",
    "predict_load",
    "step",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), _RENAMED.get(name, name))
    raise AttributeError(f"module 'tilecast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_EXPORTS, "__version__"]
