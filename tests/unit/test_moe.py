"""Mixture of experts by hand: who gets which tokens, what is padded, what is read, and what is refused."""

import numpy as np
import pytest

from tilecast import hardware, predict_kernel
from tilecast.errors import InvalidInput
from tilecast.execution import Protocol, analyse
from tilecast.kernels.expert_loads import balanced_loads, busiest_rank, power_law_loads
from tilecast.kernels.moe import Moe
from tilecast.kernels.registry import kernel

H100 = hardware.gpu("h100-sxm")
COLD = Protocol(timer="graph", cache="cold")
SIZES = {"num_tokens": 100, "hidden_size": 2048, "inter_size": 768, "num_experts": 128, "topk": 8}
TILE = {"block_m": 16, "block_n": 64, "block_k": 64}


def one(**changed):
    return Moe(**(SIZES | changed))


def tasks(**changed):
    return one(**changed).tasks(H100, COLD)


def test_without_a_tuned_file_triton_runs_the_engines_default():
    # SGLang: 16x32 up to as many tokens as experts on the rank, then 64x64 in steps of 32 along K; vLLM goes by tokens alone.
    for asked, tile in (
        ({"engine": "sglang"}, {"block_m": 16, "block_n": 32, "block_k": 64, "num_stages": 3}),
        ({"engine": "sglang", "ep": 8}, {"block_m": 64, "block_n": 64, "block_k": 32, "num_stages": 3}),
        ({"engine": "vllm"}, {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3}),
        ({"engine": "sglang", "dtype": "fp8_block"}, {"block_m": 64, "block_n": 128, "block_k": 128, "num_stages": 3}),
    ):
        ours = analyse(tasks(identity="triton", **asked), H100, COLD)
        given = analyse(tasks(identity="triton", **asked, **tile), H100, COLD)
        assert ours.analytic_s == pytest.approx(given.analytic_s)
        assert ours.variant.tolist() == [f"{tile['block_m']}x{tile['block_n']}"]


def test_defaults_differ_from_launch_to_launch_and_are_not_for_other_kernels():
    together = analyse(tasks(num_tokens=[100, 200], engine="sglang"), H100, COLD)
    alone = [analyse(tasks(num_tokens=tokens, engine="sglang"), H100, COLD) for tokens in (100, 200)]
    assert together.analytic_s.tolist() == pytest.approx([float(one.analytic_s[0]) for one in alone])
    assert together.variant.tolist() == [one.variant[0] for one in alone] == ["16x32", "64x64"]
    for kept in ({"identity": "deepgemm"}, {"dtype": "int4_wo"}, {"engine": None}):  # one of several tiles, as a tuned file would have it
        asked = {"engine": "sglang"} | kept
        assert len(tasks(**asked).variants) > 1


@pytest.mark.parametrize(("gpu", "dtype", "tile"), [
    ("h100-sxm", "bf16", "128x16"), ("h20", "fp8", "128x16"), ("b200-sxm", "fp8", "128x128"), ("b200-sxm", "nvfp4", "128x64"),
    ("b300-sxm", "nvfp4", "128x128"), ("rtx-pro-6000-server", "bf16", "32x128"), ("rtx-5090", "fp8", "16x256"),
])  # fmt: skip
def test_cutlass_experts_of_sglang_and_vllm_run_untuned(gpu, dtype, tile):
    asked = {"identity": "cutlass", "dtype": dtype}
    found = [one(engine=engine, **asked).tasks(hardware.gpu(gpu), COLD) for engine in ("sglang", "vllm", "trtllm", None)]
    assert [each.variants for each in found[:2]] == [(tile,)] * 2
    assert len(found[2].variants) > 1 and len(found[3].variants) > 1


def test_an_untuned_tile_of_16_columns_makes_hoppers_experts_several_times_slower():
    asked = {"identity": "cutlass", "dtype": "fp8", "hidden_size": 4096, "inter_size": 1536}
    for tokens in (16, 1024):
        untuned, tuned = (analyse(tasks(num_tokens=tokens, engine=engine, **asked), H100, COLD) for engine in ("vllm", "trtllm"))
        assert 2.5 < untuned.analytic_s[0] / tuned.analytic_s[0] < 6.0
    # Steps of 128 bytes of K, each of 16 columns, with all of 128 rows: 128 experts of 3,072 x 4,096 and 4,096 x 1,536 on 132 SMs.
    steps = sum(np.ceil(128 * width / 16 / 132) * depth / 128 for width, depth in ((3072, 4096), (4096, 1536)))
    found = tasks(num_tokens=16, engine="vllm", **asked)
    per_step = found.exposed_clocks * found.busiest_tasks / steps
    assert float(per_step.item()) == pytest.approx(412.0, rel=1e-6)


