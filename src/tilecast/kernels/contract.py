"""The check every kernel family passes: run it on your own class before you trust it (`check_kernel`)."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from tilecast import hardware
from tilecast.errors import InvalidInput, SpecError
from tilecast.execution import Protocol
from tilecast.execution.protocol import CACHES, TIMERS
from tilecast.kernels.base import execution_of

GPUS = ("h100-sxm", "a100-sxm-80gb", "l40s", "b200-sxm", "t4", "mi300x")
NEVER_SIZES = ("num_kv_heads", "stride", "num_gpus", "topk", "tp", "ep", "padding", "window", "num_nodes", "gpus_per_node")


def check_kernel(kernel: Any, example: Mapping[str, Any]) -> None:
    """Raise AssertionError, with what is wrong, unless `kernel(**example)` behaves as a kernel family must on several GPUs."""
    is_record: bool = is_dataclass(kernel)
    assert is_record, f"{kernel} must be a dataclass"
    assert isinstance(getattr(kernel, "family", None), str), f"{kernel.__name__} must name its family"
    built = kernel(**example)
    for name in GPUS:
        gpu = hardware.gpu(name)
        for protocol in (Protocol(timer, cache) for timer in TIMERS for cache in CACHES):
            try:
                analysis = execution_of(built, gpu, protocol)
            except SpecError:
                continue  # a dtype this GPU lacks
            where = f"{kernel.family} on {name}, {protocol}"
            assert np.isfinite(analysis.analytic_s).all(), f"{where}: time is not finite"
            assert (analysis.analytic_s > 0).all(), f"{where}: time is not positive"
            assert (analysis.bound_s > 0).all(), f"{where}: nothing takes no time, but that is its bound"
            assert (analysis.analytic_s >= analysis.bound_s).all(), f"{where}: {analysis.analytic_s} beats the bound {analysis.bound_s}"
    _check_sizes(kernel, example)


def _check_sizes(kernel: Any, example: Mapping[str, Any]) -> None:
    """Each size: an array is its members, twice the size is never faster by more than tile choice explains, and zero is refused."""
    gpu, protocol = hardware.gpu("h100-sxm"), Protocol()
    numbers = [name for name, value in example.items() if type(value) is int and name not in NEVER_SIZES]
    assert numbers, f"{kernel.family}: the example has no sizes"
    for name in numbers:
        once, twice = example[name], 2 * example[name]
        try:
            alone = [execution_of(kernel(**{**example, name: size}), gpu, protocol).analytic_s[0] for size in (once, twice)]
            both = execution_of(kernel(**{**example, name: np.array([once, twice])}), gpu, protocol).analytic_s
        except InvalidInput:
            continue  # twice this size is no valid launch, such as more queries than keys
        np.testing.assert_allclose(both, alone, rtol=1e-9, err_msg=f"{kernel.family}: an array of {name} is not its members")
        assert alone[1] >= 0.97 * alone[0], f"{kernel.family}: twice {name} takes less time ({alone[0]} to {alone[1]})"
    for bad in (0, -1, 1.5):
        try:
            execution_of(kernel(**{**example, numbers[0]: bad}), gpu, protocol)
        except InvalidInput as problem:
            assert "\n" not in str(problem), f"{kernel.family}: {numbers[0]} = {bad} is refused in more than one line"
            assert numbers[0] in str(problem), f"{kernel.family}: the message for {numbers[0]} = {bad} does not name it: {problem}"
        else:
            raise AssertionError(f"{kernel.family} accepts {numbers[0]} = {bad}")
