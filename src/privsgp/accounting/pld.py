"""Many releases from one: privacy-loss distributions, discretised pessimistically and composed.

One release is given by its profile: upper bounds of the hockey sticks H_ε(P‖Q) and H_ε(Q‖P) for ε ≥ 0. They are
evaluated at a few hundred ε, joined by chords in e^ε (above the true curve, which is convex there), turned into a
distribution by dp-accounting's connect-the-dots and convolved by FFT. Every rounding goes upwards: the tails that
are cut become an infinite loss, and so does a bound on the FFT's own rounding.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft, signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

LARGEST_LOSS = 500.0  # of one release; beyond it a loss counts as infinite
TAIL = 1e-22  # the δ of one release at which its profile is cut
TRUNCATION = 1e-15  # mass that composition may cut; it is added to the infinite loss
RATIO = 1.04  # of neighbouring ε: 4 % of a loss is far below the spread of a sum of losses
LONGEST = 1 << 21  # points of a composed distribution: half a second of FFT


class Profile(Protocol):
    """Both hockey sticks of one release, as functions of an ascending array of ε ≥ 0."""

    def forward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of H_ε(P‖Q): the sample is present in P, absent in Q."""

    def backward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound of H_ε(Q‖P)."""

    def outline(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return roughly the larger of both: it chooses the grid, never the result."""


class _Loss(NamedTuple):
    """A distribution of losses on the grid `interval · (first, first + 1, …)`, the rest of the mass at infinity."""

    interval: float
    first: int
    mass: NDArray[np.float64]
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Return Σ (1 − e^{ε − loss})₊ mass + infinite."""
        if math.isinf(epsilon):
            return self.infinite
        start = max(math.floor(epsilon / self.interval) - self.first, 0)
        losses = np.arange(self.first + start, self.first + self.mass.size) * self.interval
        gain = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return min(self.infinite + float(gain @ self.mass[start:]), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 whose δ suffices: first among all points of the grid, then between two of them."""
        if self.infinite > delta:
            return math.inf
        # From the largest loss down to the first above 0: mass above a point, and the same discounted by e^{ε − loss}.
        above = np.concatenate((self.mass[max(1 - self.first, 0) :][::-1], np.zeros(max(self.first - 1, 0))))
        decay = math.exp(-self.interval)
        upper, lower = np.cumsum(above), signal.lfilter([decay], [1.0, -decay], above)
        short = self.infinite + upper - lower > delta
        if not short.any():
            return 0.0
        at = int(np.argmax(short))
        # δ is linear in e^ε between two points.
        return (above.size - 1 - at) * self.interval + math.log((self.infinite + upper[at] - delta) / lower[at])


@dataclass(frozen=True)
class Composed:
    """The curve of a whole run: the worse of its two directions."""

    losses: tuple[_Loss, _Loss]

    def delta(self, epsilon: float) -> float:
        """Return δ at this ε."""
        return max(loss.delta(epsilon) for loss in self.losses)

    def epsilon(self, delta: float) -> float:
        """Return a sufficient ε for this δ."""
        return max(loss.epsilon(delta) for loss in self.losses)


class _Scale(NamedTuple):
    """How large the losses of one release are: δ(0), roughly their mean square, and where they may be cut."""

    typical: float
    square: float
    top: float


@dataclass(frozen=True)
class _Dots:
    """A profile at ε = interval · index, in both directions."""

    index: NDArray[np.int64]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]


def compose(parts: Sequence[tuple[Profile, int]]) -> Composed:
    """Return the curve of all parts together, each `count` times.

    Guarantee: an upper bound of the hockey stick of any adaptive composition of releases dominated by the profiles
    (Zhu, Dong and Wang 2022, Theorem 10), in both directions.
    Assumes: profiles and counts are fixed before the run; double precision keeps within the FFT bound of `_power`.
    """
    counts = [count for _, count in parts]
    scales = [_scale(profile) for profile, _ in parts]
    interval = _interval(scales, counts)
    while True:
        dots = [_evaluate(profile, interval, scale.top) for (profile, _), scale in zip(parts, scales, strict=True)]
        ahead, back = (_losses(interval, dots, counts, reverse=reverse) for reverse in (False, True))
        if ahead is not None and back is not None:
            return Composed((ahead, back))
        interval *= 2


