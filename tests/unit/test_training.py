"""Fitting on rows whose truth is known: the analytic time, times a factor per GPU, times one for sizes that are no multiple of 64."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tilecast import hardware
from tilecast.datasets.schema import conform, schema
from tilecast.datasets.splits import twins
from tilecast.errors import InvalidInput, MissingData, UnknownName
from tilecast.execution import Protocol
from tilecast.execution import constants as machine_constants
from tilecast.kernels.base import priced
from tilecast.kernels.gemm import Gemm
from tilecast.learning import recipes, training
from tilecast.learning.boosting import boost
from tilecast.learning.correction import BASES, Correction, read, write
from tilecast.learning.examples import Examples, examples
from tilecast.learning.features import GROUPS, launches, number_names
from tilecast.learning.recipes import training_rows, user_rows
from tilecast.learning.training import Settings, fit_once
from tilecast.predictors.kernel import predict_kernel

pytest.importorskip("catboost", reason="fitting needs the extra 'train': pip install 'tilecast[train]'")

FACTOR = {"a100-sxm-80gb": 0.9, "h100-sxm": 1.2, "h200-sxm": 1.0, "l40s": 1.4}
MISALIGNED = 1.3  # what an n that is no multiple of 64 costs
NOISE = 0.03
COLD = Protocol("profiler", "cold")
TINY = Settings(shared_trees=60, shared_depth=3, local_trees=30, local_depth=3, bins=32)
HOST_S = machine_constants().host_event_s
HEADER = "family,gpu,dtype,m,n,k,measured_s\n"


def quiet(_: str) -> None: ...


def synthetic(
    num_shapes: int = 150,
    *,
    seed: int = 3,
    factor: Mapping[str, float] = FACTOR,
    noise: float = NOISE,
    misaligned: float = MISALIGNED,
    **constants: Any,
) -> pl.DataFrame:
    """Schema rows: every shape on every GPU."""
    rng = np.random.default_rng(seed)
    m, k = 2 ** rng.integers(4, 13, num_shapes), 2 ** rng.integers(8, 14, num_shapes)
    n = rng.choice([1000, 1024, 2048, 2056, 4096, 5000, 8192], num_shapes)
    frames = []
    for gpu, level in factor.items():
        analytic_s = predict_kernel(Gemm(m=m, n=n, k=k), gpu, learned=False).analytic_s
        effect = np.where(n % 64 == 0, 1.0, misaligned) * np.exp(noise * rng.standard_normal(num_shapes))
        frames.append(
            pl.DataFrame({"m": m, "n": n, "k": k, "latency_s": analytic_s * level * effect}).with_columns(
                gpu=pl.lit(gpu), dtype=pl.lit("bf16"), timer=pl.lit("profiler"), cache=pl.lit("cold"), origin_row=pl.int_range(pl.len())
            )
        )
    given = {"engine": "sglang", "source": "here", "licence": "none", "origin": "here"} | constants
    return conform(pl.concat(frames), "gemm", **given)


@cache
def fitted() -> Correction:
    return training.fit(synthetic(), "gemm", settings=TINY, say=quiet)


def ratio(correction: Correction, gpu: str, **sizes: Any) -> np.ndarray:
    """Median over analytic time."""
    spec, kernel = hardware.gpu(gpu), Gemm(**sizes)
    return np.exp(correction.correct(launches(kernel, spec, priced(kernel, spec, COLD), COLD, "sglang"), spec).log_ratio)


SHAPES = {"m": np.array([32, 256, 512, 2048]), "k": np.array([512, 4096, 2048, 1024])}


# ---- what is learned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", FACTOR)
def test_the_factor_of_each_gpu_is_recovered(gpu: str) -> None:
    assert np.median(ratio(fitted(), gpu, n=4096, **SHAPES)) == pytest.approx(FACTOR[gpu], rel=0.02)


@pytest.mark.parametrize("gpu", FACTOR)
def test_the_effect_of_a_shape_is_recovered(gpu: str) -> None:
    effect = ratio(fitted(), gpu, n=5000, **SHAPES) / ratio(fitted(), gpu, n=4096, **SHAPES)
    assert np.median(effect) == pytest.approx(MISALIGNED, rel=0.03)


@pytest.mark.parametrize("gpu", ["b200-sxm", "a40"])
def test_the_effect_of_a_shape_carries_over_to_gpus_nobody_measured(gpu: str) -> None:
    effect = ratio(fitted(), gpu, n=5000, **SHAPES) / ratio(fitted(), gpu, n=4096, **SHAPES)
    assert np.median(effect) == pytest.approx(MISALIGNED, rel=0.05)


def test_levels_differ_between_gpus_as_their_factors_do() -> None:
    even = fit_once(examples(synthetic(misaligned=1.0), "gemm", rows_per_slice=1000), "gemm", TINY, own=())
    level = even.level[:, GROUPS.index("memory")]
    for place, gpu in enumerate(even.gpus):
        expected = FACTOR[gpu] / FACTOR["h200-sxm"]
        assert np.exp(level[place] - level[even.gpus.index("h200-sxm")]) == pytest.approx(expected, rel=0.02)


def test_rows_nobody_has_seen_fall_into_the_interval_about_four_times_in_five() -> None:
    fresh = synthetic(400, seed=11)
    inside, total = 0, 0
    for gpu in FACTOR:
        mine = fresh.filter(pl.col("gpu").cast(pl.String) == gpu)
        kernel, spec = Gemm(m=mine["m"].to_numpy(), n=mine["n"].to_numpy(), k=mine["k"].to_numpy()), hardware.gpu(gpu)
        analysis = priced(kernel, spec, COLD)
        found = fitted().correct(launches(kernel, spec, analysis, COLD, "sglang"), spec)
        error = np.log(mine["latency_s"].to_numpy() / analysis.analytic_s) - found.log_ratio
        inside += int((np.abs(error) <= found.width).sum())
        total += len(error)
    assert 0.70 <= inside / total <= 0.90


def test_intervals_widen_from_known_shapes_to_unseen_gpus() -> None:
    width = {}
    for gpu, m in (("h100-sxm", 512), ("h100-sxm", 2**15), ("h800-sxm", 512), ("b200-sxm", 512)):
        spec, kernel = hardware.gpu(gpu), Gemm(m=m, n=4096, k=2048)
        found = fitted().correct(launches(kernel, spec, priced(kernel, spec, COLD), COLD, "sglang"), spec)
        width[str(found.basis[0])] = found.width
    assert 0.8 * 1.28 * NOISE < width["interpolated"] < 2 * 1.28 * NOISE  # 80 % of a normal lies within 1.28 sigma
    assert width["interpolated"] < width["extrapolated-shape"] < min(width["unseen-gpu"], width["unseen-generation"])
    assert fitted().quantile[2] <= fitted().quantile[3]  # on the same launch


def test_a_gpu_whose_sibling_was_measured_is_surer_than_one_without() -> None:
    factor = {"h100-sxm": 1.2, "h200-sxm": 1.1, "a100-sxm-80gb": 0.7, "l40s": 1.6}
    one = training.fit(synthetic(factor=factor), "gemm", settings=TINY, say=quiet)
    kernel, found = Gemm(m=512, n=4096, k=2048), {}
    for gpu in ("h800-sxm", "a40"):
        spec = hardware.gpu(gpu)
        found[gpu] = one.correct(launches(kernel, spec, priced(kernel, spec, COLD), COLD, "sglang"), spec)
    assert found["h800-sxm"].basis.tolist() == found["a40"].basis.tolist() == ["unseen-gpu"]
    assert found["h800-sxm"].width < 0.5 * found["a40"].width
    scores = one.manifest["scores"]["same-die"]
    assert set(scores) == {"h100-sxm", "h200-sxm"}
    assert scores["h100-sxm"] == pytest.approx(100 * (1 - 1.1 / 1.2), abs=3)
    assert scores["h200-sxm"] == pytest.approx(100 * (1.2 / 1.1 - 1), abs=3)


def test_rows_that_throttled_widen_the_intervals_of_unseen_gpus_and_teach_nothing_else() -> None:
    known = synthetic(factor={"h100-sxm": 1.0, "a100-sxm-80gb": 1.05})
    hot = synthetic(factor={"l40s": 1.8}, clock="throttled")
    without, with_hot = (training.fit(rows, "gemm", settings=TINY, say=quiet) for rows in (known, pl.concat([known, hot])))
    assert "l40s" not in with_hot.gpus
    spec, kernel = hardware.gpu("l40s"), Gemm(m=512, n=4096, k=2048)
    first, second = (each.correct(launches(kernel, spec, priced(kernel, spec, COLD), COLD, "sglang"), spec) for each in (without, with_hot))
    assert first.basis.tolist() == second.basis.tolist() == ["unseen-generation"]
    assert second.width > 2.0 * first.width
    assert with_hot.manifest["scores"]["unseen-generation"]["l40s"] > 30 > with_hot.manifest["scores"]["unseen-generation"]["h100-sxm"]


def test_without_two_gpus_of_one_die_a_sibling_counts_as_unseen() -> None:
    alone = training.fit(synthetic(200, factor={"h100-sxm": 1.2, "l40s": 1.4, "a100-sxm-80gb": 0.9}), "gemm", settings=TINY, say=quiet)
    assert alone.manifest["scores"]["same-die"] == {}
    assert alone.quantile[-1] == alone.quantile[BASES.index("unseen-gpu")]


def test_scores_are_per_basis_and_gpu_and_small_only_where_the_gpu_is_known() -> None:
    scores = fitted().manifest["scores"]
    assert set(scores) == {"interpolated", "unseen-gpu", "unseen-generation", "same-die"}
    assert all(set(table) == set(FACTOR) for kind, table in scores.items() if kind != "same-die")
    assert all(score < 100 * 2 * NOISE for score in scores["interpolated"].values())
    assert scores["unseen-generation"]["l40s"] > 10  # 1.4 times what the others told


def test_the_index_holds_what_was_trained_on() -> None:
    one = fitted()
    assert one.gpus == tuple(sorted(FACTOR))
    assert one.archs == ("ada", "ampere", "hopper")
    assert one.vocabulary["dtype"] == ["bf16"]
    assert one.vocabulary["engine"] == ["sglang"]
    assert not {"timer", "cache"} & set(one.vocabulary)  # they are in the analytic time
    column = number_names("gemm").index("log2 m")
    assert (one.low[column], one.high[column]) == (4.0, 12.0)
    ends = np.array(one.sizes["a100-sxm-80gb 16-bit None"])  # log2 of m, n, k and batch of its rows alone
    assert (ends[:, 0].tolist(), ends[:, 3].tolist()) == ([4.0, 12.0], [0.0, 0.0])
    assert len(one.sizes) == len(FACTOR)


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    rows, written = synthetic(60), []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path = write(training.fit(rows, "gemm", settings=TINY, manifest={"date": "2026-01-01"}, say=quiet), tmp_path / name)
        written.append((path.read_bytes(), path.with_suffix(".json").read_bytes()))
    assert written[0] == written[1]
    assert read(tmp_path / "first" / "gemm.safetensors").gpus == tuple(sorted(FACTOR))


def test_progress_is_told_to_whoever_asks() -> None:
    told: list[str] = []
    training.fit(synthetic(60), "gemm", settings=Settings(shared_trees=5, local_trees=5), say=told.append)
    assert told[0] == "gemm: 240 rows on 4 GPUs"
    fits = [text.removesuffix(")").split(" (") for text in told[1:]]
    assert [place for _, place in fits] == [f"{place} of {len(fits)}" for place in range(1, len(fits) + 1)]
    named = [text for text, _ in fits]
    assert "gemm: fitting without h100-sxm, h200-sxm" in named  # one die leaves together
    assert "gemm: fitting without l40s" in named and named[-1] == "gemm: fitting with every row"


# ---- from CatBoost to arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 4, 6])
def test_the_exported_trees_say_what_catboost_says(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import catboost

    models = []

    class Recorded(catboost.CatBoostRegressor):
        def fit(self, *arguments: Any, **options: Any) -> Any:
            models.append(self)
            return super().fit(*arguments, **options)

    monkeypatch.setattr(catboost, "CatBoostRegressor", Recorded)
    rng = np.random.default_rng(5)
    columns = rng.normal(size=(500, 6)).astype(np.float32)
    columns[:, 5] = columns[:, 5] > 0  # a flag
    target = 3.0 + columns[:, 0] * columns[:, 1] + 0.5 * columns[:, 5]
    trees = boost(columns, target, np.ones(500), 40, depth, 0.1, 32)
    assert trees.leaf.shape == (40, 2**depth)
    anywhere = np.concatenate([columns, 10 * rng.normal(size=(500, 6)).astype(np.float32)])
    np.testing.assert_allclose(trees.predict(anywhere), models[0].predict(anywhere), atol=1e-5)


def test_a_target_without_spread_needs_no_trees() -> None:
    assert boost(np.zeros((300, 2), np.float32), np.full(300, 1e-12), np.ones(300), 5, 2, 0.1, 32).leaf.size == 0


def test_rows_that_are_exactly_a_factor_leave_only_the_level() -> None:
    exact = training.fit(synthetic(num_shapes=100, factor={"l40s": 1.5, "l4": 1.1}, noise=0.0), "gemm", settings=TINY, say=quiet)
    assert np.median(ratio(exact, "l40s", n=4096, **SHAPES)) == pytest.approx(1.5, rel=0.01)


# ---- what cannot be learned from -----------------------------------------------------------------------------------


def refusal(rows: pl.DataFrame) -> str:
    with pytest.raises(MissingData) as caught:
        training.fit(rows, "gemm", settings=TINY, say=quiet)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_too_few_rows_are_refused() -> None:
    assert refusal(synthetic(10)) == "gemm: 40 usable rows are too few to learn from; at least 200 are needed"


def test_rows_the_model_refuses_are_left_out_and_none_left_is_an_error() -> None:
    rows = synthetic(60)
    assert refusal(rows.with_columns(m=pl.lit(-1, pl.Int64))) == "gemm: no row can be modelled"
    unsupported = rows.head(20).with_columns(dtype=pl.lit("fp8").cast(pl.Categorical), gpu=pl.lit("a100-sxm-80gb").cast(pl.Categorical))
    mixed = examples(pl.concat([rows, unsupported]), "gemm", rows_per_slice=1000)
    assert len(mixed.target) == rows.height


def test_absurd_latencies_teach_nothing() -> None:
    rows = synthetic(60)
    assert "0 usable rows" in refusal(rows.with_columns(latency_s=pl.col("latency_s") * 1e3))
    nine = pl.int_range(pl.len()) < 9
    spoiled = rows.with_columns(latency_s=pl.when(nine).then(float("nan")).otherwise("latency_s"))
    assert len(examples(spoiled, "gemm", rows_per_slice=1000).target) == rows.height - 9


def test_rows_of_one_shape_are_refused_because_none_can_be_held_out() -> None:
    assert "shapes" in refusal(pl.concat([synthetic(1)] * 60))


def test_rows_of_one_gpu_are_enough_but_say_nothing_of_others() -> None:
    alone = training.fit(synthetic(250, factor={"l40s": 1.1}), "gemm", settings=TINY, say=quiet)
    assert alone.manifest["scores"]["unseen-gpu"] == alone.manifest["scores"]["unseen-generation"] == {}
    assert (alone.quantile > 0).all()


def test_rows_without_an_engine_count_as_well() -> None:
    assert len(examples(synthetic(60, engine=None), "gemm", rows_per_slice=1000).target) == 240


def test_a_slice_is_capped_and_every_slice_weighs_the_same() -> None:
    rows = pl.concat([synthetic(100, factor={"l40s": 1.0}), synthetic(400, seed=4, factor={"h100-sxm": 1.0})])
    capped: Examples = examples(rows, "gemm", rows_per_slice=150)
    assert (np.sum(capped.gpu == "l40s"), np.sum(capped.gpu == "h100-sxm")) == (100, 150)
    weight = {gpu: capped.weight[capped.gpu == gpu].sum() for gpu in ("l40s", "h100-sxm")}
    assert weight["l40s"] == pytest.approx(weight["h100-sxm"])
    assert capped.weight.mean() == pytest.approx(1.0)


def test_every_row_of_a_shape_is_held_out_together() -> None:
    rows = synthetic(60)
    found = examples(rows, "gemm", rows_per_slice=1000)
    assert len(np.unique(found.shape)) == rows.select("m", "n", "k").n_unique()
    sizes = found.numbers[:, [number_names("gemm").index(f"log2 {name}") for name in "mnk"]]
    sides = {tuple(size): {bool(side) for side in found.shape[(sizes == size).all(axis=1)] < training.HELD_OUT} for size in sizes}
    assert all(len(side) == 1 for side in sides.values())
    assert {True, False} == set.union(*sides.values())


# ---- a user's own rows ---------------------------------------------------------------------------------------------


def write_rows(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return path


def test_a_good_file_becomes_schema_rows(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "mine.csv",
        "gemm,h100-sxm,bf16,128,256,512,1e-5,graph,",
        "rms_norm,h100-sxm,bf16,,,,2e-5,,",
        "gemm,NVIDIA L40S,fp8,1,2,3,5e-6,,warm",
        header=HEADER.replace("measured_s", "measured_s,timer,cache"),
    )
    rows = user_rows(path, "gemm")
    assert dict(rows.schema) == schema("gemm")
    wanted = ("gpu", "dtype", "m", "n", "k", "latency_s", "timer", "cache", "source", "origin", "origin_row")
    assert rows.select(wanted).rows() == [
        ("h100-sxm", "bf16", 128, 256, 512, 1e-5, "graph", "cold", "user", "mine.csv", 0),
        ("l40s", "fp8", 1, 2, 3, 5e-6, "profiler", "warm", "user", "mine.csv", 2),
    ]


def test_csv_and_parquet_say_the_same(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mine.csv", "gemm,h100-sxm,bf16,128,256,512,1e-5")
    pl.read_csv(path).write_parquet(tmp_path / "mine.parquet")
    assert user_rows(tmp_path / "mine.parquet", "gemm").drop("origin").equals(user_rows(path, "gemm").drop("origin"))


@pytest.mark.parametrize("column", ["family", "gpu", "dtype", "measured_s", "m"])
def test_a_missing_column_is_named(column: str, tmp_path: Path) -> None:
    values = dict(zip(HEADER.strip().split(","), "gemm,h100-sxm,bf16,128,256,512,1e-5".split(","), strict=True))
    del values[column]
    path = write_rows(tmp_path / "a.csv", ",".join(values.values()), header=",".join(values) + "\n")
    with pytest.raises(InvalidInput, match=f"lacks the column '{column}'.*; it has ") as caught:
        user_rows(path, "gemm")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_export_writes_can_be_fitted_without_the_rows_that_were_set_aside(ending: str, tmp_path: Path) -> None:
    stored = conform(
        pl.DataFrame({"gpu": ["l40s", "l40s"], "m": [64, 128], "n": [64, 64], "k": [64, 64], "bias": [None, True], "engine": ["vllm", None],
                      "latency_s": [1e-5, 2e-5], "set_aside": [None, "too noisy"], "origin_row": [7, 9]}),
        "gemm", dtype="bf16", timer="graph", source="somewhere", licence="", origin="x",
    )  # fmt: skip
    path = tmp_path / f"rows.{ending}"
    stored.write_csv(path) if ending == "csv" else stored.write_parquet(path)
    found = user_rows(path, "gemm")
    columns = ("gpu", "engine", "m", "bias", "timer", "cache", "latency_s", "origin_row")
    assert found.select(columns).rows() == [("l40s", "vllm", 64, None, "graph", "cold", 1e-5, 0)]


def test_an_empty_cell_is_the_default(tmp_path: Path) -> None:
    header = HEADER.replace("measured_s", "measured_s,batch,bias,identity,engine")
    path = write_rows(
        tmp_path / "a.csv", 'gemm,l40s,bf16,64,64,64,1e-5,,,"",', "gemm,l40s,bf16,64,64,64,1e-5,2,TRUE,cublas,vllm", header=header
    )
    assert user_rows(path, "gemm").select("batch", "bias", "identity", "engine").rows() == [
        (None, None, None, "sglang"), (2, True, "cublas", "vllm"),
    ]  # fmt: skip


@pytest.mark.parametrize("latency", ["NaN", "nan", "inf", "-1e-5", "0", "1e-12", "1e9", "fast", ""])
def test_an_absurd_latency_is_refused_with_its_row(latency: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", "gemm,h100-sxm,bf16,128,256,512,1e-5", f"gemm,h100-sxm,bf16,128,256,512,{latency}")
    with pytest.raises(InvalidInput, match=r"row 2: measured_s = .* must lie between 1e-8 and 1000 seconds") as caught:
        user_rows(path, "gemm")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gemm,h100-sxm,bf16,128,256,512,8e-3", "row 2: measured_s = 0.008 is .* times the .* s that physics gives: is it in seconds"),
        ("gemm,h100-sxm,bf16,-4,256,512,1e-5", "row 2: m = -4 must be a whole number of at least 1"),
        ("gemm,h100-sxm,bf17,128,256,512,1e-5", "row 2: unknown dtype 'bf17'"),
        ("gemn,h100-sxm,bf16,128,256,512,1e-5", "row 2: family = gemn is no kernel"),
    ],
)
def test_one_row_that_cannot_be_meant_is_named(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        user_rows(write_rows(tmp_path / "a.csv", "gemm,h100-sxm,bf16,128,256,512,1e-5", line), "gemm")


def test_a_file_without_rows_of_a_family_needs_none_of_its_columns(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", "gemm,h100-sxm,bf16,128,256,512,1e-5")
    found = user_rows(path, "attention_decode")
    assert found.height == 0 and dict(found.schema) == schema("attention_decode")


def test_an_absurd_latency_of_another_family_is_no_concern(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", "gemm,h100-sxm,bf16,128,256,512,1e-5", "moe,h100-sxm,bf16,,,,-1")
    assert user_rows(path, "gemm").height == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gemm,h100-sxm,bf16,x,256,512,1e-5", "row 1: m = x must be a whole number"),
        ("gemm,h100-sxm,bf16,1.5,256,512,1e-5", "row 1: m = 1.5 must be a whole number"),
        ("gemm,h100-sxm,bf16,,256,512,1e-5", "row 1: m = None must be given"),
        ("gemm,,bf16,128,256,512,1e-5", "row 1: gpu = None must be given"),
        ("gemm,h100-sxm,,128,256,512,1e-5", "row 1: dtype = None must be given"),
    ],
)
def test_a_cell_that_means_nothing_is_refused_with_its_row(line: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        user_rows(write_rows(tmp_path / "a.csv", line), "gemm")


def test_an_unknown_gpu_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", "gemm,h100-sxn,bf16,128,256,512,1e-5")
    with pytest.raises(UnknownName, match=r"a\.csv, row 1: unknown GPU 'h100-sxn': did you mean h100-sxm"):
        user_rows(path, "gemm")


def test_an_unknown_engine_is_refused_with_its_row_and_a_release_is_its_engine(tmp_path: Path) -> None:
    header, line = HEADER.replace("measured_s", "measured_s,engine"), "gemm,l40s,bf16,64,64,64,1e-5"
    path = write_rows(tmp_path / "a.csv", f"{line},vllm@0.11.0", f"{line},zz", header=header)
    with pytest.raises(UnknownName, match=r"a\.csv, row 2: unknown engine 'zz'"):
        user_rows(path, "gemm")
    assert user_rows(write_rows(path, f"{line},vllm@0.11.0", header=header), "gemm")["engine"].cast(str).to_list() == ["vllm"]


def test_a_flag_that_is_neither_true_nor_false_is_refused(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "a.csv", "gemm,h100-sxm,bf16,128,256,512,1e-5,perhaps", header=HEADER.replace("measured_s", "measured_s,bias")
    )
    with pytest.raises(InvalidInput, match="row 1: bias = perhaps must be true or false"):
        user_rows(path, "gemm")


@pytest.mark.parametrize(("name", "content"), [("a.csv", b""), ("a.csv", b"a,b\n1,2,3\n"), ("a.parquet", b"nonsense")])
def test_a_damaged_file_is_missing_data(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MissingData, match="is damaged") as caught:
        user_rows(tmp_path / name, "gemm")
    assert "\n" not in str(caught.value)


def test_no_file_is_missing_data(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="no file"):
        user_rows(tmp_path / "absent.csv", "gemm")


def test_a_file_without_rows_of_the_family_is_missing_data(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", "moe,h100-sxm,bf16,128,256,512,1e-5")
    with pytest.raises(MissingData, match="no usable rows of gemm"):
        training_rows("gemm", [str(path)])


def test_the_carry_is_the_share_that_leaves_the_least_error() -> None:
    # predictions twice as large as the truth on every GPU: half of them is exactly right
    rows = examples(synthetic(60), "gemm", rows_per_slice=1000)
    assert training.best_carry(training.Tested(rows, 2 * rows.target, np.ones(len(rows.target)))) == 0.5


def test_rows_that_tell_about_the_host_teach_nothing_of_a_kernel() -> None:
    rows = synthetic(600, noise=0.0).with_columns(timer=pl.lit("event").cast(pl.Categorical))
    every = examples(rows, "gemm", rows_per_slice=1000)
    few = examples(rows, "gemm", rows_per_slice=1000, most_host=0.2)
    share = every.numbers[:, number_names("gemm").index("share launch")]
    assert 200 <= len(few.target) < len(every.target) == rows.height and share.max() > np.log(0.5)
    event_s = np.concatenate(
        [
            predict_kernel(
                Gemm(m=part["m"].to_numpy(), n=part["n"].to_numpy(), k=part["k"].to_numpy()), gpu, timer="event", learned=False
            ).analytic_s
            for gpu, part in ((gpu, rows.filter(pl.col("gpu").cast(pl.String) == gpu)) for gpu in FACTOR)
        ]
    )
    assert len(few.target) == np.count_nonzero(event_s >= 5 * HOST_S)


def test_a_file_adds_to_the_sources_where_all_are_named_and_stands_alone_where_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = synthetic(10)
    monkeypatch.setattr(recipes.store, "available", lambda: {name: tmp_path for names in recipes.SOURCES.values() for name in names})
    monkeypatch.setattr(recipes, "_stored_rows", lambda family, name: stored if name == "aiconfigurator" else stored.clear())
    path = tmp_path / "mine.csv"
    path.write_text("family,gpu,dtype,m,n,k,measured_s\ngemm,l40s,bf16,64,64,64,1e-5\n")
    heights = {names: recipes.training_rows("gemm", names).height for names in ((), ("all",), ("all", str(path)), (str(path),))}
    assert heights == {(): 40, ("all",): 40, ("all", str(path)): 41, (str(path),): 1}


def test_rows_of_ones_own_keep_their_engine(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("family,gpu,dtype,engine,m,n,k,measured_s\ngemm,l40s,bf16,vllm,64,64,64,1e-5\ngemm,l40s,bf16,,64,64,64,1e-5\n")
    assert recipes.user_rows(path, "gemm")["engine"].cast(str).to_list() == ["vllm", "sglang"]


def test_a_twins_many_rows_drown_a_gpus_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(gpu: str, dtype: str, number: int) -> pl.DataFrame:
        made = pl.DataFrame({"gpu": gpu, "m": list(range(1, number + 1)), "n": 64, "k": 64, "latency_s": 1e-5, "origin_row": 0})
        named = {"dtype": dtype, "identity": "cublas", "timer": "graph", "cache": "warm", "engine": "sglang"}
        return conform(made, "gemm", **named, source="aiconfigurator", licence="", origin="here")

    parts = [rows("h100-sxm", "bf16", 440), rows("h800-sxm", "fp16", 40), rows("h800-sxm", "fp8", 40), rows("h200-sxm", "bf16", 40)]
    stored = pl.concat(parts)
    monkeypatch.setattr(recipes, "_stored_rows", lambda family, name: stored if name == "aiconfigurator" else stored.clear())
    found = recipes.training_rows("gemm", ["aiconfigurator"]).group_by("gpu", "dtype").len()
    counts = {(str(gpu), str(dtype)): count for gpu, dtype, count in found.iter_rows()}
    # An H800 differs from an H100 in its links alone; an H200 has other memory, and H100 has no fp8 rows.
    assert counts == {("h100-sxm", "bf16"): 440, ("h800-sxm", "fp8"): 40, ("h200-sxm", "bf16"): 40}
    assert twins("h800-sxm") == ["h100-sxm"] and "h200-sxm" not in twins("h100-sxm")


def test_memorys_level_is_told_by_rows_that_came_from_dram() -> None:
    traffic = number_names("attention_decode").index("log traffic over cache")
    number = 2 * training.ENOUGH
    numbers = np.zeros((number, len(number_names("attention_decode"))), np.float32)
    timed = numbers.copy()
    timed[::2, traffic] = -3.0  # every other one found its data in L2, and took half as long again as physics says
    data = Examples(
        numbers=numbers, timed=timed, names=[{}], group_of=np.zeros(number, np.int64), binds=np.full(number, GROUPS.index("memory")),
        gpu=np.full(number, "l40s"), target=np.where(np.arange(number) % 2 == 0, 0.4, 0.01), shape=np.zeros(number), weight=np.ones(number),
        rank=np.arange(number), steady=np.ones(number, bool),
    )  # fmt: skip
    told = training.levels(data, ["l40s"], training._from_dram(data))[0, GROUPS.index("memory")]
    mixed = training.levels(data, ["l40s"])[0, GROUPS.index("memory")]
    assert told == pytest.approx(0.01, abs=0.05) and mixed > 0.15
    assert not training._found_in_l2(data)


def test_a_library_called_by_itself_tells_no_level_where_servers_rows_do() -> None:
    number = 600
    target, gpu = np.full(number, 0.02), np.full(number, "h800-sxm", object)
    target[200:] = 0.7  # two of three rows are calls by a profiler of its own
    gpu[500:] = "a800-sxm-80gb"
    numbers = np.zeros((number, len(number_names("attention_decode"))), np.float32)
    data = Examples(
        numbers=numbers, timed=numbers, names=[{"engine": "sglang"}, {"engine": "framework"}],
        group_of=np.repeat([0, 1], [200, 400]), binds=np.full(number, GROUPS.index("launch")), gpu=gpu, target=target,
        shape=np.zeros(number), weight=np.ones(number), rank=np.arange(number), steady=np.ones(number, bool),
    )  # fmt: skip
    gpus = ["a800-sxm-80gb", "h800-sxm"]
    alone, beside = training.levels(data, gpus, of_servers=training._of_servers(data, "attention_decode"))[:, GROUPS.index("launch")]
    assert beside == pytest.approx(0.02) and alone == pytest.approx(0.7)  # with nothing else there, they speak for their own kind
    assert training._of_servers(data, "gemm") is None
