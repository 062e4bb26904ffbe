"""How long the steps of a schedule take: a few of them are priced, the rest lie between.

A step's kernels are of four kinds, and the time of each kind depends on few numbers: those that go by tokens, those that go by requests
(the head), attention over prompt chunks, attention of decodes. Each kind is priced on knots and taken to be linear between them, so a
step's time is a sum over knots; the same weights, summed over all steps, say how much every kernel took.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tilecast.engines.many import alike
from tilecast.engines.setup import Setup
from tilecast.execution.tasks import Floats
from tilecast.serving.schedule import Schedule
from tilecast.workloads.aggregate import Price, StepTime, price_steps, signature, weakest
from tilecast.workloads.graph import Step, Tokens
from tilecast.workloads.operations import Operation

ATTENTION = ("attention", "mla")
MOST_TOKEN_KNOTS = 24
MOST_CHUNK_KNOTS = 48
MOST_BATCH_KNOTS = 10
CONTEXT_KNOTS = 5
CHUNK_STEPS = 24.0  # chunk sizes that differ by less than one part in so many are priced as one
Case = tuple[int, int, int]  # requests, query tokens of each, keys of each
SIDES = ("median_s", "low_s", "high_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Times of one kind of work at K knots, and the interpolation that gives each run's step time: weights (R, n) at places (R, n)."""

    name: str
    phase: str
    pieces: tuple[tuple[StepTime, np.ndarray], ...]  # steps priced together, and which knots they are
    times: dict[str, Floats]  # side -> (K,)
    places: np.ndarray
    weights: Floats
    basis: str

    def of_steps(self, side: str) -> Floats:
        return np.asarray(np.sum(self.times[side][self.places] * self.weights, axis=1))

    def per_knot(self, steps: Floats) -> Floats:
        """How often each knot was run, when every run has so many steps."""
        counts = np.bincount(self.places.ravel(), (self.weights * steps[:, None]).ravel(), minlength=len(self.times["median_s"]))
        return np.asarray(counts, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """GPU and host seconds of one step of every run, by side of the interval, and what they are made of."""

    curves: tuple[Curve, ...]
    gpu_s: dict[str, Floats]
    host_s: dict[str, Floats]

    def step_s(self, side: str) -> Floats:
        return self.gpu_s[side] + self.host_s[side]

    @property
    def basis(self) -> str:
        return weakest(curve.basis for curve in self.curves)


def costs(found: Setup, plan: Schedule, price: Price) -> Costs:
    by_tokens, by_requests, of_phase = by_kind(found.operations)
    tokens = plan.prefill_tokens + plan.decodes
    prefills, decodes = plan.prefill_tokens > 0, (plan.prefill_tokens == 0) & (plan.decodes > 0)
    shared: tuple[Operation, ...] = ()
    if (
        plan.mean_tokens is not None and found.shard.dp > 1
    ):  # what works on the tokens of all ranks goes by their mean, all else by the fullest
        shared = tuple(op for op in by_tokens if op.per.startswith("every"))
    every = tokens if plan.mean_tokens is None else np.ceil(plan.mean_tokens).astype(np.int64)
    asked = [
        _line("layers", tuple(op for op in by_tokens if op not in shared), "prefill", tokens, prefills, _tokens_together),
        _line("layers of all ranks", shared, "prefill", every, prefills, _tokens_together),
        _line("layers", by_tokens, "decode", tokens, decodes, _tokens_together),
        _line("head", by_requests, "decode", plan.decodes + plan.prompts_done, prefills | decodes, _requests_apart),
        _chunks(of_phase["prefill"], plan, prefills),
        _grid(of_phase["decode"], plan, plan.decodes > 0),
    ]
    kept = _priced(found, [curve for curve in asked if curve is not None], price)
    gpu_s = {side: np.sum([curve.of_steps(side) for curve in kept], axis=0) for side in SIDES}
    median = _host_s(found, plan, gpu_s["median_s"])
    spread = found.engine.host.spread_fraction
    host_s = {"median_s": median, "low_s": median * (1.0 - spread), "high_s": median * (1.0 + spread)}
    return Costs(curves=kept, gpu_s=gpu_s, host_s=host_s)


def _host_s(found: Setup, plan: Schedule, gpu_s: Floats) -> Floats:
    """Host time of a step: a replay if captured, else what makes the step at least as long as launching all its layers."""
    host, layers = found.engine.host, found.config.num_layers
    most_captured = found.engine.most_captured if found.gpu.replays_graphs else 0
    eager = (plan.prefill_tokens > 0) | (plan.decodes > most_captured)
    launching = np.maximum(0.0, layers * host.prefill_layer_s - gpu_s)
    fixed = np.where(eager, host.prefill_step_s + launching, host.decode_step_s + layers * host.decode_layer_s)
    idle = (plan.prefill_tokens == 0) & (plan.decodes == 0)
    return np.asarray(np.where(idle, 0.0, fixed + host.request_s * (plan.decodes + plan.prompts_done)))


def by_kind(operations: Sequence[Operation]) -> tuple[tuple[Operation, ...], tuple[Operation, ...], dict[str, tuple[Operation, ...]]]:
    shared = [op for op in operations if op.family not in ATTENTION and op.phase is None]
    by_requests = tuple(op for op in shared if op.per.endswith("request"))
    by_tokens = tuple(op for op in shared if not op.per.endswith("request"))
    of_phase = {phase: tuple(op for op in operations if op.family in ATTENTION or op.phase == phase) for phase in ("prefill", "decode")}
    # Sums over data-parallel ranks go by phase but by all tokens of a step: they belong to the tokens, and run as a prefill's.
    moved = tuple(op for op in operations if op.phase is not None and op.per.startswith("every"))
    of_phase = {phase: tuple(op for op in each if op not in moved) for phase, each in of_phase.items()}
    return by_tokens + moved, by_requests, of_phase


# ---- knots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A curve before it is priced."""

    name: str
    operations: tuple[Operation, ...]
    phase: str
    cases: list[Case]
    make: Callable[[str, list[Case], int], Tokens]
    places: np.ndarray
    weights: Floats


def _line(
    name: str, operations: tuple[Operation, ...], phase: str, sizes: np.ndarray, asked: np.ndarray,
    make: Callable[[str, list[Case], int], Tokens],
) -> Asked | None:  # fmt: skip
    if not asked.any() or not operations:
        return None
    knots = _knots(sizes[asked], MOST_TOKEN_KNOTS)
    places, weights = _between(knots, np.clip(sizes, knots[0], knots[-1]))
    cases = [(1, int(size), int(size)) for size in knots]
    return Asked(name=name, operations=operations, phase=phase, cases=cases, make=make, places=places, weights=weights * asked[:, None])


def _chunks(operations: tuple[Operation, ...], plan: Schedule, asked: np.ndarray) -> Asked | None:
    """Distinct prompt chunks, rounded until there are few."""
    if not asked.any() or not operations:
        return None
    number = np.maximum(plan.chunks[asked], 1)
    queries, keys = plan.prefill_tokens[asked] / number, plan.chunk_context[asked]
    parts = CHUNK_STEPS
    while True:
        rounded = np.stack([number, _rounded(queries, parts), np.maximum(_rounded(keys, parts), _rounded(queries, parts))])
        knots, where = np.unique(rounded, axis=1, return_inverse=True)
        if knots.shape[1] <= MOST_CHUNK_KNOTS or parts < 2:
            break
        parts /= 1.5
    places, weights = np.zeros((len(asked), 1), dtype=np.int64), np.zeros((len(asked), 1))
    places[asked, 0] = where.ravel()
    # What rounding took from the query-key pairs goes back into the weight.
    weights[asked, 0] = (queries * (keys - queries / 2)) / (knots[1] * (knots[2] - knots[1] / 2))[where.ravel()]
    cases = [(int(b), int(q), int(k)) for b, q, k in knots.T]
    return Asked(
        name="attention over prompts", operations=operations, phase="prefill", cases=cases, make=_equal, places=places, weights=weights
    )


def _grid(operations: tuple[Operation, ...], plan: Schedule, asked: np.ndarray) -> Asked | None:
    """Decodes by their number and their mean context."""
    if not asked.any() or not operations:
        return None
    batches = _knots(plan.decodes[asked], MOST_BATCH_KNOTS)
    low, high = float(plan.context[asked].min()), float(plan.context[asked].max())
    contexts = np.unique(np.linspace(low, high, CONTEXT_KNOTS).round().astype(np.int64))
    rows, row_weights = _between(batches, np.clip(plan.decodes, batches[0], batches[-1]))
    columns, column_weights = _between(contexts, np.clip(plan.context, contexts[0], contexts[-1]))
    places = (rows[:, :, None] * len(contexts) + columns[:, None, :]).reshape(len(asked), -1)
    weights = (row_weights[:, :, None] * column_weights[:, None, :]).reshape(len(asked), -1) * asked[:, None]
    cases = [(int(batch), 1, int(context)) for batch in batches for context in contexts]
    return Asked(
        name="attention of decodes", operations=operations, phase="decode", cases=cases, make=_equal, places=places, weights=weights
    )


def _knots(values: np.ndarray, most: int) -> np.ndarray:
    """The values themselves where they are few, else those at even ranks, the ends among them."""
    distinct = np.unique(values)
    if len(distinct) <= most:
        return distinct
    return np.unique(distinct[np.linspace(0, len(distinct) - 1, most).round().astype(np.int64)])


def _between(knots: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, Floats]:
    """The two knots around each value (R, 2), and the weight of each."""
    if len(knots) == 1:
        return np.zeros((len(values), 1), dtype=np.int64), np.ones((len(values), 1))
    above = np.clip(np.searchsorted(knots, values, side="right"), 1, len(knots) - 1)
    share = (values - knots[above - 1]) / (knots[above] - knots[above - 1])
    return np.stack([above - 1, above], axis=1), np.stack([1.0 - share, share], axis=1)


def _rounded(values: Floats, parts: float) -> Floats:
    """To the nearest of `parts` steps per factor of e; small numbers as they are."""
    logs = np.log(np.maximum(values, 1.0))
    return np.asarray(np.where(values <= parts, np.round(values), np.round(np.exp(np.round(logs * parts) / parts))))


# ---- pricing -----------------------------------------------------------------------------------------------------


def _priced(found: Setup, asked: list[Asked], price: Price) -> tuple[Curve, ...]:
    """All curves in as few calls as there are kinds of kernels."""
    cuts = [(number, mine, step) for number, curve in enumerate(asked) for mine, step in _cut(found, curve)]
    priced = price_steps([step for _, _, step in cuts], found.gpu, price)
    curves = []
    for number, curve in enumerate(asked):
        pieces = tuple((time, mine) for (of, mine, _), time in zip(cuts, priced, strict=True) if of == number)
        times = {side: np.zeros(len(curve.cases)) for side in SIDES}
        for time, mine in pieces:
            for side in SIDES:
                times[side][mine] = getattr(time, side)
        basis = weakest(time.basis for time, _ in pieces)
        curves.append(Curve(
            name=curve.name, phase=curve.phase, pieces=pieces, times=times, places=curve.places, weights=curve.weights, basis=basis,
        ))  # fmt: skip
    return tuple(curves)


def _cut(found: Setup, curve: Asked) -> Iterator[tuple[np.ndarray, Step]]:
    """Knots whose steps run the same kernels, in one step of arrays."""
    part, cases, dp = replace(found, operations=curve.operations), curve.cases, found.shard.dp
    order = sorted(range(len(cases)), key=lambda place: (cases[place][0] * cases[place][1], cases[place][2]))

    @cache
    def kernels(rank: int) -> object:
        return signature(part.step(curve.make(curve.phase, [cases[order[rank]]], dp)))

    for start, stop in alike(kernels, 0, len(order)):
        mine = np.array(order[start:stop])
        step = part.step(curve.make(curve.phase, [cases[place] for place in mine], dp))
        if step.calls:
            yield mine, step


def _tokens_together(phase: str, cases: list[Case], dp: int) -> Tokens:
    """All tokens of a step as one request: for kernels that do not care whose they are."""
    lengths, every = (tuple(np.array([times * size]) for _, size, _ in cases) for times in (1, dp))
    return Tokens(phase, lengths, lengths, Tokens(phase, every, every) if dp > 1 else None)


def _requests_apart(phase: str, cases: list[Case], dp: int) -> Tokens:
    ones, every = (tuple(np.ones(times * size, dtype=np.int64) for _, size, _ in cases) for times in (1, dp))
    return Tokens(phase, ones, ones, Tokens(phase, every, every) if dp > 1 else None)


def _equal(phase: str, cases: list[Case], dp: int) -> Tokens:
    queries, keys = (tuple(np.full(case[0], case[side], dtype=np.int64) for case in cases) for side in (1, 2))
    if dp == 1:
        return Tokens(phase, queries, keys)
    return Tokens(
        phase, queries, keys, Tokens(phase, tuple(np.tile(each, dp) for each in queries), tuple(np.tile(each, dp) for each in keys))
    )
