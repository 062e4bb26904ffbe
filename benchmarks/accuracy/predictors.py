"""What stands in a table of scores: anything that learns from training rows and answers seconds for others."""

from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

Seconds = NDArray[np.float64]


class Predictor(Protocol):
    """A contender. `kind` is "ours", "baseline" or "peer"."""

    name: str
    kind: str

    def fit(self, train: pl.DataFrame, family: str) -> "Predictor":
        """Learn from schema rows of one family; returns itself."""
        ...

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        """Seconds for each row, from everything but its latency; nan where it cannot tell."""
        ...
