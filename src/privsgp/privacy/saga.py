"""One release of SAGA: the worst pair over everything a table entry and its difference can be.

In units of σ, with G = 1, τ = G / (Jσ), λ = (1 − q)/q and u = t + c, a present sample shifts the noise by s0 = τ(u − c)
when it is not drawn and by s1 = τ(u + λc) when it is. Only the Gram matrix (|s0|², |s1|², ⟨s0, s1⟩) matters.

*From all admissible (t, c) to a path.* Adding a positive semidefinite matrix to the Gram matrix of (u, c) adds
coordinates; dropping them again is post-processing; so it can only raise a hockey stick. Raise |u|² until |u| = 1 or
|t| = 1; then |c|² until |c| = R or |t| = 1; on |t| = 1 raise both together. What is left is |u| = |t| = 1 with |c| ≤ R;
|u| = 1, |c| = R with |t| ≤ 1; and |t| = 1, |c| = R with |u| ≤ 1, where every Gram entry grows with |u|, so that by
Kahane's inequality (the hockey stick grows with every entry) its end |u| = 1 is the worst. One path remains: from E2
(c = 0) along |u| = |t| = 1 to the corner |c| = R, and on along |u| = 1, |c| = R to E1 (u, c parallel).

*The supremum along the path* is certified by branch and bound: on a piece of the path no pair is worse than the
entry-wise largest Gram matrix of the piece (Kahane again); pieces are halved until that costs nearly nothing.

*One pair.* s0 and s1 differ only along c, so a pair is the composition of a one-dimensional mixture along c with a
Gaussian across it. The mixture is discretised on a grid (every cell keeps its mass under P and under Q and moves it to
its ends, which is pessimistic for both directions at once); the Gaussian is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from privsgp.privacy.curve import gaussian_delta

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOLERANCE = 2e-3  # the certified supremum exceeds a pair that occurs by at most this much, unless DEPTH ends the search
DEPTH = 26  # halvings of the path
REACH = 9.6  # standard deviations of each Gaussian that the grid covers; Φ(−9.6) = 4e-22
FINEST_LOSS = 600.0  # exp(600) is still a double


class Gram(NamedTuple):
    """|s0|², |s1|² and ⟨s0, s1⟩ in units of σ²; scalars or arrays."""

    undrawn: NDArray[np.float64]
    drawn: NDArray[np.float64]
    inner: NDArray[np.float64]


class Pair(NamedTuple):
    """The same shifts in coordinates: s0 and s1 along c, and what both have across it."""

    undrawn: NDArray[np.float64]
    drawn: NDArray[np.float64]
    across: NDArray[np.float64]


class _Atoms(NamedTuple):
    """A discrete pair: losses, their mass under P and under Q, and the mass each has where the other has none."""

    loss: NDArray[np.float64]
    present: NDArray[np.float64]
    absent: NDArray[np.float64]
    only_present: float
    only_absent: float
    across: float

    def forward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H_ε(P‖Q) of the atoms composed with the Gaussian across."""
        return gaussian_delta(epsilon[:, None] - self.loss, self.across) @ self.present + self.only_present

    def backward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H_ε(Q‖P) of the atoms composed with the Gaussian across."""
        return gaussian_delta(epsilon[:, None] + self.loss, self.across) @ self.absent + self.only_absent


@dataclass(frozen=True)
class Geometry:
    """The admissible pairs of one release: sampling rate q, C/G and τ = G/(Jσ).

    The path has parameter 0 at E2, 1 at the corner and 2 at E1.
    """

    rate: float
    ratio: float
    shift: float

    @property
    def reach(self) -> float:
        """R = min(C, 2G)/G: a difference of two gradients is never longer than 2G."""
        return min(self.ratio, 2.0)

    def gram(self, place: NDArray[np.float64]) -> Gram:
        """Return the Gram matrix at a place of the path."""
        # |u| = 1 throughout; |c|² grows on the first half, |t|² falls on the second.
        c2 = (self.reach * np.minimum(place, 1.0)) ** 2
        t2 = 1 - (np.maximum(place, 1.0) - 1) * (1 - (1 - self.reach) ** 2)
        uc = (1 + c2 - t2) / 2
        odds = (1 - self.rate) / self.rate
        undrawn, drawn = t2, 1 + 2 * odds * uc + odds**2 * c2
        inner = 1 + (odds - 1) * uc - odds * c2
        return Gram(self.shift**2 * undrawn, self.shift**2 * drawn, self.shift**2 * inner)

    def largest(self, start: NDArray[np.float64], stop: NDArray[np.float64]) -> Gram:
        """Return the entry-wise largest Gram matrix of pieces that do not cross the corner.

        Every entry is monotone on either half, so its largest value is at an end. The result is positive semidefinite:
        its inner product is that of one of the ends, its norms are no smaller.
        """
        return Gram(*(np.maximum(a, b) for a, b in zip(self.gram(start), self.gram(stop), strict=True)))

    def forward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of sup H_ε(P‖Q) over the admissible pairs."""
        return self._supremum(epsilon, backward=False)

    def backward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of sup H_ε(Q‖P) over the admissible pairs."""
        return self._supremum(epsilon, backward=True)

    def at(self, place: float, epsilon: NDArray[np.float64], *, backward: bool = False) -> NDArray[np.float64]:
        """Return the hockey stick of the pair at one place of the path."""
        return self._divergence(self.gram(np.array(place)), epsilon, backward=backward)

    def _divergence(self, gram: Gram, epsilon: NDArray[np.float64], *, backward: bool) -> NDArray[np.float64]:
        atoms = _atoms(self.rate, coordinates(gram))
        return atoms.backward(epsilon) if backward else atoms.forward(epsilon)

    def _supremum(self, epsilon: NDArray[np.float64], *, backward: bool) -> NDArray[np.float64]:
        """Branch and bound over the path, for all ε together: each piece carries the ε it still matters for."""
        known = np.max([self.at(place, epsilon, backward=backward) for place in (0.0, 0.5, 1.0, 1.5, 2.0)], axis=0)
        bound = known.copy()
        everywhere = np.arange(epsilon.size)
        pieces = [(place, place + 0.5, everywhere) for place in (0.0, 0.5, 1.0, 1.5)]
        for depth in range(DEPTH + 1):
            halves = []
            for start, stop, where in pieces:
                worst = self._divergence(
                    self.largest(np.array(start), np.array(stop)), epsilon[where], backward=backward
                )
                open_ = worst > known[where] * (1 + TOLERANCE)
                done = where if depth == DEPTH else where[~open_]
                value = worst if depth == DEPTH else worst[~open_]
                bound[done] = np.maximum(bound[done], value)
                if depth < DEPTH and open_.any():
                    middle, rest = (start + stop) / 2, where[open_]
                    known[rest] = np.maximum(known[rest], self.at(middle, epsilon[rest], backward=backward))
                    halves += [(start, middle, rest), (middle, stop, rest)]
            pieces = halves
        return bound


def coordinates(gram: Gram) -> Pair:
    """Return the shifts along c and across it; rounding is upwards, an orthogonal shift more being pessimistic."""
    apart = np.sqrt(np.maximum(gram.undrawn + gram.drawn - 2 * gram.inner, 1e-300))
    undrawn, drawn = (gram.inner - gram.undrawn) / apart, (gram.drawn - gram.inner) / apart
    area = np.maximum(gram.undrawn * gram.drawn - gram.inner**2, 0.0)
    across = np.where(apart > 1e-8 * np.sqrt(gram.drawn), area / apart**2, gram.undrawn)
    return Pair(undrawn, drawn, np.sqrt(across + 1e-10 * np.maximum(gram.undrawn, gram.drawn)))


def _atoms(rate: float, pair: Pair) -> _Atoms:
    """Return a discrete pair that dominates (1−q) N(s0) + q N(s1) against N(0) along c.

    On a cell of the grid the likelihood ratio m = P/Q is monotone, between its values m_a, m_b at the ends. Moving the
    cell's mass to the ends so that both its P-mass and its Q-mass stay is the chord of every function convex in m.
    """
    undrawn, drawn, across = (float(v) for v in pair)
    y = _grid(rate, undrawn, drawn)
    loss = np.logaddexp(np.log1p(-rate) + undrawn * y - undrawn**2 / 2, np.log(rate) + drawn * y - drawn**2 / 2)
    ends = np.concatenate(([-np.inf], y, [np.inf]))
    absent = _normal_mass(ends)
    present = (1 - rate) * _normal_mass(ends - undrawn) + rate * _normal_mass(ends - drawn)
    m = np.exp(loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (present[1:-1] / absent[1:-1] - m[:-1]) / np.diff(m)
    share = np.clip(np.where(np.isfinite(share), share, 0.0), 0.0, 1.0)
    atoms = np.zeros_like(y)
    atoms[:-1] += (1 - share) * absent[1:-1]
    atoms[1:] += share * absent[1:-1]
    # The two outer cells are open: their ratio runs to 0 or ∞, and what an end cannot carry is a loss of ±∞.
    outer_present, outer_absent, edge = present[[0, -1]], absent[[0, -1]], m[[0, -1]]
    carried = np.minimum(outer_absent, outer_present / edge)
    atoms[[0, -1]] += carried
    return _Atoms(
        loss,
        atoms * m,
        atoms,
        float(np.maximum(outer_present - carried * edge, 0.0).sum()),
        float(np.maximum(outer_absent - carried, 0.0).sum()),
        across,
    )


def _grid(rate: float, undrawn: float, drawn: float) -> NDArray[np.float64]:
    """Return points that resolve all three Gaussians, cut where e^loss overflows, with the least loss among them."""
    steps = np.linspace(-REACH, REACH, 90)
    third = (steps[1] - steps[0]) / 3
    y = np.concatenate((steps, undrawn + steps + third, drawn + steps + 2 * third))
    shifts = np.array([s for s in (undrawn, drawn) if s != 0.0] or [1e-9])
    limit = np.min(FINEST_LOSS / np.abs(shifts))
    y = np.clip(y, -limit, limit)
    if undrawn < 0.0 < drawn:
        ratio = np.log1p(-rate) + np.log(-undrawn) - np.log(rate) - np.log(drawn)
        y = np.append(y, (ratio + (drawn**2 - undrawn**2) / 2) / (drawn - undrawn))
    return np.unique(y)


def _normal_mass(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal mass between neighbouring ends, without cancellation in either tail."""
    lower, upper = special.ndtr(ends), special.ndtr(-ends)
    return np.where(ends[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
