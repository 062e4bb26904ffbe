"""Which kernels of a prediction rest on which data: read from the artifacts' own index and manifests, as the prediction itself does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecast.engines.breakdown import HOST, Part
from tilecast.engines.predict import Prediction
from tilecast.hardware import GpuSpec
from tilecast.learning.correction import SAME_DIE, Correction, kernel_key, usable
from tilecast.learning.features import NAMES, SIZES, Launches, asked_names
from tilecast.workloads.graph import KernelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One kernel, wherever the model launches it."""

    family: str
    kernel: str  # number format and, where rows tell it, identity
    parts: tuple[str, ...]  # of the model, with their phase where they differ by it
    share_fraction: float  # of the total time
    basis: str
    data_gpu: str | None  # whose level and trees are used; None: nobody's
    engines: tuple[str, ...]  # in which it was measured there, where rows tell it
    rows: int  # of the family, on that GPU; with none, on all GPUs together
    sources: tuple[str, ...]  # of the family
    mean_error_percent: float | None  # on rows held out as this GPU stands to the data; None: not known
    artifact: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": self.family, "kernel": self.kernel, "parts": list(self.parts), "share_fraction": self.share_fraction,
            "basis": self.basis, "data_gpu": self.data_gpu, "engines": list(self.engines), "rows": self.rows,
            "sources": list(self.sources), "mean_error_percent": self.mean_error_percent, "artifact": self.artifact,
        }  # fmt: skip


def support(found: Prediction) -> tuple[Support, ...]:
    """Every distinct kernel of `found`, once for each basis, the largest share first; the host among them."""
    total_s = found.total_s.median
    groups: dict[tuple[str, str, str], list[Part]] = {}
    for part in found.breakdown:
        groups.setdefault((part.family, _key(part.call, found.gpu, found.engine.partition("@")[0]), part.basis), []).append(part)
    supports = [_support(family, key, parts, found, total_s) for (family, key, _), parts in groups.items()]
    return tuple(sorted(supports, key=lambda entry: -entry.share_fraction))


def by_basis(supports: tuple[Support, ...]) -> dict[str, float]:
    """The share of the time that rests on each basis, most first."""
    shares: dict[str, float] = {}
    for entry in supports:
        shares[entry.basis] = shares.get(entry.basis, 0.0) + entry.share_fraction
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _support(family: str, key: str, parts: list[Part], found: Prediction, total_s: float) -> Support:
    call, basis = parts[0].call, parts[0].basis
    correction = usable(family) if family in SIZES and basis != "analytic" else None
    known = correction.stand_in(found.gpu, key, found.engine.partition("@")[0]) if correction is not None and call is not None else None
    return Support(
        family=family,
        kernel=key.replace(" None", ""),
        parts=tuple(dict.fromkeys(part.name for part in parts)),
        share_fraction=sum(part.time.median for part in parts) / total_s,
        basis=basis,
        data_gpu=known,
        engines=tuple(filter(None, correction.measured[known][key])) if correction is not None and known is not None else (),
        rows=_rows(correction.manifest, known) if correction is not None else 0,
        sources=tuple(source["name"] for source in correction.manifest["sources"]) if correction is not None else (),
        mean_error_percent=_error(correction, basis, found.gpu, known) if correction is not None else None,
        artifact=correction.digest if correction is not None else None,
    )


def _key(call: KernelCall | None, gpu: GpuSpec, engine: str) -> str:
    """The kernel as the artifact's index names it, by the steps of a prediction; without an artifact, its format and identity."""
    if call is None:
        return HOST
    kernel = call.kernel
    correction = usable(kernel.family) if kernel.family in SIZES else None
    if correction is None:
        return kernel_key({"dtype": kernel.dtype, "identity": str(getattr(kernel, "identity", None))})
    names = {name: str(getattr(kernel, name)) for name in NAMES if hasattr(kernel, name)} | {"engine": engine}
    asked = Launches(np.zeros((1, 1), np.float32), asked_names(kernel, gpu, names), np.zeros(1, np.int64))  # only names are asked for
    return kernel_key((correction.named(asked, gpu) if kernel.identity is None else asked).names)


def _rows(manifest: Mapping[str, Any], known: str | None) -> int:
    return int(manifest["rows_per_gpu"].get(known, 0) if known is not None else manifest["num_rows"])


def _error(correction: Correction, basis: str, gpu: GpuSpec, known: str | None) -> float | None:
    """On this GPU where it was held out that way, else the mean over the GPUs that were. Nothing beyond the measured sizes was held out."""
    scores = correction.manifest["scores"].get(SAME_DIE if known not in (None, gpu.id) else basis, {})
    if not scores:
        return None
    return float(scores[gpu.id]) if gpu.id in scores else sum(scores.values()) / len(scores)
