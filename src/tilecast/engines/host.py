"""What the host adds to a static batch, and how sure that is."""

import math

import numpy as np

from tilecast.engines.base import Engine, Host
from tilecast.engines.interval import Interval
from tilecast.hardware import GpuSpec
from tilecast.learning.calibration import INTERVAL_SIGMAS
from tilecast.learning.profiles import Profile
from tilecast.workloads.aggregate import StepTime
from tilecast.workloads.model import ModelConfig
from tilecast.workloads.parallelism import Shard


def decode_host(engine: Engine, config: ModelConfig, shard: Shard, gpu: GpuSpec, kernels_s: float) -> Interval:
    """Between two steps; with stages, tokens come back from the last one before the first can go on. Where no graph replays a step, also
    what launching its layers takes beyond the time the GPU is busy with them anyway."""
    host = engine.host
    step_s = max(host.decode_step_s, float(engine.fact("decode_step_with_stages_s"))) if shard.pp > 1 else host.decode_step_s
    if gpu.replays_graphs:
        return _spread(step_s + config.num_layers * host.decode_layer_s, host)
    return _spread(step_s + max(0.0, config.num_layers * host.prefill_layer_s - kernels_s), host)


def prefill_host(host: Host, config: ModelConfig, prefill: StepTime, passes: np.ndarray) -> Interval:
    """The fixed part of each pass, and what launching its layers takes beyond the time the GPU is busy with them anyway."""
    launching = config.num_layers * host.prefill_layer_s
    return _spread(float(passes @ (host.prefill_step_s + np.maximum(0.0, launching - prefill.median_s))), host)


def _spread(seconds: float, host: Host) -> Interval:
    return Interval(seconds, seconds * (1.0 - host.spread_fraction), seconds * (1.0 + host.spread_fraction))


def measured_host(profile: Profile, phase: str, host: Interval) -> Interval:
    """The host's part as a measured run tells it; a profile of kernels alone leaves it."""
    factor, width = profile.host(phase, host_spread(host))
    median = host.median * factor
    return Interval(median, median * math.exp(-width), median * math.exp(width))


def host_spread(host: Interval) -> float:
    """The standard deviation of the logarithm of the host's part."""
    return math.log(host.high / host.median) / INTERVAL_SIGMAS if host.median else 0.0
