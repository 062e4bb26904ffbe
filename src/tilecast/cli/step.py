"""`tilecast step MODEL`: how long one forward pass or one training step of a PyTorch model takes."""

from typing import Any

import click

from tilecast import hardware, units
from tilecast.cli.output import command_line, emit, output_options, overrides_from, say, set_option
from tilecast.engines.step import StepPart, StepPrediction, predict_step
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report, versions

BAR_WIDTH = 24
MOST_SHOWN = 8
# Ways to split a step that nothing stands behind yet.
NOT_YET = ("dp", "fsdp", "tp", "pp")


def _not_yet(function: Any) -> Any:
    for name in NOT_YET:
        function = click.option(f"--{name}", name, type=int, default=1, hidden=True)(function)
    return function


@click.command(name="step")
@click.argument("model")
@click.option("--gpu", required=True, help="Catalogue id, device string, or the path of a TOML file.")
@click.option("--mode", type=click.Choice(["inference", "training"]), default="inference", show_default=True)
@click.option("--batch", type=int, help="Texts in the batch, all micro-batches together.")
@click.option("--seq", type=int, help="Tokens of each text; of an encoder-decoder, both lengths.")
@click.option("--dtype", default="fp32", show_default=True, help="fp32 (TF32 off), tf32, bf16, fp16, or amp: autocast to bf16.")
@click.option("--runtime", default="eager", show_default=True, help="How PyTorch runs it.")
@click.option("--attention", help="eager (three operators) or sdpa, flash (one kernel) [default: eager; MPT: flash].")
@click.option("--micro-batches", type=int, default=1, show_default=True, help="Parts of the batch whose gradients are added up.")
@click.option("--recompute", is_flag=True, help="Activation checkpointing: layers run forward again in the backward pass.")
@click.option("--optimizer", help="adamw [default], adam or sgd; with -fused, -foreach or -per-tensor behind it.")
@click.option("--no-optimizer", is_flag=True, help="Forward and backward alone: gradients are added to those that are there.")
@click.option("--breakdown", is_flag=True, help="Every operator: launches, time, share, bound, basis.")
@set_option
@output_options
@_not_yet
def command(
    model: str, gpu: str, assignments: tuple[str, ...], optimizer: str | None, no_optimizer: bool, breakdown: bool,
    as_json: bool, as_csv: bool, as_python: bool, **given: Any,
) -> None:  # fmt: skip
    """Predict one forward pass, or forward, backward and optimizer, on one GPU.

    MODEL is a bundled id (BERT-Large, GPT2-Large, GPT3-XL, GPT3-2.7B, OPT-1.3B, Switch-XL-4, mosaicml/mpt-7b ...), a config.json or its
    folder (extra torch), or NAME.graph.json, what `tilecast.trace(...).save` wrote.
    """
    for name in NOT_YET:
        if (value := given.pop(name)) != 1:
            raise InvalidInput(f"--{name} {value} is not supported yet: one GPU is")
    if optimizer and no_optimizer:
        raise InvalidInput("--optimizer and --no-optimizer exclude one another")
    rule = None if no_optimizer else optimizer or "adamw"
    overrides = overrides_from(assignments)
    if note := hardware.resolution_note(gpu):
        say(note)
    said = {name: value for name, value in given.items() if value not in (None, False) and (name, value) != ("micro_batches", 1)}
    line = command_line(
        "step", model, gpu=gpu, **said, optimizer=optimizer, no_optimizer=no_optimizer, set=assignments, breakdown=breakdown
    )
    arguments = {**said, **({"optimizer": rule} if rule != "adamw" else {}), **({"overrides": overrides} if overrides else {})}
    python = f"import tilecast\ntilecast.step({model!r}, {gpu!r}{''.join(f', {name}={value!r}' for name, value in arguments.items())})"
    if as_python:
        emit(Report(answer="", python=python), as_json=as_json, as_csv=as_csv, as_python=as_python)
        return
    found = predict_step(model, gpu, optimizer=rule, overrides=overrides, **given)
    for text in found.notes:
        say(text)
    emit(step_report(found, line, python, breakdown), as_json=as_json, as_csv=as_csv, as_python=as_python)


