"""Engines under load: schedules worked by hand, the fast way against an event loop, laws, and the command."""

import json
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tests.reference.event_loop import event_loop, exact_step_s
from tests.unit.command_line import Tilecast
from tests.unit.test_predict_outputs import Page
from tilecast.cli import predict_compare
from tilecast.diagnosis.what_if import GOAL
from tilecast.diagnosis.what_if_load import gained_fraction, why_load
from tilecast.engines.base import engine
from tilecast.engines.many import METRICS
from tilecast.engines.setup import set_up
from tilecast.errors import InvalidInput
from tilecast.explore.comparison import compare
from tilecast.predictors import predict_kernel
from tilecast.report.load_figures import load_figures
from tilecast.serving.load import predict_load, run_load
from tilecast.serving.policy import Policy, policy_of
from tilecast.serving.schedule import cycled, schedule
from tilecast.units import human

PHYSICS = partial(predict_kernel, learned=False)
PLAIN = Policy(
    token_budget=100, most_running=8, mixes=True, chunks=True, cache_tokens=10_000, block_size=1, reserved_output_fraction=1.0,
    steps_missed=0,
)  # fmt: skip


def steps_of(policy, users, lengths, num_requests):
    """(steps, prefill tokens, decodes) of every run."""
    plan = schedule(policy, users, cycled([lengths]), num_requests)
    return plan, list(zip(plan.steps.tolist(), plan.prefill_tokens.tolist(), plan.decodes.tolist(), strict=True))


# ---- by hand -----------------------------------------------------------------------------------------------------


def test_a_prompt_is_cut_at_the_budget_and_decodes_come_first():
    # Two prompts of 80 tokens: the first step takes 80 + 20, the second, with one decode, the 60 that are left of the other. Both then have
    # two tokens to go but the first is a step ahead: one step with both, one with the second alone.
    plan, runs = steps_of(PLAIN, 2, (80, 3), 2)
    assert runs == [(1, 100, 0), (1, 60, 1), (1, 0, 2), (1, 0, 1)]
    assert plan.first.tolist() == [1, 2]
    assert plan.last.tolist() == [3, 4]


def test_where_prompts_go_first_nobody_decodes_meanwhile():
    # The same two prompts: 100 and 60 tokens without a decode, then both decode together.
    plan, runs = steps_of(replace(PLAIN, mixes=False), 2, (80, 3), 2)
    assert runs == [(1, 100, 0), (1, 60, 0), (2, 0, 2)]
    assert plan.last.tolist() == [4, 4]


def test_whole_prompts_wait_for_a_step_with_room():
    _, runs = steps_of(replace(PLAIN, chunks=False), 2, (80, 3), 2)
    assert runs == [(1, 80, 0), (1, 80, 1), (1, 0, 2), (1, 0, 1)]


def test_the_cache_limits_who_runs():
    # Room for one request of 83 tokens: the second starts when the first has ended, three steps later.
    plan, _ = steps_of(replace(PLAIN, cache_tokens=100), 2, (80, 3), 2)
    assert plan.taken.tolist() == [0, 3]


def test_a_request_misses_the_step_that_is_on_its_way():
    # One user: the second request arrives after three steps and can be taken from the fifth on; the step between is empty.
    plan, runs = steps_of(replace(PLAIN, steps_missed=1), 1, (80, 3), 2)
    assert runs == [(1, 80, 0), (2, 0, 1), (1, 0, 0), (1, 80, 0), (2, 0, 1)]
    assert plan.taken.tolist() == [0, 4]


def test_contexts_of_a_run_are_their_mean():
    # A prompt of 10 and 5 outputs: decode steps see 11, 12, 13 and 14 keys.
    plan, _ = steps_of(PLAIN, 1, (10, 5), 1)
    assert plan.context.tolist() == [0.0, 12.5]
    # Cut at 100 tokens, the first chunk of 150 sees 100 keys at its end, the second 150.
    cut, _ = steps_of(PLAIN, 1, (150, 2), 1)
    assert cut.chunk_context.tolist()[:2] == [100.0, 150.0]


# ---- against the event loop --------------------------------------------------------------------------------------

