"""One noised sum over the sites: what it costs, its noise at every site, and bugs that were planted."""

import math
import pathlib

import numpy as np
import pytest

from privsgp.accounting import accountant, statements
from privsgp.accounting.calibration import gaussian_shift
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.shown import up
from privsgp.data.dataset import Dataset, PersonRows
from privsgp.randomness.noise import _OfNodes
from privsgp.runs import config as configs
from privsgp.runs import sums
from privsgp.runs.problem import assembled

pytestmark = pytest.mark.unit
SIZES, WIDE = (40, 60, 80), 3000


def study(norm=1.0, epsilon=1.0, seed=None, persons=None, sites=1, sizes=SIZES, **privacy):
    values = {"data": {"nodes": 3}, "privacy": {"epsilon": 1.0} | privacy, "sum": {"kind": "description"}}
    if persons is not None:
        values["data"] |= {"person": "who", "rows_per_person": persons}
        values["privacy"]["sites_per_person"] = sites
    config = configs.parse(values | ({} if seed is None else {"seed": seed}) | {"algorithm": {"name": "privsgp"}})
    return sums.study(config, sizes, norm, epsilon, 1e-5)


def release(place, config, rows, parts, persons=None):
    dataset = Dataset("made up", np.zeros((len(rows), 1), np.float32), np.zeros(len(rows), np.float32), None, None,
                      None, persons=persons)  # fmt: skip
    problem = assembled(config, sums.vectors(dataset, rows), parts)
    return sums.released(config, problem, rows, place)


def of_zeros(place, config, width=WIDE):
    rows = np.zeros((sum(SIZES), width))
    return release(place, config, rows, np.split(np.arange(len(rows)), np.cumsum(SIZES)[:-1]))


def exact(mu):
    """ε of a Gaussian at δ = 1e-5 by its own formula (Balle and Wang 2018)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def delta(e):
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)

    return brentq(lambda e: delta(e) - 1e-5, 0, 50)


PAIRWISE = {"noise": "pairwise", "honest": 3}


@pytest.mark.parametrize("privacy", [{}, PAIRWISE, {"relation": "replace-one"}])
def test_a_sum_costs_its_budget_and_has_the_noise_that_it_says(tmp_path, privacy):
    found = of_zeros(tmp_path / "a", study(**privacy))
    assert found.cells.std() == pytest.approx(found.sigma, rel=0.06)
    assert 0.99 < found.facts["epsilon"] <= 1.0
    (one, *others) = statements.statements(tmp_path / "a")
    assert (one.releases, len(others), 0.99 < one.epsilon <= 1) == (1, 2, True)
    if not privacy:  # three sites, each of which protects itself
        assert exact(math.sqrt(3) / found.sigma) == pytest.approx(found.facts["epsilon"], rel=2e-3)
        assert of_zeros(tmp_path / "b", study(**PAIRWISE)).sigma < 0.9 * found.sigma


def test_noise_that_one_site_leaves_out_is_found(tmp_path, monkeypatch):
    """Planted: noise left out at one site."""
    add = _OfNodes.add_

    def without(self, g, nodes, step):
        kept = g[0].clone()
        add(self, g, nodes, step)
        g[0] = kept

    monkeypatch.setattr(_OfNodes, "add_", without)
    found = of_zeros(tmp_path / "a", study())
    assert found.cells.std() < 0.9 * found.sigma


def test_two_releases_have_different_noise(tmp_path):
    """Planted: the same noise for two releases."""
    first, second = (of_zeros(tmp_path / name, study(), 50).cells for name in "ab")
    assert np.abs(np.corrcoef(first, second)[0, 1]) < 0.6
    assert (first == second).mean() < 0.5  # noise is on a grid: two entries may agree


def test_a_vector_that_is_too_long_is_clipped(tmp_path):
    """Planted: a person in two cells, with weight 2."""
    rows = np.zeros((sum(SIZES), 4))
    rows[:, 0] = 2
    rows[:, 1] = 2
    parts = np.split(np.arange(len(rows)), np.cumsum(SIZES)[:-1])
    found = release(tmp_path / "a", study(epsilon=1e4), rows, parts)
    assert found.cells == pytest.approx([sum(SIZES) / math.sqrt(2)] * 2 + [0, 0], abs=8 * found.sigma)


def test_a_person_with_several_rows_weighs_as_much_as_one(tmp_path):
    rows = np.eye(4)[np.tile([0, 1, 1, 2], 60)]
    whose = np.repeat(np.arange(120, dtype=np.uint64), 2)  # persons of two rows: 0 and 1, and 1 and 2
    parts = np.split(np.arange(240), [2 * 40, 2 * 80])
    config = study(epsilon=1e4, persons=2, sizes=(40, 40, 40))
    found = release(tmp_path / "a", config, rows, parts, PersonRows(np.stack([whose, whose], 1), 2))
    assert found.samples == [40, 40, 40]
    assert found.cells == pytest.approx([30, 60, 30, 0], abs=8 * found.sigma)
    assert found.facts["unit"] == "person"


def test_a_person_at_two_sites_costs_more_noise(tmp_path):
    one, two = (of_zeros_of_persons(tmp_path / str(sites), study(persons=2, sites=sites)) for sites in (1, 2))
    assert two.sigma / one.sigma == pytest.approx(math.sqrt(2), rel=0.02)
    assert two.facts["sites_per_person"] == 2


def of_zeros_of_persons(place, config):
    whose = np.arange(sum(SIZES), dtype=np.uint64)
    persons = PersonRows(np.stack([whose, whose], 1), 2)
    parts = np.split(np.arange(len(whose)), np.cumsum(SIZES)[:-1])
    return release(place, config, np.zeros((len(whose), 20)), parts, persons)


def test_what_tuning_costs_if_all_messages_are_visible():
    """Ten runs at ε = 1: docs/howto/evaluate.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "evaluate.md").read_text()
    one = SampledMean(sigma=1 / gaussian_shift(1.0, 1e-5) / 100, clip=1.0, samples=100, batch=100)
    ten = accountant.epsilon(one, 10, 1e-5)
    planned, chosen = up(ten.epsilon, 3), up(ten.rdp_epsilon, 3)  # a filter may spend what the Rényi bound allows
    assert (planned, chosen) == ("3.62", "3.92")
    assert f"cost ε = {planned} if all are planned ahead, and {chosen} if each is chosen after the last" in page
