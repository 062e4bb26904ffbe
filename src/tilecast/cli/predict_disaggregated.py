"""`tilecast predict --disaggregated 2P1D --concurrency N`: prefill and decode on workers of their own."""

from pathlib import Path
from typing import Any

from tilecast import hardware, units
from tilecast.cli.files import write_whole
from tilecast.cli.fitting import misfit, other_choices
from tilecast.cli.output import say
from tilecast.cli.predict_load import seen_by_users, where, write_timeline
from tilecast.cli.ranges import numbers
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report, versions
from tilecast.serving.disaggregated import DisaggregatedPrediction, Workers, predict_disaggregated
from tilecast.workloads.aggregate import basis_words

COVERED = "intervals are of the steps' times, of routing by turns, users in step and polled handshakes"
SATURATED = 0.9  # busy for more of the time: others wait for it


def workers_of(given: dict[str, Any], concurrency: str | None) -> tuple[dict[str, Any], list[str]]:
    """What was given but for the numbers of workers, and these."""
    layout = given["disaggregated"]
    if layout is None:
        shapes = (name for name, value in given.items() if name.startswith(("prefill_", "decode_")) and value is not None)
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in shapes)
        raise InvalidInput(f"{flags} lays out workers of --disaggregated, such as --disaggregated 2P1D")
    if concurrency is None:
        raise InvalidInput("--disaggregated serves a load: give --concurrency N")
    if given["pp"] != 1:
        raise InvalidInput("--disaggregated and --pp exclude one another: workers apart are predicted without pipeline stages")
    rest = {name: value for name, value in given.items() if name not in ("disaggregated", "pp")}
    return rest, [each.strip() for each in layout.split(",")]


def report_of(
    model: str, gpu: str, *, workers: str, concurrency: str, requests: list[tuple[int, int]] | None, overrides: dict[str, str], line: str,
    breakdown: bool, why: bool, page: Path | None, timeline: Path | None, **given: Any,
) -> Report:  # fmt: skip
    """The report, and its page and its timeline where one was asked for."""
    (users,), (tp, *_) = numbers("--concurrency", concurrency), numbers("--tp", given.pop("tp"))
    given.pop("batch")
    if note := hardware.resolution_note(gpu):
        say(note)
    asked = {"disaggregated": workers, "tp": tp, "concurrency": users, **given, "requests": requests, "overrides": overrides or None}
    found = predict_disaggregated(model, gpu, **asked)
    for warning in found.warnings:
        say(warning)
    default = {"engine": "sglang", "tp": 1, "ep": 1, "dp_attention": 1, "allow_longer_context": False}
    said = {name: value for name, value in asked.items() if value is not None and value != default.get(name)}
    arguments = "".join(f", {name}={value!r}" for name, value in said.items())
    payload = {**found.to_dict(), "versions": versions()}
    grids, closing, explained, reasons = [_headline(found), where(found.breakdown, breakdown)], _balance(found), None, None
    python = f"import tilecast\ntilecast.predict_disaggregated({model!r}, gpu={gpu!r}{arguments})"
    if why:
        from tilecast.cli import predict_why
        from tilecast.diagnosis.what_if_load import why_disaggregated

        reasons = why_disaggregated(found, {"model": model, "gpu": gpu, **asked})
        explained = predict_why.load_grids(reasons)
        grids += explained
        payload["why"], closing = reasons.to_dict(), f"{closing} {reasons.sentence}"
        imported = "import tilecast\nfrom tilecast.diagnosis.what_if_load import why_disaggregated"
        python = (
            f"{imported}\nasked = dict(model={model!r}, gpu={gpu!r}{arguments})\n"
            "why_disaggregated(tilecast.predict_disaggregated(**asked), asked)"
        )
    report = Report(
        answer=_answer(found),
        grids=grids,
        closing=closing,
        payload=payload,
        records=[part.to_dict() for part in found.breakdown]
        if breakdown
        else [{name: value for name, value in payload.items() if name not in ("schema", "breakdown")}],
        inputs=found.inputs,
        python=python,
        command=line,
    )
    if page is not None:
        from tilecast.report.load_figures import load_figures
        from tilecast.report.renderers import load_html

        payload["figures"] = load_figures(found, {"model": model, "gpu": gpu, **asked})
        write_whole("--html", page, load_html.page(report, explained[0] if explained else None, reasons.to_dict() if reasons else None))
    write_timeline(found, timeline, line)
    return report


def _answer(found: DisaggregatedPrediction) -> str:
    where = f"{found.num_gpus} x {found.gpu.label} under {found.engine}"
    kinds = f"{_plural(found.prefill.number, 'prefill worker')} and {_plural(found.decode.number, 'decode worker')}"
    tokens = f", then {units.human('_s', found.tpot_s.median)} a token" if found.decode_steps else ""
    return (
        f"{found.model.name} on {where}, {kinds}, serves {_plural(found.concurrency, 'user')} with a first token after "
        f"{units.human('_s', found.ttft_s.median)}{tokens}: "
        f"{units.significant(found.output_tokens_per_s_per_gpu.median)} tokens/s a GPU{misfit(found.memory)}."
    )


def _balance(found: DisaggregatedPrediction) -> str:
    """Which kind of worker the other waits for."""
    busy = f"Prefill workers are busy {100 * found.busy_fraction('prefill'):.0f} % of the time"
    if found.busy_fraction("prefill") > SATURATED:
        return f"{busy}: they set the pace, and more of them would raise the throughput."
    if found.room_s > found.ttft_s.median / 2:
        waiting = f"{units.human('_s', found.room_s)} of the first token is waiting for room to decode"
        return f"{busy}, and {waiting}: more decode workers would raise the throughput."
    number = found.prefill.number
    spare = number > 1 and found.busy_fraction("prefill") * number / (number - 1) < SATURATED
    return f"{busy}: decoding sets the pace{', and fewer of them would do' if spare else ''}."


def _headline(found: DisaggregatedPrediction) -> Grid:
    more, decodes = found.serving(), found.decode_steps > 0
    first_token, *others = seen_by_users(found)
    sent = f"mean; {units.human('_bytes', more['kv_transfer_bytes_per_gpu'])} a GPU and prompt at most, over {found.link.kind}"
    rows = [
        first_token,
        ("KV transfer", str(found.transfer_s) if decodes else "-", sent if decodes else "requests have one token each"),
        *others,
        ("prefill workers", *_workers(found, "prefill", found.prefill)),
        ("decode workers", *_workers(found, "decode", found.decode)),
        ("fits", "yes" if found.fits else "no", f"{found.node}, {found.engine}{other_choices(found.memory)}"),
        ("basis", found.basis, f"the weakest; {basis_words(found.basis_shares)}; {COVERED}"),
        *([("profile", found.profile.id, found.profile.words)] if found.profile else []),
    ]  # fmt: skip
    return Grid(columns=("what", "value", "meaning"), rows=rows, right=frozenset({"value"}), spare=("meaning",), wraps="meaning")


def _workers(found: DisaggregatedPrediction, kind: str, workers: Workers) -> tuple[str, str]:
    shard, memory = workers.found.shard, found.memories[kind]
    split = "".join(f", {name} {value}" for name, value in (("ep", shard.ep), ("dp attention", shard.dp)) if value > 1)
    used = f"{units.human('_bytes', memory.total_bytes)} of {units.human('_bytes', memory.capacity_bytes)} a GPU"
    return f"{workers.number} x tp {shard.tp}", f"busy {100 * found.busy_fraction(kind):.0f} % of the time; {used}{split}"


def _plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number > 1 else ''}"
