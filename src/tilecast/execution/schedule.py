"""Tasks on SMs: how much work the busiest SM gets. Closed forms for models, plain simulations to hold them against.

Legend: L launches, G groups of equal tasks in a launch. No function here lists tasks, so a million of them cost what one does.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilecast.execution.arithmetic import floor, where
from tilecast.execution.tasks import Floats


def floor_sum(count: Any, step: Any, start: Any, divisor: Any) -> Floats:
    """sum over i < count of floor((start + i step) / divisor), exactly, for whole start, step >= 0 and divisor > 0.

    Euclid's algorithm on (step, divisor), so the cost is the logarithm of the divisor whatever the count.

    >>> float(floor_sum(4, 3, 1, 2))  # 1/2, 4/2, 7/2, 10/2
    10.0
    """
    given = [np.asarray(values, np.float64) for values in (count, step, start, divisor)]
    shape = np.broadcast_shapes(*(values.shape for values in given))
    is_lone = math.prod(shape) == 1
    n, a, b, m = (values.item() if is_lone else np.broadcast_to(values, shape) for values in given)
    total, sign, live = 0.0 * n, 1.0, n > 0
    while np.any(live) if isinstance(live, np.ndarray) else live:
        quotient_a, quotient_b = floor(a / m), floor(b / m)
        whole = n * (n - 1) / 2 * quotient_a + n * quotient_b
        total = total + where(live, sign * whole, 0.0)
        a, b = a - quotient_a * m, b - quotient_b * m
        top = floor((a * n + b) / m)  # the sum now counts lattice points below a line that ends at this height
        live = live & (top > 0)
        # Count the points left of the line instead: n top - sum over j < top of ceil(((j + 1) m - b) / a).
        total = total + where(live, sign * n * top, 0.0)
        sign = -sign
        safe = where(live, a, 1.0)
        n, a, b, m = where(live, top, 0.0), where(live, m, 0.0), where(live, m - b + safe - 1, 0.0), safe
    return np.asarray(total).reshape(shape)


def busiest_of_equal(num_tasks: Floats, num_sms: float) -> Floats:
    """Whole tasks on the busiest SM when all are alike: any order, any scheduler."""
    return np.asarray(np.ceil(np.asarray(num_tasks) / num_sms))


def least_makespan(num_tasks: Floats, least_work: Floats, total_work: Floats, longest: Floats, num_sms: float) -> Floats:
    """Work of the busiest SM that no schedule beats and longest-first all but reaches; (L, G) in, (L, 1) out.

    It is the largest of the mean over SMs, the longest task, and for each group the pigeonhole bound: the tasks at least as long as that
    group's shortest, dealt evenly and rounded up, times that length. Exact when all tasks are alike. Adding or lengthening tasks never
    lowers it, adding SMs never raises it.
    """
    if np.shape(num_tasks)[-1:] == np.shape(least_work)[-1:] == (1,):  # one group: nothing to add up or to sort
        counts, least, total, highest = num_tasks, least_work, total_work, np.where(num_tasks > 0, longest, 0.0)
    else:
        counts, least = np.broadcast_arrays(num_tasks, least_work)
        total = np.sum(np.broadcast_to(total_work, counts.shape), axis=-1, keepdims=True)
        highest = np.max(np.where(counts > 0, longest, 0.0), axis=-1, keepdims=True)
        order = np.argsort(-least, axis=-1, kind="stable")
        counts, least = np.take_along_axis(counts, order, axis=-1), np.take_along_axis(least, order, axis=-1)
        counts = np.cumsum(counts, axis=-1)
    pigeonhole = np.ceil(counts / num_sms) * least
    if pigeonhole.shape[-1] > 1:
        pigeonhole = np.max(pigeonhole, axis=-1, keepdims=True)
    return np.asarray(np.maximum(np.maximum(total / num_sms, highest), pigeonhole))


def chunk_that_fits(num_tiles: Floats, length: Floats, slots: Floats, least_chunk: Floats) -> Floats:
    """The smallest KV chunk that makes no more tasks than `slots`: FlashInfer's search. (L, R) in, (L, 1) out.

    `num_tiles` tasks of each request see `length` of KV each; without a chunk that fits, the whole of the longest request is one chunk.
    """
    if np.shape(length)[-1] == 1 == np.shape(num_tiles)[-1]:  # equal requests: as many chunks as there is room for
        parts = np.floor(slots / np.maximum(num_tiles, 1.0))
        fitting = np.ceil(length / np.maximum(parts, 1.0))
        return np.asarray(np.maximum(np.where((parts >= 1) & (num_tiles > 0), fitting, np.where(num_tiles > 0, length, 0.0)), least_chunk))
    whole = np.max(np.where(num_tiles > 0, length, 0.0), axis=-1, keepdims=True)
    low, high = np.broadcast_to(least_chunk, whole.shape).astype(np.float64), np.maximum(whole, least_chunk)
    while np.any(low < high):
        middle = np.floor((low + high) / 2)
        fits = np.sum(num_tiles * np.ceil(length / middle), axis=-1, keepdims=True) <= slots
        low, high = np.where(fits, low, np.minimum(middle + 1, high)), np.where(fits, middle, high)
    return np.asarray(high)


def round_robin(work: Sequence[float], num_sms: int, resident: int = 1) -> float:
    """When the last task ends if SMs hold `resident` tasks each, share their speed evenly, and take the next one in order as one ends."""
    waiting = list(reversed(work))
    left: list[list[float]] = [[] for _ in range(num_sms)]
    for _ in range(resident):
        for tasks in left:
            if waiting:
                tasks.append(waiting.pop())
    now = 0.0
    while any(left):
        step = min(min(tasks) * len(tasks) for tasks in left if tasks)
        now += step
        for tasks in left:
            share = step / len(tasks) if tasks else 0.0
            tasks[:] = [rest - share for rest in tasks if rest - share > 1e-9 * max(1.0, rest)]
        for _ in range(resident):
            for tasks in left:
                if waiting and len(tasks) < resident:
                    tasks.append(waiting.pop())
    return now


def longest_first(work: Sequence[float], num_sms: int) -> float:
    """When the last task ends if the longest remaining task always goes to the SM that is free first: a heap of SMs."""
    free_at = [0.0] * num_sms
    for length in sorted(work, reverse=True):
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)
