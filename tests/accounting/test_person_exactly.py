"""A person at sites that share noise: ε against lower bounds that rest on none of the accounting's formulas.

Space is cut into cells whose masses normal integrals give, cells of about the same loss are merged, and losses of
several steps are added up. Each of these is a function of what an observer sees, so what is found is never above the
truth. The coordinates are Cholesky's; the accounting takes a symmetric root.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from privsgp.accounting import accountant
from privsgp.accounting.compound import PersonLevel, Shared, Summed
from privsgp.accounting.mechanisms import SampledMean

STEP = 2e-3  # width of a merged loss
FAR = 9.0


def one_step(rate, shifts, correlation, cells):
    """Return the masses of P and Q by merged loss, {bin: (P, Q)}, for sites with these shifts and a coin each."""
    s = len(shifts)
    gram = np.outer(shifts, shifts) * np.where(np.eye(s, dtype=bool), 1.0, correlation)
    values, vectors = np.linalg.eigh(gram)
    root = np.linalg.qr((vectors * np.sqrt(values.clip(0))).T)[1]  # rootᵀ root = gram: the means are root c
    means = [
        (root @ np.array(c), np.prod([rate if drawn else 1 - rate for drawn in c]))
        for c in itertools.product((0, 1), repeat=s)
    ]
    axes = []
    for i in range(s):
        ends = [mean[i] for mean, _ in means]
        inner = np.linspace(min(ends) - FAR, max(ends) + FAR, cells)
        axes.append(np.concatenate([[-np.inf], inner, [np.inf]]))

    def mass(mean):
        found = 1.0
        for axis, edges in enumerate(axes):
            x = edges - mean[axis]
            one = np.where(x[:-1] > 0, -np.diff(special.ndtr(-x)), np.diff(special.ndtr(x)))
            found = np.multiply.outer(found, one)
        return found

    q = mass(np.zeros(s)).ravel()
    p = sum(weight * mass(mean).ravel() for mean, weight in means)
    seen = (p > 1e-290) & (q > 1e-290)  # what is left out only makes less of it
    p, q = p[seen], q[seen]
    bins = np.rint(np.log(p / q) / STEP).astype(int)
    least = bins.min()
    return [np.bincount(bins - least, weight) for weight in (p, q)]


def at_least(rate, shifts, correlation, steps, delta, cells):
    """Return an ε that any guarantee at this δ reaches: the larger one of both directions."""
    once = one_step(rate, shifts, correlation, cells)
    p, q = once
    for _ in range(steps - 1):
        p, q = np.convolve(p, once[0]), np.convolve(q, once[1])

    def stick(e, first, second):
        return np.maximum(first - math.exp(e) * second, 0).sum() - delta

    found = 0.0
    for pair in ((p, q), (q, p)):
        if stick(0, *pair) > 0:
            found = max(found, optimize.brentq(stick, 0, 100, args=pair, xtol=1e-9))
    return found


def shared(rate, shift):
    base = SampledMean(sigma=1 / (shift * 100 * rate), clip=1.0, batch=100 * rate, samples=100)
    return Shared(base, 8, 15, 0.1)


def counted(rate, shift, sites, correlation, steps, delta):
    person = PersonLevel(shared(rate, shift), 4, sites, correlation)
    return accountant.epsilon(person, steps, delta, "zero-out").epsilon


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize(("rate", "shift", "correlation"), [
    (0.05, 1.0, 0.5), (0.3, 1.5, 0.8), (0.9, 0.5, 0.0), (0.01, 3.0, 0.5), (0.5, 0.2, 1.0),
])  # fmt: skip
def test_epsilon_at_two_sites_is_never_below_what_two_messages_show(rate, shift, correlation, steps):
    for delta in (1e-2, 1e-5):
        found = counted(rate, shift, 2, correlation, steps, delta)
        least = at_least(rate, (shift, shift), correlation, steps, delta, 600)
        assert least <= found <= 1.03 * least + 0.005


@pytest.mark.parametrize(("rate", "shift", "correlation", "steps"), [(0.1, 1.0, 0.5, 2), (0.4, 0.7, 0.3, 3)])
def test_epsilon_at_three_sites_is_never_below_what_three_messages_show(rate, shift, correlation, steps):
    found = counted(rate, shift, 3, correlation, steps, 1e-4)
    least = at_least(rate, (shift,) * 3, correlation, steps, 1e-4, 90)
    assert least <= found <= 1.15 * least + 0.01


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.003, 0.97), st.floats(0.05, 3), st.floats(0, 1), st.integers(1, 3), st.floats(-7, -1),
    st.floats(0.2, 1), st.floats(0.2, 1),
)  # fmt: skip
def test_no_weaker_site_shows_more_than_is_counted(rate, shift, correlation, steps, delta, weaker, less):
    found = counted(rate, shift, 2, correlation, steps, 10**delta)
    shifts, shown = (shift, weaker * shift), correlation * less
    assert at_least(rate, shifts, shown, steps, 10**delta, 250) <= found


@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_sum_that_a_person_moves_from_several_sites(sites, steps):
    rate, nodes, shift = 0.3, 4, 0.8
    base = SampledMean(sigma=1 / (shift * 100 * rate), clip=1.0, batch=100 * rate, samples=100)
    person = PersonLevel(Summed(base, nodes), 4, sites)
    found = accountant.epsilon(person, steps, 1e-4, "zero-out").epsilon
    moved = shift / math.sqrt(nodes)  # all sites' shifts add up in the one sum that is seen
    least = at_least(rate, (moved,) * sites, 1.0, steps, 1e-4, 600 if sites == 2 else 90)
    assert least <= found <= 1.2 * least + 0.01
