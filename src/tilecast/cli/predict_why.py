"""What `tilecast predict --why` prints: levers that were moved and priced again, and what the batch does."""

from tilecast import units
from tilecast.diagnosis.what_if import Lever, Why
from tilecast.engines.many import Outcome
from tilecast.report import Grid


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


def _lever(lever: Lever) -> tuple[str, ...]:
    saved = (lever.total_saved_fraction, lever.prefill_saved_fraction, lever.decode_saved_fraction)
    needed = f"{lever.needed_factor:.2f}x" if lever.needed_factor is not None else "out of reach"
    return lever.name, lever.change, units.human("_s", lever.total_s), *(f"{100 * part:.1f} %" for part in saved), needed


def _batch(outcome: Outcome) -> tuple[str, ...]:
    steps = outcome.decode_steps
    return (
        str(outcome.batch), units.human("_s", outcome.ttft_s.median), units.human("_s", outcome.tpot_s.median) if steps else "-",
        units.human("_s", outcome.total_s.median), units.significant(outcome.output_tokens_per_s.median),
        units.significant(outcome.output_tokens_per_s_per_user.median) if steps else "-", "yes" if outcome.fits else "no",
    )  # fmt: skip
