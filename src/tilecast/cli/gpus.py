"""`tilecast gpus`: list the catalogue, show one GPU with its sources, compare several."""

from typing import Any

import click

from tilecast import hardware, units
from tilecast.cli.output import command_line, emit, output_options, overrides_from, say, set_option
from tilecast.errors import InvalidInput, UnknownName
from tilecast.hardware.spec import GpuSpec, human_fact
from tilecast.report import Grid, Report, versions


@click.group(name="gpus", invoke_without_command=True)
@click.option("--vendor", help="Only this vendor: nvidia, amd or intel.")
@click.option("--arch", help="Only this architecture, e.g. hopper.")
@click.option("--min-memory", metavar="SIZE", help="Only GPUs with at least this much memory, e.g. 80GB.")
@output_options
@click.pass_context
def command(ctx: click.Context, /, vendor: str | None, arch: str | None, min_memory: str | None, **output: bool) -> None:
    """List the catalogued GPUs; `show ID` and `compare ID ID ...` go deeper."""
    if ctx.invoked_subcommand is None:
        emit(list_report(vendor, arch, min_memory), **output)
    elif vendor or arch or min_memory or any(output.values()):
        raise InvalidInput(f"put options after the sub-command: 'tilecast gpus {ctx.invoked_subcommand} ... --json'")


@command.command()
@click.argument("gpu")
@set_option
@output_options
def show(gpu: str, assignments: tuple[str, ...], **output: bool) -> None:
    """Every fact of one GPU with its source; GPU is an id, a device string, or the path of a TOML file."""
    emit(show_report(gpu, overrides_from(assignments)), **output)


@command.command()
@click.argument("gpus", nargs=-1, required=True)
@set_option
@output_options
def compare(gpus: tuple[str, ...], assignments: tuple[str, ...], **output: bool) -> None:
    """Several GPUs side by side, each as a ratio to the first; --set changes the last one."""
    emit(compare_report(gpus, overrides_from(assignments)), **output)


# ---- reports -----------------------------------------------------------------------------------------------------


def list_report(vendor: str | None, arch: str | None, min_memory: str | None) -> Report:
    specs = list(hardware.gpus())
    chosen = specs
    for name, value in (("vendor", vendor), ("arch", arch)):
        if value is not None:
            known = {getattr(spec, name) for spec in specs}
            if value.lower() not in known:
                raise UnknownName.among({"arch": "architecture"}.get(name, name), value, known)
            chosen = [spec for spec in chosen if getattr(spec, name) == value.lower()]
    if min_memory is not None:
        least_bytes = _memory(min_memory)
        chosen = [spec for spec in chosen if spec.dram_bytes >= least_bytes]
    grid = Grid(
        columns=("id", "arch", "SMs", "memory", "bandwidth", "16-bit dense", "fp8 dense", "fp32", "L2", "TDP", "link", "name"),
        right=frozenset({"SMs", "memory", "bandwidth", "16-bit dense", "fp8 dense", "fp32", "L2", "TDP", "link"}),
        spare=("16-bit dense", "bandwidth", "arch", "SMs", "TDP", "fp8 dense", "L2", "link", "fp32", "name"),
        rows=[_list_row(spec) for spec in chosen],
    )
    conditions = [f"gpu.{name} == {value.lower()!r}" for name, value in (("vendor", vendor), ("arch", arch)) if value]
    if min_memory:
        conditions.append(f"gpu.dram_bytes >= {_memory(min_memory):.0f}")
    return Report(
        answer=_list_answer(chosen, len(specs)),
        grids=[grid] if chosen else [],
        payload=[_plain(spec) for spec in chosen],
        records=[_plain(spec) for spec in chosen],
        python=f"import tilecast\n[gpu.id for gpu in tilecast.gpus(){' if ' + ' and '.join(conditions) if conditions else ''}]",
        command=command_line("gpus", vendor=vendor, arch=arch, min_memory=min_memory),
    )


