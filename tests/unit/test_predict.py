"""`tilecast predict` and `tilecast.predict`: what they answer, and what they refuse in one sentence."""

import json

import numpy as np
import pytest

from tilecast.cli import main
from tilecast.cli.predict import command
from tilecast.engines.interval import NOTHING, Interval
from tilecast.engines.predict import predict
from tilecast.errors import InvalidInput, MissingData, SpecError, UnknownName
from tilecast.workloads.aggregate import basis_words, weakest
from tilecast.workloads.model import model_config
from tilecast.workloads.requests import read_requests

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
ASKED = ("--gpu", "h100-sxm", "--batch", "2", "--isl", "64", "--osl", "8")


@pytest.fixture
def run(monkeypatch, capsys):
    """Exit code, stdout and stderr of one command line."""
    monkeypatch.setitem(main.COMMANDS, "predict", "Predict a batch.")

    def call(*arguments):
        code = main.run(["predict", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def config_file(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in (CONFIG | changes).items() if value is not None}))
    return path


# ---- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen/qwen3-32b", "Qwen3-32B", "Qwen/Qwen3-32B"])
def test_case_and_organisation_may_be_left_out(name):
    assert model_config(name).name == "Qwen/Qwen3-32B"


def test_a_model_with_the_same_facts_answers_to_its_own_id_too():
    assert model_config("meta-llama/Meta-Llama-3.1-70B").num_layers == 80


def test_a_config_may_be_a_file_a_folder_or_a_table(tmp_path):
    path = config_file(tmp_path)
    assert [model_config(each).layers[0].attention.head_dim for each in (path, tmp_path, CONFIG)] == [64, 64, 64]


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"])
def test_a_missing_field_is_named(field):
    with pytest.raises(InvalidInput, match=f"{field} is missing"):
        model_config({name: value for name, value in CONFIG.items() if name != field})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"], "state_size": 16}, "state-space .* cannot be modelled yet; the nearest family is llama"),
        ({"architectures": ["NewForCausalLM"]}, "'NewForCausalLM' is not known: it looks like a dense decoder"),
        ({"architectures": ["NewForCausalLM"], "num_experts": 8}, "it has experts.*nearest family is qwen3_moe"),
        ({"architectures": ["NewForCausalLM"], "n_routed_experts": 8, "kv_lora_rank": 512}, "experts and latent.*family is deepseek"),
        ({"architectures": ["NewForCausalLM"], "n_routed_experts": 8, "kv_lora_rank": 512, "index_topk": 9}, "sparse attention cannot"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 64}, "num_experts is missing"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "n_shared_experts": 1, "first_k_dense_replace": 3}, "qk_nope_head_dim is missing"),
        ({"architectures": []}, "architectures is missing"),
        ({"hidden_size": "big"}, "hidden_size = 'big'"),
        ({"hidden_size": -4}, "hidden_size = -4"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads = 3"),
        ({"torch_dtype": "float13"}, "float13"),
        ({"quantization_config": {"quant_method": "bitsnbytes"}}, "'bitsnbytes' is not supported; known: fp8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "gptq with 3 bits"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, "not supported for Qwen2ForCausalLM yet"),
        (
            {
                "architectures": ["GptOssForCausalLM"],
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "layer_types": [],
                "head_dim": 64,
                "sliding_window": 128,
            },
            "layer_types",
        ),
    ],
)
def test_what_a_config_cannot_say(changes, message):
    with pytest.raises(InvalidInput, match=message):
        model_config(CONFIG | changes)


def test_an_unknown_model_says_which_are_near():
    with pytest.raises(UnknownName, match="did you mean Qwen/Qwen3-32B"):
        model_config("Qwen/Qwen3-33B")


# ---- answers -----------------------------------------------------------------------------------------------------


