"""One noised sum over the sites: what it costs, its noise at every site, and bugs that were planted."""

import math
import pathlib

import numpy as np
import pytest

from privsgp import graph
from privsgp.accounting import accountant, ledger, statements
from privsgp.accounting.calibration import gaussian_shift
from privsgp.accounting.mechanisms import Counts, described
from privsgp.accounting.shown import up
from privsgp.errors import Refused
from privsgp.randomness.noise import Keyed, Secure
from privsgp.statistics.release import Release, Vectors, added

pytestmark = pytest.mark.unit
CELLS = Vectors(6, 1.0)
SITES = 6


def exact(mu):
    """ε of a Gaussian at δ = 1e-5 by its own formula (Balle and Wang 2018)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def delta(e):
        return norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)

    return brentq(lambda e: delta(e) - 1e-5, 0, 50)


@pytest.mark.parametrize(
    ("relation", "signed", "apart"),
    [("zero-out", False, 1), ("replace-one", False, math.sqrt(2)), ("replace-one", True, 2), ("zero-out", True, 1)],
)
def test_a_sum_is_counted_with_its_own_sensitivity(relation, signed, apart):
    mechanism = Counts(sigma=4.0, clip=1.5, samples=100, signed=signed)
    found = accountant.epsilon(mechanism, 1, 1e-5, relation)
    assert found.epsilon == pytest.approx(exact(apart * 1.5 / 4), rel=1e-6)
    assert found.epsilon <= found.rdp_epsilon
    assert described(mechanism.describe()) == mechanism


@pytest.mark.parametrize("honest", [None, 4])
def test_a_planned_release_is_within_the_budget_and_uses_it(honest):
    release = Release.plan(CELLS, [50] * SITES, 1.0, 1e-5, honest=honest)
    assert 0.99 < max(release.epsilon) <= 1.0
    independent = Release.plan(CELLS, [50] * SITES, 1.0, 1e-5)
    assert (release.sigma < 0.7 * independent.sigma) == (honest is not None)


def messages(release, sums, source):
    return release.noised(sums, source).numpy()


@pytest.mark.parametrize("honest", [None, 4])
def test_the_noise_of_every_site_and_of_the_sum_is_what_was_planned(honest):
    """Planted: noise left out at one site."""
    release = Release.plan(Vectors(4000, 1.0), [50] * SITES, 1.0, 1e-5, honest=honest)
    sums = [np.full(4000, 7.0)] * SITES
    noise = messages(release, sums, Secure()) - 7
    expected = release.own if honest is None else release.noise.covariance.message_sigma
    assert noise.std(1) == pytest.approx(expected, rel=0.08)
    assert noise.sum(0).std() == pytest.approx(release.sigma, rel=0.08)


def test_two_releases_have_different_noise():
    """Planted: the same noise for two releases."""
    release, sums = Release.plan(CELLS, [50] * SITES, 1.0, 1e-5), [np.zeros(6)] * SITES
    source = Secure()
    first = messages(release, sums, source)
    with pytest.raises(Refused, match="already used"):
        messages(release, sums, source)
    assert not (first == messages(release, sums, Secure())).any(1).all()


@pytest.mark.parametrize("name", ["exponential", "ring-directed"])
@pytest.mark.parametrize("secret", [False, True])
def test_push_sum_brings_the_exact_sum_to_every_site(name, secret):
    source = Secure() if secret else Keyed(3)
    release = Release.plan(CELLS, [50] * SITES, 1.0, 1e-5, honest=4)
    sent = release.noised([np.arange(6.0) * i for i in range(SITES)], source)
    assert release.total(sent, graph.make(name, SITES)) == pytest.approx(sent.numpy().sum(0), abs=1e-9)


def test_one_site_needs_no_graph():
    release = Release.plan(CELLS, [50], 1.0, 1e-5, honest=1)
    sent = release.noised([np.zeros(6)], Keyed(0))
    assert release.total(sent, graph.unconnected("alone", 1)) == pytest.approx(sent[0].numpy())


def test_a_person_with_several_rows_weighs_as_much_as_one():
    rows = np.eye(6)[[0, 1, 1, 2]]
    assert added(CELLS, rows, np.array([0, 1, 1, 0])) == pytest.approx([0.5, 1, 0.5, 0, 0, 0])


@pytest.mark.parametrize(
    "wrong", [np.eye(6)[:1] * 2, np.eye(6)[:1] + np.eye(6)[1:2], -np.eye(6)[:1], np.full((1, 6), np.nan), np.eye(5)]
)
def test_a_vector_that_is_not_as_it_was_counted_is_never_added(wrong):
    """Planted: a person in two cells with weight 2."""
    with pytest.raises(RuntimeError, match="not as it was counted"):
        added(CELLS, wrong)


def test_a_ledger_counts_the_release(tmp_path):
    mechanism = Release.plan(CELLS, [50], 1.0, 1e-5).mechanisms[0]
    header = ledger.Header(
        node=0, run="r", mechanism=mechanism.describe(), budget={"epsilon": 1.0, "delta": 1e-5}, relation="zero-out",
        steps=1, spare=0, simulation=False,
    )  # fmt: skip
    with ledger.Ledger.open(tmp_path / "node-0.jsonl", header) as one:
        assert one.reserve(0, 1) == 1
        assert one.reserve(1, 1) == 0
    (found,) = statements.statements(tmp_path)
    assert (found.releases, found.above) == (1, False)
    assert 0.99 < found.epsilon <= 1


def test_what_tuning_costs_if_all_messages_are_visible():
    """Ten runs at ε = 1: docs/howto/evaluate.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "evaluate.md").read_text()
    one = Counts(sigma=1 / gaussian_shift(1.0, 1e-5), clip=1.0, samples=100)
    planned = up(accountant.epsilon(one, 10, 1e-5).epsilon, 3)
    assert planned == "3.62"
    assert f"cost ε = {planned} together" in page
