"""Many releases from one: privacy-loss distributions, discretised pessimistically and composed.

One release is given by its profile: upper bounds of the hockey sticks H_ε(P‖Q) and H_ε(Q‖P) for ε ≥ 0. They are
evaluated at a few hundred ε, joined by chords in e^ε (above the true curve, which is convex there), turned into a
distribution by dp-accounting's connect-the-dots and convolved by FFT.

An FFT errs by a part of the largest masses, and a small δ is a sum of far smaller ones. If that matters, the
distribution of one release is tilted first: the mass of a loss L is multiplied by e^{θL} and divided by the moment M(θ)
= Σ mass e^{θL}. The composition of K tilted distributions is the tilted composition, with M(θ)^K. Chernoff's θ for δ
moves the centre of the tilted distribution to about ε: there an error of the FFT is the same part of δ.

*What is lost.* δ at ε is M^K e^{−θε} Σ w mass, over tilted masses, with w = e^{−θ(L − ε)} (1 − e^{ε − L})₊. As L grows,
w rises from 0 to a `peak`, at most 1/(1 + θ) and at most 1 − e^{−L} for the largest L. It falls again, and to 0 at once
after the largest L. `off` bounds the part of Σ w mass that is missing, for every ε ≥ 0. With τ = `_unit` it adds up:

- Cutting. All but TRUNCATION of the mass is in the window, by Chernoff's bound. The rest comes back into the window,
  since an FFT is periodic, and only adds to it.
- The spectrum. A value s of an FFT is a sum of inputs times roots of unity. It errs by at most τ times the total mass,
  and s^K by at most Kτ (|s| + τ)^{K − 1}. By Parseval's formula Σ w mass errs by the mean over frequencies of |ŵ| times
  that. At frequency f of N, |ŵ| is at most peak/sin(πf/N), since w varies by twice its peak, and at most Σ w.
- The way back. In l² it errs by at most τ times the norm of the masses, and Σ w mass by √Σw² times that.

Both bounds of an FFT follow path by path: each factor of two in its size takes one multiplication and one addition of
complex numbers, and errs by 4 units of 2⁻⁵³ (Higham 2002, section 24.1; sizes have the factors 2, 3 and 5 alone).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft, signal

from privsgp.accounting.saga import Ends, Geometry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    # ε = interval · index, and both sticks there
    from privsgp.accounting.curve import Sampled
    from privsgp.accounting.mixture import Mixture

    _Profile = Sampled | Geometry | Mixture  # both hockey sticks of one release, `forward` and `backward`
    _Dots = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]

LARGEST_LOSS = 500.0  # of one release; beyond it a loss counts as infinite
TAIL = 1e-22  # the δ of one release at which its profile is cut
TRUNCATION = 1e-15  # tilted mass that composition may cut
RATIO = 1.04  # of neighbouring ε: 4 % of a loss is far below the spread of a sum of losses
LONGEST = 1 << 21  # points of a composed distribution: half a second of FFT
TILT_ABOVE = 1e-3  # of δ: where more may be missing, tilting is tried
CERTAIN = 0.01  # of δ: where more is missing although masses are tilted, no ε is given
_HIGHEST = 40.0  # e^40 · TRUNCATION exceeds 1: beyond, a bound on δ says nothing


class _Loss(NamedTuple):
    """A distribution of losses on the grid `interval · (first, first + 1, …)`, the rest of the mass at infinity.

    The mass of a loss L is mass · e^{scale − tilt · L}. Some masses are below 0 by a rounding; `off` covers them.
    """

    interval: float
    first: int
    mass: NDArray[np.float64]
    infinite: float
    tilt: float = 0.0
    scale: float = 0.0
    off: float = 0.0

    def delta(self, epsilon: float) -> float:
        """Return Σ (1 − e^{ε − loss})₊ mass + infinite + what may be missing."""
        if math.isinf(epsilon):
            return min(self.infinite + (0.0 if self.tilt else self.off), 1.0)
        start = max(math.floor(epsilon / self.interval) - self.first, 0)
        losses = self.interval * np.arange(self.first + start, self.first + self.mass.size, dtype=np.float64)
        gain = -np.expm1(np.minimum(epsilon - losses, 0.0))
        missing = self.off * float(self._weights(np.array(epsilon)))
        return min(self.infinite + missing + float((gain * self._weights(losses)) @ self.mass[start:]), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 whose δ suffices: first among all points of the grid, then between two of them."""
        # From the largest loss down to the first above 0. After each, ε is the point of the grid below it.
        # If all losses are far above 0, only LONGEST points below the least of them: the last is then enough.
        below = min(max(self.first - 1, 0), LONGEST)
        above = np.concatenate((self.mass[max(1 - self.first, 0) :][::-1], np.zeros(below)))
        last = max(self.first - 1, 0) - below
        losses = self.interval * np.arange(last + above.size, last - 1, -1, dtype=np.float64)
        missing = self.infinite + self.off * self._weights(losses)
        if missing[0] > delta:
            return math.inf
        upper, missing = np.cumsum(above * self._weights(losses[:-1])), missing[1:]
        # δ(ε) = e^{−interval} δ(ε + interval) + (1 − e^{−interval}) P(loss > ε): nothing is subtracted.
        lower = signal.lfilter([-math.expm1(-self.interval)], [1.0, -math.exp(-self.interval)], upper)
        short = missing + lower > delta
        if not short.any():
            return self.interval * last
        at = int(np.argmax(short))
        if self.tilt and missing[at] - self.infinite > CERTAIN * delta:
            return math.inf
        # δ is linear in e^ε between two points, and small enough at the upper one.
        needed = (missing[at] + lower[at] - delta) / max(upper[at] - lower[at], 1e-300)
        return float(losses[at + 1] + min(math.log1p(needed), self.interval))

    def _weights(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a tilted mass is multiplied by; 2⁻³⁰ more, for sums of up to LONGEST numbers."""
        return np.exp(np.minimum(self.scale - self.tilt * losses, _HIGHEST)) * (1 + 2.0**-30)

    def tilted(self, order: float) -> _Loss:
        """Return the same losses, tilted by `order` per point of the grid."""
        indices, mass = np.flatnonzero(self.mass), np.zeros_like(self.mass)
        moment = float(_log_moments(np.array([order]), [self], [1])[0])
        mass[indices] = np.exp(np.log(self.mass[indices]) + order * indices - moment)
        # A mass is exact to 2⁻⁴⁰: the exponent is at most some thousand.
        return self._replace(mass=mass, tilt=order / self.interval, scale=moment + order * self.first + 2.0**-40)


@dataclass(frozen=True)
class _Curve:
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


def compose(parts: Sequence[tuple[_Profile, int]], delta: float = 1.0) -> _Curve:
    """Return the curve of all parts together, each `count` times, sharpest around `delta`.

    Guarantee: an upper bound of the hockey stick of any adaptive composition of releases dominated by the profiles
    (Zhu, Dong and Wang 2022, Theorem 10), in both directions.
    Assumes: profiles and counts are fixed before the run; double precision keeps within the bound of `_unit`.
    """
    counts = [count for _, count in parts]
    scales = [_scale(profile) for profile, _ in parts]
    interval = _interval(scales, counts)
    while True:
        dots = [_evaluate(profile, interval, scale.top) for (profile, _), scale in zip(parts, scales, strict=True)]
        ahead, back = (_losses(interval, dots, counts, delta, reverse=reverse) for reverse in (False, True))
        if ahead is not None and back is not None:
            return _Curve((ahead, back))
        interval *= 2


def _scale(profile: _Profile) -> _Scale:
    trial = np.concatenate(([0.0], np.geomspace(1e-9, LARGEST_LOSS, 90)))
    rough = Ends(*astuple(profile)) if isinstance(profile, Geometry) else profile  # it chooses the grid alone
    delta = np.maximum(rough.forward(trial), rough.backward(trial))
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


def _evaluate(profile: _Profile, interval: float, top: float) -> _Dots:
    """Evaluate a profile at multiples of `interval` that grow geometrically from a few intervals on."""
    last = max(math.ceil(top / interval), 2)
    count = math.ceil(math.log(last) / math.log(RATIO)) + 2
    index = np.unique(np.concatenate(([0], np.rint(np.geomspace(1, last, count)).astype(np.int64))))
    return index, profile.forward(index * interval), profile.backward(index * interval)


def _losses(
    interval: float, dots: Sequence[_Dots], counts: Sequence[int], delta: float, *, reverse: bool
) -> _Loss | None:
    """Return the composed losses of one direction, None when they would not fit into LONGEST points."""
    sticks = [(index, back, ahead) if reverse else (index, ahead, back) for index, ahead, back in dots]
    ones = [_connect(interval, *stick) for stick in sticks]
    plain = _composed(ones, counts)
    if plain is None or plain.off <= TILT_ABOVE * delta or plain.infinite == 1:
        return plain
    order = _order(ones, counts, delta)
    tilted = _composed([one.tilted(order) for one in ones], counts)
    return plain if tilted is None else min(plain, tilted, key=lambda loss: loss.epsilon(delta))


def _order(losses: Sequence[_Loss], counts: Sequence[int], delta: float) -> float:
    """Return how much to tilt, per point of the grid: Chernoff's order for δ. Any other would be valid."""
    orders = _orders(losses)
    first = added(count * loss.first for loss, count in zip(losses, counts, strict=True))
    least = (_log_moments(orders, losses, counts) - math.log(delta)) / orders + first
    return float(orders[np.argmin(least)])


def _composed(losses: Sequence[_Loss], counts: Sequence[int]) -> _Loss | None:
    """Return all losses together, each `count` times, None when they need more than LONGEST points."""
    if not all(loss.mass.any() for loss in losses):
        return losses[0]._replace(infinite=1.0)
    low, high = _range(losses, counts)
    longest = max(loss.mass.size for loss in losses)
    length = max(high - low + 1, longest)
    if length > max(LONGEST, 4 * longest):
        return None
    size = fft.next_fast_len(length, real=True)
    spectra = [fft.rfft(loss.mass, size) for loss in losses]
    product = np.prod([one**count for one, count in zip(spectra, counts, strict=True)], axis=0)
    mass = np.roll(fft.irfft(product, size), -(low % size))[: high - low + 1]
    each = list(zip(losses, counts, strict=True))
    first = low + sum(count * loss.first for loss, count in each)
    scale = added(count * loss.scale for loss, count in each)
    infinite = -math.expm1(added(count * math.log1p(-min(loss.infinite, 1 - 1e-16)) for loss, count in each))
    interval, tilt = losses[0].interval, losses[0].tilt
    off = TRUNCATION + _rounding(spectra, counts, size, (interval, tilt, first + mass.size - 1))
    return _Loss(interval, first, mass, min(infinite, 1.0), tilt, scale, off)


def _rounding(
    spectra: Sequence[NDArray[np.complex128]], counts: Sequence[int], size: int, grid: tuple[float, float, int]
) -> float:
    """Return what FFTs add to `off`; `grid` is its interval, the tilt and the point of the last loss."""
    unit, (interval, tilt, last) = _unit(size), grid
    peak = min(-math.expm1(-max(last, 0) * interval), 1 / (1 + tilt))
    most_w = min(peak * min(size, max(last, 0)), -1 / math.expm1(-tilt * interval) if tilt else math.inf)
    shown = np.minimum(peak / np.sin(np.arange(1, spectra[0].size) * (math.pi / size)), most_w)
    largest = [np.abs(one) + unit * abs(one[0]) for one in spectra]  # at frequency 0 it is the total mass
    product = np.prod([each**count for each, count in zip(largest, counts, strict=True)], axis=0)
    wrong = product * sum(count * unit * each[0] / each for each, count in zip(largest, counts, strict=True))
    # Half of a spectrum is here: the other half is its mirror image.
    ahead = 2 / size * (most_w * wrong[0] + shown @ wrong[1:])
    return float(ahead + unit * math.sqrt(2 * peak * most_w / size) * np.linalg.norm(product))


def _unit(size: int) -> float:
    """Return τ: the relative error of an FFT of this size, and 12 units for each factor of a power."""
    return (4 * math.log2(size) + 12) * 2.0**-53


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


def _range(losses: Sequence[_Loss], counts: Sequence[int]) -> tuple[int, int]:
    """Return the points between which the sum of all losses lies but for TRUNCATION, by Chernoff's bound."""
    orders, need = _orders(losses), math.log(2 / TRUNCATION)
    up = (_log_moments(orders, losses, counts) + need) / orders
    down = (_log_moments(-orders, losses, counts) + need) / orders
    last = sum(count * (loss.mass.size - 1) for loss, count in zip(losses, counts, strict=True))
    return max(math.floor(-down.min()), 0), min(math.ceil(up.min()), last)


def _orders(losses: Sequence[_Loss]) -> NDArray[np.float64]:
    return np.geomspace(1e-3, 1e3, 80) / max(loss.mass.size for loss in losses)


def _log_moments(orders: NDArray[np.float64], losses: Sequence[_Loss], counts: Sequence[int]) -> NDArray[np.float64]:
    """Return log Σ mass e^{order · place} of all losses together for each order; places count from the first."""
    total = np.zeros_like(orders)
    for loss, count in zip(losses, counts, strict=True):
        indices = np.flatnonzero(loss.mass)
        terms = orders[:, None] * indices + np.log(loss.mass[indices])
        top = terms.max(axis=1)
        total += count * (top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))
    return total