SETUPS = [
    ("Qwen/Qwen3-8B", "h100-sxm", 1, "vllm"),
    ("Qwen/Qwen3-8B", "a100-sxm-80gb", 1, "sglang"),
    ("meta-llama/Llama-3.1-70B", "h200-sxm", 4, "trtllm"),
    ("openai/gpt-oss-20b", "b200-sxm", 1, "vllm"),
    ("Qwen/Qwen3-30B-A3B", "h100-sxm", 2, "trtllm"),
]


@cache
def prepared(place):
    model, gpu, tp, engine = SETUPS[place]
    found = set_up(model, gpu, tp=tp, engine=engine)
    return found, exact_step_s(found, PHYSICS)


def random_case(seed):
    draw = np.random.default_rng(seed)
    found, step_s = prepared(seed % len(SETUPS))
    users, isl, osl = int(draw.integers(1, 17)), int(draw.integers(32, 6000)), int(draw.integers(4, 40))
    spread = draw.uniform(0.6, 1.0, (30, 2)) if seed % 2 else np.ones((1, 2))
    requests = [(int(isl * a), max(2, int(osl * b))) for a, b in spread]
    policy = policy_of(found)
    if seed % 3 == 0 and policy.chunks:
        policy = replace(policy, token_budget=int(draw.integers(512, 4096)))
    if seed % 4 == 0:
        policy = replace(policy, cache_tokens=int(draw.integers(1, users + 1)) * (isl + osl))
    return found, step_s, policy, users, requests


@pytest.mark.parametrize("seed", range(50))
def test_the_fast_way_agrees_with_an_event_loop(seed):
    found, step_s, policy, users, requests = random_case(seed)
    fast = run_load(found, policy, users, requests, price=PHYSICS, num_requests=4 * users)
    slow = event_loop(policy, users, cycled(requests), 4 * users, step_s)
    host = found.engine.host
    ttft = [each.token_times_s[0] - each.arrived_s + host.first_token_s + host.prompt_token_s * each.input_tokens for each in slow]
    tpot = [(each.token_times_s[-1] - each.token_times_s[0]) / (each.output_tokens - 1) for each in slow]
    latency = [each.token_times_s[-1] - each.arrived_s for each in slow]
    assert np.mean(fast.ttft_s["median_s"]) == pytest.approx(np.mean(ttft), rel=0.02)
    assert np.mean(fast.tpot_s["median_s"]) == pytest.approx(np.mean(tpot), rel=0.02)
    extra = host.first_token_s + host.prompt_token_s * np.mean([each.input_tokens for each in slow])
    assert np.mean(fast.latency_s["median_s"]) - extra == pytest.approx(np.mean(latency), rel=0.02)


# ---- comparisons -------------------------------------------------------------------------------------------------


def test_loads_are_compared_and_each_is_what_predict_load_says():
    asked = {"isl": 512, "osl": 32, "engine": "vllm"}
    found = compare("Qwen/Qwen3-32B", ["h100-sxm", "l4"], tps=[1, 2, 3], concurrencies=[1, 32], **asked)
    assert len(found.outcomes) == 8 and {refusal.tp for refusal in found.refusals} == {3}
    assert (found.winner.gpu, found.winner.concurrency) == ("h100-sxm", 32)
    assert [outcome.gpu for outcome in found.outcomes if not outcome.fits] == ["l4"] * 4
    for outcome in found.outcomes[::3]:
        alone = predict_load("Qwen/Qwen3-32B", outcome.gpu, tp=outcome.tp, concurrency=outcome.concurrency, **asked)
        assert outcome.num_gpus == alone.num_gpus == outcome.tp
        for name in METRICS:
            assert getattr(outcome, name) == getattr(alone, name), name


