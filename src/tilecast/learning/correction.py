"""The learned correction of one family: log(measured / analytic) as a GPU's level, plus what shapes do everywhere, plus what they do here.

    correction = level[GPU, what binds] + trees(shape) + trees of this GPU, engine and number format(shape), faded out away from the data

A GPU nobody measured has no level and no trees of its own: it borrows those of a measured GPU with the same die, or keeps what carries
over. A third kind of trees says how large an error to expect of such a launch, which makes the interval. The artifact holds an index of
what it was trained on, from which the basis of a prediction follows without any data.
"""

import json
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import MissingData
from tilecast.execution.arithmetic import clip, entry, exp, maximum, minimum, where
from tilecast.execution.cache import EMPTY, FULL
from tilecast.execution.tasks import Numbers
from tilecast.hardware import GpuSpec, as_catalogued
from tilecast.hardware import gpu as catalogued
from tilecast.kernels.base import Built
from tilecast.learning import tensors
from tilecast.learning.features import COMMON, GROUPS, SIZES, Launches
from tilecast.learning.manifests import FOLDER
from tilecast.learning.tensors import ADVICE
from tilecast.learning.trees import Forest, Grove, Trees, forest, together

SCHEMA = "tilecast.correction/5"
BASES = ("interpolated", "extrapolated-shape", "unseen-gpu", "unseen-generation")
BASIS_NAMES = np.asarray(BASES)
UNSEEN = "unseen"  # a GPU that no row speaks for
SAME_DIE = "same-die"  # a new GPU that a measured one of its die stands in for: surer than other new ones, of the same basis
ERRORS = (*BASES, SAME_DIE)  # what errors are held out, and intervals made, for
RANGE_SLACK = 0.02  # of a feature's range: how far outside still counts as inside
FADE_RANGE = 0.5  # of a feature's range outside it, after which little of the correction is left
LARGEST_CORRECTION = 2.5  # log: beyond a factor of twelve something else is wrong
OFTEN = 0.25  # of the GPUs with rows of a kernel: where so many run another one from a size on, others are taken to do so too
FARTHEST = math.log(2.5)  # between rates of two parts of one die: beyond it another pipeline binds, and the other's errors are not its own
FRAMEWORKS = frozenset(("pytorch", "framework"))  # engines whose rows are calls of a library, not of a server
SAME_HEADROOM = 0.05  # of the highest clock over the rated one, in log
DRAM_SHARE, TRAFFIC = COMMON.index("share dram"), COMMON.index("log traffic over cache")
NARROWEST, WIDEST = 0.01, 1.5  # log: half an interval
ARRAYS = ("level", "low", "high", "quantile")
TREES = {
    "shared": ("feature", "threshold", "leaf"),
    "local": ("feature", "threshold", "leaf", "scale"),
    "spread": ("feature", "threshold", "leaf", "scale"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """One family's weights and index; `load` reads it from the package."""

    family: str
    vocabulary: Mapping[str, list[str]]  # name -> values seen; the rest has no column of its own
    gpus: tuple[str, ...]  # with rows of this family
    archs: tuple[str, ...]
    measured: Mapping[str, Mapping[str, list[str]]]  # GPU -> the kernels measured on it, as `kernel_key` names them -> the engines
    level: NDArray[np.float32]  # (GPUs, groups)
    low: NDArray[np.float32]  # (F,) range of each number in training
    high: NDArray[np.float32]
    shared: Trees
    local: Grove  # by `forest_key`: what is special to a GPU, engine and number format
    as_timed: bool  # whether the shared trees see launches in the state they are timed in
    carry: float  # how much of the shared trees holds on GPUs nobody measured, by leaving architectures out
    warm: frozenset[str]  # keys of `local` whose rows were all timed with what L2 had kept
    spread: Grove  # log of the error to expect: "seen" on GPUs with data, "same-die" where one stands in, "unseen" on others
    quantile: NDArray[np.float64]  # by ERRORS: in units of that error, half the 80 % interval of log(measured / median)
    manifest: Mapping[str, Any]
    digest: str
    sizes: Mapping[str, list[list[float]]] = field(default_factory=dict)  # GPU and kernel -> log2 of its rows' least and largest sizes
    built: Mapping[str, Mapping[str, Built]] = field(default_factory=dict)  # what doubles alone -> `slice_key` -> what rows say of it
    lowest: Mapping[str, float] = field(default_factory=dict)  # `slice_key` or UNSEEN -> the least correction of any of its rows

    def knows(self, dtype: str) -> bool:
        """Whether this dtype was among the training rows; another identity or protocol is near enough, another number format is not."""
        return dtype in self.vocabulary["dtype"]

    def correct(self, launches: Launches, gpu: GpuSpec) -> "Corrected":
        """log(median / analytic), half the interval in log, the basis, and how much of the correction is left here, per launch."""
        speaker = _speaker(self, gpu, tuple(launches.names.items()))
        is_lone = len(launches.numbers) == 1  # then plain numbers do, at a fraction of the cost
        numbers, group = (launches.numbers[0], launches.group.item()) if is_lone else (launches.numbers, launches.group)
        timed = None if not self.as_timed or launches.timed is None else launches.timed[0] if is_lone else launches.timed
        beyond = speaker.range.beyond(numbers)
        fade = exp(-((maximum(beyond - RANGE_SLACK, 0.0) / FADE_RANGE) ** 2))
        shared, own, log_error = speaker.says(numbers, timed)
        if speaker.knows_l2_alone and launches.timed is None:
            own = own * (1.0 - _unseen_share(numbers, gpu))
        log_ratio = fade * (speaker.carry * (shared + own) + entry(speaker.level, group))
        log_ratio = clip(log_ratio, -LARGEST_CORRECTION, LARGEST_CORRECTION)
        far = beyond if speaker.own_range is None else maximum(beyond, speaker.own_range.beyond(numbers))
        outside = where(far > RANGE_SLACK, 1, 0)
        basis = outside if speaker.basis == 0 else speaker.basis
        expected = entry(speaker.quantile, outside) * exp(log_error)
        width = clip(expected, NARROWEST, WIDEST) * (1.0 + minimum(far, 2.0))
        names = BASIS_NAMES[basis : basis + 1] if is_lone else np.broadcast_to(BASIS_NAMES[basis], len(numbers))
        return Corrected(log_ratio, width, names, fade)

    def stand_in(self, gpu: GpuSpec, key: str, engine: str | None = None) -> str | None:
        """The GPU itself where this kernel was measured on it, else the one with the same die whose rates are nearest, if near enough.

        A framework's attention pads and gathers around the kernel, so its rows speak for no engine (`engine` is who asks).
        A board that boosts beyond its rated clock is as much faster than physics says; one that does not boost has nothing of that.
        Of a what-if part: who speaks for the part that was changed, however far; a lever moves the time as physics says."""
        gpu = as_catalogued(gpu)
        if self._has(gpu.id, key, engine):
            return gpu.id
        family = [
            spec
            for spec in map(catalogued, self.gpus)
            if spec.die == gpu.die and self._has(spec.id, key, engine) and abs(math.log(_headroom(spec) / _headroom(gpu))) < SAME_HEADROOM
        ]

        def distance(spec: GpuSpec) -> float:
            """Of the rates that differ most; power is one: what a board has of it, its products run with."""
            shared = set(gpu.tensor_flop_per_s) & set(spec.tensor_flop_per_s)
            pairs = [(gpu.tensor_flop_per_s[name], spec.tensor_flop_per_s[name]) for name in shared]
            pairs += [(gpu.dram_bytes_per_s, spec.dram_bytes_per_s)]
            pairs += [(gpu.tdp_w, spec.tdp_w)] if gpu.tdp_w and spec.tdp_w else []
            return max(abs(math.log(one / other)) for one, other in pairs)

        nearest = min(family, key=distance, default=None)
        return nearest.id if nearest is not None and distance(nearest) < FARTHEST else None

    def _has(self, gpu: str, key: str, engine: str | None) -> bool:
        """Whether this kernel was measured there in a way that speaks for `engine`."""
        engines = self.measured.get(gpu, {}).get(key)
        if engines is None or not self.family.startswith("attention") or not engines or engine in FRAMEWORKS:
            return engines is not None
        return not set(engines) <= FRAMEWORKS

    def tells(self, names: Mapping[str, str], gpu: GpuSpec) -> bool:
        """Whether rows under these names speak for a question that left the identity open, and not those that do not tell theirs."""
        return not _untold(self, gpu, tuple(names.items()))

    def of_slice(self, names: Mapping[str, str], gpu: GpuSpec) -> "OfSlice":
        """What is known of all launches of these names: of the rows that speak for them, or of all rows where none do."""
        return _of_slice(self, gpu, tuple(names.items()))

    def named(self, launches: Launches, gpu: GpuSpec) -> Launches:
        """A question that left the identity open, put to the rows that do not tell theirs where none here has the one SGLang would run."""
        if self.tells(launches.names, gpu):
            return launches
        return launches.called({**launches.names, "identity": "None"})

    def columns(self, launches: Launches) -> NDArray[np.float32]:
        """Numbers and one column per known name."""
        flags = self.flags(launches.names)
        return np.concatenate([launches.numbers, np.broadcast_to(flags, (len(launches.numbers), len(flags)))], axis=1)

    def flags(self, names: Mapping[str, str]) -> NDArray[np.float32]:
        """One for each known name that is among `names`, else zero."""
        return np.array([names.get(name, "") == value for name, values in self.vocabulary.items() for value in values], np.float32)


def _headroom(gpu: GpuSpec) -> float:
    return gpu.highest_clock_hz / gpu.boost_clock_hz


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Both ends of each number in training, (2 F,), and the width in the direction that leads out there."""

    feature: NDArray[np.int64]
    edge: NDArray[np.float32]
    outwards: NDArray[np.float32]

    def beyond(self, numbers: NDArray[np.float32]) -> Any:
        """How far outside the worst feature lies, in widths of its range."""
        outside = (numbers.take(self.feature, axis=-1) - self.edge) / self.outwards
        return maximum(outside.item(outside.argmax()) if numbers.ndim == 1 else outside.max(axis=-1).astype(np.float64), 0.0)


@lru_cache(maxsize=64)
def _range(correction: Correction) -> Range:
    """A flag that never varied says nothing of distance, so its range is endless."""
    varied = correction.high > correction.low
    edges = np.where(varied, [correction.low, correction.high], [[-np.inf], [np.inf]])
    width = np.where(varied, np.maximum(correction.high - correction.low, np.float32(1e-3)), 1.0)
    return Range(np.tile(np.arange(len(varied)), 2), edges.astype(np.float32).ravel(), np.concatenate([-width, width], dtype=np.float32))


@lru_cache(maxsize=1024)
def _untold(correction: Correction, gpu: GpuSpec, asked: tuple[tuple[str, str], ...]) -> bool:
    """Whether rows that do not tell their kernel speak for it: the one it would be was not measured here, or not in an engine with such."""
    names = dict(asked)
    told, untold = kernel_key(names), kernel_key({**names, "identity": "None"})
    known, other = (correction.stand_in(gpu, key, names.get("engine")) for key in (told, untold))
    if known is None or other is None:
        return other is not None
    here = as_catalogued(gpu).id
    if (known == here) != (other == here):  # a GPU's own rows before a relative's
        return other == here
    engine = names.get("engine")
    return engine not in correction.measured[known][told] and engine in correction.measured[other][untold]


def sizes_at(family: str) -> slice:
    """Where the logarithms of a family's sizes stand among its numbers."""
    return slice(len(COMMON), len(COMMON) + len(SIZES.get(family, ())))


@lru_cache(maxsize=1024)
def _own_range(correction: Correction, gpu: str, key: str) -> Range | None:
    """Both ends of the sizes that rows of this kernel on this GPU have; how far is far, the family's rows say."""
    ends = correction.sizes.get(f"{gpu} {key}")
    if ends is None:
        return None
    columns = np.arange(len(correction.low))[sizes_at(correction.family)]
    width = np.maximum((correction.high - correction.low)[columns], np.float32(1e-3))
    return Range(np.tile(columns, 2), np.array(ends, np.float32).ravel(), np.concatenate([-width, width], dtype=np.float32))


@dataclass(frozen=True, slots=True)
class OfSlice:
    """What doubles alone -> what rows say of the kernels built for it; and the least correction, or None."""

    built: Mapping[str, Built]
    lowest: float | None


@lru_cache(maxsize=1024)
def _of_slice(correction: Correction, gpu: GpuSpec, asked: tuple[tuple[str, str], ...]) -> OfSlice:
    names = dict(asked)
    known = correction.stand_in(gpu, kernel_key(names), names.get("engine"))
    key = "" if known is None else slice_key(known, _in_its_engine(correction, names, known))
    lowest = correction.lowest.get(key, correction.lowest.get(UNSEEN, min(correction.lowest.values(), default=None)))
    built = {name: found.get(key) or _built_elsewhere(found, names) for name, found in correction.built.items()}
    return OfSlice({name: said for name, said in built.items() if said is not None}, lowest)


def _built_elsewhere(slices: Mapping[str, Built], names: Mapping[str, str]) -> Built | None:
    """What rows of this kernel say on other GPUs, in this engine where there are any: libraries choose kernels by sizes, by GPU less."""
    kernel = slice_key("", names)
    mine = [said for key, said in slices.items() if key.endswith(kernel)]
    if not mine:
        in_any_engine = kernel.split(" ", 2)[2]
        mine = [said for key, said in slices.items() if key.split(" ", 2)[2] == in_any_engine]
    if not mine:
        return None
    changes = Counter(size for said in mine for size in said.changes)
    often = frozenset(size for size, number in changes.items() if number >= OFTEN * len(mine))
    return Built(frozenset().union(*(said.known for said in mine)), often)


@dataclass(frozen=True, slots=True, eq=False)
class Speaker:
    """What of a correction speaks for one kernel on one GPU, whatever its sizes."""

    forest: Forest  # three sums: trees shared by all, those of this GPU, and the log of the error to expect
    timed_forest: Forest  # the same with shared trees that see launches as timed, in columns behind the numbers
    range: Range  # of the family: what is learned fades out beyond it
    own_range: Range | None  # of this kernel on this GPU: beyond it a launch is no interpolation
    carry: float  # how much of the trees holds here
    level: NDArray[np.float64]
    basis: int  # of launches inside the training range: index into BASES
    quantile: NDArray[np.float64]  # of launches inside and outside that range
    knows_l2_alone: bool = False  # its rows that fit into L2 were found there

    def says(self, numbers: NDArray[np.float32], timed: NDArray[np.float32] | None) -> tuple[Any, Any, Any]:
        """What trees of all and of this GPU add, and the log of the error to expect. `timed` is what shared trees see, where that is not
        `numbers`."""
        sums = self.forest.sums(numbers) if timed is None else self.timed_forest.sums(np.concatenate([numbers, timed], axis=-1))
        shared, own, log_error = sums.tolist() if sums.ndim == 1 else sums
        return shared, own, log_error


def _unseen_share(numbers: NDArray[np.float32], gpu: GpuSpec) -> Any:
    """Of a cold launch's time, what no row shows that found its data in L2: their way from DRAM."""
    log_share, log_traffic = numbers[..., [DRAM_SHARE, TRAFFIC]].astype(np.float64).T
    traffic = exp(log_traffic) * gpu.l2_partitions  # over what L2 keeps
    return minimum(exp(log_share), 1.0) * clip((EMPTY - traffic) / (EMPTY - FULL), 0.0, 1.0)


@lru_cache(maxsize=1024)
def _speaker(correction: Correction, gpu: GpuSpec, asked: tuple[tuple[str, str], ...]) -> Speaker:
    names = dict(asked)
    # Kernels of one family differ by a third and more: another kernel's level and trees on this GPU would be a silent substitute.
    known = correction.stand_in(gpu, kernel_key(names), names.get("engine"))
    seen = gpu.id in correction.gpus and not gpu.overrides  # a what-if part was never measured
    basis = 0 if seen and known == gpu.id else 2 if gpu.arch in correction.archs else 3
    names = _in_its_engine(correction, names, known)
    kind = "unseen" if known is None else SAME_DIE if basis else "seen"
    forests = _forests(correction, names, known, _spread(correction, names, kind, gpu.id))
    quantile = correction.quantile[[0, 1] if kind == "seen" else [basis if known is None else ERRORS.index(SAME_DIE)] * 2]
    if known is None:
        return Speaker(*forests, _range(correction), None, correction.carry, np.zeros(len(GROUPS)), basis, quantile)
    level = correction.level[correction.gpus.index(known)].astype(np.float64)
    own_range = _own_range(correction, known, kernel_key(names))
    return Speaker(*forests, _range(correction), own_range, 1.0, level, basis, quantile, forest_key(known, names) in correction.warm)


def _in_its_engine(correction: Correction, names: dict[str, str], known: str | None) -> dict[str, str]:
    """The same question to an engine in which this kernel was measured, where it was not in the one asked for."""
    engines = correction.measured[known][kernel_key(names)] if known is not None else correction.vocabulary.get("engine", [])
    if engines and names.get("engine") not in engines:
        return {**names, "engine": "sglang" if "sglang" in engines else engines[0]}
    return names


def _forests(correction: Correction, names: Mapping[str, str], known: str | None, spread: Forest) -> tuple[Forest, Forest]:
    """The trees that speak for these names, those of `known` in the engine and number format named among them."""
    key = "" if known is None else forest_key(known, names)
    own = [correction.local.trees(key)] if key in correction.local else []
    num_open = len(correction.low)
    shared, local = (forest(parts, num_open, correction.flags(names)) for parts in ([correction.shared], own))
    here = together([shared, local, spread])
    return here, here.moved(num_open, len(shared.feature)) if correction.as_timed else here


def _spread(correction: Correction, names: Mapping[str, str], kind: str, gpu: str) -> Forest:
    """How large an error to expect under these names; a GPU's own name counts where it was measured."""
    here = np.array([kind == "seen" and name == gpu for name in correction.gpus], np.float32)
    parts = [correction.spread.trees(kind)] if kind in correction.spread else []
    return forest(parts, len(correction.low), np.concatenate([correction.flags(names), here]))


@dataclass(frozen=True, slots=True)
class Corrected:
    """Plain numbers for a lone launch, else arrays (L,)."""

    log_ratio: Numbers
    width: Numbers
    basis: np.ndarray  # (L,)
    fade: Numbers = 1.0  # 1 among the data, 0 far from it, where the analytic time is left


def kernel_key(names: Mapping[str, str]) -> str:
    """Number format, identity, and the pass of a MoE layer."""
    return " ".join([_format(names), names.get("identity", "None"), *_moe_pass(names)])


def forest_key(gpu: str, names: Mapping[str, str]) -> str:
    """GPU, engine, number format, and the pass of a MoE layer: what has trees of its own."""
    return " ".join([gpu, names.get("engine") or "-", _format(names), *_moe_pass(names)])


def slice_key(gpu: str, names: Mapping[str, str]) -> str:
    """GPU, engine, kernel and format of the cache: what a library chooses kernels by, beside sizes."""
    return " ".join([gpu, names.get("engine") or "-", kernel_key(names), _format(names, "kv_dtype")])


def _format(names: Mapping[str, str], name: str = "dtype") -> str:
    """fp16 and bf16 run the same kernels at the same rates; a cache that is not named has that of the launch."""
    found = names.get(name, "None")
    found = names["dtype"] if found == "None" else found
    return "16-bit" if found in ("fp16", "bf16") else found


def _moe_pass(names: Mapping[str, str]) -> list[str]:
    return [names["moe_pass"]] if "moe_pass" in names else []


@cache
def load(family: str) -> Correction | None:
    """The shipped correction of a family; None where there is none. A damaged one raises MissingData."""
    path = FOLDER / f"{family}.safetensors"
    return read(path) if path.is_file() else None


def usable(family: str) -> Correction | None:
    """The shipped correction; None, with a warning, where it is gone or cannot be read: predictions then rest on physics alone."""
    try:
        found, problem = load(family), f"{family}.safetensors is missing: {ADVICE}"
    except MissingData as damage:
        found, problem = None, str(damage)
    if found is None:
        warnings.warn(f"{problem}; until then predictions of {family} rest on physics alone (basis analytic)", stacklevel=2)
    return found


def read(path: Path) -> Correction:
    arrays, metadata = tensors.read(path)
    try:
        if metadata["schema"] != SCHEMA:
            raise MissingData(f"{path.name} has the schema {metadata['schema']!r}, this version reads {SCHEMA!r}: run 'tilecast fit'")
        index = json.loads(metadata["index"])
        if index["family"] != path.stem:
            raise MissingData(f"{path.name} holds the weights of {index['family']}: {ADVICE}")
        manifest = tensors.manifest_of(path)
        return Correction(
            family=index["family"],
            vocabulary=index["vocabulary"],
            gpus=tuple(index["gpus"]),
            archs=tuple(index["archs"]),
            carry=float(index["carry"]),
            as_timed=bool(index.get("as_timed", False)),
            warm=frozenset(index.get("warm", ())),
            lowest=index["lowest"],
            sizes=index["sizes"],
            built={name: {key: Built.of_lists(*found) for key, found in slices.items()} for name, slices in index["built"].items()},
            measured=index["measured"],
            shared=Trees(*(arrays[f"shared.{part}"] for part in TREES["shared"])),
            local=Grove(**{part: arrays[f"local.{part}"] for part in TREES["local"]}, where=index["local"]),
            spread=Grove(**{part: arrays[f"spread.{part}"] for part in TREES["spread"]}, where=index["spread"]),
            manifest=manifest,
            digest=manifest["sha256"][:12],
            **{name: arrays[name] for name in ARRAYS},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise MissingData(f"{path.name} or its manifest is damaged ({problem}): {ADVICE}") from None


def write(correction: Correction, folder: Path) -> Path:
    """Weights and manifest, side by side."""
    path = folder / f"{correction.family}.safetensors"
    trees = {f"{name}.{part}": getattr(getattr(correction, name), part) for name, parts in TREES.items() for part in parts}
    arrays = trees | {name: getattr(correction, name) for name in ARRAYS}
    stated = ("family", "vocabulary", "gpus", "archs", "as_timed", "carry", "measured", "lowest", "sizes")
    index = {name: getattr(correction, name) for name in stated}
    index |= {name: dict(getattr(correction, name).where) for name in ("local", "spread")} | {"warm": sorted(correction.warm)}
    index["built"] = {name: {key: found.as_lists() for key, found in slices.items()} for name, slices in correction.built.items()}
    tensors.write_stated(path, arrays, {"schema": SCHEMA, "index": json.dumps(index, sort_keys=True)}, correction.manifest)
    return path
