"""What `tilecast predict` writes besides its table: --breakdown, --why, --html and --trace."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from tilecast import units
from tilecast.diagnosis import what_if
from tilecast.diagnosis.what_if import GOAL, why
from tilecast.engines.calibrated import profile_from_run
from tilecast.engines.predict import predict
from tilecast.predictors import predict_kernel
from tilecast.report.figures import figures
from tilecast.report.renderers.chrome_trace import TRACKS, trace
from tilecast.report.renderers.svg import Series, axis, chart

ASKED = {"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm", "tp": 2, "batch": 8, "isl": 512, "osl": 33}
LINE = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--tp", "2", "--batch", "8", "--isl", "512", "--osl", "33")


@pytest.fixture(scope="module")
def found():
    return predict(**ASKED)


# ---- breakdown ---------------------------------------------------------------------------------------------------


def test_the_breakdown_shows_every_kernel_with_bound_efficiency_and_basis(tilecast, found):
    shown, answer = tilecast(*LINE, "--breakdown").out, tilecast(*LINE, "--breakdown", "--json").json
    assert re.search(r"part +launches +time +share +bound by +bound +efficiency +basis", shown)
    for part in answer["breakdown"]:
        steps = 1 if part["phase"] == "prefill" else answer["decode_steps"]
        assert part["name"] in shown and units.human("_s", part["median_s"] / steps) in shown
        if part["name"] != "host" and part["median_s"]:
            assert part["efficiency"] == pytest.approx(part["bound_s"] / part["median_s"])
            assert f"{100 * part['efficiency']:.0f} %" in shown
    for phase in ("prefill", "decode"):
        assert sum(part["share_fraction"] for part in answer["breakdown"] if part["phase"] == phase) == pytest.approx(1.0)


# ---- why ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reasons(found):
    return why(found, ASKED)


def physics(kernel, gpu, **conditions):
    """Prices that no correction touches: then a lever is the changed GPU predicted, and nothing else."""
    return predict_kernel(kernel, gpu, learned=False, **conditions)


def test_a_lever_is_the_changed_gpu_priced_again():
    now = predict(**ASKED, price=physics)
    levers = {lever.name: lever for lever in why(now, ASKED, physics).levers}
    for name, fact in (("DRAM bandwidth", "dram_bytes_per_s"), ("SM clock", "boost_clock_hz"), ("power limit", "tdp_w")):
        alone = predict(**ASKED, overrides={fact: getattr(now.gpu, fact) * 1.1}, price=physics)
        assert levers[name].total_s == pytest.approx(alone.total_s.median)
        assert levers[name].total_saved_fraction == pytest.approx(1 - alone.total_s.median / now.total_s.median)
        assert levers[name].rest_saved_fraction == pytest.approx(1 - alone.decode_s.median / now.decode_s.median)
    factor = levers["DRAM bandwidth"].needed_factor
    then = predict(**ASKED, overrides={"dram_bytes_per_s": now.gpu.dram_bytes_per_s * factor}, price=physics)
    assert now.total_s.median / then.total_s.median == pytest.approx(GOAL, rel=0.01)


def test_the_correction_stays_and_more_of_anything_never_costs_time(found, reasons):
    levers = {lever.name: lever for lever in reasons.levers}
    for name, lever in levers.items():  # tiles dealt to more SMs may fit them worse
        assert lever.total_saved_fraction > (-2e-3 if name == "number of SMs" else -1e-9)
    alone = predict(**ASKED, overrides={"dram_bytes_per_s": found.gpu.dram_bytes_per_s * 1.1})
    assert levers["DRAM bandwidth"].total_s == pytest.approx(alone.total_s.median, rel=0.05)


def test_the_link_is_a_lever_of_a_group_only(found, reasons):
    link = next(lever for lever in reasons.levers if lever.name == "link bandwidth")
    collectives = sum(part.time.median for part in found.breakdown if part.family in ("all_reduce", "all_gather")) / found.total_s.median
    assert 0 <= link.total_saved_fraction < 0.1 * collectives
    alone = ASKED | {"tp": 1}
    assert "link bandwidth" not in {lever.name for lever in why(predict(**alone), alone).levers}


def test_levers_are_sorted_and_the_sentence_names_the_first(reasons):
    saved = [lever.total_saved_fraction for lever in reasons.levers]
    assert saved == sorted(saved, reverse=True)
    assert reasons.sentence.startswith(f"What helps most is {reasons.levers[0].name}: ")


def test_a_batch_row_is_a_prediction_of_that_batch(reasons):
    assert [outcome.batch for outcome in reasons.batches] == [4, 8, 9, 16, 32]
    twice = next(outcome for outcome in reasons.batches if outcome.batch == 16)
    assert twice.total_s.median == pytest.approx(predict(**ASKED | {"batch": 16}).total_s.median)


def test_why_is_printed_and_in_the_json(tilecast):
    shown, answer = tilecast(*LINE, "--why").out, tilecast(*LINE, "--why", "--json").json
    assert "What would make it faster" in shown and "What the batch does" in shown
    for lever in answer["why"]["levers"]:
        assert f"{100 * lever['total_saved_fraction']:.1f} %" in shown and units.human("_s", lever["total_s"]) in shown
    assert "why" not in tilecast(*LINE, "--json").json


def test_why_of_a_gpu_that_was_measured(found):
    run = {"command": "predict", "inputs": ASKED, "measured": {"prefill_s": 1.3 * found.prefill_s.median}}
    measured = {"profile": profile_from_run(run, "h100-sxm")}
    slower = predict(**ASKED, **measured)
    assert slower.prefill_s.median > 1.1 * found.prefill_s.median
    levers = why(slower, ASKED | measured).levers
    assert levers[0].total_saved_fraction > 0
    assert all(lever.total_s <= 1.005 * slower.total_s.median for lever in levers)


def test_why_of_requests_that_differ():
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "a40", "requests": [(100, 8), (2000, 3)]}
    reasons = why(predict(**asked), asked)
    assert reasons.batches == () and reasons.levers[0].total_saved_fraction > 0


# ---- html --------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page shows, what it loads, and whether its tags close."""

    def __init__(self, text):
        super().__init__()
        self.shown, self.loads, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset") and value]
        self.shown += [value for name, value in attributes if name == "title"]
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.shown.append(data)

    @property
    def text(self):
        return " ".join("\n".join(self.shown).split())


