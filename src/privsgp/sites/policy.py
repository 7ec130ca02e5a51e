"""Whether a site's policy.toml allows an agreement: checked before anything is signed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp.accounting.policy import refuse_spending, refused

if TYPE_CHECKING:
    from privsgp.accounting.book import Total
    from privsgp.accounting.policy import Policy
    from privsgp.sites.agreement import Agreement


def refuse_against(policy: Policy, agreement: Agreement, node: int, before: Total) -> None:
    """Refuse an agreement that asks for more than the policy allows.

    `before` is what the site's records have spent in other runs.
    """
    seeded = agreement.config.seed is not None
    if seeded and not policy.allows_seeds:
        raise refused(f"simulation is not true, and the agreement has the seed {agreement.config.seed}: no ε holds")
    if not seeded:
        refuse_spending(
            policy,
            epsilon=agreement.epsilon[node],
            delta=agreement.delta[node],
            relation=agreement.config.privacy.relation,
            samples=agreement.samples[node],
            before=before,
        )
    if policy.weights is not None and agreement.weights > policy.weights:
        raise refused(f"weights = {policy.weights:,}, and the agreement's model has {agreement.weights:,}")
    if policy.algorithms is not None and agreement.algorithm not in policy.algorithms:
        raise refused(f"algorithms = {policy.algorithms}, and the agreement's is {agreement.algorithm!r}")
    if policy.fewest is not None and agreement.limits.fewest < policy.fewest:
        raise refused(f"fewest = {policy.fewest}, and the agreement goes on with {agreement.limits.fewest} sites")
    if policy.most_honest is not None and (agreement.honest or 1) > policy.most_honest:
        raise refused(
            f"honest = {policy.most_honest}, and ε of the agreement holds if {agreement.honest} of "
            f"{len(agreement.roster)} sites are honest"
        )
    for card in agreement.roster if policy.peers is not None else ():
        if card is not agreement.roster[node] and card.fingerprint not in (policy.peers or ()):
            raise refused(f"peers does not name {card.fingerprint} ({card.name})")
