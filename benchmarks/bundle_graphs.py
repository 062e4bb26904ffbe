"""Trace the bundled models and save their graphs, one file for all batches and lengths: python -m benchmarks.bundle_graphs [ID ...]

Every graph is traced at four (batch, length); each dimension must be the same product of batch and length at all of them.
"""

import gzip
import json
import sys
from collections.abc import Iterator

from tilecast.workloads.opgraph import symbolic
from tilecast.workloads.step_models import FOLDER, facts, graph_file
from tilecast.workloads.tracing.bundled import traced_model

# Primes: no size of a model equals them by chance.
POINTS = {"many": ((7, 131), (11, 131), (7, 197), (13, 223)), "one": ((1, 131), (1, 197), (1, 223))}


def wanted() -> Iterator[tuple[str, str, str, str]]:
    """Model, mode, dtype and attention of every graph that ships."""
    for id in facts():
        if "mpt" in id:
            yield id, "training", "bf16", "flash"
        else:
            for mode in ("inference", "training"):
                yield id, mode, "fp32", "eager"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    only = set(sys.argv[1:])
    for id, mode, dtype, attention in wanted():
        if only and id not in only:
            continue
        for points in POINTS.values():
            at = {
                (batch, seq): traced_model(id, facts()[id], mode=mode, batch=batch, seq=seq, dtype=dtype, attention=attention)
                for batch, seq in points
            }
            text = json.dumps(symbolic(at), separators=(",", ":"))
            file = graph_file(id, mode, points[0][0], dtype, attention)
            file.write_bytes(gzip.compress(text.encode(), mtime=0))
            print(f"{file.name}: {file.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
