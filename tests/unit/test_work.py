"""FLOP and compulsory bytes of each family, counted by hand on shapes small enough to draw."""

from typing import Any

import polars as pl
import pytest

from tilecast.datasets.schema import COLLECTIVES, FAMILIES, conform
from tilecast.datasets.work import work

FROM = {"gpu": "h100-sxm", "timer": "graph", "latency_s": 1.0, "source": "toy", "licence": "CC0", "origin": "toy.csv", "origin_row": 0}
ATTENTION = {"batch": 2, "q_len": 4, "kv_len": 4, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "causal": True, "kv_dtype": "bf16"}
DECODE = {"batch": 3, "q_len": 1, "kv_len": 100, "num_heads": 8, "num_kv_heads": 1, "head_dim": 64, "causal": True, "kv_dtype": "bf16"}
MLA = {"batch": 2, "num_heads": 16, "kv_dtype": "bf16"}
MOE = {"num_tokens": 16, "hidden_size": 64, "inter_size": 128, "num_experts": 8, "topk": 2, "tp": 2, "ep": 4, "moe_pass": "both",
       "gated": True}  # fmt: skip
ROWS = {"rows": 4, "cols": 8}


def least(family: str, dtype: str = "bf16", **shape: Any) -> tuple[float, float]:
    """(FLOP, bytes) of one launch."""
    expressions = work(family)
    assert expressions is not None
    frame = conform(pl.DataFrame([{**FROM, "dtype": dtype, **shape}]), family)
    flop, num_bytes = frame.select(expressions.flop.alias("flop"), expressions.bytes.alias("bytes")).row(0)
    return flop, num_bytes


def test_gemm_reads_both_operands_and_writes_the_product() -> None:
    # 2 x 2 x 128 x 256 x 512 FLOP; 2 x (128 x 512 + 256 x 512 + 128 x 256) x 2 bytes
    assert least("gemm", m=128, n=256, k=512, batch=2) == (67_108_864, 917_504)


def test_gemm_in_nvfp4_reads_4_5_bits_an_element_and_writes_16() -> None:
    # 16 x 64 x 0.5625 + 32 x 64 x 0.5625 + 16 x 32 x 2 = 576 + 1152 + 1024 bytes
    assert least("gemm", "nvfp4", m=16, n=32, k=64, batch=1) == (65_536, 2_752)


def test_gemm_with_int4_weights_reads_its_activations_in_16_bits() -> None:
    # 16 x 64 x 2 + 32 x 64 x (4 + 16 / 128) / 8 + 16 x 32 x 2 = 2048 + 1056 + 1024 bytes
    assert least("gemm", "int4_wo", m=16, n=32, k=64, batch=1) == (65_536, 4_128)


def test_causal_attention_computes_the_triangle_and_reads_each_key_head_once() -> None:
    # 1 + 2 + 3 + 4 = 10 pairs x 2 requests x 4 heads x 8 x 4 FLOP
    # 8 queries x 4 heads x 8 in and out, 8 keys x 2 heads x 8 twice (K and V), 2 bytes each: 1024 + 512
    assert least("attention_prefill", **ATTENTION) == (2_560, 1_536)


def test_attention_both_ways_computes_the_square() -> None:
    assert least("attention_prefill", **ATTENTION | {"causal": False}) == (4 * 2 * 16 * 4 * 8, 1_536)


def test_a_sliding_window_cuts_the_triangle() -> None:
    # Windows of 2: 1 + 2 + 2 + 2 = 7 pairs; all four keys are still read.
    assert least("attention_prefill", **ATTENTION, window=2) == (4 * 2 * 7 * 4 * 8, 1_536)
    # A window as long as the request cuts nothing.
    assert least("attention_prefill", **ATTENTION, window=4) == (2_560, 1_536)


