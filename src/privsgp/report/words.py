"""The privacy of a run in words for people who answer for the records: a data-protection officer, a review board.

Every sentence is one that docs/privacy.md proves or one that limits it. Numbers come from the ledgers, never from the
configuration.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

from privsgp.accounting.shown import percent_up, up
from privsgp.algorithms import ALGORITHMS
from privsgp.features.options import pretraining

if TYPE_CHECKING:
    from privsgp.accounting.statements import Statement
    from privsgp.planner.record import Plan
    from privsgp.report.reading import Run

SIMULATION = (
    "Simulation, not private. The configuration has a seed: whoever reads it can compute the noise again and take it "
    "away. What follows is what the same run would guarantee without a seed."
)

WEAK = 10.0  # from this ε on a guess may be right 99.995 % of the time


def guess(epsilon: float, delta: float) -> float:
    """Return how often an observer is right at most who must say, at even odds, whether a record took part.

    Guarantee: (e^ε + δ) / (1 + e^ε), by the bound (e^ε − 1 + 2δ) / (e^ε + 1) on total variation.
    Assumes: the run is (ε, δ)-private for the relation that was counted.
    """
    # divided by e^ε: a large ε must not overflow
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def promised(run: Run, statement: Statement) -> float:
    """Return the ε that is promised: what was spent; of a run that is not finished, its budget (infinite without)."""
    if run.finished:
        return statement.epsilon
    return math.inf if statement.budget is None else max(statement.budget, statement.epsilon)


def headline(run: Run) -> str:
    """Say the guarantee in one line."""
    if not run.config.private:
        return f"No protection: {run.config.algorithm.name} adds no noise."
    worst = max(promised(run, s) for s in run.statements)
    if math.isinf(worst):
        return "No finite bound is known for at least one site."
    said = f"ε ≤ {up(worst, 3)}, δ ≤ {small(max(s.delta for s in run.statements))}"
    whose = (
        f"every record of the {len(run.statements)} sites whose ledgers are here" if missing(run) else "every record"
    )
    return f"Without a seed it would be {said} for {whose}." if run.simulation else f"{whose.capitalize()}: {said}."


def standing(run: Run) -> str:
    """Say in a word or two whether the run protects anybody."""
    if run.simulation:
        return "simulation"
    return (
        "private"
        if run.config.private and not any(math.isinf(promised(run, s)) for s in run.statements)
        else "not private"
    )


def missing(run: Run) -> int:
    """Count the sites whose ledgers lie elsewhere, on machines of their own."""
    sites = 1 if ALGORITHMS[run.config.algorithm.name].pooled else run.config.data.nodes
    return sites - len({s.node for s in run.statements})


def paragraphs(run: Run) -> list[str]:
    """Explain what is promised, to whom, against whom, and what is not."""
    said = [SIMULATION] if run.simulation else []
    if not run.config.private:
        return [*said, "Messages between sites carried gradients as they are. Treat them as you treat the records."]
    unfinished = "The run is not finished. Its guarantee is its budget; what is spent so far is information only."
    opening = [*said, *([] if run.finished else [unfinished])]
    return [*opening, *_promise(run), *_trusted(run), _counted(run), _not_covered(run)]


def site(statement: Statement) -> str:
    """Call a site by its name, or by its number."""
    return statement.site or f"site {statement.node}"


def site_sentences(plan: Plan) -> list[str]:
    """Say of each site what a plan asks of it and gives it; sites without names that are alike share a sentence."""
    n, sigmas = plan.network, plan.sigmas
    weights = n.weights or [1 / n.nodes] * n.nodes
    noise = [(p * sigma) ** 2 for p, sigma in zip(weights, sigmas, strict=True)]
    groups: dict[object, list[int]] = {}
    for i, budget in enumerate(n.budgets):
        groups.setdefault(n.sites[i] if n.sites else budget, []).append(i)
    return [_of_a_plan(plan, nodes, math.fsum(noise[i] for i in nodes) / math.fsum(noise)) for nodes in groups.values()]


def _of_a_plan(plan: Plan, nodes: list[int], share: float) -> str:
    n, first = plan.network, nodes[0]
    (epsilon, delta), sizes = n.budgets[first], sorted(n.samples[i] for i in nodes)
    records = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
    who = n.sites[first] if n.sites else f"node {first}" if len(nodes) == 1 else f"each of {len(nodes)} nodes"
    trusted = "" if n.sharing is None else f", as long as {n.sharing.honest} of {n.nodes} nodes are honest"
    bound = "" if n.nominal else (
        f" Whoever sees all that it sends, and must say whether a record of it took part, is right at "
        f"most {percent_up(guess(epsilon, delta))} of the time{trusted}; a coin is right half of the time."
    )  # fmt: skip
    whose = "its" if len(nodes) == 1 else "theirs"
    noise = f" {share:.0%} of the noise in the average model is {whose}." if len(nodes) < n.nodes else ""
    nominal = " by the published formula, which guarantees nothing" if n.nominal else ""
    return f"{who}: {records} records, ε = {up(epsilon)}, δ = {small(delta)}{nominal}.{bound}{noise}"


def _promise(run: Run) -> list[str]:
    budgets = {s: promised(run, s) for s in run.statements}
    best, worst = (end(budgets, key=lambda s: (guess(budgets[s], s.delta), budgets[s])) for end in (min, max))
    if math.isinf(budgets[worst]):
        return ["For at least one site no finite bound on what its messages reveal is known: treat it as unprotected."]
    question = "which of two versions of that record was used" if _replaced(run) else "whether that record took part"
    happened, sees = _seen(run)
    means = (
        f"Suppose someone {sees}. They must say {question}. Tossing a coin is right half of the time. With "
        f"all they have seen they are right at most {percent_up(guess(budgets[worst], worst.delta))} of the time, at "
        f"the site that is worst off ({site(worst)}: ε = {up(budgets[worst], 3)}, δ = {small(worst.delta)})."
    )
    if budgets[worst] > WEAK:
        means += " So large an ε promises next to nothing: treat what that site sent as you treat its records."
    return [happened, means, *_best(budgets, best, worst), *_left_out(max(s.delta for s in budgets))]


def _seen(run: Run) -> tuple[str, str]:
    """Say what happened, and what an adversary is taken to see and to know."""
    n, algorithm = run.config.data.nodes, ALGORITHMS[run.config.algorithm.name]
    noised = "with random noise added before anybody used it."
    others = "controls all other sites, knows all their data, and knows every record of this site but one"
    if algorithm.pooled:
        trusted = f"{n} sites gave their records to one, which trained a model and has to be trusted with them."
        shown = f"{trusted} What it may show is the model after each step, {noised}"
        return shown, "sees the model after each step and knows every record but one"
    if algorithm.network == "alone":
        shown = f"{n} sites trained a model each. Nothing left a site. What it may show is its model, {noised}"
        return shown, f"sees a site's model after each step, {others}"
    together = f"{n} sites trained one model together. Records stayed where they are. What left a site were messages"
    if run.config.trust == "secure aggregation":
        shown = f"{together} with random noise. Others can read only their sum over all sites (secure aggregation)."
        return shown, "reads these sums and knows every record of every site but one, but no site's noise"
    if run.config.pairwise:
        others = (
            f"works together with any {n - run.config.honest} other sites, whose noise and secrets they then know, "
            "knows all other sites' data, and knows every record of this site but one"
        )
    message = "what it adds to the model at each step" if algorithm.network == "server" else "its model after each step"
    return f"{together}: {message}, {noised}", f"reads every message of a site, {others}"


def _trusted(run: Run) -> list[str]:
    """Say what shared noise asks one to trust, and what ε is where that trust is misplaced."""
    if not run.config.pairwise:
        return []
    n, h = run.config.data.nodes, run.config.honest
    said = (
        f"This holds as long as {h} of the {n} sites are honest, the site itself included: they follow the protocol "
        "and tell nobody what noise they added or share; a site that looks at its own to read messages is not one of "
        "them. Part of a site's noise is shared with each other site, and "
        "cancels when all are summed; whoever has another site's secrets can take that part away. The secrets rest on "
        "cryptography (X25519, ChaCha20)."
    )
    if run.processes > 1:
        said += " The first process passed on the public keys: it is honest too, unless transcripts were compared."
    curve = known_curve(run)
    if not curve:
        return [said]
    alone = curve.get(1)
    left = "no finite bound holds" if alone is None else f"ε = {up(alone, 3)} still holds, by its own noise"
    return [f"{said} If nobody but the site itself is honest, {left}."]


def known_curve(run: Run) -> dict[int, float | None]:
    """Return ε by how many sites are honest, as the summary has it; nothing where noise is not shared."""
    told = (run.summary or {}).get("pairwise") or {}
    return {int(h): epsilon for h, epsilon in told.get("curve", ())}


def _left_out(delta: float) -> list[str]:
    """Say what δ is: by the lemma that (ε, δ) is ε alone but for a part of probability δ, for any one record."""
    if delta == 0:
        return []
    rare = int(1 / Decimal(repr(delta)))  # exact, rounded down: never rarer than it is
    said = (
        f"δ is the part that ε leaves open: for any one record, with a probability of at most δ (1 in {rare:,}) what "
        "was seen may tell more than ε allows, up to the whole record. The percentages above count it in."
    )
    return [said]


def _best(budgets: dict[Statement, float], best: Statement, worst: Statement) -> list[str]:
    """Say what the best-protected site has, where the printed figures differ."""
    most, least = (percent_up(guess(budgets[s], s.delta)) for s in (best, worst))
    if most == least:
        return []
    return [f"Sites differ. At the best protected, {site(best)}, it is {most} (ε = {up(budgets[best], 3)})."]


def _replaced(run: Run) -> bool:
    return run.config.privacy.relation == "replace-one"


def _counted(run: Run) -> str:
    relation = "one record of a site counts as if it were not there; how many records a site has is public"
    if _replaced(run):
        relation = "one record of a site is replaced by another"
    nominal = ""
    if run.config.privacy.nominal:
        nominal = (
            " Noise was set by the published formula, whose nominal ε is no guarantee; the figures here are certified."
        )
    away = missing(run)
    here = f" The ledgers of {away} sites are not in this folder: they keep them." if away else ""
    return (
        f"Counted: {relation}. Each site's ledger, a chain of hashes written before anything was sent, was read and "
        f"checked line by line, and ε was computed again from it.{nominal}{here}"
    )


def _not_covered(run: Run) -> str:
    tested = any("test_loss" in row for row in run.metrics)
    public = " Accuracy and loss are on test data, which are taken to be public and have no protection."
    learnt = pretraining(run.config.features.name)
    return (
        "Not covered: several records of one person, at one site or at several, add up and are protected less than one "
        "is. Choosing settings by looking at results on the same records spends privacy that is not counted here. So "
        "does a second run on the same records, unless it continued the same ledgers."
        + (public if tested else "")
        + (f" The encoder rests on {learnt}; images that it was learnt from are not covered." if learnt else "")
    )


def small(delta: float) -> str:
    """Write a δ."""
    return up(delta).replace("e-0", "e-")
