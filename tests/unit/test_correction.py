"""The learned correction on weights made by hand: who gets which part, how it fades, its basis and interval, and how it is stored."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilecast import hardware
from tilecast.errors import MissingData
from tilecast.kernels.base import Built
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.rms_norm import RmsNorm
from tilecast.learning import correction as corrections
from tilecast.learning import tensors
from tilecast.learning.correction import DRAM_SHARE, TRAFFIC, Correction, load, read, write
from tilecast.learning.features import GROUPS, Launches, number_names
from tilecast.learning.relations import relation_names
from tilecast.learning.trees import Trees, grove
from tilecast.predictors.kernel import interval_width, predict_kernel

NUMBERS = number_names("gemm")
LOG2_M = NUMBERS.index("log2 m")
LOG_TIME = NUMBERS.index("log time in launches")
REACH = np.array([40.0 if name in relation_names("gemm") else 20.0 for name in NUMBERS], np.float32)  # of each number in training
VOCABULARY = {"cache": ["cold"], "dtype": ["bf16", "fp16"]}
QUANTILE = np.array([0.1, 0.15, 0.4, 0.5, 0.2])  # of each basis, and where a GPU of the same die stands in
EXPECTED = np.array([1.0, 2.0, 3.0])  # error to the first edge of log time, between both, beyond
WIDTH = np.outer(QUANTILE, EXPECTED)
SAME_DIE = corrections.ERRORS.index("same-die")
BYTE = {"rel": 0.01}  # leaves of the interval's trees are bytes


def one_leaf(value: float) -> Trees:
    return Trees(np.zeros((1, 1), np.int32), np.full((1, 1), np.inf, np.float32), np.full((1, 2), value, np.float32))


def spread(*edges: float) -> Trees:
    """log EXPECTED by log time, with these edges."""
    leaf = np.log([[EXPECTED[0], EXPECTED[1], EXPECTED[0], EXPECTED[2]]]).astype(np.float32)
    return Trees(np.array([[LOG_TIME, LOG_TIME]], np.int32), np.array([edges], np.float32), leaf)


def by_hand(**changed: Any) -> Correction:
    """m > 256 costs 0.3 instead of 0.1 everywhere; on the A100 0.05 more, on the L40S 0.05 less; each has a level per group."""
    one = Correction(
        family="gemm",
        vocabulary=VOCABULARY,
        gpus=("a100-sxm-80gb", "l40s"),
        archs=("ada", "ampere"),
        measured={"a100-sxm-80gb": {"16-bit None": ["sglang"]}, "l40s": {"16-bit None": ["sglang"]}},
        level=np.array([[0.2, 0.1, 0.0], [-0.2, -0.1, -0.3]], np.float32),
        low=-REACH,
        high=REACH,
        shared=Trees(np.array([[LOG2_M]], np.int32), np.array([[8.0]], np.float32), np.array([[0.1, 0.3]], np.float32)),
        local=grove({"a100-sxm-80gb sglang 16-bit": one_leaf(0.05), "l40s sglang 16-bit": one_leaf(-0.05)}),
        warm=frozenset(),
        carry=1.0,
        as_timed=False,
        spread=grove({kind: spread(1.0, 2.0) for kind in ("seen", "same-die", "unseen")}),
        quantile=QUANTILE,
        manifest={"scores": {}},
        digest="",
    )
    return replace(one, **changed)


def launches(*rows: dict[int, float], binds: str = "compute", **names: str) -> Launches:
    numbers = np.zeros((len(rows), len(NUMBERS)), np.float32)
    for row, values in enumerate(rows):
        for column, value in values.items():
            numbers[row, column] = value
    return Launches(numbers, {"dtype": "bf16", "cache": "cold"} | names, np.full(len(rows), GROUPS.index(binds)))


SMALL, LARGE = {LOG2_M: 4.0}, {LOG2_M: 12.0}


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of artifacts that stands for the shipped one, with the GEMM of `by_hand` in it."""
    monkeypatch.setattr(corrections, "FOLDER", tmp_path)
    load.cache_clear()
    yield write(by_hand(), tmp_path)
    load.cache_clear()


