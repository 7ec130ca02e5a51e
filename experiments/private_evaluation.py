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

from privsgp.data.dataset import Dataset
from privsgp.runs import config as configs
from privsgp.runs import sums
from privsgp.runs.build import build_run
from privsgp.runs.problem import assembled
from privsgp.runs.resolve import resolve
from privsgp.statistics.estimates import Groups, Scores

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


def noise(layout: Scores, persons: int, honest: int | None) -> float:
    """Return the noise of a cell in the sum over all sites, as a release of each site would have it."""
    shared = {} if honest is None else {"noise": "pairwise", "honest": honest}
    values = {"data": {"nodes": SITES}, "privacy": {"epsilon": 1.0} | shared, "sum": {"kind": "evaluation"}}
    config = configs.parse(values | {"algorithm": {"name": "privsgp"}})
    config = sums.study(config, [persons // SITES] * SITES, layout.norm, 1.0, 1e-5)
    blank = Dataset("blank", np.zeros((persons, layout.length)), np.zeros(persons), None, None, None)
    problem = assembled(config, sums.vectors(blank, blank.x), np.array_split(np.arange(persons), SITES))
    return sums.noise(build_run(resolve(config, problem)), problem.samples)


def one_row(persons: int, honest: int | None, runs: int, layout: str) -> dict[str, Any]:
    """Return RMS errors against the exact metrics, and coverage of the true ones."""
    scores, rng = LAYOUT[layout], np.random.default_rng(persons)
    truth = exact(*draw(4_000_000, np.random.default_rng(1)))
    sigma = noise(scores, persons, honest)
    errors: dict[str, list[float]] = {}
    covered: dict[str, list[bool]] = {}
    printed: dict[str, int] = {}
    for _ in range(runs):
        p, y = draw(persons, rng)
        group = rng.integers(0, scores.groups.count, persons)
        total = scores.rows(p, y, group).sum(0) + rng.normal(0, sigma, scores.length)
        known = exact(p, y)
        for one in scores.estimates(total, persons, sigma):
            name = f"{one.metric}, {one.group}"
            printed[name] = printed.get(name, 0) + (one.value is not None)
            if one.value is None or one.metric not in truth:
                continue
            if one.group == "all":
                errors.setdefault(one.metric, []).append(one.value - known[one.metric])
            covered.setdefault(name, []).append(one.low <= truth[one.metric] <= one.high)
    return {
        "persons": persons, "noise": "independent" if honest is None else f"pairwise, {honest} of {SITES} honest",
        "layout": layout, "runs": runs, "epsilon": 1.0, "sigma_of_a_cell": sigma,
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
