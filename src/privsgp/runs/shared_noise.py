"""The noise that pairs of a run's nodes share: which pairs, how much, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from privsgp.accounting.sharing import solve
from privsgp.algorithms.update_rule import node_weights
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.accounting.pairwise import PairwiseCovariance
    from privsgp.runs.config import Config

_ASK = "nothing was signed: ask the proposer how it came about"
_SIMILAR = 0.01  # by which shared noise that two sites computed may differ: a minimum is searched for
_SAME = 1e-6  # between two correlations of equal sites


def solved(config: Config, samples: Sequence[int], needed: Sequence[float]) -> PairwiseCovariance:
    """Return pairwise noise that is worth, before the worst coalition, the σ_i that each node needs."""
    weights = node_weights(config.algorithm.weights, samples, needed, shared=True)
    return solve(needed, config.honest, config.pair_ratio, weights)


def share_noise(
    config: Config, samples: Sequence[int], needed: Sequence[float], agreed: dict[str, Any] | None = None
) -> PairwiseCovariance:
    """Return pairwise noise that is worth, before the worst coalition, the σ_i that each node needs.

    Machines may round differently, and all sites must have the same numbers: those that they sign, `agreed`.

    Guarantee: whatever was agreed, it is worth to each node what it needs, by this process's own count.
    """
    found = solved(config, samples, needed)
    if agreed is None:
        return found
    shared = dataclasses.replace(found, own=tuple(agreed["own"]), pair=agreed["pair"])
    for one, other in zip((*shared.own, shared.pair), (*found.own, found.pair), strict=True):
        if not abs(one - other) <= _SIMILAR * other:  # more than is needed would spoil the model
            what = f"the agreement has shared noise of variance {one:g}, and this site computes {other:g}"
            raise Refused(what, _ASK)
    for i, (effective, least) in enumerate(zip(shared.effective(config.honest), needed, strict=True)):
        if not effective >= least * (1 - 2.0**-20):
            what = f"the agreement's noise gives node {i} only σ = {effective:g}, and it needs {least:g}"
            raise Refused(what, _ASK)
    return shared


def correlation(config: Config, samples: Sequence[int]) -> float:
    """Return what messages will show of each other if one ε holds for all nodes: they need σ_i in proportion to 1/J_i.

    It is a search's start. Once noise is known, `PairwiseCovariance.correlation` is counted.
    """
    p, needed = config.privacy, [1 / J for J in samples]
    if config.data.rows_per_person is None or isinstance(p.epsilon, list) or isinstance(p.delta, list):
        return 1.0
    found = solved(config, samples, needed).correlation(config.honest, needed)
    return min(1.0, found * (1 + (_SAME if len(set(samples)) == 1 else _SIMILAR)))
