"""`tilecast step MODEL`: how long one forward pass or one training step of a PyTorch model takes."""

from typing import Any

import click

from tilecast import hardware, units
from tilecast.cli.files import target, write_whole
from tilecast.cli.output import command_line, emit, output_options, overrides_from, profile_option, refuse_as_python, say, set_option
from tilecast.engines.step import predict_step
from tilecast.engines.step_parts import StepPart, StepPrediction
from tilecast.errors import InvalidInput
from tilecast.report import Grid, Report, versions

BAR_WIDTH = 24
MOST_SHOWN = 8


@click.command(name="step")
@click.argument("model")
@click.option("--gpu", required=True, help="Catalogue id, device string, or the path of a TOML file.")
@click.option("--mode", type=click.Choice(["inference", "training"]), help="[default: inference; of a traced graph: its own]")
@click.option("--batch", type=int, help="Texts in the batch, all micro-batches together.")
@click.option("--seq", type=int, help="Tokens of each text; of an encoder-decoder, both lengths.")
@click.option("--dtype", help="fp32 (TF32 off), tf32, bf16, fp16, or amp: autocast to bf16 [default: fp32; of a traced graph: its own].")
@click.option(
    "--runtime", default="eager", show_default=True, help="How PyTorch runs it: eager, compiled, or compiled-2.1, as PyTorch 2.1 did."
)
@click.option("--attention", help="eager (three operators) or sdpa, flash (one kernel) [default: eager; MPT: flash].")
@click.option("--dp", type=int, default=1, show_default=True, help="Replicas: each takes a part of the batch, gradients are added.")
@click.option(
    "--fsdp", is_flag=False, flag_value="dp", default="1", help="Ranks that shard weights, gradients and states; alone: those of --dp."
)
@click.option("--tp", type=int, default=1, show_default=True, help="GPUs that share every layer.")
@click.option("--pp", type=int, default=1, show_default=True, help="Stages, each with a part of the layers.")
@click.option("--ep", type=int, default=1, show_default=True, help="Data-parallel ranks among which experts are divided.")
@click.option("--micro-batches", type=int, default=1, show_default=True, help="Parts of the batch whose gradients are added up.")
@click.option("--zero", type=int, default=0, show_default=True, help="What --dp ranks divide: 1 optimizer states, 2 gradients too.")
@click.option(
    "--overlap-gather/--no-overlap-gather",
    default=None,
    help="With --zero: updated weights are gathered during the next step's first pass [default], or all at once behind the optimizer.",
)
@click.option("--sequence-parallel", is_flag=True, help="With --tp: norms and residuals are divided by tokens.")
@click.option("--schedule", default="1f1b", show_default=True, help="Of stages: 1f1b, gpipe or interleaved.")
@click.option("--virtual-stages", type=int, default=1, show_default=True, help="Groups of layers per GPU, interleaved.")
@click.option("--recompute", is_flag=True, help="Activation checkpointing: layers run forward again in the backward pass.")
@click.option("--recompute-attention", is_flag=True, help="The same for the inside of attention alone: Megatron's selective recomputation.")
@click.option("--node", help="The box the GPUs stand in [default: the catalogue's for this GPU].")
@click.option("--network", help="Rate of one GPU's network adapter, such as 25GB/s, where the box names none.")
@click.option("--optimizer", help="adamw [default], adam or sgd; with -fused, -foreach or -per-tensor behind it.")
@click.option("--master-weights", is_flag=True, help="The optimizer keeps an fp32 copy of weights of 16 bits, and fp32 states.")
@click.option("--fp32-gradients", is_flag=True, help="With --master-weights: gradients are added up in fp32, as Megatron does for bf16.")
@click.option("--no-optimizer", is_flag=True, help="Forward and backward alone: gradients are added to those that are there.")
@click.option("--breakdown", is_flag=True, help="Every operator: launches, time, share, bound, basis.")
@click.option("--trace", "trace_path", metavar="FILE.json", help="Also write a timeline for ui.perfetto.dev or chrome://tracing.")
@set_option
@profile_option
@output_options
def command(
    model: str, gpu: str, assignments: tuple[str, ...], optimizer: str | None, no_optimizer: bool, breakdown: bool, fsdp: str,
    network: str | None, trace_path: str | None, as_json: bool, as_csv: bool, as_python: bool, **given: Any,
) -> None:  # fmt: skip
    """Predict one forward pass, or forward, backward and optimizer, on one GPU or many: dp x fsdp x tp x pp of them.

    MODEL is a bundled id (BERT-Large, GPT2-Large, GPT3-XL, GPT3-2.7B, OPT-1.3B, Switch-XL-4, mosaicml/mpt-7b ...), one that predict knows,
    a config.json or its folder (extra torch), or NAME.graph.json, what `tilecast.trace(...).save` wrote.
    """
    given |= _shards(fsdp, given["dp"])
    if given.pop("recompute_attention"):
        if given["recompute"]:
            raise InvalidInput("--recompute and --recompute-attention exclude one another")
        given["recompute"] = "selective"
    if (overlaps := given.pop("overlap_gather")) is not None:
        if overlaps and not given["zero"]:
            raise InvalidInput("--overlap-gather is for --dp with --zero 1 or 2: otherwise every GPU updates all its weights")
        given["overlap_gather"] = overlaps
    if network is not None:
        given["network_bytes_per_s"] = units.parse("network_bytes_per_s", network)
    timeline = target("--trace", trace_path, (".json",), reads=(model, given["profile"]))
    if optimizer and no_optimizer:
        raise InvalidInput("--optimizer and --no-optimizer exclude one another")
    rule = None if no_optimizer else optimizer or "adamw"
    overrides = overrides_from(assignments)
    if note := hardware.resolution_note(gpu):
        say(note)
    usual = dict.fromkeys(("dp", "fsdp", "tp", "pp", "ep", "micro_batches", "virtual_stages"), 1) | {"zero": 0, "schedule": "1f1b"}
    said = {name: value for name, value in given.items() if value not in (None, False) and (name not in usual or value != usual[name])}
    said |= {"overlap_gather": False} if overlaps is False else {}
    asked = {name: value for name, value in said.items() if name != "network_bytes_per_s"}
    if asked.get("recompute") == "selective":
        asked["recompute_attention"] = bool(asked.pop("recompute"))
    if asked.get("overlap_gather") is False:
        asked["no_overlap_gather"] = True
    line = command_line(
        "step", model, gpu=gpu, **asked, network=network, optimizer=optimizer, no_optimizer=no_optimizer, set=assignments,
        breakdown=breakdown, trace=trace_path,
    )  # fmt: skip
    arguments = {**said, **({"optimizer": rule} if rule != "adamw" else {}), **({"overrides": overrides} if overrides else {})}
    python = f"import tilecast\ntilecast.step({model!r}, {gpu!r}{''.join(f', {name}={value!r}' for name, value in arguments.items())})"
    if as_python:
        refuse_as_python(trace=trace_path)
        emit(Report(answer="", python=python), as_json=as_json, as_csv=as_csv, as_python=as_python)
        return
    found = predict_step(model, gpu, optimizer=rule, overrides=overrides, draw=timeline is not None, **given)
    if optimizer and found.inputs["mode"] == "inference":
        raise InvalidInput(f"--optimizer {optimizer} is for training: an inference pass updates nothing")
    for text in found.notes:
        say(text)
    if timeline is not None:
        from tilecast.report.renderers import chrome_trace

        write_whole("--trace", timeline, chrome_trace.step_text(found, line))
    emit(step_report(found, line, python, breakdown), as_json=as_json, as_csv=as_csv, as_python=as_python)