def _scale(profile: Profile) -> _Scale:
    trial = np.concatenate(([0.0], np.geomspace(1e-9, LARGEST_LOSS, 90)))
    delta = profile.outline(trial)
    # ∫ δ(ε) dε is half the mean square of the losses above 0, while they are small.
    square = 2 * float(np.trapezoid(delta, trial))
    return _Scale(float(delta[0]), square, float(trial[min(int(np.searchsorted(-delta, -TAIL)), trial.size - 1)]))


def _interval(scales: Sequence[_Scale], counts: Sequence[int]) -> float:
    """Return a grid step that adds about 0.2 % to the variance of the composed loss; a bad one only costs tightness.

    Rounding a loss adds up to interval²/6 where losses are large, and interval · |loss| where they are small.
    """
    each = list(zip(scales, counts, strict=True))
    square = 0.004 * added(count * scale.square for scale, count in each)
    large = math.sqrt(square / sum(counts))
    small = square / added(count * max(scale.typical, 1e-30) for scale, count in each)
    return max(large, small, max(scale.top for scale in scales) / 2**17, 1e-12)


def added(numbers: Iterable[float]) -> float:
    """Add from left to right. Python's own `sum` rounds otherwise from 3.12 on, and the bytes of a run hang on σ."""
    *_, total = itertools.accumulate(numbers, initial=0.0)
    return total


def _evaluate(profile: Profile, interval: float, top: float) -> _Dots:
    """Evaluate a profile at multiples of `interval` that grow geometrically once they are a few intervals large."""
    last = max(math.ceil(top / interval), 2)
    count = math.ceil(math.log(last) / math.log(RATIO)) + 2
    index = np.unique(np.concatenate(([0], np.rint(np.geomspace(1, last, count)).astype(np.int64))))
    return _Dots(index, profile.forward(index * interval), profile.backward(index * interval))


def _losses(interval: float, dots: Sequence[_Dots], counts: Sequence[int], *, reverse: bool) -> _Loss | None:
    """Return the composed losses of one direction, None when they would not fit into LONGEST points."""
    powers = []
    for part, count in zip(dots, counts, strict=True):
        ahead, back = (part.backward, part.forward) if reverse else (part.forward, part.backward)
        power = _power(_connect(interval, part.index, ahead, back), count)
        if power is None:
            return None
        powers.append(power)
    total = powers[0]
    for other in powers[1:]:
        total = _convolved(total, other)
    return total


def _convolved(one: _Loss, other: _Loss) -> _Loss:
    """Return the losses of two parts together."""
    mass = np.maximum(signal.fftconvolve(one.mass, other.mass), 0.0)
    # As in `_power`: in l² a product of spectra errs by a few ulp of both norms, and a sum of n terms by √n of that.
    rounding = 1e-15 * math.sqrt(mass.size) * float(np.linalg.norm(one.mass) * np.linalg.norm(other.mass))
    rounding = max(rounding, 1e-14)
    return _Loss(one.interval, one.first + other.first, mass, one.infinite + other.infinite + rounding)


