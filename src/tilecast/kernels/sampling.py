"""Sampling one token per row of logits: conversion to fp32, softmax, and the draw, as engines do it without top-k or top-p."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import SLICE, Stream, element_bytes, slices, streaming_tasks

LAUNCHES = 4.0  # conversion, softmax or maximum, draw, gathering the token
FP32_READS = 1.0  # of the fp32 copy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """`rows` requests over a vocabulary of `cols`."""

    family: ClassVar[str] = "sampling"

    rows: Any
    cols: Any
    dtype: str = "bf16"
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(rows=self.rows, cols=self.cols)
        stream = Stream(
            blocks=slices(size["rows"] * size["cols"]),
            read_bytes=SLICE * (element_bytes(self.dtype) + FP32_READS * 4.0),
            written_bytes=SLICE * 4.0,
            flop=4.0 * SLICE,
            special_ops=1.0 * SLICE,
            launches=LAUNCHES,
        )
        return streaming_tasks(stream, gpu, protocol)


KERNELS = (Sampling,)
