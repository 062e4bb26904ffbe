"""python -m benchmarks.accuracy [SUITE...]: score the current code and write what came out.

Exit codes: 0 something was scored; 2 the question is wrong; 3 every suite asked for lacks its data.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import tilecast
from benchmarks.accuracy import plots, publish, registry
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.result import Result, Suite, headline
from tilecast import hardware
from tilecast.errors import MissingExtra, TilecastError, Unavailable
from tilecast.learning.manifests import artifacts_hash

RESULTS = Path(__file__).parents[1] / "results"


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Score predictions against measurements.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="which suites to run (default: all; see --list)")
    parser.add_argument("--quick", action="store_true", help="a small fixed subset, written to --out or to a temporary folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: benchmarks/results)")
    parser.add_argument("--list", action="store_true", help="list the suites and stop")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(sys.argv[1:] if given is None else given)
    try:
        if options.list:
            for name in registry.names():
                print(f"{name:20} {registry.suite(name).title}")
            return 0
        suites = [registry.suite(name) for name in dict.fromkeys(options.suites or registry.names())]
        folder = options.out or (Path(tempfile.mkdtemp(prefix="tilecast-accuracy-")) if options.quick else RESULTS)
        return run_all(suites, folder, quick=options.quick)
    except TilecastError as problem:
        say(f"error: {problem}")
        return problem.exit_code


def run_all(suites: Sequence[Suite], folder: Path, *, quick: bool) -> int:
    """Run, print and write each suite; those without data are skipped with the reason."""
    done = 0
    for suite in suites:
        started = time.monotonic()
        try:
            registry.require_data(suite)
            say(f"{suite.name}: {suite.title}")
            result = suite.run(quick)
        except Unavailable as reason:
            say(f"{suite.name}: skipped: {reason}")
            continue
        output(result, run_of(suite, quick), folder)
        say(f"{suite.name}: done in {time.monotonic() - started:.0f} s")
        done += 1
    if not done:
        return Unavailable.exit_code
    publish.write_summary(folder)
    if folder == RESULTS:
        publish.write_readme(RESULTS.parents[1] / "README.md", RESULTS)
    say(f"written to {folder}")
    return 0


def run_of(suite: Suite, quick: bool) -> publish.Run:
    return publish.Run(
        version=tilecast.__version__,
        catalogue=hardware.catalogue_hash(),
        artifacts=artifacts_hash(),
        date=date.today().isoformat(),
        command=f"python -m benchmarks.accuracy {suite.name}{' --quick' if quick else ''}",
        quick=quick,
    )


def output(result: Result, run: publish.Run, folder: Path) -> None:
    drawn: list[str] = []
    try:
        drawn = plots.draw(result, folder)
    except MissingExtra as reason:
        say(f"{result.suite}: no plots: {reason}")
    publish.write(result, run, folder, drawn)
    print(f"\n{result.suite}: {result.question}")
    print(publish.headline_table(headline(result)))
    if result.target:
        print(f"to beat: {result.target}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
