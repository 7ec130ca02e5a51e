"""The law of computed noise, enumerated: every step of the proof of docs/proofs/sampler.md, that has numbers.

`tail_law` counts arcs: a word of the radius is a circle, cut by the edges of the grid, and the angle's 53 bits are so
many that its cells are arcs. With words of 12 bits all circles are counted, with the real 75 bits all those beyond
9.2 σ. `small_law` counts every pair of two small words that share their lowest bits, as the real ones do.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from privsgp.accounting import sampler_cost

SPACINGS = (2**-4.5, 2**-3.5)  # of the grid, in σ: all that rounding log₂ σ can give
CENTRES = ((0.0, 0.0), (0.5, 0.5), (0.5, 0.0), (0.31, 0.12))  # in cells: g in a cell's middle, on a corner, on an edge
DIRECTIONS = ((1.0, 0.0), (0.6, 0.8), (-(2**-0.5), 2**-0.5))


def tail_law(bits, spacing, centre, circles):
    """The probabilities of cells [2n + 1, 2n + 1] around 0, by the innermost `circles` values of u, of so many bits."""
    radius = np.sqrt(-2 * np.log((2 * np.arange(circles) + 1.0) * 2.0**-bits))
    n = int(radius[0] / spacing) + 3
    edges, width = (np.arange(-n, n) + 0.5) * spacing, 2 * n + 1
    cells = np.zeros(width * width)
    for r in np.array_split(radius[:, None], 1 + len(radius) // 2048):
        across = np.arccos(np.clip((edges - centre[0]) / r, -1, 1))
        along = np.arcsin(np.clip((edges - centre[1]) / r, -1, 1))
        cuts = [across, -across, along, np.copysign(math.pi, along) - along, 0 * r - math.pi, 0 * r + math.pi]
        angle = np.sort(np.concatenate(cuts, 1), 1)
        middle = (angle[:, 1:] + angle[:, :-1]) / 2
        row = np.rint((centre[0] + r * np.cos(middle)) / spacing).astype(int) + n
        column = np.rint((centre[1] + r * np.sin(middle)) / spacing).astype(int) + n
        arcs = np.diff(angle, axis=1) / (2 * math.pi) * 2.0 ** (1 - bits)
        cells += np.bincount((row * width + column).ravel(), arcs.ravel(), width * width)
    return cells.reshape(width, width)


def ideal_law(width, spacing, centre):
    """The same of the ideal Gaussian around `centre`."""
    edges = (np.arange(width + 1) - width / 2) * spacing

    def line(at):
        low, high = edges[:-1] - at, edges[1:] - at
        return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))

    return np.outer(line(centre[0]), line(centre[1]))


def radii(width, spacing, centre):
    """From a centre to the cells' middles."""
    place = (np.arange(width) - width // 2) * spacing
    return np.hypot(*np.meshgrid(place - centre[0], place - centre[1], indexing="ij"))


def lost(law, ideal):
    """Which part of a cell's ideal probability the computed law lacks: η of the proof."""
    return np.clip(1 - law / np.maximum(ideal, 1e-300), 0, 1)


def stick(p, q, factor):
    return np.maximum(p - factor * q, 0).sum()


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("part", CENTRES)
def test_no_hockey_stick_of_the_whole_law_grows_by_more_than_the_tail_that_is_counted(spacing, part):
    """Words of 12 bits, all of them; any ε, both directions, shifts to where nothing can be drawn any more."""
    bits = 12
    centre = [p * spacing for p in part]
    law = tail_law(bits, spacing, centre, 2 ** (bits - 1))
    width = len(law)
    ideal = ideal_law(width, spacing, centre)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    reach = math.sqrt(2 * math.log(2) * (bits - 5.7))  # 9.8 where there are 75 bits
    for cells, (x, y) in itertools.product((0, 3, 20, 41), ((1, 0), (1, 1))):  # whole cells: one law, moved
        m = cells * spacing * math.hypot(x, y)
        if m > reach:
            continue
        there, ideal_there = (np.zeros_like(law) for _ in range(2))
        there[x * cells :, y * cells :] = law[: width - x * cells, : width - y * cells]
        ideal_there[x * cells :, y * cells :] = ideal[: width - x * cells, : width - y * cells]
        counted = 2.0 ** (11 - bits) * math.exp(reach * m - m * m / 2)
        for e in (0.01, 0.5, 0.9, 1.0, 1.1, 2.0, 5.0, 20.0, 1e3, 1e6, 1e12):
            for (p, q), (p_, q_) in (((law, there), (ideal, ideal_there)), ((there, law), (ideal_there, ideal))):
                grown = stick(p, q, e) - stick(p_, q_, e)
                lemma = np.maximum(p - p_, 0).sum() + (lost(q, q_) * p_).sum()  # of step 1 of the proof
                assert grown <= lemma + 1e-12
                assert lemma <= counted


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("part", CENTRES)
def test_beyond_nine_sigma_the_real_law_is_as_near_as_the_proof_says(spacing, part):
    """75 bits, every u below 2⁻⁶¹: cells within 9.8 σ lack 2⁻⁶⁷ e^(r²/2)/r at most, all together what is charged."""
    centre = [p * spacing for p in part]
    law = tail_law(75, spacing, centre, 8192)
    ideal, r = ideal_law(len(law), spacing, centre), radii(len(law), spacing, centre)
    far = r > 9.2 + spacing
    eta = lost(law, ideal) * far
    near = far & (r < 9.8)
    assert (eta[near] <= 2.0**-67 * np.exp(r[near] ** 2 / 2) / r[near]).all()
    assert np.maximum(law - ideal, 0)[far].sum() < 2.0**-66.8
    for m, (x, y) in itertools.product((0.0, 0.1, 0.5, 1.0, 3.0, 6.0, 8.0), DIRECTIONS):
        there = ideal_law(len(law), spacing, (centre[0] + m * x, centre[1] + m * y))
        outside = 1 - there.sum() if m > 2 else 0.0
        assert (eta * there).sum() + outside < 2.0**-66.5 * math.exp(9.8 * m - m * m / 2)


def test_tails_of_several_pairs_are_at_most_those_of_one_that_takes_the_whole_shift():
    """Σ e^(9.8 m − m²/2) over pairs with Σ m² ≤ μ²: convex in m² from 0.15 on, below 4.5 before."""

    def factor(square):
        return np.exp(9.8 * np.sqrt(square) - square / 2)

    squares = np.linspace(0.15**2, 64, 200_001)
    assert (np.diff(factor(squares), 2) >= 0).all()
    assert factor(0.15**2) < 4.5
    rng = np.random.default_rng(0)
    for pairs, mu in itertools.product((1, 2, 7, 300), (0.01, 0.3, 1.0, 4.0, 8.0)):
        for sparse in (0.1, 1.0, 30.0):
            share = rng.gamma(1 / sparse, size=pairs) + 1e-300
            assert factor(mu**2 * share / share.sum()).sum() <= 4.5 * (pairs + 1) + factor(mu**2)


WORD, SHARED = 10, 4  # bits of a word, and how many of the angle's stand behind the radius's


def small_words():
    """Every pair of words: u of the radius (14 bits), and the angle's word, which shares its lowest four bits."""
    first = np.arange(-(2 ** (WORD - 1)), 2 ** (WORD - 1))
    second = np.arange(-(2 ** (WORD + SHARED - 1)), 2 ** (WORD + SHARED - 1))
    behind = (second % 2**SHARED) - (2**SHARED - 1) / 2
    return first, second, behind


def test_bits_that_are_shared_leave_radius_and_angle_independent():
    """u' and θ' of the proof: the radius's cell and the angle's upper bits are uniform, and independent, exactly."""
    first, second, behind = small_words()
    u = np.abs(first[:, None] * 2 ** (SHARED + 1) + (2 * behind).astype(int))  # odd numbers, in units of 2⁻¹⁴
    u = np.where(u > 2 ** (WORD + SHARED), 2 ** (WORD + SHARED + 1) - u, u)  # beyond 1: reflected
    pairs = u * 2 ** (WORD + 1) + (second >> SHARED) + 2 ** (WORD - 1)
    counts = np.bincount(pairs.ravel())
    assert set(counts[counts > 0]) == {2}  # of ± w: each value of u is made twice
    assert (counts > 0).sum() == 2 ** (WORD + SHARED - 1) * 2**WORD
    assert np.abs(second - (second >> SHARED) * 2**SHARED).max() < 2**SHARED  # θ is less than a cell from θ'


@pytest.mark.parametrize("part", CENTRES)
def test_cells_change_by_the_factor_that_the_proof_says(part):
    """|ϑ| ≤ (6.6/s) (a + a'), the 150 (a + a') of the proof, by every pair of small words that share bits."""
    spacing = 2.0**-1.5
    bits = WORD + SHARED
    first, second, behind = small_words()
    u = np.abs(first[:, None] + behind / 2**SHARED) / 2 ** (WORD - 1)
    r, angle = np.sqrt(np.maximum(-2 * np.log(u), 0)), math.pi * second / 2 ** (bits - 1)
    centre = [p * spacing for p in part]
    n = int(r.max() / spacing) + 2
    row = np.rint((centre[0] + r * np.cos(angle)) / spacing).astype(np.int32) + n
    column = np.rint((centre[1] + r * np.sin(angle)) / spacing).astype(np.int32) + n
    law = np.bincount((row * (2 * n + 1) + column).ravel(), minlength=(2 * n + 1) ** 2) / r.size
    ideal = ideal_law(2 * n + 1, spacing, centre).ravel()
    far = radii(2 * n + 1, spacing, centre).ravel() + spacing / math.sqrt(2)  # a cell's farthest point
    a = 2 * math.pi * 2.0**-WORD * far + 2.0**-bits * 2 / np.maximum(far - spacing * math.sqrt(2), spacing)
    moved = a + 1.1 * 2.0**-bits * np.exp(far**2 / 2) / far
    near = moved < 0.1 * spacing
    assert near.sum() > 50
    assert (abs(law / ideal - 1)[near] <= 6.6 / spacing * moved[near]).all()


def test_the_strips_around_a_corner_at_g_are_as_small_as_the_proof_says():
    """Where all four cells meet at g, and a has 2/r: the mass within a of an edge, by quadrature, and what follows."""
    ulp = 2.0**-52
    for spacing in SPACINGS:
        rho = np.geomspace(2.0**-30, 2 * spacing, 200_001)
        width = np.minimum(ulp / rho + 15 * ulp * rho, rho)  # on either side of an edge at distance ρ
        inner = 4 * np.trapezoid(2 * width, rho) / (2 * math.pi)
        outer = 8 * spacing * 2 * (ulp / spacing + 15 * ulp * 2 * spacing) / (2 * math.pi)
        mass = inner + outer
        assert mass < 51 * ulp
        cell = (ndtr(spacing) - 0.5) ** 2
        assert mass / cell < 5e-11
        assert mass**2 / cell < 2e-24
    others = (150 * 2.0**-53) ** 2 * (12.8 + 120 + 900 * 2)  # E(2/r + 30 r)² beyond 0.044
    assert 2e-24 + others < sampler_cost._EACH
    assert sampler_cost._SUMMED > 2 * (150 * 2.0**-53) ** 2
    assert sampler_cost._WIDEST[0] > 150 * (2.0**-53 * (2 + 30 * 7.5) + 1.1 * 2.0**-75 * 2**40 / 7.44)
    assert sampler_cost._WIDEST[1] > 150 * 2.0**-53


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("wide", [0.6, 1.0, 1.6])  # σ in cells, where it is 11 to 23
def test_a_sum_of_rounded_messages_shows_no_more_than_the_rounded_sum(nodes, wide):
    """Σ round(yᵢ) has the law of round(Σ yᵢ + uniforms), but for about e^(−π² σ²/s²)."""
    k = np.arange(-40, 41)
    means = (0.5, 0.13, -0.29)[:nodes]

    def rounded(mean, sigma):
        return ndtr((k + 0.5 - mean) / sigma) - ndtr((k - 0.5 - mean) / sigma)

    total = np.array([1.0])
    for mean in means:
        total = np.convolve(total, rounded(mean, wide))
    total = total[len(total) // 2 + k]
    point, weight = np.polynomial.legendre.leggauss(40)
    same = np.zeros(len(k))
    for uniforms in itertools.product(zip(point / 2, weight / 2, strict=True), repeat=nodes - 1):
        at, mass = sum(u for u, _ in uniforms), math.prod(w for _, w in uniforms)
        same += mass * rounded(sum(means) + at, math.sqrt(nodes) * wide)
    assert abs(total - same).sum() < 5 * math.exp(-((math.pi * wide) ** 2)) + 1e-12
