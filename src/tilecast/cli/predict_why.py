"""What `tilecast predict --why` prints: levers that were moved and priced again, and what the batch or the number of users does."""

from collections.abc import Sequence

from tilecast import units
from tilecast.diagnosis.what_if import Lever, Why
from tilecast.diagnosis.what_if_load import LoadWhy, gained_fraction
from tilecast.engines.many import Outcome
from tilecast.report import Grid
from tilecast.serving.outcome import LoadOutcome


def grids(found: Why) -> list[Grid]:
    levers = Grid(
        title="What would make it faster",
        columns=("lever", "change", "total", "saves", "of prefill", "of decode", "needed for 20 % faster"),
        rows=[_lever(lever) for lever in found.levers],
        right=frozenset({"total", "saves", "of prefill", "of decode", "needed for 20 % faster"}),
        spare=("needed for 20 % faster", "of decode", "of prefill", "total"),
    )
    batches = Grid(
        title="What the batch does",
        columns=("batch", "first token", "per token", "total", "tokens/s", "tokens/s/user", "fits"),
        rows=[_batch(outcome) for outcome in found.batches],
        right=frozenset({"batch", "first token", "per token", "total", "tokens/s", "tokens/s/user"}),
        spare=("tokens/s", "tokens/s/user"),
    )
    return [levers, *([batches] if found.batches else [])]


def load_grids(found: LoadWhy) -> list[Grid]:
    levers = Grid(
        title="What would make it faster",
        columns=("lever", "change", "latency", "saves", "of first token", "of time per token", "more tokens/s", "needed for 20 % faster"),
        rows=[(*_lever(lever)[:-1], f"{100 * gained_fraction(lever):.1f} %", _needed(lever)) for lever in found.levers],
        right=frozenset({"latency", "saves", "of first token", "of time per token", "more tokens/s", "needed for 20 % faster"}),
        spare=("needed for 20 % faster", "more tokens/s", "of time per token", "of first token", "latency"),
    )
    users = _served_grid("What the number of users does", "concurrency", [(str(each.concurrency), each) for each in found.concurrencies])
    if not found.workers:
        return [levers, users]
    workers = _served_grid("What another worker does", "workers", [(each.layout, each) for each in found.workers])
    return [levers, workers, users]


def _served_grid(title: str, what: str, rows: Sequence[tuple[str, LoadOutcome]]) -> Grid:
    told = ("first token", "of it waiting", "per token", "latency", "tokens/s", "tokens/s/GPU", "tokens/s/user")
    return Grid(
        title=title,
        columns=(what, *told, "fits"),
        rows=[(name, *_seen(outcome)) for name, outcome in rows],
        right=frozenset({*told, *(("concurrency",) if what == "concurrency" else ())}),
        spare=("tokens/s", "tokens/s/user", "of it waiting"),
    )


def _lever(lever: Lever) -> tuple[str, ...]:
    saved = (lever.total_saved_fraction, lever.first_saved_fraction, lever.rest_saved_fraction)
    return lever.name, lever.change, units.human("_s", lever.total_s), *(f"{100 * part:.1f} %" for part in saved), _needed(lever)


def _needed(lever: Lever) -> str:
    return f"{lever.needed_factor:.2f}x" if lever.needed_factor is not None else "out of reach"


def _seen(outcome: LoadOutcome) -> tuple[str, ...]:
    decodes = outcome.decode_steps > 0
    return (
        units.human("_s", outcome.ttft_s.median), units.human("_s", outcome.queue_s),
        units.human("_s", outcome.tpot_s.median) if decodes else "-", units.human("_s", outcome.total_s.median),
        units.significant(outcome.output_tokens_per_s.median), units.significant(outcome.output_tokens_per_s_per_gpu.median),
        units.significant(outcome.output_tokens_per_s_per_user.median) if decodes else "-", "yes" if outcome.fits else "no",
    )  # fmt: skip


def _batch(outcome: Outcome) -> tuple[str, ...]:
    steps = outcome.decode_steps
    return (
        str(outcome.batch), units.human("_s", outcome.ttft_s.median), units.human("_s", outcome.tpot_s.median) if steps else "-",
        units.human("_s", outcome.total_s.median), units.significant(outcome.output_tokens_per_s.median),
        units.significant(outcome.output_tokens_per_s_per_user.median) if steps else "-", "yes" if outcome.fits else "no",
    )  # fmt: skip
