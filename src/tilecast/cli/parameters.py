"""The parameters of kernels as text: what each one means, and its value from the command line or from a cell of a file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tilecast import units
from tilecast.errors import InvalidInput, shown

TEXTS = (
    "dtype", "identity", "kv_dtype", "distribution", "moe_pass", "op", "node", "kind", "implementation", "weight_dtype", "gradient_dtype",
)  # fmt: skip
OF_A_ROW = ("family", "gpu", "timer", "cache", "engine")  # names that a row of a file has beside its kernel's
LISTS = ("q_lens", "kv_lens")
FLAGS = ("bias", "causal", "gated", "residual", "backward")
RATES = ("link_bytes_per_s", "network_bytes_per_s", "latency_factor")
EMPTY = ("", "nan")  # what a cell without a value reads, and how numbers that are none are written

_LENGTHS = "of each request, as a list such as [128,4096] or 128,4096"
HELP: Mapping[str, str] = {
    "m": "Rows of the output: tokens.",
    "n": "Columns of the output.",
    "k": "Length of the sum.",
    "batch": "How many at once: requests, images, or products of a batched GEMM.",
    "bias": "A bias is added: true or false.",
    "dtype": "Number format, e.g. bf16, fp16, fp32, fp8, fp8_block, nvfp4.",
    "identity": "Which kernel runs, e.g. cublas, fa3, triton [default: what the engine would run].",
    "tile": "Fix the output tile, e.g. 128x64 [default: the cheapest].",
    "split": "Fix into how many parts the sum or the KV cache is split [default: chosen].",
    "q_len": "New tokens of each request [decode: 1].",
    "kv_len": "Tokens each request attends to, its new ones included [prefill: q_len; decode needs it].",
    "q_lens": f"New tokens {_LENGTHS}; instead of --batch and --q-len [decode: 1 each].",
    "kv_lens": f"Tokens attended to {_LENGTHS}, new ones included; instead of --batch and --kv-len.",
    "num_heads": "Query heads.",
    "num_kv_heads": "Key and value heads [default: as many as query heads].",
    "head_dim": "Width of a head.",
    "causal": "Tokens see those before them alone: true or false.",
    "window": "Keys a token sees at most [default: all].",
    "kv_dtype": "Number format of the KV cache [default: that of the queries].",
    "kv_lora_rank": "Width of the latent.",
    "qk_nope_head_dim": "Width of a head's part without positions.",
    "qk_rope_head_dim": "Width of a head's part with positions.",
    "v_head_dim": "Width of a value head.",
    "num_tokens": "Tokens, before each goes to its top-k experts.",
    "hidden_size": "Width of the model.",
    "inter_size": "Width of an expert, before tensor parallelism; w13 is twice as wide.",
    "num_experts": "Experts of the layer, all ranks together.",
    "topk": "Experts of a token.",
    "tp": "GPUs that share each expert.",
    "ep": "Groups of GPUs that experts are dealt to whole.",
    "distribution": 'How tokens fall on experts: balanced, power_law_1.2, or tokens per expert as JSON, [3,1] or {"0":3,"1":1}.',
    "moe_pass": "Which product: w13, w2 or both.",
    "gated": "Experts have a gate: true or false.",
    "block_m": "Rows of a Triton tile [default: chosen]; likewise the next five.",
    "block_n": "Columns of a Triton tile.",
    "block_k": "Step along the sum.",
    "group_m": "Tiles that run one above the other.",
    "num_warps": "Warps of a block.",
    "num_stages": "Tiles in flight.",
    "rows": "Rows: tokens.",
    "cols": "Columns: width (silu_mul: of the output).",
    "residual": "A residual is added first: true or false.",
    "op": "Which operation.",
    "numel": "Elements.",
    "in_channels": "Channels of the image.",
    "out_channels": "Channels of the result.",
    "height": "Of the image.",
    "width": "Of the image.",
    "kernel": "Side of the window.",
    "stride": "Step of the window.",
    "padding": "Rows and columns of zeros around the image.",
    "taps": "Places that a window reads, where it is not kernel x kernel.",
    "pixels": "Of one image's result, where kernel, stride and padding do not say.",
    "bytes": "The buffer of one rank: the message; all shares of all_gather; what a rank brings to reduce_scatter or all_to_all.",
    "num_gpus": "GPUs that take part.",
    "gpus_per_node": "Of these, in one node [default: as many as it holds].",
    "node": "The box, as in `tilecast nodes` [default: the usual one of the GPU].",
    "link_bytes_per_s": "What if: rate of one GPU's link, one direction, e.g. 450GB/s [default: the node's].",
    "network_bytes_per_s": "Rate of one GPU's network adapter, e.g. 50GB/s [default: the node's].",
    "latency_factor": "What if: start and hops take so many times as long, e.g. 0.5.",
    "vocab_size": "Rows of the table.",
    "written_bytes": "Bytes written.",
    "read_bytes": "Bytes read.",
    "flop": "Arithmetic of all elements together.",
    "special_ops": "Exponentials and the like, of all elements together.",
    "passes": "How often the data are gone through.",
    "num_tensors": "Into how many tensors the parameters are divided.",
    "kind": "sgd, adam or adamw.",
    "implementation": "fused, foreach or per_tensor.",
    "weight_dtype": "Format of the model's weights, where the optimizer updates a wider copy of its own.",
    "gradient_dtype": "Format of gradients beside weight_dtype, if not that.",
    "backward": "The backward pass: true or false.",
}


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parsed(name: str, text: str) -> Any:
    """A parameter's value from its text: a whole number, true or false, a pair such as 128x64, a rate, a list, or a name."""
    plain = text.strip()
    if name in TEXTS:
        return plain
    if name in LISTS:
        return _list(name, plain)
    if name in FLAGS:
        if plain.lower() not in ("true", "false"):
            raise InvalidInput(f"{option(name)} {text!r} must be true or false")
        return plain.lower() == "true"
    if name in RATES:
        return units.parse(name, plain)
    if name == "tile":
        sides = plain.lower().split("x")
        if len(sides) != 2 or not all(side.isdigit() for side in sides):
            raise InvalidInput(f"--tile {text!r} must read ROWSxCOLUMNS, e.g. 128x64")
        return int(sides[0]), int(sides[1])
    number = _whole(plain)
    if number is None:
        several = f"; for several give --sweep {name}=FROM:TO:STEP" if plain.startswith("[") or "," in plain else ""
        raise InvalidInput(f"{option(name)} {text!r} must be a whole number{several}")
    return number


