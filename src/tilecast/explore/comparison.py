"""GPUs, group sizes and batches, or concurrencies, compared by one figure: who wins, by how much, and how sure that is."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tilecast import hardware, units
from tilecast.engines.base import engine as engine_named
from tilecast.engines.interval import Interval
from tilecast.engines.many import METRICS, Metric, Outcome, outcome_of, outcomes
from tilecast.engines.predict import predict
from tilecast.engines.setup import gpu_notes
from tilecast.errors import InvalidInput, TilecastError
from tilecast.serving.disaggregated import layouts_of, workers_in
from tilecast.serving.outcome import LoadOutcome, load_outcomes
from tilecast.workloads.graph import Batch
from tilecast.workloads.model import model_config

DEFAULT = "output_tokens_per_s_per_gpu"
OF_DECODE = ("output_tokens_per_s_per_user", "tpot_s", "decode_step_s")  # figures that a single output token does not have
BEST_OF_EACH = "The best {} of each"  # title of the table, which the page shows as bars
CHUNK = 1024  # configurations priced between two reports of progress
Progress = Callable[[int, int], None]
Configuration = Outcome | LoadOutcome


@dataclass(frozen=True, slots=True)
class Refusal:
    """GPUs that cannot run the model at all, and why; not fitting in memory is no refusal."""

    gpu: str
    tp: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    model: str
    metric: Metric
    outcomes: tuple[Configuration, ...]  # those that fit, best first, then the others
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()  # of the model, and of GPUs that were priced all the same

    @property
    def swept(self) -> str:
        """What configurations of one GPU and group size differ in: batch or concurrency."""
        return self.outcomes[0].swept

    @property
    def fitting(self) -> tuple[Configuration, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    @property
    def winner(self) -> Configuration | None:
        return next(iter(self.fitting), None)

    @property
    def runner_up(self) -> Configuration | None:
        """The best of the other GPUs and group sizes; where there is one only, the next batch or concurrency."""
        best, *rest = self.fitting or (None,)
        if best is None:
            return None
        others = (outcome for outcome in rest if (outcome.gpu, outcome.layout) != (best.gpu, best.layout))
        return next(others, next(iter(rest), None))

    @property
    def ratio(self) -> float | None:
        """How many times better the winner is than the runner-up."""
        if self.winner is None or self.runner_up is None:
            return None
        best, next_best = self.metric.of(self.winner).median, self.metric.of(self.runner_up).median
        better, worse = (best, next_best) if self.metric.more_is_better else (next_best, best)
        return better / worse if worse else None

    @property
    def intervals_overlap(self) -> bool | None:
        if self.winner is None or self.runner_up is None:
            return None
        best, next_best = self.metric.of(self.winner), self.metric.of(self.runner_up)
        return best.low <= next_best.high and next_best.low <= best.high

    @property
    def holds_at_both_ends(self) -> bool | None:
        """Whether the winner also leads when both are at their low ends, and when both are at their high ends."""
        if self.winner is None or self.runner_up is None:
            return None
        best, next_best = self.metric.of(self.winner), self.metric.of(self.runner_up)
        sign = 1 if self.metric.more_is_better else -1
        return sign * best.low >= sign * next_best.low and sign * best.high >= sign * next_best.high

    @property
    def sentence(self) -> str:
        """Who wins, by how much, and whether it could be the other way round."""
        winner, other = self.winner, self.runner_up
        if winner is None:
            least = min(self.outcomes, key=lambda outcome: outcome.memory.total_bytes / outcome.memory.capacity_bytes)
            needs, has = (units.human("_bytes", value) for value in (least.memory.total_bytes, least.memory.capacity_bytes))
            return f"None of them fits: the nearest is {name_of(least)}, which needs {needs} of {has} a GPU."
        value = self.metric.of(winner)
        leads = f"{name_of(winner)} wins with {told(self.metric, value.median)}"
        if other is None or self.ratio is None:
            return f"{leads}; there is nothing else that fits to compare it with."
        theirs = self.metric.of(other)
        margin = f"{leads}, {self.ratio:.2f} times as {'much' if self.metric.more_is_better else 'fast'} as {name_of(other)}"
        ends = f"{span(self.metric, value)} and {span(self.metric, theirs)}"
        if not self.intervals_overlap:
            return f"{margin}; the 80 % intervals ({ends}) do not overlap."
        overlap = f"{margin}; the 80 % intervals overlap ({ends})"
        if winner.gpu != other.gpu:
            return f"{overlap}, so it may be the other way round."
        if self.holds_at_both_ends:
            return f"{overlap}, but errors on one GPU go together and it leads at both ends: the order is surer than that."
        return f"{overlap} and, though errors on one GPU go together, it does not lead at both ends: it may be the other way round."

    def to_dict(self) -> dict[str, Any]:
        """tilecast.comparison/1, but for the versions."""
        return {
            "schema": "tilecast.comparison/1",
            "model": self.model,
            "by": self.metric.name,
            "swept": self.swept,
            "configurations": [outcome.to_dict() for outcome in self.outcomes],
            "refused": [{"gpu": refusal.gpu, "tp": refusal.tp, "reason": refusal.reason} for refusal in self.refusals],
            "warnings": list(self.warnings),
            "winner": _key(self.winner),
            "runner_up": _key(self.runner_up),
            "ratio": self.ratio,
            "intervals_overlap": self.intervals_overlap,
            "holds_at_both_ends": self.holds_at_both_ends,
            "sentence": self.sentence,
        }


def metric_named(name: str) -> Metric:
    if name not in METRICS:
        raise InvalidInput(f"--by {name!r} must be one of {', '.join(METRICS)}")
    return METRICS[name]


def compare(
    model: Any,
    gpus: Sequence[str],
    *,
    tps: Sequence[int] = (1,),
    batches: Sequence[int] = (),
    isl: int | None = None,
    osl: int | None = None,
    requests: Sequence[tuple[int, int]] | None = None,
    concurrencies: Sequence[int] = (),
    disaggregated: Sequence[str] = (),
    by: str = DEFAULT,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Every GPU with every group size and batch, or with every concurrency; `options` are those of `predict` or `predict_load`.

    `disaggregated` are prefill and decode workers such as 2P1D, or ["auto"] for all that a box of 8 has room for.

    >>> found = compare("Qwen/Qwen3-8B", ["h100-sxm", "l4"], batches=[1, 8], isl=256, osl=16)
    >>> found.winner.gpu
    'h100-sxm'
    """
    metric, config = metric_named(by), model_config(model)
    tps, batches, concurrencies = (
        [units.whole(name, value) for value in values] for name, values in (("tp", tps), ("batch", batches), ("concurrency", concurrencies))
    )
    ids = list(dict.fromkeys(hardware.gpu(name).id if not name.endswith(".toml") else name for name in gpus))
    groups = [(id, tp) for id in ids for tp in dict.fromkeys(tps)]
    sizes = list(dict.fromkeys(concurrencies or batches))
    if batches and concurrencies:
        raise InvalidInput("give batches or concurrencies, not both: the batches of a load are the engine's")
    if requests is None and (not sizes or isl is None or osl is None):
        raise InvalidInput("give batches or concurrencies, isl and osl, or requests")
    if disaggregated and not concurrencies:
        raise InvalidInput("disaggregated workers serve a load: give concurrencies")
    for workers in disaggregated if list(disaggregated) != ["auto"] else ():
        workers_in(workers)
    either = {name: options.get(name) for name in ("prefill_tp", "decode_tp")}
    layouts = {tp: layouts_of(tp, **either) if list(disaggregated) == ["auto"] else list(disaggregated) or [""] for tp in tps}
    longest = max(Batch.of_pairs(requests).output_tokens) if requests is not None else osl
    if longest == 1 and by in OF_DECODE:
        raise InvalidInput(f"--by {by}: one output token needs no decode step; compare by ttft_s or total_s, or ask for more tokens")

    def priced(gpu: str, tp: int) -> Iterator[list[Any]]:
        if concurrencies:
            for workers, users in product(layouts[tp], sizes):
                asked = options | ({"disaggregated": workers} if workers else {})
                yield load_outcomes(config, gpu, [users], tp=tp, isl=isl, osl=osl, requests=requests, **asked)
        elif requests is not None:
            yield [outcome_of(predict(config, gpu, tp=tp, requests=requests, **options))]
        else:
            assert isl is not None and osl is not None
            cases = [(batch, isl, osl) for batch in sizes]
            for start in range(0, len(cases), CHUNK):
                yield outcomes(config, gpu, cases[start : start + CHUNK], tp=tp, **options)

    each = {tp: len(sizes) * len(layouts[tp]) if concurrencies or requests is None else 1 for tp in tps}
    total = len(ids) * sum(each[tp] for tp in dict.fromkeys(tps))
    found, refusals = list[Configuration](), list[tuple[Refusal, TilecastError]]()
    done = 0
    for gpu, tp in groups:
        before = done
        try:
            for some in priced(gpu, tp):
                found += some
                done += len(some)
                if progress is not None:
                    progress(done, total)
        except InvalidInput as problem:
            refusals.append((Refusal(gpu, tp, str(problem)), problem))
        done = before + each[tp]
    if not found:
        raise refusals[0][1]
    sign = -1 if metric.more_is_better else 1
    ranked = sorted(found, key=lambda outcome: (not outcome.fits, sign * metric.of(outcome).median))
    return Comparison(
        model=config.name,
        metric=metric,
        outcomes=tuple(ranked),
        refusals=tuple(refusal for refusal, _ in refusals),
        warnings=(*config.notes, *_notes(ids, {outcome.gpu for outcome in found}, **options)),
    )