def test_one_table_of_loads_and_the_winner_at_the_end(tilecast: Tilecast, monkeypatch, tmp_path):
    monkeypatch.setattr(predict_compare, "PATIENCE_S", 600.0)
    line = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100-sxm,l4", "--tp", "1,2", "--concurrency", "1:16:x4", "--isl", "256", "--osl", "16")
    shown = tilecast(*line, "--by", "tpot_s", "--html", str(tmp_path / "c.html"))
    assert shown.out.startswith("12 configurations of Qwen/Qwen3-8B, 256 input and 16 output tokens; by time per output token, best is ")
    assert "The best concurrency of each" in shown.out and "█" in shown.out
    assert "tp 2 concurrency 1 wins with " in shown.out.strip().split("\n\n")[-2]
    found = tilecast(*line, "--by", "tpot_s", "--json").json
    assert found["swept"] == "concurrency" and found["winner"] == {"gpu": "h100-sxm", "tp": 2, "layout": "tp 2", "concurrency": 1}
    assert found["inputs"]["concurrency"] == "1:16:x4"
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert found["sentence"] in page and "h100-sxm tp 2 concurrency 16" in page
    same = eval(tilecast(*line, "--by", "tpot_s", "--as-python").out.splitlines()[1], {"compare": compare})
    assert same.sentence == found["sentence"]


def test_the_batch_limits_every_load_of_a_sweep(tilecast: Tilecast):
    line = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--concurrency", "16,64", "--isl", "256", "--osl", "32", "--json")
    free, limited = tilecast(*line).json["configurations"], tilecast(*line, "--batch", "4").json["configurations"]
    for outcome in limited:  # four run, however many wait
        settings = {"most_running_requests": 4}
        alone = predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=outcome["concurrency"], isl=256, osl=32, engine_settings=settings)
        assert outcome["tpot_s"] == alone.tpot_s.to_dict()
    assert max(one["tpot_s"]["median"] for one in limited) < 0.8 * max(one["tpot_s"]["median"] for one in free)


# ---- why, and the page -------------------------------------------------------------------------------------------

EXPLAINED = {"model": "Qwen/Qwen3-32B", "gpu": "h100-sxm", "tp": 2, "engine": "vllm", "concurrency": 16, "isl": 512, "osl": 64}


def test_a_lever_is_the_changed_gpu_under_the_same_load():
    now = predict_load(**EXPLAINED, price=PHYSICS)
    levers = {lever.name: lever for lever in why_load(now, EXPLAINED, PHYSICS).levers}
    for name, fact in (("DRAM bandwidth", "dram_bytes_per_s"), ("SM clock", "boost_clock_hz"), ("power limit", "tdp_w")):
        then = predict_load(**EXPLAINED, overrides={fact: getattr(now.gpu, fact) * 1.1}, price=PHYSICS)
        assert levers[name].first_saved_fraction == pytest.approx(1 - then.ttft_s.median / now.ttft_s.median)
        assert levers[name].rest_saved_fraction == pytest.approx(1 - then.tpot_s.median / now.tpot_s.median)
        gained = then.output_tokens_per_s.median / now.output_tokens_per_s.median - 1
        assert gained_fraction(levers[name]) == pytest.approx(gained)
    factor = levers["DRAM bandwidth"].needed_factor
    then = predict_load(**EXPLAINED, overrides={"dram_bytes_per_s": now.gpu.dram_bytes_per_s * factor}, price=PHYSICS)
    assert then.output_tokens_per_s.median / now.output_tokens_per_s.median == pytest.approx(GOAL, rel=0.01)


def test_less_host_time_is_an_engine_with_smaller_constants():
    now = predict_load(**EXPLAINED, price=PHYSICS)
    lever = next(lever for lever in why_load(now, EXPLAINED, PHYSICS).levers if lever.name == "host time")
    host = engine("vllm").host
    names = ("decode_step_s", "decode_layer_s", "prefill_step_s", "prefill_layer_s", "request_s", "first_token_s", "prompt_token_s")
    then = predict_load(**EXPLAINED, engine_settings={name: 0.9 * getattr(host, name) for name in names}, price=PHYSICS)
    assert 0 < lever.total_saved_fraction == pytest.approx(1 - then.total_s.median / now.total_s.median)


