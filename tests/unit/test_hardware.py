"""Names, files and what-ifs: how a GpuSpec comes to be, and what is refused."""

from pathlib import Path

import pytest

from tilecast import hardware, predict_kernel
from tilecast.errors import MissingData, SpecError, UnknownName
from tilecast.execution.cache import hit_fraction
from tilecast.hardware.catalogue import GPU_FOLDER
from tilecast.kernels.gemm import Gemm

H100 = (GPU_FOLDER / "h100_sxm.toml").read_text()


def user_file(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def changed(old: str, new: str) -> str:
    assert old in H100
    return H100.replace(old, new, 1)


def test_a_misspelt_gpu_gets_the_nearest_names():
    with pytest.raises(UnknownName, match=r"unknown GPU 'h100-sxn': did you mean h100-sxm"):
        hardware.gpu("h100-sxn")


def test_a_users_own_file_is_a_gpu_like_any_other(tmp_path):
    spec = hardware.gpu(user_file(tmp_path, changed("num_sms = 132", "num_sms = 131")))
    assert (spec.id, spec.num_sms) == ("mine", 131)


def test_a_users_file_may_state_only_what_differs_from_a_base(tmp_path):
    spec = hardware.gpu(user_file(tmp_path, 'base = "h100-sxm"\nname = "H100 with faster memory"\ndram_bytes_per_s = "4.8 TB/s"\n'))
    assert spec.name == "H100 with faster memory"
    assert spec.dram_bytes_per_s == 4.8e12
    assert spec.num_sms == hardware.gpu("h100-sxm").num_sms
    assert dict(spec.overrides) == {"dram_bytes_per_s": 4.8e12}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("num_sms = 132", "num_sms = ", r"mine\.toml is not valid TOML"),
        ("num_sms = 132", "num_sms = -132", r"num_sms = -132 is outside 1 to 4096"),
        ("num_sms = 132", "num_sms = 132.5", r"num_sms = 132\.5 must be a whole number"),
        ("num_sms = 132", "num_sms = true", r"num_sms = True is not a number"),
        ("num_sms = 132\n", "", r"num_sms is missing"),
        ("num_sms = 132", "num_sms = 100", r"tensor_flop_per_s\.\w+ = .* contradicts 100 SMs"),
        ("dram_bytes_per_s = 3.352e12", "dram_gb_per_s = 3352", r"unknown field 'dram_gb_per_s' .*did you mean dram_bytes_per_s"),
        ("dram_bytes_per_s = 3.352e12", 'dram_bytes_per_s = "3352 GHz"', r"unknown unit 'GHz'; allowed"),
        ("dram_bytes_per_s = 3.352e12", "dram_bytes_per_s = 4.8e12", r"dram_bytes_per_s = 4\.8e\+12 contradicts 5120 bit"),
        ("bf16 = 989.4e12", "bf16 = 1978.9e12", r"bf16 = .* contradicts .*looks like a sparse figure"),
        ("bf16 = 4096", "bf17 = 4096", r"tensor_flop_per_clock_per_sm\.bf17: unknown dtype"),
        ("l2_bytes_per_s = 8.82e12", "l2_bytes_per_s = 1e12", r"dram_bytes_per_s = .* is above l2_bytes_per_s"),
        ('vendor = "nvidia"', "vendor = 3", r"vendor = 3 must be text"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_file_field_and_value(tmp_path, old, new, complaint):
    with pytest.raises(SpecError, match=complaint) as caught:
        hardware.gpu(user_file(tmp_path, changed(old, new)))
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_doubled_rate_on_a_known_target_is_called_sparse(tmp_path):
    text = H100
    for sparse, dense in (("1978.9e12", "989.4e12"), ("8192", "4096")):
        text = text.replace(f"bf16 = {dense}", f"bf16 = {sparse}")
    with pytest.raises(SpecError, match=r"above sm_90's dense 4096; it looks like a sparse figure"):
        hardware.gpu(user_file(tmp_path, text))


def test_a_fact_without_a_source_is_refused(tmp_path):
    lines = H100.split("[sources]")
    sources = "\n".join(line for line in lines[1].splitlines() if not line.startswith("tdp_w"))
    with pytest.raises(SpecError, match=r"sources\.tdp_w is missing"):
        hardware.gpu(user_file(tmp_path, lines[0] + "[sources]" + sources))


def test_a_missing_file_is_missing_data(tmp_path):
    with pytest.raises(MissingData, match="no file"):
        hardware.gpu(str(tmp_path / "none.toml"))


def test_an_absent_rate_is_an_error_and_names_what_exists():
    with pytest.raises(SpecError, match=r"a100-sxm-80gb lists no tensor rate for 'fp8'; it has .*bf16"):
        hardware.gpu("a100-sxm-80gb").tensor_rate("fp8")


def test_the_bound_rate_assumes_the_highest_clock():
    # 132 SMs x 4096 FLOP/clk x 1.98 GHz = 1070.5 TFLOP/s, while the data sheet's 989.4 assumes 1.83 GHz
    assert hardware.gpu("h100-sxm").highest_matrix_rate("bf16") == pytest.approx(1070.5e12, rel=1e-4)


def test_the_ridge_point_is_peak_over_bandwidth():
    # 989.4e12 / 3.352e12 = 295.2 FLOP per byte
    assert hardware.gpu("h100-sxm").ridge_flop_per_byte("bf16") == pytest.approx(295.2, abs=0.1)


class TestOverrides:
    base = hardware.gpu("h100-sxm")

    def test_more_sms_raise_every_peak_alike(self):
        spec = hardware.gpu("h100-sxm", {"num_sms": 144})
        for dtype, peak in self.base.tensor_flop_per_s.items():
            assert spec.tensor_flop_per_s[dtype] == pytest.approx(peak * 144 / 132)
        assert spec.vector_flop_per_s["fp32"] == pytest.approx(self.base.vector_flop_per_s["fp32"] * 144 / 132)
        assert spec.dram_bytes_per_s == self.base.dram_bytes_per_s

    def test_the_tensor_clock_follows_the_boost_clock(self):
        spec = hardware.gpu("h100-sxm", {"boost_clock_hz": "2.376 GHz"})  # 1.2 x 1.98
        assert spec.tensor_clock_hz == pytest.approx(1.2 * 1.83e9)
        assert spec.tensor_flop_per_s["bf16"] == pytest.approx(1.2 * self.base.tensor_flop_per_s["bf16"])

    def test_an_overridden_peak_stays_and_its_per_clock_rate_follows(self):
        spec = hardware.gpu("h100-sxm", {"tensor_flop_per_s.bf16": 2e15, "num_sms": 264})
        assert spec.tensor_flop_per_s["bf16"] == 2e15
        assert spec.tensor_flop_per_clock_per_sm["bf16"] == pytest.approx(2e15 / (264 * 1.83e9))

    def test_a_dtype_the_gpu_lacks_can_be_added(self):
        spec = hardware.gpu("h100-sxm", {"tensor_flop_per_clock_per_sm.nvfp4": 16384})
        assert spec.tensor_rate("nvfp4") == pytest.approx(132 * 16384 * 1.83e9)

    def test_overrides_are_recorded_with_their_source(self):
        spec = hardware.gpu("h100-sxm", {"num_sms": 144})
        assert dict(spec.overrides) == {"num_sms": 144}
        assert spec.source("num_sms").kind == "derived"

    @pytest.mark.parametrize(
        ("fact", "value", "complaint"),
        [
            ("num_sm", 144, r"unknown field 'num_sm' .*did you mean num_sms"),
            ("num_sms", "many", r"num_sms = 'many' is not a number"),
            ("num_sms", -1, r"outside 1 to 4096"),
            ("tensor_flop_per_s", 1e15, r"needs a dtype: tensor_flop_per_s\.\w+=\.\.\."),
            ("tensor_flop_per_s.bf17", 1e15, r"unknown dtype 'bf17'"),
            ("dram_bytes_per_s", "4.8 GHz", r"unknown unit 'GHz'"),
            ("l2_bytes", 1 << 31, None),
            ("shared_bytes_per_block", 1 << 20, r"shared_bytes_per_block = .* is above shared_bytes_per_sm"),
        ],
    )
    def test_a_wrong_override_is_refused_with_what_is_allowed(self, fact, value, complaint):
        if complaint is None:
            assert hardware.gpu("h100-sxm", {fact: value}).l2_bytes == value
        else:
            with pytest.raises(SpecError, match=complaint):
                hardware.gpu("h100-sxm", {fact: value})


def test_what_all_sms_read_lies_in_both_halves_of_a_partitioned_l2():
    h100, l40s = hardware.gpu("h100-sxm"), hardware.gpu("l40s")
    assert h100.l2_partitions == 2 and l40s.l2_partitions == 1
    most = 0.8 * h100.l2_bytes
    assert hit_fraction(most, h100) == 0.0 and hit_fraction(most, h100, same_sm=True) == 1.0
    assert hit_fraction(0.8 * l40s.l2_bytes, l40s) == 1.0


@pytest.mark.parametrize("base", ["h100-sxm", "rtx-6000-ada", "mi300x"])  # measured, with a measured sibling, with none
@pytest.mark.parametrize("factor", [1.2, 2.2])
def test_a_what_if_part_is_the_same_part_from_a_file_and_from_overrides(tmp_path: Path, base: str, factor: float) -> None:
    spec = hardware.gpu(base)
    changes = {"dram_bytes_per_s": factor * spec.dram_bytes_per_s, "num_sms": spec.num_sms + 8}
    (tmp_path / "wide.toml").write_text(f'base = "{base}"\n' + "".join(f"{fact} = {value!r}\n" for fact, value in changes.items()))
    (tmp_path / "wider.toml").write_text(f'base = "{tmp_path / "wide.toml"}"\n')
    launch = Gemm(m=[1, 64, 4096], n=5120, k=5120)
    expected = predict_kernel(launch, base, overrides=changes)
    for file in ("wide.toml", "wider.toml"):
        found = predict_kernel(launch, str(tmp_path / file))
        assert hardware.as_catalogued(found.gpu) is spec
        for name in ("median_s", "low_s", "high_s", "bound_s", "analytic_s"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)
        assert found.basis.tolist() == expected.basis.tolist()
    assert "base" not in spec.facts() and spec.base == ""


def test_products_of_16_bits_run_in_fp32_lanes_where_these_are_faster() -> None:
    """P4 has one fp16 lane for 64 of fp32: cuBLAS reads fp16 and multiplies in fp32, so fp16's own rate bounds nothing."""
    p4, p100 = hardware.gpu("p4"), hardware.gpu("p100-pcie-16gb")
    assert p4.vector_rate("fp16") == pytest.approx(p4.vector_rate("fp32") / 64, rel=0.01)
    assert p4.matrix_rate("fp16") == p4.matrix_rate("fp32")
    assert p100.matrix_rate("fp16") == p100.vector_rate("fp16") > p100.vector_rate("fp32")
    half, single = (predict_kernel(Gemm(m=2048, n=2048, k=2048, dtype=dtype), "p4") for dtype in ("fp16", "fp32"))
    # 2 x 2048^3 FLOP on 20 SMs x 256 FLOP per clock
    assert half.bound_s[0] == pytest.approx(2 * 2048**3 / (p4.num_sms * 256 * p4.highest_clock_hz), rel=1e-6)
    assert half.bound_s[0] == single.bound_s[0]
    assert half.analytic_s[0] <= single.analytic_s[0]
