"""What follows a backward pass: gradients added to those that are there, and the optimizer."""

from tilecast.engines.question import Question
from tilecast.engines.step_parts import ENGINE, Keeps, Priced, priced_after
from tilecast.errors import InvalidInput
from tilecast.kernels.memory_pass import MemoryPass
from tilecast.kernels.optimizer_update import IMPLEMENTATIONS, KINDS, OptimizerUpdate
from tilecast.workloads.graph import KernelCall
from tilecast.workloads.opgraph import HALF_OF, OpGraph, TensorShape

STATES = {"sgd": 0, "adam": 2, "adamw": 2}  # tensors an optimizer keeps beside each weight


def rule_of(name: str | None) -> tuple[str | None, str]:
    """adamw, or adamw-fused: the rule and how it is carried out."""
    if name is None:
        return None, "foreach"
    kind, _, how = name.lower().replace("_", "-").partition("-")
    how = how.replace("-", "_") or "foreach"
    if kind not in KINDS or how not in IMPLEMENTATIONS:
        ways = ", ".join(f"-{each.replace('_', '-')}" for each in IMPLEMENTATIONS)
        raise InvalidInput(f"optimizer = {name!r} must be one of {', '.join(KINDS)}, alone or with {ways}")
    return kind, how


def keeps_of(asked: Question, kind: str | None, how: str) -> Keeps:
    """What the optimizer keeps beside each weight."""
    if kind is None:
        return Keeps(how=how)
    return Keeps(states=STATES[kind], how=how, master=asked.master_weights, wide_gradients=asked.fp32_gradients)


def passing_bytes(graph: OpGraph, keeps: Keeps, wide_weights: bool) -> int:
    """Temporary optimizer bytes per weight on many GPUs, in the format of the largest tensor, or in fp32 where weights are kept so."""
    largest = max(graph.parameters, key=lambda entry: entry[0].numel, default=None)
    return keeps.passing_bytes("fp32" if wide_weights or largest is None else largest[0].dtype)


def updates_of(
    graph: OpGraph,
    kind: str | None,
    keeps: Keeps,
    *,
    accumulates: bool,
    held: float | None = None,
    updated: float | None = None,
    dtype: str | None = None,
) -> tuple[KernelCall, ...]:
    """What follows the backward pass: gradients added to those that are there, and the optimizer.

    It has the tensors of `held` weights, and of each its share of the `updated` ones.
    """
    calls = list(gradients_added(graph.parameters, graph, keeps)) if accumulates else []
    if kind is not None:
        formats: dict[str, tuple[int, int]] = {}
        for tensor, times in graph.parameters:
            name = dtype or HALF_OF.get(tensor.dtype, tensor.dtype)  # optimizers see complex numbers as two real ones
            numel, number = formats.get(name, (0, 0))
            formats[name] = numel + tensor.numel * (2 if tensor.dtype in HALF_OF else 1) * times, number + times
        here, share = (1.0 if part is None else part / max(1, graph.num_trained) for part in (held, updated))
        for name, (numel, number) in formats.items():
            wide = keeps.has_master(name)
            update = OptimizerUpdate(
                numel=max(1, round(numel * share)), num_tensors=max(1, round(number * here)), kind=kind, implementation=keeps.how,
                dtype="fp32" if wide else name, weight_dtype=name if wide else None,
                gradient_dtype="fp32" if wide and keeps.wide_gradients else None,
            )  # fmt: skip
            calls.append(KernelCall(f"{kind} {keeps.how}", "optimizer", update, 1, "cold", ENGINE))
    return tuple(calls)


def gradients_added(weights: tuple[tuple[TensorShape, int], ...], graph: OpGraph, keeps: Keeps, shards: int = 1) -> tuple[KernelCall, ...]:
    """Of some weights of a graph, one of `shards`, to those that are there."""
    calls = []
    looked_up = _looked_up(graph) if keeps.wide_gradients else {}
    for tensor, number in weights:
        # Products of weight gradients add to buffers of fp32 themselves, and hide it (Megatron's gradient_accumulation_fusion).
        times = number if not keeps.wide_gradients or len(tensor.shape) < 2 else min(number, looked_up.get(tensor.shape, 0))
        if not times:
            continue
        numel = max(1, tensor.numel // shards)
        own, summed = max(1, tensor.nbytes // shards), numel * keeps.gradient_bytes(tensor.dtype)
        kernel = MemoryPass(read_bytes=own + summed, written_bytes=summed, flop=numel)
        calls.append(KernelCall("accumulate_grad", "backward", kernel, times, "cold", ENGINE))
    return tuple(calls)


def _looked_up(graph: OpGraph) -> dict[tuple[int, ...], int]:
    """Shapes of tables whose gradients are no products, and how many of each."""
    found: dict[tuple[int, ...], int] = {}
    for node, times in graph.counted().items():
        if "embedding" in node.op and node.phase == "backward":
            found[node.outputs[0].shape] = found.get(node.outputs[0].shape, 0) + times
    return found


def optimizer_parts(
    asked: Question, before: Priced, keeps: Keeps, kind: str | None, held: float, updated: float, dtype: str | None
) -> Priced | None:  # fmt: skip
    """The update, behind the passes `before` it, of the weights that a stage has (`held`), of which one GPU updates some."""
    calls = updates_of(before.graph, kind, keeps, accumulates=False, held=held, updated=updated, dtype=dtype)
    return priced_after(before, calls, asked.gpu, asked.price) if calls else None
