"""What a mistake in a Python call says: one sentence of ours with the value and what would do, never an exception from below."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilecast
from tilecast.errors import InvalidInput, TilecastError, UnknownName
from tilecast.kernels.attention import AttentionDecode, AttentionPrefill
from tilecast.kernels.collectives import AllReduce
from tilecast.kernels.gemm import Gemm
from tilecast.kernels.mla import MlaDecode, MlaPrefill

GEMM: dict[str, Any] = {"m": 8, "n": 64, "k": 64}
ATTENTION: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8}
MLA: dict[str, Any] = {"num_heads": 16}


def median_s(kernel: Any, gpu: Any = "h100-sxm", **asked: Any) -> float:
    return float(tilecast.predict_kernel(kernel, gpu, **asked).median_s[0])


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("m", [], r"m = \[\] must hold at least one whole number"),
        ("m", [1, [2]], r"m = \[1, \[2\]\] must be a whole number, or a list of them"),
        ("m", 10**400, r"m = 10{59}\.\.\. must be a whole number of at most 9,007,199,254,740,992"),
        ("m", 2**60, "m = 1152921504606846976 must be a whole number of at most 9,007,199,254,740,992"),
        ("dtype", 3, "unknown dtype 3: known: bf16"),
        ("dtype", None, "unknown dtype None: known: bf16"),
        ("dtype", ["bf16"], r"unknown dtype \['bf16'\]: known"),
        ("identity", 3, "identity = 3 of gemm must be a name"),
        ("identity", ["cublas"], "identity = .* must be a name"),
        ("tile", 3, r"tile = 3 must be two whole numbers, such as \(128, 64\)"),
        ("tile", "128x64x2", "tile = '128x64x2' must be two whole numbers"),
        ("tile", (1.5, 2), "must be two whole numbers"),
        ("split", 0, "split = 0 must be a whole number of at least 1"),
        ("split", "2", "split = '2' must be a whole number"),
        ("bias", [], r"bias = \[\] must be true or false"),
        ("bias", [True, False], "bias has 2 values, but every size is one number"),
    ],
)
def test_a_wrong_parameter_of_a_kernel(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence) as caught:
        median_s(Gemm(**{**GEMM, name: value}))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"gpu": None}, "gpu = None must be the name of a GPU such as 'h100-sxm'"),
        ({"gpu": ["h100-sxm"]}, "gpu = .* must be the name of a GPU"),
        ({"timer": ["graph"]}, "timer = .* must be one of profiler, graph, event"),
        ({"cache": 3}, "cache = 3 must be one of cold, warm, rotated"),
        ({"engine": None}, "engine = None must be a name such as 'sglang'"),
        ({"engine": "zz"}, "unknown engine 'zz': known: framework, nccl"),
        ({"engine": "sglang@new"}, "engine sglang@new: 'new' is no release"),
        ({"overrides": "num_sms=3"}, "overrides = 'num_sms=3' must name facts and their values"),
        ({"overrides": {3: 4}}, "must name facts and their values"),
        ({"profile": 3}, "profile = 3 must be the path of a file"),
        ({"profile": ""}, "profile = '' must be the path of a file"),
    ],
)
def test_a_wrong_argument_of_predict_kernel(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        median_s(Gemm(**GEMM), **asked)


def test_a_release_of_an_engine_will_do_and_a_kernel_names_engines_too() -> None:
    assert median_s(Gemm(**GEMM), engine="vllm@0.11.0") == median_s(Gemm(**GEMM), engine="vllm")
    with pytest.raises(UnknownName, match="unknown engine 'zz'"):
        median_s(AttentionDecode(batch=4, kv_len=64, engine="zz", **ATTENTION))


@pytest.mark.parametrize("kernel", [None, 3, "gemm", Gemm, GEMM])
def test_what_is_no_kernel(kernel: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a launch such as Gemm"):
        median_s(kernel)


def test_lists_of_different_lengths() -> None:
    with pytest.raises(InvalidInput, match="different numbers of launches: m 2, bias 3"):
        median_s(Gemm(m=[1, 2], n=64, k=64, bias=[True, False, True]))


def test_one_of_several_sizes_out_of_range_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"m = 1e\+30 \(launch 1\) must be a whole number of at most 9,007,199,254,740,992"):
        median_s(Gemm(m=[1, 10**30], n=64, k=64))
    with pytest.raises(InvalidInput, match=r"m = -1e\+30 must be a whole number of at least 1"):
        median_s(Gemm(m=[-(10**30)], n=64, k=64))


@pytest.mark.parametrize(("name", "value"), [("link_bytes_per_s", "fast"), ("link_bytes_per_s", 0), ("network_bytes_per_s", -1)])
def test_a_wrong_rate_of_a_link(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name} = .* must be a number above 0"):
        median_s(AllReduce(**{"bytes": 1 << 20, "num_gpus": 8, name: value}))


@pytest.mark.parametrize("model", [None, 3, [], "", "  "])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(InvalidInput, match=r"model = .* must be a bundled Hugging Face id"):
        tilecast.predict(model, "h100-sxm", batch=1, isl=8, osl=1)


def test_other_doors_refuse_in_our_words_too() -> None:
    for call in (
        lambda: tilecast.gpu(None),
        lambda: tilecast.node(3),
        lambda: tilecast.load_graph(3),
        lambda: tilecast.load_graph(Path("no")),
    ):  # type: ignore[arg-type]
        with pytest.raises(TilecastError):
            call()
    with pytest.raises(InvalidInput, match="engine_settings = 3 must name settings"):
        tilecast.predict("Qwen/Qwen3-0.6B", "h100-sxm", batch=1, isl=8, osl=1, engine_settings=3)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="unknown quant 3: known: bf16"):
        tilecast.predict("Qwen/Qwen3-0.6B", "h100-sxm", batch=1, isl=8, osl=1, quant=3)  # type: ignore[arg-type]


def test_every_public_name_says_what_it_is() -> None:
    assert not [name for name in tilecast.__all__ if name != "__version__" and not getattr(tilecast, name).__doc__]


def test_a_gpu_is_its_name_its_path_or_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "h100-sxm"\nnum_sms = 100\n')
    assert tilecast.gpu(file).num_sms == tilecast.gpu(str(file)).num_sms == 100
    spec = tilecast.gpu("h100-sxm")
    assert tilecast.gpu(spec) is spec and tilecast.gpu(spec, {"num_sms": 100}).num_sms == 100


# ---- lengths of requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decode", "sizes"), [(AttentionDecode, ATTENTION), (MlaDecode, MLA)])
def test_decode_asks_for_the_length_of_the_cache(decode: Any, sizes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="kv_len is missing: how many tokens the cache of a request holds"):
        median_s(decode(batch=4, **sizes))
    with pytest.raises(InvalidInput, match="kv_lens is missing"):
        median_s(decode(q_lens=[1, 1], **sizes))
    new_token_each = median_s(decode(q_lens=[1, 1], kv_lens=[2048, 512], **sizes))
    assert median_s(decode(kv_lens=[2048, 512], **sizes)) == new_token_each
    assert median_s(decode(batch=2, kv_len=2048, **sizes)) == median_s(decode(kv_lens=[2048, 2048], **sizes))


@pytest.mark.parametrize(("prefill", "sizes"), [(AttentionPrefill, ATTENTION), (MlaPrefill, MLA)])
@pytest.mark.parametrize("gpu", ["h100-sxm", "b200-sxm"])
def test_a_prompt_without_a_cache_is_the_same_however_it_is_said(prefill: Any, sizes: dict[str, Any], gpu: str) -> None:
    said = [{"q_len": 2048}, {"q_len": 2048, "kv_len": 2048}, {"q_lens": [2048]}, {"q_lens": "[2048]", "kv_lens": np.array([2048])}]
    assert len({median_s(prefill(**lengths, **sizes), gpu) for lengths in said}) == 1
    with pytest.raises(InvalidInput, match="q_lens is missing: how many new tokens"):
        median_s(prefill(kv_lens=[2048], **sizes), gpu)


@pytest.mark.parametrize(("prefill", "sizes"), [(AttentionPrefill, ATTENTION), (MlaPrefill, MLA)])
def test_batches_of_one_length_among_ragged_ones_are_what_they_are_alone(prefill: Any, sizes: dict[str, Any]) -> None:
    batches = [[64, 64], [64, 128], [40, 8, 8], [256]]  # the law of doubling looks at the first and the last, on its own steps
    together = tilecast.predict_kernel(prefill(q_lens=batches, **sizes), "h100-sxm")
    assert together.median_s.tolist() == pytest.approx([median_s(prefill(q_lens=lengths, **sizes)) for lengths in batches], rel=1e-12)
    assert len(together.bound_s) == len(together.basis) == len(batches)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("[1, 2", r"kv_lens = '\[1, 2' must be a JSON list of lengths, such as \[128, 4096\]"),
        ("[1, [2]]", "mixes lengths and lists: give one list, or one list for each launch"),
        ([[1], 2], "mixes lengths and lists"),
        ("[1, null]", r"kv_lens = '\[1, null\]' holds null: every length must be a whole number"),
        ([1, "x"], "holds 'x': every length must be a whole number"),
        ([[]], "must hold at least one length for every launch"),
        ([], "must be a list of lengths"),
        ({}, "must be a list of lengths"),
        ([1.5], "kv_lens = 1.5 must be a whole number of at least 1"),
    ],
)
def test_a_wrong_list_of_lengths_is_named(given: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        median_s(AttentionDecode(kv_lens=given, **ATTENTION))


def test_lists_that_name_other_requests() -> None:
    with pytest.raises(InvalidInput, match="q_lens names 1 requests, kv_lens 2: they must name the same"):
        median_s(AttentionPrefill(q_lens=[1], kv_lens=[1, 2], **ATTENTION))
