"""Why one configuration wins: its account beside the engine's default, the runners-up, and those somebody asks about."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilecast.errors import InvalidInput
from tilecast.hardware import GpuSpec
from tilecast.tuning.search import Config, Layer, ranked, shipped_ranking, space_for, tune
from tilecast.tuning.space import CHOICES, PARAMETERS

RUNNERS_UP = 3


def words(config: Mapping[str, int]) -> str:
    m, n, k, group, warps, stages = (config[name] for name in PARAMETERS.values())
    return f"{m}x{n}x{k} g{group} w{warps} s{stages}"


def explain(
    layer: Layer,
    gpu: GpuSpec,
    *,
    engine: str = "sglang",
    num_tokens: int = 64,
    configs: Sequence[Mapping[str, int]] = (),
    choices: Mapping[str, Sequence[int]] = CHOICES,
    moe_pass: str = "w13",
) -> list[dict[str, Any]]:
    """Waves, padding and traffic of one pass: the choice first, then the default, the runners-up and `configs`."""
    ranking, space = shipped_ranking(), space_for(layer, gpu, choices)
    tuned = tune(layer, gpu, engine=engine, tokens=(num_tokens,), shortlist=1 + RUNNERS_UP, choices=choices, ranking=ranking)
    choice = tuned.choices[0]
    is_second = moe_pass == "w2" and choice.down_config is not None
    best, others = (choice.down_config, choice.down_shortlist) if is_second else (choice.config, choice.shortlist)
    compared: dict[str, Config] = {"choice": best or choice.config, "default": choice.default}
    compared |= {f"runner-up {number}": config for number, config in enumerate(others[1:], start=1)}
    compared |= {f"given {number}": config for number, config in enumerate(configs, start=1)}
    found = ranked(layer.launch(num_tokens, moe_pass), gpu, space, ranking)
    order = np.argsort(np.argsort(-found.logit, kind="stable"), kind="stable")
    records: list[dict[str, Any]] = []
    for name, config in compared.items():
        row = space.find(config)
        if row is None:
            if name.startswith("given"):
                raise InvalidInput(f"--config {words(config)} is not in the space: it does not fit {gpu.id}, or --only left it out")
            continue
        one = found.account
        records.append({
            "what": name, "config": words(config), "rank": int(order[row]) + 1, "num_tasks": float(one.tasks[row]),
            "busy_sms_fraction": float(min(one.tasks[row] / gpu.num_sms, 1.0)),
            "blocks_per_sm": float(one.resident[row]), "waves": float(one.waves[row]), "tail_fraction": float(one.tail[row]),
            "padding_fraction": float(1 - 1 / one.padding[row]), "l2_bytes": float(one.l2_bytes[row]),
            "dram_bytes": float(one.dram_bytes[row]), "analytic_s": float(one.analytic_s[row]),
        })  # fmt: skip
    return records
