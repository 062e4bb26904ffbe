"""Are the stated intervals true, and are they worth more than one width for all? Coverage, sharpness and rank correlation per group."""

import numpy as np
import polars as pl

from benchmarks.accuracy.result import Result

FEWEST = 50  # rows of a group


def interval_shares(result: Result) -> list[dict[str, object]]:
    """Rows of `Result.shares` for every predictor that gives intervals: over all, by what was held out, and by the first slice column."""
    if not {"low", "high"} <= set(result.predictions.columns):
        return []
    rows = result.predictions.filter(pl.col("low").is_not_null() & pl.col("predicted").is_not_null())
    found: list[dict[str, object]] = []
    for (predictor,), mine in rows.group_by("predictor", maintain_order=True):
        groups = [("all", mine)]
        for column in _told_apart(result):
            groups += [(f"{column} {key}", part) for (key,), part in mine.group_by(column, maintain_order=True)]
        for name, part in groups:
            if part.height >= FEWEST:
                found += [{"name": f"{what}: {name}", "predictor": str(predictor), "value": value, "of": part.height}
                          for what, value in _figures(part).items()]  # fmt: skip
    return found


def _told_apart(result: Result) -> list[str]:
    """What was held out, where a suite holds out several things, and the first slice column."""
    return [name for name in dict.fromkeys(("held_out", result.slices[0])) if name in result.slices]


def _figures(rows: pl.DataFrame) -> dict[str, float]:
    measured, predicted, low, high = (rows[name].to_numpy() for name in ("measured", "predicted", "low", "high"))
    error = np.abs(np.log(measured / predicted))
    width = 0.5 * np.log(high / low)
    inside = (low <= measured) & (measured <= high)
    constant = np.quantile(error, inside.mean())  # the one width that holds as many
    rank = np.corrcoef(width.argsort().argsort(), error.argsort().argsort())[0, 1]
    return {
        "inside the 80 % interval": float(inside.mean()),
        "its width over a constant one of equal coverage": float(width.mean() / constant),
        "rank correlation of width and error": float(rank),
    }
