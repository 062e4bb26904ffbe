"""`tilecast predict --concurrency N`: what N users see, and what the GPUs give them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecast import hardware, units
from tilecast.cli.files import write_whole
from tilecast.cli.fitting import misfit, other_choices
from tilecast.cli.output import say
from tilecast.cli.ranges import numbers
from tilecast.engines.breakdown import Part
from tilecast.engines.interval import Interval
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report, versions
from tilecast.serving.disaggregated import DisaggregatedPrediction
from tilecast.serving.load import LoadPrediction, predict_load
from tilecast.serving.served import Served
from tilecast.workloads.aggregate import basis_words

if TYPE_CHECKING:
    from tilecast.diagnosis.what_if_load import LoadWhy

MOST_SHOWN = 12
FULL = ("phase", "part", "launches", "time", "share", "bound by", "bound", "efficiency", "basis", "kernel")
BRIEF = ("phase", "part", "time", "share", "kernel")


def limited(given: dict[str, Any]) -> dict[str, Any]:
    """`given` with --batch as what it is in a load: how many requests the engine may run at once."""
    if given["batch"] is None:
        return given
    sizes = numbers("--batch", given["batch"])
    if len(sizes) > 1:
        raise InvalidInput(f"--batch {given['batch']} limits how many requests of a load run: give one number; --concurrency takes several")
    if sizes[0] < 1:
        raise InvalidInput(f"--batch {given['batch']} must be at least 1: it limits how many requests run")
    settings = {"most_running_requests": sizes[0], **(given.get("engine_settings") or {})}
    return {**given, "batch": None, "engine_settings": settings}


def report_of(
    model: str, gpu: str, *, concurrency: str, requests: list[tuple[int, int]] | None, overrides: dict[str, str], line: str,
    breakdown: bool, why: bool, page: Path | None, timeline: Path | None, **given: Any,
) -> Report:  # fmt: skip
    """The report, and its page and its timeline where one was asked for."""
    asked = asked_of(model, gpu, concurrency, requests, overrides, given)
    found = predict_load(**asked)
    reasons = None
    if why or page is not None:
        from tilecast.diagnosis.what_if_load import why_load

        reasons = why_load(found, asked)
    return served_report(
        found, asked, kind="load", answer=_answer(found), headline=_headline(found), closing="", reasons=reasons, line=line,
        breakdown=breakdown, why=why, page=page, timeline=timeline,
    )  # fmt: skip


def asked_of(
    model: str, gpu: str, concurrency: str, requests: list[tuple[int, int]] | None, overrides: dict[str, str], given: dict[str, Any],
    **workers: str,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of a prediction of a load; a name of a GPU that stands for another is said."""
    (users,), (tp, *_) = numbers("--concurrency", concurrency), numbers("--tp", given["tp"])
    if note := hardware.resolution_note(gpu):
        say(note)
    rest = {name: value for name, value in given.items() if name not in ("tp", "batch")}
    asked = {"model": model, "gpu": gpu, **workers, "tp": tp, "concurrency": users, **rest}
    return {**asked, "requests": requests, "overrides": overrides or None}


def served_report(
    found: LoadPrediction | DisaggregatedPrediction, asked: dict[str, Any], *, kind: str, answer: str, headline: Grid, closing: str,
    reasons: "LoadWhy | None", line: str, breakdown: bool, why: bool, page: Path | None, timeline: Path | None,
) -> Report:  # fmt: skip
    """Of `predict_load` or `predict_disaggregated`, by `kind`; warnings are said, and page and timeline written where one was asked for."""
    for warning in found.warnings:
        say(warning)
    payload, grids, explained = {**found.to_dict(), "versions": versions()}, [headline, where(found.breakdown, breakdown)], list[Grid]()
    if reasons is not None:
        from tilecast.cli import predict_why

        explained = predict_why.load_grids(reasons)
        if why:
            payload["why"], closing = reasons.to_dict(), f"{closing} {reasons.sentence}".strip()
            grids += explained
    records = [part.to_dict() for part in found.breakdown]
    report = Report(
        answer=answer,
        grids=grids,
        closing=closing,
        payload=payload,
        records=records if breakdown else [{name: value for name, value in payload.items() if name not in ("schema", "breakdown")}],
        inputs=found.inputs,
        python=_python(kind, asked, why),
        command=line,
    )
    if page is not None:
        from tilecast.report.load_figures import load_figures
        from tilecast.report.renderers import load_html

        payload["figures"] = load_figures(found, asked)
        write_whole("--html", page, load_html.page(report, explained[0] if explained else None, reasons.to_dict() if reasons else None))
    if timeline is not None:
        from tilecast.report.renderers import load_trace

        write_whole("--trace", timeline, load_trace.text(found, line))
    return report


