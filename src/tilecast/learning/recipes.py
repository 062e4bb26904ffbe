"""Which rows teach which family, and the manifest that says so: from data sources to a shipped artifact."""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl

import tilecast
from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.datasets.schema import SHAPES, conform
from tilecast.errors import InvalidInput, MissingData, TilecastError
from tilecast.kernels.base import checked_engine
from tilecast.kernels.registry import kernel as kernel_record
from tilecast.kernels.registry import kernels
from tilecast.learning import boosting, training
from tilecast.learning.correction import Correction, write
from tilecast.learning.examples import LARGEST_LOG, modelled_rows
from tilecast.learning.training import Say, Settings

# Which sources teach a family; those that are not here are left out, and the manifest says which were used.
SOURCES = {
    "gemm": ("aiconfigurator", "vidur", "frontier", "llmservingsim", "infersim", "pipeweave", "neusight"),
    "attention_prefill": ("aiconfigurator", "frontier", "llmservingsim", "infersim"),
    "attention_decode": ("aiconfigurator", "frontier", "llmservingsim", "infersim"),
    "mla_prefill": ("aiconfigurator",),
    "mla_decode": ("aiconfigurator", "infersim"),
    "moe": ("aiconfigurator", "pipeweave"),
}
# Attention's kernels change their mind most often along a shape; elsewhere shallower or fewer trees say as much in half the bytes.
DEEP = Settings(local_trees=400, local_depth=7, rows_per_slice=48_000)
SETTINGS = {
    "gemm": Settings(local_trees=600, local_depth=7, local_rate=0.25, rows_per_slice=48_000, most_host=0.2),
    "attention_prefill": replace(DEEP, most_host=0.2),
    "attention_decode": replace(DEEP, shared_as_timed=True, tells_cold_apart=True, most_host=0.2),
    "moe": Settings(tells_cold_apart=True),
}
KERNEL = ("dtype", "identity")
FAINT = 10  # times as many rows of a twin drown a GPU's own
ALL = "all"  # among names: the family's sources that are here, for a user who adds rows to them
QUICK = Settings(shared_trees=60, local_trees=60, local_depth=6, rows_per_slice=400)


def fit_family(family: str, names: Sequence[str], folder: Path, *, quick: bool = False, say: Say = print) -> tuple[Correction, Path]:
    """Train one family on the named sources (or files of a user's rows) and write its artifact and manifest."""
    settings = QUICK if quick else settings_of(family)
    rows = training_rows(family, names)
    correction = training.fit(rows, family, settings=settings, manifest=manifest(family, rows, settings), say=say)
    return correction, write(correction, folder)


def settings_of(family: str) -> Settings:
    return SETTINGS.get(family, Settings())


def training_rows(family: str, names: Sequence[str]) -> pl.DataFrame:
    """Usable rows of the sources (without names, or for "all", the family's that are here), and a user's files as they are."""
    files = [Path(name) for name in names if Path(name).suffix in (".csv", ".parquet")]
    here = store.available()
    default = [name for name in SOURCES[family] if isinstance(here[name], Path)]
    given = [name for name in names if Path(name) not in files]
    stored = list(dict.fromkeys(one for name in given for one in (default if name == ALL else [name]))) if names else default
    kernel = pl.col(*KERNEL, *(["moe_pass"] if family == "moe" else [])).cast(pl.String).fill_null("-").str.replace("fp16|bf16", "16-bit")
    frames: list[pl.DataFrame] = []
    spoken_for: set[str] = set()
    for name in stored:  # labs differ by more than shapes do: the first source that has a kernel on a GPU is the one that speaks for it
        found = _stored_rows(family, name).with_columns(pl.concat_str(kernel, separator=" ").alias("_kernel"))
        key = pl.concat_str(pl.col("gpu").cast(pl.String), "_kernel", separator=" ")
        found = found.with_columns(key.alias("_key")).filter(~pl.col("_key").is_in(sorted(spoken_for)))
        spoken_for |= set(found["_key"].unique())
        frames.append(found.drop("_key"))
    rows = _without_faint_twins(pl.concat(frames)).drop("_kernel") if frames else pl.DataFrame()
    rows = pl.concat([*([rows] if frames else []), *(user_rows(path, family) for path in files)]) if files else rows
    if not rows.height:
        raise MissingData(f"no usable rows of {family} in {', '.join(names or SOURCES[family])}")
    return rows