def sentence(path: Path) -> str:
    with pytest.raises(MissingData) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


# ---- who gets what -------------------------------------------------------------------------------------------------


def test_an_unmeasured_architecture_gets_only_the_share_of_the_trees_that_carries_over() -> None:
    # log2 m = 4 is below the threshold 8: the shared tree says 0.1; a quarter of it carries over, and there is no level
    corrected = by_hand(carry=0.25).correct(launches(SMALL), hardware.gpu("h100-sxm"))
    assert corrected.log_ratio == pytest.approx(0.025)
    assert corrected.basis.tolist() == ["unseen-generation"]


def test_a_kernel_never_measured_on_a_gpu_gets_only_what_carries_over() -> None:
    # a quarter of the shared 0.1; neither the level 0.2 nor the local 0.05, which are another kernel's
    only_fp8 = by_hand(carry=0.25, measured={"a100-sxm-80gb": {"fp8 None": []}, "l40s": {"16-bit None": []}})
    corrected = only_fp8.correct(launches(SMALL), hardware.gpu("a100-sxm-80gb"))
    assert corrected.log_ratio == pytest.approx(0.025)
    assert corrected.basis.tolist() == ["unseen-gpu"]


def test_a_what_if_part_is_never_called_measured() -> None:
    what_if = hardware.gpu("l40s", {"num_sms": 200})
    assert by_hand().correct(launches(SMALL), what_if).basis.tolist() == ["unseen-gpu"]


@pytest.mark.parametrize(
    ("gpu", "binds", "small"),
    [
        ("a100-sxm-80gb", "compute", 0.1 + 0.05 + 0.2),
        ("a100-sxm-80gb", "memory", 0.1 + 0.05 + 0.1),
        ("a100-sxm-80gb", "launch", 0.1 + 0.05 + 0.0),
        ("l40s", "compute", 0.1 - 0.05 - 0.2),
        ("l40s", "launch", 0.1 - 0.05 - 0.3),
    ],
)
def test_a_measured_gpu_gets_its_level_and_its_own_trees(gpu: str, binds: str, small: float) -> None:
    found = by_hand().correct(launches(SMALL, LARGE, binds=binds), hardware.gpu(gpu))
    assert found.log_ratio == pytest.approx([small, small + 0.2], abs=1e-6)
    assert found.basis.tolist() == ["interpolated", "interpolated"]


@pytest.mark.parametrize(("gpu", "basis"), [("a40", "unseen-gpu"), ("l4", "unseen-gpu"), ("h100-sxm", "unseen-generation")])
def test_an_unseen_die_gets_only_what_shapes_do_everywhere(gpu: str, basis: str) -> None:
    found = by_hand().correct(launches(SMALL, LARGE), hardware.gpu(gpu))
    assert found.log_ratio == pytest.approx([0.1, 0.3], abs=1e-6)
    assert found.basis.tolist() == [basis, basis]


def test_a_frameworks_attention_speaks_for_no_engine() -> None:
    one = by_hand(measured={"a100-sxm-80gb": {"16-bit fa2": ["pytorch"]}, "l40s": {"16-bit fa2": ["pytorch", "vllm"]}})
    a100, l40s = hardware.gpu("a100-sxm-80gb"), hardware.gpu("l40s")
    assert one.stand_in(a100, "16-bit fa2", "vllm") == "a100-sxm-80gb"  # a product is the same kernel, whoever calls it
    wrapped = replace(one, family="attention_decode")
    assert [wrapped.stand_in(a100, "16-bit fa2", engine) for engine in ("vllm", "sglang", "pytorch")] == [None, None, "a100-sxm-80gb"]
    assert wrapped.stand_in(l40s, "16-bit fa2", "sglang") == "l40s"


