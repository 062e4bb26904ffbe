"""Every GPU file of the catalogue keeps its contract: it loads, obeys physics, names its sources and answers to its names."""

import csv
import os
import tomllib
from pathlib import Path

import pytest

from tilecast.hardware import GpuSpec, catalogue, gpu, gpu_ids, gpus, resolution_note
from tilecast.hardware.spec import FACTS, INTEGER_FACTS, RATE_TABLES, SOURCE_KINDS

REQUIRED = (
    "p4", "p100-pcie-16gb", "v100-pcie-32gb", "v100-sxm2-32gb", "t4", "rtx-3090", "a10", "a30", "a40", "rtx-a6000",
    "a100-pcie-40gb", "a100-sxm-40gb", "a100-pcie-80gb", "a100-sxm-80gb", "a800-sxm-80gb", "l4", "l20", "l40", "l40s", "rtx-4090",
    "rtx-6000-ada", "h100-pcie", "h100-sxm", "h100-nvl", "h200-sxm", "h800-sxm", "h20", "gh200", "b200-sxm", "b300-sxm", "gb200",
    "gb300", "rtx-pro-6000-server", "rtx-5090", "gb10", "mi100", "mi210", "mi250", "mi300x", "mi325x", "mi355x", "arc-b60",
)  # fmt: skip

TARGETS_OF = {
    "pascal": {"sm_60", "sm_61"}, "volta": {"sm_70"}, "turing": {"sm_75"}, "ampere": {"sm_80", "sm_86"}, "ada": {"sm_89"},
    "hopper": {"sm_90"}, "blackwell": {"sm_100", "sm_103"}, "blackwell-rtx": {"sm_120", "sm_121"},
    "cdna1": {"gfx908"}, "cdna2": {"gfx90a"}, "cdna3": {"gfx942"}, "cdna4": {"gfx950"}, "xe2": {"bmg-g21"},
}  # fmt: skip

RECALLED_LIMIT = 0.072

every_gpu = pytest.mark.parametrize("spec", tuple(gpus()), ids=lambda spec: spec.id)


def written(spec: GpuSpec) -> dict:
    return tomllib.loads((catalogue.GPU_FOLDER / f"{spec.id.replace('-', '_')}.toml").read_text(encoding="utf-8"))


def test_the_catalogue_holds_every_required_gpu():
    assert set(REQUIRED) <= set(gpu_ids())
    assert len(REQUIRED) == len(set(REQUIRED)) == 42


@every_gpu
def test_a_file_is_read_back_as_written(spec):
    table = written(spec)
    for name in FACTS:
        value = getattr(spec, name)
        assert (dict(value) if name in RATE_TABLES else value) == table.get(name), name
    assert all(isinstance(getattr(spec, name), int) for name in INTEGER_FACTS if name in table)


@every_gpu
def test_an_architecture_and_a_target_belong_together(spec):
    assert spec.target in TARGETS_OF[spec.arch]
    assert spec.vendor == {"sm": "nvidia", "gf": "amd", "bm": "intel"}[spec.target[:2]]


def test_parts_of_one_die_share_one_architecture():
    arch_of: dict[str, str] = {}
    for spec in gpus():
        assert arch_of.setdefault(spec.die, spec.arch) == spec.arch, spec.id


def test_parts_of_one_target_share_what_the_target_fixes():
    fixed = ("warp_size", "max_warps_per_sm", "max_blocks_per_sm", "shared_bytes_per_sm", "shared_bytes_per_block", "register_bytes_per_sm")
    seen: dict[str, tuple] = {}
    for spec in gpus():
        values = tuple(getattr(spec, name) for name in fixed)
        assert seen.setdefault(spec.target, values) == values, spec.id


# ---- names -------------------------------------------------------------------------------------------------------


@every_gpu
def test_every_spelling_of_a_name_leads_to_its_gpu(spec):
    for name in (spec.id, spec.name, spec.device_string, *spec.aliases):
        for spelling in (name, name.upper(), name.lower(), name.replace("-", " ")):
            assert gpu(spelling).id == spec.id, spelling
            assert resolution_note(spelling) is None, spelling
    assert gpu(spec.id.replace("-", "_")).id == spec.id


def test_a_device_string_with_underscores_leads_to_its_gpu():
    for spec in gpus():
        assert gpu(spec.device_string.replace(" ", "_")).id == spec.id


@pytest.mark.parametrize(
    ("short", "id"), [("A100", "a100-sxm-80gb"), ("H100", "h100-sxm"), ("v100", "v100-sxm2-32gb"), ("P100", "p100-pcie-16gb")]
)
def test_a_bare_name_means_the_common_part_and_says_so(short, id):
    assert gpu(short).id == id
    assert id in resolution_note(short)


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("H200", "h200-sxm"), ("B200", "b200-sxm"), ("B300", "b300-sxm"), ("H800", "h800-sxm"), ("L40S", "l40s"), ("MI300X", "mi300x"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("H100-80GB-SXM", "h100-sxm"), ("A100-40GB-PCIe", "a100-pcie-40gb"), ("B60", "arc-b60"),
    ],
)  # fmt: skip
def test_a_family_with_one_part_needs_no_note(name, id):
    assert gpu(name).id == id
    assert resolution_note(name) is None


# ---- physics, computed here and not by the loader ----------------------------------------------------------------


@every_gpu
def test_peaks_are_sms_times_rate_times_clock(spec):
    for dtype, peak in spec.tensor_flop_per_s.items():
        clock_hz = spec.boost_clock_hz if dtype == "fp64" else spec.tensor_clock_hz
        assert peak == pytest.approx(spec.num_sms * spec.tensor_flop_per_clock_per_sm[dtype] * clock_hz, rel=0.03), dtype
    for dtype, peak in spec.vector_flop_per_s.items():
        assert peak == pytest.approx(spec.num_sms * spec.vector_flop_per_clock_per_sm[dtype] * spec.boost_clock_hz, rel=0.03), dtype


