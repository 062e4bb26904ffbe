"""What a compiled training step keeps for its backward pass: less than an eager one.

PyTorch's partitioner cuts the joint graph where the fewest bytes cross. Results of library calls, and what these read, are kept; a
pointwise result that only pointwise operators of the backward pass read is worked out again there, from tensors that are kept anyway or
that are smaller: the normalised row from the row and its statistics, SiLU from the gate, a wide copy from the narrow tensor. Random numbers
and reductions are kept. Here that rule is applied tensor by tensor, in the order of the trace (`workloads/flow.py` says who reads what).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilecast.workloads.aten import POINTWISE
from tilecast.workloads.flow import Uses, uses
from tilecast.workloads.opgraph import Node, TensorShape

RANDOM = ("native_dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like")
ROWS = ("_softmax", "_safe_softmax", "_log_softmax")  # as their input and two numbers a row say
FOLLOWERS = "sum mean amax var_mean _softmax_backward_data _log_softmax_backward_data nll_loss_forward nll_loss_backward".split()
LARGE = 64  # a tensor with so many times fewer elements than another is no more than its statistics


@dataclass(frozen=True, slots=True)
class _Made:
    tensor: TensorShape
    name: str  # of the operator
    read: tuple[int, ...]
    is_small: bool  # beside what its operator read


def name_of(node: Node) -> str:
    return node.op.removeprefix("aten.").rstrip("_") if node.op.startswith("aten.") else node.op


def lean(nodes: Sequence[Node]) -> list[Node]:
    """The same operators, where the forward pass frees what the backward pass will work out again from what it reads instead."""
    behind = next((place for place, node in enumerate(nodes) if node.phase == "backward"), len(nodes))
    flow = uses(nodes)
    made = _everything_made(nodes, flow)
    instead = _sources(nodes, flow, made, behind)
    return _rewritten(nodes, flow, made, instead, behind) if instead else list(nodes)


def _everything_made(nodes: Sequence[Node], flow: Sequence[Uses]) -> dict[int, _Made]:
    made = {}
    for node, used in zip(nodes, flow, strict=True):
        largest = max((tensor.numel for tensor in node.inputs), default=0)
        for tensor, number in zip(node.outputs, used.made, strict=False):
            made[number] = _Made(tensor, name_of(node), used.read, tensor.numel * LARGE <= largest)
    return made


def is_repeatable(one: _Made) -> bool:
    return ((one.name in POINTWISE and one.name not in RANDOM) or one.name in ROWS) and not one.is_small


def _sources(nodes: Sequence[Node], flow: Sequence[Uses], made: dict[int, _Made], behind: int) -> dict[int, tuple[int, ...]]:
    """Tensors that need not be kept, and what each is worked out from."""
    held = {number for used in flow[:behind] for number in used.made} - {number for used in flow[:behind] for number in used.freed}
    called_with = {
        number
        for node, used in zip(nodes, flow, strict=True)
        if not node.is_view and name_of(node) not in POINTWISE and name_of(node) not in ROWS and not _reads_pointwise(node)
        for number in used.read
    }
    kept, instead = set(held), dict[int, tuple[int, ...]]()
    for number in sorted(held):
        if number in called_with or not is_repeatable(made[number]):
            continue
        from_these = _leaves(number, made, kept)
        more = [one for one in from_these if one > 0 and one not in kept]
        if sum(made[one].tensor.nbytes for one in more) < made[number].tensor.nbytes:
            instead[number] = tuple(one for one in from_these if one > 0)
            kept = (kept - {number}) | set(more)
    return instead


def _reads_pointwise(node: Node) -> bool:
    """Reductions, losses and gradients of rows: parts of generated kernels, which work their inputs out as they read them."""
    return name_of(node) in FOLLOWERS


def _leaves(number: int, made: dict[int, _Made], kept: set[int]) -> list[int]:
    """Where working a tensor out again ends: at what is kept, at weights, and at results that cannot be had again."""
    found: dict[int, None] = {}
    waiting = list(made[number].read)
    seen = set(waiting)
    while waiting:
        one = waiting.pop()
        if one < 0 or one in kept or not is_repeatable(made[one]):
            found[one] = None
            continue
        fresh = [each for each in made[one].read if each not in seen]
        seen.update(fresh)
        waiting += fresh
    return list(found)


def _rewritten(
    nodes: Sequence[Node], flow: Sequence[Uses], made: dict[int, _Made], instead: dict[int, tuple[int, ...]], behind: int
) -> list[Node]:
    last_read: dict[int, int] = {}
    for place, (node, used) in enumerate(zip(nodes[:behind], flow[:behind], strict=True)):
        for number in (*used.made, *(() if node.is_view else used.read)):
            last_read[number] = place
    let_go: defaultdict[int, list[TensorShape]] = defaultdict(list)
    for number in instead:
        let_go[last_read[number]].append(made[number].tensor)
    freed_before = {number for used in flow[:behind] for number in used.freed}
    more = {one for sources in instead.values() for one in sources if one in freed_before and one not in instead}

    changed: list[Node] = []
    for place, (node, used) in enumerate(zip(nodes, flow, strict=True)):
        frees = [tensor for tensor, number in zip(node.frees, used.freed, strict=True) if number not in instead]
        inputs = node.inputs
        if place < behind:
            frees = [tensor for tensor, number in zip(node.frees, used.freed, strict=True) if number not in more] + let_go[place]
        else:
            for number in (number for number in used.freed if number in instead):
                ended = [one for one in instead[number] if one in more]
                frees += [made[one].tensor for one in ended]
                more.difference_update(ended)
            if any(number in instead for number in used.read) and not node.is_view:
                inputs = _inputs(node, used, made, instead)
        if tuple(frees) == node.frees and inputs is node.inputs:
            changed.append(node)
        else:
            changed.append(replace(node, inputs=inputs, frees=tuple(frees)))
    return changed


def _inputs(node: Node, used: Uses, made: dict[int, _Made], instead: dict[int, tuple[int, ...]]) -> tuple[TensorShape, ...]:
    """What it reads: sources in place of what is worked out from them, each once."""
    inputs, numbers = list[TensorShape](), set[int]()
    for tensor, number in zip(node.inputs, used.read, strict=True):
        if number not in instead:
            inputs.append(tensor)
            numbers.add(number)
            continue
        fresh = [one for one in instead[number] if one not in numbers]
        numbers.update(fresh)
        inputs += [made[one].tensor for one in fresh]
    return tuple(inputs)
