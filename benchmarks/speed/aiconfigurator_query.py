"""Median seconds of one GEMM query of AIConfigurator, on shapes it was not asked before; run by the Python that has it installed.

python -m venv /tmp/aic && /tmp/aic/bin/pip install aiconfigurator==0.12.0
AICONFIGURATOR_PYTHON=/tmp/aic/bin/python python -m benchmarks.speed kernels models
"""

import random
import statistics
import time

from aiconfigurator_core.sdk import common, engine, perf_database  # type: ignore[import-not-found]
from aiconfigurator_core.sdk.operations.gemm import GEMM  # type: ignore[import-not-found]

database = perf_database.get_database("h100_sxm", "trtllm", "1.3.0rc20")
handle = engine.EngineHandle.for_database(database)
shapes = random.Random(0)
times = []
for _ in range(300):
    m, n, k = shapes.randrange(1, 8192), shapes.randrange(512, 16384), shapes.randrange(512, 16384)
    started = time.perf_counter()
    operations = engine.build_ops_json([GEMM("gemm", 1, n, k, common.GEMMQuantMode.bfloat16)])
    handle.evaluate_ops_json(operations, is_context=True, batch_size=1, s=m, prefix=0, imbalance_correction_scale=1.0, x=m)
    times.append(time.perf_counter() - started)
print(statistics.median(times))
