"""Whole PyTorch models in FP32, forward and backward: NeuSight's labels, beside the four predictors it stored."""

from functools import partial
from typing import Any

import polars as pl

from benchmarks.accuracy import label_limits, per_operator
from benchmarks.accuracy.ours import Learned
from benchmarks.accuracy.peer_tables import Share, errors, parquet, plain, scored, share
from benchmarks.accuracy.progress import say
from benchmarks.accuracy.result import Result, Suite
from benchmarks.accuracy.suites import fp32_kernels
from tilecast import hardware
from tilecast.datasets import splits, store
from tilecast.datasets.sources.neusight import GPUS
from tilecast.engines.step import predict_step
from tilecast.errors import UnknownName
from tilecast.learning.correction import ERRORS
from tilecast.predictors import predict_kernel
from tilecast.workloads.aggregate import Price
from tilecast.workloads.step_models import resolved

CASE = ("gpu", "model", "mode", "seq_len", "batch", "option")
PREDICTED = {"forward": "pred_fw_ms", "backward": "pred_bw_ms", "total": "pred_e2e_ms"}
PEERS = {"neusight": "NeuSight", "roofline": "roofline (NeuSight's)", "habitat": "Habitat", "micro": "Li et al."}
GROUPS = {"new GPUs (L4, A100-80GB)": ("l4", "a100-pcie-80gb"), "power-limited (T4, P4)": ("t4", "p4")}
COMPARED = ("tilecast", label_limits.ADDED)
SLICES = ("nvidia inference", "nvidia training", "fused", "amd inference", "amd training", "distributed")


def cases() -> pl.DataFrame:
    """One row per case and part, in seconds. Inference has a total only: it is the forward pass itself.

    Labels that quality sets aside stay in, marked: the peer's own figures count them, and the shares say what they change.
    """
    rows = plain(store.rows("step", ["neusight"], usable=False)).rename({"latency_s": "measured", "metric": "part"})
    vendors = {gpu: hardware.gpu(gpu).vendor.lower() for gpu in rows["gpu"].unique()}
    plain_slice = pl.concat_str(pl.col("gpu").replace_strict(vendors), pl.lit(" "), pl.col("mode"))
    fused = pl.when(pl.col("option") == "fusion").then(pl.lit("fused")).otherwise(plain_slice)
    slice_ = pl.when(pl.col("num_gpus") > 1).then(pl.lit("distributed")).otherwise(fused)
    kept = rows.filter((pl.col("mode") == "training") | (pl.col("part") == "total"))
    return kept.select(*(name for name in CASE if name != "option"), pl.col("option").fill_null(""), "part", slice_.alias("slice"),
                       "measured", "num_gpus", "set_aside")  # fmt: skip


def peers(measured: pl.DataFrame) -> pl.DataFrame:
    """The stored predictors on the cases they predicted."""
    wide = parquet("neusight", "e2e_predictions.parquet", f"predictor {' '.join(CASE)} {' '.join(PREDICTED.values())}", GPUS)
    names = {column: part for part, column in PREDICTED.items()}
    mode = pl.col("mode").replace_strict({"inf": "inference", "train": "training"})
    long = wide.rename(names).with_columns(mode).unpivot(list(PREDICTED), index=["predictor", *CASE], variable_name="part", value_name="ms")
    told = long.filter(pl.col("ms") > 0)  # 0 where only the total was predicted
    joined = told.join(measured, on=[*CASE, "part"], how="inner", maintain_order="left")
    return joined.select(
        *measured.columns,
        pl.col("predictor").replace_strict(PEERS),
        pl.lit("peer").alias("kind"),
        (pl.col("ms") / 1e3).alias("predicted"),
    )


def peers_price(quick: bool) -> Price:
    """Kernels priced with what NeuSight's protocol allows: its training rows of matrix products on its training GPUs, else physics."""
    train = pl.concat([fp32_kernels.sides(op, quick)[0] for op in ("bmm", "linear")], how="diagonal_relaxed")
    say(f"  matrix products: {train.height:,} training rows")
    fitted = Learned(errors=ERRORS, own=fp32_kernels.TRAINED_ON)
    fitted.fit(train, "gemm")
    return partial(predict_kernel, corrections={"gemm": fitted.correction} if fitted.correction is not None else {})


def layout(option: str) -> dict[str, Any]:
    """NeuSight's option as ours: fusion, dp4, tp4, or pp4_1 (four stages, one micro-batch)."""
    if option == "fusion":
        return {"runtime": "compiled-2.1"}  # the labels' PyTorch
    return {option[:2]: int(option[2:].partition("_")[0])} if option else {}


