"""Every engine: its file says of each number what it is and where it comes from, and it has an answer for every GPU of the catalogue."""

import pytest

from tilecast import hardware
from tilecast.engines.base import RELEASE, _captured, _facts, _table, engine, engines
from tilecast.engines.predict import predict
from tilecast.kernels.base import MEASURED_IN, engine_names
from tilecast.predictors import predict_kernel

NAMES = tuple(engines())


@pytest.mark.parametrize("name", NAMES)
def test_every_number_says_why_and_every_fact_where_it_was_read(name):
    for key, entry in _table(name).items():
        if key not in ("facts", "since"):
            assert entry["why"], key
    for release, entry in _table(name).get("since", {}).items():
        assert RELEASE.match(release) and entry["source"] and entry["why"], release
        assert set(entry["facts"]) <= set(_facts(name)), release
    for key, entry in _facts(name).items():
        assert entry["source"] and entry["why"], key
        assert "value" in entry, key


def test_kernels_know_every_engine_by_its_files():
    assert engine_names() == {*engines(), *MEASURED_IN}


def test_engines_know_the_same_facts():
    """What the code asks of one engine it asks of all; facts of one engine alone are used in its own file."""
    asked = {
        "most_running_requests", "token_budget", "mixes_phases", "chunks_prompts", "chunks_static_batches", "overlaps_decode_steps",
        "reserved_output_fraction", "memory_fraction", "memory_is_of_free", "block_size", "captured_batches", "steps_missed",
        "decode_gives_first_token", "experts_all_to_all", "copies_heads_for",
        "runs_beside_in_decode", "products_measured_in", "experts_measured_in", "drops_keys_outside_window", "sort_bytes_per_logit",
        "decode_step_with_stages_s", "does_not_run_on", "widens_whole_experts",
    }  # fmt: skip
    for name in NAMES:
        assert asked <= set(_facts(name)), name


@pytest.mark.parametrize("name", NAMES)
def test_captured_sizes_grow(name):
    sizes = _captured(name).tolist()
    assert sizes == sorted(set(sizes))
    assert engine(name).padded(_captured(name)).tolist() == sizes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gpu", [spec.id for spec in hardware.gpus() if "bf16" in spec.tensor_flop_per_s])
def test_every_gpu_gets_an_answer(name, gpu):
    found = predict("Qwen/Qwen3-0.6B", gpu, engine=name, batch=2, isl=64, osl=4, price=lambda kernel, spec, **asked: predict_kernel(
        kernel, spec, learned=False, **asked))  # fmt: skip
    assert found.total_s.median > 0