@every_gpu
def test_bandwidth_is_bus_times_pin_rate(spec):
    if spec.dram_bus_bits is None or spec.dram_pin_bits_per_s is None:
        # Boards whose memory clock nobody printed, or whose vendor rounds it away.
        assert spec.id in {"b300-sxm", "gb200", "gb300", "mi325x", "mi355x"}
    else:
        assert spec.dram_bytes_per_s == pytest.approx(spec.dram_bus_bits * spec.dram_pin_bits_per_s / 8, rel=0.015)


@every_gpu
def test_narrower_numbers_are_never_slower(spec):
    rates = spec.tensor_flop_per_s
    for wide, narrow in (("tf32", "fp16"), ("tf32", "bf16"), ("fp16", "fp8"), ("fp8", "nvfp4"), ("fp8", "mxfp4")):
        if wide in rates and narrow in rates:
            assert rates[narrow] >= rates[wide]
    # int8 is the exception: Blackwell Ultra nearly removed it.
    if "int8" in rates and spec.target != "sm_103":
        assert rates["int8"] >= rates["fp16"]


@every_gpu
def test_the_published_tensor_clock_is_not_far_above_the_highest_one(spec):
    assert spec.tensor_clock_hz <= 1.03 * spec.boost_clock_hz


@every_gpu
def test_a_link_is_stated_in_full_or_not_at_all(spec):
    assert (spec.link_kind is None) == (spec.link_bytes_per_s is None)
    assert (spec.pcie_generation is None) == (spec.pcie_lanes is None)
    if spec.link_kind is None:
        assert spec.link_peers is None


# ---- sources -----------------------------------------------------------------------------------------------------


@every_gpu
def test_every_fact_names_a_source_and_no_source_is_a_link(spec):
    for fact in spec.facts():
        assert spec.source(fact).kind in SOURCE_KINDS, fact
    assert not [text for text in written(spec)["sources"].values() if "http" in text or "/" in text.partition(":")[0]]


def test_the_share_of_recalled_facts_does_not_rise():
    kinds = [spec.source(fact).kind for spec in gpus() for fact in spec.facts()]
    share = kinds.count("recalled") / len(kinds)
    print(f"{kinds.count('recalled')} of {len(kinds)} facts are recalled: {share:.1%}")
    assert share < RECALLED_LIMIT


# ---- against the specification table it was made from ------------------------------------------------------------

COLUMNS = {  # column -> the fact, and the factor to SI
    "num_sms_or_cus": ("num_sms", 1),
    "boost_clock_mhz": ("boost_clock_hz", 1e6),
    "tdp_w": ("tdp_w", 1),
    "dram_bw_gb_s": ("dram_bytes_per_s", 1e9),
    "l2_mb": ("l2_bytes", 2**20),
    "smem_per_sm_kb": ("shared_bytes_per_sm", 2**10),
    "regfile_per_sm_kb": ("register_bytes_per_sm", 2**10),
    "max_warps_per_sm": ("max_warps_per_sm", 1),
    "tf32_dense": ("tensor_flop_per_s.tf32", 1e12),
    "fp16_dense_tc": ("tensor_flop_per_s.fp16", 1e12),
    "bf16_dense": ("tensor_flop_per_s.bf16", 1e12),
    "fp8_dense": ("tensor_flop_per_s.fp8", 1e12),
    "int8_dense_tops": ("tensor_flop_per_s.int8", 1e12),
    "fp32_tflops": ("vector_flop_per_s.fp32", 1e12),
    "fp64_tflops": ("vector_flop_per_s.fp64", 1e12),
    "nvlink_gb_s_per_direction": ("link_bytes_per_s", 1e9),
    "pcie_gen": ("pcie_generation", 1),
}

JUSTIFIED = {  # (id, column) -> why the catalogue differs
    ("p4", "int8_dense_tops"): "dp4a on the vector units is no tensor rate",
    ("h20", "fp32_tflops"): "78 SMs cannot give the printed 44; 39.5 at 1.98 GHz",
    ("b300-sxm", "fp64_tflops"): "1.25 is 10 TFLOPS for eight, rounded",
    ("gb300", "fp64_tflops"): "1.39 is 100 TFLOPS for 72, rounded",
    ("gb10", "fp4_dense"): "500 is half of a rounded sparse figure; 475 at 2.418 GHz",
    ("gh200", "pcie_gen"): "the host link is NVLink-C2C",
    ("gb200", "pcie_gen"): "the host link is NVLink-C2C",
    ("gb300", "pcie_gen"): "the host link is NVLink-C2C",
}


@pytest.mark.data
def test_the_catalogue_agrees_with_the_specification_table():
    if "TILECAST_DATA" not in os.environ:
        pytest.skip("TILECAST_DATA is not set: no specification table to compare with")
    with (Path(os.environ["TILECAST_DATA"]) / "gpu_specs" / "gpu_specs.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    rows["mi250"] = rows.pop("mi250-gcd")  # the catalogue's MI250 is one die
    differing = set()
    for spec in map(gpu, REQUIRED):
        facts = spec.facts()
        fp4 = "nvfp4" if spec.vendor == "nvidia" else "mxfp4"
        for column, (fact, factor) in {**COLUMNS, "fp4_dense": (f"tensor_flop_per_s.{fp4}", 1e12)}.items():
            listed = rows[spec.id][column]
            if listed and facts.get(fact) != pytest.approx(float(listed) * factor, rel=0.03):
                differing.add((spec.id, column))
    assert differing == set(JUSTIFIED)
