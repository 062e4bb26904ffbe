"""`python -m benchmarks.speed [NAME...]`: how fast it is, as ratios to something everybody has, measured in one run on one machine.

Writes benchmarks/results/speed.json and speed.md. A ratio travels between machines; the seconds beside it do not.
AIConfigurator's query stands beside one warm call, and its command beside ours, where `$AICONFIGURATOR_PYTHON` names a Python that has it:
aiconfigurator_query.py.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import tilecast
from tilecast.errors import TilecastError

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True)
class Speed:
    """One measured speed beside its reference; `limit` is what the ratio may not exceed."""

    name: str
    seconds: float
    reference: str
    reference_seconds: float
    limit: float | None
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.seconds / self.reference_seconds


def process_seconds(*arguments: str, repeats: int = 9, python: str = sys.executable) -> float:
    """Median wall time of a fresh Python process."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([python, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def start_up() -> list[Speed]:
    numpy_s = process_seconds("-c", "import numpy")
    gemm = ("kernel", "gemm", "--gpu", "h100-sxm", "--m", "512", "--n", "4096", "--k", "4096")
    commands = (
        ("import tilecast", ("-c", "import tilecast"), 1.5),
        ("tilecast --help", ("-m", "tilecast", "--help"), 4.0),
        ("tilecast gpus", ("-m", "tilecast", "gpus"), None),
        ("tilecast gpus show h100-sxm", ("-m", "tilecast", "gpus", "show", "h100-sxm"), None),
        ("tilecast kernel gemm", ("-m", "tilecast", *gemm), 3.0),
    )
    return [Speed(name, process_seconds(*command), 'python -c "import numpy"', numpy_s, limit) for name, command, limit in commands]


def ingest() -> list[Speed]:
    """Raw wheel tables to schema rows, beside reading the same columns of the same tables with polars alone."""
    import io

    import polars as pl

    from tilecast.datasets import store, wheel
    from tilecast.datasets.sources.aiconfigurator import SERVING_TABLE

    source = store.source("aiconfigurator")
    root = source.locate()
    tables = [table for table in source.tables(root) if table.name != SERVING_TABLE]
    archive = wheel.open_wheel(root)
    names = list(dict.fromkeys(table.name for table in tables))
    num_rows, read_s, ingest_s = 0, 0.0, 0.0
    for name in names:  # table by table, so that both sides see the same machine load
        started = time.perf_counter()
        pl.read_parquet(io.BytesIO(archive.read(name)))
        read_s += time.perf_counter() - started
        for table in (table for table in tables if table.name == name):
            started = time.perf_counter()
            num_rows += source.read(root, table).height
            ingest_s += time.perf_counter() - started
    note = f"{num_rows:,} rows, {num_rows / ingest_s / 1e6:.2f} million rows per second"
    return [Speed("ingest of the wheel", ingest_s, "polars.read_parquet of the same tables", read_s, 6.0, note)]


def kernels() -> list[Speed]:
    """Bulk predictions on one core, beside PipeWeave's recorded cost for the same features; and one warm call."""
    import numpy as np

    from tilecast.kernels.registry import kernel
    from tilecast.predictors import predict_kernel

    draw = np.random.default_rng(0)
    many = 200_000
    gemm = kernel("gemm")(m=draw.integers(1, 8192, many), n=draw.integers(512, 16384, many), k=draw.integers(512, 16384, many))
    one = kernel("gemm")(m=512, n=4096, k=4096)
    ragged_lens = [draw.integers(16, 4096, 32).tolist() for _ in range(2000)]
    heads: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    ragged = kernel("attention_prefill")(q_lens=ragged_lens, kv_lens=ragged_lens, **heads)
    long = kernel("attention_prefill")(batch=1, q_len=1_000_000, kv_len=1_000_000, **heads)

    def seconds(kernel: object, repeats: int = 3, *, learned: bool = False) -> float:
        predict_kernel(one, "h100-sxm", learned=learned)  # the catalogue, constants and weights are read once
        times = []
        for _ in range(repeats):
            started = time.process_time()
            predict_kernel(kernel, "h100-sxm", learned=learned)
            times.append(time.process_time() - started)
        return min(times)

    recorded = "PipeWeave's features (recorded)"
    gemm_s, ragged_s = seconds(gemm) / many, seconds(ragged) / len(ragged_lens)
    learned_s = seconds(gemm, 1, learned=True) / many
    return [
        Speed("GEMM launch in bulk, corrected", learned_s, recorded, 3e-6, None, f"{1 / learned_s / 1e3:.0f} k per core-second"),
        Speed(
            "GEMM launch in bulk, physics alone",
            gemm_s,
            recorded,
            3e-6,
            None,
            f"{1 / gemm_s / 1e3:.0f} k launches per core-second (at least 500 k)",
        ),
        Speed(
            "ragged prefill, 32 requests, in bulk",
            ragged_s,
            recorded,
            0.12,
            None,
            f"{1 / ragged_s / 1e3:.1f} k per core-second (at least 20 k)",
        ),
        Speed("prefill of 1 M tokens", seconds(long), "PipeWeave at 128 k tokens (recorded)", 9.0, None),
        *warm_calls(),
    ]


