"""Fit constants/moe.toml on training shapes of the wheel: `python -m benchmarks.fit.moe [--rows 70] [--steps 80]` prints the new values.

The objective is the mean over (GPU, engine) of the mean absolute relative error and the mean absolute log ratio, half each: the first is
what the accuracy suite scores, the second keeps the fit from preferring answers that are too fast.
"""

import argparse
from dataclasses import asdict, fields, replace
from unittest.mock import patch

import numpy as np
import polars as pl
from scipy.optimize import minimize

from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.execution import Protocol, analyse
from tilecast.kernels import moe

DTYPES = ("bf16", "fp8", "fp8_block", "nvfp4")
SIZES = ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "tp", "ep")
OTHER_VENDORS = ("arc-b60",)  # tasks on SMs describe them badly


def measured() -> pl.DataFrame:
    """Usable rows of the newest engines in the scored dtypes."""
    frame = splits.newest(store.rows("moe", ["aiconfigurator"]))
    return frame.filter(pl.col("dtype").cast(pl.String).is_in(DTYPES) & ~pl.col("gpu").cast(pl.String).is_in(OTHER_VENDORS))


def predicted(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows with their analytic time, `analytic_s`."""
    parts = []
    told_apart = ("gpu", "dtype", "identity", "timer", "cache", "engine")
    for (gpu_id, dtype, identity, timer, cache, engine), rows in frame.group_by(told_apart, maintain_order=True):
        gpu, protocol = hardware.gpu(str(gpu_id)), Protocol(timer=str(timer), cache=str(cache))
        texts = {name: rows[name].cast(pl.String).to_numpy().astype(str) for name in ("distribution", "moe_pass")}
        kernel = moe.Moe(
            **{name: rows[name].to_numpy() for name in SIZES},
            **texts,
            gated=rows["gated"].to_numpy(),
            dtype=str(dtype),
            identity=None if identity is None else str(identity),
            engine=str(engine),
        )
        parts.append(rows.with_columns(analytic_s=analyse(kernel.tasks(gpu, protocol), gpu, protocol).analytic_s))
    return pl.concat(parts)


def error(frame: pl.DataFrame) -> tuple[float, float]:
    """(mean absolute relative error, mean absolute log ratio), each a mean over (GPU, engine)."""
    ratio = pl.col("analytic_s") / pl.col("latency_s")
    slices = frame.group_by("gpu", "engine").agg(relative=(ratio - 1).abs().mean(), log=ratio.log().abs().mean())
    return float(slices["relative"].to_numpy().mean()), float(slices["log"].to_numpy().mean())


def fit(train: pl.DataFrame, num_steps: int) -> moe.MoeConstants:
    start = moe.moe_constants()
    names = [entry.name for entry in fields(start)]

    def constants_at(x: np.ndarray) -> moe.MoeConstants:
        return replace(start, **{name: getattr(start, name) * float(np.exp(step)) for name, step in zip(names, x, strict=True)})

    def objective(x: np.ndarray) -> float:
        with patch.object(moe, "moe_constants", lambda: constants_at(x)):
            return 0.5 * sum(error(predicted(train)))

    simplex = np.vstack([np.zeros(len(names)), 0.2 * np.eye(len(names))])
    found = minimize(objective, simplex[0], method="Nelder-Mead", options={"maxfev": num_steps, "initial_simplex": simplex})
    return constants_at(found.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=70, help="rows of each GPU, engine and dtype")
    parser.add_argument("--steps", type=int, default=80, help="evaluations of the objective")
    asked = parser.parse_args()
    train, _, split = splits.by_shape(measured(), "moe")
    slices = train.group_by("gpu", "engine", "dtype", maintain_order=True)
    sample = pl.concat([rows.sample(min(rows.height, asked.rows), seed=0) for _, rows in slices])
    print(split, f"fitting on {sample.height} rows; before: relative {error(predicted(sample))[0]:.4f}")
    for name, value in asdict(fit(sample, asked.steps)).items():
        print(f"{name} = {value:.4g}")


if __name__ == "__main__":
    main()