def _without_faint_twins(rows: pl.DataFrame) -> pl.DataFrame:
    """Without a kernel's few rows on a GPU whose twin has far more of it: they cover few shapes, and speak of their lab's habits elsewhere.

    H800's 16-bit products were measured at 128 tokens and fewer: with its own level and trees it was a twelfth faster than an H100.
    """
    counts = {(str(gpu), kernel): count for gpu, kernel, count in rows.group_by("gpu", "_kernel").len().iter_rows()}
    kin = {gpu: splits.twins(gpu) for gpu in {gpu for gpu, _ in counts}}
    faint = [
        f"{gpu} {kernel}"
        for (gpu, kernel), count in counts.items()
        if count * FAINT < max((counts.get((twin, kernel), 0) for twin in kin[gpu]), default=0)
    ]
    return rows.filter(~pl.concat_str(pl.col("gpu").cast(pl.String), "_kernel", separator=" ").is_in(faint))


def _stored_rows(family: str, name: str) -> pl.DataFrame:
    """The newest version of each engine where a source has several campaigns; single rows of one tuned configuration teach nothing here.

    Engines have changed their kernels of experts from release to release, and releases in use still run the former ones.
    """
    rows = store.rows(family, [name])
    if name == "aiconfigurator":
        return splits.with_former_kernels(rows) if family == "moe" else splits.newest(rows)
    if "kv_lens" in rows.columns:
        rows = rows.filter(pl.col("kv_lens").is_null())  # ragged batches have no single length to learn from
    return rows.filter(~pl.col("origin").cast(pl.String).str.contains("moe_dse|moe_tuning"))


def user_rows(path: Path, family: str) -> pl.DataFrame:
    """A file with the columns of `tilecast kernels` plus measured_s, or of `tilecast data export`, as schema rows; an empty cell is the
    default, a row that was set aside is left out, and absurd latencies are refused."""
    if not path.is_file():
        raise MissingData(f"no file {path}")
    try:
        raw = pl.read_csv(path, infer_schema_length=None) if path.suffix == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise MissingData(f"{path} is damaged: {str(problem).splitlines()[0]}") from None
    raw = raw.with_columns(pl.col(pl.Categorical).cast(pl.String)).with_columns(pl.col(pl.String).str.strip_chars().replace("", None))
    if "measured_s" not in raw.columns:
        raw = raw.rename({"latency_s": "measured_s"}, strict=False)
    _demand(path, raw, ("family", "gpu", "dtype", "measured_s"))
    numbered = raw.drop("origin_row", strict=False).with_row_index("origin_row")
    if "set_aside" in numbered.columns:
        numbered = numbered.filter(pl.col("set_aside").is_null())
    is_known = pl.col("family").is_null() | pl.col("family").cast(pl.String).is_in(list(kernels()))
    _refuse(path, numbered, "family", is_known, f"is no kernel: {', '.join(SOURCES)} can be learned")
    mine = numbered.filter(pl.col("family") == family)
    if not mine.height:
        return conform(
            pl.DataFrame(schema={"gpu": pl.String, "latency_s": pl.Float64}), family, source="user", licence="", origin=path.name
        )
    wanted = ("gpu", "dtype", "measured_s", *_required(family))
    _demand(path, raw, wanted)
    known = [name for name in ("dtype", "identity", "timer", "cache", "engine", *SHAPES[family]) if name in mine.columns]
    measured = pl.col("measured_s").cast(pl.Float64, strict=False)
    _refuse(path, mine, "measured_s", measured.is_finite() & measured.is_between(1e-8, 1e3), "must lie between 1e-8 and 1000 seconds")
    for name in wanted:
        _refuse(path, mine, name, pl.col(name).is_not_null(), "must be given")
    for name in (name for name in known if SHAPES[family].get(name) == pl.Int64):
        size = pl.col(name).cast(pl.Float64, strict=False)
        _refuse(path, mine, name, pl.col(name).is_null() | (size == size.floor()), "must be a whole number")
    for name in (name for name in known if SHAPES[family].get(name) == pl.Boolean):
        said = pl.col(name).cast(pl.String).str.to_lowercase()
        _refuse(path, mine, name, said.is_null() | said.is_in(["true", "false"]), "must be true or false")
        mine = mine.with_columns(pl.when(said.is_not_null()).then(said == "true").alias(name))
    frame = mine.select("origin_row", "gpu", *known, measured.alias("latency_s"))
    defaults = {"timer": "profiler", "cache": "cold", "engine": "sglang"}
    for name, value in defaults.items():
        column = pl.col(name).fill_null(value) if name in frame.columns else pl.lit(value)
        frame = frame.with_columns(column.alias(name))
    for name, plain in (("gpu", lambda text: hardware.gpu(text).id), ("engine", checked_engine)):
        frame = frame.with_columns(pl.col(name).replace_strict(_meanings(path, frame, name, plain), return_dtype=pl.String))
    try:
        rows = conform(frame, family, source="user", licence="the user's own", origin=path.name)
    except pl.exceptions.PolarsError as problem:
        raise InvalidInput(f"{path}: {str(problem).splitlines()[0]}") from None
    _refuse_unmodelled(path, rows, family)
    return rows