def ours(measured: pl.DataFrame, name: str = "tilecast", **how: Any) -> pl.DataFrame:
    """Our own answer for every case: `tilecast step` without an optimizer, the loss of the forward pass left out."""
    predicted = []
    for case in measured.select(CASE).unique(maintain_order=True).to_dicts():
        try:
            resolved(case["model"])
        except UnknownName:
            continue  # a stray label of a model that nobody describes
        sizes = {"batch": case["batch"], "seq": case["seq_len"]}
        asked = {"mode": case["mode"], **sizes, "dtype": "fp32", "attention": "eager", "optimizer": None, **layout(case["option"])}
        found = predict_step(case["model"], case["gpu"], **asked, **how)
        forward = {side: getattr(found.forward_s, side) - getattr(found.loss_s, side) for side in ("median", "low", "high")}
        backward = found.backward_s.to_dict()
        parts = {
            "forward": forward,
            "backward": backward,
            "total": {side: forward[side] + backward[side] for side in forward},
        }
        predicted += [
            {**case, "part": part, "predicted": time["median"], "low": time["low"], "high": time["high"]} for part, time in parts.items()
        ]
    frame = pl.DataFrame(predicted, schema_overrides={name: measured.schema[name] for name in (*CASE, "part")})
    joined = measured.join(frame, on=[*CASE, "part"], how="inner", maintain_order="left")
    return scored(joined, name, "ours").select(*measured.columns, "predictor", "kind", "predicted", "low", "high")


def scaled_roofline(predictions: pl.DataFrame) -> pl.DataFrame:
    """NeuSight's roofline times one constant: the median of measured / roofline over the GPUs of other dies, per slice and part."""
    roofline = predictions.filter(pl.col("predictor") == PEERS["roofline"])
    frames = []
    for gpu in roofline["gpu"].unique(maintain_order=True):
        others = roofline.filter(~pl.col("gpu").is_in(splits.same_die(gpu)))
        ratio = (pl.col("measured") / pl.col("predicted")).median().alias("constant")
        constants = others.group_by("slice", "part").agg(ratio)
        frames.append(roofline.filter(pl.col("gpu") == gpu).join(constants, on=["slice", "part"], maintain_order="left"))
    scaled = pl.col("predicted") * pl.col("constant")
    return scored(pl.concat(frames), "roofline x constant of other GPUs", "baseline", scaled).select(predictions.columns)


def operators(allowed: Price) -> list[Share]:
    """Single operators on the GPUs that are new to NeuSight, by class."""
    rows = per_operator.labels(GROUPS["new GPUs (L4, A100-80GB)"])
    told = per_operator.peer(rows)
    frames = [
        scored(rows.with_columns(per_operator.ours(rows, price)), name, "ours")
        for name, price in (("tilecast", allowed), ("tilecast, all kernel data", predict_kernel))
    ]
    frames.append(scored(told, PEERS["neusight"], "peer", "pred_total_ms"))
    columns = ["predictor", "op_class", "predicted", "measured"]
    every = pl.concat([frame.with_columns(pl.col("total_ms").alias("measured")).select(columns) for frame in frames])
    made: list[Share] = []
    for name in per_operator.CLASSES:
        made += errors(every.filter(pl.col("op_class") == name), f"operators on new GPUs, {name}", "labels")
    return made


