"""Sizes that act together: products and ratios trees would need many questions for, and how full the last round of usual tiles is."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilecast.hardware import GpuSpec

# Products of sizes, over a product after the slash.
PRODUCTS = {
    "gemm": ("m n", "n k", "m k", "n / k"),
    "attention_prefill": ("num_heads / num_kv_heads", "batch num_heads q_len", "batch num_kv_heads kv_len", "kv_len / q_len"),
    "attention_decode": ("num_heads / num_kv_heads", "batch num_heads q_len", "batch num_kv_heads kv_len", "batch num_kv_heads"),
    "mla_prefill": ("batch num_heads", "batch num_heads q_len", "batch kv_len", "kv_len / q_len"),
    "mla_decode": ("batch num_heads", "batch num_heads q_len", "batch kv_len"),
    "moe": (
        "num_tokens topk / num_experts",
        "num_tokens topk",
        "inter_size / tp",
        "num_experts / ep",
        "hidden_size inter_size num_experts / tp ep",
    ),
}
# Tasks of the sizes named in front, at these tiles: one SM's rounds, rounded up, over what they hold.
ROUNDS = {
    "gemm": (("m", "n"), ((16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))),
    "attention_prefill": (("batch", "num_heads", "q_len"), ((1, 1, 64), (1, 1, 128))),
    "attention_decode": (("batch", "num_heads"), ((1, 1),)),
}


def relation_names(family: str) -> list[str]:
    named, tiles = ROUNDS.get(family, ((), ()))
    return [*(f"log2 {text}" for text in PRODUCTS[family]), *(f"rounds of {' '.join(named)} by {tile}" for tile in tiles)]


def relations(
    family: str, names: tuple[str, ...], counts: NDArray[np.float64], log2_sizes: NDArray[np.float64], gpu: GpuSpec
) -> NDArray[np.float64]:
    """(R, L) from the sizes (S, L) named by `names`, each at least one; or (R,) from those of a lone launch, (S,)."""
    products = _weights(family, names) @ log2_sizes
    if family not in ROUNDS:
        return products
    rows, tiles = _tiles(family, names)
    pieces = np.ceil(counts.take(rows, axis=0) / (tiles if counts.ndim == 1 else tiles[..., None]))
    rounds = np.multiply.reduce(pieces) / gpu.num_sms
    return np.concatenate([products, np.ceil(rounds) / rounds])


@cache
def _weights(family: str, names: tuple[str, ...]) -> NDArray[np.float64]:
    weights = np.zeros((len(PRODUCTS[family]), len(names)))
    for row, text in enumerate(PRODUCTS[family]):
        above, _, below = text.partition("/")
        for name in above.split():
            weights[row, names.index(name)] += 1.0
        for name in below.split():
            weights[row, names.index(name)] -= 1.0
    return weights


@cache
def _tiles(family: str, names: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which rows of the sizes are cut, for every tile the same, and into pieces of what size: both (D, T)."""
    named, tiles = ROUNDS[family]
    rows = np.array([names.index(name) for name in named])
    return np.repeat(rows[:, None], len(tiles), axis=1), np.array(tiles, dtype=np.float64).T.copy()
