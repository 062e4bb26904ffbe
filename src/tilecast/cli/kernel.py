"""`tilecast kernel FAMILY`: how long one kernel takes, what binds it, and why."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilecast import hardware, units
from tilecast.cli.files import target
from tilecast.cli.output import command_line, emit, output_options, overrides_from, refuse_as_python, say
from tilecast.cli.parameters import FLAGS, HELP, LISTS, RATES, TEXTS, check_lengths, check_missing, option, parsed
from tilecast.cli.ranges import MOST_NUMBERS, span
from tilecast.diagnosis.levers import GOAL, LARGEST_FACTOR, STEP, WORDS
from tilecast.errors import InvalidInput, MissingExtra, SpecError
from tilecast.execution.protocol import CACHES, TIMERS
from tilecast.kernels.base import NAMELESS, identity_on
from tilecast.predictors.kernel import KernelPrediction, predict_kernel
from tilecast.report import Grid, Report, versions

BAR_WIDTH = 24
OF_COLLECTIVES = ("boost_clock_hz", "dram_bytes_per_s")  # facts of the GPU that a collective may feel
OF_ONE_GPU = ("boost_clock_hz", "num_sms", "dram_bytes_per_s", "l2_bytes", "tdp_w")  # those that other kernels may
BATCHES = ("num_tokens", "m", "batch", "rows")  # sizes that count what is done at once, the first that a kernel has
PLOTS = (".png", ".svg", ".pdf", ".html")


class Families(click.Group):
    """One sub-command per kernel family, made from the parameters of its record."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from tilecast.kernels.registry import kernels

        return sorted(kernels())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from tilecast.kernels.registry import kernel

        return family_command(kernel(cmd_name))


@click.group(name="kernel", cls=Families)
def command() -> None:
    """Predict one kernel: latency with its interval, bound, what binds, demand per pipeline, waves, tile."""


def family_command(kernel: Any) -> click.Command:
    params: list[click.Parameter] = [
        click.Option(["--gpu"], required=True, help="Catalogue id, device string, or the path of a TOML file.")
    ]
    shown = {"identity": kernel.family not in NAMELESS}  # one that is given all the same is refused with its reason
    params += [
        click.Option([option(entry.name), entry.name], help=_help(entry), hidden=not shown.get(entry.name, True))
        for entry in fields(kernel)
        if entry.name != "engine"
    ]
    params += [
        click.Option(
            ["--engine"],
            help="In which engine it runs: sglang, vllm, trtllm, a release (sglang@0.5.14), or pytorch [default: sglang].",
        ),
        click.Option(["--timer"], default="profiler", show_default=True, help=f"How it is timed: {', '.join(TIMERS)}."),
        click.Option(["--cache"], default="cold", show_default=True, help=f"What caches hold: {', '.join(CACHES)}."),
        click.Option(["--profile"], metavar="FILE", help="What `tilecast calibrate` made of measurements on this GPU."),
        click.Option(["--explain"], is_flag=True, help="Walk through the stages with numbers."),
        click.Option(["--why"], is_flag=True, help="What would make it 20 % faster."),
        click.Option(["--ceiling"], is_flag=True, help="What well-made kernels reach for such work, and what the gap is made of."),
        click.Option(["--measured"], metavar="TIME", help="With --ceiling: a measured time with its unit, to place, e.g. 293us."),
        click.Option(
            ["--sweep"],
            metavar="NAME=FROM:TO:STEP",
            help="A curve over one size, e.g. m=1:8192:x2 (or 1:8192, doubling) or m=64:4096:64.",
        ),
        click.Option(["--plot", "plot_path"], metavar="FILE", help="Draw the sweep: .png, .svg, .pdf or .html (extra viz)."),
        click.Option(["--set", "assignments"], metavar="FACT=VALUE", multiple=True, help="What if: change a fact of the GPU (repeatable)."),
    ]
    summary = (kernel.__doc__ or kernel.family).strip().splitlines()[0]
    callback = output_options(_callback(kernel))
    params += reversed(callback.__click_params__)  # what output_options left on the function
    return click.Command(kernel.family, params=params, callback=callback, help=summary)


