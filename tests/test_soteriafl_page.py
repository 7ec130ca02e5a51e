"""The page on SoteriaFL's figure shows what the runs gave, and the experiment's settings are runs."""

from __future__ import annotations

import json

import pytest

EXPERIMENT = "soteriafl"


def test_the_page_has_the_table_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    assert experiment.pages.shown(experiment.PAGE.read_text(), "soteriafl") == experiment.part(told)
    wanted = [(name, epsilon) for name, plotted in experiment.PLOTTED.items() for epsilon in plotted]
    assert [(row["method"], row["epsilon"]) for row in told["rows"]] == wanted


@pytest.mark.parametrize("name", ["soteriafl-sgd", "soteriafl-svrg"])
def test_their_noise_is_their_formulas_and_the_certified_run_has_a_budget(experiment, name):
    certified = experiment.configured(name, 4)
    assert (certified.privacy.epsilon, certified.algorithm.steps) == (4.0, 300)
    factor = 12 if name == "soteriafl-sgd" else 96
    assert experiment.their_sigma(name, 4) == pytest.approx((factor * 300 * 6.907755) ** 0.5 / (6000 * 4))
