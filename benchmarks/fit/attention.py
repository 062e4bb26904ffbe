"""Refit constants/attention.toml: `python -m benchmarks.fit.attention [--rows N] [--rounds N] [--write]`.

Training shapes only, newest engine versions, a seeded sample of each slice (GPU, engine, formats); the loss is the published score of
prefill plus decode: the mean over slices of the mean absolute relative error. Coordinate descent on the logarithms, for the loss is not
smooth.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.execution import Protocol, analyse
from tilecast.execution.fitted import FOLDER
from tilecast.kernels import attention_loops
from tilecast.kernels.attention import AttentionDecode, AttentionPrefill
from tilecast.kernels.attention_loops import AttentionConstants, attention_constants

FAMILIES = {"attention_prefill": AttentionPrefill, "attention_decode": AttentionDecode}
SHAPE = ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "causal")
SLICE = ("gpu", "engine", "dtype", "kv_dtype")
LAUNCH = (*SLICE, "identity", "cache", "timer")
STEPS = (0.25, -0.25, 0.1, -0.1, 0.03, -0.03)
LEFT_OUT = ("arc-b60",)  # its kernels are not those of this catalogue's identities
SEED = 0


@dataclass(frozen=True, slots=True)
class Launches:
    """Rows that one kernel record can hold."""

    slice: tuple[str, ...]
    kernel: Any
    gpu: hardware.GpuSpec
    protocol: Protocol
    measured_s: np.ndarray


def launches(family: str, rows_per_slice: int) -> Iterator[Launches]:
    train, _, _ = splits.by_shape(splits.newest(store.rows(family, ["aiconfigurator"])), family)
    train = train.with_columns(pl.col(pl.Categorical).cast(pl.String)).filter(~pl.col("gpu").is_in(LEFT_OUT) & pl.col("q_lens").is_null())
    train = train.filter(pl.int_range(pl.len()).shuffle(seed=SEED).over(SLICE) < rows_per_slice)
    for (gpu, engine, dtype, kv_dtype, identity, cache, timer), rows in train.group_by(LAUNCH, maintain_order=True):
        shape: dict[str, Any] = {name: rows[name].to_numpy() for name in SHAPE} | {
            name: rows[name].to_list() for name in ("window", "kv_dtype")
        }
        kernel = FAMILIES[family](**shape, dtype=str(dtype), identity=None if identity is None else str(identity), engine=str(engine))
        protocol = Protocol(timer=str(timer), cache=str(cache))
        yield Launches(
            (str(gpu), str(engine), str(dtype), str(kv_dtype)), kernel, hardware.gpu(str(gpu)), protocol, rows["latency_s"].to_numpy()
        )


def score(all_launches: list[Launches]) -> float:
    """Percent: the mean over slices of each one's mean absolute relative error."""
    errors: dict[tuple[str, ...], list[np.ndarray]] = {}
    for entry in all_launches:
        predicted = analyse(entry.kernel.tasks(entry.gpu, entry.protocol), entry.gpu, entry.protocol).analytic_s
        errors.setdefault(entry.slice, []).append(np.abs(predicted / entry.measured_s - 1.0))
    return float(100.0 * np.mean([np.concatenate(parts).mean() for parts in errors.values()]))


def use(constants: AttentionConstants) -> None:
    """Make the kernels read `constants` in this process."""
    attention_constants.cache_clear()
    setattr(attention_loops, "load", lambda *_: constants)  # noqa: B010


def descend(families: Mapping[str, list[Launches]], start: AttentionConstants, rounds: int) -> AttentionConstants:
    def loss(candidate: AttentionConstants) -> float:
        use(candidate)
        return sum(score(entries) for entries in families.values())

    best, lowest = start, loss(start)
    for number in range(rounds):
        before = lowest
        for name in asdict(start):
            for step in STEPS:
                while (tried := loss(candidate := _moved(best, name, step))) < lowest - 1e-3:
                    best, lowest = candidate, tried
        print(f"round {number + 1}: {lowest:.2f}", flush=True)
        if before - lowest < 0.02:
            break
    use(best)
    return best


def _moved(constants: AttentionConstants, name: str, step: float) -> AttentionConstants:
    return AttentionConstants(**asdict(constants) | {name: getattr(constants, name) * float(np.exp(step))})


def write(constants: AttentionConstants) -> None:
    path = FOLDER / "attention.toml"
    text = path.read_text(encoding="utf-8")
    for name, value in asdict(constants).items():
        text = re.sub(rf"(\[{name}\]\nvalue = )\S+", rf"\g<1>{float(f'{value:.3g}')}", text)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300, help="training rows of each slice")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="put the result into constants/attention.toml")
    asked = parser.parse_args()
    families = {family: list(launches(family, asked.rows)) for family in FAMILIES}
    start = attention_constants()
    print("before:", {family: round(score(entries), 2) for family, entries in families.items()}, flush=True)
    best = descend(families, start, asked.rounds)
    print("after: ", {family: round(score(entries), 2) for family, entries in families.items()})
    for name, value in asdict(best).items():
        print(f"  {name} = {value:.4g} (was {getattr(start, name):.4g})")
    if asked.write:
        write(best)


if __name__ == "__main__":
    main()