def test_a_board_is_spoken_for_by_one_of_its_power() -> None:
    """Full fp32 on an A100 of 400 W: 300 W with more bandwidth are nearer than the same bandwidth at 250 W."""
    boards = ("a100-pcie-40gb", "a100-pcie-80gb")
    rows = replace(by_hand(), gpus=boards, measured={board: {"fp32 cublas": [""]} for board in boards})
    assert rows.stand_in(hardware.gpu("a100-sxm-40gb"), "fp32 cublas") == "a100-pcie-80gb"
    assert rows.stand_in(hardware.gpu("a100-pcie-40gb"), "fp32 cublas") == "a100-pcie-40gb"


def test_a_board_that_boosts_beyond_its_rated_clock_neither_lends_nor_borrows() -> None:
    boosts = hardware.gpu("rtx-4090")
    assert boosts.die == hardware.gpu("l40s").die and boosts.highest_clock_hz > 1.2 * boosts.boost_clock_hz
    found = by_hand().correct(launches(SMALL), boosts)
    assert found.log_ratio == pytest.approx(0.1, abs=1e-6)  # what shapes do everywhere
    assert found.basis.tolist() == ["unseen-gpu"]


@pytest.mark.parametrize("gpu", ["l40", "rtx-6000-ada"])
def test_an_unseen_gpu_borrows_from_a_measured_one_with_its_die_and_says_unseen(gpu: str) -> None:
    assert hardware.gpu(gpu).die == hardware.gpu("l40s").die
    found = by_hand().correct(launches(SMALL), hardware.gpu(gpu))
    assert found.log_ratio == pytest.approx(0.1 - 0.05 - 0.2, abs=1e-6)
    assert found.basis.tolist() == ["unseen-gpu"]
    assert found.width == pytest.approx(WIDTH[SAME_DIE, 0], **BYTE)


def test_of_several_siblings_the_nearest_in_rates_lends() -> None:
    gpus = ("a100-sxm-80gb", "h100-sxm", "h20", "h200-sxm")
    one = by_hand(gpus=gpus, measured={gpu: {"16-bit cublas": ["sglang"]} for gpu in gpus})
    assert one.stand_in(hardware.gpu("h800-sxm"), "16-bit cublas") == "h100-sxm"  # the same memory
    assert one.stand_in(hardware.gpu("mi300x"), "16-bit cublas") is None
    alone = by_hand(gpus=("h100-sxm",), measured={"h100-sxm": {"16-bit cublas": ["sglang"]}})
    assert alone.stand_in(hardware.gpu("h20"), "16-bit cublas") is None  # a sixth of the tensor rate: another pipeline binds


@pytest.mark.parametrize(("engine", "identity"), [("sglang", "cutlass"), ("trtllm", "None"), ("vllm", "cutlass")])
def test_an_open_identity_is_what_the_engine_was_measured_with(engine: str, identity: str) -> None:
    one = by_hand(gpus=("l40s",), measured={"l40s": {"fp8 cutlass": ["sglang"], "fp8 None": ["trtllm"]}})
    asked = launches(SMALL, dtype="fp8", identity="cutlass", engine=engine)
    assert one.named(asked, hardware.gpu("l40s")).names["identity"] == identity


def test_a_kernel_measured_only_on_a_sibling_is_taken_from_there() -> None:
    one = by_hand(gpus=("h100-sxm", "h200-sxm"), measured={"h100-sxm": {"fp8 scaled_mm": [""]}, "h200-sxm": {"16-bit cublas": ["sglang"]}})
    assert one.stand_in(hardware.gpu("h200-sxm"), "fp8 scaled_mm") == "h100-sxm"
    assert one.stand_in(hardware.gpu("h200-sxm"), "fp8 deepgemm") is None


