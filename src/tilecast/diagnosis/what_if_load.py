"""What would make a load faster: the GPU's facts, the link and the host moved and priced again, other numbers of users and of workers.

Prefill and decode workers apart have clocks of their own, so a lever moves their steps too and the load is run again with every change.
Which prompts share a step hangs on microseconds there: `first_noise_fraction` says how far first tokens move when nothing to speak of does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilecast import hardware
from tilecast.diagnosis.what_if import Lever, Times, has_links, levers_of, what_helps
from tilecast.engines.base import HOST_NAMES, with_settings
from tilecast.engines.base import engine as engine_named
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.predictors import predict_kernel
from tilecast.serving.asked import MOST_USERS
from tilecast.serving.disaggregated import MOST_WORKERS, DisaggregatedPrediction, predict_disaggregated
from tilecast.serving.load import LoadPrediction, predict_load
from tilecast.serving.outcome import LoadOutcome, load_outcome, load_outcomes
from tilecast.workloads.aggregate import Price

FACTORS = (0.25, 0.5, 2, 4)  # of the users
HARDLY = 1e-3  # a share of the bandwidth whose effect on first tokens is no effect of bandwidth
WORTH_SAYING = 0.003  # of the first token
WORTH_A_WORKER = 1.01  # tokens per second and GPU, for another worker to be called worth its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWhy:
    """Levers by what they do to latency, which with a fixed number of users is what they do to throughput, first token and tokens."""

    levers: tuple[Lever, ...]
    concurrencies: tuple[LoadOutcome, ...]  # in rising order, what was asked among them
    asked: LoadOutcome
    workers: tuple[LoadOutcome, ...] = ()  # with one more of either kind, where prefill and decode are apart
    first_noise_fraction: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "levers": [
                lever.to_dict("ttft", "tpot") | {"output_tokens_per_s_gained_fraction": gained_fraction(lever)} for lever in self.levers
            ],
            "concurrencies": [outcome.to_dict() for outcome in self.concurrencies],
            **(
                {
                    "workers": [outcome.to_dict() for outcome in self.workers],
                    "ttft_noise_fraction": self.first_noise_fraction,
                }
                if self.workers
                else {}
            ),
        }

    @property
    def sentence(self) -> str:
        """The best lever, what another worker would do, and twice the users."""
        helps = " ".join(filter(None, (what_helps(self.levers, "latency"), self._noise(), self._another())))
        more = next((outcome for outcome in self.concurrencies if outcome.concurrency == 2 * self.asked.concurrency), None)
        if more is None:
            return helps
        rate = more.output_tokens_per_s.median / self.asked.output_tokens_per_s.median
        slower = more.total_s.median / self.asked.total_s.median
        return f"{helps} Twice the users would get {rate:.2f} times the tokens per second, at {slower:.2f} times the latency."

    def _noise(self) -> str:
        if self.first_noise_fraction < WORTH_SAYING:
            return ""
        moved = f"First tokens move by {100 * self.first_noise_fraction:.1f} % when bandwidth moves by a thousandth"
        return f"{moved}, as other prompts share a step then: smaller effects on them say nothing."

    def _another(self) -> str:
        """The worker that adds most tokens per second."""
        more = [outcome for outcome in self.workers if outcome.layout != self.asked.layout]
        if not more:
            return ""
        best = max(more, key=lambda outcome: outcome.output_tokens_per_s.median)
        rate, each = (
            getattr(best, name).median / getattr(self.asked, name).median for name in ("output_tokens_per_s", "output_tokens_per_s_per_gpu")
        )
        worth = "more" if each > WORTH_A_WORKER else "less" if each < 1 / WORTH_A_WORKER else "as much"
        gives = f"{rate:.2f} times the tokens per second, {each:.2f} times a GPU"
        return f"Of one worker more, {best.layout} gives most: {gives}, so {worth} for its GPUs."


def gained_fraction(lever: Lever) -> float:
    """Of the tokens per second: users who wait less ask again sooner."""
    return 1.0 / (1.0 - lever.total_saved_fraction) - 1.0


def why_load(found: LoadPrediction, asked: Mapping[str, Any], price: Price = predict_kernel) -> LoadWhy:
    """Every lever of `found`, which `predict_load(**asked)` made."""
    plain = _plain(asked)

    def timed(spec: GpuSpec, how: Price, **changed: Any) -> Times:
        return _times(predict_load(gpu=spec, price=how, **(plain | changed)))

    linked = found.node is not None and has_links(found.breakdown)
    levers = levers_of(found.gpu, linked, timed, _host_lever(found, plain, timed, price), price)
    return LoadWhy(levers=levers, concurrencies=_beside(found, plain, price), asked=load_outcome(found))


def why_disaggregated(found: DisaggregatedPrediction, asked: Mapping[str, Any], price: Price = predict_kernel) -> LoadWhy:
    """Every lever of `found`, which `predict_disaggregated(**asked)` made, and one more worker of either kind."""
    plain = _plain(asked)

    def timed(spec: GpuSpec, how: Price, **changed: Any) -> Times:
        return _times(predict_disaggregated(gpu=spec, price=how, with_interval=False, **(plain | changed)))

    apart = found.link.is_network
    levers = levers_of(
        found.gpu, not apart or has_links(found.breakdown), timed, _host_lever(found, plain, timed, price), price,
        networked=apart,
    )  # fmt: skip
    now = found.ttft_s.median
    nudged = (
        timed(hardware.with_overrides(found.gpu, {"dram_bytes_per_s": found.gpu.dram_bytes_per_s * (1 + nudge)}), price).first_s
        for nudge in (-HARDLY, HARDLY)
    )
    here = load_outcome(found)
    layouts = [
        f"{prefills}P{decodes}D"
        for prefills, decodes in ((found.prefill.number + 1, found.decode.number), (found.prefill.number, found.decode.number + 1))
        if max(prefills, decodes) <= MOST_WORKERS
    ]
    more = (_with_workers(found.gpu, plain | {"disaggregated": layout}, price) for layout in layouts)
    return LoadWhy(
        levers=levers,
        concurrencies=_beside(found, plain, price),
        asked=here,
        workers=(here, *(outcome for outcome in more if outcome is not None)),
        first_noise_fraction=max(abs(each / now - 1) for each in nudged),
    )


def _with_workers(gpu: GpuSpec, asked: Mapping[str, Any], price: Price) -> LoadOutcome | None:
    """None where they are more than a box holds and no network between such boxes is known."""
    try:
        return load_outcome(predict_disaggregated(gpu=gpu, price=price, **asked))
    except InvalidInput:
        return None


def _plain(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked but for the GPU, which `found` has with its changes."""
    return {name: value for name, value in asked.items() if value is not None and name not in ("overrides", "gpu")}


