"""What is asked of a load: how many users, and the lengths of their requests."""

from collections.abc import Sequence

from tilecast.errors import InvalidInput
from tilecast.serving.policy import Policy
from tilecast.serving.schedule import Lengths
from tilecast.units import whole
from tilecast.workloads.graph import Batch

MOST_USERS = 65_536
FEWEST_MEASURED = 48  # requests that a steady state is read from


def users_of(concurrency: object) -> int:
    return whole("concurrency", concurrency, MOST_USERS)


def lengths_of(isl: int | None, osl: int | None, requests: Sequence[Lengths] | None) -> list[Lengths]:
    if requests is not None:
        if isl is not None or osl is not None:
            raise InvalidInput("give isl and osl, or requests, not both")
        every = Batch.of_pairs(requests)
    elif isl is None or osl is None:
        raise InvalidInput("isl and osl missing: give both, or requests")
    else:
        every = Batch.uniform(1, isl, osl)
    return list(zip(every.input_tokens, every.output_tokens, strict=True))


def batch_of(requests: Sequence[Lengths]) -> Batch:
    """All of them together; refuses lengths that no request has."""
    return Batch(tuple(asked for asked, _ in requests), tuple(given for _, given in requests))


def followed(users: int, num_requests: int | None) -> tuple[int, slice]:
    """How many requests are run, and which of them count: all that were asked for, or of a steady state those after two rounds of warm-up
    and before the last round, in which users fall silent."""
    if num_requests:
        return num_requests, slice(0, num_requests)
    total = (max(2, -(-FEWEST_MEASURED // users)) + 3) * users
    return total, slice(2 * users, total - users)


def too_long(policy: Policy, asked: Sequence[Lengths], engine: str) -> list[str]:
    """An engine that takes prompts whole refuses one that no step has room for; it is predicted as a step of its own."""
    longest = max(pair[0] for pair in asked)
    if policy.chunks or longest <= policy.token_budget:
        return []
    room = f"prompts of {longest:,} tokens are more than the {policy.token_budget:,} of a step"
    return [f"{room}, which {engine} takes only when it may cut them: --engine-set chunks_prompts=1; here they get a step of their own"]
