"""A person, not a row: the unit of privacy, and a person at several sites, against brute force."""

import dataclasses
import itertools
import math
import pathlib

import numpy as np
import pytest
from scipy import optimize, signal, stats

from privsgp.accounting import accountant, calibration, lower_bound, pld, renyi_bound
from privsgp.accounting.assumptions import assumptions
from privsgp.accounting.compound import Composed, PersonLevel, Shared, Summed, Wrapper
from privsgp.accounting.curve import Gaussian as GaussianCurve
from privsgp.accounting.curve import Group, Sampled
from privsgp.accounting.mechanisms import Gaussian, Saga, SampledMean, described
from privsgp.accounting.mixture import Mixture
from privsgp.accounting.sharing import solve
from privsgp.accounting.shown import up
from privsgp.errors import Refused

DELTA = 1e-5
WHOLE = Gaussian(sigma=1 / calibration.gaussian_shift(1.0, DELTA), clip=1.0, batch=1, samples=1)  # ε = 1 of a record
DRAWN = SampledMean(sigma=2.0, clip=1.0, batch=5, samples=100)


def epsilon(mechanism, steps=1, delta=DELTA, relation="zero-out"):
    return accountant.epsilon(mechanism, steps, delta, relation).epsilon


def shared(base, honest=8, partners=15):
    return Shared(base, honest, partners, 0.1)


@pytest.mark.parametrize(("rows", "shown"), [(2, "2.16"), (3, "3.41"), (5, "6.17"), (10, "14.43")])
def test_what_row_level_promises_a_person_with_several_rows(rows, shown):
    assert up(GaussianCurve(rows / WHOLE.sigma).epsilon(DELTA), 4 if rows == 10 else 3) == shown


def test_the_officers_page_has_these_numbers():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "officer.md").read_text()
    found = [up(GaussianCurve(rows / WHOLE.sigma).epsilon(DELTA), 4 if rows == 10 else 3) for rows in (2, 3, 5, 10)]
    assert f"| ε of the patient | 1 | {' | '.join(found)} |" in page
    (two, both), (three, all_of_them) = (
        [up(epsilon(PersonLevel(base, 4, sites, a)), 3) for base, a in ((WHOLE, 1.0), (shared(WHOLE), 0.5))]
        for sites in (2, 3)
    )
    assert f"| ε with independent noise | 1 | {two} | {three} |" in page
    assert f"| ε with pairwise noise | 1 | {both} | {all_of_them} |" in page


@pytest.mark.parametrize("base", [WHOLE, DRAWN, Saga(sigma=2.0, clip=1.0, batch=5, samples=100), shared(DRAWN)])
def test_a_person_of_one_site_costs_what_a_record_costs(base):
    assert epsilon(PersonLevel(base, 4), 20) == epsilon(base, 20)


@pytest.mark.parametrize(("sites", "own", "pairs"), [(2, "1.47", "1.84"), (3, "1.84", "2.71")])
def test_a_person_of_several_sites_without_sampling(sites, own, pairs):
    assert up(epsilon(PersonLevel(WHOLE, 4, sites)), 3) == own
    assert up(epsilon(PersonLevel(shared(WHOLE), 4, sites, 0.5)), 3) == pairs  # ρ = 2


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("sites", [1, 2, 3])
def test_sites_with_noise_of_their_own_compose(sites, relation):
    base = dataclasses.replace(DRAWN, coordinates=50)
    assert epsilon(PersonLevel(base, 4, sites), 30, relation=relation) == epsilon(base, 30 * sites, relation=relation)


@pytest.mark.parametrize(("nodes", "honest", "ratio"), [(4, 2, 1.5), (5, 5, 2.0), (7, 4, 3.0), (6, 3, 8.0)])
def test_the_correlation_of_equal_sites_is_that_of_the_inverse_covariance(nodes, honest, ratio):
    covariance = solve([1.0] * nodes, honest, ratio)
    inverse = np.linalg.inv(covariance.among(range(honest)))
    for sites in range(1, min(honest, 3) + 1):
        sets = itertools.combinations(range(honest), sites)
        worst = max(inverse[np.ix_(chosen, chosen)].sum() for chosen in sets) / inverse[0, 0]
        person = PersonLevel(shared(WHOLE, honest, nodes - 1), 4, sites, 1 - 1 / ratio)
        assert person.together**2 == pytest.approx(worst, rel=1e-6)
        assert renyi_bound.renyi(person, 7, "zero-out").cumulants == pytest.approx(
            renyi_bound.renyi(WHOLE.with_sigma(WHOLE.sigma / math.sqrt(worst)), 7, "zero-out").cumulants, rel=1e-6
        )


