"""PipeWeave's raw rows against the schema rows they must become, worked by hand; and damaged files against the sentence they must raise."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tilecast.datasets.sources.base import Table
from tilecast.datasets.sources.pipeweave import BIASED, DIAGNOSIS, SOURCE
from tilecast.errors import MissingData

Row = dict[str, Any]
PROFILED = {"timer": "profiler", "cache": "warm", "statistic": "mean", "source": "pipeweave", "licence": "Apache-2.0"}
MOE = {**PROFILED, "identity": "triton", "dtype": "bf16", "moe_pass": "w13", "distribution": "balanced", "gated": True, "tp": 1, "ep": 1}
ATTENTION = {**PROFILED, "dtype": "bf16", "kv_dtype": "bf16", "causal": True, "num_repeats": 15}

# (origin, family, origin_row, raw values, schema values); raw times are us (ms for whole runs), the schema's seconds.
CASES: list[tuple[str, str, int, Row, Row]] = [
    # 13.6596 us = 13.6596e-6 s. The raw K is the summed one: n = N.
    (
        "gemm_fp8.parquet#train", "gemm", 0,
        {"gpu": "H20", "M": 108, "N": 8192, "K": 1024, "duration_us": 13.6596, "split": "train"},
        {**PROFILED, "gpu": "h20", "m": 108, "n": 8192, "k": 1024, "latency_s": 13.6596e-6, "dtype": "fp8", "identity": "scaled_mm",
         "num_repeats": 5, "batch": 1, "bias": False, "set_aside": None, "clock": None},
    ),
    (
        "gemm_fp8.parquet#train", "gemm", 8409,
        {"gpu": "H800", "M": 108, "N": 8192, "K": 1024, "duration_us": 8.2964, "split": "train"},
        {"gpu": "h800-sxm", "m": 108, "n": 8192, "k": 1024, "latency_s": 8.2964e-6},
    ),
    (
        "gemm_fp8.parquet#test", "gemm", 16818,
        {"gpu": "H100", "M": 96, "N": 6144, "K": 2560, "duration_us": 11.6818, "split": "test"},
        {"gpu": "h100-sxm", "m": 96, "n": 6144, "k": 2560, "latency_s": 11.6818e-6},
    ),
    (
        "gemm_fp8.parquet#test", "gemm", 23125,
        {"gpu": "H800", "M": 2304, "N": 2304, "K": 3584, "duration_us": 38.7222, "split": "test"},
        {"gpu": "h800-sxm", "m": 2304, "n": 2304, "k": 3584, "latency_s": 38.7222e-6},
    ),
    # N = 3072 is one expert's inter_size: the w13 pass writes 2 x 3072 columns.
    (
        "moe.parquet", "moe", 0,
        {"gpu": "A100", "weight_type": "w13", "M": 1024, "E": 128, "topk": 8, "H": 4096, "N": 3072, "duration_us": 4056.226,
         "assumed_BLOCK_SIZE_M": 64, "assumed_BLOCK_SIZE_N": 128, "assumed_BLOCK_SIZE_K": 64, "assumed_GROUP_SIZE_M": 32},
        {**MOE, "gpu": "a100-sxm-80gb", "num_tokens": 1024, "num_experts": 128, "topk": 8, "hidden_size": 4096, "inter_size": 3072,
         "latency_s": 4056.226e-6, "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 32, "num_warps": None, "num_stages": None,
         "num_repeats": 5},
    ),
    (
        "moe.parquet", "moe", 24191,
        {"gpu": "RTX_PRO_6000_S", "weight_type": "w13", "M": 6177, "E": 8, "topk": 2, "H": 1024, "N": 512, "duration_us": 126.961,
         "assumed_BLOCK_SIZE_M": 64, "assumed_BLOCK_SIZE_N": 64, "assumed_BLOCK_SIZE_K": 64, "assumed_GROUP_SIZE_M": 1},
        {"gpu": "rtx-pro-6000-server", "num_tokens": 6177, "num_experts": 8, "topk": 2, "hidden_size": 1024, "inter_size": 512,
         "latency_s": 126.961e-6, "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 1},
    ),
    (
        "moe_dse_configs.parquet", "moe", 0,
        {"gpu": "A100", "M": 1, "E": 8, "topk": 2, "H": 1024, "N": 512, "duration_us": 7.383, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32,
         "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3, "sample_count": 3},
        {**MOE, "gpu": "a100-sxm-80gb", "num_tokens": 1, "num_experts": 8, "topk": 2, "hidden_size": 1024, "inter_size": 512,
         "latency_s": 7.383e-6, "block_m": 16, "block_n": 32, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3,
         "num_repeats": 3},
    ),
    (
        "moe_dse_configs.parquet", "moe", 15982,
        {"gpu": "H800", "M": 1, "E": 128, "topk": 8, "H": 2048, "N": 768, "duration_us": 19.65, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32,
         "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4, "num_stages": 4, "sample_count": 1},
        {"gpu": "h800-sxm", "num_tokens": 1, "latency_s": 19.65e-6, "group_m": 32, "num_stages": 4, "num_repeats": 1},
    ),
    (
        "moe_tuning_demo.parquet", "moe", 0,
        {"gpu": "A100", "M": 993, "E": 128, "topk": 8, "H": 4096, "N": 3072, "tuned_us": 3808.6006666666667, "baseline_us": 4026.8952,
         "best_BM": 64, "best_BN": 128, "best_BK": 128, "best_GM": 4, "best_num_warps": 8, "best_num_stages": 4},
        {**MOE, "gpu": "a100-sxm-80gb", "num_tokens": 993, "num_experts": 128, "topk": 8, "hidden_size": 4096, "inter_size": 3072,
         "latency_s": 3.8086006666666667e-3, "block_m": 64, "block_n": 128, "block_k": 128, "group_m": 4, "num_warps": 8, "num_stages": 4,
         "num_repeats": 3},
    ),
    (
        "moe_tuning_demo.parquet", "moe", 260,
        {"gpu": "L20", "M": 544, "E": 128, "topk": 4, "H": 2048, "N": 512, "tuned_us": 741.2803333333333, "best_BM": 16, "best_BN": 16,
         "best_BK": 256, "best_GM": 1, "best_num_warps": 4, "best_num_stages": 3},
        {"gpu": "l20", "num_tokens": 544, "topk": 4, "inter_size": 512, "latency_s": 741.2803333333333e-6, "block_m": 16, "block_n": 16,
         "block_k": 256, "group_m": 1, "num_warps": 4, "num_stages": 3},
    ),
    # The median (80.03 us), not the mean (77.03 us); all 8 ranks on one node.
    (
        "collectives.parquet", "all_reduce", 0,
        {"gpu": "A100", "op": "all_reduce", "bytes": 2048, "world_size": 8, "median_us": 80.03200000000015, "mean_us": 77.03466666666675,
         "std_us": 7.103727722509974, "devices_per_node": 8},
        {**PROFILED, "gpu": "a100-sxm-80gb", "bytes": 2048, "num_gpus": 8, "gpus_per_node": 8, "node": None, "latency_s": 80.032e-6,
         "spread_s": 7.103727722509974e-6, "engine": "nccl", "identity": "nccl", "statistic": "median", "num_repeats": 3},
    ),
    (
        "collectives.parquet", "all_reduce", 43087,
        {"gpu": "RTX_PRO_6000_S", "op": "all_reduce", "bytes": 1073666050, "world_size": 4, "median_us": 69196.44800000003},
        {"gpu": "rtx-pro-6000-server", "bytes": 1073666050, "num_gpus": 4, "gpus_per_node": 4, "latency_s": 69.196448e-3},
    ),
    (
        "collectives.parquet", "send_recv", 9714,
        {"gpu": "A100", "op": "send_recv", "bytes": 2048, "world_size": 2, "median_us": 8.831000000000017, "max_devices_per_node": 8},
        {"gpu": "a100-sxm-80gb", "bytes": 2048, "num_gpus": 2, "gpus_per_node": 2, "latency_s": 8.831e-6, "identity": "nccl"},
    ),
    # Label: tile, split-K flag, CTAs.
    (
        "measured_points_gemm.parquet", "gemm", 0,
        {"gpu": "A40", "M": 3, "N": 2560, "K": 8192, "tile_M": 64, "tile_N": 128, "tile_K": 64, "is_split_k": 1, "cta_count": 60,
         "duration_us": 1026.7022},
        {**PROFILED, "gpu": "a40", "m": 3, "n": 2560, "k": 8192, "latency_s": 1.0267022e-3, "dtype": "bf16", "identity": "cublas",
         "kernel": "64x128x64 split_k=1 ctas=60", "set_aside": BIASED},
    ),
    # The request's lengths differ, so there is no single kv_len.
    (
        "measured_points_attn.parquet", "attention_decode", 0,
        {"gpu": "RTX_6000_Ada", "attention_type": "fa2_paged", "bs": 16, "q_lengths": "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "nh": 24,
         "kv_lengths": "[736,18561,153,291,118,1137,1353,2001,195,729,6273,537,7713,15105,11649,12288]", "nkv": 8, "hd": 128,
         "duration_us": 382.98406666666665},
        {**ATTENTION, "gpu": "rtx-6000-ada", "batch": 16, "q_len": 1, "kv_len": None, "num_heads": 24, "num_kv_heads": 8, "head_dim": 128,
         "q_lens": "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "latency_s": 382.98406666666665e-6,
         "kv_lens": "[736,18561,153,291,118,1137,1353,2001,195,729,6273,537,7713,15105,11649,12288]", "identity": "flashinfer_fa2",
         "kernel": "fa2_paged", "set_aside": BIASED},
    ),
    (
        "measured_points_attn.parquet", "attention_prefill", 26,
        {"gpu": "A40", "attention_type": "fa2_ragged", "bs": 1, "q_lengths": "[8]", "kv_lengths": "[225]", "nh": 5, "nkv": 1, "hd": 128,
         "duration_us": 30.255133333333337},
        {"gpu": "a40", "batch": 1, "q_len": 8, "kv_len": 225, "num_heads": 5, "num_kv_heads": 1, "latency_s": 30.255133333333337e-6},
    ),
    (
        "attn_fork_sample.parquet", "attention_prefill", 48,
        {"gpu": "H100", "attention_type": "fa3_ragged", "bs": 4, "q_lengths": "[13, 15, 64, 147]", "kv_lengths": "[66, 107, 7809, 544]",
         "nh": 28, "nkv": 4, "hd": 128, "duration_us": 121.75933333333334, "phase": "prefill/append"},
        {**ATTENTION, "gpu": "h100-sxm", "batch": 4, "q_len": None, "kv_len": None, "q_lens": "[13, 15, 64, 147]", "num_heads": 28,
         "num_kv_heads": 4, "latency_s": 121.75933333333334e-6, "identity": "flashinfer_fa3", "set_aside": DIAGNOSIS},
    ),
    (
        "attn_fork_sample.parquet", "attention_decode", 3,
        {"gpu": "A100", "attention_type": "fa2_paged", "bs": 1, "q_lengths": "[1]", "kv_lengths": "[90]", "nh": 16, "nkv": 4, "hd": 128,
         "duration_us": 7.394066666666668, "phase": "decode"},
        {"gpu": "a100-sxm-80gb", "batch": 1, "q_len": 1, "kv_len": 90, "num_heads": 16, "num_kv_heads": 4,
         "latency_s": 7.394066666666668e-6},
    ),
    (
        "measured_points_rmsnorm.parquet", "rms_norm", 26,
        {"gpu": "B200", "seq": 1, "dim": 128, "duration_us": 2.3273333333333337},
        {**PROFILED, "gpu": "b200-sxm", "rows": 1, "cols": 128, "latency_s": 2.3273333333333337e-6, "dtype": "bf16", "set_aside": BIASED},
    ),
    # The input is 768 wide, gate and up; the output 768 / 2 = 384.
    (
        "measured_points_siluandmul.parquet", "silu_mul", 61,
        {"gpu": "H100", "seq": 18945, "dim": 768, "duration_us": 24.9364},
        {**PROFILED, "gpu": "h100-sxm", "rows": 18945, "cols": 384, "latency_s": 24.9364e-6, "dtype": "bf16", "set_aside": BIASED},
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def root() -> Path:
    try:
        return SOURCE.locate()
    except MissingData as absent:
        pytest.skip(str(absent))


def raw_row(root: Path, origin: str, row: int, expected: Row) -> None:
    """Skip where this copy of the file holds other rows than the one that was worked by hand."""
    raw = pl.read_parquet(root / origin.partition("#")[0]).slice(row, 1)
    if not raw.height or raw.select(expected.keys()).row(0, named=True) != expected:
        pytest.skip(f"row {row} of {origin} is another one in this copy of the data")


@pytest.mark.data
@pytest.mark.parametrize(("origin", "family", "row", "raw", "expected"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_raw_row_becomes_the_row_worked_by_hand(root: Path, origin: str, family: str, row: int, raw: Row, expected: Row) -> None:
    raw_row(root, origin, row, raw)
    found = SOURCE.read(root, Table(origin, family)).filter((pl.col("origin") == origin) & (pl.col("origin_row") == row))
    assert found.height == 1
    got = found.select(expected.keys()).row(0, named=True)
    assert got == {key: pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for key, value in expected.items()}


@pytest.mark.data
def test_a_run_becomes_a_row_for_each_metric(root: Path) -> None:
    raw = {"framework": "sglang", "gpu": "RTX_6000_Ada", "tp": 1, "pp": 1, "model": "Qwen2.5-14B", "workload": "arxiv_8", "run_index": 0,
           "batch_size": 8, "max_input_len": 3866, "output_len": 122, "total_prefill_tokens": 27966, "prefill_ms": 8015.579074155539,
           "decode_ms_median": 40.288716088980436, "total_ms": 13288.106610067189}  # fmt: skip
    raw_row(root, "e2e_real.parquet", 40, raw)
    runs = SOURCE.read(root, Table("e2e_real.parquet", "step"))
    shared = {"gpu": "rtx-6000-ada", "engine": "sglang", "dtype": "bf16", "timer": "wall", "mode": "inference", "model": "Qwen2.5-14B",
              "workload": "arxiv_8", "batch": 8, "seq_len": 3866, "output_len": 122, "tp": 1, "pp": 1, "num_gpus": 1,
              "attributes": '{"total_prefill_tokens":27966,"run_index":0}'}  # fmt: skip
    found = runs.filter(pl.col("origin_row") == 40)
    assert found.select(shared.keys()).unique().row(0, named=True) == shared
    # ms / 1000; the decode step is the median of 122 - 1 steps; this card throttles in the prefill, and so in the total.
    assert found.select("metric", "latency_s", "statistic", "num_repeats", "clock").rows() == [
        ("prefill", pytest.approx(8.015579074155539), "single run", 1, "throttled"),
        ("decode_step", pytest.approx(0.040288716088980436), "median", 121, None),
        ("total", pytest.approx(13.288106610067189), "single run", 1, "throttled"),
    ]


@pytest.mark.data
def test_every_raw_row_is_read_once(root: Path) -> None:
    read: Counter[str] = Counter()
    for table in SOURCE.tables(root):
        read[table.name.partition("#")[0]] += SOURCE.read(root, table).height
    expected = {file: pl.read_parquet(root / file).height for file in read}
    if "e2e_real.parquet" in read:  # a run is a row for each time that was taken
        times = pl.read_parquet(root / "e2e_real.parquet", columns=["prefill_ms", "decode_ms_median", "total_ms"])
        expected["e2e_real.parquet"] = sum(times.count().row(0))
    assert read == expected


def fp8(folder: Path, **columns: list[Any]) -> Path:
    raw: Row = {
        "gpu": ["H20", "H800"],
        "M": [1, 2],
        "N": [384, 384],
        "K": [256, 256],
        "duration_us": [5.0, 6.0],
        "split": ["train", "test"],
    }
    path = folder / "gemm_fp8.parquet"
    pl.DataFrame({**raw, **columns}).write_parquet(path)
    return path


def test_a_split_is_a_table_and_rows_keep_their_place_in_the_file(tmp_path: Path) -> None:
    fp8(tmp_path)
    assert SOURCE.tables(tmp_path) == [Table("gemm_fp8.parquet#test", "gemm"), Table("gemm_fp8.parquet#train", "gemm")]
    test = SOURCE.read(tmp_path, Table("gemm_fp8.parquet#test", "gemm"))
    assert test.select("gpu", "m", "origin", "origin_row", "latency_s").rows() == [("h800-sxm", 2, "gemm_fp8.parquet#test", 1, 6e-6)]


def test_only_the_total_of_a_vllm_run_becomes_a_row(tmp_path: Path) -> None:
    run = {"framework": "vllm", "gpu": "H800", "tp": 4, "pp": 2, "model": "Llama-3.1-70B", "workload": "w", "run_index": 1,
           "batch_size": 16, "max_input_len": 2197, "output_len": 403, "total_prefill_tokens": 35152, "prefill_ms": None,
           "decode_ms_median": None, "total_ms": 9000.0}  # fmt: skip
    pl.DataFrame([run], schema_overrides={"prefill_ms": pl.Float64, "decode_ms_median": pl.Float64}).write_parquet(
        tmp_path / "e2e_real.parquet"
    )
    rows = SOURCE.read(tmp_path, Table("e2e_real.parquet", "step"))
    assert rows.select("engine", "metric", "latency_s", "num_gpus", "clock").rows() == [("vllm", "total", 9.0, 8, None)]


def test_the_fingerprint_follows_the_files(tmp_path: Path) -> None:
    fp8(tmp_path)
    before = SOURCE.fingerprint(tmp_path)
    fp8(tmp_path, M=[4, 5], extra=[0, 0])
    assert SOURCE.fingerprint(tmp_path) != before


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = fp8(tmp_path)
    pl.read_parquet(path).drop("K").write_parquet(path)
    with pytest.raises(MissingData, match=r"gemm_fp8\.parquet lacks the column K; it has M, N, duration_us, gpu, split$"):
        SOURCE.read(tmp_path, Table("gemm_fp8.parquet#train", "gemm"))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = fp8(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    for ask in (SOURCE.tables, lambda root: SOURCE.read(root, Table("gemm_fp8.parquet#train", "gemm"))):
        with pytest.raises(MissingData, match=r"^.*gemm_fp8\.parquet is damaged or no parquet file: [^\n]+$"):
            ask(tmp_path)


def test_an_unknown_gpu_is_named(tmp_path: Path) -> None:
    fp8(tmp_path, gpu=["H20", "H999"])
    with pytest.raises(MissingData, match=r"gemm_fp8\.parquet has rows of H999, and this reader knows only A100, A40, [^\n]+$"):
        SOURCE.read(tmp_path, Table("gemm_fp8.parquet#train", "gemm"))


def test_values_of_another_kind_are_damage(tmp_path: Path) -> None:
    fp8(tmp_path, duration_us=["5 us", "6 us"])
    with pytest.raises(MissingData, match=r"gemm_fp8\.parquet holds values that are no gemm rows: [^\n]+$"):
        SOURCE.read(tmp_path, Table("gemm_fp8.parquet#train", "gemm"))


def test_a_file_that_is_not_there_is_not_listed_and_an_absent_folder_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SOURCE.tables(tmp_path) == []
    monkeypatch.setenv("TILECAST_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="no folder pipeweave/"):
        SOURCE.locate()