def test_a_chunk_behind_cached_tokens_sees_them_all() -> None:
    # Two queries after four tokens see 5 and 6 keys: 11 pairs. Queries: 2 x 4 heads x 8 x 2 x 2 bytes; keys: 6 x 2 heads x 8 x 2 x 2.
    chunk = ATTENTION | {"batch": 1, "q_len": 2, "kv_len": 6}
    assert least("attention_prefill", **chunk) == (4 * 11 * 32, 256 + 384)
    # A window of 4: 4 + 4 = 8 pairs, and the first of the six keys is out of both windows.
    assert least("attention_prefill", **chunk, window=4) == (4 * 8 * 32, 256 + 320)


def test_decode_reads_the_whole_cache_for_one_token() -> None:
    # 4 x 3 x 100 x 8 x 64 FLOP; 3 x 8 x 64 x 2 x 2 = 6144 bytes of queries and outputs, 3 x 100 x 1 x 64 x 2 x 2 = 76,800 of K and V
    assert least("attention_decode", **DECODE) == (614_400, 6_144 + 76_800)
    assert least("attention_decode", **DECODE | {"kv_dtype": "fp8"}) == (614_400, 6_144 + 38_400)
    # A window of 32 keys: 4 x 3 x 32 x 8 x 64 FLOP, 3 x 32 x 64 x 2 x 2 bytes
    assert least("attention_decode", **DECODE, window=32) == (196_608, 6_144 + 24_576)


def test_a_ragged_batch_sums_its_lists() -> None:
    # Three queries, 30 keys; at the least each query meets one key: 4 x 3 x 8 x 64 FLOP
    ragged = DECODE | {"batch": 2, "q_len": None, "kv_len": None, "q_lens": "[1, 2]", "kv_lens": "[10, 20]"}
    assert least("attention_decode", **ragged) == (6_144, 2 * 3 * 8 * 64 * 2 + 2 * 30 * 64 * 2)


def test_a_mixed_launch_is_its_prefill_and_its_decodes() -> None:
    # Prefill of 2 behind 4: 5 + 6 = 11 pairs; 2 decodes at 10 and 1 at 5: 25 pairs. 4 x 36 x 4 heads x 8 FLOP.
    # 5 queries x 32 x 2 x 2 = 640 bytes; 6 + 25 keys x 2 heads x 8 x 2 x 2 = 1984 bytes
    assert least(
        "attention_mixed", prefill_q_len=2, prefill_kv_len=6, decode_batch_a=2, decode_kv_len_a=10, decode_batch_b=1, decode_kv_len_b=5,
        num_heads=4, num_kv_heads=2, head_dim=8, kv_dtype="bf16",
    ) == (4_608, 2_624)  # fmt: skip


def test_mla_decode_meets_the_latent_cache_itself() -> None:
    # Keys 512 + 64 wide, values 512: 2 x 2 x 10 x 16 x (576 + 512) FLOP
    # Per request 16 x 1088 x 2 = 34,816 bytes of queries and outputs, and one latent for all heads: 10 x 576 x 2 = 11,520
    assert least("mla_decode", **MLA, q_len=1, kv_len=10) == (696_320, 2 * (34_816 + 11_520))
    assert least("mla_decode", **MLA | {"kv_dtype": "fp8"}, q_len=1, kv_len=10) == (696_320, 2 * (34_816 + 5_760))


def test_mla_prefill_meets_expanded_keys_and_values() -> None:
    # Keys 128 + 64 wide, values 128, the triangle 10 pairs: 2 x 2 x 10 x 16 x 320 FLOP
    # Per request 4 x 16 x 320 x 2 = 40,960 bytes of queries and outputs, as many of keys and values
    assert least("mla_prefill", **MLA, q_len=4, kv_len=4) == (204_800, 2 * (40_960 + 40_960))


