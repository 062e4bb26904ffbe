"""Laws of what-if hardware: whatever is overridden, the result is as consistent as a catalogued GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilecast import hardware
from tilecast.hardware.spec import check_physics, with_overrides

gpus = st.sampled_from(hardware.gpu_ids()).map(hardware.gpu)
scales = st.floats(0.5, 2.0)


@given(gpus, scales, scales, scales)
def test_any_clock_sm_count_and_bandwidth_give_a_consistent_gpu(spec, clock, sms, bandwidth):
    num_sms = max(1, round(spec.num_sms * sms))
    what_if = with_overrides(
        spec,
        {
            "boost_clock_hz": spec.boost_clock_hz * clock,
            "num_sms": num_sms,
            "dram_bytes_per_s": min(1e14, spec.dram_bytes_per_s * bandwidth),
        }
        | ({"l2_bytes_per_s": spec.l2_bytes_per_s * 4} if spec.l2_bytes_per_s else {}),
    )
    check_physics(what_if)
    growth = clock * num_sms / spec.num_sms
    for dtype, peak in spec.tensor_flop_per_s.items():
        assert what_if.tensor_flop_per_s[dtype] == pytest.approx(peak * growth)


@given(gpus)
def test_overriding_a_fact_with_itself_changes_no_fact(spec):
    same = with_overrides(spec, {"num_sms": spec.num_sms, "boost_clock_hz": spec.boost_clock_hz})
    for fact, value in spec.facts().items():
        assert same.facts()[fact] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-12))


@given(gpus)
def test_no_override_is_the_same_gpu(spec):
    assert with_overrides(spec, {}) is spec
