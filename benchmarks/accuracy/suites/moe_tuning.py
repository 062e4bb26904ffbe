"""Choosing a Triton configuration for the MoE kernel: is the first pick, or one of a shortlist of eight, within 1 % of the best measured?

A search of 288 problems (16 expert shapes x 18 token counts) per GPU kept every configuration within 1 % of the best, and the best three:
that a pick is in this set is known, how much slower another one is is not.
"""

from itertools import pairwise
from math import log

import polars as pl

from benchmarks.accuracy import tuning_picks
from benchmarks.accuracy.peer_tables import Share, errors, parquet, scored, share, spearman
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.shipped_configs import agreement
from benchmarks.accuracy.tuning_picks import Picks
from tilecast import hardware
from tilecast.datasets import splits
from tilecast.datasets.sources.pipeweave import GPUS
from tilecast.tuning.training import Study

SHAPE = ("E", "topk", "H", "N")
PROBLEM = ("gpu", "M", *SHAPE)
TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
CONFIG = (*TILE, "num_warps", "num_stages")
PREDICTED = (*PROBLEM, "measured", "predictor", "kind", "predicted")
SHORTLIST = 8
# SGLang without a tuned file: one configuration up to as many tokens as experts, another above.
SGLANG_FEW, SGLANG_MANY = (16, 32, 64, 1, 4, 3), (64, 64, 64, 16, 4, 3)


def searched() -> pl.DataFrame:
    """Every kept configuration of every problem, with its `rank` by measured time and whether it is `good`: within 1 % of the best."""
    columns = f"{' '.join(PROBLEM)} {' '.join(CONFIG)} duration_us within_99"
    table = parquet("pipeweave", "moe_dse_configs.parquet", columns, GPUS).rename({"within_99": "good"})
    return table.with_columns(pl.col("duration_us").rank("ordinal").over(PROBLEM).alias("rank")).drop("origin_row")


