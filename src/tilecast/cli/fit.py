"""`tilecast fit [FAMILY...]`: learn the corrections from measured rows, from scratch (extra `train`)."""

import re
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from tilecast.cli.files import target_folder
from tilecast.cli.output import command_line, emit, output_options, require_data_extra, say
from tilecast.errors import InvalidInput, MissingExtra, UnknownName
from tilecast.learning.features import SIZES
from tilecast.learning.manifests import FOLDER
from tilecast.report import Grid, Report, versions

Say = Callable[[str], None]
OTHERS = ("ceiling", "moe-tuning")
BAR_WIDTH = 20
PLACE = re.compile(r"\((\d+) of (\d+)\)$")


@click.command(name="fit")
@click.argument("families", nargs=-1)
@click.option(
    "--sources",
    "names",
    multiple=True,
    help="A data source, or a .csv / .parquet file of your own rows (repeatable); all: every one that is here [default], so that "
    "`--sources all --sources mine.csv` adds your rows.",
)
@click.option("--out", "-o", "folder", metavar="DIR", help="Where to write [default: into the installed package].")
@click.option("--quick", is_flag=True, help="Fewer rows and trees: minutes instead of the better part of an hour.")
@output_options
def command(families: tuple[str, ...], names: tuple[str, ...], folder: str | None, quick: bool, **output: bool) -> None:
    """Retrain the learned corrections from measured data: same rows, same seed, same weights.

    A file of your own has the columns of `tilecast kernels`: family, gpu, dtype and the family's sizes, [identity, timer, cache, engine],
    and the time in seconds as measured_s; or it is what `tilecast data export` wrote. An empty cell is the default.
    """
    require_data_extra()
    from tilecast.learning.recipes import fit_family

    unknown = next((family for family in families if family not in (*SIZES, *OTHERS)), None)
    if unknown is not None:
        raise UnknownName.among("learnable family", unknown, (*SIZES, *OTHERS))
    target = FOLDER if folder is None else target_folder("--out", folder)
    if output["as_python"]:
        emit(Report(answer="", python=_python(families, names, target, quick)), **output)
        return
    if names and "moe-tuning" in families:
        raise InvalidInput("--sources: moe-tuning learns from searches of configurations, not from rows; leave one or the other out")
    if find_spec("catboost") is None:
        raise MissingExtra.of("train", "fitting")
    target_folder("--out", str(target))  # the package's own may be where nobody may write
    asked = families or tuple(SIZES)
    _check_files(names, [family for family in asked if family in SIZES])
    started = time.monotonic()
    others = {name: _fit_other(name, names, target, partial(_progress, started)) for name in asked if name in OTHERS}
    rows = []
    for family in (family for family in asked if family in SIZES):
        correction, path = fit_family(family, names, target, quick=quick, say=partial(_progress, started))
        scores = correction.manifest["scores"]
        means = [_mean(scores[basis]) for basis in ("interpolated", "unseen-gpu", "unseen-generation")]
        rows.append((family, f"{correction.manifest['num_rows']:,}", *means, path.name))
    columns = ("family", "rows", "held-out shapes", "unseen GPU", "unseen generation", "file")
    rows += [(name, *["-"] * 4, path.name) for name, path in others.items()]
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    emit(
        Report(
            answer=f"Fitted {len(rows)} famil{'ies' if len(rows) != 1 else 'y'} into {target} in {time.monotonic() - started:.0f} s.",
            grids=[
                Grid(
                    title="Mean absolute error on held-out rows, mean over GPUs", columns=columns, rows=rows, right=frozenset(columns[1:5])
                )
            ],
            payload={"families": records, "versions": versions()},
            records=records,
            python=_python(families, names, target, quick),
            command=command_line("fit", *families, sources=names, out=folder, quick=quick),
        ),
        **output,
    )


def _check_files(names: tuple[str, ...], families: list[str]) -> None:
    """A user's rows of every family, before the first one is fitted and written."""
    from tilecast.learning.recipes import user_rows

    for path in (Path(name) for name in names if Path(name).suffix in (".csv", ".parquet")):
        for family in families:
            user_rows(path, family)


def _python(families: tuple[str, ...], names: tuple[str, ...], target: Path, quick: bool) -> str:
    """A call for each family; what is learned besides has its own functions."""
    lines = ["from pathlib import Path", f"folder = Path({str(target)!r})"]
    if "ceiling" in families:
        lines += ["from tilecast.learning import ceilings", "from tilecast.learning.ceiling_training import fit_families"]
        lines += [f"ceilings.write(fit_families({names!r}), folder)"]
    if "moe-tuning" in families:
        lines += ["from tilecast.learning import ranking", "from tilecast.tuning.searches import searches"]
        lines += ["from tilecast.tuning.training import fit", "ranking.write(fit(searches()), folder)"]
    if corrections := [family for family in families or SIZES if family in SIZES]:
        lines += ["from tilecast.learning.recipes import fit_family"]
        lines += [f"fit_family({family!r}, {names!r}, folder{', quick=True' if quick else ''})" for family in corrections]
    return "\n".join(lines)


def _fit_other(name: str, names: tuple[str, ...], target: Path, say: Say) -> Path:
    """What is learned beside the corrections: ceilings of efficiency, and the ranking of MoE configurations."""
    if name == "ceiling":
        from tilecast.learning.ceiling_training import fit_families
        from tilecast.learning.ceilings import write as write_ceilings

        return write_ceilings(fit_families(names, say=say), target)
    from tilecast.learning.ranking import write as write_ranking
    from tilecast.tuning.searches import searches
    from tilecast.tuning.training import fit

    return write_ranking(fit(searches(), say=say), target)


def _mean(scores: dict[str, float]) -> str:
    return f"{sum(scores.values()) / len(scores):.1f} %" if scores else "not known"


def _progress(started: float, text: str) -> None:
    say(f"{time.monotonic() - started:5.0f} s  {_bar(text)}{text}")


def _bar(text: str) -> str:
    """How much of a family is done, where the text ends in a place such as "(3 of 12)"."""
    if not (place := PLACE.search(text)):
        return ""
    done = BAR_WIDTH * (int(place[1]) - 1) // int(place[2])
    return f"[{'#' * done}{'.' * (BAR_WIDTH - done)}] "
