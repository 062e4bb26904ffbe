"""SGLang's host between decode steps: python -m benchmarks.fit.sglang_host prints the error of each candidate, it does not write one.

Only the A100 and H100 cases of the e2e-inference suite are asked, the cases from which engine constants may be taken. The candidate with
the least mean error of a decode step stands in engines/sglang.toml; of equal ones the larger.
"""

import polars as pl

from benchmarks.accuracy.suites.e2e_inference import FITTED_ON, PREDICTED, cases, ours

CANDIDATES_S = tuple(tenths * 1e-4 for tenths in range(11))


def error(decode_step_s: float, measured: pl.DataFrame) -> dict[str, float]:
    """part -> mean absolute relative error in percent."""
    answers = ours(measured, {"decode_step_s": decode_step_s})
    off = 100 * (pl.col("predicted") / pl.col("measured") - 1).abs().mean()
    return dict(answers.group_by("part").agg(off).iter_rows())


def main() -> None:
    measured = cases().filter(pl.col("gpu").is_in(FITTED_ON))
    for candidate_s in CANDIDATES_S:
        found = error(candidate_s, measured)
        print(f"decode_step_s = {candidate_s:.1e}: " + ", ".join(f"{part} {found[part]:.2f} %" for part in PREDICTED))


if __name__ == "__main__":
    main()
