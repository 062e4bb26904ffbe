"""The options every command shares, and how its Report leaves the process."""

import shlex
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tilecast.errors import InvalidInput, MissingExtra
from tilecast.report import Report

F = TypeVar("F", bound=Callable[..., Any])


def output_options(function: F) -> F:
    """--json, --csv and --as-python, for any command."""
    for option in (
        click.option("--as-python", "as_python", is_flag=True, callback=_alone, help="Print the equivalent Python call and stop."),
        click.option("--csv", "as_csv", is_flag=True, callback=_alone, help="CSV on stdout, SI units."),
        click.option("--json", "as_json", is_flag=True, callback=_alone, help="JSON on stdout, SI units."),
    ):
        function = option(function)
    return function


def _alone(ctx: click.Context, option: click.Parameter, given: bool) -> bool:
    """Before any work: a command may write a file before it comes to its output."""
    if given and ctx.meta.setdefault("tilecast.output", option.name) != option.name:
        raise InvalidInput("--json, --csv and --as-python exclude one another")
    return given


def set_option(function: F) -> F:
    """--set FACT=VALUE, for any command that takes a GPU."""
    help = "What if: change a fact, e.g. --set dram_bytes_per_s=4.8e12 --set num_sms=144 (repeatable; peaks follow)."
    return click.option("--set", "assignments", metavar="FACT=VALUE", multiple=True, help=help)(function)


def profile_option(function: F) -> F:
    """--profile FILE, for any command that predicts."""
    return click.option("--profile", metavar="FILE", help="What `tilecast calibrate` made of measurements on this GPU.")(function)


def emit(report: Report, *, as_json: bool, as_csv: bool, as_python: bool) -> None:
    """Print the report the way that was asked for."""
    if as_python:
        click.echo(report.python)
    elif as_json or as_csv:
        from tilecast.report.renderers import text

        click.echo(text.as_json(report) if as_json else text.as_csv(report), nl=as_json)
    else:
        from tilecast.report.renderers import console

        console.show(report)


def refuse_as_python(**asked: object) -> None:
    """Options that no single Python call stands for: refused with --as-python rather than dropped."""
    if names := [f"--{name.replace('_', '-')}" for name, value in asked.items() if value]:
        raise InvalidInput(f"--as-python has no call for {' and '.join(names)}: leave one or the other out")


def overrides_from(assignments: tuple[str, ...], flag: str = "--set", example: str = "num_sms=144") -> dict[str, str]:
    """{"num_sms": "144"} from ("num_sms=144",)."""
    overrides: dict[str, str] = {}
    for assignment in assignments:
        fact, equals, value = assignment.partition("=")
        if not equals or not fact.strip() or not value.strip():
            raise InvalidInput(f"{flag} {assignment!r} must read FACT=VALUE, e.g. {example}")
        if fact.strip() in overrides:
            raise InvalidInput(f"{flag} gives {fact.strip()} twice")
        overrides[fact.strip()] = value.strip()
    return overrides


def command_line(*words: str, **options: object) -> str:
    """The command that was run, ready to paste: command_line("gpus", vendor="amd") is 'tilecast gpus --vendor amd'."""
    parts = ["tilecast", *words]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for single in value if isinstance(value, tuple | list) else (value,):
            if single is not None and single is not False:
                parts += [flag] if single is True else [flag, str(single)]
    return shlex.join(parts)


def say(sentence: str) -> None:
    """A note or warning: stderr, never among the data."""
    print(f"tilecast: {sentence}", file=sys.stderr)


def require_data_extra() -> None:
    try:
        import polars  # noqa: F401
    except ImportError:
        raise MissingExtra.of("data", "measured data") from None