@pytest.mark.parametrize("sizes", [(100, 100, 100, 100, 100), (100, 200, 300, 50, 120), (10, 1000, 10, 500, 30)])
@pytest.mark.parametrize("honest", [2, 3, 5])
def test_what_messages_show_of_each_other_is_the_worst_over_all_honest_sets(sizes, honest):
    shifts = [1 / J for J in sizes]
    weights = [0.2, 0.25, 0.15, 0.3, 0.1] if honest == 3 else None
    covariance = solve([2 / J for J in sizes], honest, 2.0, weights)
    moved = np.array(covariance.steps) * shifts
    mu, worst, nodes = np.array(shifts) / covariance.effective(honest), 0.0, range(5)
    found = covariance.correlation(honest, shifts)
    for size in range(honest, 6):
        for chosen in itertools.combinations(nodes, size):
            M = np.outer(moved[list(chosen)], moved[list(chosen)]) * np.linalg.inv(covariance.among(chosen))
            for a, b in itertools.combinations(range(size), 2):
                worst = max(worst, M[a, b] / max(mu[chosen[a]], mu[chosen[b]]) ** 2)
    assert worst <= found <= 1.1 * worst + 1e-6
    if len(set(sizes)) == 1 and weights is None:
        assert found == pytest.approx(0.5, rel=1e-6)


def mixture(shift, correlation, rate):
    """Return P and Q on a grid: two sites, each with a coin, Gram matrix M = shift² [[1, a], [a, 1]]."""
    root = shift * np.linalg.cholesky([[1, correlation], [correlation, 1]] + 1e-12 * np.eye(2))
    at = np.stack(np.meshgrid(*[np.linspace(-8, 8 + 2 * shift, 501)] * 2), -1)
    q = stats.norm.pdf(at).prod(-1)
    p = np.zeros_like(q)
    for coins in itertools.product((0, 1), repeat=2):
        weight = math.prod(rate if coin else 1 - rate for coin in coins)
        p += weight * stats.norm.pdf(at - np.array(coins) @ root).prod(-1)
    return p / p.sum(), q / q.sum()


def exactly(p, q, runs, delta):
    """Return ε of so many releases, by histograms of losses that err by 1e-3."""
    loss = np.log(p / q).clip(-30, 30).ravel()
    return max(composed(sign * loss, weight.ravel(), runs, delta) for sign, weight in ((1, p), (-1, q)))


def composed(loss, weight, runs, delta):
    once = np.bincount(np.rint((loss + 30) / 1e-3).astype(int), weight, 60_001)
    mass = once
    for _ in range(runs - 1):
        mass = signal.fftconvolve(mass, once)
    at = 1e-3 * np.arange(mass.size) - 30 * runs
    return optimize.brentq(lambda e: (-np.expm1(np.minimum(e - at, 0)) * mass).sum() - delta, 0, 20)


@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize(("rate", "shift", "correlation"), [(0.05, 1.0, 0.5), (0.3, 1.5, 0.8), (0.9, 0.5, 0.0)])
def test_sampled_sites_that_share_noise_cost_no_more_than_that(rate, shift, correlation, runs):
    base = SampledMean(sigma=1 / (shift * 100 * rate), clip=1.0, batch=100 * rate, samples=100)
    found = epsilon(PersonLevel(shared(base), 4, 2, correlation), runs, delta=1e-3)
    exact = exactly(*mixture(shift, correlation, rate), runs, 1e-3)
    assert exact - 2e-3 <= found <= exact * 1.01 + 2e-3


@pytest.mark.parametrize("second", [np.sign, lambda m: -np.sign(m), np.ones_like, lambda m: np.tanh(3 * m)])
def test_a_gradient_that_answers_the_other_sites_message_is_covered(second):
    rate, shift, correlation = 0.3, 1.5, 0.5
    precision = np.array([[1, correlation], [correlation, 1]])
    first, other = np.meshgrid(*[np.linspace(-10, 10, 801)] * 2, indexing="ij")
    law = stats.multivariate_normal(cov=np.linalg.inv(precision))
    p, q = np.zeros_like(first), law.pdf(np.stack([first, other], -1))
    for coins in itertools.product((0, 1), repeat=2):
        weight = math.prod(rate if coin else 1 - rate for coin in coins)
        moved = first - shift * coins[0], other - shift * coins[1] * second(first)
        p += weight * law.pdf(np.stack(moved, -1))
    release = Mixture(rate, shift, 2, correlation)
    for e in np.linspace(0, 3, 13):
        ahead, back = (np.maximum(a - math.exp(e) * b, 0).sum() / q.sum() for a, b in ((p, q), (q, p)))
        assert ahead <= release.forward(np.array([e]))[0] + 1e-7
        assert back <= release.backward(np.array([e]))[0] + 1e-7


