"""What a cell of a kernels file means, whatever the file: the same content as CSV and as parquet gives the same answer."""

import csv
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.command_line import Result, Tilecast
from tilecast import predict_kernel
from tilecast.cli.parameters import meant
from tilecast.kernels.attention import AttentionDecode
from tilecast.kernels.moe import Moe

DECODE = {"family": "attention_decode", "gpu": "h100-sxm", "num_heads": 32, "num_kv_heads": 8}
MOE = {"family": "moe", "gpu": "h100-sxm", "num_tokens": 4, "hidden_size": 1024, "inter_size": 512, "num_experts": 4, "topk": 2}
ANSWERS = ("median_s", "low_s", "high_s", "bound_s", "analytic_s", "bound_by", "basis")


def median_s(kernel: Any, gpu: str = "h100-sxm") -> float:
    return float(predict_kernel(kernel, gpu).median_s[0])


def predicted(tilecast: Tilecast, source: Path, *more: str) -> tuple[Result, list[dict[str, str]]]:
    """What the command said, and the rows that it wrote."""
    target = source.with_name("out.csv")
    result = tilecast("kernels", str(source), "--out", str(target), *more)
    if not target.exists():
        return result, []
    with target.open(newline="") as file:
        return result, list(csv.DictReader(file))


def as_csv(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "in.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_parquet(folder: Path, rows: list[dict[str, Any]], **kinds: Any) -> Path:
    pl = pytest.importorskip("polars")
    path = folder / "in.parquet"
    names = dict.fromkeys(name for row in rows for name in row)
    pl.DataFrame({name: pl.Series([row.get(name) for row in rows], dtype=kinds.get(name)) for name in names}).write_parquet(path)
    return path


# ---- lists of lengths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "lengths"), [("128", [128]), ("128.0", [128]), ("128,4096", [128, 4096]), ("[128, 4096]", [128, 4096])])
def test_lengths_in_a_csv_read_as_they_do_on_the_command_line(tilecast, tmp_path, cell, lengths):
    _, (row,) = predicted(tilecast, as_csv(tmp_path, [{**DECODE, "kv_lens": cell}]))
    asked = ["kernel", "attention_decode", "--gpu", "h100-sxm", "--num-heads", "32", "--num-kv-heads", "8", "--kv-lens", cell, "--json"]
    assert float(row["median_s"]) == tilecast(*asked).json["median_s"]
    assert float(row["median_s"]) == median_s(AttentionDecode(num_heads=32, num_kv_heads=8, kv_lens=lengths))
    assert row["kv_lens"] in (cell, "128.0", "128")


def test_several_plain_lengths_are_several_launches_not_one(tilecast, tmp_path):
    for source in (
        as_csv(tmp_path, [{**DECODE, "kv_lens": 128}, {**DECODE, "kv_lens": 4096}]),
        as_parquet(tmp_path, [{**DECODE, "kv_lens": 128}, {**DECODE, "kv_lens": 4096}]),
    ):
        _, rows = predicted(tilecast, source)
        alone = [median_s(AttentionDecode(num_heads=32, num_kv_heads=8, batch=1, kv_len=length)) for length in (128, 4096)]
        assert [float(row["median_s"]) for row in rows] == pytest.approx(alone)


def test_native_lists_of_different_lengths_are_lists_of_requests(tilecast, tmp_path):
    lists = [[10, 20], [10, 20, 30], [128]]
    result, rows = predicted(tilecast, as_parquet(tmp_path, [{**DECODE, "kv_lens": each} for each in lists]))
    assert result.code == 0
    alone = [median_s(AttentionDecode(num_heads=32, num_kv_heads=8, kv_lens=each)) for each in lists]
    assert [float(row["median_s"]) for row in rows] == pytest.approx(alone)
    assert [json.loads(row["kv_lens"]) for row in rows] == lists


def test_native_lists_come_back_as_they_were(tilecast, tmp_path):
    pl = pytest.importorskip("polars")
    source = as_parquet(tmp_path, [{**DECODE, "kv_lens": [10, 20]}, {**DECODE, "kv_lens": [10]}])
    assert tilecast("kernels", str(source), "--out", str(tmp_path / "out.parquet")).code == 0
    given, written = pl.read_parquet(source), pl.read_parquet(tmp_path / "out.parquet")
    assert written.select(given.columns).equals(given)


@pytest.mark.parametrize("cell", ["nan", "[]", "abc", "[1, null]", "0", "-5", "1e30", "true", "[1", '{"a": 1}'])
def test_no_cell_of_lengths_does_worse_than_be_refused(tilecast, tmp_path, cell):
    for source in (as_csv(tmp_path, [{**DECODE, "kv_lens": cell}]), as_parquet(tmp_path, [{**DECODE, "kv_lens": cell}])):
        refused, _ = predicted(tilecast, source)
        assert refused.code == 2 and refused.err.startswith("tilecast: row 1: ") and refused.err.count("\n") == 1


@pytest.mark.parametrize("cells", [[[]], [[None]], [[1.5, 2.0]], [[[1], [2]]], [{"a": 1}], [True], [b"12"], [-5], [float("inf")]])
@pytest.mark.parametrize(
    "name", ["kv_lens", "q_lens", "kv_len", "batch", "causal", "dtype", "identity", "family", "gpu", "timer", "engine"]
)
def test_no_native_cell_does_worse_than_be_refused(tilecast, tmp_path, name, cells):
    row = {**DECODE, "kv_lens": [128]} | ({"batch": 1} if name == "batch" else {}) | {name: cells[0]}
    refused, _ = predicted(tilecast, as_parquet(tmp_path, [row]))
    assert refused.code in (0, 2) and refused.err.count("\n") <= 1


# ---- empty, true, false, numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [
        ("batch", "", None), ("batch", " ", None), ("batch", None, None), ("batch", float("nan"), None), ("batch", "nan", None),
        ("batch", "16", 16), ("batch", "16.0", 16), ("batch", 16.0, 16), ("batch", Decimal(16), 16), ("batch", np.int64(16), 16),
        ("batch", 1.5, 1.5), ("batch", "many", "many"), ("causal", "True", True), ("causal", "false", False), ("causal", True, True),
        ("identity", "", None), ("identity", " fa3 ", "fa3"), ("dtype", "true", "true"), ("kv_lens", 128, "[128]"),
        ("kv_lens", np.array([1, 2]), "[1, 2]"), ("kv_lens", "128,4096", "[128, 4096]"), ("kv_lens", "abc", "abc"),
        ("tile", [128, 64], (128, 64)),
        ("tile", "128x64", "128x64"), ("distribution", [2, 2], "[2, 2]"), ("distribution", {"0": 2, "1": None}, '{"0": 2}'),
        ("distribution", {"0": None}, None),
    ],
)  # fmt: skip
def test_a_cell_means_the_same_however_its_file_holds_it(name, cell, value):
    found = meant(name, cell)
    assert found == value and type(found) is type(value)