def _refuse_unmodelled(path: Path, rows: pl.DataFrame, family: str) -> None:
    """Every row of a user counts, so one that no kernel can be built from, or that physics cannot be meant by, is named."""
    for place, measured_s, modelled in modelled_rows(rows, family):
        if isinstance(modelled, str):
            raise InvalidInput(f"{path}, row {place + 1}: {modelled}")
        if abs(math.log(measured_s / modelled)) >= LARGEST_LOG:
            raise InvalidInput(
                f"{path}, row {place + 1}: measured_s = {measured_s:g} is {measured_s / modelled:.3g} times the {modelled:.3g} s that "
                "physics gives: is it in seconds?"
            )


def _meanings(path: Path, frame: pl.DataFrame, name: str, plain: Callable[[str], str]) -> dict[str, str]:
    """What each text of a column means; one that means nothing is refused with the first row that has it."""
    found = {}
    for text, place in frame.unique(name, keep="first", maintain_order=True).select(name, "origin_row").iter_rows():
        try:
            found[text] = plain(str(text))
        except TilecastError as problem:
            raise type(problem)(f"{path}, row {place + 1}: {problem}") from None
    return found


def _demand(path: Path, raw: pl.DataFrame, wanted: Sequence[str]) -> None:
    missing = next((name for name in wanted if name not in raw.columns), None)
    if missing is not None:
        also = " (or latency_s)" if missing == "measured_s" else ""
        raise InvalidInput(f"{path} lacks the column {missing!r}{also}; it has {', '.join(raw.columns)}")


def _required(family: str) -> list[str]:
    """The shape columns without which a launch of the family means nothing."""
    return [entry.name for entry in fields(kernel_record(family)) if entry.name in SHAPES[family] and entry.default is MISSING]


def _refuse(path: Path, frame: pl.DataFrame, name: str, is_good: pl.Expr, rule: str) -> None:
    bad = frame.filter(~is_good.fill_null(False))
    if bad.height:
        raise InvalidInput(f"{path}, row {bad['origin_row'][0] + 1}: {name} = {bad[name][0]} {rule}")


def manifest(family: str, rows: pl.DataFrame, settings: Settings) -> dict[str, Any]:
    """Where the weights come from, so that anyone can make them again."""
    counts = rows.group_by(pl.col("gpu").cast(pl.String)).len().sort("gpu")
    sources = rows.group_by(pl.col("source").cast(pl.String), pl.col("licence").cast(pl.String)).len().sort("source")
    homes = {name: entry.home for name, entry in store.sources().items()}
    return {
        "family": family,
        "date": date.today().isoformat(),
        "tilecast": tilecast.__version__,
        "catalogue": hardware.catalogue_hash(),
        "seed": boosting.SEED,
        "num_rows": rows.height,
        "rows_per_gpu": dict(counts.iter_rows()),
        "sources": [
            {"name": name, "licence": licence, "rows": count, "home": homes.get(name, "")} for name, licence, count in sources.iter_rows()
        ],
        "settings": {name: getattr(settings, name) for name in settings.__slots__},
        "trained_on": f"of these rows up to {settings.rows_per_slice:,} of each GPU, engine, format and identity, drawn by the seed, "
        f"without those beyond {math.exp(LARGEST_LOG):.0f} times physics, and those that throttled, which only intervals and scores see; "
        "scores are from weights fitted without the rows they are scored on",
    }
