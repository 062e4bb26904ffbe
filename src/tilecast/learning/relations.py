"""Sizes that act together: products and ratios trees would need many questions for, and how full the last round of usual tiles is."""

from collections.abc import Sequence
from functools import cache
from typing import Any

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


def relations(family: str, names: tuple[str, ...], counts: Sequence[Any], log2_sizes: Sequence[Any], gpu: GpuSpec) -> list[Any]:
    """R numbers or arrays (L,) from the sizes named by `names`, each at least one, and their logarithms."""
    found = []
    for first, others, below in _products(family, names):
        product = log2_sizes[first]
        for place in others:
            product = product + log2_sizes[place]
        for place in below:
            product = product - log2_sizes[place]
        found.append(product)
    cuts, tiles = _tiles(family, names)
    pieces = [-(-counts[place] // size) for place, size in cuts]  # rounded up
    num_sms = float(gpu.num_sms)
    for first, others in tiles:
        number = pieces[first]
        for cut in others:
            number = number * pieces[cut]
        found.append(-(-number // num_sms) * num_sms / number)
    return found


@cache
def _products(family: str, names: tuple[str, ...]) -> list[tuple[int, list[int], list[int]]]:
    """Which size is multiplied by which others, and by which these are divided."""
    sides = [[[names.index(name) for name in side.split()] for side in text.partition("/")[::2]] for text in PRODUCTS[family]]
    return [(first, others, below) for (first, *others), below in sides]


@cache
def _tiles(family: str, names: tuple[str, ...]) -> tuple[list[tuple[int, float]], list[tuple[int, list[int]]]]:
    """The different cuts, each of a size and into pieces of what length; and which of them make each tile: a first one, and others."""
    named, tiles = ROUNDS.get(family, ((), ()))
    made = [[(names.index(name), float(size)) for name, size in zip(named, tile, strict=True)] for tile in tiles]
    cuts = list(dict.fromkeys(cut for tile in made for cut in tile))
    return cuts, [(cuts.index(first), [cuts.index(cut) for cut in others]) for first, *others in made]