FAMILIES: tuple[dict[str, Any], ...] = (
    {"family": "gemm", "m": (1, 16, 4096), "n": (512, 4096), "k": (512, 4096), "batch": ("", 1, 4), "bias": ("", "true", "false"),
     "dtype": ("", "bf16", "fp8"), "identity": ("", "cublas", "triton")},
    {"family": "attention_prefill", "batch": ("", 2), "q_len": (128, 1000), "kv_len": ("", 1000), "num_heads": (32,),
     "num_kv_heads": ("", 8), "causal": ("", "true", "false"), "window": ("", 256)},
    {"family": "attention_decode", "kv_lens": ("128", "[128, 4096]", "7,7,7"), "num_heads": (32,), "num_kv_heads": (8,),
     "identity": ("", "fa2")},
    {"family": "moe", "num_tokens": (4,), "hidden_size": (1024,), "inter_size": (512,), "num_experts": (4,), "topk": (2,),
     "distribution": ("", "balanced", "[4, 4, 0, 0]", '{"0": 4, "2": 4}'), "gated": ("", "true", "false"), "identity": ("", "triton")},
    {"family": "rms_norm", "rows": (1, 999), "cols": (4096,), "residual": ("", "true", "false")},
    {"family": "all_reduce", "bytes": (1024, 1 << 20), "num_gpus": (2, 8), "identity": ("", "nccl", "custom"), "node": ("",),
     "link_bytes_per_s": ("", "450GB/s")},
)  # fmt: skip


def drawn(seed: int) -> list[dict[str, str]]:
    """Rows of all families, every cell as text; what a family does not have is empty."""
    choice = random.Random(seed)
    names = list(dict.fromkeys(name for family in FAMILIES for name in family))
    rows = []
    for family in (family for family in FAMILIES for _ in range(3)):
        cells = {name: str(choice.choice(family[name])) for name in family if name != "family"}
        cells["timer"] = choice.choice(["", "graph"])
        rows.append({**dict.fromkeys(names, ""), "family": family["family"], "gpu": "h100-sxm", **cells})
    return rows


