"""What measures: anything that can say how long one pass of the kernel takes with one configuration."""

from collections.abc import Mapping
from typing import Protocol

from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.kernels.moe import Moe


class Runner(Protocol):
    def time_s(self, launch: Moe, config: Mapping[str, int]) -> float | None:
        """Seconds of one launch; None where this configuration does not run."""
        ...


def runner_for(text: str, gpu: GpuSpec) -> Runner:
    """ "triton" times on the GPU that is here, which has to be `gpu`; a .csv file has times that were taken elsewhere."""
    if text == "triton":
        from tilecast.tuning.runners.triton_kernel import TritonRunner

        return TritonRunner(gpu)
    if text.endswith(".csv"):
        from tilecast.tuning.runners.replay import replay_of

        return replay_of(text)
    raise InvalidInput(f"--measure {text!r} must be 'triton' or a .csv file of recorded times")
