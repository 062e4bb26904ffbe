"""Who gets the tokens of a mixture of experts: evenly dealt, drawn from a power law, or as a histogram says; and the busiest rank.

Shapes: L launches, D draws of how the experts lie on the ranks, R ranks, E experts.
"""

import json
import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import InvalidInput, shown
from tilecast.execution.tasks import Floats, ceil_div

MOST_EXPERTS = 65_536  # of one layer; routers have hundreds
MOST_DIGITS = len(str(MOST_EXPERTS))
NUM_DRAWS = 8  # orders of the experts over which the busiest rank of a skewed load is averaged


def busiest_rank(distribution: str, tokens: Floats, num_experts: int, topk: Floats, ep: int) -> Floats:
    """Tokens per expert of the busiest rank, (L, D, E): D equally likely ways the experts may lie on the ranks."""
    on_rank = num_experts // ep
    balanced = balanced_loads(tokens * topk, num_experts, ep)[:, None, :]
    if distribution == "balanced":
        return balanced
    if distribution.startswith(("[", "{")):
        return _fullest(_histogram(distribution, tokens, num_experts, topk).reshape(-1, 1, ep, on_rank))
    if not re.fullmatch(r"power_law_\d+(\.\d+)?", distribution):
        allowed = "'balanced', 'power_law_A' with a number A, or tokens per expert as a JSON list or object"
        raise InvalidInput(f"distribution = {shown(distribution)} must be {allowed}")
    loads = power_law_loads(tokens, num_experts, topk, float(distribution.rpartition("_")[2]))
    if ep == 1:
        return loads[:, None, :]
    ranks = loads[:, _orders(num_experts)].reshape(len(loads), NUM_DRAWS, ep, on_rank)
    # So few tokens that the law tells no expert from another lie evenly, as AIConfigurator's draw puts them.
    return np.where((loads[:, 0] <= 1)[:, None, None], balanced, _fullest(ranks))


def _fullest(ranks_LDRE: Floats) -> Floats:
    """Of each draw the rank with the most tokens, (L, D, E)."""
    busiest = np.argmax(ranks_LDRE.sum(axis=3), axis=2)[:, :, None, None]
    return np.asarray(np.take_along_axis(ranks_LDRE, busiest, axis=2)[:, :, 0, :])


