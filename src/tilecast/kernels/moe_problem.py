"""What is asked of a mixture of experts: checked sizes, and histograms as the text they stand for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import InvalidInput, UnknownName, shown
from tilecast.execution.tasks import Floats
from tilecast.kernels.base import flag, sizes
from tilecast.kernels.expert_loads import MOST_EXPERTS
from tilecast.kernels.moe_defaults import CONFIGURATION

if TYPE_CHECKING:
    from tilecast.kernels.moe import Moe

PASSES = ("w13", "w2", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Checked sizes, columns (L, 1)."""

    num_tokens: Floats
    hidden: Floats
    inter: Floats  # of one expert on one rank
    num_experts: Floats
    topk: Floats
    ep: Floats
    distribution: NDArray[np.str_]  # (L,) or (1,)
    runs_w13: NDArray[np.bool_]
    runs_w2: NDArray[np.bool_]
    gate: Floats  # 2 where w13 holds gate and up, else 1


def problem_of(asked: "Moe") -> Problem:
    texts = {"distribution": _texts(asked.distribution, "distribution"), "moe_pass": _texts(asked.moe_pass, "moe_pass")}
    gated = np.atleast_1d(flag(asked.gated, "gated")).reshape(-1)
    names = ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "tp", "ep")
    longest = max(len(gated), *(len(text) for text in texts.values()), *(np.size(getattr(asked, name)) for name in CONFIGURATION))
    size = sizes(**{name: getattr(asked, name) for name in names}, launches=ones(longest))
    _require(size["num_experts"] <= MOST_EXPERTS, f"num_experts = {{num_experts}} must be at most {MOST_EXPERTS:,}", size)
    _require(size["topk"] <= size["num_experts"], "topk = {topk} exceeds num_experts = {num_experts}", size)
    _require(size["num_experts"] % size["ep"] == 0, "num_experts = {num_experts} must be a multiple of ep = {ep}", size)
    _require(size["inter_size"] % size["tp"] == 0, "inter_size = {inter_size} must be a multiple of tp = {tp}", size)
    for name in sorted(set(texts["moe_pass"].tolist())):
        if name not in PASSES:
            raise UnknownName.among("moe_pass", name, PASSES)
    passes = texts["moe_pass"][:, None]
    return Problem(
        num_tokens=size["num_tokens"],
        hidden=size["hidden_size"],
        inter=size["inter_size"] / size["tp"],
        num_experts=size["num_experts"],
        topk=size["topk"],
        ep=size["ep"],
        distribution=texts["distribution"],
        runs_w13=passes != "w2",
        runs_w2=passes != "w13",
        gate=np.where(gated, 2.0, 1.0)[:, None],
    )


def ones(num_launches: int) -> Any:
    """A size that makes the others as many; a plain number will do for one launch."""
    return 1 if num_launches == 1 else np.ones(num_launches)


def written(given: Any) -> Any:
    """Histograms as the JSON text they stand for, one or a list of them; anything else as it is."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, Mapping):
        return json.dumps({str(expert): tokens for expert, tokens in given.items()}, default=_as_json)
    if not isinstance(given, list | tuple):
        return given
    if given and all(isinstance(entry, int | float | np.number) for entry in given):
        return json.dumps(given, default=_as_json)
    return [written(entry) for entry in given]


def _as_json(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _texts(raw: Any, name: str) -> NDArray[np.str_]:
    try:
        texts = np.atleast_1d(np.asarray(raw))
    except ValueError:  # lists of different lengths inside a list
        texts = np.empty(0)
    if texts.dtype.kind not in "UO" or texts.ndim != 1 or not texts.size:
        raise InvalidInput(f"{name} = {shown(raw)} must be a text, or a list of them")
    return texts.astype(np.str_)


def _require(holds: NDArray[np.bool_], sentence: str, size: dict[str, Floats]) -> None:
    if not holds.all():
        row = int(np.argmin(holds[:, 0]))
        where = f" (launch {row})" if len(holds) > 1 else ""
        raise InvalidInput(sentence.format(**{name: f"{values[row, 0]:.0f}" for name, values in size.items()}) + where)
