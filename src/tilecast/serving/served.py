"""What every served load says alike, however its workers share the work: rates and shares that follow from times, and the record."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from tilecast.engines.breakdown import Part
from tilecast.engines.interval import Interval
from tilecast.engines.predict import record
from tilecast.workloads.aggregate import BASES
from tilecast.workloads.memory import Memory


class Served(ABC):
    """The steady state of `concurrency` users. Times are means over requests."""

    __slots__ = ()
    concurrency: int
    breakdown: tuple[Part, ...]  # seconds of GPU and host time per request
    inputs: Mapping[str, Any]

    @property
    @abstractmethod
    def num_gpus(self) -> int: ...

    @property
    @abstractmethod
    def memory(self) -> Memory: ...

    @property
    @abstractmethod
    def basis(self) -> str: ...

    @property
    @abstractmethod
    def ttft_s(self) -> Interval: ...

    @property
    @abstractmethod
    def tpot_s(self) -> Interval: ...

    @property
    @abstractmethod
    def total_s(self) -> Interval:
        """From a request's arrival to its last token."""

    @property
    @abstractmethod
    def queue_s(self) -> float: ...

    @property
    @abstractmethod
    def decode_step_s(self) -> Interval: ...

    @property
    @abstractmethod
    def decode_steps(self) -> int: ...

    @property
    @abstractmethod
    def mean_input_tokens(self) -> float:
        """Of a request."""

    @property
    @abstractmethod
    def mean_output_tokens(self) -> float:
        """Of a request."""

    @abstractmethod
    def serving(self) -> dict[str, Any]:
        """What a load adds to the record."""

    @property
    def prefill_s(self) -> Interval:
        """From the step that takes a request in to its first token."""
        ttft, share = self.ttft_s, 1.0 - self.queue_s / max(self.ttft_s.median, 1e-12)
        return Interval(ttft.median * share, ttft.low * share, ttft.high * share)

    @property
    def output_tokens_per_s(self) -> Interval:
        return self.total_s.rate_of(self.concurrency * self.mean_output_tokens)

    @property
    def output_tokens_per_s_per_gpu(self) -> Interval:
        return self.output_tokens_per_s.per(self.num_gpus)

    @property
    def output_tokens_per_s_per_user(self) -> Interval:
        """How fast one request sees its tokens come, once the first is there."""
        return self.tpot_s.rate_of(1)

    def rates(self) -> dict[str, Any]:
        """What every load says of itself in the record."""
        given = self.mean_output_tokens
        return {
            "output_tokens_per_s_per_gpu": self.output_tokens_per_s_per_gpu.to_dict(),
            "output_tokens_per_s_per_user": self.output_tokens_per_s_per_user.to_dict(),
            "total_tokens_per_s_per_gpu": self.output_tokens_per_s_per_gpu.per(given / (self.mean_input_tokens + given)).to_dict(),
            "requests_per_s": self.output_tokens_per_s.per(given).to_dict(),
            "queue_s": self.queue_s,
        }

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def basis_shares(self) -> dict[str, float]:
        """The share of the busy time that rests on each basis, strongest first."""
        shares = {basis: sum(part.share_fraction for part in self.breakdown if part.basis == basis) for basis in BASES}
        return {basis: share for basis, share in shares.items() if share}

    def to_dict(self) -> dict[str, Any]:
        """The contract's record (tilecast.predict/1) with what a load adds under `serving`, but for the versions."""
        return record(self, serving=self.serving())
