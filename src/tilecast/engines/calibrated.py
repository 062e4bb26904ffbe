"""From one measured run to a profile: its prefill and its decode step, each a sum of launches and of what the host adds.

A run is an observation of all its launches at once, weighted by their shares of the time. What it tells goes to each of them, and to the
host, in proportion to how uncertain they were: so a slow decode step is part host, part memory. Shares move with the answer, hence the
few rounds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilecast import hardware
from tilecast.engines.breakdown import HOST, Part
from tilecast.engines.host import host_spread
from tilecast.engines.predict import Prediction, predict
from tilecast.errors import InvalidInput, MissingData, shown
from tilecast.hardware import GpuSpec
from tilecast.learning import profiles
from tilecast.learning.calibration import Evidence, Floats, Sites, apart, joined, posterior, shipped
from tilecast.learning.profiles import Profile
from tilecast.predictors.calibrated import FASTEST, LONGEST_S, SHORTEST_S, sites_of_prediction
from tilecast.workloads.aggregate import StepTime
from tilecast.workloads.graph import PHASES

MEASURED = ("prefill_s", "decode_step_s", "total_s")
ASKED = ("engine", "tp", "pp", "ep", "dp_attention", "node", "quant", "kv_dtype", "batch", "isl", "osl", "requests")
INPUTS = ("model", "gpu", *ASKED, "engine_set", "set", "profile")  # a profile that the prediction had does not change what was measured
RUN_NOISE = 0.015  # log: the same run once more
LARGEST_FACTOR = 10.0
LARGEST_GAP = 0.1  # of a total, to the sum of what it is made of
ROUNDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One phase of a run: its sites, the seconds predicted of each, and how often the phase runs."""

    sites: Sites
    seconds: Floats
    times: float