def _whole(text: str) -> int | None:
    number = _number(text)
    return number if isinstance(number, int) else None


def _number(text: str) -> int | float | None:
    """What the text says, whole where it is; None where it says no number."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def _list(name: str, text: str) -> str:
    """As JSON, whether or not it was given in brackets."""
    inside = text.removeprefix("[").removesuffix("]")
    numbers = [_whole(part.strip()) for part in inside.split(",")]
    if text.startswith("[") != text.endswith("]") or any(number is None or number < 1 for number in numbers):
        raise InvalidInput(f"{option(name)} {text!r} must be whole numbers of at least 1, such as [128,4096] or 128,4096")
    return f"[{', '.join(map(str, numbers))}]"


def meant(name: str, cell: Any) -> Any:
    """What a cell of a CSV or parquet file says, however its file holds it: None where it is empty, numbers, true and false as values,
    lists of lengths and histograms as JSON. What can be none of these stays as it is: the kernel refuses it with what would do."""
    if hasattr(cell, "tolist"):  # numpy's
        cell = cell.tolist()
    if isinstance(cell, str):
        return _from_text(name, cell.strip())
    if isinstance(cell, Decimal) and cell.is_finite():
        cell = int(cell) if cell == cell.to_integral_value() else float(cell)
    if isinstance(cell, float):
        cell = None if cell != cell else int(cell) if cell.is_integer() else cell
    if isinstance(cell, Mapping):  # a parquet file has every row's keys in all rows
        cell = {str(key): value for key, value in cell.items() if value is not None} or None
    if name in LISTS and isinstance(cell, int) and not isinstance(cell, bool):
        cell = [cell]
    if name == "tile" and isinstance(cell, Sequence):
        return tuple(cell)
    return json.dumps(cell, default=str) if isinstance(cell, list | tuple | Mapping) else cell


def _from_text(name: str, text: str) -> Any:
    if text.lower() in EMPTY:
        return None
    if name in LISTS:
        try:
            return _list(name, text)
        except InvalidInput:
            return text
    return text if name in TEXTS or name in OF_A_ROW else plain_value(text)


def plain_value(text: str) -> Any:
    """True or false, a number, whole where it is one, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = _number(text)
    return text if number is None else number


def check_lengths(given: Mapping[str, Any]) -> None:
    """Lists name every request by themselves: what is said twice has to be the same."""
    lists = {name: given[name] for name in LISTS if name in given}
    if not lists:
        return
    for name, text in lists.items():
        if str(text).count("[") > 1:
            raise InvalidInput(f"{option(name)} {shown(text)} must be one list of lengths, such as [128,4096]: that of one launch")
    name, text = next(iter(lists.items()))
    number = str(text).count(",") + 1
    if given.get("batch", number) != number:
        raise InvalidInput(f"{option(name)} names {number} requests, --batch {given['batch']}: leave --batch out")
    for each, single in zip(LISTS, ("q_len", "kv_len"), strict=True):
        if single in given and each in given:
            raise InvalidInput(f"{option(single)} and {option(each)} say the same: leave one of them out")
    if "kv_len" in given:
        raise InvalidInput(f"--kv-len is of equal requests, {option(name)} of each: give --kv-lens instead")


def check_missing(family: str, required: Iterable[str], given: Iterable[str]) -> None:
    if missing := [option(name) for name in required if name not in set(given)]:
        raise InvalidInput(f"{family} needs {' and '.join(missing)}: see tilecast kernel {family} --help")
