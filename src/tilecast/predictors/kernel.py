"""Predict one kernel, or a million launches of it: median, 80 % interval, bound, what binds, and the basis of the number."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilecast import hardware, units
from tilecast.errors import InvalidInput, SpecError
from tilecast.execution import Analysis, Once, Priced, Protocol
from tilecast.execution.arithmetic import exp, maximum, minimum
from tilecast.execution.protocol import CACHES, TIMERS
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.kernels.base import RAGGED, check_asked, check_lists, flag, length_of, priced
from tilecast.kernels.requests import evened, listed
from tilecast.learning.correction import Corrected, Correction, OfSlice, usable
from tilecast.learning.features import SIZES, Launches, asked_names, launches
from tilecast.markup import html_table
from tilecast.predictors.law import Asked, lawful
from tilecast.predictors.scaled import taken

if TYPE_CHECKING:
    from tilecast.learning.profiles import Profile

LISTS = frozenset((np.ndarray, list, tuple, range))
APART = ("kv_dtype", "causal", "moe_pass", "distribution")  # names of a kernel that may differ between its launches
NO_LISTS = {"q_lens": None, "kv_lens": None}
OF_ITS_OWN = "histogram"  # a distribution that no row has a name for
PROTOCOLS = {(timer, cache): Protocol(timer, cache) for timer in TIMERS for cache in CACHES}
unread: set[str] = set()  # families whose weights were asked for and are gone or damaged: versions tell it
BLOCK = 2048  # launches priced at once: their arrays stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrediction:
    """L launches of one kernel on one GPU. Arrays have one entry per launch."""

    kernel: Any
    gpu: GpuSpec
    protocol: Protocol
    median_s: Floats
    low_s: Floats
    high_s: Floats
    learned_s: Floats  # the median before the law of doubling
    analysed: Once
    basis: np.ndarray
    profile: "Profile | None" = None

    @property
    def analysis(self) -> Analysis:
        """How the analytic time comes about."""
        return self.analysed()

    @property
    def bound_s(self) -> Floats:
        return self.analysis.bound_s

    @property
    def analytic_s(self) -> Floats:
        return self.analysis.analytic_s

    @property
    def efficiency(self) -> Floats:
        """How near the prediction is to the bound: 1 is perfect."""
        return np.asarray(self.bound_s / self.median_s)

    def _repr_html_(self) -> str:
        rows = [
            (str(row), units.interval_s(self.median_s[row], self.low_s[row], self.high_s[row]), units.human("_s", self.bound_s[row]),
             str(self.analysis.bound_by[row]), str(self.basis[row]))
            for row in range(min(len(self.median_s), 50))
        ]  # fmt: skip
        return html_table(f"{self.kernel.family} on {self.gpu.id}", ("launch", "median (80 %)", "bound", "bound by", "basis"), rows)


def predict_kernel(
    kernel: Any,
    gpu: str | GpuSpec,
    *,
    timer: str = "profiler",
    cache: str = "cold",
    engine: str = "sglang",
    learned: bool = True,
    overrides: Mapping[str, object] | None = None,
    profile: "Profile | str | Path | None" = None,
    corrections: Mapping[str, Correction] | None = None,
) -> KernelPrediction:
    """How long `kernel` takes on `gpu`; sizes may be arrays, one entry per launch. `learned=False` gives physics alone.

    `profile` is what `tilecast calibrate` made of measurements on this GPU, or its file; `corrections` stand in for the package's own.

    >>> from tilecast.kernels.gemm import Gemm
    >>> float(predict_kernel(Gemm(m=4096, n=4096, k=4096), gpu="h100-sxm").median_s[0]) > 1e-4
    True
    """
    spec = hardware.gpu(gpu, overrides)
    engine = check_asked(kernel, engine)
    if getattr(kernel, "identity", None) == "":  # a name that was left empty, as a cell may be
        kernel = replace(kernel, identity=None)
    protocol = _protocol(timer, cache)
    measured = _opened(profile, spec, learned) if profile is not None else None
    run = in_engine(kernel, engine)
    blocks = _blocks(run)
    if len(blocks) == 1:
        joined = _predict_part(run, spec, protocol, engine, learned, measured, corrections)
    else:
        parts = [_predict_part(block, spec, protocol, engine, learned, measured, corrections).settled() for block in blocks]
        joined = _Part(*map(_joined, zip(*parts, strict=True)))
    return KernelPrediction(
        kernel=kernel,
        gpu=spec,
        protocol=protocol,
        median_s=joined.median_s,
        low_s=joined.low_s,
        high_s=joined.high_s,
        learned_s=joined.learned_s,
        analysed=joined.analysed,
        basis=joined.basis,
        profile=measured,
    )


def _protocol(timer: str, cache: str) -> Protocol:
    is_known = isinstance(timer, str) and isinstance(cache, str) and (timer, cache) in PROTOCOLS
    return PROTOCOLS[timer, cache] if is_known else Protocol(timer, cache)  # which says what is wrong


def in_engine(kernel: Any, engine: str) -> Any:
    """The kernel as `engine` runs it, where its file tells engines apart and it was left open."""
    return replace(kernel, engine=engine) if getattr(kernel, "engine", engine) is None else kernel


class _Part(NamedTuple):
    """One block of launches, predicted."""

    analysed: Once
    median_s: Floats
    low_s: Floats
    high_s: Floats
    learned_s: Floats
    basis: np.ndarray

    def settled(self) -> "_Part":
        """The same with its account made: what that is made of, kept for every block, would fill the memory."""
        self.analysed()
        return self


def _predict_part(
    kernel: Any, gpu: GpuSpec, protocol: Protocol, engine: str, learned: bool, profile: "Profile | None" = None,
    corrections: Mapping[str, Correction] | None = None,
) -> _Part:  # fmt: skip
    find = _shipped if corrections is None else corrections.get
    correction = find(kernel.family) if learned and kernel.family in SIZES else None
    kinds = _by_lengths(kernel)
    if len(kinds) == 1:
        kernel = kinds[0][0]
        kinds = _kinds(kernel, gpu) if kernel.family in SIZES else _of_one_width(kernel)
    if len(kinds) > 1:
        parts = [_predict_part(kind, gpu, protocol, engine, learned, profile, corrections).settled() for kind, _ in kinds]
        order = np.argsort(np.concatenate([rows for _, rows in kinds]))
        return _Part(*(_ordered(_joined(each), order) for each in zip(*parts, strict=True)))
    kernel = kinds[0][0]

    def learn(other: Any) -> _Learned:
        return _learned(other, gpu, protocol, engine, correction, profile)

    found, learned_s, width, bases, names = learn(kernel)
    run = partial(_as_corrected, gpu=gpu, engine=engine, correction=correction)
    said = correction.of_slice(names, gpu) if correction is not None and names is not None else OfSlice({}, _least_of_physics(kernel))
    asked = Asked(
        physics=lambda other: priced(run(other), gpu, protocol),
        median_s=lambda other: learn(other).median_s,
        built=said.built,
        lowest=said.lowest if profile is None else None,  # which moves each launch in its own way
        is_learned=bases is not None,
    )
    median_s = maximum(lawful(kernel, found, learned_s, asked), found.bound_s)
    factor = exp(width)  # the interval holds what was learned, and what the law made of it
    low_s, high_s = maximum(minimum(learned_s, median_s) / factor, found.bound_s), maximum(learned_s, median_s) * factor
    if not isinstance(median_s, np.ndarray):
        median_s, low_s, high_s, learned_s = (np.array([value]) for value in (median_s, low_s, high_s, learned_s))
    basis = bases if bases is not None else np.full(len(median_s), "analytic")
    return _Part(found.analysis, median_s, low_s, high_s, learned_s, basis)


def _least_of_physics(kernel: Any) -> float | None:
    """Where nothing is learned nothing makes up for physics, unless physics itself falls."""
    return 0.0 if getattr(kernel, "physics_grows", False) else None


class _Learned(NamedTuple):
    """Launches of one name before the law of doubling; without a correction they have no basis but physics."""

    found: Priced
    median_s: Any
    width: Any
    basis: np.ndarray | None
    names: dict[str, str] | None  # that its rows have


def _learned(
    kernel: Any, gpu: GpuSpec, protocol: Protocol, engine: str, correction: Correction | None, profile: "Profile | None"
) -> _Learned:
    """Physics, what is learned of such launches, and what a profile knows of this GPU."""
    kernel = _as_corrected(kernel, gpu, engine, correction)
    found = priced(kernel, gpu, protocol)
    real, real_found = _as_measured(kernel, gpu, found, protocol)
    asked = launches(kernel, real, real_found, protocol, engine) if correction is not None else None
    if asked is not None and correction is not None and not correction.knows(asked.names["dtype"]):
        asked = None
    median_s, bound_s = found.analytic_s, found.bound_s
    corrected, names = None, None
    if correction is not None and asked is not None:
        asked = _named(correction, kernel, gpu, asked)
        corrected, names = _corrected(correction, kernel, gpu, asked), asked.names
    width = _half_width(corrected, kernel.family)
    if corrected is not None:
        median_s = maximum(median_s * exp(corrected.log_ratio), bound_s)
    if profile is not None:
        from tilecast.predictors.calibrated import sites_of

        known = width  # of the part that was measured: a what-if part is less sure, and no more moved by what was measured
        if real is not gpu and correction is not None and asked is not None:
            known = _half_width(_corrected(correction, kernel, real, asked), kernel.family)
        shift, width = profile.adjust(sites_of(kernel, real, real_found, protocol, engine, known), width)
        median_s = maximum(median_s * exp(shift), bound_s)
    return _Learned(found, median_s, width, corrected.basis if corrected is not None else None, names)


def _shipped(family: str) -> Correction | None:
    found = usable(family)
    (unread.add if found is None else unread.discard)(family)
    return found


def _half_width(corrected: Corrected | None, family: str) -> Floats | float:
    """Of the interval of log(measured / predicted): as the correction fades, so does what is known of its error."""
    if corrected is None:
        return interval_width(family)
    width: Floats | float = corrected.width
    if isinstance(corrected.fade, np.ndarray) or corrected.fade < 1.0:
        width = maximum(width, (1.0 - corrected.fade) * interval_width(family))
    return width


def as_asked(kernel: Any, gpu: GpuSpec, engine: str) -> Any:
    """A kernel as it is priced with the weights that ship: a profile's rows are of that launch."""
    run = in_engine(kernel, engine)
    return _as_corrected(run, gpu, engine, _shipped(run.family) if run.family in SIZES else None)


