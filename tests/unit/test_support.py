"""`tilecast support`: what it says of a kernel is what the artifact's index and the prediction say."""

import json

import pytest

from tilecast.diagnosis.support import by_basis, support
from tilecast.engines.predict import predict
from tilecast.learning.correction import load
from tilecast.learning.manifests import FOLDER

ASKED = {"batch": 8, "isl": 512, "osl": 32}


@pytest.fixture(scope="module", params=[("h100-sxm", 2), ("rtx-6000-ada", 1), ("mi300x", 1)], ids=lambda param: param[0])
def found(request):
    gpu, tp = request.param
    return predict("Qwen/Qwen3-8B", gpu, tp=tp, **ASKED)


def test_shares_are_all_of_the_time(found):
    entries = support(found)
    assert sum(entry.share_fraction for entry in entries) == pytest.approx(1.0)
    assert sum(by_basis(entries).values()) == pytest.approx(1.0)
    assert {name for entry in entries for name in entry.parts} == {part.name for part in found.breakdown}


def test_rows_sources_and_errors_are_those_of_the_manifests(found):
    for entry in support(found):
        path = FOLDER / f"{entry.family}.json"
        if entry.basis == "analytic":
            assert (entry.rows, entry.sources, entry.mean_error_percent) == (0, (), None)
            continue
        manifest = json.loads(path.read_text())
        assert set(entry.sources) == {source["name"] for source in manifest["sources"]}
        rows = manifest["rows_per_gpu"][entry.data_gpu] if entry.data_gpu else manifest["num_rows"]
        assert entry.rows == rows > 0
        if entry.basis == "extrapolated-shape":  # nobody held sizes beyond the measured ones out
            assert entry.mean_error_percent is None
            continue
        scores = manifest["scores"][entry.basis if entry.data_gpu in (None, found.gpu.id) else "same-die"]
        assert min(scores.values()) <= entry.mean_error_percent <= max(scores.values())


def test_the_basis_follows_from_whose_data_it_is(found):
    for entry in support(found):
        if entry.basis in ("interpolated", "extrapolated-shape"):
            assert entry.data_gpu == found.gpu.id
        elif entry.data_gpu is not None:
            assert entry.basis == "unseen-gpu" and entry.data_gpu != found.gpu.id
        if entry.data_gpu is not None:
            measured = load(entry.family).measured[entry.data_gpu]
            told = next(engines for key, engines in measured.items() if key.replace(" None", "") == entry.kernel)
            assert list(entry.engines) == [name for name in told if name]
            assert "None" not in entry.kernel


def test_a_sibling_stands_in():
    products = next(entry for entry in support(predict("Qwen/Qwen3-8B", "rtx-6000-ada", **ASKED)) if entry.family == "gemm")
    assert (products.data_gpu, products.basis) == ("l40s", "unseen-gpu")


def test_sizes_beyond_the_data_do_not_borrow_the_error_of_those_within():
    far = [
        entry for entry in support(predict("Qwen/Qwen3-8B", "h100-sxm", batch=512, isl=8192, osl=2)) if entry.basis == "extrapolated-shape"
    ]
    assert far and all(entry.rows and entry.mean_error_percent is None for entry in far)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_bytes(path.read_bytes()[:5000]), lambda path: path.unlink()], ids=["cut", "gone"]
)
def test_spoilt_weights_leave_an_answer_that_says_so(tilecast, tmp_path, monkeypatch, spoil):
    for path in FOLDER.glob("*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spoil(tmp_path / "gemm.safetensors")
    monkeypatch.setattr("tilecast.learning.correction.FOLDER", tmp_path)
    load.cache_clear()
    try:
        shown = tilecast("support", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--json")
    finally:
        load.cache_clear()
    assert shown.code == 0, shown.err
    assert {entry["basis"] for entry in shown.json["kernels"] if entry["family"] == "gemm"} == {"analytic"}
    assert "run 'tilecast fit'; until then predictions of gemm rest on physics alone" in shown.err
    assert len(set(shown.err.splitlines())) == 1
    assert shown.json["versions"]["artifacts"].endswith(" without gemm")


def test_the_command_says_it_in_a_sentence_a_table_and_json(tilecast):
    shown = tilecast("support", "Qwen/Qwen3-8B", "--gpu", "h100-sxm")
    assert shown.code == 0
    assert shown.out.splitlines()[0].endswith("% is physics alone.")
    answer = tilecast("support", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--json").json
    assert answer["schema"] == "tilecast.support/1"
    assert answer["kernels"][0]["family"] == "gemm" and answer["kernels"][0]["rows"] > 100_000
    assert f"{answer['kernels'][0]['rows']:,}" in shown.out
    assert all(f"{source['rows']:,}" in shown.out for sources in answer["sources"].values() for source in sources)
    assert len(tilecast("support", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--csv").out.splitlines()) == 1 + len(answer["kernels"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Qwen/Qwen3-8B", "--gpu", "h1oo"), "unknown GPU 'h1oo'"),
        (("Qwen/Qwen9-8B", "--gpu", "h100-sxm"), "unknown model"),
        (("Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--tp", "3"), "tp = 3 does not divide"),
    ],
)
def test_wrong_input_is_one_sentence(tilecast, arguments, message):
    shown = tilecast("support", *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err and len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    "asked",
    [
        "Qwen/Qwen3-8B --gpu h100-sxm --quant fp8",
        "Qwen/Qwen3-8B --gpu t4 --quant fp16",  # its bf16 is refused with this advice
        "deepseek-ai/DeepSeek-V3 --gpu h200-sxm --tp 8 --ep 8 --dp-attention 8",
        "Qwen/Qwen3-8B --gpu h100-sxm --tp 2 --pp 2",
        "Qwen/Qwen3-8B --gpu h100-sxm --isl 50000 --allow-longer-context",
    ],
)
def test_what_predict_can_be_asked_of_a_batch_its_support_can_too(tilecast, asked):
    sizes = ["--batch", "32", "--osl", "256", *([] if "--isl" in asked else ["--isl", "2048"])]
    predicted, supported = tilecast("predict", *asked.split(), *sizes, "--json"), tilecast("support", *asked.split(), "--json")
    assert supported.code == 0 and supported.err == predicted.err
    assert supported.json["inputs"] == predicted.json["inputs"]
    assert supported.json["share_by_basis"] == pytest.approx(predicted.json["basis_shares"])