@pytest.mark.parametrize(("tokens", "ep", "rows"), [(1, 1, 16), (257, 1, 32), (4096, 1, 128), (4096, 32, 128), (65_536, 1, 128)])
def test_mxfp4_experts_of_vllm_are_openais(tokens, ep, rows):
    found = analyse(tasks(num_tokens=tokens, ep=ep, identity="triton", dtype="w4a16_mxfp4", engine="vllm"), H100, COLD)
    assert found.variant.tolist() == [f"{rows}x256"]


def test_tensorrt_llm_keeps_a_row_for_every_pair_and_vllm_only_its_own():
    asked = {"num_tokens": 16_384, "ep": 32, "identity": "triton", "dtype": "w4a16_mxfp4"}
    mine, all_ranks = (float(analyse(tasks(engine=engine, **asked), H100, COLD).analytic_s[0]) for engine in ("vllm", "trtllm"))
    assert all_ranks > 2.0 * mine
    assert len(Moe(**(SIZES | asked), engine="vllm").tasks(hardware.gpu("arc-b60"), COLD).variants) > 1  # Intel has kernels of its own


def test_blocks_with_a_scale_and_narrower_weights_have_kernels_of_their_own():
    for dtype in ("fp8_block", "int4_wo", "w4a16_mxfp4"):
        assert len(tasks(identity="cutlass", dtype=dtype, engine="vllm").variants) > 1


@pytest.mark.parametrize(("engine", "identity", "dtype"), [("trtllm", "triton", "fp8_block"), ("sglang", "marlin", "w4a16_mxfp4")])
def test_some_kernels_do_the_work_of_all_ranks_on_each(engine, identity, dtype):
    def took_s(engine, **changed):
        asked = {"num_tokens": 16_384, "identity": identity, "dtype": dtype, "engine": engine}
        return float(analyse(tasks(**(asked | changed)), H100, COLD).analytic_s[0])

    alone = took_s(engine)
    assert all(0.6 * alone < took_s(engine, ep=ranks) < 1.1 * alone for ranks in (4, 32))
    assert took_s("vllm", ep=32) < 0.5 * took_s("vllm")
    assert took_s(engine, num_tokens=16, ep=32) < 0.5 * took_s(engine, num_tokens=16)  # weights of their own experts alone


def test_marlin_is_bound_by_mma_sync_and_widens_weights_first():
    for dtype, share in (("w4a16_mxfp4", 1.0), ("int4_wo", 5 / 8)):
        asked = {"num_tokens": 4096, "dtype": dtype, "block_m": 64, "block_n": 128}
        marlin, triton = (tasks(identity=identity, **asked) for identity in ("marlin", "triton"))
        np.testing.assert_allclose(marlin.matrix_flop, triton.matrix_flop / 0.62)  # of wgmma's rate, on H100
        # 8 FLOP for each of 128 weights a step, 5 for integers, on 128 lanes that do two a clock: after the wait, or during it.
        widening = triton.vector_flop / 256
        waiting = marlin.exposed_clocks - share * widening
        mean_k = (12 * 2048 + 16 * 768) / 28  # of twelve tiles of 1,536 columns and sixteen of 2,048
        np.testing.assert_allclose(waiting, mean_k / 64 * 412 / marlin.resident)
        np.testing.assert_allclose(triton.exposed_clocks, np.maximum(waiting - widening, 0.0))
        assert not np.any(marlin.vector_flop)