def _python(kind: str, asked: dict[str, Any], why: bool) -> str:
    default = {"engine": "sglang", "tp": 1, "pp": 1, "ep": 1, "dp_attention": 1, "allow_longer_context": False}
    said = {name: value for name, value in asked.items() if value is not None and value != default.get(name)}
    if why:
        arguments = ", ".join(f"{name}={value!r}" for name, value in said.items())
        imported = f"import tilecast\nfrom tilecast.diagnosis.what_if_load import why_{kind}"
        return f"{imported}\nasked = dict({arguments})\nwhy_{kind}(tilecast.predict_{kind}(**asked), asked)"
    arguments = "".join(f", {name}={value!r}" for name, value in said.items() if name not in ("model", "gpu"))
    return f"import tilecast\ntilecast.predict_{kind}({asked['model']!r}, gpu={asked['gpu']!r}{arguments})"


def _answer(found: LoadPrediction) -> str:
    where = f"{found.num_gpus} x {found.gpu.label}" if found.num_gpus > 1 else found.gpu.label
    tokens = f", then {units.human('_s', found.tpot_s.median)} a token" if found.decode_steps else ""
    users = f"{found.concurrency:,} user{'s' if found.concurrency > 1 else ''}"
    return (
        f"{found.model.name} on {where} under {found.engine} serves {users} with a first token after "
        f"{units.human('_s', found.ttft_s.median)}{tokens}: "
        f"{units.significant(found.output_tokens_per_s_per_gpu.median)} tokens/s a GPU{misfit(found.memory)}."
    )


def seen_by_users(found: Served) -> list[tuple[str, str, str]]:
    """First token, token, latency, and what comes of them in a second: what, value and meaning."""
    more, decodes = found.serving(), found.decode_steps > 0

    def rate(value: Interval) -> str:
        return f"{units.significant(value.median)} ({units.significant(value.low)}-{units.significant(value.high)})"

    def told(name: str) -> str:
        return ", ".join(f"{each} {units.human('_s', value)}" for each, value in more[f"{name}_percentiles"].items())

    return [
        ("time to first token", str(found.ttft_s), f"mean; {told('ttft_s')}; {units.human('_s', found.queue_s)} of it waiting to start"),
        ("time per token", str(found.tpot_s) if decodes else "-", f"mean; {told('tpot_s')}" if decodes else "requests have one token each"),
        ("latency", str(found.total_s), "mean, from a request to its last token; in brackets 80 % intervals"),
        ("throughput", f"{rate(found.output_tokens_per_s)} tokens/s", f"output tokens; {rate(found.output_tokens_per_s_per_gpu)} a GPU"),
        ("per user", f"{rate(found.output_tokens_per_s_per_user)} tokens/s" if decodes else "-", "once the first token is there"),
    ]  # fmt: skip


def _headline(found: LoadPrediction) -> Grid:
    more = found.serving()
    share = f"{100 * more['prefill_time_fraction']:.0f} %"
    used = f"{_bytes(found.memory.total_bytes)} of {_bytes(found.memory.capacity_bytes)}"
    rows = [
        *seen_by_users(found),
        ("running", f"{more['mean_running_requests']:.1f} of {found.concurrency:,}", "requests that decode, on average over time"),
        ("prompts", share, f"of the time in steps with prompts; {more['token_budget']:,} tokens each"),
        ("memory", used, "a GPU" if found.model.is_encoder else f"a GPU; cache for {more['kv_cache_tokens']:,} tokens"),
        ("fits", "yes" if found.fits else "no", f"{found.node or found.gpu.id}, {found.engine}{other_choices(found.memory)}"),
        ("basis", found.basis, f"the weakest; {basis_words(found.basis_shares)}"),
        *([("profile", found.profile.id, found.profile.words)] if found.profile else []),
    ]  # fmt: skip
    return Grid(columns=("what", "value", "meaning"), rows=rows, right=frozenset({"value"}), spare=("meaning",), wraps="meaning")


def where(breakdown: Sequence[Part], every: bool) -> Grid:
    parts = [part for part in breakdown if part.time.median > 0 or part.call is None]
    shown = parts if every else sorted(parts, key=lambda part: -part.time.median)[:MOST_SHOWN]
    columns = FULL if every else BRIEF
    rows = [tuple(_line(part)[name] for name in columns) for part in shown]
    if rest := [part for part in parts if part not in shown]:
        seconds, share = sum(part.time.median for part in rest), sum(part.share_fraction for part in rest)
        rows.append(("", f"{len(rest)} more", units.human("_s", seconds), f"{100 * share:.1f} %", ""))
    return Grid(
        title="Where the time goes (busy time per request)", columns=columns, rows=rows,
        right=frozenset({"time", "share", "launches", "bound", "efficiency"}), spare=("basis", "bound", "kernel"),
    )  # fmt: skip


def _line(part: Part) -> dict[str, str]:
    return {
        "phase": part.phase, "part": part.name, "launches": str(part.launches_per_step) if part.call else "-",
        "time": units.human("_s", part.time.median), "share": f"{100 * part.share_fraction:.1f} %",
        "bound by": part.bound_by, "bound": units.human("_s", part.bound_s) if part.call else "-",
        "efficiency": f"{100 * part.efficiency:.0f} %" if part.efficiency else "-", "basis": part.basis,
        "kernel": " ".join(filter(None, (part.family, part.identity))) if part.call else "",
    }  # fmt: skip


def _bytes(value: float) -> str:
    return units.human("_bytes", value)