def _as_corrected(kernel: Any, gpu: GpuSpec, engine: str, correction: Correction | None) -> Any:
    """A product left open, as the kernel whose rows correct it: where that has tiles of its own, physics must be of these."""
    if correction is None or kernel.identity is not None or not hasattr(kernel, "has_own_tiles"):
        return kernel
    newest = kernel.newest_identity(gpu)
    if not kernel.has_own_tiles(newest) or not correction.knows(kernel.dtype) or np.any(kernel.unnamed()):
        return kernel
    told = correction.tells({"dtype": kernel.dtype, "identity": newest, "engine": engine}, gpu)
    return replace(kernel, identity=newest) if told else kernel


def _kinds(kernel: Any, gpu: GpuSpec) -> list[tuple[Any, list[int]]]:
    """Launches of one name each, with their places: what was learned goes by names, which caches of several formats, experts under several
    distributions, and products alone and in batches do not share. Ragged batches stay together."""
    told: dict[str, Any] = {name: value for name in APART if type(value := getattr(kernel, name, None)) in LISTS and length_of(value)}
    in_batches: Any = kernel.unnamed() if kernel.identity is None and hasattr(kernel, "has_own_tiles") else False
    is_mixed = isinstance(in_batches, np.ndarray) and len({*in_batches.tolist()}) > 1 and kernel.has_own_tiles(kernel.newest_identity(gpu))
    if not (told or is_mixed) or _is_ragged(kernel):
        return [(kernel, [])]
    each: list[Any] = [[_called(kernel, name, entry) for entry in value] for name, value in told.items()]
    each += [in_batches] * bool(is_mixed)
    places: dict[tuple[Any, ...], list[int]] = {}
    for row in range(max(map(len, each))):
        places.setdefault(tuple(names[row if len(names) > 1 else 0] for names in each), []).append(row)
    lead = SIZES[kernel.family][0]  # a list even where only names are
    kinds = []
    for names, rows in places.items():
        sizes = {lead: np.full(len(rows), getattr(kernel, lead))} if np.ndim(getattr(kernel, lead)) == 0 and len(rows) > 1 else {}
        one = {name: entry for name, entry in zip(told, names, strict=False) if entry != OF_ITS_OWN}
        kinds.append((replace(kernel, **{**taken(kernel, rows), **sizes, **one}), rows))
    return kinds


