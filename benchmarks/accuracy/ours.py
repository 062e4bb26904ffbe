"""Our own predictors as contenders: the package's answers for schema rows, with weights fitted on the suite's training side only."""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy.predictors import Predictor, Seconds
from tilecast import hardware
from tilecast.datasets.schema import SHAPES
from tilecast.errors import InvalidInput, MissingData, SpecError
from tilecast.execution import Protocol
from tilecast.kernels.base import execution_of, priced
from tilecast.kernels.registry import kernels
from tilecast.learning.features import SIZES, launches
from tilecast.predictors.kernel import KernelPrediction, predict_kernel
from tilecast.predictors.law import Asked, lawful

LEFT_OUT_ROWS, HELD_OUT_ROWS = 10_000, 16_000  # a suite fits many times; its intervals come from fits with fewer rows
IDENTITY = ("gpu", "engine", "dtype", "identity", "timer", "cache")


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that differ only in sizes, as one kernel record."""

    rows: np.ndarray
    kernel: Any
    gpu: hardware.GpuSpec
    protocol: Protocol
    engine: str


class Analytic:
    """Physics alone: `analytic_s`, with nothing learned."""

    name = "analytic"
    kind = "ours"

    def fit(self, train: pl.DataFrame, family: str) -> Predictor:
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        return _answered(rows, family, lambda group: execution_of(group.kernel, group.gpu, group.protocol).analytic_s)


class Learned:
    """The learned correction, fitted on the suite's training rows; physics alone where there is nothing to learn from."""

    name = "tilecast"
    kind = "ours"

    def __init__(
        self, errors: Collection[str] = ("interpolated",), own: Collection[str] | None = None, shared_rows: int | None = None
    ) -> None:
        self.errors = errors  # whose intervals are asked for
        self.own = own  # GPUs that get trees of their own; none of the others is asked for
        self.shared_rows = shared_rows
        self.correction: Any = None

    def fit(self, train: pl.DataFrame, family: str) -> Predictor:
        from tilecast.learning import recipes, training

        self.correction = None
        settings = replace(recipes.settings_of(family), left_out_rows=LEFT_OUT_ROWS, held_out_rows=HELD_OUT_ROWS)
        settings = replace(settings, shared_rows=self.shared_rows or settings.shared_rows)
        if family in SIZES and train.height:
            with suppress(MissingData):  # too few rows: physics alone
                self.correction = training.fit(train, family, settings=settings, errors=self.errors, own=self.own, say=_quiet)
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        return _answered(rows, family, lambda group: self._interval(group)[1])

    def interval(self, rows: pl.DataFrame, family: str) -> tuple[Seconds, Seconds]:
        """(low, high) of every row."""
        low = _answered(rows, family, lambda group: self._interval(group)[0])
        return low, _answered(rows, family, lambda group: self._interval(group)[2])

    def _interval(self, group: Group) -> tuple[Seconds, Seconds, Seconds]:
        """(low, median, high) as the predictor makes them; without a correction there is no interval to score."""
        time = priced(group.kernel, group.gpu, group.protocol)
        analytic_s = np.atleast_1d(time.analytic_s)
        found = launches(group.kernel, group.gpu, time, group.protocol, group.engine) if self.correction is not None else None
        if found is None or not self.correction.knows(found.names["dtype"]):
            nothing = np.full(len(analytic_s), np.nan)
            return nothing, analytic_s, nothing
        corrected = self.correction.correct(found, group.gpu)
        learned_s = np.maximum(analytic_s * np.exp(corrected.log_ratio), time.bound_s)
        physics, learned = lambda kernel: priced(kernel, group.gpu, group.protocol), lambda kernel: self._learned_s(group, kernel)
        said = self.correction.of_slice(found.names, group.gpu)
        median_s = np.atleast_1d(lawful(group.kernel, time, learned_s, Asked(physics, learned, said.built, said.lowest)))
        factor = np.exp(corrected.width)
        low_s, high_s = np.minimum(learned_s, median_s) / factor, np.maximum(learned_s, median_s) * factor
        return np.maximum(low_s, time.bound_s), median_s, high_s

    def _learned_s(self, group: Group, kernel: Any) -> Seconds:
        """The median before the law of doubling, of another launch of the group's."""
        time = priced(kernel, group.gpu, group.protocol)
        found = self.correction.correct(launches(kernel, group.gpu, time, group.protocol, group.engine), group.gpu)
        return np.asarray(np.maximum(time.analytic_s * np.exp(found.log_ratio), time.bound_s))


def shipped(rows: pl.DataFrame, family: str) -> Seconds:
    """The package's own answer for every row, under the row's protocol and engine."""
    return _answered(rows, family, lambda group: _predicted(group).median_s)


def shipped_and_learned(rows: pl.DataFrame, family: str) -> tuple[Seconds, Seconds]:
    """The same, and what it was before the law of doubling."""
    learned_s = np.full(rows.height, np.nan)

    def median_s(group: Group) -> Seconds:
        found = _predicted(group)
        learned_s[group.rows] = found.learned_s
        return found.median_s

    return _answered(rows, family, median_s), learned_s


def _predicted(group: Group) -> KernelPrediction:
    return predict_kernel(group.kernel, group.gpu, timer=group.protocol.timer, cache=group.protocol.cache, engine=group.engine)


def _quiet(_: str) -> None:
    """Suites tell their own progress."""


def _answered(rows: pl.DataFrame, family: str, seconds: Callable[[Group], Seconds]) -> Seconds:
    """Seconds of every row; what a model refuses stays nan and counts as unanswered."""
    answer = np.full(rows.height, np.nan)
    for group in groups(rows, family):
        try:
            answer[group.rows] = np.broadcast_to(seconds(group), len(group.rows))
        except (InvalidInput, SpecError):
            continue
    return answer


def groups(rows: pl.DataFrame, family: str) -> Iterator[Group]:
    record = kernels().get(family)
    if record is None:
        return
    known = {entry.name for entry in fields(record)}
    parameters = [name for name in SHAPES[family] if name in known]
    numbers = [name for name in parameters if SHAPES[family][name] == pl.Int64]
    texts = [name for name in parameters if name not in numbers and name != "node"]  # the data's boxes are not the catalogue's
    # A size that is empty takes its default, so rows are told apart by which are.
    empty = [pl.col(name).is_null().alias(f"_{name}") for name in numbers]
    keyed = rows.select(*(pl.col(name).cast(pl.String) for name in IDENTITY), *texts, *numbers, *empty).with_row_index("_row")
    for _, part in keyed.group_by(*IDENTITY, *texts, *(f"_{name}" for name in numbers), maintain_order=True):
        first = part.row(0, named=True)
        arguments = {name: first[name] for name in texts if first[name] is not None}
        arguments |= {name: part[name].to_numpy() for name in numbers if first[name] is not None}
        if "identity" in known:
            arguments["identity"] = first["identity"]
        if "engine" in known:
            arguments["engine"] = first["engine"]
        try:
            built = record(dtype=first["dtype"], **arguments)
        except (InvalidInput, TypeError):  # a parameter the data does not have
            continue
        protocol = Protocol(first["timer"], first["cache"] or "warm")
        yield Group(part["_row"].to_numpy(), built, hardware.gpu(first["gpu"]), protocol, first["engine"] or "")