def run(quick: bool) -> Result:
    measured = cases()
    stored = peers(measured)
    allowed = peers_price(quick)
    own = ours(measured, price=allowed)
    more = [ours(measured, "tilecast, all kernel data"), ours(measured, "tilecast, physics alone", learned=False)]
    predictions = pl.concat([*(frame.drop("low", "high") for frame in (own, *more)), stored, scaled_roofline(stored)])
    same_rows = label_limits.on_the_same_rows(predictions, label_limits.added_up(measured))
    shares: list[Share] = []
    for name in SLICES:
        inside = predictions.filter(pl.col("slice") == name)
        for part in inside["part"].unique(maintain_order=True):
            rows = inside.filter(pl.col("part") == part)
            shares += errors(rows, f"{name}, {part}", "labels")
            if rows["set_aside"].null_count() < rows.height:
                shares += errors(rows.filter(pl.col("set_aside").is_null()), f"{name}, {part}", "labels not set aside")
        for part in inside["part"].unique(maintain_order=True):
            rows = same_rows.filter((pl.col("slice") == name) & (pl.col("part") == part) & pl.col("predictor").is_in(COMPARED))
            shares += errors(rows, f"{name}, {part}", "labels with measured operators")
    usual = label_limits.of_the_gpu(predictions).filter(pl.col("part") == "total")
    trained = {name: pl.col("slice") == name for name in ("nvidia training", "amd training")}
    on_new = pl.col("gpu").is_in(GROUPS["new GPUs (L4, A100-80GB)"]) & (pl.col("num_gpus") == 1)
    for name, of_these in {**trained, "new GPUs (L4, A100-80GB), training": on_new}.items():
        shares += errors(usual.filter(of_these), f"{name}, total", f"labels, forward within {label_limits.LONGEST_FORWARD} of backward")
    for name, gpus in GROUPS.items():
        of_group = predictions.filter(
            pl.col("gpu").is_in(gpus) & (pl.col("part") == "total") & (pl.col("option") == "") & (pl.col("num_gpus") == 1)
        )
        modes = of_group["mode"].unique(maintain_order=True)
        if len(modes) > 1:
            shares += errors(of_group, f"{name}, total", "labels")
        for mode in modes:
            shares += errors(of_group.filter(pl.col("mode") == mode), f"{name}, {mode}, total", "labels")
            rows = same_rows.join(of_group.filter(pl.col("mode") == mode).select(*CASE, "part").unique(), on=[*CASE, "part"], how="semi")
            compared = rows.filter(pl.col("predictor").is_in(COMPARED))
            shares += errors(compared, f"{name}, {mode}, total", "labels with measured operators")
    shares += operators(allowed)
    held = own.filter(pl.col("part") == "total").select(pl.col("measured").is_between("low", "high").mean(), pl.len())
    shares.append(share("totals inside the 80 % interval, percent of cases", "tilecast", 100 * held["measured"][0], held["len"][0]))
    num_cases = measured.filter(pl.col("part") == "total").height
    return Result(
        suite=SUITE.name,
        question="How far off are forward, backward and total of a whole FP32 PyTorch model?",
        predictions=predictions,
        slices=("slice", "part", "gpu"),
        splits=[{"kind": "gpu, siblings out", "held out": "each GPU in turn (the constant only)", "seed": None, "cases": num_cases}],
        shares=shares,
        notes=[
            f"{num_cases} labels here; NeuSight predicted {stored.filter(pl.col('part') == 'total').select(CASE).n_unique()} of them"
            " (not two Switch runs of 2,048 tokens on A100 and one of `switch4` on L4).",
            "NeuSight trained on P4, P100, V100, T4, A100-40GB, MI100 and MI210: L4, A100-80GB and the 4-GPU A100s are new to it.",
            "NeuSight's errors of forward and backward are twice those of its total: they have opposite signs.",
            "Only NeuSight predicted fused, AMD and 4-GPU runs: compare the others with it slice by slice.",
            "Tilecast runs its own graphs, its matrix products with weights fitted on NeuSight's training rows; `all kernel data` are the"
            " weights that ship, which know L4 and A100-80GB.",
            "Products of T4 and P4 teach nothing: they were swept until these boards throttled (training and test rows of P4 are four times"
            " apart, of T4 1.25 times).",
            "Fused runs are `--runtime compiled-2.1`, the labels' PyTorch: its inductor did not find the attention of BERT and GPT-2.",
            "4-GPU runs: DP is eager PyTorch; TP and PP ran in Megatron-LM, which fuses biases and softmax; ours are eager.",
            "Operators on new GPUs: those above 0.1 ms, each part timed alone, operands in L2, memory fresh after empty_cache.",
            "Backward includes the accumulation of gradients, on both sides; there is no optimizer step.",
            "MI210, GPT2-Large, batch 4, training is an anomalous label; it is kept here as in NeuSight's own figures, and left out in"
            " the scores that say so.",
            "Adding up measured operators misses these labels by 7.8 %: the floor of any additive model. Its rows above are the labels"
            " whose operators were measured (not Switch); each operator was timed alone, with the host's gap.",
            label_limits.fresh_memory(own),
            label_limits.campaigns(),
        ],
        target="NeuSight, total: NVIDIA inference 10.7, training 7.8, fused 14.0, AMD 9.5 / 15.7 % (42, 16, 8, 18, 9 rows)",
    )


SUITE = Suite(
    name="e2e-training",
    title="Whole PyTorch models: forward, backward, total; fused and on four GPUs",
    run=run,
    needs=("neusight",),
    folders=("neusight",),
)
