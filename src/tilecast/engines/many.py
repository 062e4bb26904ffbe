"""Many batches of one model on one set of GPUs, priced together: what takes a call of `predict` each costs little more than one.

Steps of different batches that run the same kernels are laid end to end and priced as one array. An engine changes kernels with the size
of a batch (a short message goes another way than a long one), so batches are first sorted by size and cut where the kernels change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from tilecast.engines.fit import most_tokens
from tilecast.engines.host import decode_host, prefill_host
from tilecast.engines.interval import NOTHING, Interval, median_step, weighted_total
from tilecast.engines.predict import Prediction, predict
from tilecast.engines.setup import Setup, check_context, set_up
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import BASES, Price, StepTime, evaluated_steps, price_step, signature, step_weights, weakest
from tilecast.workloads.graph import Batch, Tokens
from tilecast.workloads.memory import Memory

MOST_STEPS = 20_000  # priced at once: more would only fill memory
Lengths = tuple[int, int, int]  # requests of a step, query and context length of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a batch takes: a Prediction without its breakdown. Lengths are None where requests differ."""

    swept: ClassVar[str] = "batch"
    gpu: str
    tp: int
    num_gpus: int
    batch: int
    isl: int | None
    osl: int | None
    output_tokens: int  # of all requests
    decode_steps: int
    prefill_s: Interval
    decode_step_s: Interval
    decode_s: Interval
    memory: Memory
    basis: str

    @property
    def size(self) -> int:
        return self.batch

    @property
    def layout(self) -> str:
        return f"tp {self.tp}"

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def total_s(self) -> Interval:
        return self.prefill_s + self.decode_s

    @property
    def ttft_s(self) -> Interval:
        return self.prefill_s

    @property
    def tpot_s(self) -> Interval:
        return self.decode_s.per(self.decode_steps) if self.decode_steps else NOTHING

    @property
    def output_tokens_per_s(self) -> Interval:
        return self.total_s.rate_of(self.output_tokens)

    @property
    def output_tokens_per_s_per_gpu(self) -> Interval:
        return self.output_tokens_per_s.per(self.num_gpus)

    @property
    def output_tokens_per_s_per_user(self) -> Interval:
        """How fast one request sees its tokens come, once the first is there."""
        return self.tpot_s.rate_of(1)

    def to_dict(self) -> dict[str, Any]:
        said = ("gpu", "tp", "num_gpus", "batch", "isl", "osl", "decode_steps", "fits", "basis")
        return {
            **{name: getattr(self, name) for name in said[:6]},
            **{name: metric.of(self).to_dict() for name, metric in METRICS.items()},
            **{name: getattr(self, name) for name in said[6:]},
            "memory": self.memory.to_dict(),
        }


def outcomes(
    model: Any, gpu: Any, cases: Sequence[tuple[int, int, int]], *, tp: int = 1, allow_longer_context: bool = False,
    price: Price = predict_kernel, **options: Any,
) -> list[Outcome]:  # fmt: skip
    """The outcome of every (batch, isl, osl), in their order; `options` are those of `predict`.

    >>> one, two = outcomes("Qwen/Qwen3-8B", "h100-sxm", [(1, 512, 64), (64, 512, 64)])
    >>> one.tpot_s.median < two.tpot_s.median and one.output_tokens_per_s.median < two.output_tokens_per_s.median
    True
    """
    options = {name: value for name, value in options.items() if value not in (None, False, 1)}  # those ask for nothing

    def alone(batch: int, isl: int, osl: int) -> Outcome:
        sizes: dict[str, Any] = {"tp": tp, "batch": batch, "isl": isl, "osl": osl, "allow_longer_context": allow_longer_context}
        return outcome_of(predict(model, gpu, price=price, **sizes, **options))

    if set(options) - {"engine", "engine_settings", "node", "quant", "kv_dtype", "ep", "overrides"}:
        return [alone(*case) for case in cases]
    found = set_up(model, gpu, tp=tp, **options)
    batches = [Batch.uniform(*case) for case in cases]
    cases, tp = [(batch.num_requests, batch.input_tokens[0], batch.output_tokens[0]) for batch in batches], found.shard.tp
    for batch in batches:
        check_context(found.config, batch, allow_longer_context)
    longest = most_tokens(found.engine, found.gpu)
    if any(b * i > longest for b, i, _ in cases):  # prefilled in several passes
        few = [case for case in cases if case[0] * case[1] <= longest]
        short = iter(outcomes(model, gpu, few, tp=tp, allow_longer_context=allow_longer_context, price=price, **options))
        return [next(short) if b * i <= longest else alone(b, i, o) for b, i, o in cases]
    points = [evaluated_steps((osl,)) for _, _, osl in cases]
    prefills = _priced(found, "prefill", [[(batch, isl, isl)] for batch, isl, _ in cases], price)
    contexts = [[isl + 1 + int(step) for step in steps] for (_, isl, _), steps in zip(cases, points, strict=True)]
    decodes = _priced(found, "decode", [[(case[0], 1, n) for n in each] for case, each in zip(cases, contexts, strict=True)], price)
    return [
        _joined(found, tp, case, batch, steps, prefill, decode)
        for case, batch, steps, prefill, decode in zip(cases, batches, points, prefills, decodes, strict=True)
    ]


