"""What is changed of PyTorch while it traces, so that a trace has what a GPU runs."""

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import flex_attention
from torch.utils import checkpoint

# Operators that run as one kernel each way, which the tracer would take apart: PyTorch has their parts for machines without the kernel.
WHOLE = ("silu_backward", "upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")


@contextlib.contextmanager
def traced_as_run() -> Iterator[None]:
    with warnings.catch_warnings(), _quiet(), _without_mkldnn(), _whole_operators(), _unpadded(), _flexible():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Recurrent layers are then the products they are made of, not one operator of the CPU's own."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def _whole_operators() -> Iterator[None]:
    """Without the rules, in Python or as a composite, by which the tracer takes the operators of WHOLE apart."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    overloads = [getattr(packet, name) for packet in (getattr(torch.ops.aten, op) for op in WHOLE) for name in packet.overloads()]
    before = [dict(overload.py_kernels) for overload in overloads]
    for overload in overloads:
        for key in (composite, torch._C.DispatchKey.Autograd):
            overload.py_kernels.pop(key, None)
        if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU"):
            overload.py_kernels[composite] = lambda *_, **__: NotImplemented
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, kernels in zip(overloads, before, strict=True):
            overload.py_kernels.clear()
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()


@contextlib.contextmanager
def counted_checkpoints(seen: list[str]) -> Iterator[None]:
    """What a module checkpoints itself runs once, and is noted: a trace does not see the second run, and of the reentrant kind no
    gradient."""
    function, generator = checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator

    class Once:
        @staticmethod
        def apply(run: Any, preserve: bool, *given: Any) -> Any:
            seen.append("reentrant")
            return run(*given)

    def noted(*given: Any, **named: Any) -> Any:
        seen.append("hooks")
        return generator(*given, **named)

    checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator = Once, noted
    try:
        yield
    finally:
        checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator = function, generator


@contextlib.contextmanager
def _unpadded() -> Iterator[None]:
    """Causal masks of Hugging Face as it runs texts of one length: attention is told to be causal. Where it is exported it writes the mask
    out, as it cannot look whether a text is padded or several share a row."""
    masks = sys.modules.get("transformers.masking_utils")
    running = {"is_torchdynamo_exporting": lambda: False, "find_packed_sequence_indices": lambda position_ids: None}
    before = {name: getattr(masks, name) for name in running if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, running[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(masks, name, value)


@contextlib.contextmanager
def _flexible() -> Iterator[None]:
    """flex_attention with gradients, which a GPU has and the CPU has not."""
    before = flex_attention._validate_device
    flex_attention._validate_device = lambda *_: None
    try:
        yield
    finally:
        flex_attention._validate_device = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What PyTorch logs of a trace that fails is said by the error, in one sentence."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == "torch"]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
