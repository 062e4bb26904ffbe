"""Tilecast's picks for the published searches: every problem is asked of a ranking that never saw its shape, or its GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from benchmarks.accuracy.progress import say
from tilecast import hardware
from tilecast.tuning.search import ranked, shortlist_of, stand_in
from tilecast.tuning.searches import CONFIG, PROBLEM, searches, spaces
from tilecast.tuning.training import Fold, Settings, Study, gpu_folds, shape_folds, study

NUM_FOLDS = 8  # two of the 16 shapes at a time
QUICK = Settings(shared_trees=40, local_trees=30, abroad_trees=40, gain_trees=40, gain_local_trees=20, near=30, far=20)
QUICK_STEP = 7  # one problem in so many
LOOKED_AT_SHAPES = (2, 6, 10, 14)  # settings were chosen while looking at these alone; the other shapes were scored once


@dataclass(frozen=True, slots=True, eq=False)
class Picks:
    """One row per problem and pick (`rank` 1 first), and one per problem with the predicted speed-up of the best over the default."""

    picks: pl.DataFrame
    gains: pl.DataFrame


def everything(size: int, quick: bool) -> tuple[Study, dict[str, Picks]]:
    settings = QUICK if quick else Settings()
    of = study(searches()[:: QUICK_STEP if quick else 1])
    made = {
        "Tilecast, shape held out": shape_folds(of, settings, say, num_folds=2 if quick else NUM_FOLDS),
        "Tilecast, GPU and its die held out": gpu_folds(of, settings, say, siblings="out"),
        **({} if quick else {"Tilecast, GPU held out": gpu_folds(of, settings, say, siblings="in")}),
    }
    return of, {name: picks(of, folds, size) for name, folds in made.items()}


def picks(of: Study, folds: Sequence[Fold], size: int) -> Picks:
    known = spaces(sorted(set(of.gpus.tolist())))
    rows, gains = [], []
    for fold in folds:
        for place in fold.asked:
            problem = of.problems[place]
            space = known[problem.gpu]
            spec = hardware.gpu(problem.gpu)
            whose = stand_in(spec, fold.ranking.gpus)
            chosen = shortlist_of(
                ranked(problem.kernel, spec, space, fold.ranking).logit, space, size, distinct=whose not in fold.ranking.gpus
            )
            rows += [(*problem.key, *space.config(row).values(), rank) for rank, row in enumerate(chosen, start=1)]
            gains.append((*problem.key, float(np.exp(fold.ranking.log_gain(of.defaults[place : place + 1], whose)[0]))))
    names = [*PROBLEM, *CONFIG, "rank"]
    return Picks(
        pl.DataFrame(rows, schema=names, orient="row"),
        pl.DataFrame(gains, schema=[*PROBLEM, "predicted"], orient="row"),
    )


def looked_at(of: Study, frame: pl.DataFrame) -> pl.Series:
    """Whether a problem is of a shape that settings were chosen on."""
    shapes = sorted({problem.shape for problem in of.problems})
    seen = {shapes[place] for place in LOOKED_AT_SHAPES if place < len(shapes)}
    return pl.Series([row[2:] in seen for row in frame.select(PROBLEM).iter_rows()])
