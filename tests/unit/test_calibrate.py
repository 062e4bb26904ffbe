"""`tilecast calibrate`: profiles from rows and from a run, what they change, the plan and its script, and every way to get it wrong."""

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.command_line import Tilecast
from tilecast import hardware, predict, predict_kernel
from tilecast.engines.calibrated import profile_from_run
from tilecast.engines.measurement import plan, script
from tilecast.errors import InvalidInput, MissingData, TilecastError
from tilecast.kernels.gemm import Gemm
from tilecast.learning import profiles
from tilecast.predictors.calibrated import profile_from_rows, sites_of_prediction

GPU = "l20"
BATCH = {"model": "Qwen/Qwen3-8B", "gpu": GPU, "batch": 8, "isl": 1024, "osl": 64}


def row(m: int, factor: float = 1.25, **changed: Any) -> dict[str, Any]:
    median_s = float(predict_kernel(Gemm(m=m, n=4096, k=4096), GPU).median_s[0])
    return {"family": "gemm", "gpu": GPU, "dtype": "bf16", "m": m, "n": 4096, "k": 4096, "measured_s": factor * median_s} | changed


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture
def profile(tilecast: Tilecast, tmp_path: Path) -> str:
    rows = written(tmp_path / "rows.csv", [row(m) for m in (1, 32, 512, 4096)])
    result = tilecast("calibrate", rows, "--gpu", GPU, "-o", str(tmp_path / "profile.json"), "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["profile"] | {"id": "", "date": ""} == {"id": "", "gpu": GPU, "rows": 4, "runs": 0, "date": ""}
    assert {entry["family"] for entry in result.json["levels"]} == {"gemm"}
    assert all(entry["measured_over_predicted"] == pytest.approx(1.25) for entry in result.json["levels"])
    assert all(entry["error_left_out"] < entry["error_before"] for entry in result.json["levels"])
    return str(tmp_path / "profile.json")


def test_a_profile_goes_through_every_predicting_command(tilecast: Tilecast, profile: str, tmp_path: Path):
    asked = ("kernel", "gemm", "--gpu", GPU, "--m", "256", "--n", "4096", "--k", "4096")
    plain, told = tilecast(*asked, "--json").json, tilecast(*asked, "--profile", profile, "--json").json
    assert 1.1 < told["median_s"] / plain["median_s"] < 1.3
    assert told["high_s"] / told["median_s"] < plain["high_s"] / plain["median_s"]
    assert told["basis"] == plain["basis"] and "profile" not in plain["inputs"]
    made = profiles.read(Path(profile))
    assert told["inputs"]["profile"] == made.told() and made.num_rows == 4
    shown = tilecast(*asked, "--profile", profile).out
    assert f"profile {made.id} 4 kernels measured on {GPU}" in " ".join(shown.split())
    assert f"--profile {profile}" in " ".join(shown.split())

    rows = written(tmp_path / "ask.csv", [{"family": "gemm", "gpu": GPU, "dtype": "bf16", "m": 256, "n": 4096, "k": 4096}])
    out = str(tmp_path / "out.csv")
    assert tilecast("kernels", rows, "--out", out, "--profile", profile, "--json").json["profile"]["id"] == made.id
    with Path(out).open() as file:
        assert float(next(csv.DictReader(file))["median_s"]) == pytest.approx(told["median_s"])

    asked = ("predict", BATCH["model"], "--gpu", GPU, "--batch", "8", "--isl", "1024", "--osl", "64")
    plain, told = tilecast(*asked, "--json").json, tilecast(*asked, "--profile", profile, "--json").json
    assert told["prefill_s"]["median"] > 1.1 * plain["prefill_s"]["median"]
    assert told["inputs"]["profile"]["id"] == made.id and made.id in tilecast(*asked, "--profile", profile).out
    supported = tilecast("support", *asked[1:], "--profile", profile, "--json").json
    assert supported["inputs"] == told["inputs"] and supported["share_by_basis"] == pytest.approx(told["basis_shares"])

    asked = ("step", "GPT2-Large", "--gpu", GPU, "--batch", "8", "--seq", "1024")
    plain, told = tilecast(*asked, "--json").json, tilecast(*asked, "--profile", profile, "--json").json
    assert told["step_s"]["median"] > 1.03 * plain["step_s"]["median"] and "profile" not in plain["inputs"]
    assert told["inputs"]["profile"]["id"] == made.id and made.id in tilecast(*asked, "--profile", profile).out
    other = tilecast(*asked[:3], "l40s", *asked[4:], "--profile", profile)
    assert other.code == 2 and f"was measured on {GPU}, not on l40s" in other.err


def test_kernels_of_another_family_or_format_move_less(profile: str):
    def factor(kernel: Any) -> float:
        return float((predict_kernel(kernel, GPU, profile=profile).median_s / predict_kernel(kernel, GPU).median_s)[0])

    from tilecast.kernels.rms_norm import RmsNorm

    near, other_format = factor(Gemm(m=128, n=4096, k=4096)), factor(Gemm(m=128, n=4096, k=4096, dtype="fp8"))
    assert near > other_format > 1.0
    assert near > factor(RmsNorm(rows=4096, cols=4096)) > 1.0


def test_a_launch_measured_twice_counts_by_its_median():
    once = profile_from_rows([row(64, 1.2)], GPU)
    thrice = profile_from_rows([row(64, 1.1), row(64, 1.2), row(64, 1.9)], GPU)
    assert thrice.evidence.offset.tolist() == pytest.approx(once.evidence.offset.tolist()) and thrice.num_rows == 3


def test_what_the_law_of_doubling_leaves_is_as_sure_as_what_was_learned():
    """Its interval reaches up to what was learned; that is no error to expect of what is measured."""
    found = predict_kernel(Gemm(m=4, n=64, k=3072), "l40s", engine="trtllm")
    assert found.median_s[0] < 0.6 * found.learned_s[0]
    assert sites_of_prediction(found, "trtllm").spread[0] < 0.1 < np.log(found.high_s[0] / found.median_s[0])


@pytest.mark.parametrize(("gpu", "dtype"), [(GPU, "fp8"), ("h100-sxm", "fp8"), ("b200-sxm", "nvfp4")])
def test_a_row_that_leaves_its_kernel_open_is_that_of_the_kernel_it_means(gpu: str, dtype: str):
    product = {"dtype": dtype, "m": 100, "n": 1000, "k": 8000}
    named = Gemm(**product).newest_identity(hardware.gpu(gpu))
    before_s = float(predict_kernel(Gemm(**product), gpu).median_s[0])
    medians = []
    for identity in (None, named):
        measured = {"family": "gemm", "gpu": gpu, **product, "identity": identity, "measured_s": 1.3 * before_s}
        profile = profile_from_rows([measured], gpu)
        medians.append(float(predict_kernel(Gemm(**product), gpu, profile=profile).median_s[0]))
    assert medians[0] == pytest.approx(medians[1]) and medians[0] > 1.02 * before_s


def test_an_explanation_tells_weights_and_measurements_apart(tilecast: Tilecast, profile: str):
    asked = ("kernel", "gemm", "--gpu", GPU, "--m", "512", "--n", "4096", "--k", "4096", "--explain", "--json")
    plain, told = ({row["stage"]: row["from"] for row in tilecast(*asked, *more).json["explain"]} for more in ((), ("--profile", profile)))
    learned = next(text for text in plain.values() if "learned correction" in text)
    assert learned.split(":")[0] == told["as learned"].split(":")[0]
    assert any(f"measured on {GPU}" in text for text in told.values()) and not any("measured on" in text for text in plain.values())


def test_physics_alone_takes_no_profile(profile: str):
    with pytest.raises(InvalidInput, match="learned=False"):
        predict_kernel(Gemm(m=1, n=64, k=64), GPU, learned=False, profile=profile)


# ---- a whole run -------------------------------------------------------------------------------------------------


def run_of(prefill: float, decode: float, **more: Any) -> dict[str, Any]:
    found = predict(**BATCH)
    measured = {"prefill_s": prefill * found.prefill_s.median, "decode_step_s": decode * found.decode_step_s.median}
    return {"command": "predict", "inputs": dict(found.inputs), "measured": measured} | more


def test_a_run_is_met_and_its_intervals_narrow():
    before, after = predict(**BATCH), predict(**BATCH, profile=profile_from_run(run_of(1.2, 1.1), GPU))
    assert after.prefill_s.median / before.prefill_s.median == pytest.approx(1.2, rel=0.03)
    assert after.decode_step_s.median / before.decode_step_s.median == pytest.approx(1.1, rel=0.03)
    for name in ("prefill_s", "decode_step_s", "total_s"):
        one, other = getattr(before, name), getattr(after, name)
        assert other.high / other.median < one.high / one.median and other.low <= other.median <= other.high


def test_a_slow_decode_is_shared_between_host_and_memory():
    profile = profile_from_run(run_of(1.0, 1.3), GPU)
    factor, width = profile.host("decode", 0.2)
    assert 1.0 < factor < 1.3 and width < 0.2 * 1.2816
    thin = Gemm(m=8, n=4096, k=4096)
    slope = float((predict_kernel(thin, GPU, profile=profile).median_s / predict_kernel(thin, GPU).median_s)[0])
    assert slope > factor > 1.0  # kernels are most of a step, and less certain in it than the host's small part


@pytest.mark.parametrize("name", ["prefill_s", "decode_step_s", "total_s"])
def test_any_one_of_the_three_will_do(name: str):
    value = 1.15 * getattr(predict(**BATCH), name).median
    after = predict(**BATCH, profile=profile_from_run(run_of(1, 1, measured={name: value}), GPU))
    assert getattr(after, name).median == pytest.approx(value, rel=0.03)


def test_rows_and_a_run_together(tilecast: Tilecast, tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps(run_of(1.2, 1.1)))
    rows, target = written(tmp_path / "rows.csv", [row(64)]), tmp_path / "p.json"
    result = tilecast("calibrate", rows, "--run", str(tmp_path / "run.json"), "--gpu", GPU, "-o", str(target))
    assert result.code == 0 and "1 kernel and 1 run measured on l20" in profiles.read(target).words
    assert predict(**BATCH, profile=target).prefill_s.median > predict(**BATCH).prefill_s.median


def test_as_python_makes_the_same_profile_and_the_command_writes_none(tilecast: Tilecast, tmp_path: Path):
    (tmp_path / "run.json").write_text(json.dumps(run_of(1.2, 1.1)))
    rows, target = written(tmp_path / "rows.csv", [row(64)]), tmp_path / "p.json"
    asked = ("calibrate", rows, "--run", str(tmp_path / "run.json"), "--gpu", GPU, "-o", str(target))
    assert tilecast(*asked).code == 0
    wanted = target.read_text()
    target.unlink()
    code = tilecast(*asked, "--as-python").out
    assert not target.exists()
    exec(code, {})
    assert target.read_text() == wanted


def test_as_python_of_a_plan_writes_the_same_script(tilecast: Tilecast, tmp_path: Path):
    target = tmp_path / "measure.py"
    code = tilecast("calibrate", "--plan", "3", "--gpu", GPU, "-o", str(target), "--as-python").out
    assert not target.exists()
    exec(code, {})
    wanted = target.read_text()
    assert tilecast("calibrate", "--plan", "3", "--gpu", GPU, "-o", str(target)).code == 0
    assert target.read_text() == wanted


# ---- the plan ----------------------------------------------------------------------------------------------------


def test_a_plan_is_diverse_and_each_kernel_adds_less():
    chosen = plan(hardware.gpu(GPU), 20)
    assert len({json.dumps(dict(each.row), sort_keys=True) for each in chosen}) == 20
    assert {"gemm", "attention_prefill", "attention_decode", "rms_norm"} <= {each.row["family"] for each in chosen}
    assert {"tensor", "dram"} <= {each.bound_by for each in chosen}
    gains = np.diff([0.0, *(each.explained for each in chosen)])
    assert (gains > 0).all() and chosen[-1].explained < 1
    assert (np.diff(gains) <= 0.01 * gains[0]).all()  # what two kernels tell together may exceed their sum, by little


@pytest.mark.parametrize("gpu", ["t4", "p100-pcie-16gb", "a100-sxm-80gb", "mi300x"])
def test_a_plan_asks_only_for_formats_the_gpu_has(gpu: str):
    spec = hardware.gpu(gpu)
    assert {each.row["dtype"] for each in plan(spec, 30)} <= {*spec.tensor_flop_per_s, *spec.vector_flop_per_s}


def test_the_script_runs_and_calibrates(tilecast: Tilecast, tmp_path: Path):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: the measuring script cannot run")
    target, rows = tmp_path / "measure.py", tmp_path / "rows.csv"
    assert tilecast("calibrate", "--plan", "20", "--gpu", GPU, "-o", str(target)).code == 0
    subprocess.run([sys.executable, target, "--device", "cpu", "--quick", "--out", rows], check=True, capture_output=True, timeout=300)
    with rows.open() as file:
        measured = list(csv.DictReader(file))
    assert len(measured) >= 15 and all(float(each["measured_s"]) > 0 for each in measured)
    for each in measured:  # this processor is no L20: put times in that a GPU could have
        each["measured_s"] = ""
    written(rows, measured)
    out = tmp_path / "asked.csv"
    assert tilecast("kernels", str(rows), "--out", str(out)).code == 0
    with out.open() as file:
        answered = [{**each, "measured_s": 1.1 * float(each["median_s"])} for each in csv.DictReader(file)]
    written(rows, answered)
    assert tilecast("calibrate", str(rows), "--gpu", GPU, "-o", str(tmp_path / "p.json")).code == 0


def test_the_script_is_self_contained():
    text = script(hardware.gpu(GPU), plan(hardware.gpu(GPU), 3))
    compile(text, "measure.py", "exec")
    assert "import tilecast" not in text and "@" not in text.replace("@torch", "") and '"family": "gemm"' in text


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"measured_s": "nan"}, "row 2: measured_s = nan"),
        ({"measured_s": -1e-4}, "row 2: measured_s = -0.0001"),
        ({"measured_s": 5000.0}, "row 2: measured_s = 5000"),
        ({"measured_s": 3.0}, "row 2: measured_s = 3 is more than 30 times"),
        ({"measured_s": 1e-7}, "row 2: measured_s = 1e-07 is less than"),
        ({"measured_s": ""}, "row 2: measured_s = empty"),
        ({"measured_s": "1e300"}, "row 2: measured_s = 1e+300 must be seconds"),
        ({"measured_s": "fast"}, "row 2: measured_s = fast"),
        ({"m": ""}, "row 2: gemm lacks 'm'"),
        ({"family": "gem"}, "row 2: unknown family 'gem'"),
        ({"family": "all_reduce"}, "row 2: all_reduce is a matter of links"),
        ({"dtype": "fp4"}, "row 2:"),
        ({"gpu": "h100x"}, "unknown GPU 'h100x'"),
        ({"engine": "foo"}, "unknown engine 'foo': known: framework"),
        ({"bach": 4}, "unknown column 'bach': did you mean batch"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(tilecast: Tilecast, tmp_path: Path, changed: dict[str, Any], words: str):
    rows = written(tmp_path / "rows.csv", [dict.fromkeys(changed, "") | row(1), row(512) | changed])
    result = tilecast("calibrate", rows, "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]


def test_rows_that_name_no_gpu_are_of_the_one_asked_for(tilecast: Tilecast, tmp_path: Path):
    nameless = [{name: value for name, value in row(m).items() if name != "gpu"} for m in (1, 512)]
    said = tilecast("calibrate", written(tmp_path / "rows.csv", nameless), "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    named = tilecast("calibrate", written(tmp_path / "rows.csv", [row(1), row(512)]), "--gpu", GPU, "-o", str(tmp_path / "q.json"))
    assert said.code == named.code == 0
    assert json.loads((tmp_path / "p.json").read_text())["sha256"] == json.loads((tmp_path / "q.json").read_text())["sha256"]


def test_what_is_left_out_is_said(tilecast: Tilecast, tmp_path: Path):
    rows = [
        row(1) | {"colour": "red", "window": ""},
        row(64) | {"colour": "", "window": 128},
        row(512) | {"colour": "", "window": "", "gpu": "a40"},
    ]
    result = tilecast("calibrate", written(tmp_path / "rows.csv", rows), "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    assert result.code == 0 and "tilecast: not read: colour\n" in result.err
    assert "no such parameter: window of gemm (1 row)\n" in result.err
    assert "1 of 3 rows are of other GPUs than l20 and left out\n" in result.err


def test_rows_of_another_gpu_or_without_a_column_are_refused(tilecast: Tilecast, tmp_path: Path):
    rows = written(tmp_path / "rows.csv", [row(64)])
    result = tilecast("calibrate", rows, "--gpu", "a40", "-o", str(tmp_path / "p.json"))
    assert result.code == 3 and "no rows of a40 to calibrate with; rows of: l20" in result.err
    without = {name: value for name, value in row(64).items() if name != "measured_s"}
    result = tilecast("calibrate", written(tmp_path / "rows.csv", [without]), "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    assert result.code == 2 and "the column 'measured_s' is missing" in result.err
    assert tilecast("calibrate", str(tmp_path / "none.csv"), "--gpu", GPU, "-o", str(tmp_path / "p.json")).code == 3
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"measured": None}, "nothing measured"),
        ({"measured": {}}, "nothing measured"),
        ({"measured": {"prefill_s": -1}}, "measured prefill_s = -1"),
        ({"measured": {"prefill_s": 1e5}}, "times away from"),
        ({"measured": {"ttft": 1, "prefill_s": 1}}, "measured has 'ttft'"),
        ({"measured": {"ttft_s": 1}}, "measured has 'ttft_s'; it may have prefill_s, decode_step_s, total_s"),
        ({"measured": {"prefill_s": 10**100}}, "measured prefill_s = 1e+100 must be seconds"),
        ({"command": "step"}, "command = 'step'"),
        ({"inputs": None}, "no 'inputs'"),
        ({"inputs": BATCH | {"gpu": "a40"}}, "the run was on a40, not on l20"),
        ({"inputs": BATCH | {"model": ""}}, "inputs lack the model"),
        ({"inputs": BATCH | {"set": ["num_sms=10"]}}, "what-if"),
        ({"inputs": BATCH | {"osl": 1}}, "no decode step"),
    ],
)
def test_a_bad_run_is_one_sentence(tilecast: Tilecast, tmp_path: Path, changed: dict[str, Any], words: str):
    (tmp_path / "run.json").write_text(json.dumps(run_of(1, 1) | changed))
    result = tilecast("calibrate", "--run", str(tmp_path / "run.json"), "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "p.json").exists()


def test_a_run_faster_than_its_kernels_can_be_is_refused():
    found = predict(**BATCH)
    for phase, name, times in (("prefill", "prefill_s", 1), ("decode", "decode_step_s", found.decode_steps)):
        bound_s = sum(part.bound_s for part in found.breakdown if part.phase == phase) / times
        with pytest.raises(InvalidInput, match=f"measured {name} = .* is less than the .* below which no such kernels can go"):
            profile_from_run(run_of(1, 1, measured={name: 0.6 * bound_s}), GPU)
        profile_from_run(run_of(1, 1, measured={name: 0.8 * bound_s}), GPU)  # as for rows: a chip may boost above its facts


def test_a_total_is_the_sum_of_its_parts():
    found, measured = predict(**BATCH), run_of(1, 1)["measured"]
    total_s = found.total_s.median
    for factor in (0.95, 1.05):
        profile_from_run(run_of(1, 1, measured=measured | {"total_s": factor * total_s}), GPU)
    with pytest.raises(InvalidInput, match=r"is more than 10 % away from prefill_s and .* steps of decode_step_s"):
        profile_from_run(run_of(1, 1, measured=measured | {"total_s": 1.15 * total_s}), GPU)
    with pytest.raises(InvalidInput, match=r"leaves -.* s beside prefill_s for .* decode steps, which take"):
        profile_from_run(
            run_of(1, 1, measured={"prefill_s": 1.01 * found.prefill_s.median * 2, "total_s": 2 * found.prefill_s.median}), GPU
        )


@pytest.mark.parametrize("options", [(), ("--plan", "0"), ("--plan", "1000"), ("--plan", "5", "--run", "x.json")])
def test_what_to_do_must_be_clear(tilecast: Tilecast, tmp_path: Path, options: tuple[str, ...]):
    result = tilecast("calibrate", *options, "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    assert result.code == 2 and result.err.count("\n") == 1 and not any(tmp_path.iterdir())


def test_a_profile_of_another_gpu_a_damaged_or_an_old_one_is_refused(tilecast: Tilecast, profile: str, tmp_path: Path):
    def asked(path: str, gpu: str = GPU) -> tuple[int, str]:
        result = tilecast("kernel", "gemm", "--gpu", gpu, "--m", "1", "--n", "64", "--k", "64", "--profile", path)
        assert result.err.count("\n") == 1
        return result.code, result.err

    code, words = asked(profile, "a40")
    assert code == 2 and "profile.json was measured on l20, not on a40" in words
    assert asked(str(tmp_path / "none.json"))[0] == 3
    content = json.loads(Path(profile).read_text())

    def changed(**more: Any) -> str:
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(content | more))
        profiles.read.cache_clear()
        return str(path)

    assert "schema 'tilecast.profile/0'" in asked(changed(schema="tilecast.profile/0"))[1]
    assert "hash" in asked(changed(rows=5))[1]
    (tmp_path / "cut.json").write_text(Path(profile).read_text()[:500])
    assert asked(str(tmp_path / "cut.json"))[0] == 3
    (tmp_path / "list.json").write_text("[]")
    assert "schema None" in asked(str(tmp_path / "list.json"))[1]


def test_a_profile_from_other_weights_is_refused(profile: str, monkeypatch: pytest.MonkeyPatch, tilecast: Tilecast):
    monkeypatch.setattr(profiles, "artifacts_hash", lambda: "00000000")
    profiles.read.cache_clear()
    result = tilecast("kernel", "gemm", "--gpu", GPU, "--m", "1", "--n", "64", "--k", "64", "--profile", profile)
    assert result.code == 3 and "other artifacts" in result.err and "calibrate' again" in result.err


def test_a_place_that_cannot_be_written_is_told(tilecast: Tilecast, tmp_path: Path):
    rows = written(tmp_path / "rows.csv", [row(64)])
    result = tilecast("calibrate", rows, "--gpu", GPU, "-o", str(tmp_path / "no" / "p.json"))
    assert result.code == 2 and "there is no folder" in result.err


# ---- inputs are those that `predict --json` prints -----------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        "Qwen/Qwen3-8B --gpu h100-sxm --quant fp8 --batch 8 --isl 256 --osl 16",
        "Qwen/Qwen3-8B --gpu h100-sxm --tp 2 --pp 2 --batch 8 --isl 256 --osl 16",
        "Qwen/Qwen3-30B-A3B --gpu rtx-6000-ada --tp 2 --ep 2 --batch 8 --isl 256 --osl 16",  # a box that no catalogue names
        "deepseek-ai/DeepSeek-V3 --gpu h200-sxm --tp 8 --ep 8 --dp-attention 8 --batch 64 --isl 256 --osl 16",
        "Qwen/Qwen3-8B --gpu h100-sxm --engine vllm --engine-set max_num_batched_tokens=1024 --batch 16 --isl 256 --osl 16",
        "Qwen/Qwen3-8B --gpu h100-sxm --batch 1 --isl 50000 --osl 16 --allow-longer-context",
    ],
)
def test_a_run_that_was_as_predicted_changes_no_prediction_whatever_it_was(tilecast: Tilecast, tmp_path: Path, asked: str):
    """Every input counts: a profile made of another question than the one that was measured would move the answer."""
    plain = tilecast("predict", *asked.split(), "--json").json
    measured = {name: plain[name]["median"] for name in ("prefill_s", "decode_step_s")}
    run, target, gpu = tmp_path / "run.json", tmp_path / "profile.json", plain["inputs"]["gpu"]
    run.write_text(json.dumps({"command": "predict", "inputs": plain["inputs"], "measured": measured}))
    assert tilecast("calibrate", "--run", str(run), "--gpu", gpu, "-o", str(target)).err == ""
    told = tilecast("predict", *asked.split(), "--profile", str(target), "--json").json
    for name, value in measured.items():
        assert told[name]["median"] == pytest.approx(value, rel=2e-3)
    assert told["total_s"]["high"] - told["total_s"]["low"] < plain["total_s"]["high"] - plain["total_s"]["low"]