def _callback(kernel: Any) -> Any:
    @click.pass_context
    def run(ctx: click.Context, /, **given: Any) -> None:
        output = {name: given.pop(name) for name in ("as_json", "as_csv", "as_python")}
        asked = {
            name: given.pop(name)
            for name in (
                "gpu", "timer", "cache", "engine", "profile", "explain", "why", "ceiling", "measured", "sweep", "plot_path", "assignments",
            )
        }  # fmt: skip
        parameters = {name: parsed(name, text) for name, text in given.items() if text is not None and text.strip()}  # "" as an empty cell
        swept = [sweep_values(asked["sweep"])[0]] if asked["sweep"] else []
        unused = [name for name in swept if parameters.pop(name, None) is not None]
        check_missing(kernel.family, [entry.name for entry in fields(kernel) if _is_required(entry)], [*parameters, *swept])
        check_lengths(parameters)
        if asked["plot_path"] and not asked["sweep"]:
            raise InvalidInput(f"--plot {asked['plot_path']} draws a sweep: give --sweep too, e.g. --sweep m=1:8192:x2")
        if output["as_python"]:
            refuse_as_python(explain=asked["explain"], why=asked["why"], plot=asked["plot_path"])
        if note := hardware.resolution_note(asked["gpu"]):
            say(note)
        report = kernel_report(kernel, parameters, asked)
        for name in unused:
            say(f"{option(name)} {given[name]} is not used: --sweep {asked['sweep']} says {name}")
        if "node" in parameters:
            from tilecast.kernels.collectives import node_of

            spec = hardware.gpu(asked["gpu"])
            if foreign := hardware.foreign_note(node_of(spec, parameters["node"]), spec):
                say(foreign)
        emit(report, **output)

    return run


def kernel_report(kernel: Any, parameters: dict[str, Any], asked: dict[str, Any]) -> Report:
    overrides = overrides_from(asked["assignments"])
    timing: dict[str, Any] = {"timer": asked["timer"], "cache": asked["cache"]}
    if asked["engine"] is not None:
        timing["engine"] = asked["engine"]
    if asked["measured"] and not asked["ceiling"]:
        raise InvalidInput(f"--measured {asked['measured']} goes with --ceiling")
    explaining = [name for name in ("explain", "why", "ceiling") if asked[name]]
    if asked["sweep"] and explaining:
        raise InvalidInput(f"--{explaining[0]} is of one launch: leave --sweep {asked['sweep']} out")

    def predicted(facts: dict[str, Any] | None = None, **changes: Any) -> KernelPrediction:
        return predict_kernel(
            kernel(**(parameters | changes)), asked["gpu"], **timing, overrides=overrides | (facts or {}), profile=asked["profile"]
        )

    shown = tuple(f"{fact}={value}" for fact, value in overrides.items())
    extras = {name: asked[name] for name in ("explain", "why", "ceiling", "measured", "sweep")} | {"plot": asked["plot_path"]}
    line = command_line(
        "kernel", kernel.family, gpu=asked["gpu"], **_texts(parameters), **timing, profile=asked["profile"], set=shown, **extras
    )
    more = timing | ({"profile": asked["profile"]} if asked["profile"] else {}) | ({"overrides": overrides} if overrides else {})
    if asked["sweep"]:
        name, values = sweep_values(asked["sweep"])
        _check_swept(kernel, name, asked["sweep"])
        python = _python(kernel, parameters | {name: values.tolist()}, asked["gpu"], more)
        return _sweep_report(predicted, name, values, asked["plot_path"], kernel.family, line, python)
    python = _python(kernel, parameters, asked["gpu"], more)
    prediction = predicted()
    grids = [_headline(prediction), _pipelines(prediction)]
    payload = record(prediction, parameters | ({"engine": asked["engine"]} if asked["engine"] else {}), shown)
    if asked["explain"]:
        unmeasured = predict_kernel(prediction.kernel, asked["gpu"], **timing, overrides=overrides) if asked["profile"] else prediction
        stages = _explained(prediction, float(unmeasured.learned_s[0]))
        grids.append(stages)
        payload["explain"] = [dict(zip(stages.columns, row, strict=True)) for row in stages.rows]
    if asked["why"]:
        payload["why"] = _levers(predicted, prediction)
        grids.append(_lever_grid(payload["why"]))
        if choices := _choices(kernel, parameters, predicted, prediction):
            payload["why_choices"] = choices
            grids.append(_choice_grid(choices))
    if asked["ceiling"]:
        from tilecast.cli.ceiling import ceiling_part, ceiling_python, seconds_from

        measured_s = seconds_from(asked["measured"]) if asked["measured"] else None
        tables, facts = ceiling_part(prediction, measured_s)
        grids, payload = [*grids, *tables], payload | facts
        python = ceiling_python(python, measured_s)
    return Report(answer=_answer(prediction, parameters), grids=grids, payload=payload, records=[payload], python=python, command=line)


