"""The weight file: any array survives it, its layout is that of safetensors, and a damaged one is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilecast.errors import MissingData
from tilecast.learning import ceilings, ranking, tensors
from tilecast.learning.manifests import FOLDER


def refusal(path: Path) -> str:
    with pytest.raises(MissingData) as caught:
        tensors.read(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(path) in sentence
    return sentence


def file_of(path: Path, header: Any, body: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


@pytest.mark.parametrize("kind", list(tensors.DTYPES.values()), ids=list(tensors.DTYPES))
def test_every_dtype_survives(kind: Any, tmp_path: Path) -> None:
    arrays = {
        "plain": np.arange(-6, 6).reshape(3, 4).astype(kind),
        "transposed": np.arange(6).reshape(2, 3).astype(kind).T,
        "empty": np.zeros((0, 5), kind),
        "scalar": np.array(7, kind),
    }
    tensors.write(tmp_path / "a.safetensors", arrays, {"schema": "test/1", "text": "µ \n"})
    found, metadata = tensors.read(tmp_path / "a.safetensors")
    assert metadata == {"schema": "test/1", "text": "µ \n"}
    assert list(found) == sorted(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_extreme_floats_keep_their_bits(tmp_path: Path) -> None:
    values = np.array([np.inf, -np.inf, np.nan, -0.0, 5e-324, 1.7e308])
    tensors.write(tmp_path / "a.safetensors", {"values": values}, {})
    assert tensors.read(tmp_path / "a.safetensors")[0]["values"].tobytes() == values.tobytes()


def test_the_layout_is_a_length_a_json_header_and_the_bytes_it_points_to(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors.write(path, {"b": np.array([1, 2, 3], np.int32), "a": np.array([[0.5], [2.0]], np.float64)}, {"schema": "test/1"})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0  # the data begin aligned
    header = json.loads(content[8 : 8 + length])
    assert header == {
        "__metadata__": {"schema": "test/1"},
        "a": {"dtype": "F64", "shape": [2, 1], "data_offsets": [0, 16]},  # wide ones first, so that all are aligned
        "b": {"dtype": "I32", "shape": [3], "data_offsets": [16, 28]},
    }
    body = content[8 + length :]
    assert len(body) == 28  # no gap, nothing behind
    assert np.frombuffer(body[:16], "<f8").tolist() == [0.5, 2.0]
    assert body[16:] == b"\1\0\0\0\2\0\0\0\3\0\0\0"


def test_the_same_arrays_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tensors.write(tmp_path / name, {"x": np.arange(5, dtype=np.int64)}, {"two": "2", "one": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("kept", [0, 4, 8, 40, -1])
def test_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors.write(path, {"x": np.arange(10, dtype=np.float32)}, {"schema": "test/1"})
    path.write_bytes(path.read_bytes()[:kept])
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("content", [b"garbage" * 40, b"\xff" * 64, b"\0" * 64, (2).to_bytes(8, "little") + b"{}"[:1]])
def test_garbage_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F32", "shape": [1]}},
        {"x": {"shape": [1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "data_offsets": [0, 4]}},
        {"x": {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": []}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": None}},
        {"x": 5},
        [],
        5,
        None,
    ],
    ids=lambda header: json.dumps(header),
)
def test_a_header_that_lacks_a_key_or_contradicts_itself_is_refused(header: Any, tmp_path: Path) -> None:
    refusal(file_of(tmp_path / "a.safetensors", header, b"\0" * 4))


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refusal(tmp_path / "absent.safetensors")
    refusal(tmp_path)


@pytest.mark.parametrize(("name", "read"), [("ceiling", ceilings.read), ("moe_tuning", ranking.read)])
def test_one_bit_of_what_ships_besides_corrections_is_noticed(name: str, read: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.safetensors"
    content = (FOLDER / path.name).read_bytes()
    path.with_suffix(".json").write_bytes((FOLDER / f"{name}.json").read_bytes())
    path.write_bytes(content)
    assert read(path)
    read.cache_clear()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(MissingData, match=r"does not have the hash its manifest states: reinstall tilecast, or run 'tilecast fit'"):
        read(path)
    path.with_suffix(".json").write_text("[]")
    with pytest.raises(MissingData, match="damaged or of another version"):
        read(path)