def _notes(names: Sequence[str], priced: Collection[str], *, engine: str = "sglang", overrides: Any = None, **_: Any) -> list[str]:
    """What should be known of each GPU that has an outcome."""
    parts = [hardware.in_long_runs(hardware.gpu(name, overrides)) for name in names]
    return [note for part in parts if part.id in priced for note in gpu_notes(engine_named(engine), part)]


# ---- words -------------------------------------------------------------------------------------------------------


def name_of(outcome: Configuration) -> str:
    return f"{outcome.gpu} {outcome.layout} {outcome.swept} {outcome.size}"


def told(metric: Metric, value: float) -> str:
    return units.human("_s", value) if metric.unit == "s" else f"{units.significant(value)} {metric.unit}"


def told_interval(metric: Metric, value: Interval) -> str:
    if metric.unit == "s":
        return str(value)
    return f"{units.significant(value.median)} ({units.significant(value.low)}-{units.significant(value.high)})"


def span(metric: Metric, value: Interval) -> str:
    if metric.unit == "s":
        return f"{units.human('_s', value.low)} to {units.human('_s', value.high)}"
    return f"{units.significant(value.low)} to {units.significant(value.high)}"


def _key(outcome: Configuration | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    said = {"gpu": outcome.gpu, "tp": outcome.tp, outcome.swept: outcome.size}
    return said | ({"layout": outcome.layout} if outcome.swept == "concurrency" else {})
