"""Boosted oblivious trees from CatBoost (extra `train`), as plain arrays."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilecast.errors import MissingExtra
from tilecast.learning.trees import Trees, empty

SEED = 0
SMALLEST_SPREAD = 1e-9  # log: rows closer together than this leave nothing to learn


def boost(
    columns: NDArray[np.float32],
    target: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
    trees: int,
    depth: int,
    rate: float,
    bins: int,
    loss: str = "MAE",
    *,
    base: NDArray[np.float64] | None = None,
    threads: int = 2,
) -> Trees:
    """Trees that sum to `target`, given `columns`: the median of it with "MAE", the mean with "RMSE".

    With "Logloss" the target is 0 or 1 and the sum is the logit of 1; `base` is what other trees say of it already.
    """
    try:
        from catboost import CatBoostClassifier, CatBoostRegressor, Pool
    except ImportError:
        raise MissingExtra.of("train", "fitting") from None
    if np.ptp(target) < SMALLEST_SPREAD:
        return empty()
    kind = CatBoostClassifier if loss == "Logloss" else CatBoostRegressor
    model = kind(
        iterations=trees, depth=depth, learning_rate=rate, loss_function=loss, border_count=bins, l2_leaf_reg=5.0,
        random_seed=SEED, verbose=0, allow_writing_files=False, thread_count=threads,
    )  # fmt: skip
    model.fit(Pool(columns, target, weight=weight, baseline=base))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        exported = json.loads(path.read_text())
    return _from_catboost(exported, depth)


def _from_catboost(exported: dict[str, Any], depth: int) -> Trees:
    """CatBoost's oblivious trees as arrays; a tree that stopped early asks questions nobody passes."""
    scale, (bias,) = exported["scale_and_bias"]
    entries = exported["oblivious_trees"]
    feature = np.zeros((len(entries), depth), np.int32)
    threshold = np.full((len(entries), depth), np.inf, np.float32)
    leaf = np.zeros((len(entries), 2**depth), np.float32)
    for tree, entry in enumerate(entries):
        splits = entry["splits"] or []
        for level, split in enumerate(splits):
            feature[tree, level] = split["float_feature_index"]
            threshold[tree, level] = split["border"]
        leaf[tree, : len(entry["leaf_values"])] = np.asarray(entry["leaf_values"]) * scale
    leaf[0] += bias
    return Trees(feature, threshold, leaf)