def warm_calls() -> list[Speed]:
    """One call for one launch of sizes never asked before, the quickest of many; beside AIConfigurator's look-up where it is installed."""
    import numpy as np

    from tilecast.kernels.registry import kernel
    from tilecast.predictors import predict_kernel

    draw = np.random.default_rng(1)
    heads: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    experts: dict[str, Any] = {"hidden_size": 4096, "inter_size": 1536, "num_experts": 128, "topk": 8}
    families: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
        "gemm": ({}, {"m": 8192, "n": 16384, "k": 16384}),
        "gemm of few rows": ({}, {"m": 64, "n": 16384, "k": 16384}),  # whose doublings have to be looked at
        "attention_prefill": (heads, {"batch": 16, "q_len": 4096}),
        "attention_decode": (heads, {"batch": 256, "kv_len": 16384}),
        "moe": (experts, {"num_tokens": 8192}),
        "rms_norm": ({"residual": True}, {"rows": 8192, "cols": 8192}),
        "all_reduce": ({"num_gpus": 8}, {"bytes": 10**8}),
    }
    query_s = _aiconfigurator_query_s()
    speeds = []
    for family, (shared, ranges) in families.items():
        times = []
        for _ in range(300):
            launch = kernel(family.split()[0])(**shared, **{name: int(draw.integers(1, highest)) for name, highest in ranges.items()})
            started = time.process_time()
            predict_kernel(launch, "h100-sxm")
            times.append(time.process_time() - started)
        note = f"median {statistics.median(times) * 1e6:.0f} us{', at most 150 us' if family == 'gemm' else ''}"
        beside = ("AIConfigurator's GEMM query", query_s) if query_s and family == "gemm" else ("one second", 1.0)
        speeds.append(Speed(f"one warm {family} call", min(times), *beside, None, note))
    return speeds


def _aiconfigurator_query_s() -> float | None:
    python = os.environ.get("AICONFIGURATOR_PYTHON")
    if not python:
        return None
    script = Path(__file__).with_name("aiconfigurator_query.py")
    return float(subprocess.run([python, str(script)], check=True, capture_output=True, text=True).stdout.split()[-1])


SEVENTY = {"tp": 4, "batch": 16, "isl": 1000, "osl": 1001}  # of a 70B model on H100: 1,000 decode steps
CONFIGURATIONS = 10_000


def models() -> list[Speed]:
    """A 70B model with 1,000 decode steps: the command from a cold start, a warm call, and many configurations."""
    return [*cold_command(), warm_prediction(), many_configurations()]


def cold_command() -> list[Speed]:
    """Beside `import numpy`, at most 12 of it, and beside AIConfigurator's command for the same question, where it is installed."""
    sizes = [text for name, value in SEVENTY.items() for text in (f"--{name}", str(value))]
    ours_s = process_seconds("-m", "tilecast", "predict", "meta-llama/Llama-3.1-70B", "--gpu", "h100-sxm", *sizes)
    name = "tilecast predict of a 70B model, 1,000 decode steps"
    found = [Speed(name, ours_s, 'python -c "import numpy"', process_seconds("-c", "import numpy"), 12.0)]
    if python := os.environ.get("AICONFIGURATOR_PYTHON"):
        peer_s = process_seconds(str(Path(python).with_name("aiconfigurator")), *aiconfigurator_command(), repeats=3, python=python)
        found.append(Speed(name, ours_s, "aiconfigurator cli estimate of the same", peer_s, None))
    return found


def aiconfigurator_command() -> list[str]:
    """The same question; the model under the name that it bundles."""
    model = ("--model-path", "meta-llama/Meta-Llama-3.1-70B", "--system", "h100_sxm", "--backend", "sglang")
    sizes = ("--tp-size", SEVENTY["tp"], "--batch-size", SEVENTY["batch"], "--isl", SEVENTY["isl"], "--osl", SEVENTY["osl"])
    return ["cli", "estimate", *model, "--estimate-mode", "static", *map(str, sizes)]


def warm_prediction() -> Speed:
    """Of a batch never asked before; at most 20 ms."""
    from tilecast.engines.predict import predict

    times = []
    for batch in range(1, 41):
        started = time.process_time()
        predict("meta-llama/Llama-3.1-70B", gpu="h100-sxm", tp=4, batch=batch, isl=1000 + batch, osl=1001)
        times.append(time.process_time() - started)
    rate = f"{1 / statistics.median(times):.0f} per core-second"
    return Speed("predict of a 70B model, warm", statistics.median(times), "20 ms", 0.02, 1.0, rate)


