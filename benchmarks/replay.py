"""python -m benchmarks.replay [OLD [NEW]]: which predictions differ between two revisions, over a fixed catalogue of questions.

OLD is a git revision (default: HEAD), NEW another one (default: the files as they are now). Both answer the same questions through
their own command line, each from its own source tree, so nothing but the answers is compared. Exit code 1 when a median moved by more
than --tolerance.
"""

import argparse
import csv
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GPUS = ("a100-sxm-80gb", "a40", "l40s", "h100-sxm", "h20", "b200-sxm", "rtx-4090", "mi300x")
HEADS = ((32, 8), (64, 8), (32, 32))
COLUMNS = ("median_s", "analytic_s", "bound_s")
DEPLOYMENTS = (
    ("Qwen/Qwen3-32B", "h100-sxm", "--tp", "2", "--batch", "32", "--isl", "2048", "--osl", "256"),
    ("Qwen/Qwen2.5-14B", "a100-sxm-80gb", "--tp", "1", "--batch", "8", "--isl", "1024", "--osl", "128"),
    ("meta-llama/Llama-3.1-70B", "b200-sxm", "--tp", "4", "--batch", "64", "--isl", "4096", "--osl", "64"),
)
PARTS = ("prefill_s", "decode_step_s", "total_s")
STEPS = (
    ("GPT2-Large", "l4", "--mode", "training", "--batch", "1", "--seq", "1024", "--dtype", "fp32"),
    ("BERT-Large", "h100-sxm", "--mode", "inference", "--batch", "8", "--seq", "512", "--dtype", "tf32", "--runtime", "compiled"),
    ("mosaicml/mpt-7b", "a100-sxm-80gb", "--mode", "training", "--batch", "64", "--seq", "2048", "--dtype", "bf16", "--fsdp", "8"),
)
PHASES = ("forward_s", "backward_s", "step_s")

Answers = dict[str, dict[str, float]]  # question -> column -> seconds


@dataclass(frozen=True, slots=True)
class Change:
    """One question that the two revisions answer differently; `ratio` is new over old."""

    question: str
    column: str
    old_s: float
    new_s: float

    @property
    def ratio(self) -> float:
        return self.new_s / self.old_s


def questions() -> Iterator[dict[str, object]]:
    """Launches of every family with an engine behind it, small to large, as rows of `tilecast kernels`."""
    for gpu in GPUS:
        for m, (n, k) in itertools.product((1, 16, 256, 4096), ((4096, 4096), (28672, 8192), (1000, 5120))):
            yield {"family": "gemm", "gpu": gpu, "dtype": "bf16", "m": m, "n": n, "k": k}
        for m in (256, 4096):
            yield {"family": "gemm", "gpu": gpu, "dtype": "fp32", "m": m, "n": 4096, "k": 4096}
        for length in (128, 2048, 16384):
            yield {"family": "mla_decode", "gpu": gpu, "dtype": "bf16", "batch": 32, "q_len": 1, "kv_len": length, "num_heads": 16}
        for (heads, kv_heads), length in itertools.product(HEADS, (128, 2048, 16384)):
            shape = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 128, "kv_len": length}
            yield {"family": "attention_prefill", "gpu": gpu, "dtype": "bf16", "batch": 2, "q_len": length, **shape}
            yield {"family": "attention_decode", "gpu": gpu, "dtype": "bf16", "batch": 32, "q_len": 1, **shape}
        for tokens in (1, 64, 4096):
            shape = {"hidden_size": 4096, "inter_size": 1536, "num_experts": 128, "topk": 8, "tp": 1, "ep": 1}
            yield {"family": "moe", "gpu": gpu, "dtype": "bf16", "num_tokens": tokens, **shape}
        for rows in (1, 512, 16384):
            yield {"family": "rms_norm", "gpu": gpu, "dtype": "bf16", "rows": rows, "cols": 8192}
            yield {"family": "silu_mul", "gpu": gpu, "dtype": "bf16", "rows": rows, "cols": 14336}
        for num_bytes in (2**14, 2**24):
            yield {"family": "all_reduce", "gpu": gpu, "dtype": "bf16", "bytes": num_bytes, "num_gpus": 4}


