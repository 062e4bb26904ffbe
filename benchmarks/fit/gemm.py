"""python -m benchmarks.fit.gemm: refit the machine's constants on bf16 GEMM training shapes; prints them and the error before and after.

Powell's method on the mean absolute log error, mean over (GPU, engine), with a weak pull towards the present values; seeded, one minute.
Numbers that these rows cannot tell (vector energy, AMD's share, the host's part) stay as they are.
"""

import math
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import polars as pl
from scipy.optimize import minimize

from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.errors import TilecastError
from tilecast.execution import Constants, Protocol, analyse, constants
from tilecast.kernels import gemm

FREE = (
    "launch_cycles", "launch_s", "fill_s", "drain_s", "dram_fraction", "multicast_bytes_per_clock_per_sm",
    "unicast_bytes_per_clock_per_sm", "tensor_fraction", "energy_j_per_flop", "energy_width_power", "burst_s", "l2_over_dram",
)  # fmt: skip
ROWS_PER_SLICE = 500
PULL = 0.02
SEED = 3
KEY = ("gpu", "engine", "identity", "timer", "cache")


def training_slices() -> list[tuple[tuple[str, ...], pl.DataFrame]]:
    rows = splits.newest(store.rows("gemm", ["aiconfigurator"])).with_columns(pl.col(pl.Categorical).cast(pl.String))
    chosen = rows.filter((pl.col("dtype") == "bf16") & (pl.col("batch") == 1) & (pl.col("n") >= 512) & (pl.col("k") >= 512))
    train, _, _ = splits.by_shape(chosen.filter(pl.col("gpu") != "arc-b60"), "gemm")
    groups = train.group_by(*KEY, maintain_order=True)
    return [(tuple(map(str, key)), part.sample(min(ROWS_PER_SLICE, part.height), seed=SEED)) for key, part in groups]


def mean_log_error(slices: list[tuple[tuple[str, ...], pl.DataFrame]], using: Constants) -> float:
    errors: dict[tuple[str, str], list[np.ndarray]] = {}
    gemm._library.cache_clear()  # it keeps what follows from the constants
    with mock.patch.object(gemm, "constants", lambda: using):
        for (gpu_id, engine, identity, timer, cache), part in slices:
            gpu, protocol = hardware.gpu(gpu_id), Protocol(timer, cache)
            launch = gemm.Gemm(m=part["m"].to_numpy(), n=part["n"].to_numpy(), k=part["k"].to_numpy(), identity=identity)
            times = analyse(launch.tasks(gpu, protocol), gpu, protocol, using).analytic_s
            errors.setdefault((gpu_id, engine), []).append(np.abs(np.log(times / part["latency_s"].to_numpy())))
    return float(np.mean([np.concatenate(parts).mean() for parts in errors.values()]))


def main() -> int:
    try:
        slices = training_slices()
    except TilecastError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    now = constants()
    start = np.log([getattr(now, name) for name in FREE])

    def loss(point: np.ndarray) -> float:
        tried = replace(now, **dict(zip(FREE, np.exp(point), strict=True)))
        if max(tried.dram_fraction, tried.tensor_fraction) > 0.98:
            return math.inf
        return mean_log_error(slices, tried) + PULL * float(np.mean((point - start) ** 2))

    found = minimize(loss, start, method="Powell", options={"maxiter": 3, "maxfev": 900, "xtol": 1e-2, "ftol": 1e-4})
    best = replace(now, **dict(zip(FREE, np.exp(found.x), strict=True)))
    print(f"mean |log error|: {mean_log_error(slices, now):.4f} before, {mean_log_error(slices, best):.4f} after")
    for name in FREE:
        print(f"{name:28} {getattr(now, name):12.5g} -> {getattr(best, name):.5g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