def _by_lengths(kernel: Any) -> list[tuple[Any, list[int]]]:
    """Requests that are all alike, as so many of one length, and truly ragged batches, with their places: what a launch takes must not
    hang on how it is said."""
    if not _is_ragged(kernel):
        return [(kernel, [])]
    are_alike, even = evened(kernel)
    for name, values in taken(kernel, slice(None)).items():
        if len(values) != len(are_alike):
            raise InvalidInput(f"{len(are_alike)} lists of lengths, but {len(values)} values of {name}")
    if not are_alike.any():
        return [(kernel, [])]
    if len(are_alike) == 1:
        return [(replace(kernel, **NO_LISTS, **{name: size.item() for name, size in even.items()}), [])]
    if are_alike.all():
        return [(replace(kernel, **NO_LISTS, **even), [])]
    rows, others = np.flatnonzero(are_alike), np.flatnonzero(~are_alike)
    ragged = replace(kernel, **taken(kernel, others), **listed(kernel, others))
    return [(replace(kernel, **NO_LISTS, **taken(kernel, rows), **even), rows.tolist()), (ragged, others.tolist())]


def _of_one_width(kernel: Any) -> list[tuple[Any, list[int]]]:
    """Launches of one width of heads each, with their places, where PyTorch chooses the kernel by it."""
    widths = np.ravel(kernel.head_dim) if getattr(kernel, "chosen_by_width", False) and kernel.identity is None else np.zeros(1)
    if len(widths) < 2 or (widths == widths[0]).all():
        return [(kernel, [])]
    places = [(width, np.flatnonzero(widths == width)) for width in np.unique(widths)]
    batch = np.broadcast_to(kernel.batch, widths.shape)
    return [
        (replace(kernel, **{**taken(kernel, rows), "batch": batch[rows], "head_dim": int(width)}), rows.tolist()) for width, rows in places
    ]