def _times(load: LoadPrediction | DisaggregatedPrediction) -> Times:
    return Times(load.ttft_s.median, load.tpot_s.median, load.total_s.median)


def _host_lever(
    found: LoadPrediction | DisaggregatedPrediction, plain: Mapping[str, Any], timed: Callable[..., Times], price: Price
) -> Callable[[Times, float], Times]:
    settings = dict(plain.get("engine_settings") or {})
    host = with_settings(engine_named(found.engine), settings).host
    seconds = {name: getattr(host, name) for name in HOST_NAMES if name.endswith("_s")}

    def with_less_host(_: Times, less: float) -> Times:
        scaled = {name: value * max(0.0, 1.0 - less) for name, value in seconds.items()}
        return timed(found.gpu, price, engine_settings=settings | scaled)

    return with_less_host


def _beside(found: LoadPrediction | DisaggregatedPrediction, plain: Mapping[str, Any], price: Price) -> tuple[LoadOutcome, ...]:
    """Other numbers of users, and what was asked among them."""
    others = {name: value for name, value in plain.items() if name not in ("model", "concurrency")}
    sizes = sorted({max(1, round(found.concurrency * factor)) for factor in FACTORS} - {found.concurrency})
    beside = load_outcomes(plain["model"], found.gpu, [size for size in sizes if size <= MOST_USERS], price=price, **others)
    return tuple(sorted((load_outcome(found), *beside), key=lambda outcome: outcome.concurrency))
