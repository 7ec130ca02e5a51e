"""The outcome of a run, as in summary.json: budgets, spending, metrics and cost."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from privsgp import metrics
from privsgp.accounting.statements import by_sites
from privsgp.files import finite
from privsgp.options import NotNegative
from privsgp.outside import Number, keys
from privsgp.runs.config import PLANNED

if TYPE_CHECKING:
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Outcome

SUMMARY_VERSION = 1
PUBLIC_TEST = "public: metrics on it are not covered by the guarantee"
PRIVATE_TEST = "private: metrics on it are in private/ alone, and not covered by the guarantee"
# Results that only the first process knows; it sends them to the others at the end.
_EVALUATED = (
    "test_accuracy", "mean_node_accuracy", "worst_node_accuracy", "test_loss", "train_loss", "consensus_error",
)  # fmt: skip
_MEASURED = (*_EVALUATED, "virtual_seconds", "seconds")
FIRST = keys(
    **dict.fromkeys(_EVALUATED, Number | None),
    virtual_seconds=NotNegative,
    seconds=NotNegative,
    # Of the final model on test data. Pictures, lists and the user's own metrics stay in the first one's folder.
    scores=dict[str, Number],
    guess=dict[str, Number],
    finished=Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")],
)


def measured_by_first(spec: RunSpec, outcome: Outcome) -> dict[str, Any]:
    """Return what is known where all nodes' models were brought together, and when that was."""
    last, finished = outcome.metrics[-1], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    measured: dict[str, Any] = {key: last.get(key) for key in _MEASURED}
    # Without a seed whole seconds: the rest shows how much was drawn.
    measured["seconds"] = round(outcome.seconds, 3 if spec.simulation else 0)
    numbers = {key: None if measured[key] is None else float(measured[key]) for key in _MEASURED}
    scores, guess = _numbers(outcome.measured), _numbers(outcome.measured.get(metrics.BASELINE, {}))
    return measured | numbers | {"scores": scores, "guess": guess, "finished": finished}


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    """Return the numbers among a model's metrics, and nothing else that another process may have sent."""
    return {name: found[name] for name in metrics.NAMES if found.get(name) is not None}


def summary(
    spec: RunSpec,
    outcome: Outcome,
    spent: list[float | None],
    first: dict[str, Any],
    reported: list[int],
    node: int | None = None,
) -> dict[str, Any]:
    """Return what came out: `first` is what process 0 measured; other processes reported ε of the nodes `reported`.

    `node` is the one whose trust curve is shown if noise is shared; by default the one that has spent most.
    """
    p, private = spec.protection, spec.algorithm.private
    known = [math.inf if epsilon is None else epsilon for epsilon in spent]
    worst = known.index(max(known)) if node is None else node
    guess = _numbers(first["guess"])
    rests_on: dict[str, Any] = {} if spec.pretraining is None else {"pretraining": spec.pretraining}
    if spec.card["model"]["name"] == "additive" and node is None:  # a site has a model of its own
        rests_on["weight_noise"] = weight_noise(spec, outcome.steps)
    return rests_on | {
        "version": SUMMARY_VERSION,
        "name": spec.name,
        "simulation": spec.simulation,
        "algorithm": spec.algorithm.name,
        "trust": spec.settings.trust,
        "graph": spec.graph.name,
        "nodes": spec.nodes,
        "sites": list(spec.sites) or None,
        "steps": outcome.steps,
        "steps_planned": spec.steps,
        "ended": _ended(spec, outcome),
        "model": spec.final_model.text,
        "weights": None if spec.weights is None else list(spec.weights),
        "difference_scale": None if (saga := p.mechanisms[0].weighted) is None else saga.difference_scale,
        "dim": outcome.state.x.shape[1],
        "gradients": outcome.gradients,
        **{key: first[key] for key in _EVALUATED},
        **(outcome.measured or _numbers(first["scores"]) | ({metrics.BASELINE: guess} if guess else {})),
        "epsilon_spent": spent if private else None,
        "epsilon_budget": list(p.budgets) if private and p.budgets[0] is not None else None,
        "epsilon_nominal": list(p.budgets) if spec.algorithm.private and p.nominal else None,
        "delta": list(p.deltas) if private else None,
        "clip": p.mechanisms[0].clip if private else None,
        "sigma": [m.sigma for m in p.mechanisms],
        "noise": spec.noise.name,
        **person(spec, outcome, worst),
        "pairwise": shared_noise(spec, worst),
        "samples": [m.samples for m in p.mechanisms],
        "releases": outcome.releases,
        "reported": reported,
        "relation": p.relation,
        "accountant": p.accountant,
        "test_data": PUBLIC_TEST if spec.share_metrics else PRIVATE_TEST,
        "virtual_seconds": first["virtual_seconds"],
        "bytes_sent": outcome.bytes_sent,
        "finished": first["finished"],
        "seconds": first["seconds"],
    }


def weight_noise(spec: RunSpec, steps: int) -> float | None:
    """Return the standard deviation of the noise in each weight of the average model if no gradient corrects it.

    Column-stochastic mixing conserves the sum of the models, so the noise of step k moves their average by γ Σ p_i ξ_i.
    An average of iterates has it in the share of them that follow. Momentum can only lower it.

    Assumes: gradients do not amplify noise. That holds to first order if the loss is convex and γ below 1/smoothness.
    """
    p, n = spec.protection, spec.nodes
    if spec.algorithm.name not in PLANNED:
        return None
    parts = zip(spec.weights or [1 / n] * n, p.mechanisms, strict=True)
    sigma = math.hypot(*(w * m.sigma for w, m in parts)) if p.covariance is None else p.covariance.average_sigma
    last = round(spec.final_model.share * spec.steps) if spec.final_model.average == "tail" else 1
    kept = max(1, last - (spec.steps - steps))
    return sigma * math.hypot(*(spec.step_size(k) * min(1.0, (steps - k) / kept) for k in range(steps)))


def person(spec: RunSpec, outcome: Outcome, node: int) -> dict[str, Any]:
    """Return what a person is, and ε of one by how many sites like this node hold rows of it; nothing for records."""
    p = spec.protection
    found = p.mechanisms[node].person
    if found is None:
        return {}
    releases = outcome.releases[node if len(outcome.releases) > 1 else 0]  # a site knows its own alone
    curve = by_sites(found, releases, p.deltas[node], p.relation)
    facts = {"unit": found.unit, "sites": found.sites, "node": node}
    return {"person": facts | {"curve": [[sites, finite(epsilon)] for sites, epsilon in curve]}}


def shared_noise(spec: RunSpec, node: int) -> dict[str, Any] | None:
    """Return what shared noise is made of and what it asks one to trust: ε by how many nodes are honest.

    The curve is that of a node, for all its releases; None is "no finite bound".
    """
    p = spec.protection
    shared = p.mechanisms[node].shared
    if p.covariance is None or p.trust_curve is None or shared is None:
        return None
    honest, most = shared.honest, spec.steps if p.allowance is None else p.allowance[node]
    facts = {"honest": honest, "partners": p.covariance.nodes - 1, "node": node}
    curve = [[h, finite(epsilon)] for h, epsilon in p.trust_curve(node, most)]
    return facts | p.covariance.to_json(honest) | {"curve": curve}


def _ended(spec: RunSpec, outcome: Outcome) -> str | None:
    """Say why the run ended before its last step; None where it did not."""
    if outcome.steps == spec.steps:
        return None
    again = max(charged - spec.released(i, outcome.steps) for i, charged in enumerate(outcome.releases))
    return f"crashes undid {again} releases of a node, and its budget pays for no more: take a larger privacy.spare"