def _is_ragged(kernel: Any) -> bool:
    return getattr(kernel, "q_lens", None) is not None or getattr(kernel, "kv_lens", None) is not None


def _called(kernel: Any, name: str, entry: Any) -> Any:
    """What a launch is called by one of its names."""
    if name == "causal":
        return bool(np.all(flag(entry, name)))
    if name == "kv_dtype" and entry is None:
        return kernel.dtype
    return OF_ITS_OWN if name == "distribution" and str(entry).lstrip().startswith(("[", "{")) else str(entry)


def _as_measured(kernel: Any, gpu: GpuSpec, found: Priced, protocol: Protocol) -> tuple[GpuSpec, Priced]:
    """What a correction and a profile look at. Of a what-if part it is the part that was changed: measurements are of that one, and so a
    lever moves the time as physics says."""
    base = hardware.as_catalogued(gpu)
    if base is gpu:
        return gpu, found
    try:
        return base, priced(kernel, base, protocol)
    except (InvalidInput, SpecError):  # a format or a tile that the catalogued part does not have
        return gpu, found


def _named(correction: Correction, kernel: Any, gpu: GpuSpec, asked: Launches) -> Launches:
    """Under the kernel's name or, left open, under what rows call it."""
    named = asked.called(asked_names(kernel, gpu, asked.names))
    return correction.named(named, gpu) if kernel.identity is None else named


