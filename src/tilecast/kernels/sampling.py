"""Sampling one token per row of logits: conversion to fp32, softmax, and the draw, as engines do it without top-k or top-p."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import sizes
from tilecast.kernels.streaming import Stream, element_bytes, streaming_tasks

LAUNCHES = 4.0  # conversion, softmax or maximum, draw, gathering the token
FP32_PASSES = 2.0  # the fp32 copy is written once and read once more


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """`rows` requests over a vocabulary of `cols`."""

    family: ClassVar[str] = "sampling"

    rows: Any
    cols: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = sizes(rows=self.rows, cols=self.cols)
        stream = Stream(
            blocks=size["rows"],
            read_bytes=size["cols"] * element_bytes(self.dtype),
            written_bytes=0.0,
            flop=4.0 * size["cols"],
            special_ops=size["cols"],
            threads=1024.0,
            reduces=True,
            launches=LAUNCHES,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (Sampling,)