def test_a_link_is_a_lever_of_a_group_only_and_the_correction_stays():
    for tp in (1, 2):
        asked = EXPLAINED | {"tp": tp}
        reasons = why_load(predict_load(**asked), asked)
        saved = {lever.name: lever.total_saved_fraction for lever in reasons.levers}
        assert ("link bandwidth" in saved) is (tp == 2)
        assert list(saved.values()) == sorted(saved.values(), reverse=True)
        # Tiles dealt to more SMs may fit them worse.
        assert all(value > (-0.02 if name == "number of SMs" else -1e-9) for name, value in saved.items())


def test_users_beside_are_loads_of_their_own():
    reasons = why_load(predict_load(**EXPLAINED), EXPLAINED)
    assert [outcome.concurrency for outcome in reasons.concurrencies] == [4, 8, 16, 32, 64]
    twice = predict_load(**EXPLAINED | {"concurrency": 32})
    assert reasons.concurrencies[3].ttft_s == twice.ttft_s
    ratio = twice.output_tokens_per_s.median / reasons.asked.output_tokens_per_s.median
    assert f"Twice the users would get {ratio:.2f} times the tokens per second" in reasons.sentence


def test_why_and_the_page_of_a_load(tilecast: Tilecast, tmp_path):
    path = tmp_path / "load.html"
    shown, answer = tilecast(*ASKED, "--why"), tilecast(*ASKED, "--why", "--html", str(path), "--json").json
    assert "What would make it faster" in shown.out and "What the number of users does" in shown.out
    for lever in answer["why"]["levers"]:
        for name in ("total_saved", "ttft_saved", "tpot_saved", "output_tokens_per_s_gained"):
            assert f"{100 * lever[f'{name}_fraction']:.1f} %" in shown.out
    page = Page(path.read_text(encoding="utf-8"))
    assert page.loads == [] and page.open == []
    assert json.loads(path.read_text(encoding="utf-8").split("id='tilecast'>")[1].split("</script>")[0]) == answer
    for entry in answer["figures"]["concurrencies"]:
        times = f"first token {human('_s', entry['ttft_s']['median'])}, {human('_s', entry['tpot_s']['median'])} a token"
        assert f"concurrency {entry['concurrency']}: {times}" in page.text
    for part in answer["breakdown"]:
        assert part["bound_by"] in ("tensor", "vector", "special", "shared", "dram", "l2", "link", "launch", "host")
    for kernel in answer["figures"]["roofline"]["kernels"]:
        assert human("_flop_per_s", kernel["flop_per_s"]) in page.text
        assert kernel["flop_per_s"] <= 1.1 * answer["figures"]["roofline"]["peak_flop_per_s"][kernel["dtype"]]
    assert "why" not in tilecast(*ASKED, "--json").json


def test_the_roofline_of_a_load_counts_the_work_of_its_steps():
    # All users' tokens pass every layer: FLOP of gate_up_proj over the schedule = 2 x hidden x 2 inter x tokens, however steps are cut.
    found = predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=4, isl=500, osl=20, price=PHYSICS)
    points = load_figures(found, {"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm", "isl": 500, "osl": 20, "price": PHYSICS})
    per_launch = {(p["phase"], p["name"]): p for p in points["roofline"]["kernels"]}[("prefill", "gate_up_proj")]["flop"]
    plan = found.load.plan
    mixed = plan.prefill_tokens > 0
    tokens = ((plan.prefill_tokens + plan.decodes) * plan.steps)[mixed].sum() / plan.steps[mixed].sum()
    assert per_launch == pytest.approx(2 * 4096 * 2 * 12288 * tokens, rel=1e-6)


# ---- laws --------------------------------------------------------------------------------------------------------


def load(**changed):
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm", "engine": "vllm", "concurrency": 16, "isl": 1024, "osl": 128}
    return predict_load(**(asked | changed), price=PHYSICS)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
def test_more_users_mean_slower_tokens_and_more_of_them(engine):
    few, many = load(engine=engine, concurrency=4), load(engine=engine, concurrency=64)
    assert few.tpot_s.median < many.tpot_s.median
    assert few.output_tokens_per_s.median < many.output_tokens_per_s.median


