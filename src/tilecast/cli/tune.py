"""`tilecast tune`: configurations of tunable kernels by prediction, in the files engines load; and why one wins."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilecast import hardware, units
from tilecast.cli.files import target_folder
from tilecast.cli.output import command_line, emit, output_options, overrides_from, profile_option, say, set_option
from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.kernels.moe import Moe
from tilecast.kernels.moe_defaults import ENGINES
from tilecast.report import Grid, Report, versions
from tilecast.tuning.engine_files import check_version, contents, write
from tilecast.tuning.explain import explain as explained
from tilecast.tuning.explain import words
from tilecast.tuning.model_layer import layer_of
from tilecast.tuning.search import SHORTLIST, TOKENS, Choice, Layer, Timer, Tuned, gemm_layer, passes_of, space_for, tune
from tilecast.tuning.space import PARAMETERS, limited, space_of


@click.group(name="tune")
def command() -> None:
    """Choose launch configurations by predicted time; write what vLLM and SGLang load."""


def search_options(function: Any) -> Any:
    options = (
        click.option("--gpu", required=True, help="Catalogue id, device string, or the path of a TOML file."),
        click.option("--engine", default="sglang", show_default=True, help=f"Whose files and default: {', '.join(ENGINES)}."),
        click.option("--tokens", metavar="1,2,...", help="Token counts, the keys of the file [default: the engines' own 18]."),
        click.option(
            "--only", "limits", metavar="NAME=V,V", multiple=True, help="Limit the space, e.g. --only block_n=64,128 (repeatable)."
        ),
        set_option,
        profile_option,
        output_options,
    )
    for option in reversed(options):
        function = option(function)
    return function


def file_options(function: Any) -> Any:
    options = (
        click.option("-o", "--out", "folder", metavar="DIR", help="Write the engine's file below this folder."),
        click.option("--per-channel", is_flag=True, help="Of 8-bit experts with a scale for each column: SGLang names their file so."),
        click.option("--triton-version", help="SGLang keeps a folder for each; vLLM may note it in the file."),
        click.option(
            "--shortlist", metavar="K", type=int, help=f"Show the K configurations worth measuring [default: {SHORTLIST}, in --json]."
        ),
        click.option(
            "--measure",
            metavar="[triton|FILE.csv]",
            is_flag=False,
            flag_value="triton",
            help="Time the shortlist: on the GPU that is here, or from recorded times.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def model_options(function: Any) -> Any:
    options = (
        click.option("--model", help="A bundled Hugging Face id, a config.json, or its folder."),
        click.option("--tp", default=1, show_default=True, help="GPUs that share the layer."),
        click.option("--ep", default=1, show_default=True, help="Of these, groups that experts are dealt to whole."),
        click.option("--dtype", help="Of weights and activations [default: the model's]."),
        click.option("--histogram", metavar="FILE", help="JSON list: how often each expert is chosen [default: all equally]."),
        click.option(
            "--fuse-shared/--no-fuse-shared", "fuse", default=None, help="Run the shared expert as one more [default: as SGLang does]."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command(name="moe")
@search_options
@model_options
@file_options
def moe(**asked: Any) -> None:
    """The fused MoE kernel of a model."""
    layer, shown = _asked_layer(asked)
    _run(layer, asked, command_line("tune", "moe", **shown, **_shown(asked)))


@command.command(name="gemm")
@click.option("--n", required=True, type=int, help="Columns of the output.")
@click.option("--k", required=True, type=int, help="Length of the sum.")
@search_options
@file_options
def gemm(n: int, k: int, **asked: Any) -> None:
    """A block-scaled FP8 GEMM."""
    _run(_product(n, k), asked, command_line("tune", "gemm", n=n, k=k, **_shown(asked)))


@command.command(name="explain")
@model_options
@click.option("--n", type=int, help="With --k and without --model: a block-scaled FP8 GEMM of so many columns.")
@click.option("--k", type=int, help="Length of its sum.")
@click.option("--pass", "moe_pass", type=click.Choice(["w13", "w2"]), help="Which product of the experts [default: w13].")
@click.option("--config", "configs", metavar="M,N,K,GROUP,WARPS,STAGES", multiple=True, help="One more to compare (repeatable).")
@search_options
def explain(configs: tuple[str, ...], moe_pass: str | None, n: int | None, k: int | None, **asked: Any) -> None:
    """Why one configuration wins: waves, padding and traffic beside the default and the runners-up."""
    output = {name: asked.pop(name) for name in ("as_json", "as_csv", "as_python")}
    if (n, k) == (None, None):
        layer, shown = _asked_layer(asked)
    else:
        layer, shown = _asked_product(asked, n, k), {"n": n, "k": k}
        if moe_pass:
            raise InvalidInput("--pass is of experts; a product has one")
    counts = token_counts(asked["tokens"] or "64")
    if len(counts) != 1:
        raise InvalidInput(f"--tokens {asked['tokens']!r}: explain looks at one number of tokens")
    line = command_line("tune", "explain", **shown, **{"pass": moe_pass}, config=configs, **_shown(asked))
    given, choices = [_config(text) for text in configs], limited(asked["limits"])
    optional = {"configs": given, "moe_pass": moe_pass}
    arguments = {"engine": asked["engine"], "num_tokens": counts[0], **{key: v for key, v in optional.items() if v}, **_limits(asked)}
    imports = "from tilecast import hardware\nfrom tilecast.tuning.explain import explain\nfrom tilecast.tuning.search import Layer\n"
    python = imports + _call("explain", layer, asked, arguments)
    gpu = _gpu(asked)
    records = explained(
        layer, gpu, engine=asked["engine"], num_tokens=counts[0], configs=given, choices=choices, moe_pass=moe_pass or "w13"
    )
    title = "The product" if layer.kernel == "gemm" else {"w13": "First pass (w13)", "w2": "Second pass (w2)"}[moe_pass or "w13"]
    emit(_explained(records, title, gpu, counts[0], len(space_for(layer, gpu, choices)), line, python), **output)


# ---- what is asked ---------------------------------------------------------------------------------------------------------------------


LAYER_OPTIONS = ("model", "tp", "ep", "dtype", "histogram", "fuse")


def _asked_layer(asked: dict[str, Any]) -> tuple[Layer, dict[str, Any]]:
    """The layer that the options name, which are taken out of `asked`; and these options as a command line has them."""
    given = {name: asked.pop(name) for name in LAYER_OPTIONS}
    shown = {name: value for name, value in given.items() if name != "fuse"}
    if given["fuse"] is not None:
        shown["fuse_shared" if given["fuse"] else "no_fuse_shared"] = True
    if not given["model"]:
        raise InvalidInput("--model must be given: a bundled Hugging Face id, a config.json, or its folder")
    layer, note = layer_of(**given, engine=asked["engine"])
    if note:
        say(note)
    return layer, shown


def _asked_product(asked: dict[str, Any], n: int | None, k: int | None) -> Layer:
    given = {name: asked.pop(name) for name in LAYER_OPTIONS}
    if n is None or k is None or given["model"]:
        raise InvalidInput("give --n and --k of a product, or --model for its experts, not some of both")
    return _product(n, k)


def _product(n: int, k: int) -> Layer:
    for name, size in (("n", n), ("k", k)):
        if size < 1:
            raise InvalidInput(f"--{name} {size} must be a whole number of at least 1")
    return gemm_layer(n, k)


def token_counts(text: str | None) -> tuple[int, ...]:
    if text is None:
        return TOKENS
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or len(set(counts)) != len(counts):
        raise InvalidInput(f"--tokens {text!r} must be different whole numbers of at least 1, such as 1,16,256")
    return counts


def _gpu(asked: Mapping[str, Any]) -> GpuSpec:
    if note := hardware.resolution_note(asked["gpu"]):
        say(note)
    gpu = hardware.gpu(asked["gpu"], overrides_from(asked["assignments"]))
    if asked["profile"]:
        from tilecast.learning.profiles import opened

        opened(asked["profile"], gpu)
        say("a profile moves every configuration of a kernel alike: the choice is the same without it")
    return gpu


def _shown(asked: Mapping[str, Any]) -> dict[str, Any]:
    names = {"folder": "out", "limits": "only", "assignments": "set"}
    hidden = ("as_json", "as_csv", "as_python")
    return {names.get(name, name): value for name, value in asked.items() if name not in hidden and value not in (None, (), False)}


# ---- as Python -------------------------------------------------------------------------------------------------------------------------

IMPORTS = "from tilecast import hardware\nfrom tilecast.tuning.search import Layer, tune\n"


def _call(function: str, layer: Layer, asked: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    return f"{function}({layer!r}, {_gpu_call(asked)}{''.join(f', {name}={value!r}' for name, value in arguments.items())})"


def _gpu_call(asked: Mapping[str, Any]) -> str:
    overrides = overrides_from(asked["assignments"])
    return f"hardware.gpu({asked['gpu']!r}{f', {overrides!r}' if overrides else ''})"


def _limits(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"choices": {name: list(values) for name, values in limited(asked["limits"]).items()}} if asked["limits"] else {}


def _tune_python(layer: Layer, asked: Mapping[str, Any]) -> str:
    tokens = {"tokens": token_counts(asked["tokens"])} if asked["tokens"] else {}
    shortlist = {} if asked["shortlist"] is None else {"shortlist": asked["shortlist"]}
    arguments = {"engine": asked["engine"], **tokens, **shortlist, **_limits(asked)}
    call = _call("tune", layer, asked, arguments)
    lines = [IMPORTS.rstrip()]
    if asked["measure"]:
        lines.append("from tilecast.tuning.runners.base import runner_for")
        call = f"{call[:-1]}, time_s=runner_for({asked['measure']!r}, {_gpu_call(asked)}).time_s)"
    if not asked["folder"]:
        return "\n".join([*lines, call])
    lines += ["from pathlib import Path", "from tilecast.tuning.engine_files import contents, write", f"tuned = {call}"]
    return "\n".join([*lines, f"write(Path({asked['folder']!r}), contents(tuned, {asked['triton_version']!r}))"])


# ---- what is said ----------------------------------------------------------------------------------------------------------------------


def _run(layer: Layer, asked: dict[str, Any], line: str) -> None:
    output = {name: asked.pop(name) for name in ("as_json", "as_csv", "as_python")}
    folder = target_folder("--out", asked["folder"], made=True) if asked["folder"] else None
    check_version(asked["triton_version"], layer.kernel)
    layer = replace(layer, per_channel=asked["per_channel"])
    gpu, tokens, choices, python = _gpu(asked), token_counts(asked["tokens"]), limited(asked["limits"]), _tune_python(layer, asked)
    if output["as_python"]:
        emit(Report(answer="", python=python), **output)
        return
    timer: Timer | None = None
    times: Times = {}
    if asked["measure"]:
        from tilecast.tuning.runners.base import runner_for

        time_s = noted(runner_for(asked["measure"], gpu).time_s, times)
        timer = told(time_s, len(tokens)) if asked["measure"] == "triton" else time_s
    started = time.perf_counter()
    size = SHORTLIST if asked["shortlist"] is None else asked["shortlist"]
    tuned = tune(layer, gpu, engine=asked["engine"], tokens=tokens, shortlist=size, choices=choices, time_s=timer)
    spent_s = time.perf_counter() - started
    files = contents(tuned, asked["triton_version"])
    written = [str(path) for path in write(folder, files)] if folder else []
    report = tuned_report(tuned, spent_s, line, written, files, python, times, is_listed=asked["shortlist"] is not None)
    emit(report, **output)


Times = dict[tuple[str, int, tuple[int, ...]], float]  # measured: pass, number of tokens and configuration -> seconds


def noted(time_s: Timer, times: Times) -> Timer:
    """Keeps what was measured in `times`."""

    def timed(launch: Moe, config: Mapping[str, int]) -> float | None:
        seconds = time_s(launch, config)
        if seconds is not None:
            times[_key(str(launch.moe_pass), int(launch.num_tokens), config)] = seconds
        return seconds

    return timed


def _key(moe_pass: str, num_tokens: int, config: Mapping[str, int]) -> tuple[str, int, tuple[int, ...]]:
    return moe_pass, num_tokens, tuple(config[name] for name in PARAMETERS.values())


def told(time_s: Timer, num_counts: int) -> Timer:
    """Says on stderr which number of tokens is being measured: compiling takes its time."""
    seen: list[int] = []

    def timed(launch: Moe, config: Mapping[str, int]) -> float | None:
        count = int(launch.num_tokens)
        if count not in seen:
            seen.append(count)
            say(f"measuring {count:,} tokens, {len(seen)} of {num_counts}")
        return time_s(launch, config)

    return timed


def tuned_report(
    tuned: Tuned,
    spent_s: float,
    line: str,
    written: Sequence[str],
    files: Mapping[str, str],
    python: str,
    times: Mapping[tuple[str, int, tuple[int, ...]], float],
    *,
    is_listed: bool,
) -> Report:
    """`is_listed`: with the configurations worth measuring, one by one."""
    records = [record(choice) for choice in tuned.choices]
    has_down = any(choice.down_config is not None for choice in tuned.choices)
    listed = worth_measuring(tuned, times) if is_listed else []
    rows = [
        (str(choice.num_tokens), words(choice.config), *([words(choice.down_config)] if choice.down_config else []), words(choice.default),
         _gain_words(choice))
        for choice in tuned.choices
    ]  # fmt: skip
    gains = [choice.gain.median for choice in tuned.choices if choice.gain is not None]
    is_measured = any(choice.gain is not None and choice.gain.basis.startswith("measured") for choice in tuned.choices)
    how = "measured" if is_measured else "expected"
    expected = (
        f"{how} {np.mean(gains):.2f}x over {tuned.engine}'s default on average{_rests_on(tuned)}"
        if gains
        else "the default does not fit this GPU"
    )
    where = f"; wrote {', '.join(written)}" if written else f"; nothing written: give -o DIR for {', '.join(files)}"
    layer = tuned.layer
    return Report(
        answer=f"Of {len(tuned.space):,} configurations for {tuned.gpu.label}, the best for each of {len(rows)} token counts: "
               f"{expected}{where}.",
        grids=[Grid(
            title="BLOCK_M x BLOCK_N x BLOCK_K, group, warps, stages",
            columns=("tokens", "choice", *(["second pass"] if has_down else []), "default", "speed-up (80 %)"), rows=rows,
            right=frozenset({"tokens", "speed-up (80 %)"}), spare=("second pass", "default"),
        ), *([_listed_grid(listed, is_measured=is_measured)] if listed else [])],
        closing=f"Priced {tuned.num_priced:,} configurations in {spent_s:.2f} s.{_how_to_load(tuned, written)}",
        payload={
            "schema": "tilecast.tune/1", "kernel": layer.kernel, "gpu": tuned.gpu.id, "engine": tuned.engine, "choices": records,
            "files": list(files), "written": list(written), "num_configurations": len(tuned.space), "num_priced": tuned.num_priced,
            "inputs": {"num_experts": layer.num_experts, "topk": layer.topk, "hidden_size": layer.hidden_size,
                       "inter_size": layer.inter_size, "tp": layer.tp, "ep": layer.ep, "dtype": layer.dtype, "num_fused": layer.num_fused},
            "versions": versions(),
        },
        records=listed or [flat(choice) for choice in tuned.choices],
        python=python,
        command=line,
    )  # fmt: skip


def _rests_on(tuned: Tuned) -> str:
    """What an expectation rests on, where that is not a search of this kernel on this GPU."""
    bases = sorted({choice.gain.basis for choice in tuned.choices if choice.gain is not None} - {"interpolated", "measured"})
    return f" (basis {', '.join(bases)})" if bases else ""


def worth_measuring(tuned: Tuned, times: Mapping[tuple[str, int, tuple[int, ...]], float]) -> list[dict[str, Any]]:
    """A line for each configuration and pass that `--measure FILE.csv` would look up, the default too; a time not measured is left open."""
    lines: list[dict[str, Any]] = []
    for choice in tuned.choices:
        for name in passes_of(tuned.layer):
            configs = choice.down_shortlist if name == "w2" and choice.down_config else choice.shortlist
            wanted = [(str(place), config) for place, config in enumerate(configs, start=1)] + [("default", choice.default)]
            for what, config in wanted:
                seconds = times.get(_key(name, choice.num_tokens, config), "")
                lines.append({"num_tokens": choice.num_tokens, "moe_pass": name, "what": what, **config, "latency_s": seconds})
    return lines


def _listed_grid(lines: Sequence[Mapping[str, Any]], *, is_measured: bool) -> Grid:
    columns = ("tokens", "pass", "#", "configuration", *(["measured"] if is_measured else []))
    rows = [
        (str(line["num_tokens"]), line["moe_pass"], line["what"], words({name: line[name] for name in PARAMETERS.values()}),
         *([units.human("_s", line["latency_s"]) if line["latency_s"] else "-"] if is_measured else []))
        for line in lines
    ]  # fmt: skip
    title = "Measured, the fastest first" if is_measured else "Worth measuring, the likeliest first"
    return Grid(title=title, columns=columns, rows=rows, right=frozenset({"tokens", "#", "measured"}))


FOLDERS = {"sglang": "sglang/kernels/ops/quantization/configs", "vllm": "vllm/model_executor/layers/quantization/utils/configs"}
VARIABLES = {"sglang": "SGLANG_MOE_CONFIG_DIR", "vllm": "VLLM_TUNED_CONFIG_FOLDER"}


def _how_to_load(tuned: Tuned, written: Sequence[str]) -> str:
    if not written:
        return ""
    if tuned.layer.kernel == "gemm":
        return f" {tuned.engine} looks for it in its own {FOLDERS[tuned.engine]}: copy it there."
    above = 2 if tuned.engine == "sglang" else 0  # configs/triton_x_y_z
    return f" Load with {VARIABLES[tuned.engine]}={Path(written[0]).parents[above]}."


def record(choice: Choice) -> dict[str, Any]:
    return {
        "num_tokens": choice.num_tokens, "config": dict(choice.config),
        "down_config": dict(choice.down_config) if choice.down_config else None, "default": dict(choice.default),
        "speedup": choice.gain.told() if choice.gain else None, "analytic_s": choice.predicted_s, "default_analytic_s": choice.default_s,
        "shortlist": [dict(config) for config in choice.shortlist], "down_shortlist": [dict(config) for config in choice.down_shortlist],
    }  # fmt: skip


def flat(choice: Choice) -> dict[str, Any]:
    gain = choice.gain.told() if choice.gain else {}
    return {"num_tokens": choice.num_tokens, **choice.config, **{f"speedup_{name}": value for name, value in gain.items()}}


def _gain_words(choice: Choice) -> str:
    gain = choice.gain
    if gain is None:
        return "-"
    if gain.basis.startswith("measured"):
        return f"{gain.median:.2f}x {gain.basis.replace('-', ', ', 1).replace('-', ' ')}"
    return f"{gain.median:.2f}x ({gain.low:.2f}-{gain.high:.2f})"


def _explained(
    records: list[dict[str, Any]], title: str, gpu: GpuSpec, num_tokens: int, num_configs: int, line: str, python: str
) -> Report:
    columns = ("configuration", "", "rank", "tasks", "blocks/SM", "waves", "tail", "padding", "L2 reads", "DRAM", "analytic")
    rows = [
        (entry["config"], entry["what"], str(entry["rank"]), f"{entry['num_tasks']:,.0f}", f"{entry['blocks_per_sm']:.0f}",
         f"{entry['waves']:.2f}", f"{100 * entry['tail_fraction']:.0f} %", f"{100 * entry['padding_fraction']:.0f} %",
         units.human("_bytes", entry["l2_bytes"]), units.human("_bytes", entry["dram_bytes"]), units.human("_s", entry["analytic_s"]))
        for entry in records
    ]  # fmt: skip
    return Report(
        answer=why(records, num_tokens, num_configs),
        grids=[Grid(title=title, columns=columns, rows=rows, right=frozenset(columns[2:]), spare=("tasks", "rank"))],
        payload={"schema": "tilecast.tune-explain/1", "gpu": gpu.id, "num_tokens": num_tokens, "configurations": records,
                 "versions": versions()},
        records=records,
        python=python,
        command=line,
    )  # fmt: skip


def why(records: Sequence[Mapping[str, Any]], num_tokens: int, num_configs: int) -> str:
    """The one sentence: which figures of the choice are better than the default's, the largest difference first."""
    choice = records[0]
    default = next((entry for entry in records if entry["what"] == "default"), None)
    start = f"{choice['config']} is likeliest the best of {num_configs:,} for {num_tokens} tokens"
    if default is None:
        return f"{start}; the engine's default does not fit this GPU."
    differences = {
        f"SMs in use {100 * default['busy_sms_fraction']:.0f} to {100 * choice['busy_sms_fraction']:.0f} %": choice["busy_sms_fraction"]
        - default["busy_sms_fraction"],
        f"padding {100 * default['padding_fraction']:.0f} to {100 * choice['padding_fraction']:.0f} %": default["padding_fraction"]
        - choice["padding_fraction"],
        f"tail {100 * default['tail_fraction']:.0f} to {100 * choice['tail_fraction']:.0f} %": default["tail_fraction"]
        - choice["tail_fraction"]
        if max(default["waves"], choice["waves"]) > 1
        else 0.0,
        f"L2 reads {units.human('_bytes', default['l2_bytes'])} to {units.human('_bytes', choice['l2_bytes'])}": 1
        - choice["l2_bytes"] / default["l2_bytes"],
        f"waves {default['waves']:.2f} to {choice['waves']:.2f}": 0.5 * (1 - choice["waves"] / default["waves"]),
    }
    better = [text for text, gain in sorted(differences.items(), key=lambda item: -item[1]) if gain > 0.02]
    if choice["config"] == default["config"]:
        return f"{start}: it is the engine's own default."
    return f"{start}: against the default it brings {', '.join(better)}." if better else f"{start}, by what measured searches show alone."


def _config(text: str) -> dict[str, int]:
    try:
        values = [int(part) for part in text.split(",")]
        return space_of([dict(zip(PARAMETERS.values(), values, strict=True))]).config(0)
    except (ValueError, KeyError):
        raise InvalidInput(f"--config {text!r} must be six whole numbers: BLOCK_M,BLOCK_N,BLOCK_K,GROUP_M,warps,stages") from None