def show_report(name: str, overrides: dict[str, str]) -> Report:
    spec = _resolved(name, overrides)
    facts = spec.facts()
    changed = set(spec.facts().items()) - set(hardware.gpu(name).facts().items()) if overrides else set()
    rows = [
        (fact + (" *" if (fact, value) in changed else ""), human_fact(fact, value), str(spec.source(fact)))
        for fact, value in facts.items()
    ]
    derived = [
        (dtype, f"{units.significant(spec.ridge_flop_per_byte(dtype))} FLOP/B", f"derived: {dtype} peak / DRAM bandwidth")
        for dtype in dict.fromkeys((*spec.tensor_flop_per_s, *spec.vector_flop_per_s))
    ]
    grids = [
        Grid(
            title="Facts (* changed by --set)" if overrides else "Facts",
            columns=("fact", "value", "source"),
            rows=rows,
            right=frozenset({"value"}),
        ),
        Grid(
            title="Ridge points: arithmetic intensity where compute takes over from DRAM",
            columns=("dtype", "value", "source"),
            rows=derived,
            right=frozenset({"value"}),
        ),
    ]
    payload = _plain(spec) | {"ridge_flop_per_byte": {dtype: spec.ridge_flop_per_byte(dtype) for dtype in spec.tensor_flop_per_s}}
    records = [{"fact": fact, "value": value, "source": str(spec.source(fact))} for fact, value in facts.items()]
    return Report(
        answer=_show_answer(spec),
        grids=grids,
        payload=payload,
        records=records,
        python=f"import tilecast\n{_python_call(name, overrides)}",
        command=command_line("gpus", "show", name, set=tuple(f"{fact}={value}" for fact, value in overrides.items())),
    )


def compare_report(names: tuple[str, ...], overrides: dict[str, str]) -> Report:
    specs = [_resolved(name, overrides if place == len(names) - 1 else {}) for place, name in enumerate(names)]
    if len(specs) < 2 and not overrides:
        raise InvalidInput("compare takes two or more GPUs, or one with --set")
    if len(specs) == 1:
        specs = [_resolved(names[0], {}), *specs]
    titles = [spec.id + (" (what if)" if spec.overrides else "") for spec in specs]
    shown = [fact for fact in dict.fromkeys(fact for spec in specs for fact in spec.facts()) if fact != "device_string"]
    rows = [(fact, *(_beside(fact, spec.facts().get(fact), specs[0].facts().get(fact)) for spec in specs)) for fact in shown]
    setting = tuple(f"{fact}={value}" for fact, value in overrides.items())
    calls = ", ".join(_python_call(name, overrides if place == len(names) - 1 else {}) for place, name in enumerate(names))
    return Report(
        answer=_compare_answer(specs, titles),
        grids=[Grid(columns=("fact", *titles), rows=rows, right=frozenset(titles), spare=tuple(titles[2:]))],
        payload={"gpus": [_plain(spec) for spec in specs], "versions": versions()},
        records=[{"fact": fact, **{title: spec.facts().get(fact) for title, spec in zip(titles, specs, strict=True)}} for fact in shown],
        python=f"import tilecast\n[{calls}]",
        command=command_line("gpus", "compare", *names, set=setting),
    )


# ---- words -------------------------------------------------------------------------------------------------------


def _resolved(name: str, overrides: dict[str, str]) -> GpuSpec:
    if note := hardware.resolution_note(name):
        say(note)
    return hardware.gpu(name, overrides)


def _python_call(name: str, overrides: dict[str, str]) -> str:
    return f"tilecast.gpu({name!r}{', ' + repr(overrides) if overrides else ''})"


def _plain(spec: GpuSpec) -> dict[str, Any]:
    return spec.to_dict() | {"versions": versions()}


