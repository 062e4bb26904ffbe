"""NeuSight's raw rows against the schema rows they must become, worked by hand; and damaged files against the sentence they must raise."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tilecast.datasets.sources.base import Table
from tilecast.datasets.sources.neusight import ANOMALOUS, RAMPING, SOURCE
from tilecast.errors import MissingData

Row = dict[str, Any]
EVENTS = {"engine": "pytorch", "timer": "event", "statistic": "mean of 5 fastest of 25", "num_repeats": 5, "dtype": "fp32"}
CALL = {**EVENTS, "cache": "warm", "source": "neusight", "licence": "MIT"}
TEN = "mean of 10 fastest of 50"

# (origin, family, origin_row, raw values, schema values, one row for each time of the raw row); raw times are ms, the schema's seconds.
CASES: list[tuple[str, str, int, Row, Row | list[Row]]] = [
    # [6, 27, 21] x [6, 21, 390]: the raw N is summed, so n = 390 and k = 21; 0.0358 ms = 35.8e-6 s.
    (
        "bmm.parquet#train", "gemm", 0,
        {"gpu": "A100-40GB-PCIe", "B": 6, "M": 27, "N": 21, "K": 390, "dtype": "float32", "latency_ms": 0.03578666721781095,
         "torch_version": "2.1.0", "kernel_name": "ampere_sgemm_128x128_nn"},
        {**CALL, "gpu": "a100-pcie-40gb", "batch": 6, "m": 27, "n": 390, "k": 21, "bias": False, "latency_s": 35.78666721781095e-6,
         "engine_version": "2.1.0", "identity": "cublas", "kernel": "ampere_sgemm_128x128_nn", "clock": None, "set_aside": None},
    ),
    (
        "bmm.parquet#test", "gemm", 87623,
        {"gpu": "L4", "B": 192, "M": 96, "N": 196, "K": 196, "latency_ms": 0.2385919988155365},
        {"gpu": "l4", "batch": 192, "m": 96, "n": 196, "k": 196, "latency_s": 238.5919988155365e-6},
    ),
    (
        "bmm.parquet#test", "gemm", 100843,
        {"gpu": "MI210", "vendor": "AMD", "B": 1280, "M": 2048, "N": 2048, "K": 256, "latency_ms": 103.34269409179687},
        {"gpu": "mi210", "identity": None, "engine_version": "2.4.1", "batch": 1280, "m": 2048, "n": 256, "k": 2048,
         "latency_s": 0.10334269409179687},
    ),
    # 13 features to 141 on 58 rows.
    (
        "linear.parquet#train", "gemm", 0,
        {"gpu": "A100-40GB-PCIe", "B": 1, "M": 58, "N": 13, "K": 141, "latency_ms": 0.05450666695833206},
        {**CALL, "gpu": "a100-pcie-40gb", "batch": 1, "m": 58, "n": 141, "k": 13, "bias": True, "latency_s": 54.50666695833206e-6,
         "kernel": "ampere_sgemm_32x128_tn", "clock": None},
    ),
    (
        "linear.parquet#train", "gemm", 12883,
        {"gpu": "P4", "B": 1, "M": 58, "N": 13, "K": 141, "latency_ms": 0.04608000069856644, "kernel_name": "maxwell_sgemm_128x32_tn"},
        {"gpu": "p4", "m": 58, "n": 141, "k": 13, "latency_s": 46.08000069856644e-6, "clock": "throttled", "set_aside": None},
    ),
    (
        "linear.parquet#test", "gemm", 39438,
        {"gpu": "MI100", "B": 1, "M": 1024, "N": 2560, "K": 2560, "latency_ms": 0.4951684057712555},
        {"gpu": "mi100", "m": 1024, "n": 2560, "k": 2560, "identity": None, "latency_s": 495.1684057712555e-6},
    ),
    (
        "conv.parquet#train_unused", "conv2d", 14735,
        {"gpu": "T4", "B": 38, "in_ch": 893, "out_ch": 326, "ksize": 3, "in_size": 5, "stride": 1, "padding": 1,
         "latency_ms": 2.7097493012746177},
        {**CALL, "gpu": "t4", "batch": 38, "in_channels": 893, "out_channels": 326, "kernel_size": 3, "height": 5, "width": 5, "stride": 1,
         "padding": 1, "latency_s": 2.7097493012746177e-3},
    ),
    # 127 x 168 = 21,336 elements.
    (
        "elementwise.parquet#train", "elementwise", 0,
        {"gpu": "A100-40GB-PCIe", "op": "add", "B": 127, "H": 168, "latency_ms": 0.026816000044345856},
        {**CALL, "gpu": "a100-pcie-40gb", "op": "add", "numel": 21_336, "latency_s": 26.816000044345856e-6},
    ),
    # 32,768 x 1,600 = 52,428,800 elements.
    (
        "elementwise.parquet#test", "elementwise", 138505,
        {"gpu": "L4", "op": "gelu", "B": 32768, "H": 1600, "latency_ms": 1.7955904483795166},
        {"gpu": "l4", "op": "gelu", "numel": 52_428_800, "latency_s": 1.7955904483795166e-3},
    ),
    (
        "softmax.parquet#test", "softmax", 12782,
        {"gpu": "A100-80GB-PCIe", "B": 32768, "H": 1280, "latency_ms": 0.2949439942836761},
        {**CALL, "gpu": "a100-pcie-80gb", "rows": 32768, "cols": 1280, "latency_s": 294.9439942836761e-6},
    ),
    (
        "layernorm.parquet#train", "layer_norm", 0,
        {"gpu": "A100-40GB-PCIe", "B": 60, "H": 272, "latency_ms": 0.04691200082500776},
        {**CALL, "gpu": "a100-pcie-40gb", "rows": 60, "cols": 272, "latency_s": 46.91200082500776e-6},
    ),
    (
        "e2e_labels.parquet", "step", 0,
        {"gpu": "MI100", "model": "bert_large", "mode": "inf", "seq_len": 512, "batch": 16, "option": "", "num_layer": 24,
         "e2e_ms": 261.22247924804685, "fw_ms": 261.22247924804685, "bw_ms": None, "n_gpus": 1},
        [
            {**EVENTS, "gpu": "mi100", "metric": "forward", "latency_s": 0.26122247924804685, "model": "bert_large", "mode": "inference",
             "seq_len": 512, "batch": 16, "option": None, "tp": 1, "pp": 1, "dp": 1, "num_gpus": 1, "attributes": '{"num_layer":24}'},
            {"metric": "total", "latency_s": 0.26122247924804685},
        ],
    ),
    # 47.367 + 87.639 = 135.006 ms.
    (
        "e2e_labels.parquet", "step", 2,
        {"gpu": "MI100", "model": "bert_large", "mode": "train", "batch": 2, "fw_ms": 47.36657638549805, "bw_ms": 87.6390884399414,
         "e2e_ms": 135.00566482543945},
        [
            {"metric": "forward", "mode": "training", "latency_s": 0.04736657638549805},
            {"metric": "backward", "mode": "training", "latency_s": 0.0876390884399414},
            {"metric": "total", "mode": "training", "latency_s": 0.13500566482543945, "set_aside": None},
        ],
    ),
    (
        "e2e_labels.parquet", "step", 18,
        {"gpu": "MI210", "model": "gpt2_large", "mode": "train", "batch": 4, "fw_ms": 1115.8451171875, "bw_ms": 728.0662353515625,
         "e2e_ms": 1843.9113525390624},
        [
            {"metric": "forward", "latency_s": 1.1158451171875, "set_aside": ANOMALOUS},
            {"metric": "backward", "latency_s": 0.7280662353515625, "set_aside": ANOMALOUS},
            {"metric": "total", "latency_s": 1.8439113525390624, "set_aside": ANOMALOUS},
        ],
    ),
    (
        "e2e_labels.parquet", "step", 27,
        {"gpu": "A100-40GB-PCIe", "option": "fusion", "fw_ms": 345.17217407226565, "n_gpus": 1},
        [{"metric": metric, "option": "fusion", "dp": 1, "latency_s": 0.34517217407226565} for metric in ("forward", "total")],
    ),
    # The global batch of 4 on 4 GPUs: data, pipeline (one micro-batch) and tensor parallel; only the total was taken.
    (
        "e2e_labels.parquet", "step", 45,
        {"gpu": "A100-40GB-SXM4", "option": "dp4", "batch": 4, "e2e_ms": 452.2997772216797, "fw_ms": None, "n_gpus": 4},
        [{"gpu": "a100-sxm-40gb", "metric": "total", "option": "dp4", "batch": 4, "dp": 4, "tp": 1, "pp": 1, "num_gpus": 4,
          "statistic": TEN, "num_repeats": 10, "latency_s": 0.4522997772216797}],
    ),
    (
        "e2e_labels.parquet", "step", 46,
        {"gpu": "A100-40GB-SXM4", "option": "pp4_1", "e2e_ms": 1597.6410034179687},
        [{"metric": "total", "option": "pp4_1", "dp": 1, "tp": 1, "pp": 4, "latency_s": 1.5976410034179687}],
    ),
    (
        "e2e_labels.parquet", "step", 47,
        {"gpu": "A100-40GB-SXM4", "option": "tp4", "e2e_ms": 484.8684051513672},
        [{"metric": "total", "option": "tp4", "dp": 1, "tp": 4, "pp": 1, "latency_s": 0.4848684051513672}],
    ),
    # Inference: 0.0 ms of backward and of accumulation are no rows. 16 x 512 = 8,192 tokens.
    (
        "perop_labels.parquet", "layer", 32,
        {"gpu": "MI100", "model": "bert_large", "seq_len": 512, "batch": 16, "ns_opname": "Linear", "fw_ms": 0.6586254000663757,
         "bw_ms": 0.0, "acc_ms": 0.0},
        [{**CALL, "gpu": "mi100", "op": "Linear", "phase": "forward", "model": "bert_large", "batch": 16, "q_len": 512, "num_tokens": 8192,
          "latency_s": 658.6254000663757e-6, "engine_version": "2.4.1", "kernel": "bert.encoder.layer.0.attention.self.query",
          "attributes": '{"mode":"inference","name":"bert_encoder_layer_0_attention_self_query","op_class":"linear","section":"layer",'
                        '"repeat":24,"input_shapes":"[[16, 512, 1024]]","output_shape":"(16, 512, 1024)"}'}],
    ),
    (
        "perop_labels.parquet", "layer", 11165,
        {"gpu": "V100-32GB-PCIe", "model": "bert_large", "fw_ms": 0.2719744086265564, "bw_ms": 0.4798399964347482,
         "acc_ms": 0.02457600086927414},
        [
            {"gpu": "v100-pcie-32gb", "op": "Linear", "phase": "forward", "latency_s": 271.9744086265564e-6, "set_aside": None},
            {"gpu": "v100-pcie-32gb", "op": "Linear", "phase": "backward", "latency_s": 479.8399964347482e-6, "engine_version": "2.1.0"},
            {"gpu": "v100-pcie-32gb", "op": "Linear", "phase": "accumulate", "latency_s": 24.57600086927414e-6},
        ],
    ),
    # The address in the label is no part of the kernel's name.
    (
        "perop_labels.parquet", "layer", 3100,
        {"gpu": "A100-40GB-PCIe", "model": "bert_large", "ns_opname": "BMM", "fw_ms": 1.2034048080444335,
         "target": "<built-in method matmul of type object at 0x15552dc96d80>"},
        [{"gpu": "a100-pcie-40gb", "op": "BMM", "phase": "forward", "latency_s": 1.2034048080444335e-3, "clock": "ramping",
          "set_aside": RAMPING, "kernel": "<built-in method matmul of type object>"}],
    ),
    # NeuSight parsed no operator here: the node's target is its name.
    (
        "perop_labels.parquet", "layer", 6323,
        {"gpu": "L4", "model": "switch4", "ns_opname": None, "target": "encoder.block.0.layer.1.mlp.wi", "fw_ms": 0.206847995519638},
        [{"gpu": "l4", "op": "encoder.block.0.layer.1.mlp.wi", "phase": "forward", "latency_s": 206.847995519638e-6, "clock": None}],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def root() -> Path:
    try:
        return SOURCE.locate()
    except MissingData as absent:
        pytest.skip(str(absent))


@pytest.mark.data
@pytest.mark.parametrize(("origin", "family", "row", "raw", "expected"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_raw_row_becomes_the_rows_worked_by_hand(
    root: Path, origin: str, family: str, row: int, raw: Row, expected: Row | list[Row]
) -> None:
    there = pl.read_parquet(root / origin.partition("#")[0]).slice(row, 1)
    if not there.height or there.select(raw.keys()).row(0, named=True) != raw:
        pytest.skip(f"row {row} of {origin} is another one in this copy of the data")
    found = SOURCE.read(root, Table(origin, family)).filter((pl.col("origin") == origin) & (pl.col("origin_row") == row))
    wanted = expected if isinstance(expected, list) else [expected]
    assert found.height == len(wanted)
    for got, want in zip(found.iter_rows(named=True), wanted, strict=True):
        close = {key: pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for key, value in want.items()}
        assert {key: got[key] for key in want} == close


@pytest.mark.data
def test_every_raw_row_is_read_once(root: Path) -> None:
    read: Counter[str] = Counter()
    for table in SOURCE.tables(root):
        read[table.name.partition("#")[0]] += SOURCE.read(root, table).height
    expected = {file: pl.read_parquet(root / file).height for file in read}
    # A model and an operator are a row for each time above 0.
    for file, times in (("e2e_labels.parquet", ["e2e_ms", "fw_ms", "bw_ms"]), ("perop_labels.parquet", ["fw_ms", "bw_ms", "acc_ms"])):
        if file in read:
            expected[file] = sum(pl.read_parquet(root / file, columns=times).select((pl.all() > 0).sum()).row(0))
    assert read == expected


@pytest.mark.data
def test_what_is_known_bad_is_set_aside_and_nothing_else(root: Path) -> None:
    rows = [SOURCE.read(root, table).select("set_aside", "origin", "gpu") for table in SOURCE.tables(root)]
    aside = pl.concat(rows).drop_nulls("set_aside").unique().sort("origin")
    assert aside.rows() == [(ANOMALOUS, "e2e_labels.parquet", "mi210"), (RAMPING, "perop_labels.parquet", "a100-pcie-40gb")]


def bmm(folder: Path, **columns: list[Any]) -> Path:
    raw: Row = {"gpu": ["T4", "H100-80GB-SXM"], "vendor": ["NVIDIA"] * 2, "B": [2, 1], "M": [3, 64], "N": [4, 64], "K": [5, 64],
                "dtype": ["float32", "float16"], "latency_ms": [0.03, 0.04], "split": ["train", "test_fp16_tensorcore"],
                "kernel_name": ["volta_sgemm_32x128_nn", None], "torch_version": ["2.1.0"] * 2}  # fmt: skip
    path = folder / "bmm.parquet"
    pl.DataFrame({**raw, **columns}).write_parquet(path)
    return path


def test_fp16_rows_are_a_split_of_their_own(tmp_path: Path) -> None:
    bmm(tmp_path)
    assert SOURCE.tables(tmp_path) == [Table("bmm.parquet#test_fp16_tensorcore", "gemm"), Table("bmm.parquet#train", "gemm")]
    half = SOURCE.read(tmp_path, Table("bmm.parquet#test_fp16_tensorcore", "gemm"))
    assert half.select("gpu", "dtype", "identity", "kernel", "origin_row", "latency_s").rows() == [
        ("h100-sxm", "fp16", "cublas", None, 1, pytest.approx(4e-5))
    ]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = bmm(tmp_path)
    pl.read_parquet(path).drop("N", "vendor").write_parquet(path)
    with pytest.raises(MissingData, match=r"bmm\.parquet lacks the columns N, vendor; it has [^\n]+$"):
        SOURCE.read(tmp_path, Table("bmm.parquet#train", "gemm"))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = bmm(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MissingData, match=r"^.*bmm\.parquet is damaged or no parquet file: [^\n]+$"):
        SOURCE.tables(tmp_path)


def test_an_unknown_gpu_is_named(tmp_path: Path) -> None:
    bmm(tmp_path, gpu=["T4", "MI999"])
    with pytest.raises(MissingData, match=r"bmm\.parquet has rows of MI999, and this reader knows only A100-40GB-PCIe, [^\n]+$"):
        SOURCE.read(tmp_path, Table("bmm.parquet#train", "gemm"))


def test_an_unknown_dtype_is_damage(tmp_path: Path) -> None:
    bmm(tmp_path, dtype=["float32", "float12"])
    with pytest.raises(MissingData, match=r"bmm\.parquet holds values that are no gemm rows: [^\n]+$"):
        SOURCE.read(tmp_path, Table("bmm.parquet#test_fp16_tensorcore", "gemm"))


def test_without_the_variable_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILECAST_DATA", raising=False)
    with pytest.raises(MissingData, match=r"^\$TILECAST_DATA is not set"):
        SOURCE.locate()
