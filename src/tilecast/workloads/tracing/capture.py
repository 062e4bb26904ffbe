"""The one file that touches PyTorch's tracer: torch.export with fake tensors, then AOTAutograd's joint graph of forward and backward.

Written for the torch of the extra `torch` (pyproject.toml). Weights are fake from the start: a copy of the module is made whose tensors
have shapes and nothing else, so a model of any size fits on a laptop.
"""

import contextlib
import copy
import io
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node as FxNode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from tilecast.errors import InvalidInput, TilecastError
from tilecast.workloads.opgraph import ITEM_BYTES, Node, OpGraph, Segment, TensorShape, folded
from tilecast.workloads.recompute import recomputed
from tilecast.workloads.tracing.layers import lengthened, shortened

DTYPES = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8",
}  # fmt: skip
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Views by another name: the schema promises no alias, but no kernel runs.
UNDECLARED_VIEWS = ("aten._unsafe_view", "aten._reshape_alias", "aten.alias", "aten.lift_fresh_copy", "aten.lift_fresh")
# Operators that run as one kernel each way, which the tracer would take apart: PyTorch has their parts for machines without the kernel.
WHOLE = ("silu_backward", "upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")
# What a time depends on besides shapes -> the arguments' names in the schema.
OPTIONS = {
    "aten.convolution": ("stride", "padding", "dilation", "transposed", "groups"),
    "aten.convolution_backward": ("stride", "padding", "dilation", "transposed", "groups", "output_mask"),
    "aten._softmax": ("dim",), "aten._log_softmax": ("dim",), "aten._softmax_backward_data": ("dim",),
    "aten._log_softmax_backward_data": ("dim",),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("is_causal",),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": ("is_causal",),
    "aten._scaled_dot_product_flash_attention": ("is_causal",), "aten._scaled_dot_product_flash_attention_backward": ("is_causal",),
    "aten._scaled_dot_product_efficient_attention": ("is_causal",),
}  # fmt: skip
CHECKPOINTED = "the module checkpoints its activations itself: each of its equal layers is taken to run forward again"
UNCHECKPOINTED = "the module checkpoints its activations itself, but has no equal layers: what runs forward again is left out"
HINTS = {
    "data-dependent": "a branch or size depends on a tensor's values: use torch.cond or torch.where, or move .item() out of forward",
    "mutat": "write to a copy instead of an input",
    "no fake impl": "register one, which says the shapes of its results: @torch.library.register_fake",
    "positional arguments": "example_inputs must be the arguments of forward: a tuple of them, or a mapping by name",
    "required positional": "example_inputs must be the arguments of forward: a tuple of them, or a mapping by name",
}


class Pass(nn.Module):
    """A module called with some of its arguments by name; of what it returns, such as a cache, the tensors."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def called(self, inputs: tuple[Any, ...]) -> Any:
        first = len(inputs) - len(self.names)
        return self.model(*inputs[:first], **dict(zip(self.names, inputs[first:], strict=True)))

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        return tuple(_tensors(self.called(inputs)))


class Step(Pass):
    """A module with its loss; the detached outputs mark where the loss begins."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], loss: Any) -> None:
        super().__init__(model, names)
        self.loss = loss

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        outputs = self.called(inputs)
        tensors = _tensors(outputs)
        if self.loss is None:
            floats = [tensor for tensor in tensors if tensor.is_floating_point()]
            if not floats:
                raise InvalidInput("the module returns no floating-point tensor, so there is nothing to differentiate; give a loss")
            value = floats[0] if floats[0].ndim == 0 else sum(tensor.sum() for tensor in floats)
        else:
            value = self.loss(outputs)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            got = f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise InvalidInput(f"loss must give one floating-point number and gives {got}")
        return (value, *(tensor.detach() for tensor in tensors if tensor is not value))


