"""Names of tuned files, against those that vLLM and SGLang ship for the GPUs of the catalogue."""

import os
import re
from pathlib import Path

import pytest

from tilecast import hardware
from tilecast.tuning.engine_files import FILE_DTYPES, file_name
from tilecast.tuning.search import Layer, gemm_layer

SHIPPED = Path(os.environ.get("TILECAST_DATA", "absent")) / "tuned_configs" / "tuned_configs.parquet"
PATTERN = re.compile(
    r"(E=(?P<experts>\d+),N=(?P<width>\d+)|N=(?P<n>\d+),K=(?P<k>\d+)),device_name=(?P<device>[^,]+?)(,dtype=(?P<dtype>\w+?))?"
    r"(?P<block>,block_shape=\[128, ?128\])?(?P<channel>,per_channel_quant=True)?(?P<down>_down)?\.json"
)
DTYPES = {written: dtype for dtype, written in reversed(FILE_DTYPES.items())}


def rebuilt(engine: str, file: str) -> str | None:
    """Our name of what a file's name says; None where it is of a GPU or a number format that is not ours."""
    found = PATTERN.fullmatch(file)
    devices = {spec.device_string.replace(" ", "_"): spec for spec in hardware.gpus() if spec.vendor == "nvidia"}
    if found is None or found["device"] not in devices:
        return None
    gpu, dtype = devices[found["device"]], DTYPES.get(found["dtype"] or "")
    if dtype is None or (found["block"] and found["dtype"] != "fp8_w8a8"):
        return None  # names of early releases (dtype=bf16, float8), and integers in blocks
    if found["n"]:
        layer = gemm_layer(int(found["n"]), int(found["k"]))
    else:
        layer = Layer(
            kernel="moe", num_experts=int(found["experts"]), topk=1, hidden_size=1024, inter_size=int(found["width"]),
            dtype="fp8_block" if found["block"] else dtype, per_channel=bool(found["channel"]),
        )  # fmt: skip
    return file_name(layer, gpu, engine, down=bool(found["down"]))


@pytest.mark.data
@pytest.mark.skipif(not SHIPPED.is_file(), reason="$TILECAST_DATA/tuned_configs is absent")
def test_every_shipped_file_of_a_known_gpu_and_format_has_the_name_we_give_it():
    import polars as pl

    table = pl.read_parquet(SHIPPED).filter(pl.col("op").is_in(["fused_moe", "w8a8_block_gemm"]))
    names = [(engine, file, rebuilt(engine, file)) for engine, file in table.select("engine", "file").unique().iter_rows()]
    known = [(file, ours) for _, file, ours in names if ours is not None]
    assert [pair for pair in known if pair[0] != pair[1]] == []
    assert len(known) > 500 and any("_down" in file for file, _ in known) and any("per_channel" in file for file, _ in known)


def test_a_name_is_rebuilt_and_one_of_another_gpu_is_not():
    assert rebuilt("vllm", "E=8,N=64,device_name=NVIDIA_H20.json") == "E=8,N=64,device_name=NVIDIA_H20.json"
    assert rebuilt("sglang", "E=8,N=64,device_name=NVIDIA_H2000.json") is None
