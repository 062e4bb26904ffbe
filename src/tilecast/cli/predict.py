"""`tilecast predict MODEL`: how fast an engine serves a model on a GPU nobody has to own."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilecast import hardware, units
from tilecast.cli.files import target, write_whole
from tilecast.cli.fitting import misfit, other_choices
from tilecast.cli.output import command_line, emit, output_options, overrides_from, profile_option, refuse_as_python, say, set_option
from tilecast.cli.ranges import is_comparison, numbers
from tilecast.engines.breakdown import Part
from tilecast.engines.predict import Prediction, predict
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report, versions
from tilecast.workloads.aggregate import basis_words
from tilecast.workloads.requests import read_requests, unused_columns

if TYPE_CHECKING:
    from tilecast.diagnosis.what_if import Why

BAR_WIDTH = 24
MOST_SHOWN = 8  # lines a phase gets without --breakdown
APART = ("disaggregated", *(f"{kind}_{name}" for kind in ("prefill", "decode") for name in ("tp", "ep", "dp_attention")))
BRIEF = ("part", "time", "share", "", "bound by", "launches", "kernel")
FULL = ("part", "launches", "time", "share", "bound by", "bound", "efficiency", "basis", "kernel")


@click.command(name="predict")
@click.argument("model")
@click.option("--gpu", required=True, help="Catalogue id, device string, or the path of a TOML file; several with commas.")
@click.option(
    "--engine",
    default="sglang",
    show_default=True,
    help="Which engine serves the model: sglang, vllm or trtllm, or a release of it: sglang@0.5.14.",
)
@click.option(
    "--engine-set", "engine_assignments", metavar="NAME=VALUE", multiple=True,
    help="Its settings, e.g. chunked_prefill_size=4096; a wrong name lists them.",
)  # fmt: skip
@click.option("--tp", default="1", show_default=True, help="Tensor parallel: GPUs that share every layer; several as 1,2,4.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline parallel: stages that hold runs of layers.")
@click.option("--ep", type=int, default=1, show_default=True, help="Expert parallel: ranks, of the tp GPUs, that hold whole experts.")
@click.option("--dp-attention", type=int, default=1, show_default=True, help="Data-parallel attention: groups, of the tp GPUs.")
@click.option("--batch", help="Requests in the batch; several as 1,8,64, 1:256:x2 (or 1:256, doubling) or 8:64:8.")
@click.option("--isl", type=int, help="Input tokens of each request.")
@click.option("--osl", type=int, help="Output tokens of each request.")
@click.option("--requests", "requests_path", metavar="FILE.csv", help="One request a line: input_tokens,output_tokens.")
@click.option(
    "--concurrency", help="Predict a load: so many users with one request each in flight; several as 1:64:x2; --batch limits what runs."
)
@click.option(
    "--disaggregated",
    metavar="2P1D",
    help="Prefill and decode on workers of their own, here two and one; several with commas; auto: all that a box of 8 has room for.",
)
@click.option("--prefill-tp", type=click.IntRange(min=1), help="GPUs of a prefill worker [default: --tp].")
@click.option("--prefill-ep", type=click.IntRange(min=1), help="Of a prefill worker [default: --ep].")
@click.option("--prefill-dp-attention", type=click.IntRange(min=1), help="Of a prefill worker [default: --dp-attention].")
@click.option("--decode-tp", type=click.IntRange(min=1), help="GPUs of a decode worker [default: --tp].")
@click.option("--decode-ep", type=click.IntRange(min=1), help="Of a decode worker [default: --ep].")
@click.option("--decode-dp-attention", type=click.IntRange(min=1), help="Of a decode worker [default: --dp-attention].")
@click.option("--node", help="The box, as in `tilecast nodes` [default: the usual one of the GPU].")
@click.option("--quant", help="Weights: bf16, fp16, fp8, fp8_block, int8, int4, nvfp4 or mxfp4 [default: as the checkpoint says].")
@click.option("--kv-dtype", help="Of the KV cache: fp8, or the model's own [default].")
@click.option("--allow-longer-context", is_flag=True, help="Predict lengths beyond the model's limit all the same.")
@profile_option
@click.option("--by", help="Compare by this figure, e.g. output_tokens_per_s_per_gpu [default of a comparison] or ttft_s.")
@click.option("--breakdown", is_flag=True, help="Every kernel: launches, time, share, bound, efficiency, basis, sizes.")
@click.option("--why", is_flag=True, help="What would make it faster: clock, bandwidth, link and batch or users changed and priced again.")
@click.option("--html", "html_path", metavar="FILE.html", help="Also write a page with plots that needs nothing else.")
@click.option("--trace", "trace_path", metavar="FILE.json", help="Also write a timeline for ui.perfetto.dev or chrome://tracing.")
@set_option
@output_options
def command(
    model: str, gpu: str, assignments: tuple[str, ...], engine_assignments: tuple[str, ...], requests_path: str | None,
    concurrency: str | None, by: str | None, breakdown: bool, why: bool, html_path: str | None,
    trace_path: str | None, as_json: bool, as_csv: bool, as_python: bool, **given: Any,
) -> None:  # fmt: skip
    """Predict a static batch, or with --concurrency a load: first token, decode step, total, tokens per second, memory, and why.

    MODEL is a bundled Hugging Face id such as Qwen/Qwen3-32B, a config.json, or its folder. All requests are prefilled together, then
    decoded in lock step; one that has all its tokens leaves the batch. With --concurrency N, N users each have one request in flight,
    and the steady state of continuous batching is predicted. With several GPUs, group sizes, batches or concurrencies, it compares them.
    """
    said, workers = _said(given), list[str]()
    if any(given[name] is not None for name in APART):
        from tilecast.cli import predict_disaggregated

        given, workers = predict_disaggregated.workers_of(given, concurrency)
    given = {name: value for name, value in given.items() if name not in APART or value is not None}
    requests = _requests(requests_path, given, ("isl", "osl") if concurrency is not None else ("batch", "isl", "osl"))
    output = {"as_json": as_json, "as_csv": as_csv, "as_python": as_python}
    if as_python:
        refuse_as_python(html=html_path, trace=trace_path)
    reads = (model, requests_path, given["profile"])
    page, timeline = target("--html", html_path, (".html", ".htm"), reads=reads), target("--trace", trace_path, (".json",), reads=reads)
    overrides = overrides_from(assignments)
    line = command_line(
        "predict", model, gpu=gpu, **said, requests=requests_path, concurrency=concurrency, engine_set=engine_assignments,
        set=assignments, by=by, breakdown=breakdown, why=why,
    )  # fmt: skip
    if engine_assignments:
        given["engine_settings"] = overrides_from(engine_assignments, "--engine-set", "chunked_prefill_size=4096")
    if concurrency is not None:
        from tilecast.cli import predict_load

        given = predict_load.limited(given)
    shown: dict[str, Any] = {"line": line, "breakdown": breakdown, "why": why, "page": page, "timeline": timeline}
    load: dict[str, Any] = {"concurrency": concurrency, "requests": requests, "overrides": overrides, **given}
    if is_comparison(gpu, given["tp"], concurrency or given["batch"], by) or len(workers) > 1 or workers == ["auto"]:
        from tilecast.cli import predict_compare

        if alone := [f"--{name}" for name, value in (("breakdown", breakdown), ("why", why), ("trace", timeline)) if value]:
            varied = "--batch" if concurrency is None else "--concurrency"
            raise InvalidInput(f"{', '.join(alone)} explains one configuration: give one --gpu, --tp and {varied}, and no --by")
        arguments = predict_compare.arguments(gpu, by, given, concurrency, requests, overrides, workers)
        inputs = {
            "gpu": gpu, **given, **({"concurrency": concurrency} if concurrency is not None else {}),
            **({"disaggregated": workers} if workers else {}), "requests": requests, "set": list(assignments),
        }  # fmt: skip
        report = predict_compare.report_of(model, arguments, inputs, line, page, as_python)
    elif workers:
        report = predict_disaggregated.report_of(model, gpu, workers=workers[0], **shown, **load)
    elif concurrency is not None:
        report = predict_load.report_of(model, gpu, **shown, **load)
    else:
        report = report_of(model, gpu, given, requests, overrides, as_python=as_python, **shown)
    emit(report, **output)


def _requests(path: str | None, given: dict[str, Any], sizes: tuple[str, ...]) -> list[tuple[int, int]] | None:
    """Those of the file, if one was given in place of sizes; either is needed."""
    flags = ", ".join(f"--{name}" for name in sizes)
    if not path:
        if missing := [f"--{name}" for name in sizes if given[name] is None]:
            raise InvalidInput(f"{', '.join(missing)} missing: give {flags}, or --requests FILE.csv")
        return None
    if any(given[name] is not None for name in sizes):
        raise InvalidInput(f"--requests and {flags} exclude one another")
    requests = read_requests(path)
    if unused := unused_columns(path):
        say(f"{path}: not used: {', '.join(unused)}; a request is its input_tokens and output_tokens")
    return requests


def report_of(
    model: str, gpu: str, given: dict[str, Any], requests: list[tuple[int, int]] | None, overrides: dict[str, str], *, line: str,
    breakdown: bool, why: bool, page: Path | None, timeline: Path | None, as_python: bool,
) -> Report:  # fmt: skip
    """The report of one static batch, and its page and its timeline where one was asked for."""
    given |= {name: numbers(f"--{name}", given[name])[0] for name in ("tp", "batch") if given[name] is not None}
    if note := hardware.resolution_note(gpu):
        say(note)
    python = _python(model, gpu, given, requests, overrides, why)
    asked = {"model": model, "gpu": gpu, **given, "requests": requests, "overrides": overrides}
    prediction = predict(**asked)
    for warning in prediction.warnings:
        say(warning)
    if as_python:
        return Report(answer="", python=python)
    reasons = None
    if why or page is not None:
        from tilecast.diagnosis.what_if import why as reasons_of

        reasons = reasons_of(prediction, asked)
    report = predict_report(prediction, line, python, breakdown, reasons if why else None)
    if page is not None:
        from tilecast.report.figures import figures
        from tilecast.report.renderers import predict_html

        report.payload["figures"] = figures(prediction, asked)
        write_whole("--html", page, predict_html.page(report, reasons.to_dict() if reasons else None))
    if timeline is not None:
        from tilecast.report.renderers import chrome_trace

        write_whole("--trace", timeline, chrome_trace.text(prediction, asked, line))
    return report


def predict_report(prediction: Prediction, line: str, python: str, breakdown: bool = False, why: "Why | None" = None) -> Report:
    payload = {**prediction.to_dict(), **({"why": why.to_dict()} if why is not None else {}), "versions": versions()}
    grids = [_headline(prediction), *(_where(prediction, phase, breakdown) for phase in ("prefill", "decode"))]
    if why is not None:
        from tilecast.cli import predict_why

        grids += predict_why.grids(why)
    return Report(
        answer=_answer(prediction),
        grids=[grid for grid in grids if grid.rows],
        closing=why.sentence if why is not None else "",
        payload=payload,
        records=[part.to_dict() for part in prediction.breakdown] if breakdown else [_flat(payload)],
        inputs=prediction.inputs,
        python=python,
        command=line,
    )


# ---- what is said ------------------------------------------------------------------------------------------------


def _answer(prediction: Prediction) -> str:
    asked = prediction.batch
    where = f"{prediction.num_gpus} x {prediction.gpu.label}" if prediction.num_gpus > 1 else prediction.gpu.label
    requests = f"{asked.num_requests} request{'s' if asked.num_requests > 1 else ''}"
    decode = f", then {units.human('_s', prediction.decode_step_s.median)} a step" if prediction.decode_steps else ""
    return (
        f"{prediction.model.name} on {where} answers {requests} in {units.human('_s', prediction.total_s.median)}: first token after "
        f"{units.human('_s', prediction.prefill_s.median)}{decode}, {_rate(prediction.output_tokens_per_s.median)} tokens/s"
        f"{misfit(prediction.memory)}."
    )


def _headline(prediction: Prediction) -> Grid:
    memory, rate, steps = prediction.memory, prediction.output_tokens_per_s, prediction.decode_steps
    used = f"weights {_bytes(memory.weights_bytes)}, KV {_bytes(memory.kv_cache_bytes)}, activations {_bytes(memory.activations_bytes)}"
    rows = [
        ("prefill", str(prediction.prefill_s), f"{sum(prediction.batch.input_tokens):,} tokens; time to first token"),
        ("decode step", str(prediction.decode_step_s) if steps else "-", f"median of {steps:,} steps"),
        ("total", str(prediction.total_s), "prefill and all decode steps; in brackets 80 % intervals"),
        ("throughput", f"{_rate(rate.median)} ({_rate(rate.low)}-{_rate(rate.high)}) tokens/s", "output tokens of all requests / total"),
        ("memory", f"{_bytes(memory.total_bytes)} of {_bytes(memory.capacity_bytes)}", f"a GPU: {used}"),
        ("fits", "yes" if prediction.fits else "no", f"{prediction.node or prediction.gpu.id}, {prediction.engine}{_room(prediction)}"),
        ("basis", prediction.basis, f"the weakest; {basis_words(prediction.basis_shares)}"),
        *([("profile", prediction.profile.id, prediction.profile.words)] if prediction.profile else []),
    ]
    return Grid(columns=("what", "value", "meaning"), rows=rows, right=frozenset({"value"}), spare=("meaning",), wraps="meaning")


def _room(prediction: Prediction) -> str:
    memory = prediction.memory
    if not memory.fits:
        return other_choices(memory)
    if memory.largest_batch is None:
        return ""
    return f"; at most {memory.largest_batch:,} such requests, or {memory.largest_context or 0:,} tokens each"


def _where(prediction: Prediction, phase: str, every: bool) -> Grid:
    """The largest parts of a phase first; with --breakdown all of them, in the order they run."""
    parts = [part for part in prediction.breakdown if part.phase == phase]
    steps = 1 if phase == "prefill" else max(1, prediction.decode_steps)
    shown = parts if every else sorted(parts, key=lambda part: -part.time.median)[:MOST_SHOWN]
    columns = FULL if every else BRIEF
    rows = [tuple(_line(part, steps)[name] for name in columns) for part in shown]
    if rest := [part for part in parts if part not in shown]:
        seconds, share = sum(part.time.median for part in rest) / steps, sum(part.share_fraction for part in rest)
        rows.append((f"{len(rest)} more", units.human("_s", seconds), f"{100 * share:.1f} %", _bar(share), "", "", ""))
    title = "Where the prefill goes" if phase == "prefill" else "Where a decode step goes (mean)"
    return Grid(
        title=title, columns=columns, rows=rows, right=frozenset({"time", "share", "launches", "bound", "efficiency"}),
        spare=("efficiency", "basis", "bound", "kernel") if every else ("kernel", "launches", ""),
    )  # fmt: skip


def _line(part: Part, steps: int) -> dict[str, str]:
    sizes = " ".join(f"{name}={str(value).lower()}" for name, value in part.sizes.items())
    kernel = " ".join(filter(None, (part.family, part.identity, sizes))) if part.sizes else ""
    bound, efficiency = (units.human("_s", part.bound_s / steps), f"{100 * part.efficiency:.0f} %") if part.efficiency else ("-", "-")
    return {
        "part": part.name, "launches": str(part.launches_per_step) if part.sizes else "-", "bound by": part.bound_by, "kernel": kernel,
        "time": units.human("_s", part.time.median / steps), "share": f"{100 * part.share_fraction:.1f} %", "": _bar(part.share_fraction),
        "bound": bound, "efficiency": efficiency, "basis": part.basis,
    }  # fmt: skip


def _bar(share: float) -> str:
    return "█" * round(BAR_WIDTH * share)


def _bytes(value: float) -> str:
    return units.human("_bytes", value)


def _rate(value: float) -> str:
    return units.significant(value)


def _flat(payload: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in payload.items() if name not in ("schema", "breakdown")}


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """Without what was left at a default that changes nothing."""
    silent = {"pp": 1, "ep": 1, "dp_attention": 1, "allow_longer_context": False}
    return {name: value for name, value in given.items() if name not in silent or value != silent[name]}


def _python(
    model: str, gpu: str, given: dict[str, Any], requests: list[tuple[int, int]] | None, overrides: dict[str, str], why: bool = False
) -> str:
    default = {"engine": "sglang", "tp": 1}
    arguments = {name: value for name, value in _said(given).items() if value is not None and value != default.get(name)}
    if requests is not None:
        arguments["requests"] = requests
    if overrides:
        arguments["overrides"] = overrides
    more = "".join(f", {name}={value!r}" for name, value in arguments.items())
    if not why:
        return f"import tilecast\ntilecast.predict({model!r}, gpu={gpu!r}{more})"
    asked = f"asked = dict(model={model!r}, gpu={gpu!r}{more})"
    return f"import tilecast\nfrom tilecast.diagnosis.what_if import why\n{asked}\nwhy(tilecast.predict(**asked), asked)"
