"""`tilecast trust FAMILY --gpu ID`: how far to trust predictions of exactly that family on exactly that GPU."""

import click

from tilecast import hardware
from tilecast.cli.output import command_line, emit, output_options, say
from tilecast.errors import MissingData, UnknownName
from tilecast.kernels.registry import kernels
from tilecast.learning.correction import SAME_DIE, Correction, load
from tilecast.learning.features import SIZES
from tilecast.learning.tensors import ADVICE
from tilecast.report import Grid, Report, versions

MOST_KERNELS = 4  # in a sentence
OF_WHAT = "Of what is learned, before the law of doubling moves a median (kernel --explain shows both)"
MEANING = {
    "interpolated": "shapes held out, this GPU's other shapes known",
    "same-die": "this GPU held out, another of its die known",
    "unseen-gpu": "this GPU and its same-die siblings held out",
    "unseen-generation": "every GPU of this architecture held out",
}


@click.command(name="trust")
@click.argument("family")
@click.option("--gpu", required=True, help="Catalogue id, device string, or the path of a TOML file.")
@output_options
def command(family: str, gpu: str, **output: bool) -> None:
    """The measured accuracy of one family on one GPU, from the shipped manifest."""
    if family not in kernels():
        raise UnknownName.among("family", family, kernels())
    if note := hardware.resolution_note(gpu):
        say(note)
    try:
        told = report(family, hardware.gpu(gpu), gpu)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise MissingData(f"{family}.json is damaged ({problem}): {ADVICE}") from None
    emit(told, **output)


def report(family: str, gpu: hardware.GpuSpec, asked: str) -> Report:
    correction = load(family)
    line = command_line("trust", family, gpu=asked)
    python = f"from tilecast.learning.correction import load\nload({family!r}).manifest"
    if correction is None:
        why = f"the weights of {family} are missing ({ADVICE})" if family in SIZES else f"{family} has no learned correction"
        answer = f"{why}: predictions on {gpu.id} are physics alone (basis analytic)."
        python = f"from tilecast.learning.correction import load\nload({family!r})  # None: nothing is learned of it"
        payload = {"family": family, "gpu": gpu.id, "basis": "analytic", "scores": {}, "versions": versions()}
        return Report(answer=answer, payload=payload, records=[payload], python=python, command=line)
    kernels_here = sorted(correction.measured.get(gpu.id, ()))
    scores = {basis: table[gpu.id] for basis, table in correction.manifest["scores"].items() if gpu.id in table}
    num_rows = correction.manifest["rows_per_gpu"].get(gpu.id, 0)
    seen = gpu.id in correction.gpus
    basis = "interpolated" if seen else "unseen-gpu" if gpu.arch in correction.archs else "unseen-generation"
    relatives = _relatives(correction, gpu)
    others = correction.manifest["scores"][SAME_DIE if relatives else basis]
    if seen and "interpolated" in scores:
        error = f"{scores['interpolated']:.1f} %"
        answer = (
            f"On held-out shapes, {family} on {gpu.id} is off by {error} on average ({num_rows:,} measured rows: {_shown(kernels_here)})."
        )
    elif seen:
        answer = f"{family} on {gpu.id} has {num_rows:,} measured rows, too few to hold any out: its accuracy is not known."
    elif basis in scores:  # it was measured, but throttled
        answer = (
            f"{family} on {gpu.id} is off by {scores[basis]:.1f} % on average, by what other GPUs teach: it throttled during all of its "
            f"{num_rows:,} measured rows, so that they teach nothing ({basis})."
        )
    elif not others:
        answer = f"{gpu.id} has no {family} rows ({basis}), and no GPU could be held out like it: its accuracy is not known."
    else:
        mean = sum(others.values()) / len(others)
        span = f"{min(others.values()):.0f} to {max(others.values()):.0f} %"
        like_it = f"{gpu.id} has no {family} rows ({basis}{f', {relatives[0]} stands in' if relatives else ''})"
        answer = f"{like_it}: GPUs held out like it were off by {mean:.1f} % on average ({span})."
    rows = [(kind, f"{score:.1f} %", MEANING[kind]) for kind, score in scores.items()]
    payload = {
        "family": family,
        "gpu": gpu.id,
        "rows": num_rows,
        "kernels": kernels_here,
        "scores": scores,
        "of": "learned_s",
        "all": correction.manifest["scores"],
        "artifact": correction.digest,
        "date": correction.manifest["date"],
        "versions": versions(),
    }
    columns = ("held out like", "mean error", "what was held out")
    grids = [Grid(title=OF_WHAT, columns=columns, rows=rows, right=frozenset({"mean error"}))] if rows else []
    return Report(
        answer=answer,
        grids=grids,
        payload=payload,
        records=[{"basis": b, "mape": s} for b, s in scores.items()],
        python=python,
        command=line,
    )


def _shown(names: list[str]) -> str:
    """Of number format and identity; a kernel that is not among them has another basis."""
    words = [name.replace("None", "unnamed") for name in names]
    return ", ".join(words[:MOST_KERNELS]) + (f" and {len(names) - MOST_KERNELS} more" if len(names) > MOST_KERNELS else "")


def _relatives(correction: Correction, gpu: hardware.GpuSpec) -> list[str]:
    """The measured GPUs of the same die that speak for this one, the one that does for most kernels first; none where it was measured."""
    kernels_measured = {key for measured in correction.measured.values() for key in measured}
    found = [name for key in kernels_measured if (name := correction.stand_in(gpu, key)) is not None]
    return sorted(set(found) - {gpu.id}, key=lambda name: (-found.count(name), name)) if gpu.id not in correction.gpus else []
