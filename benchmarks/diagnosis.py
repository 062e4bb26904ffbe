"""Diagnosis of real traces, scored: `python -m benchmarks.diagnosis`; with `--large 1GB`, time and memory of a made one.

The six traces under $TILECAST_DATA/extra/kineto_traces come from other people's runs of models Tilecast was not fitted on, so predictions
of their kernels are zero-shot. Written, also into docs/diagnosis.md: how much time is named and priced, and the error per family, every
call weighing as its time.
"""

import argparse
import contextlib
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gallery import renewed
from tilecast import units
from tilecast.diagnosis.diagnose import Diagnosis, diagnose
from tilecast.diagnosis.rows import Row
from tilecast.errors import MissingData, MissingExtra
from tilecast.palette import SERIES
from tilecast.report import versions

FOLDER = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "diagnosis.md"
TARGETS = {  # share of GPU time that should be priced, percent
    "b200_vllm_gpt-oss-120b-like_tp8_eager": 85, "h100_hf_owlv2-large-patch14": 85, "h100_hf_timesformer-base-k400": 85,
    "h100_hf_qwen1.5-0.5b-chat": 65, "mi300x_hf_qwen1.5-0.5b-chat": 60, "mi300x_sglang_qwen3-8b_prefill_decode": 60,
}  # fmt: skip
NAMED_TARGET = 90
ALIGNED = 8  # 16-bit elements of 16 bytes
DPI = 80
STEP_US = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results [default: benchmarks/results]")
    parser.add_argument("--large", metavar="SIZE", help="make a trace of that size, e.g. 1GB, diagnose it, print time and memory, and stop")
    given = parser.parse_args()
    if given.large:
        return large(round(units.parse("size_bytes", given.large)))
    found = {path.name.removesuffix(".json.gz"): diagnose(path) for path in traces()}
    results: dict[str, Any] = {
        "versions": versions(),
        "traces": {name: summary(one) for name, one in found.items()},
        "families": pooled(found),
    }
    for path in traces():
        name = path.name.removesuffix(".json.gz")
        results["traces"][name]["hidden"] = hidden_half(path, found[name])
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "diagnosis.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (given.out / "diagnosis.md").write_text(page(results), encoding="utf-8")
    draw(found, given.out)
    if given.out == FOLDER:
        DOCUMENT.write_text(documented(DOCUMENT.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(page(results))
    return 0


def traces() -> list[Path]:
    folder = Path(os.environ.get("TILECAST_DATA", "")) / "extra" / "kineto_traces"
    found = sorted(folder.glob("*.json.gz"))
    if not found:
        raise MissingData(f"no traces in {folder}: set TILECAST_DATA")
    return found


# ---- scores ------------------------------------------------------------------------------------------------------


def summary(found: Diagnosis) -> dict[str, Any]:
    times = found.timeline
    return {
        "gpu": found.gpu.id, "gpu_time_s": found.gpu_time_s, "busy_percent": 100 * times.busy_s / times.span_s,
        "named_percent": 100 * found.named_fraction, "priced_percent": 100 * found.priced_fraction,
        "inferred_percent": 100 * found.inferred_s / found.gpu_time_s, "recoverable_percent": 100 * found.recoverable_s / found.gpu_time_s,
        "errors": found.errors(), "whole_percent": whole_error(found), "worst": worst(found), "findings": list(found.findings),
    }  # fmt: skip


def whole_error(found: Diagnosis) -> float:
    """Of all priced calls together: what the sum of predictions is off."""
    priced = [row for row in found.rows if row.predicted_s is not None]
    return 100 * (sum(row.calls * (row.predicted_s or 0.0) for row in priced) / sum(row.total_s for row in priced) - 1)


def worst(found: Diagnosis) -> list[dict[str, Any]]:
    """The kernels whose error costs most time, and what is known of the reason."""
    off = [row for row in found.rows if row.predicted_s is not None]
    off.sort(key=lambda row: -abs(row.calls * (row.predicted_s or 0.0) - row.total_s))
    return [
        {
            "op": row.op, "shapes": row.shapes, "kernel": row.kernel, "model": row.model, "measured_s": row.measured_s,
            "predicted_s": row.predicted_s, "share_percent": 100 * row.share_fraction, "advice": row.advice,
        }
        for row in off[:3]
    ]  # fmt: skip


def slice_of(row: Row) -> str:
    """The family; products and softmax whose rows do not start on 16 bytes run other kernels, and are told apart."""
    sizes = row.sizes or {}
    inner = [int(sizes[name]) for name in ("n", "k", "cols") if row.model in ("gemm", "softmax") and name in sizes]
    return f"{row.model}, unaligned" if any(size % ALIGNED for size in inner) else row.model


def hidden_half(path: Path, whole: Diagnosis) -> dict[str, float]:
    """The first half of the kernels without their operators: how much of their time gets one back, and how much of that a wrong one."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    kernels = sorted((event for event in trace["traceEvents"] if event.get("cat") == "kernel"), key=lambda event: float(event["ts"]))
    hidden = kernels[: len(kernels) // 2]
    for event in hidden:
        event["args"] = {name: value for name, value in event["args"].items() if name not in ("External id", "correlation")}
    with tempfile.TemporaryDirectory() as scratch:
        halved = Path(scratch) / "half.json"
        halved.write_text(json.dumps(trace), encoding="utf-8")
        found = diagnose(halved)
    true, seen = (_time_of_work(one) for one in (whole, found))
    wrong = sum(max(0.0, seconds - true.get(work, 0.0)) for work, seconds in seen.items())
    hidden_s = 1e-6 * sum(event["dur"] for event in hidden)
    return {"found_percent": 100 * found.inferred_s / hidden_s, "wrong_percent": 100 * wrong / (found.inferred_s or hidden_s)}


def _time_of_work(found: Diagnosis) -> dict[tuple[str, str], float]:
    totals: dict[tuple[str, str], float] = {}
    for row in found.rows:
        if row.op:
            totals[row.op, row.shapes] = totals.get((row.op, row.shapes), 0.0) + row.total_s
    return totals


def pooled(found: dict[str, Diagnosis]) -> dict[str, dict[str, float]]:
    """Errors per family over all traces: each shape once, and each weighed by its share of its trace's time."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for one in found.values():
        for row in one.rows:
            if row.error_fraction is not None:
                rows.setdefault(slice_of(row), []).append((row.share_fraction, row.error_fraction))
    return {
        family: {
            "shapes": len(entries),
            "mean_error_percent": 100 * sum(abs(error) for _, error in entries) / len(entries),
            "weighted_error_percent": 100 * sum(w * abs(error) for w, error in entries) / sum(w for w, _ in entries),
            "weighted_bias_percent": 100 * sum(w * error for w, error in entries) / sum(w for w, _ in entries),
        }
        for family, entries in sorted(rows.items(), key=lambda item: -sum(weight for weight, _ in item[1]))
    }


def page(results: dict[str, Any]) -> str:
    lines = ["# diagnosis", "", "`python -m benchmarks.diagnosis`: six real traces, predicted without having seen their models.", ""]
    head = ("trace", "GPU", "GPU time", "named", "priced", "target", "by identical launch", "recoverable", "all priced calls together",
            "hidden half: found", "of it wrong")  # fmt: skip
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, one in results["traces"].items():
        lines.append(
            f"| {name} | {one['gpu']} | {units.human('_s', one['gpu_time_s'])} | {one['named_percent']:.1f} % | "
            f"{one['priced_percent']:.1f} % | {TARGETS.get(name, 0)} % | {one['inferred_percent']:.1f} % | "
            f"{one['recoverable_percent']:.0f} % | {one['whole_percent']:+.1f} % | {one['hidden']['found_percent']:.1f} % | "
            f"{one['hidden']['wrong_percent']:.2f} % |"
        )
    lines += ["", f"Named should be at least {NAMED_TARGET} % everywhere. Together: predicted over measured, less one. Hidden half: the"]
    lines += ["first half of the kernels lost their operators; the share of their time that got one back, and of that, a wrong one.", ""]
    lines += ["## Error per family, all traces", "", "| family | shapes | mean error | weighed by time | bias, weighed by time |"]
    lines += ["|---|---|---|---|---|"]
    for family, entry in results["families"].items():
        lines.append(
            f"| {family} | {entry['shapes']} | {entry['mean_error_percent']:.1f} % | {entry['weighted_error_percent']:.1f} % | "
            f"{entry['weighted_bias_percent']:+.1f} % |"
        )
    lines += ["", "## Error per family and trace, weighed by time", ""]
    names = list(results["traces"])
    lines += ["| family | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for family in dict.fromkeys(family.partition(",")[0] for family in results["families"]):
        cells = [results["traces"][name]["errors"].get(family) for name in names]
        lines.append(f"| {family} | " + " | ".join(f"{cell['mean_error_percent']:.1f} %" if cell else "" for cell in cells) + " |")
    lines += ["", "## Where predictions are furthest off", ""]
    lines += ["| trace | operator | shapes | measured | predicted | share | what the report says |", "|---|---|---|---|---|---|---|"]
    for name, one in results["traces"].items():
        lines += [
            f"| {name} | {row['op']} | {row['shapes']} | {units.human('_s', row['measured_s'])} | "
            f"{units.human('_s', row['predicted_s'])} | {row['share_percent']:.1f} % | {row['advice']} |"
            for row in one["worst"]
        ]
    return "\n".join([*lines, "", "![predicted against measured](diagnosis.png)", ""])


def documented(text: str, results: dict[str, Any]) -> str:
    """docs/diagnosis.md with today's scores, and with what its commands print today."""
    head = ("trace", "GPU", "named", "priced (needed)", "of it by identical launch", "recoverable", "predicted over measured, all together",
            "hidden half: found", "of it wrong")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [
        f"| {name} | {one['gpu']} | {one['named_percent']:.1f} % | {one['priced_percent']:.1f} % ({TARGETS.get(name, 0)}) | "
        f"{one['inferred_percent']:.1f} % | {one['recoverable_percent']:.0f} % | {one['whole_percent']:+.0f} % | "
        f"{one['hidden']['found_percent']:.0f} % | {one['hidden']['wrong_percent']:.1f} % |"
        for name, one in results["traces"].items()
    ]
    lines += ["", "Zero-shot error, every call weighed by its time:", "", "| family | shapes | error | bias |", "|---|---|---|---|"]
    lines += [
        f"| {family} | {entry['shapes']} | {entry['weighted_error_percent']:.0f} % | {entry['weighted_bias_percent']:+.0f} % |"
        for family, entry in results["families"].items()
    ]
    scores = "\n".join(["<!-- scores:begin -->", *lines, "<!-- scores:end -->"])
    with contextlib.chdir(traces()[0].parent):
        return re.sub(r"<!-- scores:begin -->.*<!-- scores:end -->", lambda _: scores, renewed(text), flags=re.DOTALL)


def draw(found: dict[str, Diagnosis], folder: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.of("viz", "drawing plots") from None
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    families = list(dict.fromkeys(family.partition(",")[0] for family in pooled(found)))[:7]
    figure, panels = plt.subplots(2, 3, figsize=(12, 7.5), sharex=True, sharey=True)
    for axes, (name, one) in zip(panels.flat, found.items(), strict=False):
        for place, family in enumerate([*families, None]):
            rows = [
                row for row in one.rows if row.predicted_s is not None and (row.model == family if family else row.model not in families)
            ]
            if rows:
                across, up = [row.measured_s * 1e6 for row in rows], [(row.predicted_s or 0.0) * 1e6 for row in rows]
                area = [12 + 400 * row.share_fraction for row in rows]
                axes.scatter(across, up, color=SERIES[place % len(SERIES)], s=area, alpha=0.75, label=family or "others", linewidths=0)
        axes.plot([0.5, 1e4], [0.5, 1e4], color="#6B7280", linewidth=1)
        axes.set(xscale="log", yscale="log", title=name)
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3)
    for axes in panels[1]:
        axes.set_xlabel("measured, one call (us)")
    for axes in panels[:, 0]:
        axes.set_ylabel("predicted (us)")
    handles = {label: handle for axes in panels.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=8, fontsize=8, frameon=False)
    figure.suptitle("kernels of six traces, predicted without having seen them; area: share of GPU time")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(folder / "diagnosis.png", dpi=DPI, metadata={"Software": None})
    plt.close(figure)


# ---- a large trace -----------------------------------------------------------------------------------------------


def large(size_bytes: int) -> int:
    """Time and memory of the command on a made trace, as a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "large.json"
        num_events = write_trace(path, size_bytes)
        started = time.monotonic()
        line = [sys.executable, "-m", "tilecast", "diagnose", str(path), "--gpu", "h100-sxm", "--json"]
        done = subprocess.run(line, stdout=subprocess.PIPE, check=True)
        seconds = time.monotonic() - started
        found = json.loads(done.stdout)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        size, memory = (units.human("_bytes", value) for value in (path.stat().st_size, peak))
        print(f"{size} and {num_events:,} events: {seconds:.0f} s, {memory} of memory, {found['num_kernels']:,} kernels")
    return 0


def write_trace(path: Path, size_bytes: int) -> int:
    """A trace as profilers write it: layers of modules, operators with shapes, launches, arrows and kernels, until it is that large."""
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "record_shapes": 1}
        written += file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for number in range(10**9):
            text = ",\n".join(json.dumps(event) for event in layer_events(number))
            written += file.write((",\n" if number else "") + text)
            count += text.count("\n") + 1
            if written >= size_bytes:
                break
        file.write("\n]}\n")
    return count


def layer_events(number: int, ops: Sequence[tuple[str, list[Any], str]] | None = None) -> Iterator[dict[str, Any]]:
    """One layer: a module with stacks inside, and its operators with their kernels, each STEP_US apart."""
    start = number * 20 * STEP_US
    calls = ops or _OPS
    yield _event("python_function", "nn.Module: DecoderLayer_0", start, 19 * STEP_US, {"Python id": number})
    for depth in range(24):
        name = f"/usr/lib/python3.12/site-packages/transformers/models/qwen2/modeling_qwen2.py({depth}): forward_{number % 977}"
        yield _event(
            "python_function", name, start + depth * 0.1, 18 * STEP_US, {"Python id": number, "Python parent id": depth, "Ev Idx": number}
        )
    for place, (op, dims, kernel) in enumerate(calls):
        id_ = number * len(calls) + place + 1
        when = start + place * STEP_US
        types = ["c10::BFloat16" if shape else "Scalar" for shape in dims]
        shapes = {"Input Dims": dims, "Input type": types, "Concrete Inputs": [""] * len(dims), "External id": id_, "Ev Idx": id_}
        yield _event("cpu_op", op, when, 8.0, shapes)
        yield _event("cuda_runtime", "cudaLaunchKernel", when + 2.0, 3.0, {"External id": id_, "correlation": id_, "cbid": 211})
        yield {"ph": "s", "id": id_, "pid": 1, "tid": 1, "ts": when + 2.0, "cat": "ac2g", "name": "ac2g"}
        yield {"ph": "f", "id": id_, "pid": 0, "tid": 7, "ts": when + 6.0, "cat": "ac2g", "name": "ac2g", "bp": "e"}
        launched = {
            "External id": id_, "device": 0, "context": 1, "stream": 7, "correlation": id_, "registers per thread": 96, "shared memory": 0,
            "grid": [132, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 31,
        }  # fmt: skip
        yield _event("kernel", kernel, when + 6.0, 7.5, launched, pid=0, tid=7)


_ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
_OPS: tuple[tuple[str, list[Any], str], ...] = (
    ("aten::mm", [[256, 1024], [1024, 1024]], "nvjet_hsh_128x128_64x6_2x1_v_bz_TNT"),
    ("aten::add", [[256, 1024], [256, 1024], []], _ATEN),
    ("aten::mm", [[256, 1024], [1024, 4096]], "nvjet_hsh_128x256_64x4_2x1_v_bz_TNT"),
    ("aten::_softmax", [[256, 1024], [], []], "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10>"),
    ("aten::add", [[256, 4096], [256, 4096], []], _ATEN),
)


def _event(category: str, name: str, start: float, length: float, arguments: dict[str, Any], pid: int = 1, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(start, 3), "dur": length, "args": arguments}


if __name__ == "__main__":
    sys.exit(main())