def test_one_user_sees_a_request_alone():
    from tilecast.engines.predict import predict

    one = load(concurrency=1)
    alone = predict("Qwen/Qwen3-8B", "h100-sxm", engine="vllm", batch=1, isl=1024, osl=128, price=PHYSICS)
    assert one.tpot_s.median == pytest.approx(alone.tpot_s.median, rel=0.01)
    assert one.ttft_s.median == pytest.approx(alone.prefill_s.median + 10e-3 + 1024 * 5e-6, rel=0.02)


def test_low_median_high_are_ordered_and_the_parts_make_the_whole():
    found = load()
    for name in ("ttft_s", "tpot_s", "total_s", "prefill_s", "decode_step_s", "output_tokens_per_s"):
        value = getattr(found, name)
        assert value.low <= value.median <= value.high, name
    assert sum(part.share_fraction for part in found.breakdown) == pytest.approx(1.0, rel=1e-6)
    # N users are always busy: N = requests per second x latency.
    assert found.serving()["requests_per_s"]["median"] * found.total_s.median == pytest.approx(16, rel=1e-6)


def test_sglang_prefills_first_and_vllm_mixes():
    """SGLang's prompts wait less and stop every decode; the rest of the time its steps are no longer than vLLM's."""
    sglang, vllm = (load(engine=name, isl=4096, osl=256, concurrency=48) for name in ("sglang", "vllm"))
    alone = sglang.load.plan.prefill_tokens > 0
    assert not sglang.load.plan.decodes[alone].any()
    assert vllm.load.plan.decodes[vllm.load.plan.prefill_tokens > 0].any()


def test_settings_limit_what_runs():
    free, limited = load(concurrency=64), load(concurrency=64, engine_settings={"max_num_seqs": 8})
    assert limited.load.plan.decodes.max() == 8
    assert free.load.plan.decodes.max() > 32
    assert limited.queue_s > 10 * free.queue_s


def test_a_file_of_requests_is_served_in_turn():
    mixed = predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=4, requests=[(100, 20), (3000, 10)], price=PHYSICS)
    assert set(mixed.load.plan.input_tokens.tolist()) == {100, 3000}


def test_what_does_not_fit_is_a_result():
    found = load(model="meta-llama/Llama-3.1-70B", concurrency=2)
    assert not found.fits
    assert found.tpot_s.median > 0
    assert {"tp": 2} in found.memory.would_fit
    assert load(model="meta-llama/Llama-3.1-70B", concurrency=2, **found.memory.would_fit[0]).fits


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm"])
def test_a_load_without_room_for_a_request_is_timed_as_if_its_cache_held_all_users(engine):
    asked = {"isl": 100, "osl": 20, "concurrency": 8, "engine": engine, "price": PHYSICS}
    found = predict_load("meta-llama/Llama-3.1-70B", "h100-sxm", **asked)
    # The same GPU with memory for the weights: users run together there, and so they do here.
    fits = predict_load("meta-llama/Llama-3.1-70B", "h100-sxm", **asked, overrides={"dram_bytes": 200 << 30})
    assert (found.fits, fits.fits) == (False, True)
    assert found.ttft_s == fits.ttft_s and found.tpot_s == fits.tpot_s and found.total_s == fits.total_s
    assert found.load.plan.decodes.max() == 8
    assert "no room for a request of 120 tokens beside the weights: times are as if its cache held all 8 users" in found.warnings[-1]


def test_a_cache_that_is_merely_full_still_makes_users_wait():
    few, many = (load(model="Qwen/Qwen3-32B", isl=4000, osl=20, concurrency=users) for users in (1, 32))
    assert many.fits and many.load.plan.decodes.max() < 32 and many.queue_s > few.queue_s
    assert not any("no room" in warning for warning in many.warnings)


def test_a_prompt_that_no_step_has_room_for_is_a_warning():
    long = {"engine": "trtllm", "isl": 20_000, "concurrency": 2}
    assert "more than the 8,192 of a step" in load(**long).warnings[0]
    assert load(**long, engine_settings={"chunks_prompts": 1}).warnings == ()
    assert load(**(long | {"engine": "vllm"})).warnings == ()