def _corrected(correction: Correction, kernel: Any, gpu: GpuSpec, named: Launches) -> Corrected:
    """Launches that no row has a name for are asked about as such."""
    if kernel.identity is not None:
        return correction.correct(named, gpu)
    is_unnamed: Any = kernel.unnamed() if hasattr(kernel, "unnamed") else False
    if is_unnamed is False or not np.any(is_unnamed):
        return correction.correct(named, gpu)
    unnamed = named.called({**named.names, "identity": "None"})
    if np.all(is_unnamed):
        return correction.correct(unnamed, gpu)
    one, other = correction.correct(named.where(~is_unnamed), gpu), correction.correct(unnamed.where(is_unnamed), gpu)
    places = np.argsort(np.argsort(is_unnamed, kind="stable"))
    parts = (np.hstack([getattr(one, name), getattr(other, name)])[places] for name in ("log_ratio", "width", "basis", "fade"))
    return Corrected(*parts)


def _opened(profile: "Profile | str | Path", gpu: GpuSpec, learned: bool) -> "Profile | None":
    """Profiles are imported when there is one: most predictions have none."""
    from tilecast.learning.profiles import opened

    if not learned:
        raise InvalidInput("a profile goes with learned predictions: learned=False is physics alone")
    return opened(profile, gpu)


@cache
def _widths() -> dict[str, float]:
    return tomllib.loads(Path(__file__).with_name("intervals.toml").read_text(encoding="utf-8"))


def interval_width(family: str) -> float:
    """Half the width of the 80 % interval of log(measured / analytic)."""
    return _widths().get(family, _widths()["default"])


def _blocks(kernel: Any) -> list[Any]:
    """The kernel cut into runs of at most BLOCK launches; ragged batches stay together."""
    names, read = _fields(kernel.__class__)
    values = read(kernel)
    if LISTS.isdisjoint(map(type, values)):
        return [kernel]
    given = dict(zip(names, values, strict=True))
    check_lists(given)
    arrays = {name: value for name, value in given.items() if type(value) in LISTS and name not in RAGGED and length_of(value) > BLOCK}
    if not arrays or _is_ragged(kernel):
        return [kernel]
    return [
        type(kernel)(**{**given, **{name: entries[start : start + BLOCK] for name, entries in arrays.items()}})
        for start in range(0, max(map(len, arrays.values())), BLOCK)
    ]


@cache
def _fields(record: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Their names, and what reads all of them (records have two at least)."""
    names = tuple(entry.name for entry in fields(record))
    return names, attrgetter(*names)


def _joined(values: Sequence[Any]) -> Any:
    """Arrays end to end, and records of them field by field; a pipeline that one part lacks is zero there."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    if isinstance(first, Once):
        return Once(partial(_joined, [value() for value in values]))
    if isinstance(first, Mapping):
        lengths = [len(next(iter(value.values()), ())) for value in values]
        names = dict.fromkeys(name for value in values for name in value)
        return {
            name: np.concatenate([value.get(name, np.zeros(length)) for value, length in zip(values, lengths, strict=True)])
            for name in names
        }
    return type(first)(**{entry.name: _joined([getattr(value, entry.name) for value in values]) for entry in fields(first)})


def _ordered(values: Any, order: np.ndarray) -> Any:
    """What `_joined` makes, with its launches in another order."""
    if isinstance(values, np.ndarray):
        return values[order]
    if isinstance(values, Once):
        return Once(lambda: _ordered(values(), order))
    if isinstance(values, Mapping):
        return {name: _ordered(each, order) for name, each in values.items()}
    return type(values)(**{entry.name: _ordered(getattr(values, entry.name), order) for entry in fields(values)})