def typed(name: str, cells: list[str]) -> list[Any]:
    """A column as programs write it: numbers with NaN for none where all cells are numbers, else texts."""
    try:
        return [float(cell) if cell else float("nan") for cell in cells]
    except ValueError:
        return [cell or None for cell in cells]


@pytest.mark.parametrize("seed", range(4))
def test_the_same_content_as_csv_and_parquet_gives_the_same_answer(tilecast, tmp_path, seed):
    rows = drawn(seed)
    result, expected = predicted(tilecast, as_csv(tmp_path, rows))
    assert (result.code, result.err) == (0, "")
    columns = {name: typed(name, [row[name] for row in rows]) for name in rows[0]}
    typed_rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    for source in (rows, typed_rows):
        result, found = predicted(tilecast, as_parquet(tmp_path, source))
        assert (result.code, result.err) == (0, "")
        assert [[row[name] for name in ANSWERS] for row in found] == [[row[name] for name in ANSWERS] for row in expected]


def test_blank_lines_of_a_csv_are_no_rows(tilecast, tmp_path):
    (tmp_path / "in.csv").write_text("\nfamily,gpu,m,n,k\ngemm,h100-sxm,1,64,64\n\n  \ngemm,h100-sxm,2,64,64\n\n")
    result, rows = predicted(tilecast, tmp_path / "in.csv")
    assert result.code == 0 and [row["m"] for row in rows] == ["1", "2"]
    (tmp_path / "in.csv").write_text("family,gpu,m,n,k\n,,,,\n")
    refused, _ = predicted(tilecast, tmp_path / "in.csv")
    assert refused.code == 2 and "row 1: family is empty" in refused.err


@pytest.mark.parametrize(("m", "said"), [("1e30", r"1e+30"), ("1" + 25 * "0", "1e+25"), ("1e17", "100000000000000000"), ("1.5", "1.5")])
def test_a_size_out_of_range_is_said_plainly_with_its_limit(tilecast, tmp_path, m, said):
    refused, _ = predicted(tilecast, as_csv(tmp_path, [{"family": "gemm", "gpu": "h100-sxm", "m": m, "n": 64, "k": 64}]))
    limit = "at least 1" if m == "1.5" else "at most 9,007,199,254,740,992"
    assert (refused.code, refused.err) == (2, f"tilecast: row 1: m = {said} must be a whole number of {limit}\n")


# ---- histograms --------------------------------------------------------------------------------------------------


def test_a_histogram_by_expert_in_files_and_on_the_command_line(tilecast, tmp_path):
    expected = median_s(Moe(**{name: value for name, value in MOE.items() if name not in ("family", "gpu")}, distribution="[4, 4, 0, 0]"))
    options = [text for name, value in MOE.items() if name not in ("family", "gpu") for text in (f"--{name.replace('_', '-')}", str(value))]
    asked = tilecast("kernel", "moe", "--gpu", "h100-sxm", *options, "--distribution", '{"0":4,"1":4}', "--json")
    assert asked.json["median_s"] == expected
    for source in (
        as_csv(tmp_path, [{**MOE, "distribution": '{"0": 4, "1": 4}'}]),
        as_parquet(tmp_path, [{**MOE, "distribution": '{"0": 4, "1": 4}'}]),
        as_parquet(tmp_path, [{**MOE, "distribution": {"0": 4, "1": 4}}, {**MOE, "distribution": {"0": 4, "3": 4}}]),
        as_parquet(tmp_path, [{**MOE, "distribution": [4, 4, 0, 0]}, {**MOE, "distribution": [2, 2, 2, 2]}]),
    ):
        _, rows = predicted(tilecast, source)
        assert float(rows[0]["median_s"]) == pytest.approx(expected, rel=1e-12)


def test_rows_to_calibrate_with_are_read_like_any_other(tilecast, tmp_path):
    rows = [{**DECODE, "kv_lens": "128,4096", "measured_s": "1e-5"}, {**DECODE, "kv_lens": "4096", "measured_s": "1.2e-5"}]
    profiles = []
    for name, source in (("a", as_csv(tmp_path, rows)), ("b", as_parquet(tmp_path, rows))):
        made = tilecast("calibrate", str(source), "--gpu", "h100-sxm", "-o", str(tmp_path / f"{name}.json"), "--json")
        assert made.code == 0
        profiles.append(made.json["levels"])
    assert profiles[0] == profiles[1]
