"""Our own predictors as contenders: the package's answers for schema rows."""

from dataclasses import fields

import numpy as np
import polars as pl

from benchmarks.accuracy.predictors import Predictor, Seconds
from tilecast.datasets.schema import SHAPES
from tilecast.errors import InvalidInput, SpecError
from tilecast.kernels.registry import kernels
from tilecast.predictors import predict_kernel

IDENTITY = ("gpu", "dtype", "identity", "timer", "cache")


class Analytic:
    """Physics alone: `analytic_s`, with nothing learned."""

    name = "analytic"
    kind = "ours"

    def fit(self, train: pl.DataFrame, family: str) -> Predictor:
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        answer = np.full(rows.height, np.nan)
        record = kernels().get(family)
        if record is None:
            return answer
        parameters = [name for name in SHAPES[family] if name in {entry.name for entry in fields(record)}]
        numbers = [name for name in parameters if SHAPES[family][name] == pl.Int64]
        texts = [name for name in parameters if name not in numbers and name != "node"]  # the data's boxes are not the catalogue's
        # Rows that differ only in sizes go through the model together; a size that is empty takes its default.
        empty = [pl.col(name).is_null().alias(f"_{name}") for name in numbers]
        keyed = rows.select(*(pl.col(name).cast(pl.String) for name in IDENTITY), *texts, *numbers, *empty).with_row_index("_row")
        for _, part in keyed.group_by(*IDENTITY, *texts, *(f"_{name}" for name in numbers), maintain_order=True):
            first = part.row(0, named=True)
            arguments = {name: first[name] for name in texts if first[name] is not None}
            arguments |= {name: part[name].to_numpy() for name in numbers if first[name] is not None}
            if "identity" in {entry.name for entry in fields(record)}:
                arguments["identity"] = first["identity"]
            try:
                built = record(dtype=first["dtype"], **arguments)
                times = predict_kernel(built, first["gpu"], timer=first["timer"], cache=first["cache"] or "warm", learned=False).analytic_s
            except (InvalidInput, SpecError):
                continue  # what the model refuses counts as unanswered
            answer[part["_row"].to_numpy()] = np.broadcast_to(times, part.height)
        return answer
