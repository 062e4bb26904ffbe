"""NeuSight's FP32 PyTorch kernels on its own split: trained on older GPUs, tested on transformer shapes and on L4 and A100-80."""

import polars as pl

from benchmarks.accuracy import peers
from benchmarks.accuracy.ours import Learned
from benchmarks.accuracy.progress import ingesting, say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.scoring import SEED, answered, capped, cases, contenders, scored
from tilecast.datasets import store
from tilecast.datasets.quality import is_steady
from tilecast.datasets.splits import Split
from tilecast.learning.correction import ERRORS

SLICES = ("gpu", "op", "held_out")
FAMILIES = {"bmm": "gemm", "linear": "gemm", "elementwise": "elementwise", "softmax": "softmax", "layernorm": "layer_norm"}
TRAINED_ON = ("p4", "p100-pcie-16gb", "v100-pcie-32gb", "t4", "a100-pcie-40gb", "mi100", "mi210")
QUICK_ROWS = 60  # test rows per GPU and op; twenty times as many for training


def sides(op: str, quick: bool = False) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(train, test) rows of one operator, as the source divided them, with the slice columns."""
    origin, gpu = pl.col("origin").cast(pl.String), pl.col("gpu").cast(pl.String)
    rows = store.rows(FAMILIES[op], ["neusight"], progress=ingesting).filter(pl.col("dtype").cast(pl.String) == "fp32")
    if "op" not in rows.columns:  # elementwise rows have their own: add, mul, ...
        rows = rows.with_columns(pl.lit(op).alias("op"))
    train = rows.filter((origin == f"{op}.parquet#train") & gpu.is_in(TRAINED_ON))
    taught = train.filter(is_steady())["gpu"].cast(pl.String).unique().to_list()
    held_out = pl.when(gpu.is_in(taught)).then(pl.lit("shapes")).otherwise(pl.lit("GPU"))
    test = rows.filter(origin == f"{op}.parquet#test").with_columns(held_out.alias("held_out"))
    return (capped(train, ["gpu"], 20 * QUICK_ROWS), capped(test, ["gpu"], QUICK_ROWS)) if quick else (train, test)


def run(quick: bool) -> Result:
    predictions, made = [], []
    for op, family in FAMILIES.items():
        train, test = sides(op, quick)
        say(f"  {op}: {train.height:,} training and {test.height:,} test rows")
        frames = [scored(contenders(Learned(ERRORS)), train, test, family, SLICES), *_peers(op, family, test)]
        predictions.append(pl.concat(frames).with_columns(pl.lit(op).alias("op")))
        split = Split("the source's own", f"{op} test rows", 0, train.height, test.height)
        made.append({"family": family, **split.to_dict()})
    return Result(
        suite=SUITE.name,
        question="How far off is a single FP32 PyTorch call on NeuSight's own test rows?",
        predictions=pl.concat(predictions),
        slices=SLICES,
        splits=made,
        notes=(
            f"Trained on {', '.join(TRAINED_ON)}. L4 and A100-80 (PCIe) are unseen; the latter shares its die with A100-40.",
            "AMD's GEMM training rows are not public, so MI100 and MI210 are unseen for bmm and linear.",
            "NeuSight, Habitat, Li et al. and NeuSight's roofline are their published whole-model answers for the few kernels that were "
            "also measured; NeuSight retrained is its code trained again with fewer epochs, on every NVIDIA test row, with the tile it "
            "looks up, as deployed (told the tile of the kernel that really ran, it does better, but nobody can tell it that).",
            "Times are CUDA events around one call and include the host's launch gap (24-90 us).",
            "T4's and P4's products were swept until the boards throttled (training and test rows of P4 are four times apart, of T4 1.25 "
            "times): they are scored and teach nothing but how far off one can be, so both boards are unseen for bmm and linear.",
            "conv rows have no test split and no peer that models them, so they are not scored.",
            *((f"Quick: {QUICK_ROWS} test rows per GPU and op, twenty times as many training rows, seed {SEED}.",) if quick else ()),
        ),
        target="NeuSight, published weights: linear A100-80 22 %, L4 36 %; bmm A100-80 5.0 %, L4 30.7 %",
    )


def _peers(op: str, family: str, test: pl.DataFrame) -> list[pl.DataFrame]:
    case = cases(test, family, SLICES)
    found = [answered(case, "NeuSight retrained", "peer", peers.neusight_retrained(test, op))]
    if op in ("bmm", "linear"):
        found += [answered(case, name, "peer", peers.published_kernels(test, op, key)) for key, name in peers.PUBLISHED.items()]
    return found


SUITE = Suite("fp32-kernels", "FP32 PyTorch kernels on NeuSight's split", run, needs=("neusight",))
