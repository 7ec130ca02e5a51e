"""The privacy of a run in words for people who answer for the records: a data-protection officer, a review board.

Every sentence is one that docs/privacy.md proves or one that limits it. Numbers come from the ledgers, never from the
configuration.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

from privsgp.accounting.shown import percent_up, small, up
from privsgp.algorithms import ALGORITHMS
from privsgp.runs.views import LIMITS

if TYPE_CHECKING:
    from privsgp.runs.views import RunView

SIMULATION = (
    "Simulation, not private. The configuration has a seed, so anyone who reads it can compute and remove the noise. "
    "The text below says what the same run would guarantee without a seed."
)
WEAK = 10.0  # from this ε on a guess may be right 99.995 % of the time


def paragraphs(view: RunView) -> list[str]:
    """Explain the guarantee: the records it covers, the adversary, and its limits."""
    said = [SIMULATION] if view.summary["simulation"] else []
    if not view.sites:
        return [*said, "Messages between sites carried gradients without noise. Treat them as you treat the records."]
    return [*said, *_promise(view), *_trusted(view), _counted(view), _not_covered(view)]


def _promise(view: RunView) -> list[str]:
    worst = max(view.sites, key=lambda site: (site.guess, site.epsilon))
    if math.isinf(worst.epsilon):
        return ["For at least one site no finite bound on what its messages reveal is known: treat it as unprotected."]
    replaced = view.summary["relation"] == "replace-one"
    question = "which of two versions of that record was used" if replaced else "whether that record took part"
    happened, sees = _seen(view)
    means = (
        f"Suppose someone {sees}. They must say {question}. Tossing a coin is right half of the time. With "
        f"all they have seen they are right at most {percent_up(worst.guess)} of the time, at "
        f"the site that is worst off ({worst.name}: ε = {up(worst.epsilon)}, δ = {small(worst.delta)})."
    )
    if worst.epsilon > WEAK:
        means += " So large an ε promises next to nothing: treat what that site sent as you treat its records."
    return [happened, means, *left_open(max(site.delta for site in view.sites))]


def _seen(view: RunView) -> tuple[str, str]:
    """Return what happened, and what an adversary is assumed to see and to know."""
    s, n, algorithm = view.summary, view.summary["nodes"], ALGORITHMS[view.summary["algorithm"]]
    noised = "with random noise added before anybody used it."
    others = "controls all other sites, knows all their data, and knows every record of this site but one"
    if algorithm.pooled:
        trusted = f"{n} sites gave their records to one, which trained a model and has to be trusted with them."
        shown = f"{trusted} It may show the model after each step, {noised}"
        return shown, "sees the model after each step and knows every record but one"
    if algorithm.network == "alone":
        shown = f"{n} sites trained a model each. Nothing left a site. A site may show its model, {noised}"
        return shown, f"sees a site's model after each step, {others}"
    together = f"{n} sites trained one model together. Records stayed at the sites. Only messages left a site"
    if s["trust"] == "secure aggregation":
        shown = f"{together}, with random noise. Others can read only their sum over all sites (secure aggregation)."
        return shown, "reads these sums and knows every record of every site but one, but no site's noise"
    if s.get("pairwise"):
        others = (
            f"works together with any {n - s['pairwise']['honest']} other sites and so knows their noise and secrets, "
            "knows all other sites' data, and knows every record of this site but one"
        )
    message = "what it adds to the model at each step" if algorithm.network == "server" else "its model after each step"
    return f"{together}: {message}, {noised}", f"reads every message of a site, {others}"


def _trusted(view: RunView) -> list[str]:
    """Say what shared noise asks one to trust, and what ε is if that trust is misplaced."""
    shared = view.summary.get("pairwise")
    if not shared:
        return []
    said = (
        f"This holds as long as {shared['honest']} of the {view.summary['nodes']} sites are honest, the site itself "
        "included. An honest site follows the protocol and tells nobody the noise that it added or shares. It does not "
        "use its own noise to read messages. Part of a site's noise is shared with each other site, and "
        "cancels when all are summed. Anyone who has another site's secrets can remove that part. The secrets rest on "
        "cryptography (X25519, ChaCha20)."
    )
    if (view.identity.get("circumstances") or {}).get("processes", 1) > 1:
        said += " The first process passed on the public keys: it is honest too, unless transcripts were compared."
    if not view.if_honest:
        return [said]
    alone = view.if_honest.get(1)
    left = "no finite bound holds" if alone is None else f"ε = {up(alone)} still holds, by its own noise"
    return [f"{said} If nobody but the site itself is honest, {left}."]


def left_open(delta: float) -> list[str]:
    """Say what δ is: (ε, δ) is ε alone except for a part of probability δ, for any one record."""
    if delta == 0:
        return []
    rare = int(1 / Decimal(repr(delta)))  # exact, rounded down: never rarer than it is
    said = (
        f"δ is the part that ε leaves open. For any one record, with a probability of at most δ (1 in {rare:,}), the "
        "messages may reveal more than ε allows, up to the whole record. The percentages above include it."
    )
    return [said]


def _counted(view: RunView) -> str:
    relation = "one record of a site counts as if it were not there; how many records a site has is public"
    if view.summary["relation"] == "replace-one":
        relation = "one record of a site is replaced by another"
    nominal = ""
    if view.summary.get("epsilon_nominal") is not None:
        nominal = (
            " Noise was set by the published formula, whose nominal ε is no guarantee. The numbers here are certified."
        )
    here = f" The ledgers of {view.elsewhere} sites are not in this folder: they keep them." if view.elsewhere else ""
    return (
        f"Counted: {relation}. A site writes its ledger, a chain of hashes, before it sends anything. For this page "
        f"every line of it was checked, and ε was computed again from it.{nominal}{here}"
    )


def _not_covered(view: RunView) -> str:
    learnt = view.summary.get("pretraining")
    rests_on = f" The encoder rests on {learnt}; the images that it learnt from are not covered." if learnt else ""
    return f"Not covered: {' '.join(LIMITS)}{rests_on}"
