"""`tilecast support MODEL --gpu ID`: which kernels of the model rest on which data, with which basis."""

from typing import Any

import click

from tilecast import hardware
from tilecast.cli.output import command_line, emit, output_options, profile_option, say
from tilecast.diagnosis.support import Support, by_basis, support
from tilecast.engines.breakdown import HOST
from tilecast.engines.predict import Prediction, predict
from tilecast.learning.correction import load
from tilecast.report import Grid, Report, versions

MEANING = {
    "interpolated": "measured on this GPU, at such sizes",
    "extrapolated-shape": "measured on this GPU, at other sizes",
    "unseen-gpu": "this kernel not measured on this GPU, but on its generation",
    "unseen-generation": "not measured on any GPU of this generation",
    "analytic": "physics alone, with fitted constants",
}

UNSAID = {
    "pp": 1,
    "ep": 1,
    "dp_attention": 1,
    "quant": None,
    "allow_longer_context": False,
    "profile": None,
}  # defaults that change nothing


@click.command(name="support")
@click.argument("model")
@click.option("--gpu", required=True, help="Catalogue id, device string, or the path of a TOML file.")
@click.option("--engine", default="sglang", show_default=True, help="Which engine serves the model.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallel: GPUs that share every layer.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline parallel: stages that hold runs of layers.")
@click.option("--ep", type=int, default=1, show_default=True, help="Expert parallel: ranks, of the tp GPUs, that hold whole experts.")
@click.option("--dp-attention", type=int, default=1, show_default=True, help="Data-parallel attention: groups, of the tp GPUs.")
@click.option("--batch", type=int, default=32, show_default=True, help="Requests: sizes decide whether data reach that far.")
@click.option("--isl", type=int, default=2048, show_default=True, help="Input tokens of each.")
@click.option("--osl", type=int, default=256, show_default=True, help="Output tokens of each.")
@click.option("--node", help="The box, as in `tilecast nodes`.")
@click.option("--quant", help="Weights: bf16, fp16, fp8, fp8_block, int8, int4, nvfp4 or mxfp4 [default: as the checkpoint says].")
@click.option("--kv-dtype", help="Of the KV cache: fp8, or the model's own [default].")
@click.option("--allow-longer-context", is_flag=True, help="Answer for lengths beyond the model's limit all the same.")
@profile_option
@output_options
def command(model: str, gpu: str, as_json: bool, as_csv: bool, as_python: bool, **given: Any) -> None:
    """Which data each kernel of a model rests on: GPU, engines, rows, sources, and how far such predictions were off."""
    if note := hardware.resolution_note(gpu):
        say(note)
    given = {name: value for name, value in given.items() if name not in UNSAID or value != UNSAID[name]}
    found = predict(model, gpu, **given)
    for warning in found.warnings:
        say(warning)
    line = command_line("support", model, gpu=gpu, **given)
    arguments = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
    python = (
        f"import tilecast\nfrom tilecast.diagnosis.support import support\nsupport(tilecast.predict({model!r}, gpu={gpu!r}{arguments}))"
    )
    emit(support_report(found, line, python), as_json=as_json, as_csv=as_csv, as_python=as_python)


def support_report(found: Prediction, line: str, python: str) -> Report:
    entries = support(found)
    shares = by_basis(entries)
    records = [entry.to_dict() for entry in entries]
    payload = {
        "schema": "tilecast.support/1", "basis": found.basis, "share_by_basis": shares, "kernels": records,
        "sources": sources_of(entries), "inputs": dict(found.inputs), "versions": versions(),
    }  # fmt: skip
    grids = [
        Grid(
            columns=("basis", "of the time", "meaning"), right=frozenset({"of the time"}),
            rows=[(basis, f"{100 * share:.1f} %", MEANING.get(basis, "")) for basis, share in shares.items()],
        ),
        Grid(
            title="Kernels",
            columns=("family", "kernel", "share", "basis", "mean error", "data of", "engines", "rows", "parts"),
            rows=[_row(entry, found) for entry in entries],
            right=frozenset({"share", "mean error", "rows"}),
            spare=("share", "basis", "data of", "mean error", "rows", "kernel", "engines", "parts"),
        ),
        _sources(entries),
    ]  # fmt: skip
    return Report(
        answer=_answer(found, shares),
        grids=[grid for grid in grids if grid.rows],
        payload=payload,
        records=records,
        inputs=found.inputs,
        python=python,
        command=line,
    )


def _answer(found: Prediction, shares: dict[str, float]) -> str:
    where = f"{found.tp} x {found.gpu.label}" if found.tp > 1 else found.gpu.label
    measured = sum(shares.get(basis, 0.0) for basis in ("interpolated", "extrapolated-shape"))
    near = sum(shares.get(basis, 0.0) for basis in ("unseen-gpu", "unseen-generation"))
    return (
        f"{100 * measured:.0f} % of the time of {found.model.name} on {where} is in kernels that were measured on {found.gpu.id}, "
        f"{100 * near:.0f} % in kernels known from other GPUs, {100 * shares.get('analytic', 0.0):.0f} % is physics alone."
    )


def _row(entry: Support, found: Prediction) -> tuple[str, ...]:
    if entry.artifact is None:
        data = "engine constants" if entry.family == HOST else "-"
    else:
        data = entry.data_gpu or "all GPUs"
        data += " (same die)" if entry.data_gpu not in (None, found.gpu.id) else ""
    error = f"{entry.mean_error_percent:.1f} %" if entry.mean_error_percent is not None else "-"
    kernel = "-" if entry.family == HOST else entry.kernel
    return (
        entry.family, kernel, f"{100 * entry.share_fraction:.1f} %", entry.basis, error, data, ", ".join(entry.engines) or "-",
        f"{entry.rows:,}" if entry.rows else "-", ", ".join(entry.parts),
    )  # fmt: skip


def sources_of(entries: tuple[Support, ...]) -> dict[str, list[dict[str, Any]]]:
    """Family -> where its rows come from, as its manifest says."""
    corrections = {entry.family: load(entry.family) for entry in entries if entry.artifact is not None}
    return {family: correction.manifest["sources"] for family, correction in corrections.items() if correction is not None}


def _sources(entries: tuple[Support, ...]) -> Grid:
    """A family's rows come from the same sources, whichever of its kernels is meant."""
    rows = [
        (family, source["name"], f"{source['rows']:,}", source["licence"], source["home"])
        for family, sources in sources_of(entries).items()
        for source in sources
    ]
    return Grid(
        title="Sources of the families that were learned", columns=("family", "source", "rows", "licence", "where"), rows=rows,
        right=frozenset({"rows"}), spare=("rows", "licence", "where"),
    )  # fmt: skip
