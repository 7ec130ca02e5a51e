"""How well one noised histogram over 16 sites gives the metrics of a model, and how often its intervals are right.

Scores are simulated: 25 % positives, a true AUC of 0.8, calibrated probabilities, and a subgroup of half of the
persons. ε = 1 and δ = 1e-5 of every person.

    python experiments/private_evaluation.py            # 1,000 runs of each row, one minute on one core
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm

from privsgp import graph
from privsgp.randomness.noise import Keyed
from privsgp.statistics.estimates import Groups, Scores
from privsgp.statistics.release import Release, added

if TYPE_CHECKING:
    from numpy.random import Generator

Array = NDArray[Any]
SITES, POSITIVES, AUC = 16, 0.25, 0.8
SHIFT = float(np.sqrt(2) * norm.ppf(AUC))
GROUPS = Groups(("group",), (("a", "b"),))
LAYOUT = {"no subgroups": Scores.of(10), "two groups": Scores.of(10, groups=GROUPS)}


def draw(n: int, rng: Generator) -> tuple[Array, Array]:
    """Return probabilities and labels of a calibrated model."""
    y = (rng.random(n) < POSITIVES).astype(int)
    s = rng.normal(y * SHIFT, 1)
    return expit(np.log(POSITIVES / (1 - POSITIVES)) + SHIFT * s - SHIFT**2 / 2), y


def exact(p: Array, y: Array) -> dict[str, float]:
    """Return the metrics of these persons themselves."""
    ranks, positives = np.argsort(np.argsort(p)), y.sum()
    auc = (ranks[y == 1].sum() - positives * (positives - 1) / 2) / (positives * (len(y) - positives))
    return {"auc": auc, "accuracy": np.mean((p >= 0.5) == y), "brier": np.mean((p - y) ** 2),
            "calibration_in_the_large": np.mean(y - p)}  # fmt: skip


def one_row(persons: int, honest: int | None, runs: int, layout: str) -> dict[str, Any]:
    """Return RMS errors against the exact metrics, and coverage of the true ones."""
    scores, rng = LAYOUT[layout], np.random.default_rng(persons)
    truth = exact(*draw(4_000_000, np.random.default_rng(1)))
    release = Release.plan(scores.vectors, [persons // SITES] * SITES, 1.0, 1e-5, honest=honest)
    network = graph.make("exponential", SITES)
    errors: dict[str, list[float]] = {}
    covered: dict[str, list[bool]] = {}
    printed: dict[str, int] = {}
    for run in range(runs):
        p, y = draw(persons, rng)
        group = rng.integers(0, scores.groups.count, persons)
        rows = scores.rows(p, y, group)
        sums = [added(release.vectors, part) for part in np.split(rows, SITES)]
        total = release.total(release.noised(sums, Keyed(run).derived("evaluation")), network)
        known = exact(p, y)
        for one in scores.estimates(total, persons, release.sigma):
            name = f"{one.metric}, {one.group}"
            printed[name] = printed.get(name, 0) + (one.value is not None)
            if one.value is None or one.metric not in truth:
                continue
            if one.group == "all":
                errors.setdefault(one.metric, []).append(one.value - known[one.metric])
            covered.setdefault(name, []).append(one.low <= truth[one.metric] <= one.high)
    return {
        "persons": persons, "noise": "independent" if honest is None else f"pairwise, {honest} of {SITES} honest",
        "layout": layout, "runs": runs, "epsilon": max(release.epsilon), "sigma_of_a_cell": release.sigma,
        "rms_error": {name: float(np.sqrt(np.mean(np.square(found)))) for name, found in errors.items()},
        "coverage": {name: float(np.mean(found)) for name, found in covered.items()},
        "printed": {name: count / runs for name, count in printed.items()},
    }  # fmt: skip


if __name__ == "__main__":
    RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for n in (3200, 800):
        for trusted in (12, None):
            for kind in LAYOUT:
                print(json.dumps(one_row(n, trusted, RUNS, kind)), flush=True)
