"""PyTorch's tracer: torch.export with fake tensors, then AOTAutograd's joint graph of forward and backward.

Written for the torch of the extra `torch` (pyproject.toml), as are the files it is made of: wrapped.py (the module), patches.py (what is
changed of PyTorch meanwhile), fx_graph.py (what comes out), alike.py (equal layers), refusals.py (what goes wrong). Weights are fake from
the start: a copy of the module is made whose tensors have shapes and nothing else, so a model of any size fits on a laptop.
"""

import contextlib
import io
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tilecast.errors import InvalidInput, TilecastError
from tilecast.workloads.opgraph import OpGraph, Segment, folded
from tilecast.workloads.recompute import recomputed
from tilecast.workloads.tracing.alike import acts_alike, counts_of, what_runs
from tilecast.workloads.tracing.fx_graph import nodes_of, shape_of, tensors_in
from tilecast.workloads.tracing.layers import lengthened, shortened
from tilecast.workloads.tracing.patches import counted_checkpoints, traced_as_run
from tilecast.workloads.tracing.refusals import explained, refuse_unknown_sizes
from tilecast.workloads.tracing.wrapped import autocast_to, faked, uncopied, weightless, wrapped

CHECKPOINTED = "the module checkpoints its activations itself: each of its equal layers is taken to run forward again"
UNCHECKPOINTED = "the module checkpoints its activations itself, but has no equal layers: what runs forward again is left out"


def captured(
    module: nn.Module, inputs: tuple[Any, ...], *, mode: str, loss: Any, recompute: bool | str, autocast: str | None, name: str,
    names: tuple[str, ...] = (), fold: bool = True,
) -> OpGraph:  # fmt: skip
    """`fold=False` traces every layer, however alike they are."""
    training = mode == "training"
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    known = next((tensor.fake_mode for tensor in (*module.parameters(), *module.buffers()) if isinstance(tensor, FakeTensor)), None)
    fakes = known or fakes
    with traced_as_run(), fakes:
        model, asked = _copied(module, inputs, name)
        model.train(training)
        weights = {id(tensor): (shape_of(tensor), tensor.requires_grad or not training) for tensor in model.parameters()}
        buffers_bytes = sum(shape_of(tensor).nbytes for tensor in model.buffers())
        layers, num_lists = shortened(model) if fold else (0, 0)
        whole = wrapped(model, names, training, loss)
        checkpoints: list[str] = []
        try:
            with autocast_to(autocast), torch.set_grad_enabled(training):
                # Where export prints the graph it got to when it fails.
                with contextlib.redirect_stderr(io.StringIO()), counted_checkpoints(checkpoints):
                    program = torch.export.export(whole, asked, strict=False)
                refuse_unknown_sizes(program.graph, name)
                exported = program.module(check_guards=False)
                _without_cpu_dropout(exported)
                graph, copied = _joint(exported, asked, training)
        except TilecastError:
            raise
        except Exception as problem:
            raise explained(problem, name) from None
    short: tuple[Segment, ...] = folded(nodes_of(graph, training, copied))
    segments: tuple[Segment, ...] | None = short
    if layers:
        segments = lengthened(short, layers, num_lists)
        if segments is not None:
            with traced_as_run(), fakes:
                runs = [what_runs(weightless(module), asked, names, training, loss, autocast, cut=cut) for cut in (True, False)]
            segments = segments if acts_alike(runs[0], runs[1], counts_of(short), counts_of(segments)) else None
        if segments is None:  # the layers look alike, but do not act alike
            return captured(
                module, inputs, names=names, mode=mode, loss=loss, recompute=recompute, autocast=autocast, name=name, fold=False
            )
    assert segments is not None
    notes: tuple[str, ...] = ()
    if checkpoints and training and not recompute:
        with contextlib.suppress(InvalidInput):
            segments, recompute = recomputed(segments), "full"
        notes = (CHECKPOINTED if recompute else UNCHECKPOINTED,)
    elif recompute:
        segments = recomputed(segments, str(recompute))
    counted = [Counter(shape for shape, is_trained in weights.values() if is_trained == asked_for) for asked_for in (True, False)]
    return OpGraph(
        name=name,
        mode=mode,
        segments=segments,
        parameters=tuple(counted[0].items()),
        frozen=tuple(counted[1].items()),
        buffers_bytes=buffers_bytes,
        inputs_bytes=sum(shape_of(tensor).nbytes for tensor in tensors_in(asked)),
        recompute=bool(recompute),
        notes=notes,
        torch_version=torch.__version__.partition("+")[0],
    )


def _copied(module: nn.Module, inputs: tuple[Any, ...], name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Module and inputs without their values."""
    try:
        return weightless(module), tuple(faked(value) for value in inputs)
    except Exception as problem:
        raise explained(problem, name, uncopied(module)) from None


def _without_cpu_dropout(exported: nn.Module) -> None:
    """In inference eager dropout hands its input on; the exported operator would copy it. A GPU's fused attention drops out itself; the
    CPU's cannot, and would be taken apart."""
    graph = exported.graph
    for node in list(graph.nodes):  # type: ignore[union-attr]
        if node.op == "call_function" and str(node.target) in ("aten.dropout.default", "aten.feature_dropout.default") and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)  # type: ignore[operator]
        elif node.op == "call_function" and str(node.target) == "aten.scaled_dot_product_attention.default" and len(node.args) > 4:
            node.args = (*node.args[:4], 0.0, *node.args[5:])
    exported.recompile()  # type: ignore[operator]


def _joint(exported: nn.Module, inputs: tuple[Any, ...], training: bool) -> tuple[torch.fx.GraphModule, int]:
    """AOTAutograd's graph, and how many of its last inputs are buffers or arguments: they are copied first, as some modules write into
    theirs."""
    parameters, buffers = dict(exported.named_parameters()), dict(exported.named_buffers())
    tensors, tree = torch.utils._pytree.tree_flatten(inputs)

    def function(*flat: Any) -> Any:
        weights, state = flat[: len(parameters)], [each.clone() if isinstance(each, Tensor) else each for each in flat[len(parameters) :]]
        given = state[len(buffers) :]
        held = {**dict(zip(parameters, weights, strict=True)), **dict(zip(buffers, state, strict=False))}
        outputs = torch.func.functional_call(exported, held, torch.utils._pytree.tree_unflatten(given, tree), tie_weights=True)
        return (
            tuple(each.detach() if index else each for index, each in enumerate(tensors_in(outputs)))
            if training
            else tuple(tensors_in(outputs))
        )

    graph = aot_export_joint_simple(function, (*parameters.values(), *buffers.values(), *tensors), trace_joint=training, decompositions={})
    return graph, len(buffers) + len(tensors)
