"""Laws of the unit conversions."""

from hypothesis import given
from hypothesis import strategies as st

from tilecast import units

names_with_units = [(ending, unit) for ending, table in units.UNITS.items() for unit in table]


@given(st.sampled_from(names_with_units), st.floats(1e-3, 1e6))
def test_a_unit_and_its_factor_round_trip(name_and_unit, number):
    ending, unit = name_and_unit
    value = units.parse("x" + ending, f"{number!r}{unit}")
    assert abs(value / units.UNITS[ending][unit] - number) <= 1e-9 * number


@given(st.sampled_from(["_bytes_per_s", "_flop_per_s", "_hz", "_bytes", "_s"]), st.floats(1e-9, 1e17))
def test_what_is_shown_reads_back_within_its_three_digits(ending, value):
    shown = units.human("x" + ending, value)
    assert abs(units.parse("x" + ending, shown) / value - 1) < 0.006


@given(st.floats(1e-12, 1e12), st.integers(1, 6))
def test_significant_digits_never_move_a_value_by_more_than_half_a_digit(value, digits):
    assert abs(float(units.significant(value, digits)) / value - 1) <= 0.5 * 10.0 ** (1 - digits) * 1.0001
