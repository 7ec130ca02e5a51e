"""The second opinion on a mechanism: its Rényi curve, from its own numbers.

It shares with the first (`accountant`) what a mechanism *is*, and no step of the way from there to a number: which
shift a sample causes, how often, under which relation, and when sampling counts, are worked out here once more. (For
SAGA both rest on the lemma of `saga.py` that bounds a piece of the path, which brute force tests.)
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from privsgp.accounting import rdp
from privsgp.accounting.mechanisms import Anchored, Mechanism, Relation, Sag, Saga, SampledMean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Cumulants = NDArray[np.float64]


def in_pairs(mechanism: Mechanism, relation: Relation) -> bool:
    """Whether replace-one is two zero-outs in a row: for SAGA under secret coins, where nothing else is proved."""
    sampled = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    saga = isinstance(mechanism, Saga) and mechanism.difference_scale * mechanism.samples > mechanism.batch
    return saga and sampled and relation == "replace-one"


def renyi(mechanism: Mechanism, steps: int, relation: Relation) -> rdp.Renyi:
    """Return the Rényi curve of `steps` releases, that of one zero-out where replace-one is counted `in_pairs`."""
    if not steps:
        return rdp.Renyi(0 * rdp.ORDERS)
    if mechanism.sigma == 0 or math.isinf(mechanism.clip):
        return rdp.Renyi(np.full(rdp.ORDERS.shape, math.inf))
    sides = 2 if relation == "replace-one" and not in_pairs(mechanism, relation) else 1
    if isinstance(mechanism, Anchored):
        return rdp.Renyi(_anchored(mechanism, steps, sides))
    return rdp.Renyi(steps * _one(mechanism, sides))


@lru_cache(maxsize=64)
def _one(mechanism: Mechanism, sides: int) -> Cumulants:
    """Return the cumulants of one release: G/J of a mean over all records, G/b of a drawn one."""
    secret = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    g = mechanism.clip * (1 + mechanism.kappa) / mechanism.sigma
    if isinstance(mechanism, Sag):
        return rdp.gaussian(sides * g / mechanism.samples)
    if isinstance(mechanism, SampledMean):
        if not secret:
            return rdp.gaussian(sides * g / mechanism.batch)
        return rdp.sampled(mechanism.batch / mechanism.samples, g / mechanism.batch, replace=sides == 2)
    assert isinstance(mechanism, Saga)  # noqa: S101
    scale = mechanism.difference_scale
    if scale * mechanism.samples <= mechanism.batch:  # t/J + θc/b lies between t/J and (t + c)/J
        return rdp.gaussian(sides * g / mechanism.samples)
    reach = 2.0 if mechanism.difference_clip is None else min(mechanism.difference_clip / mechanism.clip, 2.0)
    plain = rdp.gaussian(sides * g * (scale * reach / mechanism.batch + (1 - reach) / mechanism.samples))
    if not secret:
        return plain
    return np.minimum(rdp.saga(mechanism.batch / mechanism.samples, reach, g / mechanism.samples, scale), plain)


def _anchored(mechanism: Anchored, steps: int, sides: int) -> Cumulants:
    """Add up anchors and differences of the longest run without repeats, and each repeat as either kind."""
    again = min(steps, mechanism.spare)
    made = steps - again
    anchors = 0 if not made else 1 if mechanism.period is None else math.ceil(made / mechanism.period)
    noise = math.sqrt(mechanism.aggregated)
    kinds = ((anchors + again, mechanism.anchor), (made - anchors + again, mechanism.difference))
    each = [count * _one(kind.with_sigma(noise * kind.sigma), sides) for count, kind in kinds if count]  # 0 · ∞ is none
    return np.asarray(np.sum([np.zeros_like(rdp.ORDERS), *each], axis=0))