def captured(
    module: nn.Module, inputs: tuple[Any, ...], *, mode: str, loss: Any, recompute: bool | str, autocast: str | None, name: str,
    names: tuple[str, ...] = (), fold: bool = True,
) -> OpGraph:  # fmt: skip
    """`fold=False` traces every layer, however alike they are."""
    training = mode == "training"
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    known = next((tensor.fake_mode for tensor in (*module.parameters(), *module.buffers()) if isinstance(tensor, FakeTensor)), None)
    fakes = known or fakes
    with warnings.catch_warnings(), _quiet(), _without_mkldnn(), _whole_operators(), _unpadded(), fakes:
        warnings.simplefilter("ignore")
        model = _weightless(module)
        model.train(training)
        weights = {id(tensor): (_shape(tensor), tensor.requires_grad or not training) for tensor in model.parameters()}
        buffers_bytes = sum(_shape(tensor).nbytes for tensor in model.buffers())
        layers, num_lists = shortened(model) if fold else (0, 0)
        asked = tuple(_fake(value) for value in inputs)
        whole = Step(model, names, loss) if training else Pass(model, names)
        checkpoints: list[str] = []
        try:
            with torch.autocast("cpu", dtype=FORMATS.get(autocast or ""), enabled=autocast is not None), torch.set_grad_enabled(training):
                # Where export prints the graph it got to when it fails.
                with contextlib.redirect_stderr(io.StringIO()), _counted_checkpoints(checkpoints):
                    program = torch.export.export(whole, asked, strict=False)
                _refuse_unknown_sizes(program.graph, name)
                exported = program.module(check_guards=False)
                _without_cpu_dropout(exported)
                graph, copied = _joint(exported, asked, training)
        except TilecastError:
            raise
        except Exception as problem:
            raise _explained(problem, name) from None
    short: tuple[Segment, ...] = folded(_nodes(graph, training, copied))
    segments: tuple[Segment, ...] | None = short
    if layers:
        segments = lengthened(short, layers, num_lists)
        if segments is not None:
            with warnings.catch_warnings(), _quiet(), _without_mkldnn(), _whole_operators(), _unpadded(), fakes:
                warnings.simplefilter("ignore")
                runs = [_run(_weightless(module), asked, names, training, loss, autocast, cut=cut) for cut in (True, False)]
            segments = segments if _acts_alike(runs[0], runs[1], _counts(short), _counts(segments)) else None
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
        inputs_bytes=sum(_shape(tensor).nbytes for tensor in _tensors(asked)),
        recompute=bool(recompute),
        notes=notes,
        torch_version=torch.__version__.partition("+")[0],
    )


# ---- before the trace --------------------------------------------------------------------------------------------


