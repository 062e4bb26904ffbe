"""One optimizer step over all parameters: a fused kernel touches each tensor once, others pay a pass for every operation."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tilecast.execution import Protocol, TaskSet
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import launch_sizes
from tilecast.kernels.streaming import SLICE, Stream, element_bytes, operation, slices, streaming_tasks


class Rule(NamedTuple):
    """Tensors read and written by a fused step, and by one kernel per operation of the rule; how many operations; work per element."""

    read: int
    written: int
    unfused_read: int
    unfused_written: int
    operations: int
    flop: float
    special_ops: float = 0.0


# Adam, operation by operation: lerp of m, scaling of v, addcmul into v, square root, division, adding epsilon, addcdiv into the parameter.
KINDS = {
    "sgd": Rule(2, 1, 2, 1, 1, 2.0),
    "adam": Rule(4, 3, 11, 7, 7, 14.0, 2.0),
    "adamw": Rule(4, 3, 12, 8, 8, 16.0, 2.0),
}
TENSORS_PER_LAUNCH = 30.0  # that one multi-tensor kernel takes
IMPLEMENTATIONS = ("fused", "foreach", "per_tensor")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptimizerUpdate:
    """`numel` parameters in `num_tensors` tensors; parameter, gradient and state all of `dtype`.

    With `weight_dtype` the optimizer updates a copy of its own in `dtype` (master weights) and writes the model's weights from it;
    gradients then come in `gradient_dtype`, the weights' unless it is said. A fused kernel does it in the same pass; otherwise gradients
    are made wide before, and weights copied after.
    """

    family: ClassVar[str] = "optimizer_update"

    numel: Any
    num_tensors: Any = 1
    kind: str = "adamw"
    implementation: str = "foreach"
    dtype: str = "bf16"
    weight_dtype: str | None = None
    gradient_dtype: str | None = None
    identity: str | None = None

    def tasks(self, gpu: GpuSpec, protocol: Protocol) -> TaskSet:
        size = launch_sizes(numel=self.numel, num_tensors=self.num_tensors)
        rule: Rule = operation(self.kind, KINDS, "kind")
        how: str = operation(self.implementation, {name: name for name in IMPLEMENTATIONS}, "implementation")
        groups = size["num_tensors"] if how == "per_tensor" else (size["num_tensors"] + TENSORS_PER_LAUNCH - 1.0) // TENSORS_PER_LAUNCH
        fused = how == "fused"
        item = element_bytes(self.dtype)
        read, written = (rule.read, rule.written) if fused else (rule.unfused_read, rule.unfused_written)
        read_bytes, written_bytes = read * item, written * item
        if self.weight_dtype is not None:
            gradient = element_bytes(self.gradient_dtype or self.weight_dtype)
            written_bytes += element_bytes(self.weight_dtype)
            if fused:
                read_bytes += gradient - item
            else:
                read_bytes += item + (gradient if gradient != item else 0.0)
                written_bytes += item if gradient != item else 0.0
        stream = Stream(
            blocks=slices(size["numel"]),
            read_bytes=SLICE * read_bytes,
            written_bytes=SLICE * written_bytes,
            flop=rule.flop * SLICE,
            special_ops=rule.special_ops * SLICE,
            launches=groups * (1.0 if fused else self.operations),
        )
        return streaming_tasks(stream, gpu, protocol)

    @property
    def operations(self) -> int:
        """Kernels that an update takes where they are not fused: those of the rule, and of master weights the copies there and back."""
        copies = 0 if self.weight_dtype is None else 1 if self.gradient_dtype == self.dtype else 2
        return KINDS[self.kind].operations + copies


KERNELS = (OptimizerUpdate,)
