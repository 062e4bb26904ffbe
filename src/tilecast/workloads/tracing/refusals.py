"""Why a module cannot be traced, in one sentence: which line of its code, what is wrong with it, and what to try."""

import re
import sysconfig
import traceback
from pathlib import Path

import torch
from torch import Tensor

from tilecast.errors import InvalidInput
from tilecast.workloads.tracing.fx_graph import name_of, values_of

HINTS = {
    "data-dependent": "a branch or size depends on a tensor's values: use torch.cond or torch.where, or move .item() out of forward",
    "mutat": "write to a copy instead of an input",
    "no fake impl": "register one, which says the shapes of its results: @torch.library.register_fake",
    "positional arguments": "example_inputs must be the arguments of forward: a tuple of them, or a mapping by name",
    "required positional": "example_inputs must be the arguments of forward: a tuple of them, or a mapping by name",
    "quantized": "trace the module as it was before it was quantised",
    "uninitialized parameter": "call it once with its inputs, which gives its lazy layers their sizes",
    "not an instance of torch.nn.parameter": "trace the module itself, not what torch.jit made of it",
    "graph leaves": "compute such a tensor in forward, or with torch.nn.utils.parametrizations",
}
UNCOPIED = "take it out of the module before tracing, or give its class a __deepcopy__"  # locks, generators, open files


def refuse_unknown_sizes(graph: torch.fx.Graph, name: str) -> None:
    """A size that depends on values has no number, and neither has the time of what works on it."""
    for node in graph.nodes:
        for value in values_of(node):
            if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
                found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', node.meta.get("stack_trace") or "")
                own = [(file, line, code) for file, line, code in found if _is_own(file)]
                where = " at {}:{} ({})".format(*own[-1]) if own else ""
                raise InvalidInput(
                    f"{name} cannot be traced{where}: {name_of(node)} gives a tensor whose size is known at run time alone; "
                    f"{HINTS['data-dependent']}"
                )


def explained(problem: Exception, name: str, held: str | None = None) -> InvalidInput:
    """`held`: what of the module itself is in the way."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if _is_own(frame.filename)]
    where = f" at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
    text = " ".join(str(problem).split())
    kind = type(problem).__name__
    is_dependent = "data-dependent" in text.lower() or "DataDependent" in kind or "unbacked" in text.lower()
    hint = HINTS["data-dependent"] if is_dependent else next((value for key, value in HINTS.items() if key in text.lower()), "")
    why = text.split(". ")[0][:240].rstrip(".")
    hint = hint or (UNCOPIED if held else "")
    return InvalidInput(f"{name} cannot be traced{where}: {held + ': ' if held else ''}{kind}: {why}{'; ' + hint if hint else ''}")


def _is_own(file: str) -> bool:
    """Outside PyTorch, outside Python's own library and outside the files of the tracer."""
    library, python = str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"]
    is_tracer = Path(file).parent == Path(__file__).parent
    return not file.startswith((library, "<")) and not is_tracer and (not file.startswith(python) or "site-packages" in file)
