"""Tuning: the space, the account, the search, the files engines load, and what is refused."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.command_line import Tilecast
from tilecast import hardware
from tilecast.dtypes import quantisation
from tilecast.errors import InvalidInput
from tilecast.learning import profiles
from tilecast.learning.ranking import is_among
from tilecast.predictors.calibrated import profile_from_rows
from tilecast.tuning.account import FEATURES, account
from tilecast.tuning.defaults import default_config, gemm_default
from tilecast.tuning.engine_files import contents, file_name
from tilecast.tuning.explain import words
from tilecast.tuning.search import Layer, gemm_layer, shipped_ranking, shortlist_of, stand_in, tune
from tilecast.tuning.searches import Searched
from tilecast.tuning.space import MOST_ACCUMULATORS, accumulators, feasible, shared_bytes, space_of
from tilecast.tuning.training import Settings, proven_by, sampled_abroad, study

MODEL = "Qwen/Qwen3-30B-A3B"
QWEN = Layer(kernel="moe", num_experts=128, topk=8, hidden_size=2048, inter_size=768)


def config(*values):
    return dict(zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"), values, strict=True))


# ---- space and account -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["a40", "h800-sxm", "t4"])
def test_every_configuration_of_a_space_fits(gpu):
    spec, held = hardware.gpu(gpu), quantisation("fp16")
    space = feasible(spec, held)
    assert (shared_bytes(space, held) <= spec.shared_bytes_per_block).all()
    assert (accumulators(space) <= MOST_ACCUMULATORS).all()


def test_a_gpu_with_more_shared_memory_has_a_larger_space():
    sizes = [len(feasible(hardware.gpu(gpu), quantisation("bf16"))) for gpu in ("a40", "a100-sxm-80gb", "h800-sxm")]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2]


def test_scales_along_k_limit_the_step():
    space = feasible(hardware.gpu("h200-sxm"), quantisation("fp8_block"), k_step=128)
    assert set(space.block_k.tolist()) == {32, 64, 128}


def test_the_account_of_one_configuration_by_hand():
    # 64 tokens x top-8 on 128 experts: 4 rows each, one tile of 16 rows per expert; w13 is 1536 wide: 24 tiles of 64 columns.
    space = space_of([config(16, 64, 128, 1, 4, 3)])
    found = account(QWEN.launch(64, "w13"), hardware.gpu("h800-sxm"), space)
    assert found.tasks[0] == 128 * 24
    assert found.padding[0] == pytest.approx(16 / 4)
    # 2 stages in flight x (16 + 64) x 128 x 2 bytes = 40 KiB + 1 KiB: five blocks in 228 KiB.
    assert found.resident[0] == 5
    assert found.waves[0] == pytest.approx(128 * 24 / (132 * 5))
    assert found.l2_bytes[0] == 128 * 24 * (16 + 64) * 2 * 2048
    assert found.numbers.shape == (1, len(FEATURES)) and np.isfinite(found.numbers).all()


def test_no_account_is_below_its_bound():
    for gpu in ("a40", "h20"):
        spec = hardware.gpu(gpu)
        for tokens in (1, 64, 4096):
            found = account(QWEN.launch(tokens, "w13"), spec, feasible(spec, quantisation("bf16")))
            assert (found.analytic_s >= found.bound_s * (1 - 1e-12)).all()
            assert (found.padding >= 1).all() and ((found.tail >= 0) & (found.tail < 1)).all()


# ---- search ----------------------------------------------------------------------------------------------------------------------------


def test_the_search_prices_fifty_thousand_configurations_a_second():
    tune(QWEN, hardware.gpu("h800-sxm"), tokens=(8,))  # imports and tables
    rates = []
    for _ in range(3):
        started = time.process_time()
        found = tune(QWEN, hardware.gpu("h800-sxm"), tokens=(1, 16, 256, 2048))
        rates.append(found.num_priced / (time.process_time() - started))
    assert max(rates) > 50_000


def test_few_rows_per_expert_get_low_tiles_and_many_get_high_ones():
    found = tune(QWEN, hardware.gpu("h800-sxm"), tokens=(1, 16384))
    few, many = (choice.config["BLOCK_SIZE_M"] for choice in found.choices)
    assert few == 16 and many >= 64


def test_both_passes_of_sglang_have_tiles_of_one_height():
    found = tune(QWEN, hardware.gpu("a100-sxm-80gb"), engine="sglang", tokens=(1, 128, 4096))
    for choice in found.choices:
        assert choice.down_config is not None
        assert choice.down_config["BLOCK_SIZE_M"] == choice.config["BLOCK_SIZE_M"]
    assert all(choice.down_config is None for choice in tune(QWEN, hardware.gpu("a100-sxm-80gb"), engine="vllm", tokens=(1,)).choices)


def test_a_speed_up_has_an_interval_that_is_wider_on_a_gpu_nobody_searched():
    seen, unseen = (tune(QWEN, hardware.gpu(gpu), tokens=(512,)).choices[0].gain for gpu in ("h800-sxm", "l40s"))
    assert seen.low < seen.median < seen.high and seen.basis == "interpolated"
    assert unseen.basis == "unseen-gpu" and unseen.high / unseen.low > seen.high / seen.low


def test_the_answer_says_what_an_expectation_rests_on(tilecast):
    asked = ("tune", "moe", "--model", MODEL, "--tokens", "64", "--gpu")
    said = {gpu: " ".join(tilecast(*asked, gpu).out.split()) for gpu in ("h800-sxm", "l40s")}
    assert "(basis unseen-gpu)" in said["l40s"] and "basis" not in said["h800-sxm"].split(".")[0]
    product = tilecast("tune", "gemm", "--gpu", "h800-sxm", "--n", "512", "--k", "512", "--tokens", "64").out
    assert "(basis extrapolated-shape)" in " ".join(product.split())


def test_the_trees_of_a_sibling_speak_for_a_gpu_of_the_same_die():
    searched = shipped_ranking().gpus
    assert stand_in(hardware.gpu("h100-sxm"), searched) == "h800-sxm"
    assert stand_in(hardware.gpu("l40s"), searched) == "l40s"
    assert stand_in(hardware.gpu("h20"), ["h800-sxm"]) == "h20", "the same die, but an eighth of the FLOP per byte"


def test_a_distinct_shortlist_has_no_two_that_differ_in_the_group_alone():
    space = space_of([config(16, 64, 64, group, 4, 3) for group in (1, 4, 8)] + [config(32, 64, 64, 1, 4, 3)])
    logit = np.array([3.0, 2.0, 1.0, 0.0])
    assert shortlist_of(logit, space, 2, distinct=False) == [0, 1]
    assert shortlist_of(logit, space, 2, distinct=True) == [0, 3]


def test_a_gpu_nobody_searched_gets_what_was_good_somewhere():
    ranking = shipped_ranking()
    for gpu in ("l40s", "b200-sxm"):
        for choice in tune(QWEN, hardware.gpu(gpu), tokens=(1, 64, 4096)).choices:
            assert is_among(space_of(choice.shortlist).rows(), ranking.proven).all()
    assert len(ranking.proven) < 1000, "of some 4,000 that fit"


def test_where_nothing_proven_is_left_the_rest_is_ranked():
    unproven = {"block_m": (16,), "block_n": (16,), "block_k": (32,), "group_m": (1, 64), "num_warps": (8,), "num_stages": (5,)}
    found = tune(QWEN, hardware.gpu("l40s"), tokens=(64,), choices=unproven).choices[0]
    assert not is_among(space_of(found.shortlist).rows(), shipped_ranking().proven).any()
    assert found.config["BLOCK_SIZE_N"] == 16


def test_trees_for_other_gpus_learn_from_proven_configurations_and_every_problem_counts_the_same():
    def problem(gpu, tokens, good):
        return Searched(gpu, tokens, (8, 2, 1024, 512), np.array(good), 1.1)

    # 70 good ones for one problem, 2 for another, and one on the third GPU that the chosen problems do not know.
    of = study([problem("a40", 1, range(70)), problem("h800-sxm", 1, [100, 101]), problem("h20", 1, [2000])])
    chosen = np.array([0, 1])
    proven = proven_by(of, chosen)
    assert len(proven) <= 72 and not is_among(feasible(hardware.gpu("h20"), quantisation("bf16")).rows()[[2000]], proven).any()
    rows, weight = sampled_abroad(of, chosen, proven, Settings())
    for place in chosen:
        mine = rows.problem == place
        assert weight[mine & (rows.good == 1)].sum() == pytest.approx(Settings().abroad_weight)
        assert (weight[mine & (rows.good == 0)] == 1).all()
    assert len(rows.good) < 150, "the 400 others that a GPU's own trees see are left out"


def test_a_skewed_histogram_changes_what_is_priced():
    skewed = Layer(kernel="moe", num_experts=8, topk=2, hidden_size=1024, inter_size=512, histogram=(100, 1, 1, 1, 1, 1, 1, 1))
    even = Layer(kernel="moe", num_experts=8, topk=2, hidden_size=1024, inter_size=512)
    space = space_of([config(16, 64, 64, 1, 4, 3)])
    gpu = hardware.gpu("h800-sxm")
    one, other = (account(layer.launch(256, "w13"), gpu, space) for layer in (skewed, even))
    loads = json.loads(skewed.launch(256, "w13").distribution)
    assert sum(loads) == 512 and max(loads) == loads[0] and 250 <= loads[0] <= 256
    assert one.tasks[0] != other.tasks[0]


def test_a_measured_shortlist_decides():
    gpu = hardware.gpu("h800-sxm")
    guess = tune(QWEN, gpu, engine="vllm", tokens=(64,), shortlist=4).choices[0]
    fastest = guess.shortlist[2]
    seconds = {json.dumps(dict(one)): 2e-4 for one in guess.shortlist} | {json.dumps(dict(fastest)): 1e-4}
    seconds[json.dumps(dict(guess.default))] = 3e-4
    found = tune(QWEN, gpu, engine="vllm", tokens=(64,), shortlist=4, time_s=lambda _, one: seconds.get(json.dumps(dict(one))))
    choice = found.choices[0]
    assert choice.config == fastest
    assert choice.gain.basis == "measured" and choice.gain.median == pytest.approx(3.0)


def timed_by(table, otherwise=5e-4):
    """Seconds by pass and configuration."""
    return lambda launch, one: table.get((launch.moe_pass, json.dumps(dict(one))), otherwise)


def test_both_passes_of_sglang_are_measured_and_the_fastest_pair_of_one_height_wins():
    gpu = hardware.gpu("h800-sxm")
    guess = tune(QWEN, gpu, tokens=(512,), shortlist=60).choices[0]
    heights = {one["BLOCK_SIZE_M"] for one in guess.shortlist}
    assert len(heights) > 1 and heights == {one["BLOCK_SIZE_M"] for one in guess.down_shortlist}
    other = next(one for one in guess.shortlist if one["BLOCK_SIZE_M"] != guess.config["BLOCK_SIZE_M"])
    partner = next(one for one in guess.down_shortlist if one["BLOCK_SIZE_M"] == other["BLOCK_SIZE_M"])
    # The first pass is a little slower at the other height, the second much faster: only both together say so.
    table = {("w13", json.dumps(dict(other))): 4.5e-4, ("w13", json.dumps(dict(guess.config))): 4e-4}
    table |= {("w2", json.dumps(dict(partner))): 1e-4}
    found = tune(QWEN, gpu, tokens=(512,), shortlist=60, time_s=timed_by(table)).choices[0]
    assert (found.config, found.down_config) == (other, partner)
    assert found.gain.basis == "measured" and found.gain.median == pytest.approx((5e-4 + 5e-4) / (4.5e-4 + 1e-4))
    assert found.down_shortlist[0] == partner


def test_times_of_the_first_pass_alone_are_said_to_be_that():
    gpu = hardware.gpu("h800-sxm")
    guess = tune(QWEN, gpu, tokens=(64,)).choices[0]
    fastest = guess.shortlist[-1]
    times = timed_by({("w13", json.dumps(dict(fastest))): 1e-4})
    found = tune(QWEN, gpu, tokens=(64,), time_s=lambda launch, one: times(launch, one) if launch.moe_pass == "w13" else None).choices[0]
    assert found.config == fastest and found.down_config["BLOCK_SIZE_M"] == fastest["BLOCK_SIZE_M"]
    assert found.gain.basis == "measured-first-pass" and found.gain.median == pytest.approx(5.0)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_default_that_was_measured_to_be_fastest_stays(engine):
    gpu = hardware.gpu("h800-sxm")
    default = tune(QWEN, gpu, engine=engine, tokens=(64,)).choices[0].default
    times = timed_by({(name, json.dumps(dict(default))): 1e-4 for name in ("w13", "w2")})
    found = tune(QWEN, gpu, engine=engine, tokens=(64,), time_s=times).choices[0]
    assert found.config == default and found.gain.median == pytest.approx(1.0)
    assert found.down_config in (None, default)


def test_a_block_scaled_gemm_is_tuned_by_the_same_search():
    found = tune(gemm_layer(4096, 7168), hardware.gpu("h200-sxm"), engine="vllm", tokens=(1, 1024))
    assert all(128 % choice.config["BLOCK_SIZE_K"] == 0 for choice in found.choices)
    (name,) = contents(found)
    assert name == "N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"


# ---- files -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "engine", "dtype", "down", "name"),
    [  # names of files that the engines ship
        ("h100-sxm", "vllm", "bf16", False, "E=128,N=384,device_name=NVIDIA_H100_80GB_HBM3.json"),
        ("h200-sxm", "sglang", "bf16", True, "E=128,N=384,device_name=NVIDIA_H200_down.json"),
        ("b200-sxm", "vllm", "fp8_block", False, "E=128,N=384,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128,128].json"),
        ("h20", "sglang", "fp8_block", True, "E=128,N=384,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]_down.json"),
        ("a100-sxm-80gb", "vllm", "int8_wo", False, "E=128,N=384,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a16.json"),
    ],
)  # fmt: skip
def test_file_names_are_those_that_engines_look_up(gpu, engine, dtype, down, name):
    layer = Layer(kernel="moe", num_experts=128, topk=8, hidden_size=2048, inter_size=768, tp=2, dtype=dtype)
    assert file_name(layer, hardware.gpu(gpu), engine, down=down) == name


def test_sglang_says_in_the_name_that_scales_are_per_channel():
    layer = Layer(
        kernel="moe", num_experts=160, topk=8, hidden_size=5120, inter_size=1536, tp=4, dtype="fp8", num_fused=1, per_channel=True
    )
    gpu = hardware.gpu("h200-sxm")
    shipped = "E=161,N=384,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json"
    assert file_name(layer, gpu, "sglang") == shipped
    assert file_name(layer, gpu, "sglang", down=True) == shipped.replace(".json", "_down.json")
    assert "per_channel" not in file_name(layer, gpu, "vllm")


def test_a_gpu_without_a_device_string_is_refused_with_what_helps():
    with pytest.raises(InvalidInput, match=r"device_string = .* in the TOML file"):
        file_name(QWEN, replace(hardware.gpu("h20"), device_string=""), "vllm")


def test_experts_dealt_to_ranks_are_counted_per_rank():
    layer = Layer(kernel="moe", num_experts=128, topk=8, hidden_size=2048, inter_size=768, ep=4)
    assert file_name(layer, hardware.gpu("h20"), "vllm") == "E=32,N=768,device_name=NVIDIA_H20.json"


def test_sglang_looks_for_deepseek_with_its_shared_expert_among_the_others(tilecast):
    asked = ("tune", "moe", "--gpu", "h200-sxm", "--model", "deepseek-ai/DeepSeek-V3", "--tp", "8", "--tokens", "16", "--json")
    name = "N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"  # both are shipped by SGLang

    def first_file(*more):
        return json.loads(tilecast(*asked, *more).out)["files"][0].split("/")[-1]

    assert first_file() == f"E=257,{name}"
    assert first_file("--no-fuse-shared") == f"E=256,{name}"
    assert first_file("--engine", "vllm").startswith("E=256,")
    assert first_file("--ep", "8").startswith("E=32,")


def test_a_fused_shared_expert_is_visited_by_every_token():
    layer = replace(QWEN, num_fused=1)
    loads = json.loads(layer.launch(64, "w13").distribution)
    assert loads[-1] == 64 and sum(loads[:-1]) == 64 * 8 and layer.local_experts == 129
    with pytest.raises(InvalidInput, match="ep = 4"):
        replace(layer, ep=4)


def test_written_files_hold_what_engines_read(tmp_path, tilecast):
    result = tilecast("tune", "moe", "--gpu", "h200-sxm", "--model", MODEL, "--tp", "2", "--tokens", "1,64", "-o", str(tmp_path), "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    paths = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json"))
    folder = "configs/triton_3_5_1"
    assert paths == [f"{folder}/E=128,N=384,device_name=NVIDIA_H200.json", f"{folder}/E=128,N=384,device_name=NVIDIA_H200_down.json"]
    table = json.loads((tmp_path / paths[0]).read_text())
    assert list(table) == ["1", "64"]
    assert set(table["1"]) == {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"}
    assert table["64"] == report["choices"][1]["config"]
    assert report["schema"] == "tilecast.tune/1" and report["choices"][0]["speedup"]["low"] > 0


def test_vllm_notes_the_triton_version_when_it_is_given(tmp_path, tilecast):
    asked = ("tune", "moe", "--gpu", "l40s", "--model", MODEL, "--engine", "vllm", "--tokens", "8", "-o", str(tmp_path))
    assert tilecast(*asked, "--triton-version", "3.6.0").code == 0
    table = json.loads((tmp_path / "E=128,N=768,device_name=NVIDIA_L40S.json").read_text())
    assert list(table) == ["triton_version", "8"]


def test_defaults_are_the_engines_own():
    assert default_config("sglang", 8, 128, "bf16") == config(16, 32, 64, 1, 4, 3)
    assert default_config("sglang", 4096, 128, "bf16") == config(64, 64, 32, 8, 4, 3)
    assert default_config("vllm", 4096, 8, "bf16") == config(128, 128, 64, 16, 8, 3)
    assert default_config("vllm", 8, 256, "fp8_block") == config(16, 128, 128, 1, 4, 3)
    assert default_config("sglang", 4096, 128, "fp8", 232_448) == config(128, 256, 128, 32, 8, 4)
    assert default_config("sglang", 4096, 128, "fp8", 101_376) == config(64, 128, 256, 64, 4, 2), "SGLang's own for little shared memory"
    assert [gemm_default(engine)["num_stages"] for engine in ("sglang", "vllm")] == [3, 2]


def test_a_default_for_little_shared_memory_fits_it():
    layer = Layer(kernel="moe", num_experts=128, topk=8, hidden_size=2048, inter_size=768, dtype="fp8")
    assert all(choice.gain is not None for choice in tune(layer, hardware.gpu("l40s"), tokens=(1, 4096)).choices)


def test_vllm_reads_one_moe_file_for_the_h200_family_but_products_by_their_own_name():
    nvl = replace(hardware.gpu("h200-sxm"), device_string="NVIDIA H200 NVL")
    assert "device_name=NVIDIA_H200.json" in file_name(QWEN, nvl, "vllm")
    assert "device_name=NVIDIA_H200_NVL," in file_name(gemm_layer(4096, 7168), nvl, "vllm")
    assert "device_name=NVIDIA_H200_NVL.json" in file_name(QWEN, nvl, "sglang")


# ---- explain ---------------------------------------------------------------------------------------------------------------------------


def test_explain_quotes_the_figures_of_its_table(tilecast):
    result = tilecast("tune", "explain", "--gpu", "a100-sxm-80gb", "--model", MODEL, "--tokens", "4096", "--json")
    found = json.loads(result.out)["configurations"]
    choice, default = found[0], found[1]
    assert choice["what"] == "choice" and choice["rank"] >= 1 and default["what"] == "default"
    said = tilecast("tune", "explain", "--gpu", "a100-sxm-80gb", "--model", MODEL, "--tokens", "4096").out
    assert choice["config"] in " ".join(said.split())


def made_by(code):
    *before, last = code.strip().splitlines()
    scope: dict = {}
    exec("\n".join([*before, f"result = {last}"]), scope)
    return scope["result"]


ASKED = ("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "h100-sxm")


@pytest.mark.parametrize(
    "more", [(), ("--tokens", "16", "--engine", "vllm", "--only", "block_n=64,128", "--set", "num_sms=120", "--config", "16,64,64,1,4,3")]
)
def test_explain_as_python_gives_the_same_records(tilecast, more):
    wanted = json.loads(tilecast("tune", "explain", *ASKED, *more, "--json").out)["configurations"]
    shown = tilecast("tune", "explain", *ASKED, *more, "--as-python")
    assert shown.code == 0 and made_by(shown.out) == wanted


def test_tune_as_python_chooses_the_same_and_only_it_writes(tilecast, tmp_path):
    folder = tmp_path / "tuned"
    folder.mkdir()
    asked = ("tune", "moe", *ASKED, "--tokens", "1,64", "--only", "block_n=64,128", "--shortlist", "2", "-o", str(folder))
    code = tilecast(*asked, "--as-python").out
    assert list(folder.iterdir()) == []
    exec(code, {})
    by_python = {path.name: path.read_text() for path in folder.rglob("*.json")}
    assert tilecast(*asked).code == 0
    assert by_python and by_python == {path.name: path.read_text() for path in folder.rglob("*.json")}


def test_why_names_what_got_better():
    from tilecast.cli.tune import why

    same = {"tail_fraction": 0.2, "l2_bytes": 1e6, "waves": 2.0, "busy_sms_fraction": 1.0}
    one = {"what": "choice", "config": "a", "padding_fraction": 0.1, **same}
    other = {"what": "default", "config": "b", "padding_fraction": 0.5, **same}
    assert "padding 50 to 10 %" in why([one, other], 64, 100) and "tail" not in why([one, other], 64, 100)
    flipped = why([one | {"padding_fraction": 0.5, "tail_fraction": 0.0}, other], 64, 100)
    assert "tail 20 to 0 %" in flipped and "padding" not in flipped
    few = {"waves": 0.2, "busy_sms_fraction": 0.4, "padding_fraction": 0.1}
    said = why([one | few | {"busy_sms_fraction": 0.8, "tail_fraction": 0.1}, other | few], 64, 100)
    assert "SMs in use 40 to 80 %" in said and "tail" not in said, "less than one wave has no tail"


def test_explain_takes_a_product_and_the_second_pass(tilecast):
    product = json.loads(tilecast("tune", "explain", "--gpu", "h20", "--n", "4096", "--k", "7168", "--tokens", "64", "--json").out)
    # 64 rows of the default's 64 x 128 tile, 4096 / 128 columns of tiles
    assert product["configurations"][1]["num_tasks"] == 32
    asked = ("tune", "explain", "--gpu", "h200-sxm", "--model", MODEL, "--tokens", "256", "--json")
    first, second = (json.loads(tilecast(*asked, "--pass", name).out)["configurations"] for name in ("w13", "w2"))
    # 128 experts x one tile of 64 rows x (2 x 768, or 2048) / 64 columns
    assert (first[1]["num_tasks"], second[1]["num_tasks"]) == (128 * 24, 128 * 32)
    tuned = json.loads(tilecast("tune", "moe", *asked[2:]).out)["choices"][0]
    assert second[0]["config"] == words(tuned["down_config"])


@pytest.mark.parametrize(
    "more",
    [("--n", "4096"), ("--n", "64", "--k", "64", "--model", MODEL), ("--n", "0", "--k", "8"), ("--n", "8", "--k", "8", "--pass", "w2")],
)
def test_half_a_product_is_refused(tilecast, more):
    result = tilecast("tune", "explain", "--gpu", "h20", *more)
    assert result.code == 2 and result.err.count("\n") == 1 and "--" in result.err


# ---- what is refused -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--model", "no/such"), 2, "unknown model"),
        (("--model", "Qwen/Qwen3-32B"), 2, "has no experts"),
        (("--model", MODEL, "--ep", "3", "--tp", "3"), 2, "tp = 3"),
        (("--model", MODEL, "--tokens", "0"), 2, "--tokens '0'"),
        (("--model", MODEL, "--tokens", "8,8"), 2, "--tokens '8,8'"),
        (("--model", MODEL, "--engine", "tgi"), 2, "unknown engine"),
        (("--model", MODEL, "--dtype", "nvfp4"), 2, "nvfp4"),
        (("--model", MODEL, "--only", "block_k=256", "--only", "block_n=256", "--only", "block_m=256"), 2, "none of the"),
        (("--model", MODEL, "--only", "block_q=2"), 2, "unknown parameter"),
        (("--model", MODEL, "--only", "block_n=48"), 2, "powers of two"),
        (("--model", MODEL, "--only", "block_m=8,16"), 2, "Triton takes block_m from 16 to 1024"),
        (("--model", MODEL, "--only", "num_warps=64"), 2, "Triton takes num_warps from 1 to 32"),
        (("--model", MODEL, "--triton-version", "../../3.5.1"), 2, "must be numbers and dots"),
        (("--model", MODEL, "--triton-version", "nightly"), 2, "must be numbers and dots"),
        (("--model", MODEL, "--histogram", "/no/such.json"), 3, "no file"),
        (("--model", MODEL, "--measure", "nsight"), 2, "--measure 'nsight'"),
        (("--model", MODEL, "--measure", "/no/such.csv"), 3, "no file"),
        (("--model", MODEL, "--shortlist", "0"), 2, "shortlist = 0"),
        (("--model", MODEL, "--fuse-shared"), 2, "has no shared expert"),
        (("--model", MODEL, "--per-channel"), 2, "not of bf16"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_writes_nothing(arguments, code, sentence, tmp_path, tilecast):
    result = tilecast("tune", "moe", "--gpu", "h100-sxm", *arguments, "-o", str(tmp_path / "out"))
    assert result.code == code and sentence in result.err
    assert result.err.count("\n") == 1 and "Traceback" not in result.err
    assert not (tmp_path / "out").exists()


def test_a_product_has_no_folder_for_a_triton_version(tilecast):
    result = tilecast("tune", "gemm", "--gpu", "h20", "--n", "512", "--k", "512", "--triton-version", "3.5.1")
    assert result.code == 2 and "one file of a product" in result.err


def test_an_amd_gpu_is_refused(tilecast):
    result = tilecast("tune", "moe", "--gpu", "mi300x", "--model", MODEL)
    assert result.code == 2 and "NVIDIA" in result.err


def test_a_histogram_in_which_no_expert_is_chosen_is_refused(tmp_path, tilecast):
    file = tmp_path / "loads.json"
    file.write_text(json.dumps([0] * 128))
    result = tilecast("tune", "moe", "--gpu", "h100-sxm", "--model", MODEL, "--histogram", str(file))
    assert result.code == 2 and "not all 0" in result.err


def test_a_histogram_of_another_number_of_experts_is_refused(tmp_path, tilecast):
    file = tmp_path / "loads.json"
    file.write_text("[1, 2, 3]")
    result = tilecast("tune", "moe", "--gpu", "h100-sxm", "--model", MODEL, "--histogram", str(file))
    assert result.code == 2 and "lists 3 experts; the layer has 128" in result.err


def test_an_unwritable_folder_is_refused_before_the_work(tmp_path, tilecast):
    file = tmp_path / "taken"
    file.write_text("")
    result = tilecast("tune", "moe", "--gpu", "h100-sxm", "--model", MODEL, "--tokens", "1", "-o", str(file / "below"))
    assert result.code == 2 and "is a file, not a folder" in result.err and file.read_text() == ""


def test_a_folder_in_the_way_of_a_file_leaves_nothing_half_written(tmp_path, tilecast):
    folder = tmp_path / "configs" / "triton_3_5_1"
    (folder / "E=128,N=768,device_name=NVIDIA_H200_down.json").mkdir(parents=True)
    result = tilecast("tune", "moe", "--gpu", "h200-sxm", "--model", MODEL, "--tokens", "1", "-o", str(tmp_path))
    assert result.code == 2 and "cannot be written" in result.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("field", "value"), [("num_experts", 0), ("topk", 200), ("ep", 3), ("tp", 7), ("num_experts", True)])
def test_impossible_layers_are_refused(field, value):
    sizes = {"num_experts": 128, "topk": 8, "hidden_size": 2048, "inter_size": 768} | {field: value}
    with pytest.raises(InvalidInput, match=field):
        Layer(kernel="moe", **sizes)


def test_a_profile_is_taken_and_said_to_change_no_choice(tilecast: Tilecast, tmp_path: Path):
    measured = {"family": "gemm", "dtype": "bf16", "m": 64, "n": 4096, "k": 4096, "measured_s": 30e-6}
    profiles.write(profile_from_rows([measured], "h20"), tmp_path / "p.json")
    asked = ("tune", "gemm", "--n", "512", "--k", "512", "--tokens", "64", "--json", "--gpu")
    plain, taken = tilecast(*asked, "h20"), tilecast(*asked, "h20", "--profile", str(tmp_path / "p.json"))
    assert json.loads(plain.out)["choices"] == json.loads(taken.out)["choices"]
    assert "moves every configuration" in taken.err
    refused = tilecast(*asked, "h800-sxm", "--profile", str(tmp_path / "p.json"))
    assert refused.code == 2 and "was measured on h20, not on h800-sxm" in refused.err
