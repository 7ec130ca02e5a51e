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

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.accounting.pairwise import NoiseGraph
    from privsgp.runs.config import Config

_SIMILAR = 0.01  # by which shared noise that two sites computed may differ: a minimum is searched for
LEAST = 1e-100  # a σ that another process may send: weights are made of its square


def share_noise(
    config: Config, graph: NoiseGraph, samples: Sequence[int], needed: Sequence[float], world: World,
    agreed: dict[str, Any] | None = None,
) -> PairwiseCovariance:  # fmt: skip
    """Return pairwise noise that is worth, before the worst coalition, the σ_i that each node needs.

    Of several processes the first proposes it: machines may round differently, and all must have the same numbers. So
    do sites, in what they sign: `agreed`.

    Guarantee: whatever was proposed, it is worth to each node here what it needs, by this process's own count.
    """
    weights = node_weights(config.algorithm.weights, samples, needed, shared=True)
    wanted = (needed, config.honest, config.pair_ratio, graph, weights)
    if agreed is not None:
        shared = _covariance(graph, agreed, weights)
        _refuse_other_noise(shared, solve(*wanted))
        _refuse_too_little(shared, config.honest, needed, range(len(needed)), "the agreement has")
        return shared
    found = world.all_or_none(lambda: solve(*wanted) if world.rank == 0 else None)
    size = between(0, 1 / LEAST, float)
    kind = keys(own=exactly(len(needed), size), pair=size)
    proposed: Any = None if found is None else {"own": list(found.own), "pair": found.pair}
    said = world.all_gather_each(proposed, [kind, *[None] * (world.size - 1)])[0]
    shared = _covariance(graph, said, weights)
    here = blocks(len(needed), world.size)[world.rank]
    world.all_or_none(lambda: _refuse_too_little(shared, config.honest, needed, here, "process 0 proposes"))
    return shared


def _covariance(graph: NoiseGraph, said: dict[str, Any], weights: Sequence[float] | None) -> PairwiseCovariance:
    return PairwiseCovariance(graph, tuple(said["own"]), said["pair"], None if weights is None else tuple(weights))


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
    worth = shared.effective(honest)
    for i in here:
        if not worth[i] >= needed[i] * (1 - 2.0**-20):
            raise Refused(
                f"the noise that {whose} is worth σ = {worth[i]:g} to node {i}, which needs {needed[i]:g}",
                "nothing was sent; ask its site which program runs there",
            )


def refuse_correlated(mechanisms: Sequence[Mechanism], covariance: PairwiseCovariance) -> None:
    """Refuse shared noise of which messages show more of each other than is counted for a person at several sites.

    With own variances D and a pair's s², that is s²/(s² + D) for any number of honest sites.
    """
    shown = covariance.pair / (covariance.pair + min(covariance.own))
    for person in (m.person for m in mechanisms if m.person is not None):
        if person.correlation < 1 and (shown > person.correlation or len(set(covariance.own)) > 1):
            raise Refused(
                f"shared noise with a correlation of {shown:g}, and {person.correlation:g} was counted",
                "nothing was sent; report this: sites that are alike must have noise that is alike",
            )
