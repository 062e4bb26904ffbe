"""Corrections as if one GPU had never been measured, for whole models and served points: every family, without a row of that GPU."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from benchmarks.accuracy.progress import say
from tilecast.datasets.splits import same_die
from tilecast.errors import MissingData
from tilecast.learning import recipes
from tilecast.learning.correction import Correction
from tilecast.learning.examples import examples
from tilecast.learning.training import Settings, fit_once

ROWS, SHARED_ROWS = 1500, 500  # of one GPU, engine, dtype and identity: a suite fits six families for each GPU


def corrections_without(gpu: str, families: tuple[str, ...] = tuple(recipes.SOURCES), rows: int = ROWS) -> Mapping[str, Correction]:
    """Shared trees from all other GPUs; trees of their own for those of the same die, which stand in."""
    found = {}
    for family in families:
        say(f"  {family}: fitting without {gpu}")
        others = recipes.training_rows(family, ()).filter(pl.col("gpu").cast(pl.String) != gpu)
        settings: Settings = replace(recipes.settings_of(family), rows_per_slice=rows, shared_rows=min(rows, SHARED_ROWS))
        try:
            data = examples(others, family, rows_per_slice=settings.rows_per_slice, most_host=settings.most_host)
        except MissingData:  # nobody else has rows of this family: physics alone
            continue
        found[family] = fit_once(data, family, settings, own=tuple(other for other in same_die(gpu) if other != gpu))
    return found
