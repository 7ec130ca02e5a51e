"""The second reading of a mechanism: its Rényi curve, from its own numbers.

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
from privsgp.accounting.mechanisms import (
    Anchored,
    Composed,
    Gaussian,
    PersonLevel,
    Saga,
    SampledMean,
    Shared,
    Summed,
    Wrapper,
)
from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.accounting.mechanisms import Mechanism, Relation

    Cumulants = NDArray[np.float64]


def in_pairs(mechanism: Mechanism, relation: Relation) -> bool:
    """Whether replace-one is two zero-outs in a row: for SAGA under secret coins, where nothing else is proved."""
    if isinstance(mechanism, Composed):
        return any(in_pairs(part, relation) for part, _ in mechanism.parts)
    if isinstance(mechanism, Wrapper):
        return in_pairs(mechanism.base, relation)
    sampled = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    saga = isinstance(mechanism, Saga) and mechanism.difference_scale * mechanism.samples > mechanism.batch
    return saga and sampled and relation == "replace-one"


def in_a_row(mechanism: Mechanism, relation: Relation) -> int:
    """Return how many neighbouring steps make one neighbour; more than one where nothing better is proved.

    For a person at several sites that share noise it is one after the other, if coins matter. The Rényi sum over their
    patterns is used for up to three sites, a person taken out, and no table of SAGA that remembers coins.
    """
    pairs = 2 if in_pairs(mechanism, relation) else 1
    if not isinstance(mechanism, PersonLevel) or mechanism.apart:
        return pairs
    proved = relation == "zero-out" and mechanism.weighted is None and mechanism.sites <= 3
    return pairs if proved or not _by_coins(mechanism.base) else pairs * mechanism.sites


def _by_coins(mechanism: Mechanism) -> bool:
    """Whether drawing a sample rarely is counted as hiding it."""
    if isinstance(mechanism, Wrapper):
        return _by_coins(mechanism.base)
    if isinstance(mechanism, Anchored):
        return mechanism.sampling == "poisson"
    still = isinstance(mechanism, Saga) and mechanism.difference_scale * mechanism.samples <= mechanism.batch
    secret = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    return secret and not still and not isinstance(mechanism, Gaussian)


def renyi(mechanism: Mechanism, steps: int, relation: Relation) -> rdp.Renyi:
    """Return the Rényi curve of `steps` releases, that of one zero-out or site where these are counted `in_a_row`."""
    sides = 2 if relation == "replace-one" and not in_pairs(mechanism, relation) else 1
    person = mechanism.person
    several = person is not None and not person.apart and in_a_row(mechanism, relation) < person.sites
    return rdp.Renyi(_all(mechanism, steps, sides, person=person if several else None))


def _all(
    mechanism: Mechanism, steps: int, sides: int, noise: float = 1.0, person: PersonLevel | None = None
) -> Cumulants:
    """Return the cumulants of a tree; all noise in it is multiplied by `noise`. `person` has sites that share noise."""
    if not steps:
        return 0 * rdp.ORDERS  # 0 · ∞ is none
    if isinstance(mechanism, Wrapper):
        often, louder = _changed(mechanism)
        return _all(mechanism.base, often * steps, sides, noise * louder, person)
    if isinstance(mechanism, Anchored):
        return _anchored(mechanism, steps, sides, noise, person)
    if isinstance(mechanism, Composed):
        return _added([_all(part, steps * count, sides, noise, person) for part, count in mechanism.parts])
    if mechanism.sigma == 0 or math.isinf(mechanism.clip):
        return np.full(rdp.ORDERS.shape, math.inf)
    sites = (1, 0.0) if person is None else (person.sites, person.correlation)
    return np.asarray(steps * _one(mechanism.with_sigma(noise * mechanism.sigma), sides, *sites))


def _changed(wrapper: Wrapper) -> tuple[int, float]:
    """Return by how much a wrapper multiplies the number of its base's releases, and their noise."""
    match wrapper:
        case Shared():
            return 1, 1.0
        case Summed():  # variances of independent noise add up
            return 1, math.sqrt(wrapper.nodes)
        case PersonLevel(apart=True):  # s sites, each with noise of its own
            return wrapper.sites, 1.0
        case PersonLevel():  # all sites of a person at once, or one after the other
            return 1, 1.0
    raise Refused(f"mechanism = {type(wrapper).__name__}", "no Rényi bound is known for it")


@lru_cache(maxsize=64)
def _one(mechanism: Mechanism, sides: int, sites: int, correlation: float) -> Cumulants:
    """Return the cumulants of one release: G/J of a mean over all records, G/b of a drawn one.

    Of a person at several sites with shared noise, μ² Σ_ij M_ij is μ² (s² a + s (1 − a)) without coins.
    """
    secret = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    g = mechanism.clip * (1 + mechanism.kappa) / mechanism.sigma
    if sites > 1 and secret and isinstance(mechanism, SampledMean):
        return rdp.together(mechanism.batch / mechanism.samples, g / mechanism.batch, sites, correlation)
    g *= math.sqrt(sites * sites * correlation + sites * (1 - correlation))
    if isinstance(mechanism, Gaussian):
        return rdp.gaussian(sides * g / mechanism.samples)
    if isinstance(mechanism, SampledMean):
        if not secret:
            return rdp.gaussian(sides * g / mechanism.batch)
        return rdp.sampled(mechanism.batch / mechanism.samples, g / mechanism.batch, replace=sides == 2)
    assert isinstance(mechanism, Saga)  # noqa: S101
    scale = mechanism.difference_scale
    if scale * mechanism.samples <= mechanism.batch:  # t/J + θc/b lies between t/J and (t + c)/J
        return rdp.gaussian(sides * g / mechanism.samples)
    assert sites == 1 or not secret  # noqa: S101 - `in_a_row`
    return _saga(mechanism, g, sides)


def _saga(mechanism: Saga, g: float, sides: int) -> Cumulants:
    """Return the cumulants of one release of SAGA with a weight above the rate; `g` is G/σ."""
    secret, scale = mechanism.batch < mechanism.samples and mechanism.sampling == "poisson", mechanism.difference_scale
    reach = 2.0 if mechanism.difference_clip is None else min(mechanism.difference_clip / mechanism.clip, 2.0)
    plain = rdp.gaussian(sides * g * (scale * reach / mechanism.batch + (1 - reach) / mechanism.samples))
    if not secret:
        return plain
    return np.minimum(rdp.saga(mechanism.batch / mechanism.samples, reach, g / mechanism.samples, scale), plain)


def _anchored(mechanism: Anchored, steps: int, sides: int, noise: float, person: PersonLevel | None) -> Cumulants:
    """Add up anchors and differences of the longest run without repeats, and each repeat as either kind."""
    again = min(steps, mechanism.spare)
    made = steps - again
    anchors = 0 if not made else 1 if mechanism.period is None else math.ceil(made / mechanism.period)
    kinds = ((anchors + again, mechanism.anchor), (made - anchors + again, mechanism.difference))
    return _added([_all(kind, count, sides, noise, person) for count, kind in kinds])


def _added(parts: list[Cumulants]) -> Cumulants:
    return np.asarray(np.sum([np.zeros_like(rdp.ORDERS), *parts], axis=0))
