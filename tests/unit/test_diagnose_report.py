"""What a diagnosis says: advice that follows its figures, the difference of two runs, and a page whose figures are all in the JSON."""

import csv
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.unit.command_line import Tilecast
from tests.unit.made_trace import ADD, GEMM, MM, SUM, Made, plain
from tilecast import units
from tilecast.diagnosis.advice import Facts, RunFacts, advise, advise_run
from tilecast.diagnosis.diagnose import diagnose
from tilecast.diagnosis.difference import Difference, difference

PRODUCT = Facts(
    family="gemm", library="cuBLAS", kernel="sm90_xmma_gemm_tilesize128x128x64_x", measured_s=200e-6, predicted_s=110e-6, ceiling_s=90e-6,
    bound_s=60e-6, bound_by="tensor", parts={"wave tail": 5e-6, "this kernel": 90e-6}, sizes={"m": 4096, "n": 4096, "k": 1024}, waves=3.88,
)  # fmt: skip

# ---- advice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "word", "figure"),
    [
        ({}, "well-made kernels", "90 us"),
        ({"ceiling_s": 80e-6}, "well-made kernels", "80 us"),
        ({"measured_s": 95e-6}, "As fast as such kernels get", "95 us"),
        ({"measured_s": 95e-6, "bound_by": "dram"}, "fewer bytes", "95 us"),
        ({"sizes": {"m": 4096, "n": 4097, "k": 1024}}, "no multiple of 8", "pad to 4,104"),
        ({"sizes": {"m": 4096, "n": 4099, "k": 1024}, "element_bytes": 4.0}, "no multiple of 4", "pad to 4,100"),
        ({"sizes": {"m": 4097, "n": 4096, "k": 1024}}, "well-made kernels", "90 us"),  # only rows in memory have to be aligned
        ({"parts": {"wave tail": 60e-6, "launch": 3e-6}, "predicted_s": 190e-6}, "last wave", "60 us of 200 us"),
        ({"parts": {"wave tail": 50e-6, "launch": 3e-6}, "predicted_s": 190e-6}, "last wave", "50 us of 200 us"),
        ({"parts": {"wave tail": 3e-6, "launch": 60e-6}, "predicted_s": 190e-6}, "launch itself", "60 us of 200 us"),
        ({"parts": {"padding": 70e-6}, "predicted_s": 190e-6}, "padding", "70 us of 200 us"),
        ({"is_amd": True, "kernel": "Cijk_MT128x256x32_MI16"}, "TunableOp", "MT128x256x32"),
        ({"family": "moe", "library": "Triton (vLLM, SGLang)"}, "tilecast tune moe", "90 us"),
        ({"family": "attention_prefill"}, "attention backend", "cuBLAS"),
        ({"family": "memory_pass", "strided": (64, 1, 8)}, "not contiguous", "strides 64 1 8"),
        ({"family": "memory_pass", "one_by_one": True}, "one element at a time", "90 us"),
        ({"family": "all_reduce", "sizes": {"bytes": 1 << 20, "num_gpus": 8}, "bound_by": "link"}, "1 MiB among 8 GPUs", "90 us"),
    ],
)
def test_advice_follows_its_figure_and_quotes_it(changed: dict[str, Any], word: str, figure: str) -> None:
    sentence = advise(replace(PRODUCT, **changed))
    assert word in sentence
    assert figure in sentence
    assert sentence.endswith(".")


def test_every_figure_that_changes_changes_the_sentence() -> None:
    said = advise(PRODUCT)
    assert advise(replace(PRODUCT, measured_s=210e-6)) != said
    assert advise(replace(PRODUCT, ceiling_s=70e-6)) != said
    unaligned = replace(PRODUCT, sizes={"m": 8, "n": 4097, "k": 1024})
    assert advise(replace(unaligned, predicted_s=100e-6)) != advise(unaligned)


def test_the_sentence_of_a_trace_changes_with_its_times(tmp_path: Path) -> None:
    def advice(length: float, dims: list[list[int]]) -> str:
        made = Made()
        made.call("aten::mm", dims, GEMM, 0.0, length)
        (row,) = diagnose(made.write(tmp_path / "t.json")).rows
        return row.advice

    wide = [[8192, 1024], [1024, 4096]]
    assert "As fast as such kernels get (72 us" in advice(72.0, wide)  # 69.5 us at the peak rate
    assert "It takes 900 us" in advice(900.0, wide)
    assert "n = 4,097 is no multiple of 8" in advice(900.0, [[8192, 1024], [1024, 4097]])