def test_moe_divides_pairs_by_ep_and_width_by_tp() -> None:
    # 16 x 2 / 4 = 8 pairs on a rank, 128 / 2 = 64 wide, gate and up and down: 2 x 8 x 64 x 3 x 64 FLOP
    # 8 / 4 = 2 experts x 64 x 192 x 2 = 49,152 bytes of weights; 8 tokens x 64 in and out x 2 = 2,048
    assert least("moe", **MOE) == (196_608, 51_200)


def test_a_pass_of_moe_is_its_share() -> None:
    # w13: 2 x 64 columns of the 3 x 64; w2: 64
    assert least("moe", **MOE | {"moe_pass": "w13"}) == (131_072, 2 * 64 * 128 * 2 + 2_048)
    assert least("moe", **MOE | {"moe_pass": "w2"}) == (65_536, 2 * 64 * 64 * 2 + 2_048)


def test_experts_without_a_gate_have_two_matrices() -> None:
    assert least("moe", **MOE | {"gated": False}) == (131_072, 2 * 64 * 128 * 2 + 2_048)


def test_moe_reads_the_experts_that_were_active_where_that_is_known() -> None:
    assert least("moe", **MOE, active_experts=1) == (196_608, 64 * 192 * 2 + 2_048)
    # One token with top-2 on one rank of 4: half a pair, so at most half an expert on average
    assert least("moe", **MOE | {"num_tokens": 1})[1] == 0.5 * 64 * 192 * 2 + 2 * 0.5 * 64 * 2


@pytest.mark.parametrize(
    ("family", "shape", "num_bytes"),
    [
        ("rms_norm", {**ROWS, "residual": False}, 2 * 32 * 2),  # in, out
        ("rms_norm", {**ROWS, "residual": True}, 4 * 32 * 2),  # and the residual, in and out
        ("layer_norm", ROWS, 2 * 32 * 2),
        ("softmax", ROWS, 2 * 32 * 2),
        ("silu_mul", ROWS, 3 * 32 * 2),  # gate and up in, cols wide each; one out
        ("sampling", ROWS, 32 * 2),
        ("embedding", {**ROWS, "vocab_size": 100}, 32 * 2),
    ],
)
def test_a_kernel_over_rows_streams_them_so_many_times(family: str, shape: dict[str, Any], num_bytes: int) -> None:
    assert least(family, **shape)[1] == num_bytes


def test_quantising_reads_two_bytes_and_writes_one() -> None:
    assert least("quantize", "fp8", **ROWS, op="static_scaled_fp8")[1] == 32 * (2 + 1)


def test_elementwise_has_one_operand_or_two() -> None:
    assert least("elementwise", "fp32", op="add", numel=10) == (10, 3 * 10 * 4)
    assert least("elementwise", "fp32", op="relu", numel=10) == (10, 2 * 10 * 4)


def test_rope_rewrites_queries_and_keys_in_place() -> None:
    # 2 x (4 + 2) x 8 = 96 elements, in and out
    assert least("rope", rows=2, num_heads=4, num_kv_heads=2, head_dim=8) == (288, 384)


def test_writing_the_cache_copies_k_and_v() -> None:
    # 2 x 2 x 8 elements of K and of V, read and written
    assert least("kv_cache_write", rows=2, num_kv_heads=2, head_dim=8) == (0, 256)


def test_a_strided_convolution_counts_its_output_positions() -> None:
    # (8 + 2 - 3) / 2 rounded down + 1 = 4: 2 x 8 x 16 positions x 3 x 9 FLOP; (3 x 64 + 8 x 3 x 9 + 8 x 16) x 4 bytes
    shape = {"batch": 1, "in_channels": 3, "out_channels": 8, "height": 8, "width": 8, "kernel_size": 3, "stride": 2, "padding": 1}
    assert least("conv2d", "fp32", **shape) == (6_912, 2_144)


def test_what_is_several_kernels_or_several_gpus_has_no_least_work() -> None:
    without = {family for family in FAMILIES if work(family) is None}
    assert without == {"layer", "step", "serving", "moe_dispatch", *COLLECTIVES}