def step_report(found: StepPrediction, line: str, python: str, breakdown: bool = False) -> Report:
    payload = {**found.to_dict(), "versions": versions()}
    phases = dict.fromkeys(part.phase for part in found.breakdown)
    grids = [_headline(found), *(_where(found, phase, breakdown) for phase in phases)]
    flat = {name: value for name, value in payload.items() if name not in ("schema", "breakdown")}
    return Report(
        answer=_answer(found),
        grids=[grid for grid in grids if grid.rows],
        closing=_unknown(found),
        payload=payload,
        records=[part.to_dict() for part in found.breakdown] if breakdown else [flat],
        inputs=found.inputs,
        python=python,
        command=line,
    )


def _answer(found: StepPrediction) -> str:
    step, inputs = units.human("_s", found.step_s.median), found.inputs
    what = "a training step" if inputs["mode"] == "training" else "a forward pass"
    size = f" of {inputs['batch']} x {inputs['seq']:,} tokens" if inputs["batch"] and inputs["seq"] else ""
    missing = found.memory.total_bytes - found.memory.capacity_bytes
    room = "" if found.fits else f"; it does not fit, by {units.human('_bytes', missing)}"
    return (
        f"{found.graph.name} on {found.gpu.label}: {what}{size} takes {step} in {inputs['dtype']}, {100 * found.mfu:.0f} % of peak{room}."
    )


def _headline(found: StepPrediction) -> Grid:
    memory = found.memory
    training = found.inputs["mode"] == "training"

    def size(value: int) -> str:
        return units.human("_bytes", value)

    held = f"weights {size(memory.weights_bytes)}, activations {size(memory.activations_bytes)}"
    more = f", gradients {size(memory.gradients_bytes)}, optimizer {size(memory.optimizer_bytes)}" if training else ""
    rows = [
        ("forward", str(found.forward_s), "with the loss" if training else "the whole pass"),
        *([("backward", str(found.backward_s), "from the joint graph of autograd")] if training else []),
        *([("optimizer", str(found.optimizer_s), str(found.inputs["optimizer"]))] if found.optimizer_s.median else []),
        ("step", str(found.step_s), f"of which the GPU waits {units.human('_s', found.host_wait_s)} for the host"),
        ("MFU", f"{100 * found.mfu:.1f} %", "model FLOP, without recomputation, over the dense peak"),
        ("memory", f"{size(memory.total_bytes)} of {size(memory.capacity_bytes)}", held + more),
        ("fits", "yes" if found.fits else "no", found.gpu.id),
        ("basis", found.basis, "what the weakest part rests on; in brackets the 80 % interval"),
    ]
    return Grid(columns=("what", "value", "meaning"), rows=rows, right=frozenset({"value"}), spare=("meaning",))


def _where(found: StepPrediction, phase: str, every: bool) -> Grid:
    parts = [part for part in found.breakdown if part.phase == phase]
    shown = parts if every else parts[:MOST_SHOWN]
    rows = [_line(part) for part in shown]
    if rest := parts[len(shown) :]:
        seconds, share = sum(part.time.median for part in rest), sum(part.share_fraction for part in rest)
        rows.append(
            (f"{len(rest)} more", units.human("_s", seconds), f"{100 * share:.1f} %", "█" * round(BAR_WIDTH * share), "", "", "", "")
        )
    columns = ("operator", "time", "share", "", "launches", "bound by", "basis", "kernel")
    return Grid(
        title=f"Where the {phase} goes", columns=columns, rows=rows, right=frozenset({"time", "share", "launches"}),
        spare=("kernel", "basis", "launches", ""),
    )  # fmt: skip


def _line(part: StepPart) -> tuple[str, ...]:
    return (
        part.name, units.human("_s", part.time.median), f"{100 * part.share_fraction:.1f} %", "█" * round(BAR_WIDTH * part.share_fraction),
        f"{part.launches:,}" if part.launches else "-", part.bound_by, part.basis, part.family if part.modelled else "by its bytes alone",
    )  # fmt: skip


def _unknown(found: StepPrediction) -> str:
    if not found.unmodelled:
        return ""
    listed = ", ".join(f"{name} {100 * share:.2f} %" for name, share in list(found.unmodelled.items())[:6])
    return f"Priced by their bytes alone: {listed} of the step."
