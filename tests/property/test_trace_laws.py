"""Laws of traces: whatever the bytes, a trace is read or refused in words; time is never lost or invented."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.made_trace import plain
from tilecast.diagnosis.diagnose import diagnose
from tilecast.diagnosis.timeline import covered, merged
from tilecast.errors import TilecastError

TEXT = json.dumps(plain(3).document()).encode()
PER_TEST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PER_TEST
@given(cut=st.integers(0, len(TEXT)))
def test_a_file_cut_anywhere_is_partial_or_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(TEXT[:cut])
    try:
        found = diagnose(path)
    except TilecastError:
        return
    assert bool(found.partial_because) == (cut < len(TEXT))
    assert 0 < found.num_kernels <= 6


@PER_TEST
@given(changes=st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 255)), min_size=1, max_size=4), packed=st.booleans())
def test_damaged_bytes_never_escape_as_another_error(tmp_path: Path, changes: list[tuple[int, int]], packed: bool) -> None:
    data = bytearray(gzip.compress(TEXT, mtime=0) if packed else TEXT)
    for place, value in changes:
        data[place % len(data)] = value
    path = tmp_path / "t.json"
    path.write_bytes(bytes(data))
    try:
        found = diagnose(path, gpu="h100-sxm")
    except TilecastError as problem:
        assert "\n" not in str(problem)
    else:
        assert found.gpu_time_s >= 0


@PER_TEST
@given(
    field=st.sampled_from(["ts", "dur", "name", "cat", "pid", "tid", "args", "ph"]),
    value=st.sampled_from([None, "x", -1, 1e300, float("inf"), [], {}, True, "", [[1]], {"a": {}}]),
    place=st.integers(0, 23),
)
def test_values_of_a_wrong_kind_are_left_out_or_refused(tmp_path: Path, field: str, value: object, place: int) -> None:
    document = plain(3).document()
    document["traceEvents"][place % len(document["traceEvents"])][field] = value
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    try:
        assert diagnose(path).num_kernels in (5, 6)
    except TilecastError as problem:
        assert "\n" not in str(problem)


ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "External id", "correlation", "grid", "bytes", "device")
ODD_LISTS = ([], [[]], [[0, 0], [0, 0]], [[-4, 4], [4, 4]], [["a"]], [[[1]]], [1, 2], [[1e9, 1e9]] * 2)


@PER_TEST
@given(name=st.sampled_from(ARGUMENTS), value=st.sampled_from([None, "x", -1, 1e300, {}, 2**80, *ODD_LISTS]), place=st.integers(0, 23))
def test_arguments_of_a_wrong_kind_leave_a_kernel_unpriced_at_worst(tmp_path: Path, name: str, value: object, place: int) -> None:
    document = plain(3).document()
    document["traceEvents"][place % len(document["traceEvents"])]["args"][name] = value
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    found = diagnose(path)
    assert found.num_kernels == 6
    assert sum(row.total_s for row in found.rows) == pytest.approx(150e-6)


@given(spans=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), min_size=1, max_size=30))
def test_a_union_of_intervals_is_no_longer_than_their_sum_and_covers_each(spans: list[tuple[float, float]]) -> None:
    start, length = np.array(sorted(spans)).T
    low, high = merged(start, start + length)
    assert (high - low).sum() <= length.sum() + 1e-9
    assert (high - low).sum() >= length.max() - 1e-9
    assert np.all(low[1:] > high[:-1])
    for begin, end in zip(start, start + length, strict=True):
        assert np.any((low <= begin) & (end <= high + 1e-12))


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10)), min_size=1, max_size=12),
    others=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10)), max_size=12),
)
def test_what_lies_inside_a_union_is_counted_moment_by_moment(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    start, length = np.array(spans, dtype=float).T
    begins, sizes = np.array(sorted(others), dtype=float).reshape(-1, 2).T
    low, high = merged(begins, begins + sizes)
    ticks = {moment for begin, size in others for moment in range(begin, begin + size)}
    expected = [sum(moment in ticks for moment in range(begin, begin + size)) for begin, size in spans]
    assert covered(start, start + length, low, high).tolist() == expected