@pytest.mark.parametrize(("engine", "dtype", "asked", "rows"), [
    ("trtllm", "fp8", {"num_tokens": 100}, 8),  # 100 x 8 / 128 = 6.25 tokens an expert
    ("trtllm", "fp8", {"num_tokens": 300}, 32),  # 18.75
    ("sglang", "fp8", {"num_tokens": 300}, 16),
    ("trtllm", "fp8", {"num_tokens": 300, "ep": 8}, 128),  # 150: of all tokens, over the 16 experts of the rank
    ("sglang", "nvfp4", {"num_tokens": 8192}, 128),  # 512, of which 256 is the most
    ("trtllm", "w4a16_mxfp4", {"num_tokens": 8192}, 64),
])  # fmt: skip
def test_a_fused_kernel_takes_its_rows_from_the_mean_load(engine, dtype, asked, rows):
    b200 = hardware.gpu("b200-sxm")
    found = analyse(one(engine=engine, dtype=dtype, **asked).tasks(b200, COLD), b200, COLD)
    assert found.variant.tolist()[0] in (f"{rows}x128", f"{rows}x256")
    both = one(engine=engine, dtype=dtype, **asked | {"num_tokens": [asked["num_tokens"], 1]})
    among = analyse(both.tasks(b200, COLD), b200, COLD)
    assert among.analytic_s[0] == pytest.approx(found.analytic_s[0])
    assert among.variant[0] == found.variant[0]
    assert len(one(dtype=dtype, **asked).tasks(b200, COLD).variants) > 2  # nobody's: as if tuned


@pytest.mark.parametrize(("tokens", "rows"), [(112, 8), (116, 16), (230, 16), (231, 32), (1024, 64), (8192, 64)])
def test_marlin_takes_the_first_tile_that_is_nine_tenths_full_at_most(tokens, rows):
    found = analyse(tasks(num_tokens=tokens, engine="vllm", identity="marlin", dtype="int4_wo"), H100, COLD)
    assert found.variant.tolist()[0].startswith(f"{rows}x")  # 128 experts of 8 a token: 7.2 tokens an expert are 115.2


def test_sglang_widens_mxfp4_weights_for_triton_and_the_bound_stays_the_problems():
    of = {"identity": "triton", "dtype": "w4a16_mxfp4", "num_tokens": 256}
    wide, narrow, bf16 = tasks(engine="sglang", **of), tasks(engine="vllm", **of), tasks(engine="sglang", **of | {"dtype": "bf16"})
    np.testing.assert_allclose(wide.dram_bytes, bf16.dram_bytes)
    np.testing.assert_allclose(wide.least_bytes, narrow.least_bytes)
    assert wide.dram_bytes[0, 0] > 3 * narrow.dram_bytes[0, 0]


def test_block_scaled_cutlass_has_no_low_tile_and_every_expert_costs_a_round_trip():
    assert {name.partition("x")[0] for name in tasks(identity="cutlass", dtype="nvfp4").variants} == {"128"}
    assert {name.partition("x")[0] for name in tasks(identity="cutlass", dtype="fp8").variants} > {"16"}
    step_s = 412 / 1.98e9
    for dtype, steps in (("fp8", 1), ("fp8_block", 3)):
        few, many = (one(identity="cutlass", dtype=dtype, num_tokens=1024, num_experts=experts).tasks(H100, COLD) for experts in (64, 128))
        np.testing.assert_allclose(many.fixed_s - few.fixed_s, 64 * steps * step_s)


def test_int4_weights_run_in_marlin_unless_the_gpu_has_a_fused_kernel():
    open_question, named = (tasks(dtype="int4_wo", identity=identity) for identity in (None, "marlin"))
    np.testing.assert_array_equal(open_question.matrix_flop, named.matrix_flop)
    assert one(dtype="int4_wo").newest_identity(hardware.gpu("b200-sxm")) is None


def test_the_family_is_found_by_name():
    assert kernel("moe") is Moe


def test_balanced_tokens_are_dealt_round_robin():
    # 100 tokens x 8 = 800 pairs over 128 experts: 6 each, and one more for the first 32
    loads = balanced_loads(np.array([800.0]), 128, 1)[0]
    assert loads.sum() == 800
    assert sorted(set(loads)) == [6, 7]
    assert (loads == 7).sum() == 32


def test_experts_are_padded_to_whole_tiles():
    # 6 or 7 tokens fit one tile of 16 rows: 128 row tiles; w13 is 1536 wide, 24 tiles; w2 2048 wide, 32 tiles
    found = tasks(**TILE)
    assert found.num_tasks.item() == 128 * (24 + 32)
    # all FLOP of the padded tiles: 128 x 16 rows x 2 x 2048 x (1536 + 768)
    assert (found.num_tasks * found.matrix_flop).item() == pytest.approx(2.0 * 128 * 16 * 2048 * (1536 + 768))
    assert found.least_flop.item() == 2.0 * 800 * 2048 * (1536 + 768)