def test_requests_of_one_token_have_no_time_per_token(tilecast: Tilecast):
    shown = tilecast("predict", "google-bert/bert-base-uncased", "--gpu", "l4", "--concurrency", "4", "--isl", "100", "--osl", "1").out
    assert "a token" not in shown.splitlines()[0]
    assert "0 s (0-0)" not in shown and "cache for" not in shown


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"concurrency": 0}, "concurrency = 0 must be a whole number from 1"),
        ({"concurrency": True}, "concurrency = True"),
        ({"isl": None}, "isl and osl missing"),
        ({"requests": [(1, 1)]}, "not both"),
        ({"engine": "tgi"}, "unknown engine 'tgi': known: sglang, trtllm, vllm"),
        ({"engine_settings": {"max_seqs": 3}}, "did you mean max_num_seqs"),
        ({"engine_settings": {"gpu_memory_utilization": 1.7}}, "gpu_memory_utilization = 1.7 must be a number from 0 to 1"),
        ({"engine_settings": {"max_num_seqs": 0}}, "max_num_seqs = 0 must be a whole number of at least 1"),
        ({"engine_settings": {"gpu_memory_utilization": "much"}}, "gpu_memory_utilization = much must be a number"),
    ],
)
def test_wrong_input_is_one_sentence(changed, message):
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(")):
        load(**changed)


# ---- the command -------------------------------------------------------------------------------------------------

ASKED = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--concurrency", "8", "--isl", "256", "--osl", "16")


def test_the_command_keeps_the_contract(tilecast: Tilecast):
    found = tilecast(*ASKED, "--engine", "trtllm", "--json").json
    assert found["schema"] == "tilecast.predict/1"
    for name in ("prefill_s", "decode_step_s", "total_s", "ttft_s", "tpot_s", "output_tokens_per_s"):
        assert set(found[name]) == {"median", "low", "high"}
    assert {"decode_steps", "memory", "fits", "basis", "breakdown", "inputs", "versions", "serving"} <= set(found)
    assert found["serving"]["concurrency"] == found["inputs"]["concurrency"] == 8
    per_gpu = found["serving"]["output_tokens_per_s_per_gpu"]["median"]
    assert per_gpu == pytest.approx(found["output_tokens_per_s"]["median"])


def test_the_command_says_it_in_one_sentence_first(tilecast: Tilecast):
    first = tilecast(*ASKED, "--engine", "vllm", "--batch", "4").out.splitlines()[0]
    assert first.startswith("Qwen/Qwen3-8B on h100-sxm under vllm serves 8 users with a first token after ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--batch", "0"), "--batch 0 must be at least 1: it limits how many requests run"),
        (("--trace", "x.txt"), "--trace"),
        (("--batch", "4,8"), "--batch 4,8 limits how many requests of a load run: give one number; --concurrency takes several"),
        (("--tp", "1,2", "--breakdown"), "--breakdown explains one configuration: give one --gpu, --tp and --concurrency"),
        (("--concurrency", "1:x"), "--concurrency 1:x must read like 8, 1,2,4"),
        (("--concurrency", "0,8"), "--concurrency 0,8: 0 must be at least 1"),
        (("--concurrency", "0"), "concurrency = 0 must be a whole number from 1"),
        (("--concurrency", "eight"), "--concurrency eight must read like 8, 1,2,4"),
        (("--by", "speed"), "--by 'speed' must be one of output_tokens_per_s_per_gpu"),
        (("--engine-set", "max_num_seqs"), "must read FACT=VALUE, e.g. chunked_prefill_size=4096"),
        (("--requests", "x.csv"), "--requests and --isl, --osl exclude one another"),
    ],
)
def test_options_that_do_not_go_together(tilecast: Tilecast, more, message):
    found = tilecast(*ASKED, *more)
    assert found.code == 2
    assert message in found.err


def test_counts_of_numpy_are_counts():
    given = predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=np.int32(4), isl=np.int32(256), osl=np.int64(16))
    plain = predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=4, isl=256, osl=16)
    assert json.dumps(given.to_dict()) == json.dumps(plain.to_dict())
    with pytest.raises(InvalidInput, match="requests = 5 must be pairs"):
        predict_load("Qwen/Qwen3-8B", "h100-sxm", concurrency=4, requests=5)
