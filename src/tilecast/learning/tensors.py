"""Named arrays in one file, in the safetensors layout: a length, a JSON header, raw bytes. No pickle, no dependency."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilecast.errors import MissingData

DTYPES = {
    "F32": np.float32,
    "F64": np.float64,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
}
NAMES = {np.dtype(kind): name for name, kind in DTYPES.items()}
ADVICE = "reinstall tilecast, or run 'tilecast fit'"


def write(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))  # wide ones first, so that all are aligned
    offset = 0
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


def write_stated(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str], manifest: Mapping[str, Any]) -> None:
    """Weights and manifest, side by side; the manifest states the weights' hash."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix=".draft-", dir=path.parent) as draft:  # so that a failure leaves what was there
        weights = Path(draft) / path.name
        write(weights, arrays, metadata)
        text = json.dumps({**manifest, "sha256": file_digest(weights)}, indent=1, sort_keys=True) + "\n"
        weights.with_suffix(".json").write_text(text, encoding="utf-8")
        for written in (weights, weights.with_suffix(".json")):
            written.replace(path.parent / written.name)


def manifest_of(path: Path) -> dict[str, Any]:
    """The manifest beside the weights, which must state their hash."""
    manifest: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if manifest.get("sha256") != file_digest(path):
        raise MissingData(f"{path.name} does not have the hash its manifest states: {ADVICE}")
    return manifest


def file_digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        body = memoryview(content)[8 + length :]
        arrays = {
            name: np.frombuffer(body[entry["data_offsets"][0] : entry["data_offsets"][1]], DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise MissingData(f"{path} is damaged or no artifact ({problem}): {ADVICE}") from None
    return arrays, metadata