RUN = RunFacts(
    span_s=1.0, idle_s=0.4, waiting_for_host_s=0.3, longest_gap_s=0.01, num_gaps=1000, communicating_s=0.0, exposed_s=0.0, with_stack=False,
    gpu_s=0.6,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["idle 400 ms, 40 % of the span, 300 ms of it because the next kernel had not been launched"]),
        ({"idle_s": 0.3, "waiting_for_host_s": 0.2}, ["idle 300 ms, 30 % of the span, 200 ms of it because"]),
        ({"waiting_for_host_s": 0.1}, ["in 1,000 gaps, most of them not for want of a launch"]),
        ({"waiting_for_host_s": None}, ["in 1,000 gaps, the longest 10 ms; the clocks of host and GPU differ"]),
        ({"longest_gap_s": 0.35}, ["350 ms of it in one gap"]),
        ({"with_stack": True}, ["Python stacks were recorded"]),
        ({"idle_s": 0.01}, []),
        ({"idle_s": 0.0, "communicating_s": 0.3, "exposed_s": 0.2}, ["takes 300 ms: 100 ms hide behind computation, 200 ms (20 %"]),
        ({"idle_s": 0.0, "pointwise_s": 0.3, "pointwise_calls": 4000}, ["4,000 pointwise, copy and reduction kernels take 300 ms, 50 %"]),
        ({"idle_s": 0.0, "host_copy_s": 0.1, "pageable_copies": 3}, ["take 100 ms, 3 of them from or to pageable memory"]),
        ({"idle_s": 0.0, "rank_communicating_s": {"0": 0.1, "1": 0.4}}, ["Rank 0 communicates 100 ms, others up to 400 ms"]),
    ],
)  # fmt: skip
def test_findings_on_the_run_quote_what_they_follow_from(changed: dict[str, Any], words: list[str]) -> None:
    found = advise_run(replace(RUN, **changed))
    assert len(found) == len(words)
    for sentence, expected in zip(found, words, strict=True):
        assert expected in sentence


def test_attention_made_of_products_and_softmax_is_found_and_set_against_a_fused_kernel(tmp_path: Path) -> None:
    made = Made()
    soft = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"
    for layer in range(3):
        made.call("aten::bmm", [[32, 2048, 64], [32, 64, 2048]], GEMM, 1000.0 * layer, 200.0)
        made.call("aten::_softmax", [[32, 2048, 2048], [], []], soft, 1000.0 * layer + 300, 400.0)
        made.call("aten::bmm", [[32, 2048, 2048], [32, 2048, 64]], GEMM, 1000.0 * layer + 750, 200.0)
    found = diagnose(made.write(tmp_path / "t.json"))
    assert "Attention runs as separate products and softmax: 2.4 ms (100 % of GPU time) in 3 calls" in found.findings[0]
    assert "256 MiB of scores" in found.findings[0]
    for event in made.events:
        if event["name"] == "aten::_softmax":
            event["args"]["Input Dims"] = [[32, 2048, 2040], [], []]  # a softmax over something else
    assert not any("separate products" in sentence for sentence in diagnose(made.write(tmp_path / "t.json")).findings)


# ---- two runs ------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_difference_add_up(tmp_path: Path) -> None:
    slow = plain(6)
    for event in slow.events:
        if event["cat"] == "kernel" and event["name"] == GEMM:
            event["dur"] = 45.0
    slow.call("aten::mm", [[64, 64], [64, 64]], "nvjet_other", 900.0, 70.0)
    slow.kernel(ADD, 910.0, 30.0, 999, stream=9)  # at the same time as the last product
    this, other = diagnose(slow.write(tmp_path / "a.json")), diagnose(plain(4).write(tmp_path / "b.json"))
    found = difference(this, other)
    for parts in (found.families, found.work):
        assert sum(part.difference_s for part in parts) == pytest.approx(this.gpu_time_s - other.gpu_time_s)
        assert all(part.by_calls_s + part.by_speed_s == pytest.approx(part.difference_s) for part in parts)
    whole = found.idle_s + found.at_once_s + sum(part.difference_s for part in found.families)
    assert whole == pytest.approx(found.span_s) == pytest.approx(this.timeline.span_s - other.timeline.span_s)
    product = next(part for part in found.work if part.name.startswith("aten::mm 256x1024"))
    # 6 calls of 45 us against 4 of 40 us: 2 more at 40 us, and 5 us on each of 6
    assert (product.by_calls_s, product.by_speed_s) == (pytest.approx(80e-6), pytest.approx(30e-6))
    assert product.ratio == pytest.approx(45 / 40)
    assert product.predicted_ratio == pytest.approx(1.0)


