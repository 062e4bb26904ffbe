"""python -m benchmarks.lawful_trees [--quick]: what do trees cost that cannot fall when a size grows? Prints, writes nothing.

Of every GPU and engine with enough rows of 16-bit products and experts, of which physics itself never falls: trees of its own on the
package's columns, and trees whose columns all grow with the sizes (sizes, products of sizes, tiles and rounds of tiles, time, traffic) and
that CatBoost holds to grow with each (`monotone_constraints`), so that their sum keeps the law exactly. These add to a part of the analytic
time's logarithm, so that efficiency may still rise with size. Error on the fifth of the shapes that was held out, mean over the slices.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from catboost import CatBoostRegressor
from numpy.typing import NDArray

from benchmarks.accuracy.progress import say
from benchmarks.accuracy.publish import markdown_table
from benchmarks.accuracy.suites.kernels_indist import rows
from tilecast import hardware
from tilecast.errors import TilecastError
from tilecast.learning.examples import Examples, examples
from tilecast.learning.features import number_names
from tilecast.learning.relations import ROUNDS

FAMILIES = ("gemm", "moe")
FEWEST_ROWS, MOST_ROWS = 1500, 6000
HELD_OUT = 0.2
KEPT = 0.3  # of the logarithm of the analytic time is left to the trees: as much may efficiency gain when it doubles
ALLOWED = 0.03  # log per doubling: the law lets a launch lose this much
TIME, TRAFFIC = "log time in launches", "log traffic over cache"
SETTINGS: dict[str, Any] = {
    "depth": 7, "learning_rate": 0.1, "iterations": 800, "border_count": 128, "l2_leaf_reg": 5.0, "loss_function": "MAE",
    "random_seed": 0, "verbose": 0, "allow_writing_files": False, "thread_count": 2,
}  # fmt: skip

Floats = NDArray[np.float64]


def errors(data: Examples, family: str, gpu: str) -> tuple[float, float]:
    """In percent on held-out shapes: of free trees, and of trees that cannot fall."""
    names = number_names(family)
    flags = (data.group_of[:, None] == np.unique(data.group_of)).astype(np.float32)
    is_test = data.shape < HELD_OUT
    free = np.hstack([data.numbers, flags])
    grows, log_time, sizes = _growing(data.numbers, names, family, gpu)
    raised = KEPT * log_time + ALLOWED * sizes
    held = np.hstack([grows, flags])
    constraints = [1] * grows.shape[1] + [0] * flags.shape[1]
    return (
        _left(free, data.target, np.zeros(len(data.target)), is_test, None),
        _left(held, data.target, raised, is_test, constraints),
    )


def _growing(numbers: NDArray[np.float32], names: list[str], family: str, gpu: str) -> tuple[NDArray[np.float32], Floats, Floats]:
    """Columns that never fall when a size grows, the logarithm of the analytic time, and how often all sizes were doubled."""
    column = {name: numbers[:, place].astype(np.float64) for place, name in enumerate(names)}
    kept = [values for name, values in column.items() if (name.startswith("log2 ") and "/" not in name) or name in (TIME, TRAFFIC)]
    sizes = [values for name, values in column.items() if name.startswith("log2 ") and len(name.split()) == 2]
    cut, tiles = ROUNDS.get(family, ((), ()))
    for tile in tiles:
        pieces = np.prod([np.ceil(np.round(2.0 ** column[f"log2 {name}"]) / step) for name, step in zip(cut, tile, strict=True)], axis=0)
        kept += [np.log(pieces), np.log(np.ceil(pieces / hardware.gpu(gpu).num_sms))]
    return np.stack(kept, axis=1).astype(np.float32), column[TIME], np.sum(sizes, axis=0)


def _left(columns: NDArray[np.float32], target: Floats, raised: Floats, is_test: NDArray[np.bool_], constraints: list[int] | None) -> float:
    model = CatBoostRegressor(**SETTINGS, monotone_constraints=constraints)
    model.fit(columns[~is_test], (target + raised)[~is_test])
    return float(100 * np.abs(np.expm1(model.predict(columns[is_test]) - raised[is_test] - target[is_test])).mean())


def measure(quick: bool) -> list[list[str]]:
    found = []
    for family in FAMILIES:
        every = examples(rows(family), family, rows_per_slice=MOST_ROWS)
        engine, dtype = (np.array([names[what] for names in every.names])[every.group_of] for what in ("engine", "dtype"))
        is_plain = every.steady & np.isin(dtype, ("bf16", "fp16"))
        slices = sorted({(str(gpu), str(name)) for gpu, name in zip(every.gpu[is_plain], engine[is_plain], strict=True)})
        scores = []
        for gpu, name in slices:
            here = every.where(is_plain & (every.gpu == gpu) & (engine == name))
            if len(here.target) >= FEWEST_ROWS:
                scores.append(errors(here, family, gpu))
                say(f"  {family} {gpu} {name}: {scores[-1][0]:.1f} and {scores[-1][1]:.1f} %")
            if quick and len(scores) == 2:
                break
        free, held = np.mean(scores, axis=0)
        found.append([family, str(len(scores)), f"{free:.1f}", f"{held:.1f}"])
    return found


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lawful_trees", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="two slices of each family")
    try:
        found = measure(parser.parse_args(given).quick)
    except TilecastError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    print(markdown_table(["family", "GPUs and engines", "free trees, %", "trees that cannot fall, %"], found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
