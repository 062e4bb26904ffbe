"""The baselines of every table: roofline, a padded roofline, the nearest measured shape, and plain regression."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.accuracy.predictors import Predictor, Seconds
from benchmarks.accuracy.roofline import compute_rate, facts, roofline_s
from tilecast import hardware
from tilecast.datasets.schema import SHAPES

Indices = NDArray[np.int64]

KERNEL = ("engine", "identity", "dtype", "timer", "cache")  # beside the GPU and the shape columns that are no sizes
STEPS_PER_OCTAVE = 64  # of the grid that log sizes are rounded to, which makes distances whole numbers and ties the same everywhere
EXACT_FLOAT32 = 1 << 24
BLOCK = 1 << 22  # distances computed at a time


def baselines() -> list[Predictor]:
    return [Roofline(), PaddedRoofline(), NearestShape(), Regression()]


@dataclass(slots=True)
class Roofline:
    """The larger of FLOP / published rate and bytes / bandwidth. Learns nothing."""

    name: str = "roofline"
    kind: str = "baseline"

    def fit(self, train: pl.DataFrame, family: str) -> "Roofline":
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        return roofline_s(rows, family)


@dataclass(slots=True)
class PaddedRoofline:
    """A roofline as engineers use it: 80 % of the peaks are reached, and a launch costs 3 us."""

    name: str = "roofline / 0.8 + 3 us"
    kind: str = "baseline"

    def fit(self, train: pl.DataFrame, family: str) -> "PaddedRoofline":
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        return roofline_s(rows, family) / 0.8 + 3e-6


def sizes(family: str) -> list[str]:
    return [name for name, kind in SHAPES[family].items() if kind == pl.Int64]


def _words(family: str) -> list[str]:
    """Shape columns that are no sizes; lists of a ragged batch are left out, they are as good as unique."""
    return [name for name, kind in SHAPES[family].items() if kind in (pl.Categorical, pl.Boolean)]


def _log2_sizes(rows: pl.DataFrame, family: str) -> NDArray[np.float64]:
    """One column per size; an absent size counts as 1."""
    columns = [np.log2(np.maximum(rows[name].fill_null(1).to_numpy(), 1)) for name in sizes(family)]
    return np.stack(columns, axis=1) if columns else np.zeros((rows.height, 0))


@dataclass(slots=True)
class NearestShape:
    """The latency of the nearest measured shape of the same kernel, scaled by the ratio of rooflines.

    Near is Euclidean in log sizes, among rows of the same GPU, engine, identity, dtype, timer, cache and mode. A kernel that was not
    measured on the GPU is looked up under any engine and identity there, then on the GPU nearest in rate and bandwidth, and so on.
    """

    max_rows: int = 24000  # training rows kept of each kernel on each GPU
    seed: int = 0
    name: str = "nearest shape"
    kind: str = "baseline"
    train_: pl.DataFrame = field(default_factory=pl.DataFrame)
    seconds_per_roofline_: Seconds = field(default_factory=lambda: np.zeros(0))
    points_: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    members_: Mapping[tuple[str, str, str], Indices] = field(default_factory=dict)

    def fit(self, train: pl.DataFrame, family: str) -> "NearestShape":
        order = np.random.default_rng(self.seed).permutation(train.height)
        keys = [*("gpu", *KERNEL), *_words(family)]
        self.train_ = train[order].filter(pl.int_range(pl.len()).over(keys) < self.max_rows) if train.height else train
        self.seconds_per_roofline_ = self.train_["latency_s"].to_numpy() / roofline_s(self.train_, family)
        self.points_ = _grid(self.train_, family)
        self.members_ = {key: indices for level in ("kernel", "any") for key, indices in _groups(self.train_, family, level)}
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        ratio = np.full(rows.height, np.nan)
        points = _grid(rows, family)
        modes = {int(row): mode for (_, _, mode), positions in _groups(rows, family, "any") for row in positions}
        for (_, gpu, kernel), asked in _groups(rows, family, "kernel"):
            dtype = str(rows["dtype"][int(asked[0])])
            known = self._nearest_measured(gpu, kernel, modes[int(asked[0])], dtype, family)
            if known is not None:
                ratio[asked] = self.seconds_per_roofline_[known[nearest(points[asked], self.points_[known])]]
        return ratio * roofline_s(rows, family)

    def _nearest_measured(self, gpu: str, kernel: str, mode: str, dtype: str, family: str) -> Indices | None:
        measured = sorted(set(self.train_["gpu"].cast(pl.String).unique())) if self.train_.height else []
        for other in sorted(measured, key=lambda name: (_unlikeness(gpu, name, dtype, family), name)):
            for key in (("kernel", other, kernel), ("any", other, mode)):
                if key in self.members_:
                    return self.members_[key]
        return None


def _groups(rows: pl.DataFrame, family: str, level: str) -> Iterator[tuple[tuple[str, str, str], Indices]]:
    """((level, GPU, kernel as text), the rows' positions); level "any" leaves the engine, identity, timer and cache out."""
    names = [*(KERNEL if level == "kernel" else ("dtype",)), *_words(family)]
    text = pl.concat_str([pl.col(name).cast(pl.String).fill_null("-") for name in names], separator="|")
    keyed = rows.select(pl.col("gpu").cast(pl.String), text.alias("kernel"), pl.int_range(pl.len()).alias("row"))
    for gpu, kernel, positions in keyed.group_by("gpu", "kernel", maintain_order=True).agg("row").iter_rows():
        yield (level, gpu, kernel), np.asarray(positions, dtype=np.int64)


def _grid(rows: pl.DataFrame, family: str) -> NDArray[np.float64]:
    return np.rint(_log2_sizes(rows, family) * STEPS_PER_OCTAVE)


def nearest(asked: NDArray[np.float64], known: NDArray[np.float64]) -> Indices:
    """For each row of `asked` the position in `known` nearest to it (whole numbers; the first one among equals)."""
    varies = (known != known[0]).any(axis=0) | (asked != known[0]).any(axis=0)
    middle = np.rint((known[:, varies].min(axis=0) + known[:, varies].max(axis=0)) / 2)
    a, b = asked[:, varies] - middle, known[:, varies] - middle
    largest = (a**2).sum(axis=1).max() + (b**2).sum(axis=1).max()
    kind = np.float32 if 2 * largest < EXACT_FLOAT32 else np.float64
    a, b = a.astype(kind), b.astype(kind)
    b_squared = (b**2).sum(axis=1)
    found = np.empty(len(a), dtype=np.int64)
    step = max(1, BLOCK // len(b))
    for start in range(0, len(a), step):
        found[start : start + step] = np.argmin(b_squared - 2 * (a[start : start + step] @ b.T), axis=1)
    return found


def _unlikeness(gpu: str, other: str, dtype: str, family: str) -> float:
    """How far apart two rooflines are: the log ratios of rate and bandwidth."""
    one, two = hardware.gpu(gpu), hardware.gpu(other)
    rates = compute_rate(one, dtype, family) / compute_rate(two, dtype, family)
    return float(abs(np.log(rates)) + abs(np.log(one.dram_bytes_per_s / two.dram_bytes_per_s)))


@dataclass(slots=True)
class Regression:
    """Least squares of log latency on the logs of FLOP, bytes, sizes, rate, bandwidth and SM count; one fit per dtype.

    A slight ridge settles what few GPUs leave open: without it, a GPU whose facts lie outside theirs is off by powers of ten.
    """

    ridge: float = 1e-2  # variance of a log feature below which its slope is not believed
    name: str = "regression"
    kind: str = "baseline"
    weights_: dict[str, tuple[Seconds, float]] = field(default_factory=dict)  # dtype -> slopes, intercept

    def fit(self, train: pl.DataFrame, family: str) -> "Regression":
        features, log_s = _features(train, family), np.log(train["latency_s"].to_numpy())
        self.weights_ = {dtype: self._solved(features[rows], log_s[rows]) for dtype, rows in _by_dtype(train)}
        return self

    def predict(self, rows: pl.DataFrame, family: str) -> Seconds:
        features, log_s = _features(rows, family), np.full(rows.height, np.nan)
        for dtype, members in _by_dtype(rows):
            if dtype in self.weights_:
                slopes, intercept = self.weights_[dtype]
                log_s[members] = features[members] @ slopes + intercept
        return np.asarray(np.exp(np.clip(log_s, -25, 10)), dtype=np.float64)

    def _solved(self, features: NDArray[np.float64], log_s: Seconds) -> tuple[Seconds, float]:
        middle, mean = features.mean(axis=0), float(log_s.mean())
        centred = features - middle
        penalty = np.sqrt(self.ridge * len(log_s)) * np.eye(features.shape[1])
        padded = np.concatenate([log_s - mean, np.zeros(features.shape[1])])
        slopes = np.linalg.lstsq(np.concatenate([centred, penalty]), padded, rcond=None)[0]
        return slopes, mean - float(middle @ slopes)


def _features(rows: pl.DataFrame, family: str) -> NDArray[np.float64]:
    logs = np.log(np.maximum(facts(rows, family).fill_null(1.0).to_numpy(), 1.0))
    return np.column_stack([logs, _log2_sizes(rows, family) * np.log(2)])


def _by_dtype(rows: pl.DataFrame) -> Iterator[tuple[str, Indices]]:
    keyed = rows.select(pl.col("dtype").cast(pl.String), pl.int_range(pl.len()).alias("row"))
    for dtype, positions in keyed.group_by("dtype", maintain_order=True).agg("row").iter_rows():
        yield dtype, np.asarray(positions, dtype=np.int64)