def test_the_json_is_the_contract(run):
    code, out, err = run("Qwen/Qwen3-32B", "--gpu", "h100-sxm", "--tp", 2, "--batch", 32, "--isl", 2048, "--osl", 256, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["schema"] == "tilecast.predict/1"
    for name in ("prefill_s", "decode_step_s", "total_s", "ttft_s", "tpot_s", "output_tokens_per_s"):
        assert set(answer[name]) == {"median", "low", "high"}
    assert (answer["decode_steps"], answer["fits"], answer["basis"]) == (255, True, "analytic")
    assert answer["inputs"]["batch"] == 32
    assert set(answer) >= {"memory", "breakdown", "inputs", "versions"}
    tokens = 32 * 256
    assert answer["output_tokens_per_s"]["median"] == pytest.approx(tokens / answer["total_s"]["median"])


def test_the_answer_comes_first(run):
    code, out, _ = run("Qwen/Qwen3-8B", *ASKED)
    assert code == 0
    assert out.startswith("Qwen/Qwen3-8B on h100-sxm answers 2 requests in ")
    assert "Where a decode step goes" in out


def test_the_basis_is_told_by_the_time_that_rests_on_it(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    shares = json.loads(run("Qwen/Qwen3-8B", *ASKED, "--json")[1])["basis_shares"]
    line = next(line for line in run("Qwen/Qwen3-8B", *ASKED)[1].splitlines() if line.startswith("basis"))
    assert f"{100 * shares['interpolated']:.0f} % interpolated" in line
    assert basis_words({"interpolated": 0.7, "analytic": 0.297, "unseen-gpu": 0.003}) == "70 % interpolated, 30 % analytic"


@pytest.mark.parametrize(("width", "kept"), [(80, True), (60, False)])
def test_what_a_figure_means_wraps_on_a_common_terminal(run, monkeypatch, width, kept):
    monkeypatch.setenv("COLUMNS", str(width))
    out = run("Qwen/Qwen3-8B", *ASKED)[1]
    assert ("KV 20.2 MiB" in " ".join(out.split())) == kept
    assert ("left out on 60 columns: meaning" in out) != kept
    assert max(map(len, out.splitlines())) <= width


def test_csv_is_one_line_or_one_per_kernel(run):
    assert len(run("Qwen/Qwen3-8B", *ASKED, "--csv")[1].splitlines()) == 2
    kernels = run("Qwen/Qwen3-8B", *ASKED, "--csv", "--breakdown")[1].splitlines()
    assert len(kernels) == 1 + 2 * 17  # 14 kernels of a layer and step, two norms of heads, the host; both phases


def test_as_python_runs_and_answers_the_same(run):
    text = run("Qwen/Qwen3-8B", *ASKED, "--as-python")[1]
    call = text.splitlines()[1].removeprefix("tilecast.")
    assert eval(call, {"predict": predict}).total_s == predict("Qwen/Qwen3-8B", "h100-sxm", batch=2, isl=64, osl=8).total_s


def test_one_token_needs_no_decode_step():
    found = predict("Qwen/Qwen3-8B", "h100-sxm", batch=2, isl=64, osl=1)
    assert (found.decode_steps, found.decode_step_s.median, found.total_s) == (0, 0.0, found.prefill_s)


def test_a_request_leaves_when_it_has_its_tokens():
    both = predict("Qwen/Qwen3-8B", "h100-sxm", requests=[(500, 100)] * 8)
    short = predict("Qwen/Qwen3-8B", "h100-sxm", requests=[(500, 100)] + [(500, 10)] * 7)
    assert (short.decode_steps, sum(short.batch.output_tokens)) == (99, 170)
    assert short.total_s.median < both.total_s.median


def test_what_does_not_fit_is_a_result(run):
    code, out, _ = run("meta-llama/Llama-3.1-70B", *ASKED, "--json")
    answer = json.loads(out)
    assert (code, answer["fits"]) == (0, False)
    assert answer["total_s"]["median"] > 0
    assert "a GPU: --tp 2 or --quant fp8 would." in " ".join(run("meta-llama/Llama-3.1-70B", *ASKED)[1].split())


def test_a_what_if_changes_the_answer_and_is_recorded(run):
    plain = json.loads(run("Qwen/Qwen3-8B", *ASKED, "--json")[1])
    faster = json.loads(run("Qwen/Qwen3-8B", *ASKED, "--json", "--set", "dram_bytes_per_s=6e12")[1])
    assert faster["decode_step_s"]["median"] < plain["decode_step_s"]["median"]
    assert faster["inputs"]["set"] == ["dram_bytes_per_s=6e12"]


def test_an_fp8_cache_is_half_as_large_and_no_slower():
    asked = {"batch": 64, "isl": 4000, "osl": 100}
    whole, half = (predict("Qwen/Qwen3-8B", "h100-sxm", kv_dtype=kv_dtype, **asked) for kv_dtype in (None, "fp8"))
    assert half.memory.kv_cache_bytes * 2 == whole.memory.kv_cache_bytes
    assert half.decode_step_s.median < whole.decode_step_s.median


def test_beyond_the_models_context_only_when_told_to(run):
    asked = ("Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--batch", 1, "--isl", 50_000, "--osl", 2, "--json")
    code, _, err = run(*asked)
    assert code == 2
    assert "beyond the 40,960 of Qwen/Qwen3-8B" in err and "--allow-longer-context" in err
    code, out, err = run(*asked, "--allow-longer-context")
    assert code == 0
    assert "50,002 tokens of context are beyond the 40,960" in err
    json.loads(out)


def test_an_encoder_reads_as_many_tokens_as_it_has_places():
    assert predict("google-bert/bert-base-uncased", "h100-sxm", batch=1, isl=512, osl=1).warnings == ()
    with pytest.raises(InvalidInput, match="513 tokens of context are beyond the 512"):
        predict("google-bert/bert-base-uncased", "h100-sxm", batch=1, isl=513, osl=1)


def test_a_box_of_other_gpus_is_a_warning(run):
    code, _, err = run("Qwen/Qwen3-8B", *ASKED, "--tp", 2, "--node", "dgx-a100", "--json")
    assert code == 0
    assert "dgx-a100 holds a100-sxm-80gb, not h100-sxm" in err


def test_what_was_run_on_a_48_gb_card_fits_there():
    # 32 requests, 33,950 prompt tokens, 48 output tokens each: measured on one A40, so it must be found to fit.
    found = predict("Qwen/Qwen2.5-14B", "a40", requests=[(1061, 48)] * 30 + [(1060, 48)] * 2)
    assert sum(found.batch.input_tokens) == 33_950
    assert found.fits


def test_a_rate_is_told_as_one():
    time = Interval(2.0, 1.6, 2.5)
    rate = time.rate_of(100)  # 100 / 2.5 to 100 / 1.6 tokens a second
    assert str(time) == "2 s (1.6-2.5)" and str(rate) == "50 (40-62.5) tokens/s"
    assert str(rate.per(2)) == "25 (20-31.2) tokens/s" and str(rate + rate) == "100 (80-125) tokens/s"
    assert rate.to_dict() == {"median": 50.0, "low": 40.0, "high": 62.5}
    assert str(NOTHING.rate_of(1)) == "0 (0-0) tokens/s"
    assert str(predict("Qwen/Qwen3-8B", "h100-sxm", batch=2, isl=64, osl=8).output_tokens_per_s).endswith(" tokens/s")


def test_a_prediction_shows_itself_in_a_notebook():
    html = predict("Qwen/Qwen3-8B", "h100-sxm", batch=2, isl=64, osl=8)._repr_html_()
    assert "decode step" in html and "Qwen/Qwen3-8B on 1 x h100-sxm" in html


def test_a_sum_is_as_weak_as_its_weakest_part():
    assert weakest(["interpolated", "unseen-gpu", "interpolated"]) == "unseen-gpu"
    assert weakest(["analytic", "measured"]) == "analytic"


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Qwen/Qwen2.5-14B", *ASKED, "--tp", 3), "tp = 3 does not divide the attention heads"),
        (("Qwen/Qwen3-32B", *ASKED, "--tp", 16), "tp = 16 is more GPUs than dgx-h100 has: 8; pp puts stages into boxes of their own"),
        (("Qwen/Qwen3-8B", *ASKED, "--tp", 0), "tp = 0"),
        (("Qwen/Qwen3-8B", *ASKED, "--engine", "tgi"), "unknown engine 'tgi'"),
        (("Qwen/Qwen3-8B", *ASKED, "--engine", "sgl"), "did you mean sglang"),
        (("Qwen/Qwen3-8B", *ASKED, "--pp", 40), "pp = 40 is more stages than Qwen/Qwen3-8B has layers: 36"),
        (("Qwen/Qwen3-8B", *ASKED, "--ep", 2), "ep = 2 must divide tp = 1"),
        (("Qwen/Qwen3-8B", *ASKED, "--tp", 2, "--ep", 2), "Qwen/Qwen3-8B has no experts"),
        (("Qwen/Qwen3-30B-A3B", *ASKED, "--tp", 8, "--dp-attention", 3), "dp_attention = 3 must divide tp = 8"),
        (("Qwen/Qwen3-30B-A3B-FP8", *ASKED, "--tp", 4), "through a 128-wide fp8 block"),
        (("Qwen/Qwen3-8B", *ASKED, "--quant", "fp5"), "unknown quant 'fp5'"),
        (("Qwen/Qwen3-8B", *ASKED, "--quant", "nvfp4"), "h100-sxm does not compute in nvfp4"),
        (("google-bert/bert-base-uncased", *ASKED), "is an encoder"),
        (("deepseek-ai/DeepSeek-V3.2", *ASKED), "sparse attention cannot be modelled yet; the nearest family is deepseek"),
        (("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", *ASKED), "state-space"),
        (("Qwen/Qwen3-8B", *ASKED, "--concurrency", 0), "concurrency = 0 must be a whole number from 1"),
        (("Qwen/Qwen3-8B", *ASKED, "--kv-dtype", "fp5"), "fp5"),
        (("Qwen/Qwen3-8B", *ASKED, "--node", "dgx-h1000"), "unknown node"),
        (("Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--batch", 0, "--isl", 64, "--osl", 8), "batch = 0"),
        (("Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--batch", 1, "--isl", 10**12, "--osl", 8), "isl = 1000000000000"),
        (("Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--batch", 1, "--isl", 64), "--osl missing"),
        (("Qwen/Qwen3-8B", *ASKED, "--requests", "x.csv"), "exclude one another"),
        (("Qwen/Qwen3-8B", "--gpu", "v100-sxm2-32gb", "--batch", 1, "--isl", 64, "--osl", 2), "does not compute in bf16"),
        (("Qwen/Qwen3-8B", *ASKED, "--json", "--csv"), "exclude one another"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; it must start with"),
        ("5,7\n6,8\n", "lacks the column input_tokens"),
        ("input_tokens,output_tokens,input_tokens\n5,7,9\n", "has the column input_tokens more than once"),
        ("input_tokens,output_tokens\n5,7\n1,024,8\n", "line 3: 8 stands behind the last column"),
        ("input_tokens,output_tokens\n", "holds no requests"),
        ('input_tokens,output_tokens\n"8,2\n9,3\n', "is no CSV in UTF-8: unexpected end of data"),
        ("input_tokens\n5\n", "lacks the column output_tokens"),
        ("input_tokens,output_tokens\n5,0\n", "line 2: output_tokens = '0'"),
        ("input_tokens,output_tokens\n5,7\n5\n", "line 3: output_tokens = ''"),
        ("input_tokens,output_tokens\n5.5,7\n", "input_tokens = '5.5'"),
        ("input_tokens,output_tokens\n9999999999999999,7\n", "input_tokens = '9999999999999999'"),
    ],
)
def test_a_bad_requests_file_names_the_line(tmp_path, text, message):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_requests(path)


def test_columns_of_a_requests_file_that_are_not_used_are_named(tmp_path, tilecast):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0.5,100,8\n")
    shown = tilecast("predict", "Qwen/Qwen3-0.6B", "--gpu", "h100-sxm", "--requests", str(path))
    assert shown.code == 0 and "not used: arrival_s; a request is its input_tokens and output_tokens" in shown.err
    path.write_text("output_tokens,input_tokens\n8,100\n")
    assert tilecast("predict", "Qwen/Qwen3-0.6B", "--gpu", "h100-sxm", "--requests", str(path)).err == ""


def test_a_requests_file_is_read_whatever_its_column_order(tmp_path, run):
    path = tmp_path / "requests.csv"
    path.write_text("output_tokens,id,input_tokens\n7,a,5\n\n9,b,100\n")
    assert read_requests(path) == [(5, 7), (100, 9)]
    answer = json.loads(run("Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--requests", path, "--json")[1])
    assert (answer["decode_steps"], answer["inputs"]["requests"]) == (8, [[5, 7], [100, 9]])


def test_no_requests_file_is_missing_data(tmp_path):
    with pytest.raises(MissingData, match="no file"):
        read_requests(tmp_path / "none.csv")


def test_a_gpu_without_the_dtype_is_refused():
    with pytest.raises(SpecError, match="bf16"):
        predict("Qwen/Qwen3-8B", "t4", batch=1, isl=16, osl=2)


@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_integers_of_numpy_are_those_of_python(integer):
    asked = {"tp": 2, "ep": 1, "batch": 32, "isl": 2048, "osl": 4}
    given = predict("Qwen/Qwen3-32B", "h100-sxm", **{name: integer(value) for name, value in asked.items()})
    assert json.dumps(given.to_dict()) == json.dumps(predict("Qwen/Qwen3-32B", "h100-sxm", **asked).to_dict())


def test_requests_may_be_an_array():
    pairs = [(2048, 4)] * 64
    given = predict(CONFIG | {"max_position_embeddings": 4096}, "h100-sxm", requests=np.array(pairs, dtype=np.int16))
    assert given.to_dict() == predict(CONFIG | {"max_position_embeddings": 4096}, "h100-sxm", requests=pairs).to_dict()


@pytest.mark.parametrize("requests", [5, [5], [(1, 2, 3)], "ab"])
def test_requests_that_are_no_pairs_are_refused(requests):
    with pytest.raises(InvalidInput, match="must be pairs of input and output tokens"):
        predict(CONFIG, "h100-sxm", requests=requests)


def test_requests_and_sizes_exclude_one_another():
    with pytest.raises(InvalidInput, match="not both"):
        predict("Qwen/Qwen3-8B", "h100-sxm", batch=1, isl=16, osl=2, requests=[(1, 2)])
    with pytest.raises(InvalidInput, match="at least one"):
        predict("Qwen/Qwen3-8B", "h100-sxm", requests=[])


def test_help_lists_only_what_works(run):
    shown = {option.name for option in command.params if not getattr(option, "hidden", False)}
    assert shown >= {"concurrency", "engine_assignments", "pp", "ep", "dp_attention", "quant", "kv_dtype", "node", "profile"}
    assert run("--help")[0] == 0