@pytest.fixture
def written(tilecast, tmp_path):
    path = tmp_path / "report.html"
    shown = tilecast(*LINE, "--html", str(path), "--json")
    assert shown.code == 0 and f"wrote {path}" in shown.err
    return path.read_text(encoding="utf-8"), shown.json


def test_the_page_needs_nothing_else(written):
    text, _ = written
    page = Page(text)
    assert page.loads == [] and page.open == []
    assert not re.search(r"https?://|url\(|@import", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))


def test_the_page_shows_the_figures_of_its_json(written):
    text, answer = written
    page = Page(text)
    held = json.loads(text.split("id='tilecast'>")[1].split("</script>")[0])
    assert {name: value for name, value in held.items() if name != "why"} == answer
    for name in ("ttft_s", "decode_step_s", "tpot_s", "total_s"):
        for end in ("median", "low", "high"):
            assert (
                units.significant(answer[name][end] / units.UNITS["_s"][units.human("_s", answer[name]["median"]).split()[1]]) in page.text
            )
    for part in answer["breakdown"]:
        steps = 1 if part["phase"] == "prefill" else answer["decode_steps"]
        assert units.interval_s(*(part[name] / steps for name in ("median_s", "low_s", "high_s"))) in page.text
    for kernel in answer["figures"]["roofline"]["kernels"]:
        assert units.human("_flop_per_s", kernel["flop_per_s"]) in page.text
    for point in answer["figures"]["contexts"]:
        assert (
            f"{units.interval_s(*(point['decode_step_s'][end] for end in ('median', 'low', 'high')))} at {point['context_tokens']:,}"
            in page.text
        )
    for point in answer["figures"]["batches"]:
        assert f"batch {point['batch']}: first token {units.human('_s', point['ttft_s']['median'])}" in page.text
    for name in ("weights_bytes", "kv_cache_bytes", "activations_bytes", "reserved_bytes", "total_bytes", "capacity_bytes"):
        assert units.human("_bytes", answer["memory"][name]) in page.text
    for value in (*answer["versions"].values(), "Qwen/Qwen3-8B", "h100-sxm"):
        assert value in unescape(page.text)


def test_no_kernel_is_above_the_roof_that_binds_it_in_prefill(found):
    roofline = figures(found, ASKED)["roofline"]
    assert {kernel["name"] for kernel in roofline["kernels"]} >= {"gate_up_proj", "attention", "input_norm"}
    for kernel in roofline["kernels"]:
        if kernel["dtype"] == "bf16":
            assert kernel["flop_per_s"] <= roofline["peak_flop_per_s"]["bf16"] * 1.1  # the data sheet's peak is at a lower clock