def _list_row(spec: GpuSpec) -> tuple[str, ...]:
    def shown(unit: str, value: float | None) -> str:
        return "-" if value is None else units.human(unit, value)

    return (
        spec.id,
        spec.arch,
        str(spec.num_sms),
        shown("_bytes", spec.dram_bytes),
        shown("_bytes_per_s", spec.dram_bytes_per_s),
        shown("_flop_per_s", spec.tensor_flop_per_s.get(_best_dtype(spec))),
        shown("_flop_per_s", spec.tensor_flop_per_s.get("fp8")),
        shown("_flop_per_s", spec.vector_flop_per_s.get("fp32")),
        shown("_bytes", spec.l2_bytes),
        shown("_w", spec.tdp_w),
        shown("_bytes_per_s", spec.link_bytes_per_s),
        spec.name,
    )


def _list_answer(chosen: list[GpuSpec], num_all: int) -> str:
    if not chosen:
        return f"None of the {num_all} catalogued GPUs fits that filter."
    largest = max(chosen, key=lambda spec: spec.dram_bytes)
    count = f"{num_all} GPUs are catalogued" if len(chosen) == num_all else f"{len(chosen)} of {num_all} catalogued GPUs fit"
    with_bf16 = [spec for spec in chosen if "bf16" in spec.tensor_flop_per_s]
    memory = f"the most memory is {units.human('_bytes', largest.dram_bytes)} on {largest.id}"
    if not with_bf16:
        return f"{count}; {memory}."
    top = max(spec.tensor_flop_per_s["bf16"] for spec in with_bf16)
    fastest = " and ".join(spec.id for spec in with_bf16 if spec.tensor_flop_per_s["bf16"] == top)
    return f"{count}; the highest dense bf16 peak is {units.human('_flop_per_s', top)} ({fastest}), {memory}."


def _memory(text: str) -> float:
    try:
        least_bytes = units.parse("dram_bytes", text)
    except InvalidInput as problem:
        raise InvalidInput(str(problem).replace("dram_bytes =", "--min-memory")) from None
    if least_bytes < 0:
        raise InvalidInput(f"--min-memory {text} must be at least 0")
    return least_bytes


def _best_dtype(spec: GpuSpec) -> str:
    return next((dtype for dtype in ("bf16", "fp16") if dtype in spec.tensor_flop_per_s), "fp32")


def _show_answer(spec: GpuSpec) -> str:
    dtype = _best_dtype(spec)
    what_if = (
        f", with {', '.join(f'{fact} = {human_fact(fact, value)}' for fact, value in spec.overrides.items())}," if spec.overrides else ""
    )
    return (
        f"{spec.name} ({spec.id}){what_if} peaks at {units.human('_flop_per_s', spec.matrix_rate(dtype))} dense {dtype} and "
        f"{units.human('_bytes_per_s', spec.dram_bytes_per_s)}: below {units.significant(spec.ridge_flop_per_byte(dtype))} FLOP per byte a "
        f"{dtype} kernel waits for memory."
    )


def _compare_answer(specs: list[GpuSpec], titles: list[str]) -> str:
    first = specs[0]
    dtype = next(
        (name for name in ("bf16", "fp16", "fp32") if all(name in {**s.tensor_flop_per_s, **s.vector_flop_per_s} for s in specs)), "fp32"
    )
    parts = [
        f"{title} has {units.significant(spec.matrix_rate(dtype) / first.matrix_rate(dtype))}x the dense {dtype} rate and "
        f"{units.significant(spec.dram_bytes_per_s / first.dram_bytes_per_s)}x the bandwidth"
        for title, spec in zip(titles[1:], specs[1:], strict=True)
    ]
    return f"Against {titles[0]}, {'; '.join(parts)}."


def _beside(fact: str, value: Any, reference: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str) or isinstance(reference, str) or not reference or value == reference:
        return human_fact(fact, value)
    return f"{human_fact(fact, value)} ({units.significant(value / reference)}x)"
