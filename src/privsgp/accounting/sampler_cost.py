"""The cost of noise in float64 on a grid, beyond the ideal Gaussian: docs/proofs/sampler.md.

Two parts. *Tail*: beyond 7.4 σ the sampler's numbers lie too far apart, and beyond 10.2 σ there are none; that is
charged to δ, message by message. *Ratio*: elsewhere a message's cell of the grid can be drawn in many ways, and its
computed and its ideal probability differ by a tiny factor; over a run these factors nearly cancel, and e^ζ bounds their
product but for a probability that is charged to δ.

Noise that neighbours share is a sum of numbers that were each computed ("The sampler of shared noise"): there the
ratio is that of all honest nodes' messages together, and tails count as total variation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privsgp.accounting.compound import Shared
    from privsgp.accounting.mechanisms import Mechanism

SHARE = 2.0**-14  # of δ, set aside for what the ratio costs there
_EACH = 2.0**-78  # variance of a coordinate's log-ratio
_SUMMED = 2.0**-89  # the same, of a release, for each (|g|/σ)²: adding g rounds by more
_WIDEST = 2.0**-30, 2.0**-45  # a single log-ratio at most; for each |g|/σ
_TAIL = 2.0**-64  # of a pair of coordinates
_FARTHEST = 8.0  # σ by which neighbours may differ in one message
MOST_SUMMED = 2500  # nodes whose messages are seen as one sum
SIGMAS = 2.0**-900, 2.0**900  # between them no product with σ, and no number on a grid of σ/16, leaves float64's range

LARGEST_PAIR = 8.0  # of shared noise: what a pair's is at most, in a node's own
_UNKNOWN = 4.0  # while noise is searched for: σ_eff/√h over the least own noise of any node
ASIDE = (2.0**-14, 2.0**-9, 2.0**-5, 2.0**-2)  # of δ, for what is charged to it of shared noise: the first that will do
_PAIR_EACH = 2.0**-93  # variance of the log-ratio of a pair of coordinates, for each (pair's σ / own σ)²
_PAIR_WIDEST = 11 * 2.0**-44  # a single one at most, for each pair's σ / own σ
_OWN_TAIL, _PAIR_TAIL = (2.0**-64.9, 2.0**-85), (2.0**-72, 2.0**-75)  # total variation of a pair of coordinates


@dataclass(frozen=True)
class Cost:
    """The cost of a run's computed noise: a `tail` for δ, and what its `ratio` rests on."""

    tail: float
    variance: float
    widest: float
    variation: float = 0.0  # the total variation that both neighbours' runs may be off by

    @classmethod
    def of(cls, mechanism: Mechanism, steps: int, shift: float) -> Cost:
        """Return what so many releases cost whose means differ by at most `shift` σ between neighbours."""
        if (phases := mechanism.phases(steps)) != [(mechanism, steps)]:  # log-ratios of all messages are one martingale
            costs = [cls.of(one, count, shift) for one, count in phases]
            tail, variance, variation = (
                math.fsum(getattr(cost, name) for cost in costs) for name in ("tail", "variance", "variation")
            )
            return cls(tail, variance, max(cost.widest for cost in costs), variation)
        d, nodes = mechanism.coordinates, mechanism.summed_nodes  # a sum's guarantee rests on all its nodes' noise
        if not d or not steps:
            return cls(0.0, 0.0, 0.0)
        if mechanism.shared is not None:
            return cls._shared(mechanism.shared, steps)
        length = _length(mechanism)
        if shift > _FARTHEST or nodes > MOST_SUMMED or not math.isfinite(length):
            return cls(math.inf, math.inf, math.inf)
        steps *= nodes * (1 if (person := mechanism.person) is None else person.sites)
        rounded = 2.0**-21 * length
        pairs = 2.25 * d + 4.5 + rounded * math.sqrt(d) + (1 + rounded) * math.exp(9.8 * shift - shift**2 / 2)
        variance = steps * ((d + 1) * _EACH + _SUMMED * length**2)
        return cls(steps * _TAIL * pairs, variance, _WIDEST[0] + _WIDEST[1] * length)

    @classmethod
    def _shared(cls, mechanism: Shared, steps: int) -> Cost:
        """Return what releases of shared noise cost: that of all honest nodes, each with all its partners."""
        d, h, k, most = mechanism.coordinates, mechanism.honest, mechanism.partners, LARGEST_PAIR
        least = mechanism.least_own or mechanism.sigma / (_UNKNOWN * math.sqrt(h))
        length, two = _length(mechanism) * mechanism.sigma / least if mechanism.sigma else math.inf, d / 2 + 1
        own = h * ((d + 1) * _EACH + _SUMMED * (length**2 + 4 * d * k * most**2))
        pairs = h * two * (k * most) ** 2 * _PAIR_EACH
        sums = length + 21 * k * most  # twice what the numbers of k pairs may add up to
        widest = h * (_WIDEST[0] + _WIDEST[1] * sums) + h * k * most * _PAIR_WIDEST
        far = h * two * (_OWN_TAIL[0] + _OWN_TAIL[1] * sums + k / 2 * (_PAIR_TAIL[0] * most + _PAIR_TAIL[1]))
        return cls(0.0, 2 * steps * (own + pairs), widest, steps * far)

    def tail_at(self, epsilon: float) -> float:
        """Return what is charged to δ of a run with this ε: a total variation counts for both neighbours."""
        return self.tail + (self.variation * (1 + math.exp(min(epsilon, 700.0))) if self.variation else 0.0)

    def ratio(self, delta: float, epsilon: float) -> float:
        """Return ζ: e^±ζ bounds the ratio of both laws of a run but for a probability of 2⁻²¹ δ e^{−ε} (Freedman)."""
        need = 21 * math.log(2) + math.log(1 / delta) + epsilon + 1
        return math.sqrt(2 * self.variance * need) + 2 / 3 * self.widest * need + self.variance

    def ideal_delta(self, delta: float, aside: float = 0.0) -> float:
        """Return the δ at which the ideal run has to be counted, 0 or less where nothing is left.

        `aside` is the share of δ that is kept for a total variation, which `epsilon` holds against it.
        """
        return delta * (1 - aside) * (1 - SHARE) - self.tail if self.tail or self.variance else delta

    def epsilon(self, delta: float, ideal: float, aside: float = 0.0) -> float:
        """Return the ε of the computed run at δ, from that of the ideal one at `ideal_delta`."""
        zeta = self.ratio(delta, ideal) if self.variance else 0.0
        # e^ζ δ' + 2⁻²⁰ δ ≤ (1 − aside) δ, where δ' is the ideal δ with the tail.
        fits = zeta <= SHARE - 2.0**-19 and (not self.variation or self.tail_at(ideal + 2 * zeta) <= aside * delta)
        return ideal + 2 * zeta if fits else math.inf


def _length(mechanism: Mechanism) -> float:
    """Return what the mean without noise is long at most, in σ: 2G for each of J samples over b, and G for a table.

    Infinite where float64 has no room for products with σ, or for a grid of σ/16 (`noise.spacing` refuses it too).
    """
    batch, sigmas = min(kind.batch for kind in mechanism.kinds), [kind.sigma for kind in mechanism.kinds]
    if not SIGMAS[0] <= min(sigmas) <= max(sigmas) <= SIGMAS[1]:
        return math.inf
    return (1 + 2 * mechanism.samples / batch) * mechanism.radius / min(sigmas)
