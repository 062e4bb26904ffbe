"""Who is best, and on which rows: tables made from a suite's result that its files and the summary share."""

from dataclasses import replace

import polars as pl

from benchmarks.accuracy.result import Result, by_slice, headline

KINDS = ("ours", "baseline", "peer")
LEAST_COVERAGE = 0.5  # of the cases, for a predictor to be called the best while others answer more
SHIPPED = "tilecast"


def num_cases(table: pl.DataFrame) -> int:
    """How many cases a suite has: a predictor may leave some out instead of failing on them."""
    return max((rows + failed for rows, failed in table.select("rows", "failed").iter_rows()), default=0)


def best(table: pl.DataFrame, *kinds: str) -> str | None:
    """The predictor of these kinds with the smallest headline error, among those that answer most cases if any does. Of ours, what ships:
    physics alone stands beside it on the page, better or worse."""
    if (
        kinds == ("ours",)
        and table.filter((pl.col("predictor") == SHIPPED) & (pl.col("kind") == "ours") & pl.col("mape").is_finite()).height
    ):
        return SHIPPED
    of_kind = table.filter(pl.col("kind").is_in(list(kinds or KINDS)) & pl.col("mape").is_finite())
    broad = of_kind.filter(pl.col("rows") >= LEAST_COVERAGE * num_cases(table))
    ranked = (broad if broad.height else of_kind).sort("mape", "predictor")
    return str(ranked["predictor"][0]) if ranked.height else None


def champion(table: pl.DataFrame) -> str | None:
    """The predictor whose worst cases are worth reading: our best one, else the best there is."""
    return best(table, "ours") or best(table)


def case_columns(result: Result) -> list[str]:
    """What tells one measured case from another: its slice, its measurement and every text about it."""
    known = ("predictor", "kind", *result.slices)
    texts = [name for name, kind in result.predictions.schema.items() if kind == pl.String and name not in known]
    return [*result.slices, "measured", *texts]


def on_rows_of(result: Result, predictor: str) -> pl.DataFrame:
    """Everybody's headline on exactly the cases that `predictor` answered."""
    columns = case_columns(result)
    rows = result.predictions
    answered = rows.filter((pl.col("predictor") == predictor) & pl.col("predicted").is_not_null()).select(columns).unique()
    return headline(replace(result, predictions=rows.join(answered, on=columns, how="semi", nulls_equal=True, maintain_order="left")))


def partial(table: pl.DataFrame) -> list[str]:
    """Predictors that answered some cases but not all."""
    return [str(name) for name in table.filter((pl.col("rows") < num_cases(table)) & (pl.col("rows") > 0))["predictor"]]


def same_rows(result: Result) -> list[tuple[list[str], pl.DataFrame]]:
    """(predictors that answered the same part of the cases, everybody's headline on that part)."""
    found: list[tuple[list[str], pl.DataFrame]] = []
    for name in partial(headline(result)):
        table = on_rows_of(result, name)
        for names, known in found:
            if known.equals(table):
                names.append(name)
                break
        else:
            found.append(([name], table))
    return found


def mape_by(result: Result, *columns: str) -> pl.DataFrame:
    """One row per value of the slice columns, one column of mean MAPE per predictor; means over the slices inside."""
    scores = by_slice(result)
    order = headline(result)["predictor"].to_list()
    wide = scores.pivot("predictor", index=list(columns), values="mape", aggregate_function="mean", maintain_order=True)
    most = scores.group_by("predictor", *columns).agg(pl.col("rows").sum()).group_by(columns).agg(pl.col("rows").max())
    return wide.join(most, on=list(columns), how="left", nulls_equal=True).select(*columns, "rows", *order).sort(columns, nulls_last=True)