@pytest.mark.parametrize(
    "more, words",
    [
        ({"concurrency": 8}, "inputs have concurrency = 8: a run is one static batch"),
        ({"btach": 8}, "inputs have btach = 8: a run is one static batch, described by model, gpu, engine, tp, pp"),
        ({"engine_set": ["chunked_prefill_size"]}, "it must be a list of settings such as"),
        ({"engine_set": ["nosuch=1"]}, "nosuch"),
    ],
)
def test_an_input_that_says_nothing_here_is_refused(more: dict[str, Any], words: str):
    with pytest.raises(TilecastError, match=words):
        profile_from_run({"command": "predict", "inputs": BATCH | more, "measured": {"prefill_s": 1.0}}, GPU)


def test_a_gpu_of_ones_own_is_planned_measured_and_calibrated_like_any_other(tilecast: Tilecast, tmp_path: Path):
    toml = Path(hardware.__file__).parent / "gpus" / "h100_sxm.toml"
    (tmp_path / "mine.toml").write_text(toml.read_text(encoding="utf-8"), encoding="utf-8")
    own, profile = str(tmp_path / "mine.toml"), str(tmp_path / "mine.json")
    planned = tilecast("calibrate", "--plan", "2", "--gpu", own, "-o", str(tmp_path / "measure.py"), "--json").json
    said = tilecast("calibrate", "--plan", "2", "--gpu", own, "-o", str(tmp_path / "measure.py")).out
    assert f"rows.csv--gpu{own}-oprofile.json" in "".join(said.split())
    assert f"ASKED = {own!r}" in (tmp_path / "measure.py").read_text(encoding="utf-8")  # what the script says comes next
    rows = [{**each, "measured_s": 1.1 * each["predicted_s"]} for each in planned["kernels"][:1]]
    assert rows[0]["gpu"] == "mine"
    kept = [{name: value for name, value in each.items() if name not in ("predicted_s", "explains_fraction")} for each in rows]
    assert tilecast("calibrate", written(tmp_path / "rows.csv", kept), "--gpu", own, "-o", profile).code == 0
    asked = ("predict", "Qwen/Qwen3-8B", "--gpu", own, "--tp", "2", "--batch", "8", "--isl", "256", "--osl", "16", "--json")
    inputs = tilecast(*asked).json["inputs"]
    (tmp_path / "run.json").write_text(json.dumps({"command": "predict", "inputs": inputs, "measured": {"decode_step_s": 0.006}}))
    assert tilecast("calibrate", "--run", str(tmp_path / "run.json"), "--gpu", own, "-o", profile).err == ""
    assert tilecast(*asked, "--profile", profile).code == 0


