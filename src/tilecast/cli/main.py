"""The `tilecast` command: finds the sub-command, turns every error into one sentence and an exit code."""

import codecs
import os
import sys
import warnings
from importlib import import_module

import click

from tilecast import __version__
from tilecast.errors import TilecastError, UnknownName, shown

# Command -> one line of help. Its file is imported when it runs, so --help stays fast however many there are.
COMMANDS = {
    "predict": "How fast a whole model serves a batch: first token, time per token, memory, where the time goes.",
    "step": "How long a forward pass or training step of a model takes.",
    "support": "Which data the kernels of a model rest on, on a GPU.",
    "kernel": "How long one kernel takes on a GPU, what binds it, and why.",
    "kernels": "The same for every row of a CSV or parquet file.",
    "diagnose": "What a PyTorch-profiler trace says: where time is lost, and what better kernels would save.",
    "tune": "Kernel configurations by prediction: MoE and FP8 GEMM, as files that engines load.",
    "calibrate": "A profile of a GPU from a few measured kernels, or from one run.",
    "trust": "How accurate predictions of one family on one GPU have been.",
    "fit": "Learn the corrections from measured data (extra train).",
    "gpus": "The GPU catalogue: list, show one with its sources, compare several.",
    "nodes": "Boxes and racks of GPUs: how many, and what connects them.",
    "data": "Measured data: pull, list, show, check, export.",
    "completion": "Print the shell completion script for bash, zsh or fish.",
}

PLAIN = {"█": "#", "·": "-", "…": "..."}  # what tables are drawn with, where a terminal or a file cannot have it


class LazyCommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            raise UnknownName.among("command", cmd_name, COMMANDS)
        command: click.Command = import_module(f"tilecast.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Data goes to stdout, progress and warnings to stderr. Exit code 2: wrong input; 3: missing data or extra.",
)
@click.version_option(__version__, prog_name="tilecast")
def cli() -> None:
    """Forecast how fast a GPU runs deep-learning work, before anyone owns the GPU."""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command line; whatever goes wrong is one sentence on stderr."""
    warnings.showwarning = _warn
    _prepare_streams()
    try:
        result = cli.main([_spelled(argument) for argument in arguments], prog_name="tilecast", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except TilecastError as problem:
        return _fail(str(problem), problem.exit_code)
    except click.exceptions.NoArgsIsHelpError as problem:
        click.echo(problem.ctx.get_help() if problem.ctx else "")
        return 0
    except click.ClickException as problem:
        return _fail(" ".join(problem.format_message().split()), 2)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except (BrokenPipeError, SystemExit):  # the reader, such as `head`, has seen enough; rich says so by SystemExit
        _discard_output()
        return 0
    except RecursionError:
        return _fail("what was given is nested too deep to be read", 2)
    except OSError as problem:
        if problem.filename is not None:  # a file that nobody looked at before: a name too long, a folder that is not ours
            return _fail(f"cannot open {shown(problem.filename)}: {(problem.strerror or str(problem)).lower()}", 2)
        _discard_output()  # no space behind stdout, for one
        return _fail(f"cannot write the output: {problem.strerror or problem}", 1)


def _spelled(argument: str) -> str:
    """Options in files and in Python are spelled num_heads, on the command line --num-heads: --num_heads is that too."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def _prepare_streams() -> None:
    """A caller may have closed them, or want letters that ours are not among."""
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if stream is None else stream  # noqa: SIM115, PTH123
        for stream in (sys.stdout, sys.stderr)
    )
    codecs.register_error("tilecast", _plainer)
    encoding, errors = (getattr(sys.stdout, name, None) or "" for name in ("encoding", "errors"))
    if errors == "strict" or (errors == "surrogateescape" and "utf" not in encoding.lower()):
        sys.stdout.reconfigure(errors="tilecast")  # type: ignore[union-attr]


def _plainer(problem: UnicodeError) -> tuple[str, int]:
    """Other letters as JSON may write them."""
    assert isinstance(problem, UnicodeEncodeError)
    letters = problem.object[problem.start : problem.end]
    return "".join(PLAIN.get(letter) or "".join(map("\\u{:04x}".format, _utf16(letter))) for letter in letters), problem.end


def _utf16(letter: str) -> tuple[int, ...]:
    code = ord(letter) - 0x10000
    return (ord(letter),) if code < 0 else (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF))


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one sentence on stderr, without the line of code that gave it."""
    print(f"tilecast: {message}", file=sys.stderr)


def _discard_output() -> None:
    """So that Python's own flush at exit does not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, exit_code: int) -> int:
    print(f"tilecast: {sentence}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    main()
