"""The files vLLM and SGLang read tuned configurations from: their names, where they lie, and what is in them."""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.tuning.search import Config, Layer, Tuned

# What a file's name says of number formats; 16 bits go without saying.
FILE_DTYPES = {
    "bf16": "", "fp16": "", "fp8": "fp8_w8a8", "fp8_static": "fp8_w8a8", "fp8_block": "fp8_w8a8", "int8_wo": "int8_w8a16",
    "int4_wo": "int4_w4a16", "int8_sq": "int8_w8a8",
}  # fmt: skip
TRITON_VERSION = "3.5.1"  # of the SGLang release that this layout was read from


def file_dtype(dtype: str) -> str:
    if dtype not in FILE_DTYPES:
        raise InvalidInput(f"dtype = {dtype!r}: engines tune no Triton kernel for it; allowed: {', '.join(FILE_DTYPES)}")
    return FILE_DTYPES[dtype]


def device_name(gpu: GpuSpec, engine: str, kernel: str = "moe") -> str:
    """As the driver calls it, with underscores; vLLM reads one MoE file for the whole H200 family."""
    if not gpu.device_string:
        raise InvalidInput(
            f'{gpu.id} has no device string, and engines look files up by it: write device_string = "..." in the TOML file given to --gpu'
        )
    name = gpu.device_string.replace(" ", "_")
    return "NVIDIA_H200" if (engine, kernel) == ("vllm", "moe") and "H200" in name.split("_") else name


def file_name(layer: Layer, gpu: GpuSpec, engine: str, *, down: bool = False) -> str:
    sizes = f"N={layer.inter_size},K={layer.hidden_size}" if layer.kernel == "gemm" else f"E={layer.local_experts},N={layer.local_inter}"
    dtype = file_dtype(layer.dtype)
    blocks = "[128, 128]" if engine == "sglang" else "[128,128]"
    return (
        f"{sizes},device_name={device_name(gpu, engine, layer.kernel)}"
        + (f",dtype={dtype}" if dtype else "")
        + (f",block_shape={blocks}" if layer.dtype == "fp8_block" else "")
        + (",per_channel_quant=True" if layer.per_channel and engine == "sglang" else "")
        + ("_down" if down else "")
        + ".json"
    )


def check_version(triton_version: str | None, kernel: str) -> None:
    """SGLang reads the numbers in the names of its folders: another name there would stop it from finding any file."""
    if triton_version is None:
        return
    if kernel == "gemm":
        raise InvalidInput(f"--triton-version {triton_version}: engines keep one file of a product for all versions")
    if not re.fullmatch(r"\d+(\.\d+){1,3}", triton_version):
        raise InvalidInput(f"--triton-version {triton_version!r} must be numbers and dots, such as {TRITON_VERSION}")


def contents(tuned: Tuned, triton_version: str | None = None) -> dict[str, str]:
    """Path below the folder -> text. Keys are token counts; SGLang has a folder for each Triton version, and a file for the second pass."""
    check_version(triton_version, tuned.layer.kernel)
    name = file_name(tuned.layer, tuned.gpu, tuned.engine)
    table: dict[str, object] = {str(choice.num_tokens): dict(choice.config) for choice in tuned.choices}
    if tuned.engine == "vllm" or tuned.layer.kernel == "gemm":
        if triton_version:
            table = {"triton_version": triton_version, **table}
        return {name: _text(table)}
    folder = f"configs/triton_{(triton_version or TRITON_VERSION).replace('.', '_')}"
    down: dict[str, Config] = {str(choice.num_tokens): choice.down_config for choice in tuned.choices if choice.down_config is not None}
    files = {f"{folder}/{name}": _text(table)}
    if down:
        second = file_name(tuned.layer, tuned.gpu, tuned.engine, down=True)
        files[f"{folder}/{second}"] = _text({tokens: dict(config) for tokens, config in down.items()})
    return files


def _text(table: Mapping[str, object]) -> str:
    return json.dumps(table, indent=4) + "\n"


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """All of them or none: each is written under another name first, then they are renamed."""
    drafts: list[tuple[Path, Path]] = []
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(21, "is a directory")
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".partial-", delete=False) as file:
                drafts.append((Path(file.name), path))
                file.write(text)
        for draft, path in drafts:
            draft.chmod(0o644)
            draft.replace(path)
    except OSError as problem:
        raise InvalidInput(f"--out {str(folder)!r} cannot be written: {(problem.strerror or str(problem)).lower()}") from None
    finally:
        for draft, _ in drafts:
            draft.unlink(missing_ok=True)
    return [path for _, path in drafts]
