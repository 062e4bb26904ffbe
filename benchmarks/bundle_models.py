"""Write workloads/models/bundled.json: the facts we use of the models under $TILECAST_DATA, one line each, under config.json's names.

    TILECAST_DATA=... python -m benchmarks.bundle_models

A field stays only if the model reads differently without it. Of models that no architecture here reads, only what says why is kept.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tilecast.errors import InvalidInput
from tilecast.workloads.architectures import architectures, read_config
from tilecast.workloads.architectures.base import TRAITS, text_part
from tilecast.workloads.model import BUNDLE, FOLDER, ModelConfig
from tilecast.workloads.quantisation import read_precision

FILES = "model_configs"
# Models of NeuSight's table by the id they have elsewhere; the GPT-3 shapes were never published as checkpoints.
TABLE_IDS = {
    "bert": "google-bert/bert-base-uncased", "bert_large": "google-bert/bert-large-uncased", "gpt2_med": "openai-community/gpt2-medium",
    "gpt2_large": "openai-community/gpt2-large", "gpt2_xl": "openai-community/gpt2-xl", "gpt3_xl": "openai/gpt3-xl",
    "gpt3_27": "openai/gpt3-2.7b", "gpt3_67": "openai/gpt3-6.7b", "gpt3_13": "openai/gpt3-13b", "opt_13": "facebook/opt-1.3b",
    "switchxl4": "google/switch-xl-4",
}  # fmt: skip
ALSO = {  # ids with the same facts
    "MiniMaxAI/MiniMax-M2.5": ["MiniMaxAI/MiniMax-M2"],
    "Qwen/Qwen3-30B-A3B": ["Qwen/Qwen3-30B-A3B-Base"],
    "deepseek-ai/DeepSeek-V3": ["deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3.1"],
    "deepseek-ai/DeepSeek-R1": ["deepseek-ai/DeepSeek-R1-0528"],
    "mistralai/Mixtral-8x7B-v0.1": ["mistralai/Mixtral-8x7B-Instruct-v0.1"],
}


def main() -> None:
    root = Path(os.environ.get("TILECAST_DATA", ""))
    if not (root / FILES).is_dir():
        sys.exit(f"no folder {root / FILES}: set TILECAST_DATA")
    by_hand = {path.stem.replace("--", "/", 1) for path in FOLDER.glob("*.toml")}
    entries = {id: compact(id, table) for id, table in sources(root) if id not in by_hand}
    lines = ",\n".join(f"{json.dumps(id)}: {json.dumps(entry)}" for id, entry in sorted(entries.items()))
    (FOLDER / BUNDLE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(
        f"{len(entries)} models, {sum(entry['architectures'][0] in architectures() for entry in entries.values())} of known architectures"
    )


def sources(root: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted((root / FILES).glob("*_config.json")):
        if path.name.endswith("_hf_quant_config.json"):
            continue
        table = json.loads(path.read_text(encoding="utf-8"))
        beside = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
        if beside.exists() and not table.get("quantization_config"):
            table["quantization_config"] = {"quant_method": "modelopt", **json.loads(beside.read_text(encoding="utf-8"))["quantization"]}
        yield path.name.removesuffix("_config.json").replace("--", "/", 1), table
    import polars

    for row in polars.read_parquet(root / "neusight/model_configs.parquet").iter_rows(named=True):
        if row["model"] in TABLE_IDS:
            yield TABLE_IDS[row["model"]], json.loads(row["config_json"])


def compact(id: str, table: Mapping[str, Any]) -> dict[str, Any]:
    name = table["architectures"][0]
    text = dict(text_part(table)) | {"architectures": [name]}
    if name not in architectures():
        traits = [next((field for field in fields if text.get(field)), None) for fields in TRAITS.values()]
        return {"architectures": [name], **{field: 1 for field in traits if field}}
    if text.get("quantization_config"):
        text["quantization_config"] = short_quantisation(text)
    whole = facts(text)
    for field in [field for field in text if field != "architectures"]:
        less = {key: value for key, value in text.items() if key != field}
        if facts(less) == whole:
            text = less
    also: dict[str, Any] = {"also": ALSO[id]} if id in ALSO else {}
    return also | text | ({"multimodal": True} if table.get("text_config") else {})


def facts(table: Mapping[str, Any]) -> ModelConfig | None:
    """The model a table is read as; None where it cannot be read."""
    try:
        return replace(read_config(table, "config"), notes=())
    except InvalidInput:
        return None


def short_quantisation(text: Mapping[str, Any]) -> dict[str, Any]:
    """The formats a quantization_config comes to, instead of its lists of modules."""
    try:
        precision, kv_dtype = read_precision(text, int(text["num_hidden_layers"]))
    except InvalidInput:
        return {"quant_algo": text["quantization_config"].get("quant_algo")}
    formats = {kind: held for kind, held in asdict(precision).items() if held}
    return {"formats": formats, **({"kv_dtype": kv_dtype} if kv_dtype else {})}


if __name__ == "__main__":
    main()