def test_a_run_against_itself_has_no_difference(tmp_path: Path, tilecast: Tilecast) -> None:
    path = plain().write(tmp_path / "t.json")
    found = tilecast("diagnose", path, "--against", path, "--json").json["against"]
    assert found["span_s"] == found["idle_s"] == 0
    assert all(part["difference_s"] == 0 for part in found["work"])
    (sentence,) = found["sentences"]
    assert sentence.count("us") == 2 and "longer" not in sentence and "less" not in sentence


@pytest.mark.parametrize(
    ("spans", "idle_s", "words"),
    [
        ((3e-3, 2e-3), 4e-4, "3 ms, the other 2 ms: 1 ms longer, and its GPU is idle 400 us longer."),
        ((2e-3, 3e-3), -4e-4, "2 ms, the other 3 ms: 1 ms less, and its GPU is idle 400 us less."),
        ((3e-3, 2e-3), -4e-4, "1 ms longer, and its GPU is idle 400 us less."),
    ],
)
def test_the_first_sentence_of_a_difference_has_no_signs(spans: tuple[float, float], idle_s: float, words: str) -> None:
    found = Difference(this_span_s=spans[0], other_span_s=spans[1], idle_s=idle_s, at_once_s=0.0, families=(), work=())
    assert found.sentences()[0].endswith(words)


def test_against_explains_two_gpus_with_what_the_prediction_expects(tmp_path: Path, tilecast: Tilecast) -> None:
    here, there = plain(), plain()
    there.device = "NVIDIA A100-SXM4-80GB"
    for event in there.events:
        if event["cat"] == "kernel" and event["name"] == GEMM:
            event |= {"name": "ampere_bf16_s16816gemm_bf16_128x128_tn", "dur": 80.0}
    result = tilecast("diagnose", here.write(tmp_path / "a.json"), "--against", there.write(tmp_path / "b.json"))
    assert "gemm: -160 us" in result.out
    assert "0.50 times as long a call" in result.out
    assert "the prediction says" in " ".join(result.out.split())


# ---- the page ------------------------------------------------------------------------------------------------------


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for entry in value.values() for leaf in _leaves(entry)] + list(value)
    if isinstance(value, list):
        return [leaf for entry in value for leaf in _leaves(entry)]
    return [value]


def _said(payload: Any) -> tuple[set[str], str]:
    """Every figure of the JSON as a person would write it, and all its texts."""
    leaves = _leaves(payload)
    figures: set[str] = set()
    for value in leaves:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        figures |= {
            units.human("_s", abs(value)),
            f"{100 * value:.1f} %",
            f"{value:,}",
            f"{value:.2f}",
            f"{value:.1f} %",
            f"{value:+.1f} %",
        }
    return figures, " ".join(str(value) for value in leaves if isinstance(value, str))


def _visible(page: str) -> str:
    without = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.S)
    return unescape(re.sub(r"<[^>]*>", "\n", without.replace("<wbr>", "")))


FIGURE = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?: (?:ns|us|ms|s|%|MiB|GiB|KiB))?(?![\w.])")


def test_every_figure_of_the_page_is_in_the_json(tmp_path: Path, tilecast: Tilecast) -> None:
    made = plain(5)
    made.call("aten::mm", None, "who_knows", 800.0, 33.0)
    made.call("aten::index", SUM, "void at::native::index_elementwise_kernel<128>", 900.0, 17.0)
    traces = [made.write(tmp_path / "a.json"), plain(4).write(tmp_path / "b.json")]
    page = tmp_path / "report.html"
    result = tilecast("diagnose", traces[0], "--against", traces[1], "--html", str(page), "--json")
    assert result.code == 0
    figures, texts = _said(result.json)
    text = _visible(page.read_text(encoding="utf-8"))
    found = set()
    for line in text.splitlines():
        found |= {match.group(0) for match in FIGURE.finditer(line)}
    numbered = {f"{place}." for place in range(1, 20)}
    made_up = {one for one in found if one.lstrip("+-") not in figures and one not in figures and one not in texts}
    made_up -= {one for one in made_up if f"{one}." in numbered or (one.isdigit() and int(one) < 20)}  # places in a ranking
    assert len(found) > 60
    assert not made_up