def test_one_token_more_than_a_tile_opens_another():
    # 1024 experts' pairs over 8 experts: 128 tokens each, one tile of 128 rows; with 1032, 129 tokens need two
    shape = {"hidden_size": 2048, "inter_size": 768, "num_experts": 8, "topk": 8, "moe_pass": "w13", **TILE, "block_m": 128}
    assert Moe(num_tokens=128, **shape).tasks(H100, COLD).num_tasks.item() == 8 * 24
    assert Moe(num_tokens=129, **shape).tasks(H100, COLD).num_tasks.item() == 16 * 24


def test_only_experts_with_tokens_read_their_weights():
    # 2 tokens x 8 = 16 active experts of 128, 3 x 2048 x 768 weights each in 2 bytes;
    # tokens read and result written, 2 x 2048 x 2 bytes each
    weights = 16 * 3 * 2048 * 768 * 2
    assert tasks(num_tokens=2, **TILE).least_bytes.item() == weights + 2 * (2 * 2048 * 2)


def test_a_pass_alone_is_its_own_gemm():
    assert tasks(moe_pass="w13", **TILE).num_tasks.item() == 128 * 24
    assert tasks(moe_pass="w2", **TILE).num_tasks.item() == 128 * 32
    assert np.all(tasks(moe_pass="w13", **TILE).fixed_s == 0)


def test_without_a_gate_w13_is_half_as_wide():
    assert tasks(gated=False, moe_pass="w13", **TILE).num_tasks.item() == 128 * 12


def test_tensor_parallelism_narrows_the_experts():
    # 768 / 4 = 192 wide: w13 384, 6 tiles; w2 stays 2048 wide, 32 tiles, 192 deep
    found = tasks(tp=4, **TILE)
    assert found.num_tasks.item() == 128 * (6 + 32)
    assert found.least_flop.item() == 2.0 * 800 * 2048 * 3 * 192


def test_expert_parallelism_prices_the_busiest_rank():
    # 800 pairs: 6 each and 32 extra, 4 on each of 8 ranks: 16 experts with 6 x 16 + 4 = 100 pairs
    loads = busiest_rank("balanced", np.array([100.0]), 128, np.array([8.0]), 8)
    assert loads.shape == (1, 1, 16)
    assert loads.sum() == 100
    # a histogram with rank 1 of 2 the fuller
    loads = busiest_rank("[1, 0, 2, 3]", np.array([3.0]), 4, np.array([2.0]), 2)
    assert loads[0, 0].tolist() == [2, 3]


@pytest.mark.parametrize(("exponent", "active"), [(1.01, (8, 16, 32, 48, 65, 107)), (1.2, (8, 16, 29, 45, 63, 105))])
def test_few_tokens_reach_as_many_experts_as_rows_tell(exponent, active):
    """Of 128, eight a token. Experts read: the time of RTX PRO 6000's rows over that of evenly dealt ones, which reach eight a token."""
    tokens = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    found = (power_law_loads(tokens, 128, np.full(6, 8.0), exponent) > 0).sum(axis=1)
    np.testing.assert_allclose(found, active, rtol=0.07)


@pytest.mark.parametrize("exponent", [1.0, 1.01, 1.2, 2.0])
@pytest.mark.parametrize(("num_experts", "topk"), [(8, 2), (128, 8), (512, 22), (16, 1), (4, 4)])
def test_power_law_loads_add_up_and_no_expert_gets_a_token_twice(num_experts, topk, exponent):
    tokens = np.array([1.0, 2.0, 3.0, 7.0, 64.0, 1000.0, 16384.0])
    loads = power_law_loads(tokens, num_experts, np.full(len(tokens), float(topk)), exponent)
    assert loads.sum(axis=1).tolist() == (tokens * topk).tolist()
    assert (loads <= tokens[:, None]).all()
    assert (loads >= 0).all()
    assert (np.diff(loads, axis=1) <= 1).all()  # most first