def many_configurations(number: int = CONFIGURATIONS) -> Speed:
    """Two GPUs, four group sizes and so many batches; at least 200 a second on one core."""
    from tilecast.explore.comparison import compare

    gpus, tps = ("h200-sxm", "h100-sxm"), (1, 2, 4, 8)
    started = time.process_time()
    found = compare("Qwen/Qwen3-32B", gpus, tps=tps, batches=range(1, number // (len(gpus) * len(tps)) + 1), isl=2048, osl=256)
    each_s = (time.process_time() - started) / len(found.outcomes)
    note = f"{len(found.outcomes):,} of them, {1 / each_s:.0f} per core-second (at least 200)"
    return Speed("one configuration of many", each_s, "5 ms", 0.005, 1.0, note)


def training() -> list[Speed]:
    """A step from a saved graph (50 ms), a thousand layouts of a 70B job (20 s), and with the extra `torch` a trace of 32 layers (15 s)."""
    from tilecast.engines.step import predict_layouts, predict_step
    from tilecast.workloads.layout import Layout
    from tilecast.workloads.step_models import model_graph

    warm, files = [], []
    with tempfile.TemporaryDirectory() as folder:
        for batch in range(2, 12):
            started = time.process_time()
            predict_step("GPT2-Large", "h100-sxm", mode="training", batch=batch, seq=1024)
            warm.append(time.process_time() - started)
            file = Path(folder) / f"{batch}.graph.json"
            model_graph("GPT2-Large", mode="training", batch=64 + batch, seq=1024, dtype="fp32").save(file)
            started = time.process_time()
            predict_step(str(file), "h100-sxm")
            files.append(time.process_time() - started)
    layouts = [
        Layout(dp=dp, fsdp=fsdp, tp=tp, pp=pp, micro_batches=micro, schedule=schedule)
        for dp in (1, 2, 4, 8, 16)
        for fsdp in (1, 2, 4, 8, 16)
        for tp in (1, 2, 4, 8)
        for pp in (2, 4, 8)
        for micro in (8, 16)
        for schedule in ("1f1b", "gpipe")
    ][:1000]
    started = time.process_time()
    predict_layouts("mosaicml/mpt-70b", "h100-sxm", layouts, mode="training", batch=4096, seq=2048, dtype="bf16")
    spent_s = time.process_time() - started
    speeds = [
        Speed("training step of a size never asked, warm", statistics.median(warm), "50 ms", 0.05, 1.0, "GPT2-Large, bundled graph"),
        Speed("training step of a graph file, warm", statistics.median(files), "50 ms", 0.05, 1.0, "GPT2-Large, reading included"),
        Speed(f"{len(layouts):,} layouts of a 70B training job", spent_s, "20 s", 20.0, 1.0, "MPT-70B on H100"),
    ]
    return speeds + _tracing()


def _tracing() -> list[Speed]:
    if importlib.util.find_spec("torch") is None:
        return []
    from tilecast.workloads.tracing.bundled import traced_model

    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
    }  # fmt: skip
    started = time.process_time()
    traced_model("32 layers", config, mode="training", batch=1, seq=4096, dtype="bf16", attention="sdpa")
    spent_s = time.process_time() - started
    return [Speed("trace of a 32-layer model, forward and backward", spent_s, "15 s", 15.0, 1.0, "with the import of torch")]


BENCHMARKS: dict[str, Callable[[], list[Speed]]] = {
    "start-up": start_up, "kernels": kernels, "models": models, "training": training, "ingest": ingest,
}  # fmt: skip


def table(speeds: list[Speed]) -> str:
    lines = ["| what | time | reference | its time | ratio | limit | note |", "|---|---|---|---|---|---|---|"]
    for speed in speeds:
        limit = f"{speed.limit:g}x" if speed.limit else ""
        times = [f"{seconds * 1e3:.3g} ms" for seconds in (speed.seconds, speed.reference_seconds)]
        cells = (speed.name, times[0], speed.reference, times[1], f"{speed.ratio:.3g}x")
        lines.append(f"| {' | '.join((*cells, limit, speed.note))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (default: all)")
    asked = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in asked if name not in BENCHMARKS]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    speeds: list[Speed] = []
    for name in asked:
        print(f"measuring {name} ...", file=sys.stderr)
        try:
            speeds += BENCHMARKS[name]()
        except TilecastError as reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    print(table(speeds))
    if len(asked) == len(BENCHMARKS):
        RESULTS.mkdir(exist_ok=True)
        record = {"date": date.today().isoformat(), "tilecast": tilecast.__version__, "python": sys.version.split()[0]}
        record_speeds = [asdict(speed) | {"ratio": speed.ratio} for speed in speeds]
        (RESULTS / "speed.json").write_text(json.dumps({**record, "speeds": record_speeds}, indent=2) + "\n")
        heading = f"# Speed\n\n{record['date']}, `python -m benchmarks.speed`, ratios measured in one run."
        (RESULTS / "speed.md").write_text(f"{heading}\n\n{table(speeds)}\n")
    slow = [speed for speed in speeds if speed.limit and speed.ratio > speed.limit]
    for speed in slow:
        print(f"too slow: {speed.name} is {speed.ratio:.2f}x {speed.reference}, limit {speed.limit:g}x", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