# ---- what is said ------------------------------------------------------------------------------------------------


def record(prediction: KernelPrediction, parameters: dict[str, Any], overrides: tuple[str, ...] = (), row: int = 0) -> dict[str, Any]:
    """One launch as the contract's JSON (tilecast.kernel/1)."""
    analysis = prediction.analysis
    return {
        "schema": "tilecast.kernel/1",
        "median_s": float(prediction.median_s[row]),
        "low_s": float(prediction.low_s[row]),
        "high_s": float(prediction.high_s[row]),
        "bound_s": float(prediction.bound_s[row]),
        "bound_by": str(analysis.bound_by[row]),
        "analytic_s": float(prediction.analytic_s[row]),
        "efficiency": float(prediction.efficiency[row]),
        "basis": str(prediction.basis[row]),
        "demand": {name: float(values[row]) for name, values in analysis.demand_s.items()},
        "waves": float(analysis.placement.waves[row]),
        "tile": str(analysis.variant[row]),
        "identity": identity_on(prediction.kernel, prediction.gpu, row),
        "protocol": {"timer": prediction.protocol.timer, "cache": prediction.protocol.cache},
        "clock_hz": float(analysis.clock_hz[row]),
        "inputs": {
            "family": prediction.kernel.family, "gpu": prediction.gpu.id, **{name: _plain(value) for name, value in parameters.items()},
            "set": list(overrides), **({"profile": prediction.profile.told()} if prediction.profile else {}),
        },
        "versions": versions(),
    }  # fmt: skip


def _answer(prediction: KernelPrediction, parameters: dict[str, Any]) -> str:
    sizes = " ".join(f"{name}={_plain(value)}" for name, value in parameters.items())
    time = units.interval_s(prediction.median_s[0], prediction.low_s[0], prediction.high_s[0])
    binding = str(prediction.analysis.bound_by[0])
    alone = "its start and hops, not by bytes" if hasattr(prediction.kernel, "rates") else "the launch itself"
    limit = alone if binding == "launch" else binding
    return (
        f"{prediction.kernel.family} {sizes} takes {time} on {prediction.gpu.label}, bound by {limit}; "
        f"no kernel could beat {units.human('_s', prediction.bound_s[0])}."
    )


def _headline(prediction: KernelPrediction) -> Grid:
    analysis, runs = prediction.analysis, identity_on(prediction.kernel, prediction.gpu)
    rows = [
        ("latency", units.interval_s(prediction.median_s[0], prediction.low_s[0], prediction.high_s[0]), "median and 80 % interval"),
        ("bound", units.human("_s", prediction.bound_s[0]), "least work at the highest rates"),
        ("efficiency", f"{100 * prediction.efficiency[0]:.0f} %", "bound / latency"),
        ("basis", str(prediction.basis[0]), "what the number rests on"),
        *([("identity", runs, "the kernel; left open, what the newest SGLang runs")] if runs else []),
        *([("profile", prediction.profile.id, prediction.profile.words)] if prediction.profile else []),
        ("clock", units.human("_hz", analysis.clock_hz[0]), "sustained under the power limit"),
        ("launch", units.human("_s", analysis.launch_s[0]), f"timer {prediction.protocol.timer}"),
        ("tasks", units.significant(analysis.placement.num_tasks[0], 6), f"on {prediction.gpu.num_sms} SMs"),
        ("waves", units.significant(analysis.placement.waves[0]), f"{100 * analysis.placement.tail_fraction[0]:.0f} % of SM time is tail"),
        ("occupancy", _occupancy(prediction), "tasks an SM holds at once"),
        ("tile", str(analysis.variant[0]) or "-", "the kernel's own; of several the cheapest"),
    ]
    return Grid(columns=("what", "value", "meaning"), rows=rows, right=frozenset({"value"}), spare=("meaning",))


