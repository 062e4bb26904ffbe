"""Our own predictors as contenders: the package's answers for schema rows, with weights fitted on the suite's training side only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy.predictors import Predictor, Seconds
from tilecast import hardware
from tilecast.datasets.schema import SHAPES
from tilecast.errors import InvalidInput, MissingData, SpecError
from tilecast.execution import Protocol
from tilecast.kernels.base import execution_of
from tilecast.kernels.registry import kernels
from tilecast.learning.features import SIZES, launches

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

    def __init__(self, rows_per_slice: int = 2500, local_trees: int = 400) -> None:
        self.rows_per_slice = rows_per_slice
        self.local_trees = local_trees
        self.correction: Any = None

    def fit(self, train: pl.DataFrame, family: str) -> Predictor:
        from tilecast.learning import training

        self.correction = None
        settings = training.Settings(rows_per_slice=self.rows_per_slice, local_trees=self.local_trees)
        if family in SIZES and train.height:
            try:
                data = training.examples(train, family, settings=settings)
                self.correction = training.fit_once(data, family, settings)
            except MissingData:
                pass  # too few rows: physics alone
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        return _answered(rows, family, self._seconds)

    def _seconds(self, group: Group) -> Seconds:
        analysis = execution_of(group.kernel, group.gpu, group.protocol)
        if self.correction is None:
            return analysis.analytic_s
        found = launches(group.kernel, group.gpu, analysis, group.engine)
        if not self.correction.applies_to(found):
            return analysis.analytic_s
        log_ratio = self.correction.correct(found, group.gpu).log_ratio
        return np.asarray(np.maximum(analysis.analytic_s * np.exp(log_ratio), analysis.bound_s))


def _answered(rows: pl.DataFrame, family: str, seconds: Callable[[Group], Seconds]) -> Seconds:
    """Seconds of every row; what a model refuses stays nan and counts as unanswered."""
    answer = np.full(rows.height, np.nan)
    for group in _groups(rows, family):
        try:
            answer[group.rows] = np.broadcast_to(seconds(group), len(group.rows))
        except (InvalidInput, SpecError):
            continue
    return answer


def _groups(rows: pl.DataFrame, family: str) -> Iterator[Group]:
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