def test_a_measured_gpu_with_a_changed_fact_keeps_the_correction_but_counts_as_unseen() -> None:
    what_if = hardware.gpu("l40s", {"dram_bytes_per_s": 2e12})
    found = by_hand().correct(launches(SMALL), what_if)
    assert found.log_ratio == pytest.approx(0.1 - 0.05 - 0.2, abs=1e-6)
    assert found.basis.tolist() == ["unseen-gpu"]


def test_names_nobody_has_seen_have_no_column() -> None:
    columns = by_hand().columns(launches(SMALL, cache="warm", dtype="fp16", engine="new"))
    assert columns[0, len(NUMBERS) :].tolist() == [0.0, 0.0, 1.0]


# ---- far from the data ---------------------------------------------------------------------------------------------


def test_far_outside_the_range_the_analytic_time_is_left() -> None:
    # The range is 40 wide: 220 lies five ranges beyond it.
    found = by_hand().correct(launches({LOG2_M: 220.0}), hardware.gpu("a100-sxm-80gb"))
    assert found.log_ratio == pytest.approx(0.0, abs=1e-6)  # of the GPU's level as well
    assert found.fade == pytest.approx(0.0, abs=1e-6)
    assert found.basis.tolist() == ["extrapolated-shape"]
    unseen = by_hand().correct(launches({LOG2_M: 220.0}), hardware.gpu("h100-sxm"))
    assert unseen.log_ratio == pytest.approx(0.0, abs=1e-6)
    assert unseen.basis.tolist() == ["unseen-generation"]


def test_half_a_range_outside_a_third_of_the_correction_is_left() -> None:
    # 40.8 lies 0.52 ranges beyond, 0.02 of which count as inside: exp(-(0.5 / 0.5) ** 2) of 0.3 + 0.05 and of the level 0.2
    found = by_hand().correct(launches({LOG2_M: 40.8}), hardware.gpu("a100-sxm-80gb"))
    assert found.log_ratio == pytest.approx((0.2 + 0.35) * math.exp(-1), abs=1e-5)


def test_a_little_outside_still_counts_as_inside() -> None:
    inside, outside = {LOG2_M: 20.7}, {LOG2_M: 20.9}  # 0.0175 and 0.0225 of the range
    found = by_hand().correct(launches(inside, outside), hardware.gpu("l40s"))
    assert found.basis.tolist() == ["interpolated", "extrapolated-shape"]


def test_below_the_range_is_outside_as_well() -> None:
    found = by_hand().correct(launches({LOG2_M: -220.0}), hardware.gpu("l40s"))
    assert found.log_ratio == pytest.approx(0.0, abs=1e-6)
    assert found.basis.tolist() == ["extrapolated-shape"]


def test_sizes_that_no_row_of_this_kernel_here_has_are_extrapolated_and_less_sure() -> None:
    # The family's rows go from m = 2 ** -20 to 2 ** 20; those of the L40S from 1 to 2 ** 8, at n, k and batch of one. 12 lies 4 beyond, a
    # tenth of the family's range.
    rows_of_l40s = {"l40s 16-bit None": [[0.0] * 4, [8.0, 0.0, 0.0, 0.0]]}
    found = by_hand(sizes=rows_of_l40s).correct(launches(SMALL, LARGE), hardware.gpu("l40s"))
    assert found.basis.tolist() == ["interpolated", "extrapolated-shape"]
    assert found.width == pytest.approx([WIDTH[0, 0], 1.1 * WIDTH[1, 0]], **BYTE)
    assert found.log_ratio == pytest.approx(by_hand().correct(launches(SMALL, LARGE), hardware.gpu("l40s")).log_ratio)
    elsewhere = by_hand(sizes=rows_of_l40s).correct(launches(SMALL, LARGE), hardware.gpu("a100-sxm-80gb"))
    assert elsewhere.basis.tolist() == ["interpolated", "interpolated"]