def read_run(path: Path) -> dict[str, Any]:
    """RUN.json: {"command": "predict", "inputs": {...}, "measured": {...}}."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingData(f"no file {path}") from None
    except OSError as problem:
        raise InvalidInput(f"cannot read {path}: {(problem.strerror or str(problem)).lower()}") from None
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"{path} is no JSON: {problem}") from None
    if not isinstance(run, dict):
        raise InvalidInput(f"{path} must hold an object with command, inputs and measured")
    return run


def profile_from_run(run: Mapping[str, Any], gpu: str | GpuSpec) -> Profile:
    spec = hardware.gpu(gpu)
    return profiles.made(spec, evidence_from_run(run, spec), num_runs=1)


def evidence_from_run(run: Mapping[str, Any], gpu: GpuSpec) -> Evidence:
    """Prefill and decode step of the run; the total where one of them is not given."""
    measured = _measured(run)
    predicted = _predicted(run, gpu)
    phases = {phase: _phase(predicted, phase, gpu) for phase in PHASES[: len(predicted.steps)]}
    if "decode" not in phases and "decode_step_s" in measured:
        raise InvalidInput("measured has decode_step_s, but outputs of one token have no decode step")
    _check_possible(measured, predicted)
    counts = {
        "prefill_s": {"prefill": 1.0},
        "decode_step_s": {"decode": 1.0},
        "total_s": {name: each.times for name, each in phases.items()},
    }
    if "prefill_s" in measured and ("decode_step_s" in measured or "decode" not in phases):
        measured.pop("total_s", None)  # it is their sum, and says nothing new
    sites = joined([each.sites for each in phases.values()])
    seconds = np.stack(
        [np.concatenate([counts[name].get(phase, 0.0) * each.seconds for phase, each in phases.items()]) for name in measured]
    )
    target = np.log(np.array(list(measured.values())))
    shift, weights = np.zeros(len(sites)), seconds
    for _ in range(ROUNDS):
        now = seconds * np.exp(shift)
        weights = now / now.sum(axis=1, keepdims=True)
        evidence = Evidence(sites, weights, target - np.log(now.sum(axis=1)) + weights @ shift, np.full(len(target), RUN_NOISE))
        shift = posterior(evidence, shipped()).shift(sites)[0]
    return evidence


def _phase(predicted: Prediction, phase: str, gpu: GpuSpec) -> Phase:
    """The launches of a prefill, or of the decode step in the middle, and the host."""
    step = predicted.steps[0 if phase == "prefill" else 1]
    host = next(part for part in predicted.breakdown if part.phase == phase and part.family == HOST)
    times = 1.0 if phase == "prefill" else float(predicted.decode_steps)
    whole_s = predicted.prefill_s.median if phase == "prefill" else predicted.decode_step_s.median
    launches, seconds = _middle(step, gpu)
    host_s = host.time.median / times
    scaled = seconds * (whole_s - host_s) / seconds.sum()  # the middle step is close to the median one, not equal to it
    return Phase(joined([launches, apart(f"{HOST} {phase}", host_spread(host.time))]), np.append(scaled, host_s), times)


def _middle(step: StepTime, gpu: GpuSpec) -> tuple[Sites, Floats]:
    """Sites and seconds of every call in the step in the middle."""
    from tilecast.predictors import predict_kernel

    found, seconds = [], []
    for time in step.calls:
        engine = time.call.measured_in
        each = sites_of_prediction(predict_kernel(time.call.kernel, gpu, cache=time.call.cache, engine=engine), engine)
        found.append(each.where(np.array([len(each) // 2])))
        seconds.append(float(time.median_s[len(time.median_s) // 2]))
    return joined(found), np.array(seconds)


def _measured(run: Mapping[str, Any]) -> dict[str, float]:
    if run.get("command", "predict") != "predict":
        raise InvalidInput(f"command = {run['command']!r} must be 'predict': other runs cannot calibrate yet")
    given = run.get("measured")
    found = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if name not in MEASURED:
            raise InvalidInput(f"measured has {name!r}; it may have {', '.join(MEASURED)}")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_S <= value <= 1e3 * LONGEST_S:
            raise InvalidInput(f"measured {name} = {shown(value)} must be seconds between {SHORTEST_S:g} and {1e3 * LONGEST_S:g}")
        found[name] = float(value)
    if not found:
        raise InvalidInput(f"the run has nothing measured: give one or more of {', '.join(MEASURED)} under 'measured'")
    return found


def _check_possible(measured: Mapping[str, float], predicted: Prediction) -> None:
    """Phases that no kernels could be so fast in, as for rows, and a total that is not the sum of its parts, are a mistake."""
    bounds = {phase: sum(part.bound_s for part in predicted.breakdown if part.phase == phase and not _is_beside(part)) for phase in PHASES}
    steps = predicted.decode_steps
    least = {"prefill_s": bounds["prefill"], "decode_step_s": bounds["decode"] / max(1, steps), "total_s": sum(bounds.values())}
    for name, value in measured.items():
        if value < FASTEST * least[name]:
            raise InvalidInput(f"measured {name} = {value:g} is less than the {least[name]:.3g} s below which no such kernels can go")
    if "total_s" not in measured or "prefill_s" not in measured:
        return
    total_s, rest_s = measured["total_s"], measured["total_s"] - measured["prefill_s"]
    if rest_s < FASTEST * bounds["decode"]:
        needs = f"{steps:,} decode steps, which take {bounds['decode']:.3g} s at least"
        raise InvalidInput(f"measured total_s = {total_s:g} leaves {rest_s:g} s beside prefill_s for {needs}")
    if "decode_step_s" not in measured:
        return
    # The median step times their number is not all of them where requests leave early; the prediction says by how much.
    whole_s = measured["prefill_s"] + measured["decode_step_s"] * predicted.decode_s.median / predicted.decode_step_s.median
    if abs(total_s / whole_s - 1.0) > LARGEST_GAP:
        parts = f"prefill_s and {steps:,} steps of decode_step_s, together {whole_s:.3g} s"
        raise InvalidInput(f"measured total_s = {total_s:g} is more than {100 * LARGEST_GAP:g} % away from {parts}")


def _is_beside(part: Part) -> bool:
    return part.call is not None and part.call.beside is not None


def _settings(given: Any) -> dict[str, str]:
    """{"max_num_seqs": "64"} from ["max_num_seqs=64"]."""
    texts = given if isinstance(given, list) else [] if given is None else [given]
    pairs = [str(text).partition("=") for text in texts]
    if wrong := [text for text, (name, _, value) in zip(texts, pairs, strict=True) if not name.strip() or not value.strip()]:
        raise InvalidInput(f"inputs have engine_set = {wrong[0]!r}: it must be a list of settings such as ['chunked_prefill_size=4096']")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _predicted(run: Mapping[str, Any], gpu: GpuSpec) -> Prediction:
    """What is predicted of the run without a profile."""
    inputs = run.get("inputs")
    if not isinstance(inputs, dict):
        raise InvalidInput("the run has no 'inputs': they are those of the JSON that 'tilecast predict --json' prints")
    told = inputs.get("gpu")
    if told not in (None, gpu.id) and hardware.gpu(str(told)).id != gpu.id:
        raise InvalidInput(f"the run was on {told}, not on {gpu.id}")
    if not inputs.get("model"):
        raise InvalidInput("inputs lack the model")
    if inputs.get("set"):
        raise InvalidInput(f"inputs have set = {inputs['set']}: a run is measured on a real GPU, not on a what-if one")
    if strange := [name for name, value in inputs.items() if name not in INPUTS and value is not None]:
        what = f"inputs have {strange[0]} = {inputs[strange[0]]!r}"
        raise InvalidInput(f"{what}: a run is one static batch, described by {', '.join(name for name in INPUTS if name != 'profile')}")
    asked = {name: inputs[name] for name in ASKED if inputs.get(name) is not None}
    # Lengths beyond the model's limit were measured all the same.
    predicted = predict(inputs["model"], gpu, **asked, engine_settings=_settings(inputs.get("engine_set")), allow_longer_context=True)
    for name, value in _measured(run).items():
        median = getattr(predicted, name).median
        if median and not median / LARGEST_FACTOR <= value <= median * LARGEST_FACTOR:
            far = f"more than {LARGEST_FACTOR:g} times away from the {median:.3g} s predicted"
            raise InvalidInput(f"measured {name} = {value:g} is {far}: is it in seconds?")
    return predicted
