"""What an engine takes on: how much it holds at once, how many it runs, and where it runs at all."""

import json
from pathlib import Path

import numpy as np
import pytest

from tilecast import hardware
from tilecast.engines.base import engine, with_settings
from tilecast.engines.predict import predict
from tilecast.errors import InvalidInput
from tilecast.explore.comparison import compare
from tilecast.serving.load import predict_load
from tilecast.workloads import aggregate


def test_a_static_batch_of_sglang_fits_where_its_cache_holds_it_under_load() -> None:
    asked = {"quant": "fp8", "isl": 512, "osl": 64}
    most = predict("meta-llama/Llama-3.1-70B", "h100-sxm", batch=1, **asked).memory.largest_batch
    cache = predict_load("meta-llama/Llama-3.1-70B", "h100-sxm", concurrency=most, **asked).policy.cache_tokens
    assert most == cache // (512 + 64) == 11
    assert not predict("meta-llama/Llama-3.1-70B", "h100-sxm", batch=most + 1, **asked).memory.fits
    roomy = predict("meta-llama/Llama-3.1-70B", "h100-sxm", batch=1, **asked, engine_settings={"mem_fraction_static": 0.93}).memory
    assert roomy.largest_batch > most


@pytest.mark.parametrize(("name", "most"), [("h100-sxm", 1024), ("a100-sxm-80gb", 256), ("l40s", 256)])
def test_vllm_runs_as_many_requests_as_it_takes_by_itself_on_a_gpu(name: str, most: int) -> None:
    vllm = engine("vllm")
    assert vllm.most_running(vllm, hardware.gpu(name)) == most
    told = with_settings(vllm, {"max_num_seqs": 77})
    assert told.most_running(told, hardware.gpu(name)) == 77


@pytest.mark.parametrize(("name", "gpu", "runs"), [
    ("trtllm", "mi300x", False), ("trtllm", "v100-sxm2-32gb", False), ("trtllm", "l40s", True), ("sglang", "mi300x", True),
    ("sglang", "p100-pcie-16gb", False), ("vllm", "mi210", True), ("vllm", "p4", False),
    ("vllm", "v100-sxm2-32gb", True), ("vllm@0.31", "v100-sxm2-32gb", False),
])  # fmt: skip
def test_an_engine_that_does_not_run_on_a_gpu_is_priced_and_says_so(name: str, gpu: str, runs: bool) -> None:
    found = predict("Qwen/Qwen3-0.6B", gpu, engine=name, batch=1, isl=64, osl=4, quant="fp16")
    assert any("does not run on" in text for text in found.warnings) is not runs


def test_the_level_of_unseen_gpus_is_the_one_that_kernels_left_out_show() -> None:
    slices = json.loads((Path(__file__).parents[2] / "benchmarks/results/kernels-unseen.json").read_text())["by_slice"]
    errors: dict[tuple[str, str], list[float]] = {}
    for row in slices:
        if row["predictor"] == "tilecast" and row["held_out"] == "GPU, siblings out":
            errors.setdefault((row["gpu"], row["group"]), []).append(np.log1p(row["bias"] / 100))
    deviation = np.sqrt(np.mean([np.mean(each) ** 2 for each in errors.values()]))
    assert len(errors) > 50
    together = np.hypot(aggregate.SEEN_LEVEL / 1.28, deviation)  # a GPU's own level, and a lab's as everywhere
    assert pytest.approx(together, abs=0.015) == aggregate.UNSEEN_LEVEL / 1.28


def test_sglang_widens_mxfp4_experts_that_ranks_hold_whole_and_memory_says_so() -> None:
    asked = {"tp": 2, "batch": 8, "isl": 256, "osl": 8}
    divided, whole = (predict("openai/gpt-oss-20b", "l40s", ep=ep, **asked) for ep in (1, 2))
    # 24 layers x 32 experts x 3 x 2,880 x 2,880 weights on two GPUs: 16 bits instead of 4.25
    assert whole.memory.weights_bytes - divided.memory.weights_bytes == pytest.approx(24 * 32 * 3 * 2880**2 / 2 * (16 - 4.25) / 8, rel=1e-3)
    assert any("--ep 2 takes that much more memory" in text for text in whole.warnings)
    assert whole.to_dict()["warnings"] == list(whole.warnings)
    for elsewhere in ({"engine": "vllm"}, {"gpu": "b200-sxm"}):
        found = predict(**{"model": "openai/gpt-oss-20b", "gpu": "l40s", "ep": 2, **asked, **elsewhere})
        assert found.memory.weights_bytes == pytest.approx(divided.memory.weights_bytes, rel=1e-3), elsewhere


def test_a_comparison_says_what_should_be_known_of_each_gpu() -> None:
    asked = {"batches": [1], "isl": 64, "osl": 4}
    hot = compare("Qwen/Qwen3-0.6B", ["rtx-6000-ada", "l40s"], **asked)
    assert (
        [text for text in hot.warnings if text.startswith("rtx-6000-ada is priced at")] == list(hot.warnings) == hot.to_dict()["warnings"]
    )
    unfit = compare("Qwen/Qwen3-0.6B", ["mi300x", "l40s"], engine="trtllm", **asked)
    assert unfit.warnings == ("trtllm does not run on cdna3 GPUs: mi300x is priced as if it did",)
    assert compare("Qwen/Qwen3-0.6B", ["l40s"], **asked).warnings == ()


def test_where_no_single_change_would_fit_fewer_requests_on_more_gpus_are_named() -> None:
    asked = {"isl": 8000, "osl": 100}
    (choice,) = predict("Qwen/Qwen3-32B", "rtx-4090", batch=64, **asked).memory.would_fit
    assert set(choice) == {"tp", "batch"}
    assert predict("Qwen/Qwen3-32B", "rtx-4090", **asked, **choice).fits
    assert not predict("Qwen/Qwen3-32B", "rtx-4090", **asked, **choice | {"batch": choice["batch"] + 1}).fits


@pytest.mark.parametrize("held", ["int3", "int8", "nvfp4"])
def test_a_cache_in_another_format_is_refused_with_the_two_that_are_allowed(held: str) -> None:
    with pytest.raises(InvalidInput, match=f"kv_dtype = {held} must be fp8 or the model's own bf16"):
        predict("Qwen/Qwen3-0.6B", "h100-sxm", batch=1, isl=8, osl=2, kv_dtype=held)
