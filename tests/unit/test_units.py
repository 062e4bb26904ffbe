"""Text to SI and back: what each unit is worth, and what a person is shown."""

import pytest

from tilecast import units
from tilecast.errors import InvalidInput


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dram_bytes_per_s", "4.8 TB/s", 4.8e12),
        ("dram_bytes_per_s", "4.8e12", 4.8e12),
        ("latency_s", "293us", 293e-6),
        ("latency_s", "1.5 ms", 1.5e-3),
        ("l2_bytes", "50 MiB", 52_428_800),
        ("dram_bytes", "80GB", 80e9),
        ("num_sms", "144", 144),
        ("num_sms", "1_024", 1024),
        ("tdp_w", "0.7 kW", 700),
        ("tensor_flop_per_s", "989.4 TFLOP/s", 989.4e12),
        ("boost_clock_hz", "1.98 GHz", 1.98e9),
        ("share_fraction", "80 %", 0.8),
    ],
)
def test_text_with_a_unit_is_its_SI_value(name, text, value):
    assert units.parse(name, text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("dram_bytes_per_s", "4.8 GHz", r"unknown unit 'GHz'; allowed: .*TB/s"),
        ("num_sms", "144 SM", r"unknown unit 'SM'; it takes a plain number"),
        ("latency_s", "fast", r"latency_s = 'fast' is not a number"),
        ("latency_s", "", r"is not a number"),
        ("latency_s", "1e999", r"not a finite number"),
        ("latency_s", "nan", r"is not a number"),
    ],
)
def test_a_wrong_unit_names_the_value_and_what_is_allowed(name, text, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        units.parse(name, text)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("dram_bytes_per_s", 3.352e12, "3.35 TB/s"),
        ("tensor_flop_per_s", 989.4e12, "989 TFLOP/s"),
        ("tensor_flop_per_s", 0.9996e15, "1 PFLOP/s"),
        ("latency_s", 0.0213, "21.3 ms"),
        ("latency_s", 293e-6, "293 us"),
        ("latency_s", 3e-9, "3 ns"),
        ("latency_s", 4e-12, "0.004 ns"),
        ("l2_bytes", 52_428_800, "50 MiB"),
        ("tdp_w", 1000, "1000 W"),
        ("num_sms", 132, "132"),
        ("latency_s", 0, "0 s"),
    ],
)
def test_a_value_is_shown_with_three_digits_in_the_unit_a_person_would_say(name, value, text):
    assert units.human(name, value) == text


def test_an_interval_is_shown_in_the_unit_of_its_median():
    assert units.interval_s(0.0212, 0.0191, 0.0243) == "21.2 ms (19.1-24.3)"