@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize(("rate", "shift"), [(0.05, 0.24), (0.01, 1.0), (0.6, 0.3)])
def test_sites_whose_messages_show_nothing_of_each_other_compose(rate, shift, sites):
    one, releases = Sampled(rate, shift), 50
    apart = pld.compose([(one, sites * releases)], DELTA).epsilon(DELTA)
    together = pld.compose([(Mixture(rate, shift, sites, 0.0), releases)], DELTA).epsilon(DELTA)
    assert apart * (1 - 1e-3) <= together <= apart * 1.02
    few = np.isin(renyi_bound.ORDERS, [2, 3, 4, 5, 8])
    found = renyi_bound.together(rate, shift, sites, 0.0)[few]
    assert found == pytest.approx(sites * renyi_bound.sampled(rate, shift, replace=False)[few], rel=1e-4)


def test_sites_whose_messages_show_all_of_each_other_are_one_mixture():
    rate, shift, order = 0.1, 0.7, 4
    y = np.linspace(-12, 20, 20_001)
    ratio = sum(
        weight * np.exp(n * shift * y - (n * shift) ** 2 / 2) for n, weight in ((0, 0.81), (1, 0.18), (2, 0.01))
    )
    moment = np.trapezoid(stats.norm.pdf(y) * ratio**order, y)
    assert renyi_bound.together(rate, shift, 2, 1.0)[list(renyi_bound.ORDERS).index(order)] == pytest.approx(
        math.log(moment), rel=1e-4
    )
    stick = np.trapezoid(stats.norm.pdf(y) * np.maximum(ratio - math.exp(0.5), 0), y)
    assert stick <= Mixture(rate, shift, 2, 1.0).forward(np.array([0.5]))[0] <= stick * 1.02


def test_the_numbers_of_the_design():
    base = SampledMean(sigma=1 / (0.234 * 5), clip=1.0, batch=5, samples=100)
    pair = PersonLevel(shared(base), 4, 2, 0.5)
    assert up(epsilon(base, 600), 3) == "1.12"
    assert up(epsilon(pair, 600), 3) == "2.04"
    assert up(epsilon(dataclasses.replace(pair, correlation=1.0), 600), 3) == "2.41"


@pytest.mark.parametrize(
    ("base", "relation", "sites"),
    [
        (Saga(sigma=2.0, clip=1.0, batch=5, samples=100), "zero-out", 3),
        (DRAWN, "replace-one", 3),
        (DRAWN, "zero-out", 4),
    ],
)
def test_where_no_more_is_proved_sites_that_share_noise_cost_a_chain_of_neighbours(base, relation, sites):
    one, several = (PersonLevel(shared(base), 4, s, 0.5) for s in (1, sites))
    group = Group(accountant.profile(one, 30, relation), times=sites)
    assert sites * epsilon(one, 30, relation=relation) <= epsilon(several, 30, relation=relation)
    assert epsilon(several, 30, relation=relation) <= group.epsilon(DELTA) * 1.01


@pytest.mark.parametrize("times", [2, 3, 5])
def test_a_chain_of_gaussians_is_covered(times):
    single = GaussianCurve(0.4)
    found = Group(single, times=times).epsilon(DELTA)
    assert GaussianCurve(0.4 * times).delta(found) <= DELTA


def test_wrappers_write_and_read_their_own_keys():
    base = dataclasses.replace(DRAWN, coordinates=7)
    for made in (Summed(base, 3), shared(base), PersonLevel(base, 4), PersonLevel(shared(base), 5, 2, 0.25)):
        assert described(made.describe()) == made
    assert "person_rows" not in base.describe()
    assert PersonLevel(base, 4).describe() == base.describe() | {
        "person_rows": 4, "person_sites": 1, "person_correlation": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "values", [{"rows": 0}, {"rows": 2, "sites": 0}, {"rows": 2, "correlation": 1.5}, {"rows": 2.5}]
)
def test_impossible_persons_are_refused(values):
    with pytest.raises(Refused):
        PersonLevel(DRAWN, **values)


def test_a_person_is_the_outermost_wrapper():
    for inside in (shared, lambda p: Composed(((p, 1),)), lambda p: PersonLevel(p, 2)):
        with pytest.raises(TypeError, match="outermost"):
            inside(PersonLevel(DRAWN, 4))


@dataclasses.dataclass(frozen=True)
class Strange(Wrapper):
    """A wrapper that no accountant knows."""


@pytest.mark.parametrize(
    "count",
    [
        lambda m: accountant.epsilon(m, 3, DELTA),
        lambda m: renyi_bound.renyi(m, 3, "zero-out"),
        lambda m: lower_bound.epsilon(m, 3, DELTA, "zero-out"),
    ],
)
def test_an_unknown_wrapper_is_refused_by_name(count):
    with pytest.raises(Refused, match="Strange"):
        count(Strange(DRAWN))


def test_assumptions_name_the_person():
    words = assumptions(PersonLevel(DRAWN, 4, 2), 3, "zero-out")
    assert words[0].startswith("neighbours differ in one person, up to 4 rows of this node, which is zeroed out")
    assert "number of persons is public" in words[0]
    assert any("up to 4 rows is clipped as one" in word for word in words)
    assert any("rows at up to 2 sites" in word for word in words)