def _shards(fsdp: str, dp: int) -> dict[str, int]:
    """`--fsdp 8` shards over 8 ranks of each replica; `--dp 8 --fsdp` shards what would be replicas."""
    if fsdp == "dp" and dp > 1:
        return {"dp": 1, "fsdp": dp}
    if not (fsdp.isascii() and fsdp.isdecimal()):
        given = "without a number" if fsdp == "dp" else repr(fsdp)
        raise InvalidInput(f"--fsdp {given} must be a whole number of ranks, or stand alone behind --dp of two and more")
    return {"fsdp": int(fsdp)}


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
    where = found.gpu.label if found.num_gpus == 1 else f"{found.num_gpus:,} x {found.gpu.label}"
    return f"{found.graph.name} on {where}: {what}{size} takes {step} in {inputs['dtype']}, {100 * found.mfu:.0f} % MFU{room}."


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
        *([("communication", str(found.communication_s), f"that nothing hides, part of {_named(found)}")] if found.num_gpus > 1 else []),
        ("step", str(found.step_s), f"of which the GPU waits {units.human('_s', found.host_wait_s)} for the host"),
        *_rate(found),
        ("MFU", f"{100 * found.mfu:.1f} %", "model FLOP, masked pairs too, without recomputation, over the dense peak"),
        ("memory", f"{size(memory.total_bytes)} of {size(memory.capacity_bytes)}", held + more),
        ("fits", "yes" if found.fits else "no", found.gpu.id),
        ("basis", found.basis, "what the weakest part rests on; in brackets the 80 % interval"),
        *(
            [("profile", profile["id"], f"measured on {profile['gpu']}, {profile['date']}")]
            if (profile := found.inputs.get("profile"))
            else []
        ),
    ]
    return Grid(columns=("what", "value", "meaning"), rows=rows, right=frozenset({"value"}), spare=("meaning",))


def _named(found: StepPrediction) -> str:
    """The phases that wait for messages, and how long."""
    open_s = {phase: seconds for phase, seconds in found.exposed_s.items() if seconds > 0}
    return ", ".join(f"{phase} ({units.human('_s', seconds)})" for phase, seconds in open_s.items()) or "the above"


def _rate(found: StepPrediction) -> list[tuple[str, str, str]]:
    batch, seq = found.inputs["batch"], found.inputs["seq"]
    if not batch or not seq or found.num_gpus == 1:
        return []
    rate = batch * seq / found.step_s.median
    return [("tokens/s", f"{rate:,.0f}", f"{rate / found.num_gpus:,.0f} on each of {found.num_gpus:,} GPUs")]


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