def _joined(
    found: Setup, tp: int, case: tuple[int, int, int], batch: Batch, points: np.ndarray, prefill: StepTime, decode: StepTime
) -> Outcome:
    """As `predict` adds up a batch."""
    decode_s = step_s = NOTHING
    host_prefill = prefill_host(found.engine.host, found.config, prefill, np.ones(1))
    if len(points):
        step_s = median_step(points, decode)
        host = decode_host(found.engine, found.config, found.shard, found.gpu, step_s.median)
        decode_s = weighted_total(decode, step_weights(points)) + host.per(1.0 / batch.num_decode_steps)
        step_s += host
    return Outcome(
        gpu=found.gpu.id, tp=tp, num_gpus=tp, batch=case[0], isl=case[1], osl=case[2],
        output_tokens=case[0] * case[2], decode_steps=batch.num_decode_steps, decode_step_s=step_s, decode_s=decode_s,
        prefill_s=weighted_total(prefill, np.ones(1)) + host_prefill, memory=found.memory(batch),
        basis=weakest((prefill.basis, decode.basis)),
    )  # fmt: skip


def outcome_of(found: Prediction) -> Outcome:
    times = {name: getattr(found, name) for name in ("prefill_s", "decode_step_s", "decode_s", "decode_steps", "memory", "basis")}
    return Outcome(
        gpu=found.gpu.id, tp=found.tp, num_gpus=found.tp * int(found.inputs.get("pp") or 1), batch=found.batch.num_requests,
        isl=found.inputs.get("isl"), osl=found.inputs.get("osl"), output_tokens=sum(found.batch.output_tokens), **times,
    )  # fmt: skip


# ---- steps of many batches ---------------------------------------------------------------------------------------


def _priced(found: Setup, phase: str, cases: list[list[Lengths]], price: Price) -> list[StepTime]:
    """The steps of every case, priced in as few calls as the engine's kernels allow."""
    times = [StepTime(calls=(), median_s=np.zeros(0), low_s=np.zeros(0), high_s=np.zeros(0), basis=BASES[0])] * len(cases)
    order = sorted((place for place, steps in enumerate(cases) if steps), key=lambda place: _size(cases[place]))

    @cache
    def kernels(rank: int) -> object:
        return signature(found.step(_tokens(phase, cases[order[rank]])))

    for start, stop in alike(kernels, 0, len(order)):
        for run in _chunks([order[rank] for rank in range(start, stop)], cases):
            steps = [lengths for place in run for lengths in cases[place]]
            whole = price_step(found.step(_tokens(phase, steps)), found.gpu, price)
            bases = whole.bases
            ends = list(accumulate(len(cases[place]) for place in run))
            for place, end in zip(run, ends, strict=True):
                mine = slice(end - len(cases[place]), end)
                arrays = {name: getattr(whole, name)[mine] for name in ("median_s", "low_s", "high_s")}
                times[place] = StepTime(calls=(), basis=BASES[int(bases[mine].max())], **arrays)
    return times


def _size(steps: list[Lengths]) -> tuple[int, int]:
    requests, queries, contexts = steps[-1]
    return requests * queries, contexts


def _tokens(phase: str, steps: list[Lengths]) -> Tokens:
    """Batches of one length share its numbers: the longest is filled in once, the others are views of it."""
    longest = max(requests for requests, _, _ in steps)
    filled = {length: np.full(longest, length) for length in {length for step in steps for length in step[1:]}}
    q_lens, kv_lens = (tuple(filled[step[place]][: step[0]] for step in steps) for place in (1, 2))
    return Tokens(phase, q_lens, kv_lens)


def alike(kernels: Callable[[int], object], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Runs of sizes whose smallest and largest member run the same kernels."""
    if start >= stop:
        return
    if kernels(start) == kernels(stop - 1):
        yield start, stop
    else:
        middle = (start + stop) // 2
        yield from alike(kernels, start, middle)
        yield from alike(kernels, middle, stop)


def _chunks(run: list[int], cases: list[list[Lengths]]) -> Iterator[list[int]]:
    chunk, held = list[int](), 0
    for place in run:
        if chunk and held + len(cases[place]) > MOST_STEPS:
            yield chunk
            chunk, held = [], 0
        chunk.append(place)
        held += len(cases[place])
    if chunk:
        yield chunk


# ---- what outcomes are compared by -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of an outcome; the words and the unit that a reader sees."""

    name: str
    words: str
    unit: str  # "s": times, told in the unit that suits them
    more_is_better: bool

    def of(self, outcome: object) -> Interval:
        found: Interval = getattr(outcome, self.name)
        return found


METRICS = {
    metric.name: metric
    for metric in (
        Metric("output_tokens_per_s_per_gpu", "output tokens per second and GPU", "tokens/s/GPU", True),
        Metric("output_tokens_per_s", "output tokens per second", "tokens/s", True),
        Metric("output_tokens_per_s_per_user", "tokens per second that one request sees", "tokens/s/user", True),
        Metric("ttft_s", "time to first token", "s", False),
        Metric("prefill_s", "prefill", "s", False),
        Metric("tpot_s", "time per output token", "s", False),
        Metric("decode_step_s", "decode step", "s", False),
        Metric("total_s", "total time", "s", False),
    )
}
