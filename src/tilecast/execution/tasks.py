"""TaskSet: what one launch asks of a machine, split into tasks the way the kernel splits it.

Shapes: L launches, V variants of the kernel (tiles, splits) priced side by side. Every field is an array that broadcasts to (L, V),
so one launch and a million cost the same lines; where all launches and variants have the same, a plain number will do. Work per task
counts padding; `least_*` is what the problem itself needs, the same for all V.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilecast.execution.arithmetic import ceil

Floats = NDArray[np.float64]
Numbers = Floats | float  # the same for all launches and variants, or an array


class TaskSet(NamedTuple):  # made in a third of a frozen dataclass's time, which one warm call would feel
    matrix_dtype: str  # whose tensor (else vector) rate the matrix work runs at
    num_tasks: Numbers
    least_flop: Numbers  # per launch, no padding: with least_bytes, the bound
    least_bytes: Numbers  # per launch, must cross DRAM in the asked cache state
    least_port_bytes: Numbers = 0.0  # per launch, must enter or leave SMs, wherever they lie; 0 where FLOP say more
    matrix_flop: Numbers = 0.0  # per task, padding included
    vector_flop: Numbers = 0.0  # per task, fp32 lanes
    special_ops: Numbers = 0.0  # per task: exp, rsqrt, ...
    l2_bytes: Numbers = 0.0  # per task, read through L2
    shared_bytes: Numbers = 0.0  # per task, through shared memory
    exposed_clocks: Numbers = 0.0  # per task: SM clocks of dependent steps that the pipelines wait for
    dram_bytes: Numbers = 0.0  # per launch, re-reads included
    operand_bytes: Numbers = 0.0  # per launch, each once: wherever they are, L2 hands them out at no more than its own rate
    busiest_tasks: Numbers | None = None  # mean tasks' worth of work on the busiest SM; None: whole tasks dealt round robin
    rounds: Numbers | None = None  # starts on one SM that nothing hides; None: as many as busiest_tasks
    resident: Numbers = 1  # tasks an SM holds at once: their starts hide one another
    dram_fraction: float | None = None  # of nominal DRAM bandwidth; None: the machine's constant
    l2_bytes_per_clock_per_sm: float | None = None  # None: the machine's constant
    hidden_s: Numbers = 0.0  # of the launch: behind the kernel before it
    fixed_s: Numbers = 0.0  # per launch: further small kernels, reductions
    host_calls: Numbers = 1.0  # per launch: kernels that the host starts, those further ones among them
    variants: tuple[str, ...] = ("",)  # what each of the V is called
    own_variant: NDArray[np.str_] | None = None  # (L,) the same where each launch has one of its own, (L, V) where it has its own ones

    def alone(self) -> "TaskSet":
        """One launch's tasks with plain numbers in place of arrays of one entry, and rows (V,) of its variants."""
        given = {name: getattr(self, name) for name in ARRAYS}
        arrays = {name: values.reshape(-1) for name, values in given.items() if isinstance(values, np.ndarray) and values.ndim == 2}
        if not arrays:
            return self
        plain: dict[str, Any] = {name: row.item() if len(row) == 1 else row for name, row in arrays.items()}
        return self._replace(**plain)


NO_ARRAYS = ("matrix_dtype", "dram_fraction", "l2_bytes_per_clock_per_sm", "variants", "own_variant")
ARRAYS = tuple(name for name in TaskSet._fields if name not in NO_ARRAYS)


def ceil_div(numerator: Any, denominator: Any) -> Any:
    return ceil(numerator / denominator)