def test_experts_that_exceed_l2_a_little_are_read_from_dram_again_and_again():
    """Sixteen experts of 9.4 MB take turns in RTX PRO 6000's 128 MB: hardly one is left when it is asked for again (rows: 104 us)."""
    gpu, warm = hardware.gpu("rtx-pro-6000-server"), Protocol(timer="graph", cache="warm")
    eight, sixteen = ({"num_tokens": count, "distribution": "balanced", "identity": "triton", "engine": "sglang"} for count in (1, 2))
    dram_bytes = [np.asarray(one(**asked).tasks(gpu, warm).dram_bytes).min() for asked in (eight, sixteen)]
    assert dram_bytes[0] < 1e6
    assert dram_bytes[1] >= 0.9 * 16 * 3 * 2048 * 768 * 2
    assert analyse(one(**sixteen).tasks(gpu, warm), gpu, warm).analytic_s[0] == pytest.approx(104e-6, rel=0.3)


def test_a_steeper_law_leaves_more_experts_idle():
    tokens, topk = np.array([8.0]), np.array([8.0])
    active = [(power_law_loads(tokens, 128, topk, exponent) > 0).sum() for exponent in (1.01, 1.2, 2.0)]
    assert active == sorted(active, reverse=True)
    assert active[0] < 64


def test_a_histogram_equal_to_balanced_isbalanced_loads():
    listed = "[" + ", ".join(["7"] * 32 + ["6"] * 96) + "]"
    mine, theirs = tasks(distribution=listed, **TILE), tasks(**TILE)
    assert mine.num_tasks.tolist() == theirs.num_tasks.tolist()
    assert mine.dram_bytes.tolist() == theirs.dram_bytes.tolist()


def test_each_launch_may_have_its_own_tile_and_distribution():
    found = tasks(block_m=[16, 64], block_n=[64, 128], block_k=[64, 64], distribution=["balanced", "power_law_1.2"])
    assert found.num_tasks.shape == (2, 1)


def test_many_tiles_of_one_problem_are_priced_together():
    assert tasks(block_m=[16, 64, 128], block_n=64, block_k=64).num_tasks[:, 0].tolist() == [128 * 56] * 3


