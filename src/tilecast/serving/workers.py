"""Workers of one kind, and the times of their steps: prompts on prefill workers, tokens on decode workers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilecast.engines.setup import Setup
from tilecast.serving.costs import SIDES, Costs, costs
from tilecast.serving.policy import Policy
from tilecast.serving.pools import DecodeRun, DecodeTimes, Pool, PrefillStep
from tilecast.serving.schedule import Lengths, Run, Schedule, schedule, steps_alone
from tilecast.workloads.aggregate import Price

REQUEST_KNOTS, KEY_KNOTS = 24, 5
MOST_COMPARED = 192  # prefill steps that were priced, among which one like another is looked for
LIKELY_USERS = (1, 2, 4, 8)  # of one prefill worker, whose steps are priced before it is known which ones run


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Workers of one kind: how many, and how each is set up."""

    number: int
    found: Setup
    policy: Policy

    @property
    def num_gpus(self) -> int:
        return self.number * self.found.shard.num_gpus

    @property
    def pool(self) -> Pool:
        gives = bool(self.found.engine.fact("decode_gives_first_token"))
        return Pool(policy=self.policy, workers=self.number, ranks=self.found.shard.dp * self.found.shard.pp, gives_first_token=gives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prefill steps that were priced; one that was not takes the time per token of the one most like it."""

    steps: tuple[PrefillStep, ...]
    plan: Schedule
    cost: Costs

    def of(self, side: str) -> Callable[[PrefillStep], float]:
        seconds: dict[PrefillStep, float] = dict(zip(self.steps, self.cost.step_s(side).tolist(), strict=True))
        few = sorted(self.steps)
        few = [few[place] for place in np.unique(np.linspace(0, len(few) - 1, MOST_COMPARED).round().astype(np.int64))]
        known = np.log([_sizes(step) for step in few])

        def prefill_s(step: PrefillStep) -> float:
            if step not in seconds:
                near = few[int(np.argmin(np.abs(known - np.log(_sizes(step))).sum(axis=1)))]
                seconds[step] = seconds[near] * step.tokens / near.tokens
            return seconds[step]

        return prefill_s


def _sizes(step: PrefillStep) -> tuple[float, ...]:
    """What two steps are compared by."""
    return step.tokens, step.alike, step.keys, step.mean_tokens


def likely_steps(policy: Policy, requests: Sequence[Lengths], ranks: int) -> Counter[PrefillStep]:
    """Of one prefill worker with few users and with many: of its ranks one, half or all have as much to do as the fullest."""
    found = Counter[PrefillStep]()
    for users in LIKELY_USERS:
        plan = schedule(policy, users, lambda number: (requests[number % len(requests)][0], 1), max(2 * users, min(len(requests), 32)))
        for tokens, chunks, keys in zip(plan.prefill_tokens, plan.chunks, plan.chunk_context, strict=True):
            if tokens:
                for share in sorted({1.0 / ranks, 0.5 if ranks > 1 else 1.0, 1.0}):
                    found[PrefillStep(int(tokens), int(chunks), float(keys), int(chunks), float(tokens) * share)] += 1
    return found


def prompts_of(found: Setup, steps: Counter[PrefillStep], price: Price) -> Prompts:
    runs = [
        Run(often, prefill_tokens=step.tokens, chunks=step.alike, chunk_context=step.keys, prompts_done=step.chunks)
        for step, often in steps.items()
    ]
    plan = steps_alone(runs, [step.mean_tokens for step in steps])
    return Prompts(steps=tuple(steps), plan=plan, cost=costs(found, plan, price))


def tokens_of(
    found: Setup, runs: Sequence[DecodeRun], ends: tuple[float, float], price: Price
) -> tuple[tuple[Schedule, Costs], dict[str, DecodeTimes]]:
    """Price the given decode runs, and tabulate a step's time over its requests and their mean keys, the latter between `ends`."""
    distinct = np.unique([run.requests for run in runs])
    if len(distinct) > REQUEST_KNOTS:
        distinct = np.unique(distinct[np.linspace(0, len(distinct) - 1, REQUEST_KNOTS).round().astype(np.int64)])
    keys = np.unique(np.linspace(*ends, KEY_KNOTS))
    ran = [Run(run.steps, decodes=run.requests, context=run.keys) for run in runs]
    plan = steps_alone([*ran, *(Run(0, decodes=requests, context=context) for requests in distinct for context in keys)])
    cost = costs(found, plan, price)
    tables = {side: cost.step_s(side)[len(ran) :].reshape(len(distinct), len(keys)) for side in SIDES}
    return (plan, cost), {side: DecodeTimes(requests=distinct, keys=keys, seconds=table) for side, table in tables.items()}
