"""`tilecast predict --disaggregated 2P1D --concurrency N`: prefill and decode on workers of their own."""

from pathlib import Path
from typing import Any

from tilecast import units
from tilecast.cli.fitting import misfit, other_choices
from tilecast.cli.predict_load import asked_of, seen_by_users, served_report
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report
from tilecast.serving.disaggregated import DisaggregatedPrediction, predict_disaggregated
from tilecast.serving.workers import Workers
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
    asked = asked_of(model, gpu, concurrency, requests, overrides, given, disaggregated=workers)
    found = predict_disaggregated(**asked)
    reasons = None
    if why:
        from tilecast.diagnosis.what_if_load import why_disaggregated

        reasons = why_disaggregated(found, asked)
    return served_report(
        found, asked, kind="disaggregated", answer=_answer(found), headline=_headline(found), closing=_balance(found), reasons=reasons,
        line=line, breakdown=breakdown, why=why, page=page, timeline=timeline,
    )  # fmt: skip


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
