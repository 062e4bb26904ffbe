"""Products, ratios and rounds of sizes, worked by hand."""

import numpy as np
import pytest

from tilecast import hardware
from tilecast.execution import Protocol
from tilecast.kernels.base import priced
from tilecast.kernels.gemm import Gemm
from tilecast.learning.features import SIZES, launches, number_names
from tilecast.learning.relations import PRODUCTS, relation_names, relations

H100 = hardware.gpu("h100-sxm")  # 132 SMs


def of(family: str, **sizes: float) -> dict[str, float]:
    values = [sizes.get(name, 1.0) for name in SIZES[family]]
    alone = relations(family, SIZES[family], values, np.log2(values).tolist(), H100)
    arrays = [np.array([1.0, value]) for value in values]
    many = relations(family, SIZES[family], arrays, [np.log2(each) for each in arrays], H100)
    assert alone == [each[1] for each in many]  # a launch is the same by itself and among others
    return dict(zip(relation_names(family), alone, strict=True))


def test_products_add_logarithms_and_ratios_subtract_them() -> None:
    found = of("gemm", m=64, n=4096, k=1024)
    assert (found["log2 m n"], found["log2 n k"], found["log2 m k"], found["log2 n / k"]) == (18, 22, 16, 2)
    shares = of("moe", num_tokens=64, topk=8, num_experts=128, inter_size=2048, tp=4)
    assert (shares["log2 num_tokens topk / num_experts"], shares["log2 inter_size / tp"]) == (2, 9)


def test_rounds_say_how_much_of_the_last_one_is_empty() -> None:
    # 128 x 128 tiles of 4096 x 4096 are 1024: 7.76 rounds on 132 SMs, so 8 are started
    assert of("gemm", m=4096, n=4096)["rounds of m n by (128, 128)"] == pytest.approx(8 * 132 / 1024)
    # ragged edges count as whole tiles: 2 x 1 of them, one round that uses 2 SMs
    assert of("gemm", m=129, n=7)["rounds of m n by (128, 128)"] == pytest.approx(132 / 2)
    assert of("attention_prefill", batch=2, num_heads=32, q_len=1000)["rounds of batch num_heads q_len by (1, 1, 128)"] == pytest.approx(
        4 * 132 / (2 * 32 * 8)
    )


@pytest.mark.parametrize("family", SIZES)
def test_every_family_has_relations_of_sizes_it_has(family: str) -> None:
    words = {word for text in PRODUCTS[family] for word in text.replace("/", " ").split()}
    assert words <= set(SIZES[family])
    assert number_names(family)[-len(relation_names(family)) :] == relation_names(family)
    assert all(np.isfinite(list(of(family).values())))


def test_a_launch_is_described_alike_however_it_is_timed() -> None:
    small, cold, warm = Gemm(m=256, n=2048, k=2048), Protocol("profiler", "cold"), Protocol("graph", "warm")
    assert priced(small, H100, warm).analytic_s != priced(small, H100, cold).analytic_s
    one, other = (launches(small, H100, priced(small, H100, timing), timing, "sglang") for timing in (cold, warm))
    assert one.numbers.tolist() == other.numbers.tolist() and one.group.tolist() == other.group.tolist()


@pytest.mark.parametrize(
    ("gpu", "asynchronous"),
    [("a100-sxm-80gb", "False"), ("rtx-5090", "False"), ("h20", "True"), ("gb300", "True"), ("mi300x", "False"), ("arc-b60", "False")],
)
def test_kernels_are_told_apart_by_how_they_copy_and_multiply_not_by_generation(gpu: str, asynchronous: str) -> None:
    kernel, protocol = Gemm(m=64, n=64, k=64), Protocol()
    names = launches(kernel, hardware.gpu(gpu), priced(kernel, hardware.gpu(gpu), protocol), protocol, "vllm").names
    assert (names["engine"], names["asynchronous"]) == ("vllm", asynchronous)
    assert names["intel"] == str(gpu == "arc-b60")