def problems(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(PROBLEM).unique(maintain_order=True)


def hit_shares(picks: pl.DataFrame, good: pl.DataFrame) -> tuple[float, float, int]:
    """(first pick good, shortlist holds a good one, number of problems) in percent of the problems that `picks` has a pick for.

    `picks` has one row per problem and configuration, `rank` 1 being the first; `good` the configurations that were good.
    """
    shortlists = picks.filter(pl.col("rank") <= SHORTLIST)
    hits = shortlists.join(good, on=[*PROBLEM, *CONFIG], how="semi")
    count = shortlists.select(PROBLEM).n_unique()
    return 100 * hits.filter(pl.col("rank") == 1).height / count, 100 * hits.select(PROBLEM).n_unique() / count, count


def smaller_token_count(table: pl.DataFrame) -> pl.DataFrame:
    """What was best for the next smaller token count, same GPU and shape; the smallest count has no pick."""
    counts = sorted(table["M"].unique())
    return table.with_columns(pl.col("M").replace_strict(dict(pairwise(counts)), default=None)).drop_nulls("M")


def from_gpu(table: pl.DataFrame, source: str, target: str) -> pl.DataFrame:
    """What was best on another GPU for the same problem."""
    return table.filter(pl.col("gpu") == source).with_columns(pl.lit(target).alias("gpu"))


def nearest_gpu(target: str, others: list[str]) -> str:
    """The GPU with the least sum of |log ratios| of 16-bit rate, DRAM bandwidth and shared memory per SM."""

    def distance(other: str) -> float:
        a, b = hardware.gpu(target), hardware.gpu(other)
        assert a.shared_bytes_per_sm is not None and b.shared_bytes_per_sm is not None
        ratios = (
            a.tensor_rate("bf16") / b.tensor_rate("bf16"),
            a.dram_bytes_per_s / b.dram_bytes_per_s,
            a.shared_bytes_per_sm / b.shared_bytes_per_sm,
        )
        return sum(abs(log(ratio)) for ratio in ratios)

    return min(others, key=distance)


def sglang_default(table: pl.DataFrame) -> pl.DataFrame:
    """What SGLang runs without a tuned file; where the search kept it, its time is the summary's own SGLang time."""
    few = pl.when(pl.col("M") <= pl.col("E"))
    values = zip(CONFIG, SGLANG_FEW, SGLANG_MANY, strict=True)
    config = [few.then(small).otherwise(large).cast(pl.Int64).alias(name) for name, small, large in values]
    return problems(table).with_columns(*config, pl.lit(1).alias("rank"))


def most_frequent(training: pl.DataFrame, targets: pl.DataFrame, on: list[str], *, winners: bool) -> pl.DataFrame:
    """For each target the configurations that most often won (or were good) in the training problems that agree with it in `on`."""
    counts = training.group_by(*on, *CONFIG).agg((pl.col("rank") == 1).sum().alias("wins"), pl.col("good").sum().alias("goods"))
    order = ["wins", "goods"] if winners else ["goods", "wins"]
    ranked = counts.sort(*order, *CONFIG, descending=[True, True, *(False for _ in CONFIG)])
    shortlist = ranked.with_columns(pl.int_range(1, pl.len() + 1).over(on).alias("rank")).filter(pl.col("rank") <= SHORTLIST)
    return targets.join(shortlist, on=on, how="inner")


def frequent_of_other_shapes(table: pl.DataFrame, *, winners: bool) -> pl.DataFrame:
    """Held out by shape: same GPU and token count, the other 15 expert shapes."""
    picks = []
    for shape in table.select(SHAPE).unique(maintain_order=True).rows():
        is_held = pl.all_horizontal(pl.col(name) == value for name, value in zip(SHAPE, shape, strict=True))
        picks.append(most_frequent(table.filter(~is_held), problems(table.filter(is_held)), ["gpu", "M"], winners=winners))
    return pl.concat(picks)


def frequent_on_other_gpus(table: pl.DataFrame, *, winners: bool) -> pl.DataFrame:
    """Held out by GPU, with the GPUs of its die: same problem, the others' winners."""
    picks = []
    for gpu in table["gpu"].unique(maintain_order=True):
        training = table.filter(~pl.col("gpu").is_in(splits.same_die(gpu)))
        picks.append(most_frequent(training, problems(table.filter(pl.col("gpu") == gpu)), ["M", *SHAPE], winners=winners))
    return pl.concat(picks)


def heuristic_tiles(table: pl.DataFrame) -> tuple[float, int]:
    """Percent of problems where PipeWeave's closed-form tile is that of some good configuration: warps and stages are given for free."""
    moe = parquet("pipeweave", "moe.parquet", f"{' '.join(PROBLEM)} {' '.join(f'assumed_{name}' for name in TILE)}", GPUS)
    picks = moe.rename({f"assumed_{name}": name for name in TILE}).join(problems(table), on=list(PROBLEM), how="semi")
    good_tiles = table.filter("good").select(*PROBLEM, *TILE).unique()
    return 100 * picks.join(good_tiles, on=[*PROBLEM, *TILE], how="semi").height / picks.height, picks.height


def tuning_shares(table: pl.DataFrame) -> list[Share]:
    gpus = table["gpu"].unique(maintain_order=True).to_list()
    good = table.filter("good")
    pairs = [(source, target) for target in gpus for source in gpus if source != target]
    nearest = {gpu: nearest_gpu(gpu, [other for other in gpus if other not in splits.same_die(gpu)]) for gpu in gpus}
    picks = {
        "best of the next smaller token count": smaller_token_count(table),
        "best of the nearest GPU of another die": pl.concat([from_gpu(table, source, target) for target, source in nearest.items()]),
        "SGLang's default": sglang_default(table),
        "most frequent winner of other shapes": frequent_of_other_shapes(table, winners=True),
        "most often within 1 % of other shapes": frequent_of_other_shapes(table, winners=False),
        "most often within 1 % on other GPUs": frequent_on_other_gpus(table, winners=False),
    }
    everything = problems(table).height
    shares: list[Share] = []
    for name, frame in picks.items():
        first, shortlist, count = hit_shares(frame, good)
        shares.append(share("first pick within 1 % of the best", name, first, count))
        if name != "SGLang's default":
            shares.append(share(f"one of {SHORTLIST} within 1 % of the best", name, shortlist, count))
        if count < everything:
            counted = first * count / everything
            shares.append(share("first pick within 1 % of the best, no pick counted as a miss", name, counted, everything))
    each = [hit_shares(from_gpu(table, source, target), good) for source, target in pairs]
    total = sum(count for *_, count in each)
    mean_first, mean_list = (sum(one[column] * one[2] for one in each) / total for column in (0, 1))
    shares.append(share("first pick within 1 % of the best", "best of another GPU, mean over pairs", mean_first, total))
    shares.append(share(f"one of {SHORTLIST} within 1 % of the best", "best of another GPU, mean over pairs", mean_list, total))
    matched, count = heuristic_tiles(table)
    shares.append(share("tile of a configuration within 1 % of the best", "PipeWeave's tile heuristic", matched, count))
    return shares


def speedups() -> pl.DataFrame:
    """Measured speed-up of the best configuration over SGLang's default; a few problems have none."""
    columns = f"{' '.join(PROBLEM)} speedup_vs_sglang"
    table = parquet("pipeweave", "moe_dse_summary.parquet", columns, GPUS).rename({"speedup_vs_sglang": "measured"})
    return table.drop("origin_row").drop_nulls("measured")


def speedup_baselines(measured: pl.DataFrame) -> pl.DataFrame:
    others = (pl.col("measured").sum() - pl.col("measured")) / (pl.len() - 1)
    elsewhere = []
    for gpu in measured["gpu"].unique(maintain_order=True):
        training = measured.filter(~pl.col("gpu").is_in(splits.same_die(gpu)))
        means = training.group_by("M", *SHAPE).agg(pl.col("measured").mean().alias("mean"))
        elsewhere.append(measured.filter(pl.col("gpu") == gpu).join(means, on=["M", *SHAPE], how="left", maintain_order="left"))
    return pl.concat(
        [
            scored(measured, "no speed-up", "baseline", pl.lit(1.0)),
            scored(measured, "mean speed-up of other shapes", "baseline", others.over("gpu", "M")),
            scored(pl.concat(elsewhere), "mean speed-up on other GPUs", "baseline", "mean").drop("mean"),
        ]
    )


def our_shares(table: pl.DataFrame, of: Study, ours: dict[str, Picks]) -> list[Share]:
    """Hits of our picks, on all problems and on those nobody looked at while settings were chosen; and what a first pick costs."""
    good = table.filter("good")
    shares: list[Share] = []
    for name, found in ours.items():
        frames = {"": found.picks}
        if "shape" in name:
            frames[", problems not looked at"] = found.picks.filter(~tuning_picks.looked_at(of, found.picks))
        for what, frame in frames.items():
            first, shortlist, count = hit_shares(frame, good)
            shares.append(share(f"first pick within 1 % of the best{what}", name, first, count))
            shares.append(share(f"one of {SHORTLIST} within 1 % of the best{what}", name, shortlist, count))
        for (gpu,), frame in found.picks.group_by("gpu", maintain_order=True):
            first, shortlist, count = hit_shares(frame, good)
            shares.append(share(f"first pick within 1 % of the best on {gpu}", name, first, count))
            shares.append(share(f"one of {SHORTLIST} within 1 % of the best on {gpu}", name, shortlist, count))
        low, high = regret(found.picks, table)
        shares.append(share("mean regret of the first pick, at least, %", name, low, problems(table).height))
        shares.append(share("mean regret of the first pick, at most, %", name, high, problems(table).height))
    return shares


def regret(picks: pl.DataFrame, table: pl.DataFrame) -> tuple[float, float]:
    """What the first pick costs over the best, in percent: known where the search kept it, else between 1 % and the space's median."""
    best = table.group_by(PROBLEM).agg(pl.col("duration_us").min().alias("best_us"))
    summary = parquet("pipeweave", "moe_dse_summary.parquet", f"{' '.join(PROBLEM)} median_us", GPUS).drop("origin_row")
    first = picks.filter(pl.col("rank") == 1).join(best, on=PROBLEM, how="left").join(summary, on=PROBLEM, how="left")
    timed = first.join(table.select(*PROBLEM, *CONFIG, "duration_us"), on=[*PROBLEM, *CONFIG], how="left")
    known = 100 * (pl.col("duration_us") / pl.col("best_us") - 1)
    low = timed.select(known.fill_null(1.0).mean()).item()
    high = timed.select(known.fill_null(100 * (pl.col("median_us") / pl.col("best_us") - 1)).mean()).item()
    return float(low), float(high)


def run(quick: bool) -> Result:
    table = searched()
    measured = speedups()
    of, ours = tuning_picks.everything(SHORTLIST, quick)
    predictions = pl.concat([
        speedup_baselines(measured).select(PREDICTED),
        *(scored(measured.join(found.gains, on=PROBLEM, how="inner"), name, "ours").select(PREDICTED) for name, found in ours.items()),
    ])  # fmt: skip
    ranks = spearman(predictions).select("predictor", "spearman", "rows").rows()
    gpus = measured["gpu"].n_unique()
    gains = measured["measured"].to_numpy()
    return Result(
        suite=SUITE.name,
        question="Is the chosen Triton configuration of an MoE kernel within 1 % of the best one measured?",
        predictions=predictions,
        slices=("gpu",),
        splits=[
            {"kind": "shape", "held out": "each (E, topk, H, N) in turn", "seed": None, "problems": problems(table).height},
            {"kind": "gpu, siblings out", "held out": "each GPU in turn", "seed": None, "problems": problems(table).height},
        ],
        shares=[
            *our_shares(table, of, ours),
            *tuning_shares(table),
            *errors(predictions, "speed-up", "problems"),
            *(share("speed-up, rank correlation over problems", name, value, rows) for name, value, rows in ranks),
            *(() if quick else agreement()),
        ],
        notes=[
            f"{problems(table).height} problems: 16 expert shapes x 18 token counts x {gpus} GPUs; the w13 pass alone, balanced routing,"
            " bf16; three samples of each configuration, so the best of many is a little lucky and the 1 % set a little arbitrary.",
            "The 59 % quoted for copying the next smaller token count lies between its two readings here: of the problems that have one,"
            " and of all problems.",
            "The error table is about the speed-up of the best configuration over SGLang's default, which is"
            f" {gains.mean():.2f}x on average and {gains.max():.2f}x at most.",
            "A shortlist copied from elsewhere holds only what the search kept there: often fewer than eight configurations.",
            "Tilecast's settings for searched GPUs were chosen on four shapes; the lines 'problems not looked at' leave these out. Those"
            " for GPUs nobody searched were chosen by folds that leave out two dies and ask one of them, one problem in four: no setting"
            " was chosen with a fold that is scored here, but the problems are the same.",
            "Regret: exact where the search kept the pick, else between 1 % and the median of the space.",
            "Nearest GPU: least sum of |log ratios| of 16-bit rate, DRAM bandwidth and shared memory per SM.",
        ],
        target="copying the next smaller token count's best 59 %, another GPU's best 17 %; SGLang's default loses 1.11-1.19x on average",
    )


SUITE = Suite(
    name="moe-tuning",
    title="Choosing the MoE kernel's configuration",
    run=run,
    folders=("pipeweave",),
)
