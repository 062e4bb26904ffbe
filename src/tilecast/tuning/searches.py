"""Searches that others ran and published: problems, and which configurations came within 1 % of the best (extra `data`)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tilecast import hardware
from tilecast.datasets.sources.folder import catalogue_ids, data_folder, read_table
from tilecast.datasets.sources.pipeweave import GPUS
from tilecast.dtypes import quantisation
from tilecast.kernels.moe import Moe
from tilecast.tuning.defaults import searched_default
from tilecast.tuning.space import PARAMETERS, Space, feasible

SHAPE = ("E", "topk", "H", "N")
PROBLEM = ("gpu", "M", *SHAPE)
CONFIG = tuple(PARAMETERS.values())


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """One problem: the kernel, and which rows of the GPU's space were measured to be good."""

    gpu: str
    num_tokens: int
    shape: tuple[int, int, int, int]  # experts, topk, hidden size, inter size
    good: NDArray[np.int64]
    gain: float | None  # time of the default / time of the best, measured

    @property
    def kernel(self) -> Moe:
        experts, topk, hidden, inter = self.shape
        return Moe(
            num_tokens=self.num_tokens, hidden_size=hidden, inter_size=inter, num_experts=experts, topk=topk, moe_pass="w13",
            identity="triton",
        )  # fmt: skip

    @property
    def key(self) -> tuple[object, ...]:
        return (self.gpu, self.num_tokens, *self.shape)

    def default(self, space: Space) -> int:
        row = space.find(searched_default(self.num_tokens, self.shape[0]))
        assert row is not None, "the default lies in the space"
        return row


def table(file: str, columns: str) -> pl.DataFrame:
    root = data_folder("pipeweave")
    return catalogue_ids(read_table(root, file, set(columns.split())), GPUS, str(root / file))


def spaces(gpus: list[str]) -> dict[str, Space]:
    return {gpu: feasible(hardware.gpu(gpu), quantisation("bf16")) for gpu in gpus}


def searches() -> list[Searched]:
    """PipeWeave's exhaustive searches of the w13 pass, bf16, balanced routing: 288 problems on each of its GPUs."""
    kept = table("moe_dse_configs.parquet", f"{' '.join(PROBLEM)} {' '.join(CONFIG)} within_99").filter("within_99")
    summary = table("moe_dse_summary.parquet", f"{' '.join(PROBLEM)} speedup_vs_sglang").drop_nulls("speedup_vs_sglang")
    gains = {row[:-1]: row[-1] for row in summary.select(*PROBLEM, "speedup_vs_sglang").iter_rows()}
    known = spaces(kept["gpu"].unique().to_list())
    places = {gpu: _places(space) for gpu, space in known.items()}
    return list(_problems(kept, places, gains))


def _problems(
    kept: pl.DataFrame, places: dict[str, dict[tuple[int, ...], int]], gains: dict[tuple[object, ...], float]
) -> Iterator[Searched]:
    for key, rows in kept.sort(PROBLEM).group_by(PROBLEM, maintain_order=True):
        gpu, tokens, *shape = key
        found = [places[str(gpu)].get(config) for config in rows.select(CONFIG).iter_rows()]
        inside = np.array(sorted(row for row in found if row is not None), dtype=np.int64)
        experts, topk, hidden, inter = (int(str(size)) for size in shape)
        yield Searched(str(gpu), int(str(tokens)), (experts, topk, hidden, inter), inside, gains.get(key))


def _places(space: Space) -> dict[tuple[int, ...], int]:
    return {config: row for row, config in enumerate(zip(*(values.tolist() for values in space.columns().values()), strict=True))}
