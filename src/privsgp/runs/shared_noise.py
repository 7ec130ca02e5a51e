"""The noise that pairs of a run's nodes share: which pairs, how much, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privsgp.accounting.pairwise import PairwiseCovariance
from privsgp.accounting.sharing import solve
from privsgp.algorithms.update_rule import node_weights
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.runs.config import Config

_SIMILAR = 0.01  # by which shared noise that two sites computed may differ: a minimum is searched for
_SAME = 1e-6  # between two correlations of equal sites


def share_noise(
    config: Config, samples: Sequence[int], needed: Sequence[float], agreed: dict[str, Any] | None = None
) -> PairwiseCovariance:
    """Return pairwise noise that is worth, before the worst coalition, the σ_i that each node needs.

    Machines may round differently, and all sites must have the same numbers: those that they sign, `agreed`.

    Guarantee: whatever was agreed, it is worth to each node what it needs, by this process's own count.
    """
    weights = node_weights(config.algorithm.weights, samples, needed, shared=True)
    found = solve(needed, config.honest, config.pair_ratio, weights)
    if agreed is None:
        return found
    shared = PairwiseCovariance(tuple(agreed["own"]), agreed["pair"], None if weights is None else tuple(weights))
    _refuse_other_noise(shared, found)
    _refuse_too_little(shared, config.honest, needed)
    return shared


def _refuse_other_noise(agreed: PairwiseCovariance, found: PairwiseCovariance) -> None:
    """Refuse noise that is not about what comes out here: more than is needed would spoil the model."""
    for one, other in zip((*agreed.own, agreed.pair), (*found.own, found.pair), strict=True):
        if not abs(one - other) <= _SIMILAR * other:
            raise Refused(
                f"the agreement has shared noise of variance {one:g} where {other:g} comes out here",
                "nothing was signed: ask the proposer how it came about",
            )


def _refuse_too_little(shared: PairwiseCovariance, honest: int, needed: Sequence[float]) -> None:
    """Refuse noise that is worth less to a node than it needs."""
    for i, (effective, least) in enumerate(zip(shared.effective(honest), needed, strict=True)):
        if not effective >= least * (1 - 2.0**-20):
            raise Refused(
                f"the noise that the agreement has is worth σ = {effective:g} to node {i}, which needs {least:g}",
                "nothing was signed: ask the proposer how it came about",
            )


def correlation(config: Config, samples: Sequence[int]) -> float:
    """Return what messages will show of each other if one ε holds for all nodes: they need σ_i in proportion to 1/J_i.

    It is a search's start. Once noise is known, `PairwiseCovariance.correlation` is counted.
    """
    p, needed = config.privacy, [1 / J for J in samples]
    if config.data.rows_per_person is None or isinstance(p.epsilon, list) or isinstance(p.delta, list):
        return 1.0
    weights = node_weights(config.algorithm.weights, samples, needed, shared=True)
    found = solve(needed, config.honest, config.pair_ratio, weights).correlation(config.honest, needed)
    return min(1.0, found * (1 + (_SAME if len(set(samples)) == 1 else _SIMILAR)))