def _occupancy(prediction: KernelPrediction) -> str:
    """Waves are rounds of all that the SMs hold at once; a collective is no work dealt to SMs."""
    placement = prediction.analysis.placement
    held = placement.waves[0] * prediction.gpu.num_sms
    return units.significant(placement.num_tasks[0] / held) if placement.num_tasks[0] >= held > 0 else "-"


def _pipelines(prediction: KernelPrediction) -> Grid:
    busy = prediction.analysis.busy_s
    longest = max([float(values[0]) for values in busy.values()] + [1e-12])
    rows = []
    for name in sorted(busy, key=lambda name: -float(busy[name][0])):
        demand = prediction.analysis.demand_s.get(name)
        bar = "█" * max(1, round(BAR_WIDTH * float(busy[name][0]) / longest)) if busy[name][0] > 0 else ""
        rows.append(
            (name, units.human("_s", float(demand[0])) if demand is not None else "-", units.human("_s", float(busy[name][0])), bar)
        )
    return Grid(title="Pipelines", columns=("pipeline", "demand at peak", "busiest SM, reachable", ""), rows=rows,
                right=frozenset({"demand at peak", "busiest SM, reachable"}), spare=("",))  # fmt: skip


TOGETHER = "fourth root of the sum of fourth powers"
STAGES = {
    "pipelines of the busiest SM together": f"the busy times above: {TOGETHER}",
    "starts and end": "filling pipelines for each round of tasks, draining the last",
    "waits that nothing hides": "dependent steps inside a task",
    "DRAM": "bytes at the bandwidth that such kernels reach",
    "SM and DRAM together": f"(pipelines + starts + waits) and DRAM: {TOGETHER}",
    "further kernels": "reductions, quantisation, routing: launched besides",
    "launch": "on the device, and the host's part for timer event",
    "cheapest variant": "SM and DRAM + further kernels + launch, at least the bound",
}


def _explained(prediction: KernelPrediction, by_weights_s: float) -> Grid:
    """The stages with numbers: enough to redo the result with a pocket calculator."""
    analysis, gpu = prediction.analysis, prediction.gpu
    placement = analysis.placement
    work = f"{placement.busiest_tasks[0]:.4g} tasks on the busiest SM"
    rows = [
        ("tasks", f"{placement.num_tasks[0]:g} tasks on {gpu.num_sms} SMs", work),
        ("clock", f"boost {gpu.boost_clock_hz / 1e9:g} GHz, power limit {gpu.tdp_w or 0:g} W", f"{analysis.clock_hz[0] / 1e9:.4g} GHz"),
        *((f"busy: {name}", "at the rate it reaches", _us(values[0])) for name, values in analysis.busy_s.items() if name != "dram"),
        *((name, STAGES.get(name, ""), _us(values[0])) for name, values in analysis.stages_s.items()),
        ("analytic", "average over variants, weighted towards the cheapest", _us(prediction.analytic_s[0])),
        *_corrected(prediction, by_weights_s),
    ]
    return Grid(title="How it comes about", columns=("stage", "from", "result"), rows=rows, right=frozenset({"result"}))


def _corrected(prediction: KernelPrediction, by_weights_s: float) -> list[tuple[str, str, str]]:
    """What the weights say, what a profile says besides and, where that breaks the law of doubling, what the law leaves of it."""
    analytic_s, learned_s, median_s = (each[0] for each in (prediction.analytic_s, prediction.learned_s, prediction.median_s))
    stages = [("as learned", f"x {by_weights_s / analytic_s:.4g}: learned correction, basis {prediction.basis[0]}", by_weights_s)]
    if prediction.profile is not None:
        stages.append(("as measured", f"x {learned_s / by_weights_s:.4g}: {prediction.profile.words}", learned_s))
    if median_s != learned_s:
        faster = "no longer than a launch of twice the size or more, for which there is a faster kernel"
        why = faster if median_s < learned_s else "0.97 of a launch of half the size, or of less, at the least"
        stages.append(("as the law has it", f"x {median_s / learned_s:.4g}: {why}", median_s))
    return [(name if stage < len(stages) else "latency", told, _us(seconds)) for stage, (name, told, seconds) in enumerate(stages, 1)]


def _us(seconds: float) -> str:
    return f"{float(seconds) * 1e6:.4g} us"


