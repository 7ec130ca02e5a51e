"""The noise that pairs of a run's nodes share: which pairs, how much, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privsgp.accounting.pairwise import PairwiseCovariance
from privsgp.accounting.sharing import solve
from privsgp.algorithms.update_rule import node_weights
from privsgp.errors import Refused
from privsgp.outside import between, exactly, keys
from privsgp.transport.world import World, blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.runs.config import Config

_SIMILAR = 0.01  # by which shared noise that two sites computed may differ: a minimum is searched for
_SAME = 1e-6  # between two correlations of equal sites
LEAST = 1e-100  # a σ that another process may send: weights are made of its square


def share_noise(
    config: Config, samples: Sequence[int], needed: Sequence[float], world: World,
    agreed: dict[str, Any] | None = None,
) -> PairwiseCovariance:  # fmt: skip
    """Return pairwise noise that is worth, before the worst coalition, the σ_i that each node needs.

    Of several processes the first proposes it: machines may round differently, and all must have the same numbers. So
    do sites, in what they sign: `agreed`.

    Guarantee: whatever was proposed, it is worth to each node here what it needs, by this process's own count.
    """
    weights = node_weights(config.algorithm.weights, samples, needed, shared=True)
    wanted = (needed, config.honest, config.pair_ratio, weights)
    if agreed is not None:
        shared = _covariance(agreed, weights)
        _refuse_other_noise(shared, solve(*wanted))
        _refuse_too_little(shared, config.honest, needed, range(len(needed)), "the agreement has")
        return shared
    found = world.all_or_none(lambda: solve(*wanted) if world.rank == 0 else None)
    size = between(0, 1 / LEAST, float)
    kind = keys(own=exactly(len(needed), size), pair=size)
    proposed: Any = None if found is None else {"own": list(found.own), "pair": found.pair}
    proposal = world.all_gather_each(proposed, [kind, *[None] * (world.size - 1)])[0]
    shared = _covariance(proposal, weights)
    here = blocks(len(needed), world.size)[world.rank]
    world.all_or_none(lambda: _refuse_too_little(shared, config.honest, needed, here, "process 0 proposes"))
    return shared


def _covariance(proposal: dict[str, Any], weights: Sequence[float] | None) -> PairwiseCovariance:
    return PairwiseCovariance(tuple(proposal["own"]), proposal["pair"], None if weights is None else tuple(weights))


def _refuse_other_noise(agreed: PairwiseCovariance, found: PairwiseCovariance) -> None:
    """Refuse noise that is not about what comes out here: more than is needed would spoil the model."""
    for one, other in zip((*agreed.own, agreed.pair), (*found.own, found.pair), strict=True):
        if not abs(one - other) <= _SIMILAR * other:
            raise Refused(
                f"the agreement has shared noise of variance {one:g} where {other:g} comes out here",
                "nothing was signed: ask the proposer how it came about",
            )


def _refuse_too_little(
    shared: PairwiseCovariance, honest: int, needed: Sequence[float], here: range, whose: str
) -> None:
    """Refuse noise that is worth less to a node here than it needs."""
    effective = shared.effective(honest)
    for i in here:
        if not effective[i] >= needed[i] * (1 - 2.0**-20):
            raise Refused(
                f"the noise that {whose} is worth σ = {effective[i]:g} to node {i}, which needs {needed[i]:g}",
                "nothing was sent; ask its site which program runs there",
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