@contextmanager
def tree(revision: str | None) -> Iterator[Path]:
    """The source tree of a revision, checked out aside; None is the one that lies here."""
    if revision is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="tilecast-replay-") as folder:
        target = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(target), revision)
        try:
            yield target
        finally:
            _git("worktree", "remove", "--force", str(target))


def answers(revision: str | None) -> Answers:
    """Every question's answer, by the code of `revision`."""
    with tree(revision) as source, tempfile.TemporaryDirectory(prefix="tilecast-replay-") as folder:
        asked, answered = Path(folder) / "in.csv", Path(folder) / "out.csv"
        rows = list(questions())
        _write(asked, rows)
        _tilecast(source, "kernels", str(asked), "--out", str(answered), "--keep-going")
        found: Answers = {}
        for row, told in zip(rows, _read(answered), strict=True):
            name = " ".join(f"{key}={value}" if key not in ("family", "gpu", "dtype") else str(value) for key, value in row.items())
            found[name] = {column: float(told[column]) for column in COLUMNS if told.get(column)}
        for model, gpu, *options in DEPLOYMENTS:
            told = json.loads(_tilecast(source, "predict", model, "--gpu", gpu, *options, "--json"))
            found[" ".join(("predict", model, gpu, *options))] = {part: told[part]["median"] for part in PARTS}
        for model, gpu, *options in STEPS:
            told = json.loads(_tilecast(source, "step", model, "--gpu", gpu, *options, "--json"))
            found[" ".join(("step", model, gpu, *options))] = {part: told[part]["median"] for part in PHASES if told[part]["median"]}
        return found


def changes(old: Answers, new: Answers, tolerance: float) -> list[Change]:
    """Differences above the tolerance, the largest first; a question that only one side answers differs infinitely."""
    found = []
    for question in old.keys() | new.keys():
        before, after = old.get(question, {}), new.get(question, {})
        for column in before.keys() | after.keys():
            change = Change(question, column, before.get(column, 0.0) or 1e-300, after.get(column, 0.0) or 1e-300)
            if abs(math.log(change.ratio)) > math.log1p(tolerance):
                found.append(change)
    return sorted(found, key=lambda change: (-abs(math.log(change.ratio)), change.question, change.column))


def report(found: Sequence[Change], num_questions: int, most: int) -> str:
    """One sentence, then the largest changes."""
    asked = len({change.question for change in found})
    lines = [f"{asked} of {num_questions} answers changed."]
    lines += [f"{_percent(change.ratio):>9}  {change.column:<13} {change.question}" for change in found[:most]]
    if len(found) > most:
        lines.append(f"... and {len(found) - most} more; --most shows them")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("old", nargs="?", default="HEAD", help="git revision (default: HEAD)")
    parser.add_argument("new", nargs="?", help="git revision (default: the files as they are now)")
    parser.add_argument("--tolerance", type=float, default=0.001, help="relative change that counts (default: 0.001)")
    parser.add_argument("--most", type=int, default=30, help="changes to print (default: 30)")
    options = parser.parse_args(given)
    try:
        old, new = answers(options.old), answers(options.new)
    except subprocess.CalledProcessError as problem:
        print(f"error: {problem.stderr.strip().splitlines()[-1] if problem.stderr.strip() else problem}", file=sys.stderr)
        return 2
    found = changes(old, new, options.tolerance)
    print(report(found, len(old.keys() | new.keys()), options.most))
    return 1 if any(change.column not in ("analytic_s", "bound_s") for change in found) else 0


def _percent(ratio: float) -> str:
    return "new" if ratio > 1e12 else "gone" if ratio < 1e-12 else f"{100 * (ratio - 1):+.2f} %"


def _tilecast(source: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    return subprocess.run(
        [sys.executable, "-m", "tilecast", *arguments], env=environment, cwd=source, capture_output=True, text=True, check=True
    ).stdout


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main())