def _weightless(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are fake, on the CPU; tensors that were shared stay shared."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        fake = _fake(tensor.detach())
        memo[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
    made: nn.Module = copy.deepcopy(module, memo)
    return made


def _fake(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


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
            tuple(each.detach() if index else each for index, each in enumerate(_tensors(outputs)))
            if training
            else tuple(_tensors(outputs))
        )

    graph = aot_export_joint_simple(function, (*parameters.values(), *buffers.values(), *tensors), trace_joint=training, decompositions={})
    return graph, len(buffers) + len(tensors)


# ---- whether layers act alike -------------------------------------------------------------------------------------

Ran = Counter[tuple[str, tuple[tuple[int, ...], ...]]]  # operators, by name and the shapes of their results


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ran: Ran = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        made = tuple(tuple(each.shape) for each in _tensors(result))
        if made and not _gives_views(function):
            self.ran[str(function.overloadpacket).rstrip("_"), made] += 1
        return result


def _run(
    model: nn.Module, inputs: tuple[Any, ...], names: tuple[str, ...], training: bool, loss: Any, autocast: str | None, *, cut: bool
) -> Ran | None:
    """What a forward pass runs, its layers `cut` or all of them; None where it does not run with tensors that hold nothing."""
    model.train(training)
    if cut:
        shortened(model)
    whole = Step(model, names, loss) if training else Pass(model, names)
    recorder = _Recorder()
    try:
        with (
            torch.autocast("cpu", dtype=FORMATS.get(autocast or ""), enabled=autocast is not None),
            torch.set_grad_enabled(training),
            recorder,
        ):
            whole(*(_fake(each) for each in inputs))
    except Exception:
        return None
    return recorder.ran


def _counts(segments: tuple[Segment, ...]) -> Ran:
    made: Ran = Counter()
    for segment in segments:
        for node in segment.nodes:
            if node.phase != "backward" and not node.is_view:
                made[node.op, tuple(tensor.shape for tensor in node.outputs)] += segment.repeat
    return made


def _acts_alike(cut: Ran | None, whole: Ran | None, short: Ran, long: Ran) -> bool:
    """Whether the lengthened graph has what all layers run: they may be used twice, or be told apart by their number.

    Operators are compared that a trace and a run of the shortened model have equally many of, which must be most.
    """
    if cut is None or whole is None:
        return False
    known = [key for key, number in cut.items() if short[key] == number]
    return 2 * sum(cut[key] for key in known) >= cut.total() and set(whole) <= set(cut) and all(whole[key] == long[key] for key in known)


# ---- after the trace ---------------------------------------------------------------------------------------------


def _nodes(graph: torch.fx.GraphModule, training: bool, num_copied: int) -> list[Node]:
    """The graph's operators in order, with the memory each one frees."""
    every = list(graph.graph.nodes)
    output = every[-1]
    inputs = [node for node in every if node.op == "placeholder"]
    first = len(inputs) - _num_tangents(inputs) - num_copied
    copies = {node for given in inputs[first : first + num_copied] if (node := _first_clone(given)) is not None}
    roots: dict[tuple[FxNode, int], tuple[FxNode, int]] = {}
    last: dict[tuple[FxNode, int], FxNode] = {}
    kept: list[FxNode] = []
    for node in every:
        if node.op != "call_function":
            continue
        if _is_part(node) and isinstance(node.args[0], FxNode):
            roots[node, 0] = roots.get((node.args[0], int(node.args[1])), (node.args[0], int(node.args[1])))  # type: ignore[arg-type]
            continue
        if _name(node).startswith("aten._assert"):  # what a trace checks, and a run does not
            continue
        used = [roots.get((each, 0), (each, 0)) for each in node.all_input_nodes]
        kept.append(node)
        for root in used:
            last[root] = node
        if _is_view(node) or node in copies:
            if used:
                for index in range(_num_outputs(node)):
                    roots[node, index] = used[0]
        else:
            for index in range(_num_outputs(node)):
                last[node, index] = node  # a result nobody reads goes at once
    leaves = torch.utils._pytree.tree_leaves(output.args)
    results = leaves if not training else leaves[: len(leaves) - len(inputs) + _num_tangents(inputs)]
    for leaf in results:  # what the caller gets stays; gradients are counted with the weights
        last.pop(roots.get((leaf, 0), (leaf, 0)), None)
    frees: dict[FxNode, list[TensorShape]] = {}
    for (node, index), where in last.items():
        if node.op == "call_function" and (shape := _output(node, index)) is not None:
            frees.setdefault(where, []).append(shape)
    loss_from = _loss_starts(kept, results) if training else len(kept)
    made = []
    for place, node in enumerate(kept):
        if node in copies:
            continue
        backward = node.meta.get("partitioner_tag") == "is_backward"
        phase = "backward" if backward else ("loss" if place >= loss_from else "forward")
        made.append(
            Node(
                op=_name(node),
                phase=phase,
                inputs=tuple(_shape(each.meta["val"]) for each in node.all_input_nodes if isinstance(each.meta.get("val"), Tensor)),
                outputs=tuple(shape for index in range(_num_outputs(node)) if (shape := _output(node, index)) is not None),
                frees=tuple(frees.get(node, ())),
                options=_options(node),
                is_view=_is_view(node),
            )
        )
    return made


def _first_clone(given: FxNode) -> FxNode | None:
    """The copy of an input that `_joint` made; one that the module makes itself reads that copy."""
    return next((node for node in given.users if _name(node) == "aten.clone"), None)


def _num_tangents(inputs: list[FxNode]) -> int:
    return sum(node.name.startswith("tangents") for node in inputs)


def _loss_starts(kept: list[FxNode], results: list[FxNode]) -> int:
    """The place behind the last operator that made an output of the model: all results but the first, which is the loss."""
    places = {node: index for index, node in enumerate(kept)}
    made = [len(kept)] if len(results) < 2 else []
    for node in results[1:]:
        while node.op == "call_function" and (_is_view(node) or _is_part(node)) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        made.append(places.get(node, -1) + 1)
    return max(made)


def _name(node: FxNode) -> str:
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else str(getattr(node.target, "__name__", node.target))


def _is_part(node: FxNode) -> bool:
    """One of several results of an operator."""
    return getattr(node.target, "__name__", "") == "getitem"


def _is_view(node: FxNode) -> bool:
    return _gives_views(node.target)


def _gives_views(operator: Any) -> bool:
    if str(getattr(operator, "overloadpacket", "")) in UNDECLARED_VIEWS:
        return True
    schema = getattr(operator, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns)


def _values(node: FxNode) -> tuple[Any, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _num_outputs(node: FxNode) -> int:
    return len(_values(node))


def _output(node: FxNode, index: int) -> TensorShape | None:
    values = _values(node)
    value = values[index] if index < len(values) else None
    return _shape(value) if isinstance(value, Tensor) else None


def _shape(tensor: Tensor) -> TensorShape:
    try:
        shape = tuple(int(size) for size in tensor.shape)
    except Exception:
        raise InvalidInput(f"a tensor of shape {tuple(tensor.shape)} has no size that a trace can know") from None
    name = DTYPES.get(tensor.dtype)
    if name is None:
        raise InvalidInput(f"dtype {tensor.dtype} is not supported; known: {', '.join(ITEM_BYTES)}")
    expanded = [size > 1 and stride == 0 for size, stride in zip(shape, tensor.stride(), strict=True)]
    distinct = tuple(1 if once else size for size, once in zip(shape, expanded, strict=True)) if any(expanded) else None
    return TensorShape(name, shape, distinct)


def _options(node: FxNode) -> tuple[tuple[str, Any], ...]:
    wanted = OPTIONS.get(_name(node), ())
    if not wanted:
        return ()
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments if argument.has_default_value()}  # type: ignore[union-attr]
    given: Mapping[str, Any] = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    return tuple((name, tuple(given[name]) if isinstance(given[name], list | tuple) else given[name]) for name in wanted if name in given)


def _tensors(value: Any) -> list[Tensor]:
    if hasattr(value, "to_tuple"):  # a Hugging Face output
        value = value.to_tuple()
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


# ---- what went wrong ---------------------------------------------------------------------------------------------


def _refuse_unknown_sizes(graph: torch.fx.Graph, name: str) -> None:
    """A size that depends on values has no number, and neither has the time of what works on it."""
    for node in graph.nodes:
        for value in _values(node):
            if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
                found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', node.meta.get("stack_trace") or "")
                own = [(file, line, code) for file, line, code in found if _is_own(file)]
                where = " at {}:{} ({})".format(*own[-1]) if own else ""
                raise InvalidInput(
                    f"{name} cannot be traced{where}: {_name(node)} gives a tensor whose size is known at run time alone; "
                    f"{HINTS['data-dependent']}"
                )


def _explained(problem: Exception, name: str) -> InvalidInput:
    """One sentence: which line of the user's code, why, and what to try."""
    frames = _own_frames(traceback.extract_tb(problem.__traceback__))
    where = f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
    text = " ".join(str(problem).split())
    kind = type(problem).__name__
    is_dependent = "data-dependent" in text.lower() or "DataDependent" in kind or "unbacked" in text.lower()
    hint = HINTS["data-dependent"] if is_dependent else next((value for key, value in HINTS.items() if key in text.lower()), "")
    why = text.split(". ")[0][:240].rstrip(".")
    return InvalidInput(f"{name} cannot be traced{where}: {kind}: {why}{'; ' + hint if hint else ''}")


def _own_frames(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if _is_own(frame.filename)]


def _is_own(file: str) -> bool:
    """Outside PyTorch, outside Python's own library and outside this file."""
    library, python = str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"]
    return not file.startswith((library, "<")) and file != __file__ and (not file.startswith(python) or "site-packages" in file)


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Recurrent layers are then the products they are made of, not one operator of the CPU's own."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def _whole_operators() -> Iterator[None]:
    """Without the rules, in Python or as a composite, by which the tracer takes the operators of WHOLE apart."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    overloads = [getattr(packet, name) for packet in (getattr(torch.ops.aten, op) for op in WHOLE) for name in packet.overloads()]
    before = [dict(overload.py_kernels) for overload in overloads]
    for overload in overloads:
        for key in (composite, torch._C.DispatchKey.Autograd):
            overload.py_kernels.pop(key, None)
        if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU"):
            overload.py_kernels[composite] = lambda *_, **__: NotImplemented
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, kernels in zip(overloads, before, strict=True):
            overload.py_kernels.clear()
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()


@contextlib.contextmanager
def _counted_checkpoints(seen: list[str]) -> Iterator[None]:
    """What a module checkpoints itself runs once, and is noted: a trace does not see the second run, and of the reentrant kind no
    gradient."""
    function, generator = checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator

    class Once:
        @staticmethod
        def apply(run: Any, preserve: bool, *given: Any) -> Any:
            seen.append("reentrant")
            return run(*given)

    def noted(*given: Any, **named: Any) -> Any:
        seen.append("hooks")
        return generator(*given, **named)

    checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator = Once, noted
    try:
        yield
    finally:
        checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator = function, generator


@contextlib.contextmanager
def _unpadded() -> Iterator[None]:
    """Causal masks of Hugging Face as it runs texts of one length: attention is told to be causal. Where it is exported it writes the mask
    out, as it cannot look whether a text is padded or several share a row."""
    masks = sys.modules.get("transformers.masking_utils")
    running = {"is_torchdynamo_exporting": lambda: False, "find_packed_sequence_indices": lambda position_ids: None}
    before = {name: getattr(masks, name) for name in running if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, running[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(masks, name, value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What PyTorch logs of a trace that fails is said by the error, in one sentence."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == "torch"]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
