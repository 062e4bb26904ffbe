"""What would make a load faster: the GPU's facts, the link and the host moved and priced again, and other numbers of users beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilecast.diagnosis.what_if import Lever, Times, has_links, levers_of, what_helps
from tilecast.engines.base import HOST_NAMES, with_settings
from tilecast.engines.base import engine as engine_named
from tilecast.predictors import predict_kernel
from tilecast.serving.load import LoadPrediction, predict_load
from tilecast.serving.outcome import LoadOutcome, load_outcome, load_outcomes
from tilecast.workloads.aggregate import Price

FACTORS = (0.25, 0.5, 2, 4)  # of the users


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWhy:
    """Levers by what they do to latency, which with a fixed number of users is what they do to throughput, first token and tokens."""

    levers: tuple[Lever, ...]
    concurrencies: tuple[LoadOutcome, ...]  # in rising order, what was asked among them
    asked: LoadOutcome

    def to_dict(self) -> dict[str, Any]:
        return {
            "levers": [
                lever.to_dict("ttft", "tpot") | {"output_tokens_per_s_gained_fraction": gained_fraction(lever)} for lever in self.levers
            ],
            "concurrencies": [outcome.to_dict() for outcome in self.concurrencies],
        }

    @property
    def sentence(self) -> str:
        """The best lever, and what twice the users would do."""
        helps = what_helps(self.levers, "latency")
        more = next((outcome for outcome in self.concurrencies if outcome.concurrency == 2 * self.asked.concurrency), None)
        if more is None:
            return helps
        rate = more.output_tokens_per_s.median / self.asked.output_tokens_per_s.median
        slower = more.total_s.median / self.asked.total_s.median
        return f"{helps} Twice the users would get {rate:.2f} times the tokens per second, at {slower:.2f} times the latency."


def gained_fraction(lever: Lever) -> float:
    """Of the tokens per second: users who wait less ask again sooner."""
    return 1.0 / (1.0 - lever.total_saved_fraction) - 1.0


def why_load(found: LoadPrediction, asked: Mapping[str, Any], price: Price = predict_kernel) -> LoadWhy:
    """Every lever of `found`, which `predict_load(**asked)` made."""
    plain = {name: value for name, value in asked.items() if value is not None and name not in ("overrides", "gpu")}
    others = {name: value for name, value in plain.items() if name not in ("model", "concurrency")}

    def timed(spec: Any, how: Price, **changed: Any) -> Times:
        load = predict_load(gpu=spec, price=how, **(plain | changed))
        return Times(load.ttft_s.median, load.tpot_s.median, load.total_s.median)

    settings = dict(plain.get("engine_settings") or {})
    host = with_settings(engine_named(found.engine), settings).host
    seconds = {name: getattr(host, name) for name in HOST_NAMES if name.endswith("_s")}

    def with_less_host(_: Times, less: float) -> Times:
        scaled = {name: value * max(0.0, 1.0 - less) for name, value in seconds.items()}
        return timed(found.gpu, price, engine_settings=settings | scaled)

    sizes = sorted({max(1, round(found.concurrency * factor)) for factor in FACTORS} - {found.concurrency})
    here = load_outcome(found)
    beside = load_outcomes(plain["model"], found.gpu, sizes, price=price, **others)
    return LoadWhy(
        levers=levers_of(found.gpu, found.node is not None and has_links(found.breakdown), timed, with_less_host, price),
        concurrencies=tuple(sorted((here, *beside), key=lambda outcome: outcome.concurrency)),
        asked=here,
    )
