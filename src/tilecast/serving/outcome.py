"""What a load gives, without what it is made of: one line of a comparison, one point of a curve over concurrencies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilecast.engines.interval import Interval
from tilecast.engines.many import METRICS
from tilecast.serving.disaggregated import DisaggregatedPrediction, predict_disaggregated
from tilecast.serving.load import LoadPrediction, predict_load
from tilecast.workloads.memory import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """The figures of `engines.many.Outcome`, for users instead of a batch: times are means over requests, `total_s` is their latency.

    `layout` says how GPUs share the work: "tp 2", or "2P1D tp 1+2" for two prefill workers of one GPU and a decode worker of two.
    """

    swept: ClassVar[str] = "concurrency"
    gpu: str
    tp: int  # of decode workers, where they are apart
    layout: str
    num_gpus: int
    concurrency: int
    isl: int | None
    osl: int | None
    decode_steps: int
    output_tokens_per_s_per_gpu: Interval
    output_tokens_per_s: Interval
    output_tokens_per_s_per_user: Interval
    ttft_s: Interval
    prefill_s: Interval
    tpot_s: Interval
    decode_step_s: Interval
    total_s: Interval
    queue_s: float
    memory: Memory
    basis: str

    @property
    def size(self) -> int:
        return self.concurrency

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        said = ("gpu", "tp", "layout", "num_gpus", "concurrency", "isl", "osl")
        return {
            **{name: getattr(self, name) for name in said},
            **{name: metric.of(self).to_dict() for name, metric in METRICS.items()},
            **{name: getattr(self, name) for name in ("queue_s", "decode_steps", "fits", "basis")},
            "memory": self.memory.to_dict(),
        }


def load_outcome(found: LoadPrediction | DisaggregatedPrediction) -> LoadOutcome:
    asked, own = found.inputs, ("layout", "num_gpus", "concurrency", "decode_steps", "queue_s", "memory", "basis")
    figures: dict[str, Any] = {name: getattr(found, name) for name in (*own, *METRICS)}
    return LoadOutcome(gpu=found.gpu.id, tp=asked["tp"], isl=asked.get("isl"), osl=asked.get("osl"), **figures)


def load_outcomes(model: Any, gpu: Any, concurrencies: Sequence[int], **options: Any) -> list[LoadOutcome]:
    """The outcome of every concurrency, in their order; `options` are those of `predict_load`, or with `disaggregated` of its function.

    >>> few, many = load_outcomes("Qwen/Qwen3-8B", "h100-sxm", [2, 16], isl=512, osl=64)
    >>> few.tpot_s.median < many.tpot_s.median and few.output_tokens_per_s.median < many.output_tokens_per_s.median
    True
    """
    predicted: Callable[..., LoadPrediction | DisaggregatedPrediction] = (
        predict_disaggregated if options.get("disaggregated") else predict_load
    )
    return [load_outcome(predicted(model, gpu, concurrency=users, **options)) for users in concurrencies]
