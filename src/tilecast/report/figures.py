"""What the plots of a prediction show, as plain values: the roofline of its kernels, decode against context, latency against throughput."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilecast.engines.breakdown import Part
from tilecast.engines.many import Outcome, outcomes
from tilecast.engines.predict import Prediction
from tilecast.execution import Protocol
from tilecast.execution.tasks import Floats
from tilecast.hardware import GpuSpec
from tilecast.serving.outcome import LoadOutcome

SHORTEST_CONTEXT = 128
LONGEST_CONTEXT = 131_072  # shown of a model that does not say how far it goes
LARGEST_BATCH = 4096


def figures(found: Prediction, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of `found`, which `predict(**asked)` made."""
    return {"roofline": _roofline(found), "contexts": _contexts(found, asked), "batches": _batches(found, asked)}


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name not in ("model", "gpu", "batch", "isl", "osl", "requests") and value}


# ---- roofline ----------------------------------------------------------------------------------------------------


def _roofline(found: Prediction) -> dict[str, Any]:
    return roofline(found.gpu, [entry for part in found.breakdown if (entry := _point(found, part)) is not None])


def roofline(gpu: GpuSpec, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """Every kernel by the work its problem needs: FLOP per compulsory byte (each operand once), and FLOP/s reached."""
    roofs = {name: gpu.matrix_rate(name) for name in sorted({entry["dtype"] for entry in kernels})}
    return {"dram_bytes_per_s": gpu.dram_bytes_per_s, "peak_flop_per_s": roofs, "kernels": kernels}


def work(kernel: Any, gpu: GpuSpec) -> tuple[str, Floats, Floats] | None:
    """The number format, FLOP and compulsory bytes of each launch; None for a collective."""
    if not hasattr(kernel, "tasks"):
        return None
    tasks = kernel.tasks(gpu, Protocol(cache="cold"))
    vector_flop = np.asarray(tasks.vector_flop) * np.asarray(tasks.num_tasks)  # of kernels that multiply no matrices
    flop = np.asarray(tasks.least_flop, dtype=np.float64).ravel()
    flop = flop if flop.any() else np.max(np.atleast_2d(vector_flop), axis=1)
    return tasks.matrix_dtype, flop, np.asarray(tasks.least_bytes, dtype=np.float64).ravel()


def _point(found: Prediction, part: Part) -> dict[str, Any] | None:
    if part.call is None or (each := work(part.call.kernel, found.gpu)) is None:
        return None
    steps = 1 if part.phase == "prefill" else max(1, found.decode_steps)
    seconds = part.time.median / steps / part.launches_per_step
    return point(part, each[0], float(np.mean(each[1])), float(np.mean(each[2])), seconds)


def point(part: Part, dtype: str, flop: float, num_bytes: float, seconds: float) -> dict[str, Any] | None:
    """Of one launch, on the mean; None for what moves or computes nothing."""
    if flop <= 0 or num_bytes <= 0 or seconds <= 0:
        return None
    return {
        "phase": part.phase, "name": part.name, "dtype": dtype, "flop": flop, "bytes": num_bytes, "launch_s": seconds,
        "flop_per_byte": flop / num_bytes, "flop_per_s": flop / seconds, "share_fraction": part.share_fraction,
    }  # fmt: skip


# ---- curves ------------------------------------------------------------------------------------------------------


def _contexts(found: Prediction, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One decode step of the whole batch, all requests at the same context."""
    longest = min((found.model.max_context or LONGEST_CONTEXT) - 1, 8 * found.batch.longest_context)  # one more token is said
    longest = max(longest, 2)
    points = np.unique(np.geomspace(min(SHORTEST_CONTEXT, longest / 2 + 1), longest, 17).round().astype(int)).tolist()
    cases = [(found.batch.num_requests, context - 1, 2) for context in points]
    steps = outcomes(asked["model"], asked["gpu"], cases, **_options(asked))
    return [
        {"context_tokens": context, "decode_step_s": step.decode_step_s.to_dict(), "fits": step.fits}
        for context, step in zip(points, steps, strict=True)
    ]


def _batches(found: Prediction, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Batches of such requests from one to the largest that fits; requests of different lengths by their mean."""
    inputs, outputs = (round(float(np.mean(tokens))) for tokens in (found.batch.input_tokens, found.batch.output_tokens))

    def priced(sizes: list[int]) -> list[Outcome]:
        return outcomes(asked["model"], asked["gpu"], [(size, inputs, outputs) for size in sizes], **_options(asked))

    sizes = sorted({2**power for power in range(LARGEST_BATCH.bit_length())} | {found.batch.num_requests})
    every = priced(sizes)
    below = [outcome for outcome in every if outcome.fits]
    above = [outcome for outcome in every if not outcome.fits]
    while below and above:  # memory grows in straight pieces: the chord tells a batch that still fits
        low, high = below[-1], above[0]
        free = (low.memory.capacity_bytes - low.memory.total_bytes) / (high.memory.total_bytes - low.memory.total_bytes)
        size = low.batch + int(free * (high.batch - low.batch))
        if size <= low.batch:
            break
        (one,) = priced([size])
        if not one.fits:
            break
        below.append(one)
    return [curve_point(outcome) for outcome in below or every[:1]]


def curve_point(outcome: Outcome | LoadOutcome) -> dict[str, Any]:
    names = ("ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu", "output_tokens_per_s_per_user")
    return {outcome.swept: outcome.size, **{name: getattr(outcome, name).to_dict() for name in names}, "fits": outcome.fits}
