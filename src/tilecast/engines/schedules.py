"""In which order a pipeline's stages run their passes, and when each one does: GPipe, 1F1B, and Megatron's interleaved 1F1B.

A stage holds one group of its layers, or several. Groups are numbered through the whole model, so that group g hands its results to
g + 1 and its gradients to g - 1, whichever stages these are on. A group is an equal part of its stage's time.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Turn(NamedTuple):
    """One pass of one micro-batch through one of a stage's groups."""

    backward: bool
    chunk: int  # which of the stage's groups
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A turn of a stage, from when to when."""

    stage: int
    turn: Turn
    start_s: float
    end_s: float


Orders = list[list[Turn]]  # of every stage


def gpipe(num_stages: int, micro: int) -> Orders:
    """All forward, then all backward."""
    return [[Turn(backward, 0, each) for backward in (False, True) for each in range(micro)]] * num_stages


def one_forward_one_backward(num_stages: int, micro: int) -> Orders:
    """A stage runs ahead by as many forward passes as there are stages from it on, then one of each in turn."""
    forward, backward = ([Turn(kind, 0, each) for each in range(micro)] for kind in (False, True))
    return [_in_turn(forward, backward, min(micro, num_stages - stage), backward_first=True) for stage in range(num_stages)]


def interleaved(num_stages: int, micro: int, chunks: int) -> Orders:
    """Megatron's: rounds of as many micro-batches as there are stages, whose multiple `micro` is, through one group after the other."""
    turns = [(chunk, first + each) for first in range(0, micro, num_stages) for chunk in range(chunks) for each in range(num_stages)]
    forward = [Turn(False, chunk, each) for chunk, each in turns]
    backward = [Turn(True, chunks - 1 - chunk, each) for chunk, each in turns]

    def ahead(stage: int) -> int:
        return len(turns) if micro == num_stages else min(len(turns), 2 * (num_stages - stage - 1) + (chunks - 1) * num_stages)

    return [_in_turn(forward, backward, ahead(stage), backward_first=False) for stage in range(num_stages)]


def _in_turn(forward: list[Turn], backward: list[Turn], ahead: int, *, backward_first: bool) -> list[Turn]:
    order = forward[:ahead]
    for place, turn in enumerate(backward):
        following = forward[ahead + place : ahead + place + 1]
        order += [turn, *following] if backward_first else [*following, turn]
    return order


def run_in_order(orders: Orders, times_s: list[tuple[float, float]], send_s: float, chunks: int = 1) -> tuple[Ran, ...]:
    """Every stage takes its turns one after the other, each when its input has arrived, and waits until its result has.

    `times_s`: a stage's forward and backward pass. Gradients are sent to stages that have a backward pass alone.
    """
    num_stages = len(orders)
    last = num_stages * chunks - 1
    ends_s: dict[tuple[bool, int, int], float] = {}  # by direction, group of the whole model, micro-batch
    free_s = [0.0] * num_stages
    next_turn = [0] * num_stages
    ran: list[Ran] = []
    while any(place < len(order) for place, order in zip(next_turn, orders, strict=True)):
        before = len(ran)
        for stage, order in enumerate(orders):
            while next_turn[stage] < len(order):
                turn = order[next_turn[stage]]
                group = turn.chunk * num_stages + stage
                arrives_s: float | None = 0.0
                if turn.backward and group == last:
                    arrives_s = ends_s.get((False, group, turn.micro_batch))
                elif turn.backward or group:
                    given_s = ends_s.get((turn.backward, group + (1 if turn.backward else -1), turn.micro_batch))
                    arrives_s = None if given_s is None else given_s + (send_s if times_s[stage][turn.backward] > 0 else 0.0)
                if arrives_s is None:
                    break
                start_s = max(free_s[stage], arrives_s)
                taker = group + (-1 if turn.backward else 1)
                is_sent = 0 <= taker <= last and times_s[taker % num_stages][turn.backward] > 0
                free_s[stage] = ends_s[turn.backward, group, turn.micro_batch] = start_s + times_s[stage][turn.backward] / chunks
                ran.append(Ran(stage, turn, start_s, free_s[stage]))
                free_s[stage] += send_s if is_sent else 0.0
                next_turn[stage] += 1
        assert len(ran) > before, "a schedule that waits for itself"
    return tuple(ran)
