"""`tilecast kernel ... --ceiling`: measured, predicted, ceiling and bound beside one another, and what lies between."""

from typing import Any

from tilecast import units
from tilecast.diagnosis.ceiling import ceiling_of, check_measured, gap
from tilecast.errors import InvalidInput
from tilecast.predictors.kernel import KernelPrediction
from tilecast.report import Grid

LEAST_SHARE = 0.001  # of the whole: smaller parts are not shown


def seconds_from(text: str) -> float:
    """0.000293 from "293us"; a bare number could be anything."""
    value = units.parse("measured_s", text)
    if not text.strip().endswith("s"):
        example = f"{text.strip()}s" if "e" in text.lower() else f"{text.strip()}us"
        raise InvalidInput(f"--measured {text.strip()} has no unit; give e.g. {example}")
    if not 0 < value < 1e6:
        raise InvalidInput(f"--measured {text!r} must be a time above 0, e.g. 293us or 1.2ms")
    return value


def ceiling_python(predicts: str, measured_s: float | None) -> str:
    """The code that makes the prediction, and what is asked of it here."""
    *imports, call = predicts.splitlines()
    more = "" if measured_s is None else f", {measured_s!r}"
    wanted = "from tilecast.diagnosis.ceiling import ceiling_of, gap"
    return "\n".join([*imports, wanted, f"prediction = {call}", f"ceiling_of(prediction), gap(prediction{more})"])


def ceiling_part(prediction: KernelPrediction, measured_s: float | None) -> tuple[list[Grid], dict[str, Any]]:
    """Two tables, and what the JSON gains."""
    if measured_s is not None:
        check_measured(measured_s, prediction)
    reached = ceiling_of(prediction)
    bound_s, median_s, ceiling_s = float(prediction.bound_s[0]), float(prediction.median_s[0]), float(reached.ceiling_s[0])
    last = measured_s if measured_s is not None else median_s
    stages = [
        *([("measured", measured_s, "what was given")] if measured_s is not None else []),
        ("predicted", median_s, f"basis {prediction.basis[0]}"),
        ("ceiling", ceiling_s, f"what the fastest {100 * (1 - reached.quantile):.0f} % of measured kernels reach, basis {reached.basis}"),
        ("bound", bound_s, "nothing real is faster"),
    ]
    rows = [(name, units.human("_s", value), f"{100 * bound_s / value:.0f} %", meaning) for name, value, meaning in stages]
    parts = gap(prediction, measured_s)
    told = [
        (part.name, units.human("_s", part.seconds), f"{100 * part.seconds / last:.1f} %", part.meaning)
        for part in parts if abs(part.seconds) > LEAST_SHARE * last
    ]  # fmt: skip
    grids = [
        Grid(title="How far it is from what can be reached", columns=("what", "time", "efficiency", "meaning"), rows=rows,
             right=frozenset({"time", "efficiency"}), spare=("meaning",)),
        Grid(title="What lies above the bound", columns=("part", "time", "of the whole", "meaning"), rows=told,
             right=frozenset({"time", "of the whole"}), spare=("meaning",)),
    ]  # fmt: skip
    facts = {
        "ceiling_s": ceiling_s, "ceiling_quantile": reached.quantile, "ceiling_basis": reached.basis,
        "gap": {part.name: part.seconds for part in parts},
        **({"measured_s": measured_s, "recoverable_s": max(measured_s - ceiling_s, 0.0)} if measured_s is not None else {}),
    }  # fmt: skip
    return grids, facts