def test_without_a_tile_the_best_candidate_wins():
    few, many = (analyse(one(num_tokens=tokens).tasks(H100, COLD), H100, COLD).variant[0] for tokens in (1, 65536))
    assert few.startswith("16x")
    assert not many.startswith("16x")


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "nvfp4", "int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"])
@pytest.mark.parametrize("identity", ["triton", "grouped", "cutlass", "deepgemm", None])
def test_every_quantisation_runs_on_every_identity(dtype, identity):
    b200 = hardware.gpu("b200-sxm")
    found = analyse(one(dtype=dtype, identity=identity).tasks(b200, COLD), b200, COLD)
    assert found.analytic_s.item() >= found.bound_s.item() > 0


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"num_experts": 10**9}, r"num_experts = 1000000000 must be at most 65,536"),
        ({"topk": 200}, r"topk = 200 exceeds num_experts = 128"),
        ({"ep": 3}, r"num_experts = 128 must be a multiple of ep = 3"),
        ({"tp": 5}, r"inter_size = 768 must be a multiple of tp = 5"),
        ({"distribution": "skewed"}, r"distribution = 'skewed' must be 'balanced', 'power_law_A'"),
        ({"distribution": "power_law_x"}, r"must be 'balanced'"),
        ({"moe_pass": "w3"}, r"unknown moe_pass 'w3'"),
        ({"identity": "tritn"}, r"unknown identity 'tritn': did you mean triton"),
        ({"distribution": "[400, 400]"}, r"distribution lists 2 experts; num_experts = 128"),
        ({"distribution": "[400, 400"}, r"must be a JSON list of whole numbers"),
        ({"distribution": str([1] * 128)}, r"distribution sums to 128; num_tokens x topk = 800"),
        ({"distribution": str([800] + [0] * 127)}, r"gives one expert 800 tokens of num_tokens = 100"),
        ({"num_tokens": 0}, r"num_tokens = 0 must be a whole number of at least 1"),
        (
            {"block_m": 256, "block_n": 256, "block_k": 256},
            r"tile = 256x256x256 needs 524,288 bytes of shared memory; h100-sxm has 232,448",
        ),
        ({"topk": [8, 200]}, r"topk = 200 exceeds num_experts = 128 \(launch 1\)"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(changed, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        tasks(**changed)


def test_an_unmeasured_gpu_gets_a_time():
    gpu = hardware.gpu("a30")
    assert 0 < analyse(one().tasks(gpu, COLD), gpu, COLD).analytic_s.item() < 1


# ---- histograms --------------------------------------------------------------------------------------------------

FEW = {"num_tokens": 4, "hidden_size": 1024, "inter_size": 512, "num_experts": 4, "topk": 2}


def median_s(distribution):
    return predict_kernel(Moe(**FEW, distribution=distribution), H100).median_s.tolist()


@pytest.mark.parametrize("given", ['{"0": 4, "1": 4}', {"0": 4, "1": 4}, {0: 4, 1: 4}, [4, 4, 0, 0], (4, 4, 0, 0), np.array([4, 4, 0, 0])])
def test_a_histogram_may_be_a_list_or_name_its_experts(given):
    assert median_s(given) == median_s("[4, 4, 0, 0]")


def test_every_launch_may_have_a_histogram():
    every = "[4, 4, 0, 0]", "[2, 2, 2, 2]", "[3, 3, 1, 1]"
    assert median_s([{"0": 4, "1": 4}, [2, 2, 2, 2], "[3, 3, 1, 1]"]) == pytest.approx([median_s(each)[0] for each in every])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ('{"a": 4, "1": 4}', r"names the expert 'a'; with num_experts = 4 they are 0 to 3"),
        ('{"4": 4, "1": 4}', r"names the expert '4'; with num_experts = 4 they are 0 to 3"),
        ('{"-1": 8}', r"names the expert '-1'"),
        ('{"0": 4, "00": 4}', r"names the expert 0 twice"),
        ('{"0": 4, "1": null}', r"gives expert 1 null tokens: it must be a whole number of at least 0"),
        ('{"0": 4, "1": 1.5}', r"gives expert 1 1.5 tokens"),
        ('{"0": 4, "1": -4}', r"gives expert 1 -4 tokens"),
        ('{"0": 4, "1": true}', r"gives expert 1 True tokens"),
        ('{"0": 4, "1": {"2": 4}}', r"gives expert 1 .* tokens"),
        ('{"0": 4, "1": Infinity}', r"gives expert 1 inf tokens"),
        ('{"0": 4}', r"distribution sums to 4; num_tokens x topk = 8"),
        ('{"0": 8}', r"gives one expert 8 tokens of num_tokens = 4"),
        ("{}", r"distribution = '\{\}' must be a JSON object of whole numbers, tokens per expert"),
        ('{"0": 4', r"must be a JSON object of whole numbers, tokens per expert"),
        ({}, r"must be a JSON object"),
        ({"0": "4", "1": 4}, r"gives expert 0 '4' tokens"),
        ([], r"distribution = \[\] must be a text, or a list of them"),
        ([[1, 2], [3]], r"distribution lists 2 experts; num_experts = 4"),
        (3, r"distribution = 3 must be a text, or a list of them"),
    ],
)  # fmt: skip
def test_a_wrong_histogram_is_named(given, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        median_s(given)


def test_launches_under_several_distributions_are_their_members() -> None:
    sizes = {"hidden_size": 4096, "inter_size": 1536, "num_experts": 8, "topk": 2}
    asked = [(256, "balanced"), (64, "power_law_1.2"), (256, "[64, 64, 64, 64, 64, 64, 64, 64]"), (1024, "balanced")]
    tokens, distributions = (list(column) for column in zip(*asked, strict=True))
    together = predict_kernel(Moe(num_tokens=tokens, distribution=distributions, **sizes), "h100-sxm")
    alone = [predict_kernel(Moe(num_tokens=count, distribution=text, **sizes), "h100-sxm") for count, text in asked]
    for name in ("median_s", "low_s", "high_s"):
        np.testing.assert_allclose(getattr(together, name), [getattr(each, name)[0] for each in alone], rtol=1e-12)
    assert together.basis.tolist() == [each.basis[0] for each in alone]


def test_rows_that_found_experts_in_l2_do_not_slow_them_from_dram():
    # Two of Mixtral's eight experts on eight L40S, 88 MB: TensorRT-LLM's rows take 89 to 147 us where L2 holds them, and DRAM 102.
    kernel = Moe(
        num_tokens=1, hidden_size=4096, inter_size=14336, num_experts=8, topk=2, tp=8, identity="cutlass", distribution="power_law_1.2"
    )
    found = predict_kernel(kernel, "l40s", engine="trtllm", cache="cold")
    assert found.bound_s[0] < found.median_s[0] < 2 * found.bound_s[0]
    warm = predict_kernel(kernel, "l40s", engine="trtllm", cache="warm")
    assert warm.median_s[0] < found.median_s[0]