def _levers(predicted: Callable[..., KernelPrediction], now: KernelPrediction) -> list[dict[str, Any]]:
    """For each fact of the GPU, and of the links a collective runs over: what 10 % more gives, and how much more makes it 20 % faster."""
    rates: dict[str, float] = now.kernel.rates(now.gpu) if hasattr(now.kernel, "rates") else {}
    facts = [*rates, *(fact for fact in (OF_COLLECTIVES if rates else OF_ONE_GPU) if getattr(now.gpu, fact) is not None)]

    def time_s(fact: str, factor: float) -> float:
        if fact in rates:
            changed = rates[fact] / factor if fact == "latency_factor" else rates[fact] * factor
            return float(predicted(**{fact: changed}).median_s[0])
        value = getattr(now.gpu, fact) * factor
        change = {fact: round(value) if isinstance(getattr(now.gpu, fact), int) else value}
        return float(predicted(change).median_s[0])

    current, goal = float(now.median_s[0]), float(now.median_s[0]) / GOAL
    return [
        {"fact": fact, "saved_fraction": 1 - time_s(fact, STEP) / current, "needed_factor": _factor_for(partial(time_s, fact), goal)}
        for fact in facts
    ]


def _choices(
    kernel: Any, parameters: dict[str, Any], predicted: Callable[..., KernelPrediction], now: KernelPrediction
) -> list[dict[str, Any]]:
    """What the caller may choose instead: another tile, and more rows at once (their time per row)."""
    found: list[dict[str, Any]] = []
    if kernel.family == "gemm" and parameters.get("tile") is None:
        from tilecast.kernels.gemm import TENSOR_TILES

        times = {}
        for tile in TENSOR_TILES:
            try:
                times[tile] = float(predicted(tile=tile).analytic_s[0])
            except InvalidInput:  # does not fit shared memory
                continue
        best = min(times, key=lambda tile: times[tile])
        found.append({"choice": "tile", "value": f"{best[0]}x{best[1]}", "saved_fraction": 1 - times[best] / float(now.analytic_s[0])})
    rows = next((name for name in BATCHES if isinstance(parameters.get(name), int)), None)
    if rows is not None:
        per_row = float(now.median_s[0]) / parameters[rows]
        for factor in (2, 4, 8, 16, 32, 64):
            more = parameters[rows] * factor
            saved = 1 - float(predicted(**{rows: more}).median_s[0]) / more / per_row
            if saved >= 1 - 1 / GOAL or factor == 64:
                found.append({"choice": rows, "value": str(more), "saved_fraction": saved})
                break
    return found


def _choice_grid(choices: list[dict[str, Any]]) -> Grid:
    rows = [
        ("tile, by physics alone" if one["choice"] == "tile" else f"{one['choice']}, time of each", one["value"],
         f"{round(100 * one['saved_fraction'], 1) + 0.0:.1f} %")
        for one in choices
    ]  # fmt: skip
    return Grid(title="What you may choose", columns=("choice", "value", "time saved"), rows=rows, right=frozenset({"value", "time saved"}))


def _lever_grid(levers: list[dict[str, Any]]) -> Grid:
    rows = [(WORDS[lever["fact"]], f"{round(100 * lever['saved_fraction'], 1) + 0.0:.1f} %", _needed(lever)) for lever in levers]
    return Grid(title="What would make it faster", columns=("lever", "time saved by 10 % more", "needed for 20 % faster"), rows=rows,
                right=frozenset({"time saved by 10 % more", "needed for 20 % faster"}))  # fmt: skip


def _needed(lever: dict[str, Any]) -> str:
    factor = lever["needed_factor"]
    if factor is None:
        return "out of reach"
    return f"{1 / factor:.2f}x" if lever["fact"] == "latency_factor" else f"{factor:.2f}x"


def _factor_for(time_s: Callable[[float], float], goal_s: float) -> float | None:
    low, high = 1.0, 1.0
    try:
        while time_s(high) > goal_s:
            low, high = high, high * 1.5
            if high > LARGEST_FACTOR:
                return None
    except SpecError:  # no such GPU is possible
        return None
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if time_s(middle) > goal_s else (low, middle)
    return high


# ---- sweep -------------------------------------------------------------------------------------------------------