def test_the_last_batch_of_the_curve_is_the_largest_that_fits(found):
    largest = figures(found, ASKED)["batches"][-1]["batch"]
    assert predict(**ASKED | {"batch": largest}).fits
    assert not predict(**ASKED | {"batch": round(largest * 1.01) + 1}).fits or largest == 4096


def test_a_step_takes_longer_the_longer_the_context(found):
    points = figures(found, ASKED)["contexts"]
    assert points[0]["decode_step_s"]["median"] < points[-1]["decode_step_s"]["median"]
    here = next(point for point in points if point["context_tokens"] >= 512)
    alone = predict(**ASKED | {"isl": here["context_tokens"] - 1, "osl": 2})
    assert here["decode_step_s"]["median"] == pytest.approx(alone.decode_step_s.median)


def test_a_name_with_markup_is_shown_not_run(tilecast, tmp_path):
    folder = tmp_path / "<b>&amp;"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000,
        "intermediate_size": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    path = tmp_path / "x.html"
    assert tilecast("predict", str(folder), "--gpu", "a40", "--batch", "1", "--isl", "8", "--osl", "1", "--html", str(path)).code == 0
    assert "<b>&amp;/" not in path.read_text()
    assert Page(path.read_text()).open == []


def test_a_chart_of_one_point_has_axes():
    x, y = (axis("n", [5.0], units.significant, log=log) for log in (True, False))
    drawn = chart(x, y, [Series(name="s", points=[(5.0, 5.0, "here")])], title="t")
    assert "here" in drawn and drawn.count("class='grid'") >= 2


# ---- trace -------------------------------------------------------------------------------------------------------


def check_trace(made):
    """The trace event format, as far as Perfetto and chrome://tracing ask for it."""
    assert set(made) == {"traceEvents", "displayTimeUnit", "otherData"} and made["displayTimeUnit"] in ("ms", "ns")
    for event in made["traceEvents"]:
        assert isinstance(event["name"], str) and event["ph"] in ("X", "M") and isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index") and len(event["args"]) == 1
        else:
            assert event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] in TRACKS.values() and isinstance(event["cat"], str)
    for track in TRACKS.values():  # slices of a track follow one another
        ends = 0.0
        for event in sorted((one for one in made["traceEvents"] if one["ph"] == "X" and one["tid"] == track), key=lambda one: one["ts"]):
            assert event["ts"] >= ends - 1e-6 * max(1.0, ends)
            ends = event["ts"] + event["dur"]


def slices(made, track):
    return [event for event in made["traceEvents"] if event["ph"] == "X" and event["tid"] == TRACKS[track]]


def test_the_trace_is_valid_and_as_long_as_the_prediction(found, tilecast, tmp_path):
    path = tmp_path / "t.json"
    assert tilecast(*LINE, "--trace", str(path)).code == 0
    made = json.loads(path.read_text())
    check_trace(made)
    steps = slices(made, "steps")
    assert [step["name"] for step in steps] == ["prefill", "decode step 1", "decode step 2", "decode step 3"]
    assert steps[0]["dur"] == pytest.approx(found.prefill_s.median * 1e6)
    first = predict(**ASKED | {"osl": 4})
    assert steps[1]["dur"] == pytest.approx(first.tpot_s.median * 1e6)


def test_every_launch_is_in_the_trace(found):
    made = trace(found, ASKED)
    for phase, times in (("prefill", 1), ("decode", 3)):
        for part in (part for part in found.breakdown if part.phase == phase):
            begin, end = (0.0, found.prefill_s.median * 1e6) if phase == "prefill" else (found.prefill_s.median * 1e6, float("inf"))
            launched = [
                event
                for event in made["traceEvents"]
                if event["ph"] == "X" and event["name"] == part.name and begin - 1e-3 <= event["ts"] < end - 1e-3
            ]
            assert len(launched) == times * part.launches_per_step, (phase, part.name)
    assert len(slices(made, "layers")) == 4 * found.model.num_layers
    assert {event["name"] for event in slices(made, "collectives")} >= {"attention_all_reduce", "mlp_all_reduce"}
    assert len(slices(made, "host")) == 4


