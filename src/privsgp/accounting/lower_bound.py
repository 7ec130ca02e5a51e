"""Lower bounds: what an observer surely learns by looking at a sum of messages, or at the largest.

The third computation for a mechanism, from its own numbers: without a grid of losses, a Rényi order, or results of the
other two. Each value is that of one threshold on one number computed from the messages. Dropping all else is
post-processing, so a certified ε below it is wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from privsgp.accounting.compound import Anchored, Composed, Continued, PersonLevel, Shared, Summed, Wrapper
from privsgp.accounting.mechanisms import Gaussian, Mechanism, Relation, Saga
from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Logs = NDArray[np.float64]

_THRESHOLDS = 121
_PARTS = 16  # of a standard deviation of the number of draws, within which draws are counted as the fewest


def epsilon(mechanism: Mechanism, steps: int, delta: float, relation: Relation, noise: float = 1.0) -> float:
    """Return an ε that any valid bound for `steps` releases at this δ reaches; all σ are multiplied by `noise`."""
    if not steps and len(mechanism.phases(0)) == 1:
        return 0.0
    match mechanism:
        case Shared() | Summed() | PersonLevel():  # the sum of n messages has √n times the noise of one
            summed = math.sqrt(mechanism.nodes) if isinstance(mechanism, Summed) else 1.0
            # Of a person at several sites that share noise, or whose sum is seen, this looks at one site alone.
            sites = mechanism.sites if isinstance(mechanism, PersonLevel) and mechanism.apart else 1
            return epsilon(mechanism.base, sites * steps, delta, relation, noise * summed)
        case Composed() | Continued():  # one part alone
            return max(epsilon(inner, n, delta, relation, noise) for inner, n in mechanism.phases(steps))
        case Wrapper():
            raise Refused(f"no lower bound is known for {type(mechanism).__name__}", "ask for its ε alone")
        case Anchored():  # a run in which nothing was made again
            anchors = mechanism.anchors(steps)
            kinds = Composed(((mechanism.anchor, anchors), (mechanism.difference, steps - anchors)))
            return epsilon(kinds, 1, delta, relation, noise)
    if mechanism.sigma == 0 or math.isinf(mechanism.clip):
        return math.inf
    base = mechanism.with_sigma(noise * mechanism.sigma)
    return max(_tests(base, steps, delta, 1.0 if relation == "replace-one" else 0.0))


def _tests(m: Mechanism, steps: int, delta: float, other: float) -> list[float]:
    """Return what the tests show; `other` is 1 where the sample's replacement does the opposite, 0 where it is gone."""
    whole, drawn = m.radius / m.samples / m.sigma, m.radius / m.batch / m.sigma  # in a mean of all, of a batch
    coins = m.rate if m.sampling == "poisson" else 1.0
    if isinstance(m, Gaussian):
        return [_sum(steps, 1.0, 0.0, whole, other, delta)]
    if not isinstance(m, Saga):
        return [test(steps, coins, 0.0, drawn, other, delta) for test in (_sum, _largest)]
    reach, scale = min(m.difference_clip or math.inf, 2 * m.clip) / m.clip, m.difference_scale
    entry, far = (1 - reach) * whole, scale * reach * drawn  # E1 of docs/proofs/saga.md
    still = _sum(steps, 1.0, 0.0, whole, other, delta)
    if coins == 1:
        return [still, _sum(steps, 1.0, 0.0, entry + far, other, delta)]
    # An entry that stays at G; one that turns by as much as it may, and one that starts at 0, against none.
    start = scale * min(reach, 1.0) * drawn
    tests = [test(steps, coins, s, c, 0.0, delta) for s, c in ((entry, far), (0.0, start)) for test in (_sum, _largest)]
    return [still, *tests]


def _sum(steps: int, rate: float, entry: float, drawn: float, other: float, delta: float) -> float:
    """Threshold the sum of all messages, over √K σ: N(0, 1) shifted by K `entry`, and by `drawn` with every draw."""
    counts, log_weights = _draws(steps, rate)
    shift = (steps * entry + counts * drawn) / math.sqrt(steps)
    ends = np.array([shift.min(), shift.max()]) if shift.size > 1 else shift
    thresholds = np.concatenate([e + np.linspace(-12.0, 12.0, _THRESHOLDS) for e in (*ends, 0.0, float(shift.mean()))])

    def sides(shifts: Logs) -> tuple[Logs, Logs]:
        away = shifts[:, None] - thresholds
        above, below = (special.logsumexp(log_weights[:, None] + special.log_ndtr(s * away), axis=0) for s in (1, -1))
        return above, below

    without = sides(-shift) if other else (special.log_ndtr(-thresholds), special.log_ndtr(thresholds))
    return _gain(sides(shift), without, delta)


def _draws(steps: int, rate: float) -> tuple[Logs, Logs]:
    """Return how often a sample is drawn and with which log-probability, close numbers as the least of them."""
    if rate == 1:
        return np.array([float(steps)]), np.zeros(1)
    mean, spread = steps * rate, math.sqrt(steps * rate * (1 - rate))
    first, last = max(math.floor(mean - 9 * spread - 9), 0), min(math.ceil(mean + 9 * spread + 9), steps)
    width = max(1, int(spread / _PARTS))
    edges = np.append(np.arange(first, last + 1, width), last + 1).astype(np.float64)
    # P(N < n) is the regularised incomplete beta function; what lies below `first` counts as no draw.
    below = np.append(0.0, special.betainc(np.maximum(steps - edges[1:] + 1, 1e-300), edges[1:], 1 - rate))
    below[-1] = 1.0
    counts = edges[:-1].copy()
    counts[0] = 0.0
    with np.errstate(divide="ignore"):
        return counts, np.log(np.maximum(np.diff(below), 0.0))


def _largest(steps: int, rate: float, entry: float, drawn: float, other: float, delta: float) -> float:
    """Ask whether any message lies above a threshold."""
    high = max(drawn + entry, 0.0)
    thresholds = np.concatenate([e + np.linspace(-12.0, 12.0, _THRESHOLDS) for e in (0.0, high)])

    def some(undrawn: float, shift: float) -> tuple[Logs, Logs]:
        above = (1 - rate) * special.ndtr(undrawn - thresholds) + rate * special.ndtr(shift - thresholds)
        none = steps * np.log1p(-np.minimum(above, 1 - 1e-16))
        with np.errstate(divide="ignore"):
            return np.log(-np.expm1(none)), none

    return _gain(some(entry, entry + drawn), some(-other * entry, -other * (entry + drawn)), delta)


def _gain(one: tuple[Logs, Logs], two: tuple[Logs, Logs], delta: float) -> float:
    """Return the largest ln((P(event) − δ) / Q(event)) over events, their complements and both orders of P and Q."""
    found = 0.0
    for first, second in ((one, two), (two, one)):
        for likely, seldom in zip(first, second, strict=True):
            sure = (np.exp(likely) > delta * (1 + 1e-9)) & np.isfinite(seldom)
            if sure.any():
                found = max(found, float((np.log(np.exp(likely[sure]) - delta) - seldom[sure]).max()))
    return found