@pytest.mark.parametrize(("target", "words"), [(".", "is a folder, not a file"), ("", "must name a file")])
def test_a_profile_is_a_file_of_its_own(tilecast: Tilecast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, words: str):
    monkeypatch.chdir(tmp_path)
    rows = written(tmp_path / "rows.csv", [row(64)])
    for asked in ([rows], ["--plan", "3"]):
        result = tilecast("calibrate", *asked, "--gpu", GPU, "-o", target)
        assert result.code == 2 and f"--out {target!r} {words}" in result.err
    before = Path(rows).read_text()
    result = tilecast("calibrate", rows, "--gpu", GPU, "-o", rows)
    assert result.code == 2 and "is what is read" in result.err and Path(rows).read_text() == before


def test_a_comparison_of_gpus_refuses_the_profile_of_one(tilecast: Tilecast, tmp_path: Path):
    tilecast("calibrate", written(tmp_path / "rows.csv", [row(64)]), "--gpu", GPU, "-o", str(tmp_path / "p.json"))
    asked = ("predict", "Qwen/Qwen3-8B", "--batch", "4", "--isl", "128", "--osl", "8", "--profile", str(tmp_path / "p.json"), "--gpu")
    refused = tilecast(*asked, f"{GPU},h100-sxm")
    assert refused.code == 2 and "was measured on l20, not on h100-sxm" in refused.err
    assert tilecast(*asked, GPU, "--tp", "1,2").code == 0


def test_a_profile_is_not_taken_with_weights_it_was_not_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    profiles.write(profile_from_rows([row(64)], GPU), tmp_path / "p.json")
    assert profiles.opened(tmp_path / "p.json", hardware.gpu(GPU)) is not None
    profiles.read.cache_clear()
    profiles._unreadable.cache_clear()
    monkeypatch.setattr(profiles, "_is_readable", lambda family: family != "gemm")
    with pytest.raises(MissingData, match=r"was made with other artifacts .* without gemm"):
        profiles.opened(tmp_path / "p.json", hardware.gpu(GPU))
    profiles._unreadable.cache_clear()