def test_the_page_stands_alone(tmp_path: Path, tilecast: Tilecast) -> None:
    made = plain()
    made.call("aten::mm", MM, "<script>alert('x')</script>", 800.0, 33.0)
    page = tmp_path / "report.html"
    assert tilecast("diagnose", made.write(tmp_path / "t.json"), "--html", str(page)).code == 0
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert not re.search(r"(?:src|href)\s*=|https?://(?!www\.w3\.org)", text)
    assert "width=device-width" in text
    assert text.count("<details") >= 3


def test_secrets_in_the_metadata_of_a_trace_go_nowhere(tmp_path: Path, tilecast: Tilecast) -> None:
    made = plain()
    made.metadata = {"metadata": {"env": {"API_TOKEN": "hf_secret"}}}
    page = tmp_path / "report.html"
    result = tilecast("diagnose", made.write(tmp_path / "t.json"), "--html", str(page), "--json")
    assert "hf_secret" not in result.out + result.err + page.read_text(encoding="utf-8")


def test_csv_has_a_line_for_each_kernel_and_python_the_same_call(tmp_path: Path, tilecast: Tilecast) -> None:
    path = plain().write(tmp_path / "t.json")
    lines = tilecast("diagnose", path, "--csv").out.splitlines()
    assert len(lines) == 3
    assert {"op", "measured_s", "ceiling_s", "recoverable_s"} <= set(lines[0].split(","))
    code = tilecast("diagnose", path, "--gpu", "a100-sxm-80gb", "--as-python").out
    scope: dict[str, Any] = {}
    exec(code.replace("\ntilecast.", "\nfound = tilecast."), scope)
    assert scope["found"].gpu.id == "a100-sxm-80gb"


def test_csv_of_a_comparison_has_a_line_for_each_piece_of_work(tmp_path: Path, tilecast: Tilecast) -> None:
    here, there = plain(3).write(tmp_path / "a.json"), plain(5).write(tmp_path / "b.json")
    lines = list(csv.DictReader(tilecast("diagnose", here, "--against", there, "--csv").out.splitlines()))
    work = tilecast("diagnose", here, "--against", there, "--json").json["against"]["work"]
    assert [line["name"] for line in lines] == [part["name"] for part in work]
    assert float(lines[0]["difference_s"]) == work[0]["difference_s"] and int(lines[0]["other.calls"]) == 5


def test_as_python_compares_too_and_refuses_a_page(tmp_path: Path, tilecast: Tilecast) -> None:
    path = plain().write(tmp_path / "t.json")
    *before, last = tilecast("diagnose", path, "--against", path, "--against-gpu", "h100-sxm", "--as-python").out.strip().splitlines()
    scope: dict[str, Any] = {}
    exec("\n".join([*before, f"found = {last}"]), scope)
    assert scope["found"] == difference(diagnose(path), diagnose(path, gpu="h100-sxm"))
    refused = tilecast("diagnose", path, "--html", str(tmp_path / "x.html"), "--as-python")
    assert refused.code == 2 and "--as-python has no call for --html" in refused.err and not (tmp_path / "x.html").exists()


def test_a_notebook_shows_a_table(tmp_path: Path) -> None:
    shown = diagnose(plain().write(tmp_path / "t.json"))._repr_html_()
    assert "aten::mm" in shown and "t.json on h100-sxm" in shown


def test_bad_options_are_refused(tmp_path: Path, tilecast: Tilecast) -> None:
    path = plain().write(tmp_path / "t.json")
    assert tilecast("diagnose", path, "--quantile", "1.5").code == 2
    assert "goes with --against" in tilecast("diagnose", path, "--against-gpu", "h20").err
    twice = tilecast("diagnose", path, str(tmp_path / ".." / tmp_path.name / "t.json"))
    assert twice.code == 2 and "given twice" in twice.err
    assert tilecast("diagnose", path, "--html", str(tmp_path / "page.txt")).code == 2
    assert tilecast("diagnose").code == 2
    assert tilecast("diagnose", path, "--gpu", "h1000").code == 2
