"""One release of SAGA: the worst pair over everything a table entry and its difference can be.

In units of σ, with G = 1, τ = G / (Jσ), λ = (θ − q)/q and u = t + c, a present sample shifts the noise by s0 = τ(u − c)
when it is not drawn and by s1 = τ(u + λc) when it is: s1 = t/J + θc/b. Here c is the whole difference and u the new
entry, whatever the weight θ of the difference is. Only the *shape* (|u|², ⟨u, c⟩, |c|²) of the pair matters.

*Raising.* Adding a positive semidefinite matrix to the Gram matrix of (u, c) adds coordinates to both shifts; dropping
them again is post-processing; so no f-divergence of the pair falls. In symbols: along a change (dU, dW, dC) of the
shape a divergence moves by the mean of a non-negative weight times N(ρ) = dU + 2ρ dW + ρ² dC, where
ρ = (λqb − (1 − q)a)/f ≥ −1 for the likelihood ratios a, b of the two shifts and f = (1 − q)a + qb (Kahane's formula).

*From all admissible (t, c) to a path.* Raise |u|² until |u| = 1 or |t| = 1; then |c|² until |c| = R or |t| = 1; on
|t| = 1 raise both together. What is left is |u| = |t| = 1 with |c| ≤ R; |u| = 1, |c| = R with |t| ≤ 1; and |t| = 1,
|c| = R with |u| ≤ 1, where N = 1 + ρ ≥ 0, so that its end |u| = 1 is the worst. One path remains, straight in the
shape: from E2 (c = 0) along |u| = |t| = 1 to the corner |c| = R, and on along |u| = 1, |c| = R to E1 (u, c parallel).

*The supremum along the path* is certified by branch and bound. On a piece of length d, N = d(ρ + gρ²), g = 1 before
the corner and 0 after. For any ρ0 ≠ 0 with 1 + gρ0 > 0 and κ = 1 / (4|ρ0|(1 + gρ0)), the square dκ(ρ − ρ0)² is at
least N where ρ0 < 0, and at least −N where ρ0 > 0: raising the piece's start, or its end, by that square gives a pair
that is at least as bad as every pair of the piece. Near ρ0 it costs almost nothing; pieces are halved until it does.

*One pair.* s0 and s1 differ only along c, so a pair is the composition of a one-dimensional mixture along c with a
Gaussian across it. The mixture is discretised on a grid: every cell keeps its mass under P and under Q and moves it to
its ends, which is pessimistic for both directions. The Gaussian is exact.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from privsgp.accounting.curve import gaussian_delta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

TOLERANCE = (
    1e-3  # the certified supremum exceeds a pair that occurs by at most this much, unless PIECES ends the search
)
PIECES = 1200  # after that many the search ends with the bounds it has
REACH = 10.5  # standard deviations of each Gaussian that the grid covers; Φ(−10.5) = 4e-26
LARGEST_LOSS = 600.0  # exp(600) is still a double


class _Shape(NamedTuple):
    """|u|², ⟨u, c⟩ and |c|², in units of G."""

    u2: float
    uc: float
    c2: float


@dataclass(frozen=True)
class Geometry:
    """The admissible pairs of one release: sampling rate q < 1, C/G, τ = G/(Jσ) and the weight θ > q of a difference.

    The path has parameter 0 at E2, 1 at the corner and 2 at E1. (For θ ≤ q, ρ ≤ λ ≤ 0 throughout: E2 is the worst.)
    """

    rate: float
    ratio: float
    shift: float
    scale: float = 1.0

    @property
    def odds(self) -> float:
        """λ: how far beyond the new entry a drawn sample shifts the noise, in differences."""
        return (self.scale - self.rate) / self.rate

    @property
    def reach(self) -> float:
        """R = min(C, 2G)/G: a difference of two gradients is never longer than 2G."""
        return min(self.ratio, 2.0)

    def shape(self, position: float) -> _Shape:
        """Return the shape at a place of the path."""
        c2 = (self.reach * min(position, 1.0)) ** 2
        t2 = 1 - (max(position, 1.0) - 1) * (1 - (1 - self.reach) ** 2)
        return _Shape(1.0, (1 + c2 - t2) / 2, c2)

    def at(self, shape: _Shape, epsilon: NDArray[np.float64], *, backward: bool) -> NDArray[np.float64]:
        """Return H_ε(P‖Q), or H_ε(Q‖P), of the pair of this shape."""
        return _divergence(self.rate, *self.shifts(shape), epsilon, backward=backward)

    def shifts(self, shape: _Shape) -> tuple[float, float, float]:
        """Return s0 and s1 along c, and what both have across it, in units of σ."""
        length = math.sqrt(shape.c2)
        along = shape.uc / length if length else 0.0
        # A little more across is pessimistic, and keeps the Gaussian across from degenerating for parallel u and c.
        across = max(shape.u2 - along**2, 0.0) + 1e-10 * shape.u2
        drawn = self.shift * (along + self.odds * length)
        return self.shift * (along - length), drawn, self.shift * math.sqrt(across)

    def above(self, start: float, stop: float, rho: float) -> _Shape:
        """Return a shape at least as bad as every one on a piece of the path that does not cross the corner."""
        first, last = self.shape(start), self.shape(stop)
        length, bend = (last.c2 - first.c2, 1.0) if stop <= 1 else (2 * (last.uc - first.uc), 0.0)
        square = length / (4 * abs(rho) * (1 + bend * rho))
        base = last if rho > 0 else first
        return _Shape(base.u2 + square * rho**2, base.uc - square * rho, base.c2 + square)

    def forward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of sup H_ε(P‖Q) over the admissible pairs."""
        return self._supremum(epsilon, backward=False)

    def backward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of sup H_ε(Q‖P) over the admissible pairs."""
        return self._supremum(epsilon, backward=True)

    def _supremum(self, epsilon: NDArray[np.float64], *, backward: bool) -> NDArray[np.float64]:
        """Branch and bound over the path, for all ε together: each piece carries the ε it still matters for."""
        positions = np.linspace(0.0, 2.0, 9)
        known = np.max([self.at(self.shape(p), epsilon, backward=backward) for p in positions], axis=0)
        bound = known.copy()
        pieces = deque((p, p + 0.25, np.arange(epsilon.size)) for p in positions[:-1])
        tried = 0
        while pieces:
            tried += 1
            start, stop, where = pieces.popleft()
            worst = self._worst(start, stop, epsilon[where], backward=backward)
            closed = (worst <= known[where] * (1 + TOLERANCE)) | (tried + len(pieces) > PIECES)
            bound[where[closed]] = np.maximum(bound[where[closed]], worst[closed])
            if (rest := where[~closed]).size:
                middle = (start + stop) / 2
                here = self.at(self.shape(middle), epsilon[rest], backward=backward)
                known[rest] = np.maximum(known[rest], here)
                pieces += [(start, middle, rest), (middle, stop, rest)]
        return np.asarray(bound)

    def _worst(self, start: float, stop: float, epsilon: NDArray[np.float64], *, backward: bool) -> NDArray[np.float64]:
        """Return an upper bound of the hockey stick on a piece of the path."""
        worst = np.full_like(epsilon, np.inf)
        for rho, where in self._slopes(self.shape(stop), epsilon, backward=backward):
            bound = self.at(self.above(start, stop, rho), epsilon[where], backward=backward)
            worst[where] = np.minimum(worst[where], bound)
        return worst

    def _slopes(
        self, shape: _Shape, epsilon: NDArray[np.float64], *, backward: bool
    ) -> Iterator[tuple[float, NDArray[np.bool_]]]:
        """Guess where ρ lies when f = e^{±ε}, to a power of two: any guess is valid, a good one is cheap."""
        spread = (self.scale - self.rate) * self.shift * math.sqrt(shape.c2) / self.rate / 2
        size = np.maximum(self.odds * shape.uc * np.abs(np.expm1(epsilon if backward else -epsilon)), max(spread, 1e-6))
        power = np.rint(np.log2(np.minimum(size, 0.7 if backward else 1e6)))
        for value in np.unique(power):
            yield (-1 if backward else 1) * min(2.0**value, 0.8 if backward else math.inf), power == value
        if self.scale < 1:  # without noise in the ratios ρ = θ − 1: a smaller weight draws the worst pair towards E2
            yield self.scale - 1, np.full(size.shape, fill_value=True)


class Ends(Geometry):
    """Only the ends of the path: quick and a little too small, for a search whose result is certified afterwards."""

    def _supremum(self, epsilon: NDArray[np.float64], *, backward: bool) -> NDArray[np.float64]:
        ends = [self.at(self.shape(position), epsilon, backward=backward) for position in (0.0, 1.0, 2.0)]
        return np.asarray(np.max(ends, axis=0))


def _divergence(
    rate: float, undrawn: float, drawn: float, across: float, epsilon: NDArray[np.float64], *, backward: bool
) -> NDArray[np.float64]:
    """Return a hockey stick of the mixture along c composed with the Gaussian across."""
    loss, present, absent, only = _atoms(rate, undrawn, drawn)
    if backward:
        return gaussian_delta(epsilon[:, None] + loss, across) @ absent + only[1]
    return gaussian_delta(epsilon[:, None] - loss, across) @ present + only[0]


def _atoms(
    rate: float, undrawn: float, drawn: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], tuple[float, float]]:
    """Return a discrete pair that dominates P = (1−q) N(s0) + q N(s1) against Q = N(0): losses, P- and Q-masses, rest.

    On a cell of the grid the likelihood ratio m = P/Q is monotone, between its values at the ends. Moving the cell's
    mass to the ends so that both its P-mass and its Q-mass stay is the chord of every function convex in m. The rest is
    the mass at infinite loss under P, and under Q.
    """
    y, least = _grid(rate, undrawn, drawn)
    loss = np.logaddexp(np.log1p(-rate) + undrawn * y - undrawn**2 / 2, np.log(rate) + drawn * y - drawn**2 / 2)
    ends = np.concatenate(([-np.inf], y, [np.inf]))
    absent = normal_mass(ends)
    present = (1 - rate) * normal_mass(ends - undrawn) + rate * normal_mass(ends - drawn)
    m = np.exp(loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (present[1:-1] / absent[1:-1] - m[:-1]) / np.diff(m)
    share = np.clip(np.nan_to_num(share, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    # An outer cell has but one end, and its ratio runs to 0 or ∞: what that end cannot carry is an infinite loss. If
    # the least ratio is out there too, the cell is not monotone, and all of it counts as infinite.
    monotone = np.array([not least < y[0], not least > y[-1]])
    outer = np.where(monotone, np.minimum(absent[[0, -1]], present[[0, -1]] / m[[0, -1]]), 0.0)
    atoms = np.zeros_like(y)
    atoms[:-1] += (1 - share) * absent[1:-1]
    atoms[1:] += share * absent[1:-1]
    atoms[[0, -1]] += outer
    only_present = np.maximum(present[[0, -1]] - outer * m[[0, -1]], 0.0).sum()
    only_absent = np.maximum(absent[[0, -1]] - outer, 0.0).sum()
    return loss, atoms * m, atoms, (float(only_present), float(only_absent))


def _grid(rate: float, undrawn: float, drawn: float) -> tuple[NDArray[np.float64], float]:
    """Return points that resolve all three Gaussians, and where the loss is least (NaN where it rises throughout).

    That place is one of the points, unless it lies outside them. Losses stay within ±LARGEST_LOSS.
    """
    steps = np.linspace(-REACH, REACH, 160)
    third = (steps[1] - steps[0]) / 3
    y = np.concatenate((steps, undrawn + steps + third, drawn + steps + 2 * third))
    for shift in (undrawn, drawn):
        if abs(shift) > 1e-3:
            # The undrawn part alone keeps the loss from falling too low, either part from rising too high.
            low, high = sorted((side * LARGEST_LOSS / shift + shift / 2) for side in (-1, 1))
            y = np.clip(y, low if shift == undrawn or shift < 0 else -np.inf, high)
    if not undrawn < 0.0 < drawn:
        return np.unique(y), math.nan
    log_ratio = math.log1p(-rate) + math.log(-undrawn) - math.log(rate) - math.log(drawn)
    least = (log_ratio + (drawn**2 - undrawn**2) / 2) / (drawn - undrawn)
    return np.unique(np.append(y, least) if y.min() < least < y.max() else y), least


def normal_mass(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal mass between neighbouring ends, without cancellation in either tail."""
    lower, upper = special.ndtr(ends), special.ndtr(-ends)
    return np.asarray(np.where(ends[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1]))