def balanced_loads(pairs: Floats, num_experts: int, ep: int) -> Floats:
    """Dealt round robin over the ranks and, on a rank, over its experts."""
    extra = ceil_div(pairs % num_experts, ep)[:, None]
    return np.asarray(np.floor(pairs / num_experts)[:, None] + (np.arange(num_experts // ep) < extra))


def power_law_loads(tokens: Floats, num_experts: int, topk: Floats, exponent: float) -> Floats:
    """Tokens per expert, most first (L, E), when loads are drawn from x^-exponent: the quantiles in place of a draw.

    As AIConfigurator draws them: x in [1, 0.8 tokens], or [0.01, 2] when there are fewer pairs than experts; scaled and rounded to the
    number of pairs; no expert gets a token twice.
    """
    pairs = (tokens * topk)[:, None]
    many = pairs > num_experts
    low, high = np.where(many, 1.0, 0.01), np.where(many, np.maximum(0.8 * tokens[:, None], 1.0 + 1e-9), 2.0)
    quantile = 1.0 - (np.arange(num_experts) + 0.5) / num_experts
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        weight = low * (high / low) ** quantile
    else:
        weight = ((high**power - low**power) * quantile + low**power) ** (1.0 / power)
    return _whole(_capped(weight, pairs, tokens[:, None]), pairs, tokens[:, None])


def loads_like(weights: Floats, num_tokens: int, topk: int) -> Floats:
    """Tokens per expert (E,) when experts are chosen in proportion to `weights`: whole numbers, none above `num_tokens`."""
    order = np.argsort(-weights, kind="stable")
    total, cap = np.array([[float(num_tokens * topk)]]), np.array([[float(num_tokens)]])
    loads = np.empty(len(weights))
    loads[order] = _whole(_capped(np.maximum(weights[order], 1e-12)[None, :], total, cap), total, cap)[0]
    return loads


def _capped(weight: Floats, total: Floats, cap: Floats) -> Floats:
    """Shares of `total` in proportion to `weight` (most first), none above `cap`: what the full ones cannot take goes to the rest."""
    tail = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    position = np.arange(weight.shape[1])
    scale = np.maximum(total - position * cap, 0.0) / tail  # if the first `position` experts are full
    full = np.argmax(weight * scale <= cap * (1 + 1e-12), axis=1)[:, None]
    return np.asarray(np.where(position < full, cap, weight * np.take_along_axis(scale, full, axis=1)))


def _whole(share: Floats, total: Floats, cap: Floats) -> Floats:
    """Rounded (most first); what is missing to `total` goes to the least loaded, most wanted first, what is too much comes from the most.

    So AIConfigurator's draw does it, as its rows tell: two tokens of eight experts out of 128 read sixteen, as many as dealt evenly.
    """
    loads = np.round(share)
    for _ in range(2):
        missing = total - loads.sum(axis=1, keepdims=True)
        can = np.where(missing > 0, loads < cap, loads > 0)
        order = np.argsort(np.where(missing > 0, loads, 0.0), axis=1, kind="stable")
        turn = np.empty_like(loads)
        np.put_along_axis(turn, order, np.cumsum(np.take_along_axis(can, order, axis=1), axis=1), axis=1)
        loads = loads + np.sign(missing) * (can & (turn <= np.abs(missing)))
    return loads


@cache
def _orders(num_experts: int) -> NDArray[np.int64]:
    """The same few shuffles of the experts every time, (D, E)."""
    shuffle = np.random.default_rng(num_experts)
    return np.stack([shuffle.permutation(num_experts) for _ in range(NUM_DRAWS)])


def _histogram(text: str, tokens: Floats, num_experts: int, topk: Floats) -> Floats:
    try:
        given = json.loads(text, object_pairs_hook=list)
        values = _by_expert(given, num_experts) if text.startswith("{") else np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError, RecursionError):
        values = np.empty(0)
    if values.ndim != 1 or not len(values) or (values < 0).any() or (values != np.floor(values)).any():
        kind = "list" if text.startswith("[") else "object"
        raise InvalidInput(f"distribution = {shown(text)} must be a JSON {kind} of whole numbers, tokens per expert")
    if len(values) != num_experts:
        raise InvalidInput(f"distribution lists {len(values)} experts; num_experts = {num_experts}")
    wrong = values.sum() != tokens * topk
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidInput(f"distribution sums to {values.sum():.0f}; num_tokens x topk = {tokens[row] * topk[row]:.0f}")
    if values.max() > tokens.min():
        raise InvalidInput(f"distribution gives one expert {values.max():.0f} tokens of num_tokens = {tokens.min():.0f}")
    return np.broadcast_to(values, (len(tokens), num_experts))


def _by_expert(pairs: list[tuple[str, Any]], num_experts: int) -> Floats:
    """Tokens of all experts from those of the ones that are named."""
    loads: dict[int, float] = {}
    for key, tokens in pairs:
        if not (key.isascii() and key.isdigit()) or len(key) > MOST_DIGITS or int(key) >= num_experts:
            known = f"with num_experts = {num_experts} they are 0 to {num_experts - 1}"
            raise InvalidInput(f"distribution names the expert {shown(key)}; {known}")
        if int(key) in loads:
            raise InvalidInput(f"distribution names the expert {int(key)} twice")
        if isinstance(tokens, bool) or not isinstance(tokens, int | float) or tokens < 0 or tokens % 1:
            wrong = "null" if tokens is None else shown(tokens)
            raise InvalidInput(f"distribution gives expert {int(key)} {wrong} tokens: it must be a whole number of at least 0")
        loads[int(key)] = float(tokens)
    if not loads:
        return np.empty(0)
    return np.array([loads.get(expert, 0.0) for expert in range(num_experts)])