def sweep_values(text: str) -> tuple[str, np.ndarray]:
    """("m", [1, 2, 4, ...]) from "m=1:8192:x2", or every 64th from "m=64:4096:64"."""
    name, _, asked = text.partition("=")
    try:
        values = span(asked)
    except ValueError:
        raise InvalidInput(f"--sweep {text!r} must read NAME=FROM:TO:STEP, e.g. m=1:8192:x2 or m=64:4096:64") from None
    if len(values) > MOST_NUMBERS:
        raise InvalidInput(f"--sweep {text!r} has more than {MOST_NUMBERS:,} points; take a larger step, or x2")
    return name.strip(), np.array(values)


def _check_swept(kernel: Any, name: str, text: str) -> None:
    own = [entry.name for entry in fields(kernel)]
    allowed = [each for each in own if each not in (*TEXTS, *LISTS, *FLAGS, *RATES, "tile", "split", "engine")]
    if name not in allowed:
        what = f"{name} is no size of {kernel.family}" if name in own else f"{kernel.family} has no parameter {name!r}"
        raise InvalidInput(f"--sweep {text}: {what}; its sizes are {', '.join(allowed)}")


def _sweep_report(predicted: Any, name: str, values: np.ndarray, plot_path: str | None, family: str, line: str, python: str) -> Report:
    path = target("--plot", plot_path, PLOTS)
    prediction = predicted(**{name: values})
    longest = float(np.max(prediction.median_s))
    rows = [
        (str(value), units.human("_s", prediction.median_s[row]), str(prediction.analysis.variant[row]),
         units.significant(prediction.analysis.placement.waves[row]), str(prediction.analysis.bound_by[row]),
         "█" * max(1, round(40 * float(prediction.median_s[row]) / longest)))
        for row, value in enumerate(values)
    ]  # fmt: skip
    if path is not None:
        _draw_sweep(prediction, name, values, path)
    records = [{name: int(value), **_flat(prediction, row)} for row, value in enumerate(values)]
    first, last = units.human("_s", prediction.median_s[0]), units.human("_s", prediction.median_s[-1])
    return Report(
        answer=f"{family} on {prediction.gpu.label} goes from {first} at {name}={values[0]} to {last} at {name}={values[-1]}.",
        grids=[Grid(columns=(name, "latency", "tile", "waves", "bound by", "curve"), rows=rows, right=frozenset({name, "latency", "waves"}),
                    spare=("curve", "bound by", "tile"))],
        payload={"schema": "tilecast.sweep/1", "points": records, "versions": versions()},
        records=records,
        python=python,
        command=line,
    )  # fmt: skip


def _draw_sweep(prediction: KernelPrediction, name: str, values: np.ndarray, path: Path) -> None:
    try:
        from tilecast.report.renderers.sweep_plot import draw
    except ImportError:
        raise MissingExtra.of("viz", "--plot") from None
    draw(prediction, name, values, path)
    say(f"drew {path}")


def _flat(prediction: KernelPrediction, row: int) -> dict[str, Any]:
    return {
        "median_s": float(prediction.median_s[row]),
        "low_s": float(prediction.low_s[row]),
        "high_s": float(prediction.high_s[row]),
        "bound_s": float(prediction.bound_s[row]),
        "analytic_s": float(prediction.analytic_s[row]),
        "bound_by": str(prediction.analysis.bound_by[row]),
        "basis": str(prediction.basis[row]),
        "waves": float(prediction.analysis.placement.waves[row]),
        "tile": str(prediction.analysis.variant[row]),
    }


# ---- words -------------------------------------------------------------------------------------------------------


def _is_required(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _help(entry: Field[Any]) -> str:
    words = HELP.get(entry.name, f"{entry.name.replace('_', ' ').capitalize()}.")
    if _is_required(entry):
        return f"{words} [required]"
    shown = str(entry.default).lower() if isinstance(entry.default, bool) else entry.default
    return words if entry.default is None else f"{words} [default: {shown}]"


def _plain(value: Any) -> Any:
    return "x".join(map(str, value)) if isinstance(value, tuple) else value


def _texts(parameters: dict[str, Any]) -> dict[str, str]:
    return {name: str(_plain(value)).lower() if isinstance(value, bool) else str(_plain(value)) for name, value in parameters.items()}


def _python(kernel: Any, parameters: dict[str, Any], gpu: str, asked: dict[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
    more = "".join(f", {name}={value!r}" for name, value in asked.items())
    imports = f"import tilecast\nfrom {kernel.__module__} import {kernel.__name__}\n"
    return f"{imports}tilecast.predict_kernel({kernel.__name__}({arguments}), gpu={gpu!r}{more})"