@pytest.mark.parametrize("changes", [{"osl": 1}, {"osl": 2}, {"tp": 1}])
def test_short_runs_have_short_traces(changes):
    asked = ASKED | changes
    found = predict(**asked)
    made = trace(found, asked)
    check_trace(made)
    assert len(slices(made, "steps")) == 1 + min(3, found.decode_steps)


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--html", "none/x.html", "there is no folder"),
        ("--trace", "none/x.json", "there is no folder"),
        ("--html", "x.pdf", "must end in .html or .htm"),
        ("--trace", "x.txt", "must end in .json"),
        ("--html", "folder.html", "is a folder, not a file"),
        ("--html", "file/x.html", "there is no folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tilecast, tmp_path, monkeypatch, option, name, message):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tilecast.cli.predict.predict", lambda **asked: pytest.fail("worked before it looked"))
    shown = tilecast(*LINE, option, str(tmp_path / name))
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err and len(shown.err.splitlines()) == 1


def test_a_cut_leaves_the_old_file_and_nothing_else(tilecast, tmp_path, monkeypatch):
    path = tmp_path / "x.html"
    path.write_text("old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    shown = tilecast(*LINE, "--html", str(path))
    assert shown.code == 2 and "cannot be written: no space left on device" in shown.err
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["x.html"]


def test_as_python_refuses_files_and_writes_none(tilecast, tmp_path):
    shown = tilecast(*LINE, "--html", str(tmp_path / "x.html"), "--trace", str(tmp_path / "x.json"), "--as-python")
    assert shown.code == 2 and "has no call for --html and --trace" in shown.err
    assert list(tmp_path.iterdir()) == []


def test_as_python_asks_why_too(tilecast):
    wanted = tilecast(*LINE, "--why", "--json").json["why"]
    *before, last = tilecast(*LINE, "--why", "--as-python").out.strip().splitlines()
    scope: dict = {}
    exec("\n".join([*before, f"result = {last}"]), scope)
    assert json.loads(json.dumps(scope["result"].to_dict())) == wanted


@pytest.mark.parametrize(
    "asked",
    [
        "Qwen/Qwen3-32B --gpu h100-sxm --tp 2 --batch 32 --isl 2048",
        "deepseek-ai/DeepSeek-R1 --gpu b200-sxm --tp 8 --batch 16 --isl 1024",
        "Qwen/Qwen3-30B-A3B --gpu rtx-6000-ada --tp 2 --ep 2 --batch 8 --isl 1000 --quant fp8",
        "openai/gpt-oss-120b --gpu h100-sxm --batch 4 --isl 100 --engine vllm",
    ],
)
def test_a_line_of_the_breakdown_says_all_that_the_kernel_command_needs_to_give_the_same_time(tilecast, asked):
    answer = tilecast("predict", *asked.split(), "--osl", "2", "--json").json
    kernels = [part for part in answer["breakdown"] if part["dtype"] is not None]
    assert {part["family"] for part in answer["breakdown"]} - {part["family"] for part in kernels} == {"host"}
    for part in kernels:
        given = part["sizes"] | part["options"] | {"identity": part["identity"], "dtype": part["dtype"]}
        options = [
            word for name, value in given.items() if value is not None for word in (f"--{name.replace('_', '-')}", str(value).lower())
        ]
        timing = ["--cache", part["cache"], "--engine", part["engine"]]
        if "rtx-6000-ada" in asked:
            timing += ["--set", "tdp_w=245"]  # a batch lasts until the board is hot, a launch does not
        alone = tilecast("kernel", part["family"], "--gpu", answer["inputs"]["gpu"], *options, *timing, "--json").json
        once = part["median_s"] / part["launches_per_step"]
        if part["beside"] is None:
            assert alone["median_s"] == pytest.approx(once, rel=1e-9)
            assert alone["basis"] == part["basis"]
        else:
            assert alone["median_s"] > once  # only what it takes longer than the call it runs beside


@pytest.mark.parametrize(
    "model, gpu, tp", [("deepseek-ai/DeepSeek-V3", "b200-sxm", 8), ("Qwen/Qwen3-32B-FP8", "h100-sxm", 2), ("Qwen/Qwen3-8B", "l40s", 1)]
)
@pytest.mark.parametrize("measured", [False, True])
def test_a_lever_that_hardly_moves_saves_nothing(model, gpu, tp, measured, monkeypatch):
    monkeypatch.setattr(what_if, "STEP", 1 + 1e-9)
    asked = {"model": model, "gpu": gpu, "tp": tp, "batch": 4, "isl": 512, "osl": 16}
    now = predict(**asked)
    if measured:
        run = {"command": "predict", "inputs": asked, "measured": {"prefill_s": 1.3 * now.prefill_s.median}}
        asked["profile"] = profile_from_run(run, gpu)
        now = predict(**asked)
    for lever in why(now, asked).levers:
        assert lever.total_saved_fraction == pytest.approx(0.0, abs=1e-6), lever.name