def _connect(interval: float, index: NDArray[np.int64], ahead: NDArray[np.float64], back: NDArray[np.float64]) -> _Loss:
    """Return one release's losses: connect-the-dots through its profile at ±ε."""
    epsilon = index * interval
    # H_{−ε}(P‖Q) = 1 − e^{−ε} + e^{−ε} H_ε(Q‖P): the other direction is this one's negative half.
    negative = -np.expm1(-epsilon[:0:-1]) + np.exp(-epsilon[:0:-1]) * back[:0:-1]
    points = np.concatenate((-index[:0:-1], index))
    # No δ exceeds one at a smaller ε.
    delta = np.minimum.accumulate(np.clip(np.concatenate((negative, ahead)) * (1 + 1e-12), 0.0, 1.0))
    kept = _hull((points * interval).astype(np.float64), delta)
    with np.errstate(over="ignore"):  # e^{a gap of over 700}, which the library divides by
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, points[kept], delta[kept]).to_dense_pmf()
    # Masses too small for the arithmetic that follows count as infinite losses.
    large = pmf._probs > 1e-100
    infinite = pmf._infinity_mass + float(pmf._probs[~large].sum())
    return _Loss(interval, int(pmf._lower_loss), np.where(large, pmf._probs, 0.0), infinite)


def _hull(epsilon: NDArray[np.float64], delta: NDArray[np.float64]) -> list[int]:
    """Return the points on the lower convex hull of (e^ε, δ).

    The true curve is convex in e^ε and lies below each point, so its chords do too: the hull of the points is still
    above it, and gives connect-the-dots masses that are never negative.
    """
    kept: list[int] = []
    for point in range(epsilon.size):
        while len(kept) > 1 and not _turns_up(epsilon, delta, kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _turns_up(epsilon: NDArray[np.float64], delta: NDArray[np.float64], a: int, b: int, c: int) -> bool:
    """Whether b lies below the chord from a to c; slopes are taken in units of e^{ε_b}, which cannot overflow."""
    before = (delta[b] - delta[a]) / -math.expm1(epsilon[a] - epsilon[b])
    after = (delta[c] - delta[b]) / math.expm1(min(epsilon[c] - epsilon[b], 700.0))
    return bool(before < after)


def _power(loss: _Loss, count: int) -> _Loss | None:
    """Return the losses of `count` equal releases, None when they need more than LONGEST points."""
    if not loss.mass.any():
        return loss._replace(infinite=1.0)
    low, high = _range(loss.mass, count)
    length = max(high - low + 1, loss.mass.size)
    if length > max(LONGEST, 4 * loss.mass.size):
        return None
    size = fft.next_fast_len(length, real=True)
    # The transform is periodic: what lies outside [low, high], at most TRUNCATION, falls back into it.
    cycle = fft.irfft(fft.rfft(loss.mass, size) ** count, size)
    mass = np.maximum(np.roll(cycle, -(low % size))[: high - low + 1], 0.0)
    # A factor of the spectrum is known to a few ulp; its power to `count` times that; so is, in l², the mass, and the
    # sum of n terms errs by at most √n of it. Measured errors are a hundred times smaller.
    rounding = 1e-15 * count * math.sqrt(mass.size) * float(np.linalg.norm(mass))
    infinite = TRUNCATION + rounding - math.expm1(count * math.log1p(-min(loss.infinite, 1 - 1e-16)))
    return _Loss(loss.interval, loss.first * count + low, mass, min(infinite, 1.0))


def _range(mass: NDArray[np.float64], count: int) -> tuple[int, int]:
    """Return the points between which a sum of `count` losses lies but for TRUNCATION, by Chernoff's bound."""
    places = np.flatnonzero(mass)
    orders = np.geomspace(1e-3, 1e3, 80)[:, None] / mass.size
    need = math.log(2 / TRUNCATION)
    up = (count * _log_moments(orders, places, mass) + need) / orders[:, 0]
    down = (count * _log_moments(orders, -places, mass) + need) / orders[:, 0]
    last = count * (mass.size - 1)
    return max(math.floor(-down.min()), 0), min(math.ceil(up.min()), last)


def _log_moments(
    orders: NDArray[np.float64], places: NDArray[np.int64], mass: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log Σ mass e^{order · place} for each order."""
    terms = orders * places + np.log(mass[np.abs(places)])
    top = terms.max(axis=1)
    return np.asarray(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))