@pytest.mark.parametrize(("level", "clipped"), [(9.0, 2.5), (-9.0, -2.5)])
def test_a_correction_never_exceeds_a_factor_of_twelve(level: float, clipped: float) -> None:
    wild = by_hand(level=np.full((2, 3), level, np.float32))
    assert wild.correct(launches(SMALL), hardware.gpu("l40s")).log_ratio == clipped


# ---- intervals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "row"), [("l40s", 0), ("a40", 2), ("h100-sxm", 3)])
def test_the_interval_is_that_of_the_basis_and_of_the_time_in_launches(gpu: str, row: int) -> None:
    found = by_hand().correct(launches({LOG_TIME: 0.5}, {LOG_TIME: 1.5}, {LOG_TIME: 9.0}), hardware.gpu(gpu))
    assert found.width == pytest.approx(WIDTH[row], **BYTE)


def test_the_interval_widens_outside_the_range_up_to_three_times() -> None:
    found = by_hand().correct(launches({LOG2_M: 40.0}, {LOG2_M: 220.0}, {LOG2_M: 1e6}), hardware.gpu("l40s"))
    assert found.width == pytest.approx(WIDTH[1, 0] * np.array([1.5, 3.0, 3.0]), **BYTE)


# ---- on disk -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    before = by_hand(manifest={"date": "2026-01-01", "scores": {"interpolated": {"l40s": 3.0}}})
    path = write(before, tmp_path)
    after = read(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["gemm.json", "gemm.safetensors"]
    for name in ("family", "vocabulary", "gpus", "archs"):
        assert getattr(after, name) == getattr(before, name)
    for name in ("level", "low", "high", "quantile"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    for gpu in ("l40s", "a40", "rtx-4090"):
        asked = launches(SMALL, LARGE, {LOG2_M: 50.0})
        ours, theirs = (one.correct(asked, hardware.gpu(gpu)) for one in (before, after))
        np.testing.assert_array_equal(ours.log_ratio, theirs.log_ratio)
    assert after.manifest == before.manifest | {"sha256": tensors.file_digest(path)}
    assert tensors.file_digest(path).startswith(after.digest)
    assert len(after.digest) == 12


def test_what_rows_say_of_heads_is_read_back_and_found_by_name(tmp_path: Path) -> None:
    key = "l40s sglang 16-bit None 16-bit"
    said = {"num_heads": {key: Built(frozenset({(64,), (128,)}), frozenset({64}))}}
    one = read(write(by_hand(built=said, lowest={key: -0.4, "a100-sxm-80gb sglang 16-bit None 16-bit": -0.7}), tmp_path))
    names = {"dtype": "bf16", "identity": "None", "engine": "sglang", "kv_dtype": "None"}
    of_its_own = one.of_slice(names, hardware.gpu("l40s"))
    assert of_its_own.built == {"num_heads": said["num_heads"][key]}
    assert of_its_own.lowest == -0.4
    assert one.of_slice({**names, "kv_dtype": "fp8"}, hardware.gpu("l40s")).built == {}
    unseen = one.of_slice(names, hardware.gpu("mi300x"))
    assert (unseen.built, unseen.lowest) == ({"num_heads": said["num_heads"][key]}, -0.7)  # whatever any kernel does, the fastest
    assert by_hand().of_slice(names, hardware.gpu("l40s")).lowest is None


def test_a_gpu_without_rows_changes_kernels_where_a_quarter_of_the_others_do() -> None:
    others = ("l40s", "a40", "a100-sxm-80gb", "h100-sxm", "b200-sxm")
    changes = ({1, 16}, {1}, set(), set(), set())
    rows = {
        f"{gpu} sglang 16-bit None 16-bit": Built(frozenset({(64 * place,)}), frozenset(sizes))
        for place, (gpu, sizes) in enumerate(zip(others, changes, strict=True), 1)
    } | {"l40s vllm 16-bit None 16-bit": Built(frozenset({(80,)}), frozenset({2}))}
    one = by_hand(built={"num_heads": rows}, lowest={"": 0.0})
    names = {"dtype": "bf16", "identity": "None", "engine": "sglang", "kv_dtype": "None"}
    unseen = hardware.gpu("mi300x")
    assert one.of_slice(names, unseen).built == {"num_heads": Built(frozenset((64 * place,) for place in range(1, 6)), frozenset({1}))}
    assert one.of_slice({**names, "engine": "vllm"}, unseen).built["num_heads"].changes == {2}
    assert one.of_slice({**names, "engine": "trtllm"}, unseen).built["num_heads"].changes == {1}  # of any engine: two of six
    assert one.of_slice({**names, "dtype": "fp8"}, unseen).built == {}


def test_nothing_half_written_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write(by_hand(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_manifest_leaves_the_old_artifact_as_it_was(tmp_path: Path) -> None:
    path = write(by_hand(), tmp_path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write(by_hand(quantile=2 * QUANTILE, manifest={"date": object()}), tmp_path)
    assert path.read_bytes() == before
    np.testing.assert_array_equal(read(path).quantile, QUANTILE)


def test_a_manifest_that_states_another_hash_is_refused(artifact: Path) -> None:
    manifest = artifact.with_suffix(".json")
    manifest.write_text(manifest.read_text().replace(tensors.file_digest(artifact), "0" * 64))
    assert "hash" in sentence(artifact)
    assert "reinstall tilecast, or run 'tilecast fit'" in sentence(artifact)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemm.safetensors"
    tensors.write(path, {}, {"schema": "tilecast.correction/9"})
    path.with_suffix(".json").write_text(json.dumps({"sha256": tensors.file_digest(path)}))
    assert "'tilecast.correction/9'" in sentence(path)
    assert "run 'tilecast fit'" in sentence(path)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "5"])
def test_a_missing_or_damaged_manifest_is_refused(content: str | None, artifact: Path) -> None:
    manifest = artifact.with_suffix(".json")
    if content is None:
        manifest.unlink()
    else:
        manifest.write_text(content)
    assert "run 'tilecast fit'" in sentence(artifact)


@pytest.mark.parametrize("index", ["[]", "{}", "not json", "5"])
def test_a_damaged_index_is_refused(index: str, tmp_path: Path) -> None:
    path = tmp_path / "gemm.safetensors"
    tensors.write(path, {}, {"schema": corrections.SCHEMA, "index": index})
    path.with_suffix(".json").write_text(json.dumps({"sha256": tensors.file_digest(path)}))
    assert "run 'tilecast fit'" in sentence(path)


def test_damaged_weights_are_refused(artifact: Path) -> None:
    content = artifact.read_bytes()
    artifact.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # one bit
    assert "hash" in sentence(artifact)
    artifact.write_bytes(content[:-5])
    assert "damaged" in sentence(artifact)


def test_a_prediction_without_readable_weights_is_physics_alone_and_says_so(artifact: Path) -> None:
    artifact.write_bytes(artifact.read_bytes()[:-5])
    with pytest.warns(
        UserWarning, match=r"damaged.*: reinstall tilecast, or run 'tilecast fit'; .*rest on physics alone \(basis analytic\)"
    ):
        found = predict_kernel(Gemm(m=64, n=64, k=64), "l40s")
    assert found.basis.tolist() == ["analytic"]
    assert found.median_s.tolist() == found.analytic_s.tolist()


def test_a_prediction_whose_weights_are_gone_says_so(artifact: Path) -> None:
    artifact.unlink()
    with pytest.warns(UserWarning, match=r"missing: reinstall tilecast, or run 'tilecast fit'; .*physics alone \(basis analytic\)"):
        assert predict_kernel(Gemm(m=64, n=64, k=64), "l40s").basis.tolist() == ["analytic"]


def test_a_family_without_a_file_has_no_correction(artifact: Path) -> None:
    assert load("moe") is None
    loaded = load("gemm")
    assert loaded is not None
    assert loaded.gpus == ("a100-sxm-80gb", "l40s")


# ---- predictions ---------------------------------------------------------------------------------------------------


def test_a_prediction_is_the_analytic_time_corrected(artifact: Path) -> None:
    kernel = Gemm(m=np.array([4096, 8192]), n=4096, k=4096)
    found = predict_kernel(kernel, "a100-sxm-80gb")
    assert found.basis.tolist() == ["interpolated", "interpolated"]
    # m > 256, compute binds: 0.3 + 0.05 + 0.2
    assert found.median_s == pytest.approx(np.maximum(found.analytic_s * math.exp(0.55), found.bound_s))
    assert found.high_s / found.median_s == pytest.approx(np.exp(WIDTH[0, 2]), **BYTE)
    assert found.low_s == pytest.approx(np.maximum(found.median_s * np.exp(-WIDTH[0, 2]), found.bound_s), **BYTE)


def test_a_correction_never_takes_a_prediction_below_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilecast.predictors.kernel.usable", lambda _: by_hand(level=np.full((2, 3), -2.5, np.float32)))
    found = predict_kernel(Gemm(m=8192, n=8192, k=8192), "l40s")
    assert found.median_s.tolist() == found.low_s.tolist() == found.bound_s.tolist()


@pytest.mark.parametrize("dtype", ["fp8", "fp32"])
def test_a_dtype_the_artifact_has_not_seen_is_physics_alone(dtype: str, artifact: Path) -> None:
    found = predict_kernel(Gemm(m=4096, n=4096, k=4096, dtype=dtype), "l40s")
    assert found.basis.tolist() == ["analytic"]
    assert found.median_s.tolist() == found.analytic_s.tolist()
    assert found.high_s / found.median_s == pytest.approx(math.exp(interval_width("gemm")))


def test_a_family_without_artifact_is_physics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilecast.predictors.kernel.usable", lambda _: None)
    for kernel in (Gemm(m=64, n=64, k=64), RmsNorm(rows=64, cols=4096)):
        found = predict_kernel(kernel, "l40s")
        assert found.basis.tolist() == ["analytic"]
        assert found.median_s.tolist() == found.analytic_s.tolist()


def test_a_family_that_cannot_be_learned_is_never_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(family: str) -> None:
        raise AssertionError(family)

    monkeypatch.setattr("tilecast.predictors.kernel.usable", asked)
    assert predict_kernel(RmsNorm(rows=64, cols=4096), "l40s").basis.tolist() == ["analytic"]
    assert predict_kernel(Gemm(m=64, n=64, k=64), "l40s", learned=False).basis.tolist() == ["analytic"]


def test_rows_that_found_their_data_in_l2_say_nothing_of_the_way_from_dram():
    small = {DRAM_SHARE: 0.0, TRAFFIC: -3.0}  # all of its time is DRAM's; a twentieth of L2
    knows, guesses = by_hand(), by_hand(warm=frozenset(["l40s sglang 16-bit"]))
    l40s = hardware.gpu("l40s")
    own = -0.05
    asked = launches(small, binds="memory")
    assert knows.correct(asked, l40s).log_ratio - guesses.correct(asked, l40s).log_ratio == pytest.approx(own)
    beyond = launches({DRAM_SHARE: 0.0, TRAFFIC: 1.0}, binds="memory")  # larger than L2: rows came from DRAM too
    assert guesses.correct(beyond, l40s).log_ratio == knows.correct(beyond, l40s).log_ratio
    timed = replace(asked, timed=asked.numbers)  # asked for as rows were timed
    assert guesses.correct(timed, l40s).log_ratio == knows.correct(timed, l40s).log_ratio
    many = launches(small, {DRAM_SHARE: 0.0, TRAFFIC: 1.0}, binds="memory")
    assert guesses.correct(many, l40s).log_ratio == pytest.approx([float(guesses.correct(one, l40s).log_ratio) for one in (asked, beyond)])
